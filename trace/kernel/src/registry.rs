//! Directories of recordings in progress, each under the name of the recording's instance.
//!
//! If a process finds the instance of a killed process, it needs to know the directory of the instance's
//! data. An entry is a link to this directory, in a folder to which only the user can write. A restart of the
//! machine empties this folder, and also removes the instances.

use crate::error::Error;
use crate::owner::Owner;
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::{Folder, Share, retry};
use rustix::fs::{readlinkat, symlinkat};
use std::ffi::OsStr;
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum number of recordings at the same time.
const MAX: usize = 4096;

/// Returns the folder of the entries.
fn folder() -> Result<Folder, Error> {
    if rustix::process::geteuid().is_root() {
        return folder_in(Path::new("/run"), true);
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // The XDG specification says to ignore a relative path.
    let runtime = runtime.filter(|path| path.is_absolute()).ok_or_else(|| {
        Error::NoTracefs("its instances are noted in XDG_RUNTIME_DIR, which is not set".into())
    })?;
    folder_in(&runtime, false)
}

/// Opens the folder in a directory, and makes the folder if there is none. If `makes_above` is true, the
/// function also makes the directory `above`, with the usual mode of `/run`.
fn folder_in(above: &Path, makes_above: bool) -> Result<Folder, Error> {
    let path = above.join("hypertrace");
    let failed = |path: &Path, why: String| {
        Error::NoTracefs(format!("no note in {}: {why}", path.display()))
    };
    match Folder::open_own(&path, Share::Owner) {
        Ok(Some(folder)) => Ok(folder),
        Ok(None) => {
            // A minimal machine has no /run, and only root can make this directory.
            if makes_above
                && let Err(why) = Folder::create_path(above, Share::All)
                && why.kind() != AlreadyExists
            {
                return Err(failed(above, why.to_string()));
            }
            Folder::create_path(&path, Share::Owner).map_err(|e| {
                let next = if e.kind() == NotFound { "; make it first" } else { "" };
                failed(&path, format!("{e}{next}"))
            })
        }
        Err(why) => Err(failed(&path, error_chain(&why))),
    }
}

/// Notes the directory to which the data of this owner's instance belong. Without a note, an instance would
/// stay after a kill.
pub(crate) fn add(owner: &Owner, dir: &Path) -> Result<(), Error> {
    let folder = folder()?;
    let name = owner.to_string();
    let noted = std::path::absolute(dir).and_then(|dir| retry(|| symlinkat(&dir, &folder, &*name)));
    noted.map_err(|e| Error::NoTracefs(format!("no note in {}: {e}", folder.path().display())))
}

/// Returns the directory of an instance's recording.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let link = readlinkat(folder().ok()?, name, Vec::new()).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(link.as_bytes())))
}

/// Forgets an instance.
pub(crate) fn remove(name: &str) {
    if let Ok(folder) = folder() {
        let _ = folder.remove(name);
    }
}

/// Returns the names of instances whose owners have ended.
pub(crate) fn orphans() -> Vec<String> {
    let names = folder().ok().and_then(|folder| folder.names(MAX).ok()).unwrap_or_default();
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    names.filter(|name| Owner::parse(name).is_some_and(|owner| owner.is_gone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_directory_above_the_notes_is_made_for_root_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let run = temporary.path().join("run");

        let said = folder_in(&run, false).unwrap_err().to_string();
        assert!(said.ends_with(&format!("there is no directory {}; make it first", run.display())));
        for _ in 0..2 {
            folder_in(&run, true).unwrap();
            assert_eq!((mode(&run), mode(&run.join("hypertrace"))), (0o755, 0o700));
        }
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_not_followed_to_make_one() {
        let temporary = tempfile::tempdir().unwrap();
        let (run, target) = (temporary.path().join("run"), temporary.path().join("target"));
        symlink(&target, &run).unwrap();

        folder_in(&run, true).unwrap_err();

        assert!(!target.exists());
    }
}
