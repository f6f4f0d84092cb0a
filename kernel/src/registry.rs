//! Directories of recordings in progress, by the names of their instances.
//!
//! A process that finds the instance of a killed one needs to know where its data belong. An entry is
//! a link in a folder that only its user can write and that a restart of the machine empties, as it
//! ends instances.

use crate::error::Error;
use crate::owner::Owner;
use hypertrace_format::error::error_chain;
use hypertrace_format::folder::{Folder, Share, retry};
use rustix::fs::{readlinkat, symlinkat};
use std::ffi::OsStr;
use std::io::ErrorKind::NotFound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most recordings at the same time.
const MOST: usize = 4096;

/// Returns the folder.
fn folder() -> Result<Folder, Error> {
    let failed = |path: &Path, why: String| {
        Error::NoTracefs(format!("no note in {}: {why}", path.display()))
    };
    let path = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/hypertrace")
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        // The XDG specification says to ignore a relative path.
        let runtime = runtime.filter(|path| path.is_absolute()).ok_or_else(|| {
            Error::NoTracefs("its instances are noted in XDG_RUNTIME_DIR, which is not set".into())
        })?;
        runtime.join("hypertrace")
    };
    match Folder::open_own(&path, Share::Owner) {
        Ok(Some(folder)) => Ok(folder),
        Ok(None) => Folder::create_path(&path, Share::Owner).map_err(|e| {
            let next = if e.kind() == NotFound { "; make it first" } else { "" };
            failed(&path, format!("{e}{next}"))
        }),
        Err(why) => Err(failed(&path, error_chain(&why))),
    }
}

/// Notes where the data of this owner's instance belong. An instance without a note would stay after a
/// kill.
pub(crate) fn add(owner: &Owner, dir: &Path) -> Result<(), Error> {
    let folder = folder()?;
    let name = owner.to_string();
    let noted = std::path::absolute(dir).and_then(|dir| retry(|| symlinkat(&dir, &folder, &*name)));
    noted.map_err(|e| Error::NoTracefs(format!("no note in {}: {e}", folder.path().display())))
}

/// Returns the directory of an instance.
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
    let names = folder().ok().and_then(|folder| folder.names(MOST).ok()).unwrap_or_default();
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    names.filter(|name| Owner::parse(name).is_some_and(|owner| owner.is_gone())).collect()
}
