//! Directories of recordings in progress, by the names of their instances.
//!
//! A process that finds the instance of a killed one needs to know where its data belong. An entry is
//! a link in a folder that only its user can write and that a restart of the machine empties, as it
//! ends instances.

use crate::owner::Owner;
use hypertrace_trace::Share;
use hypertrace_trace::ctf::Folder;
use hypertrace_trace::ctf::folder::retry;
use hypertrace_trace::own_directory;
use rustix::fs::{readlinkat, symlinkat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most recordings at the same time.
const MOST: usize = 4096;

/// Returns the folder; `None` if this user has none.
fn folder() -> Option<Folder> {
    let user = rustix::process::geteuid();
    let path = if user.is_root() {
        PathBuf::from("/run/hypertrace")
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?;
        // The XDG specification says to ignore a relative path.
        Some(runtime).filter(|path| path.is_absolute())?.join("hypertrace")
    };
    match own_directory(&path, Share::Owner).ok()? {
        Some(folder) => Some(folder),
        None => Folder::create_path(&path, Share::Owner).ok(),
    }
}

/// Notes where the data of this owner's instance belong. Without the note, a kill costs the events
/// that are in the kernel's buffers then.
pub(crate) fn add(owner: &Owner, dir: &Path) {
    if let (Some(folder), Ok(dir)) = (folder(), std::path::absolute(dir)) {
        let _ = retry(|| symlinkat(&dir, &folder, owner.to_string()));
    }
}

/// Returns the directory of an instance.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let link = readlinkat(folder()?, name, Vec::new()).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(link.as_bytes())))
}

/// Forgets an instance.
pub(crate) fn remove(name: &str) {
    if let Some(folder) = folder() {
        let _ = folder.remove(name);
    }
}

/// Returns the names of instances whose owners have ended.
pub(crate) fn orphans() -> Vec<String> {
    let names = folder().and_then(|folder| folder.names(MOST).ok()).unwrap_or_default();
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    names.filter(|name| Owner::parse(name).is_some_and(|owner| owner.is_gone())).collect()
}
