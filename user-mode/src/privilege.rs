//! Programs that the kernel starts with more rights than their starter has. The kernel marks such programs
//! (AT_SECURE, getauxval(3)), and the library then takes no segment from the environment.

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Number of interpreters of scripts that the kernel follows (fs/exec.c).
const MAX_INTERPRETERS: usize = 5;
/// Number of bytes that the kernel reads of a script's first line (linux/binfmts.h, BINPRM_BUF_SIZE).
const LINE_BYTES: u64 = 256;

/// Rights that the start of a program gives to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Privilege {
    /// The program becomes this user.
    Setuid(u32),
    /// The program becomes a member of this group.
    Setgid(u32),
    /// The program has capabilities of its own.
    Capabilities,
}

impl std::fmt::Display for Privilege {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Privilege::Setuid(user) => write!(f, "it is setuid to user {user}"),
            Privilege::Setgid(group) => write!(f, "it is setgid to group {group}"),
            Privilege::Capabilities => f.write_str("it has file capabilities"),
        }
    }
}

/// The user and the group that start a program.
#[derive(Clone, Copy, Debug)]
struct Starter {
    user: u32,
    group: u32,
}

/// Returns the rights that the program would get in addition to this process's rights, and the file that
/// gives these rights.
pub(crate) fn of(program: &Path) -> Option<(PathBuf, Privilege)> {
    let file = executed(program);
    let meta = file.metadata().ok()?;
    let is_nosuid = statvfs(&file).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID));
    if is_nosuid || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let mut capabilities = [0; 64];
    let has = getxattr(&file, "security.capability", &mut capabilities[..]).unwrap_or(0);
    let user = rustix::process::getuid().as_raw();
    let starter = Starter { user, group: rustix::process::getgid().as_raw() };
    let given = given(&meta, capabilities.get(..has).unwrap_or(&[]), starter)?;
    Some((file, given))
}

/// Returns the rights that a file of these attributes gives
/// (security/commoncap.c, `cap_bprm_creds_from_file`; fs/exec.c,
/// `bprm_fill_uid`).
fn given(meta: &Metadata, capabilities: &[u8], starter: Starter) -> Option<Privilege> {
    let mode = meta.permissions().mode();
    // Without the group's right to execute, the set-group-ID bit is for mandatory locks.
    let group = libc::S_ISGID | libc::S_IXGRP;
    if mode & libc::S_ISUID != 0 && meta.uid() != starter.user {
        Some(Privilege::Setuid(meta.uid()))
    } else if mode & group == group && meta.gid() != starter.group {
        Some(Privilege::Setgid(meta.gid()))
    } else if starter.user != 0 && gives_capabilities(capabilities) {
        Some(Privilege::Capabilities)
    } else {
        None
    }
}

/// Returns true if this value of `security.capability` gives effective or permitted rights
/// (linux/capability.h, `vfs_cap_data`).
fn gives_capabilities(value: &[u8]) -> bool {
    let word = |at: usize| value.get(at..at + 4).is_some_and(|word| word != [0; 4]);
    value.first().is_some_and(|flags| flags & 1 != 0) || word(4) || word(12)
}

/// Returns the file that is executed in the end. For a script, the result is the interpreter, because the
/// interpreter's rights count.
fn executed(program: &Path) -> PathBuf {
    let mut path = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        match interpreter(&path) {
            Some(interpreter) => path = interpreter,
            None => break,
        }
    }
    path
}

fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    let mut file = BufReader::new(File::open(script).ok()?.take(LINE_BYTES));
    file.read_until(b'\n', &mut line).ok()?;
    let words = line.strip_prefix(b"#!")?;
    let mut words = words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Some(PathBuf::from(OsStr::from_bytes(words.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    /// Returns the rights that a file of this user gives to a starter, if the file has this mode and these
    /// capabilities.
    fn given_by(
        mode: u32,
        capabilities: &[u8],
        starter: impl Fn(Starter) -> Starter,
    ) -> Option<Privilege> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
        let meta = file.as_file().metadata().unwrap();
        let owner = Starter { user: meta.uid(), group: meta.gid() };
        given(&meta, capabilities, starter(owner))
    }

    #[test]
    fn a_set_id_bit_gives_rights_to_others_than_its_owner() {
        let same = |owner: Starter| owner;
        let user = |owner: Starter| Starter { user: owner.user + 1, ..owner };
        let group = |owner: Starter| Starter { group: owner.group + 1, ..owner };
        assert!(matches!(given_by(0o4755, &[], user), Some(Privilege::Setuid(_))));
        assert!(matches!(given_by(0o2755, &[], group), Some(Privilege::Setgid(_))));
        for (mode, starter) in [(0o4755, &same as &dyn Fn(Starter) -> Starter), (0o4755, &group)] {
            assert_eq!(given_by(mode, &[], starter), None);
        }
        assert_eq!(given_by(0o2755, &[], user), None);
        assert_eq!(given_by(0o2745, &[], group), None, "a group that may not execute it");
        assert_eq!(given_by(0o755, &[], user), None);
    }

    #[test]
    fn capabilities_give_rights_to_all_but_root() {
        // Version 2, effective: CAP_NET_RAW.
        let raw = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let inheritable = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let some_user = |owner: Starter| Starter { user: 1000, ..owner };
        let root = |owner: Starter| Starter { user: 0, ..owner };
        assert_eq!(given_by(0o755, &raw, some_user), Some(Privilege::Capabilities));
        assert_eq!(given_by(0o755, &raw, root), None);
        assert_eq!(given_by(0o755, &inheritable, some_user), None);
        assert_eq!(given_by(0o755, &[], some_user), None);
    }

    #[test]
    fn a_script_has_the_rights_of_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let inner = script("inner", "#! /bin/sh -e\necho\n");
        let outer = script("outer", &format!("#!{}\n", inner.display()));
        let itself = script("itself", &format!("#!{}\n", dir.path().join("itself").display()));
        assert_eq!(executed(&outer), Path::new("/bin/sh"));
        assert_eq!(executed(&itself), itself);
        assert_eq!(executed(Path::new("/nowhere")), Path::new("/nowhere"));
    }
}
