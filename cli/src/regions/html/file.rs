//! Writes a page whole or not at all.

use crate::Usage;
use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Beginning of each page. Only files that begin like this are replaced.
pub const MARK: &str = "<!doctype html>\n<!-- hypertrace regions -->\n";

/// Checks that a page may be written, before the work is done.
///
/// # Errors
/// If there is something else than an older page.
pub fn check(path: &Path) -> Result<()> {
    may_replace(path).map(|_| ())
}

/// Returns whether there is an older page to replace.
fn may_replace(path: &Path) -> Result<bool> {
    let refuse = |what: &str| {
        let why = format!("--html: {} {what}: give another name", path.display());
        Err(Usage(why).into())
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => refuse("is not a file"),
        Ok(_) => {
            let mut beginning = Vec::new();
            let read = File::open(path)
                .and_then(|file| file.take(MARK.len() as u64).read_to_end(&mut beginning));
            read.with_context(|| format!("cannot read {}", path.display()))?;
            match beginning == MARK.as_bytes() {
                true => Ok(true),
                false => refuse("exists and is not a page of this command"),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot look at {}", path.display())),
    }
}

/// Writes a page. It is private to its user, as sessions are.
///
/// # Errors
/// If it cannot be written: an older page stays, and no other file.
pub fn save(path: &Path, page: &str) -> Result<()> {
    let replaces = may_replace(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let write = || {
        // A file that grows beyond its limit ends the process by a signal.
        let limit = getrlimit(Resource::Fsize).current;
        if let Some(limit) = limit.filter(|limit| page.len() as u64 > *limit) {
            let why = format!("{} bytes are beyond RLIMIT_FSIZE, {limit}", page.len());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let folder = folder.unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".regions-").tempfile_in(folder)?;
        file.write_all(page.as_bytes())?;
        match replaces {
            true => file.persist(path),
            false => file.persist_noclobber(path),
        }?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
