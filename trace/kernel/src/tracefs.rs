//! The kernel's trace file system.
//!
//! If tracefs is mounted, this module uses the mount. Otherwise, this module makes a detached mount. Only a
//! descriptor of this process leads to the detached mount, and the mount ends with the process, so the system
//! is not changed.

use crate::error::Error;
use hypertrace_format::folder::retry;
use rustix::fs::{AtFlags, CWD, Dir as Entries, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::{Errno, read, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum size of a file that is read whole, in bytes. The largest files are `saved_cmdlines` and
/// `printk_formats`, which have a few thousand lines.
const MAX_BYTES: usize = 16 << 20;

/// Inode of the PID namespace that the machine starts with (PROC_PID_INIT_INO in linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xeffffffc;

/// Size of one read in bytes. The first read must take the whole of a `header_page` or a `header_event`.
const READ: usize = 64 << 10;

/// A directory of tracefs, held by its descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Dir {
    fd: Arc<OwnedFd>,
    /// Path of the directory, for messages
    path: PathBuf,
}

impl Dir {
    /// Opens the directory at a path.
    pub fn open_path(path: &Path) -> io::Result<Dir> {
        Dir::at(CWD, path, path.to_owned())
    }

    fn at(at: BorrowedFd<'_>, name: &Path, path: PathBuf) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| openat(at, name, flags, Mode::empty()))?;
        Ok(Dir { fd: Arc::new(fd), path })
    }

    /// Opens a directory in this directory.
    pub fn dir(&self, name: &str) -> io::Result<Dir> {
        Dir::at(self.fd.as_fd(), name.as_ref(), self.path.join(name))
    }

    /// Returns the path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for reading, in non-blocking mode.
    pub fn open(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        retry(|| openat(&self.fd, name, flags, Mode::empty()))
    }

    /// Reads at most [`MAX_BYTES`] of a file.
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.open(name)?;
        let mut bytes = Vec::new();
        let mut buffer = vec![0; READ];
        while bytes.len() < MAX_BYTES {
            match retry(|| read(&file, &mut buffer[..]))? {
                0 => break,
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
        Ok(bytes)
    }

    /// Reads a file as text. Bytes that are not UTF-8 are replaced.
    pub fn text(&self, name: &str) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.read(name)?).into_owned())
    }

    /// Replaces a setting.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        self.write(name, value, OFlags::TRUNC).map_err(|source| setting(name, value, source))
    }

    /// Appends an entry to a setting that is a list.
    pub fn add(&self, name: &str, value: &str) -> io::Result<()> {
        self.write(name, value, OFlags::APPEND)
    }

    fn write(&self, name: &str, value: &str, how: OFlags) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | how;
        let file = retry(|| openat(&self.fd, name, flags, Mode::empty()))?;
        // Each write is a separate command. The kernel takes the whole command, or refuses it.
        let written = retry(|| write(&file, value.as_bytes()))?;
        if written == value.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Returns at most `most` names in the directory, in alphabetical order.
    pub fn names(&self, most: usize) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in retry(|| Entries::read_from(&self.fd))?.take(most + 2) {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes a directory. A new directory in `instances` is a new instance.
    pub fn create(&self, name: &str) -> io::Result<()> {
        retry(|| mkdirat(&self.fd, name, Mode::RWXU))
    }

    /// Removes a directory. A directory in `instances` is an instance. An instance that a process uses cannot
    /// be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        retry(|| unlinkat(&self.fd, name, AtFlags::REMOVEDIR))
    }
}

fn setting(file: &str, value: &str, source: io::Error) -> Error {
    Error::Setting { file: file.to_owned(), value: value.to_owned(), source }
}

/// Finds tracefs.
///
/// # Errors
/// If the kernel has no tracefs, or this process may not use tracefs. The message names a remedy.
pub(crate) fn find() -> Result<Dir, Error> {
    // The thread ids in the kernel's trace are ids of the first PID namespace, so this process must be in
    // this namespace, too.
    let namespace = rustix::fs::stat("/proc/self/ns/pid").map(|stat| stat.st_ino);
    if namespace != Ok(FIRST_PID_NAMESPACE) {
        let why = "it has the numbers of threads outside of this PID namespace; run this outside";
        return Err(Error::NoTracefs(why.into()));
    }
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut why = None;
    for path in mounted(&mounts, b"tracefs") {
        match Dir::open_path(&path).and_then(usable) {
            Ok(dir) => return Ok(dir),
            Err(error) => why = Some(format!("{}: {error}", path.display())),
        }
    }
    let mounted_here = match mount() {
        Ok(dir) => usable(dir),
        Err(error) => Err(error.into()),
    };
    mounted_here.map_err(|error| {
        Error::NoTracefs(match error.raw_os_error() {
            Some(libc::ENODEV) => "this kernel has no tracefs (CONFIG_EVENT_TRACING)".into(),
            Some(libc::EPERM | libc::EACCES) => {
                let why = why.map_or(String::new(), |why| format!(" ({why})"));
                format!("only root may use it{why}; run this as root")
            }
            _ => match why {
                Some(why) => why,
                None => format!(
                    "it is not mounted, and cannot be ({error}): mount -t tracefs nodev \
                     /sys/kernel/tracing"
                ),
            },
        })
    })
}

/// Checks that this user can make instances. The check is needed, because some users may open the directory,
/// but not the files in it.
fn usable(dir: Dir) -> io::Result<Dir> {
    let instances = dir.dir("instances")?;
    retry(|| {
        rustix::fs::accessat(&instances.fd, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS)
    })?;
    Ok(dir)
}

/// Makes a mount that only the returned descriptor reaches.
fn mount() -> Result<Dir, Errno> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let fd = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok(Dir { fd: Arc::new(fd), path: "tracefs".into() })
}

/// Opens KVM's folder in debugfs. Returns `None` if debugfs is not mounted, this process may not read it, or
/// the kernel has no KVM.
pub(crate) fn kvm() -> Option<Dir> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    mounted(&mounts, b"debugfs").iter().find_map(|path| Dir::open_path(&path.join("kvm")).ok())
}

/// Returns the mount points of file systems of this kind from `/proc/self/mountinfo`. A mount of a mere part
/// of a file system does not count.
fn mounted(mountinfo: &[u8], kind: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mountinfo.split(|b| *b == b'\n') {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        // Field 4 is the mounted part of the file system, and field 5 the mount point. The type comes after a
        // lone dash (proc(5)).
        let Some(dash) = fields.iter().position(|field| *field == b"-") else { continue };
        let (root, of) = (fields.get(3).copied(), fields.get(dash + 1).copied());
        if let Some(place) = fields.get(4).filter(|_| root == Some(b"/") && of == Some(kind)) {
            found.push(PathBuf::from(std::ffi::OsStr::from_bytes(&unescaped(place))));
        }
    }
    found
}

/// Decodes octal escapes such as `\040`, which stands for a space in a mount point.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_mounts_are_found_and_places_are_decoded() {
        let mountinfo = b"\
22 1 0:20 / /sys rw - sysfs sysfs rw
30 22 0:11 / /sys/kernel/tracing rw,nosuid shared:10 - tracefs tracefs rw
31 22 0:11 /instances/x /part rw - tracefs tracefs rw
32 22 0:11 / /a\\040b rw - tracefs nodev rw
33 22 0:7 / /sys/kernel/debug rw - debugfs debugfs rw
34 22 8:1 / /tracefs rw - ext4 /dev/tracefs rw
";
        assert_eq!(
            mounted(mountinfo, b"tracefs"),
            [Path::new("/sys/kernel/tracing"), Path::new("/a b")]
        );
        assert_eq!(mounted(mountinfo, b"debugfs"), [Path::new("/sys/kernel/debug")]);
    }
}
