//! The directory of a session: made, or seen to be this user's.

use super::error::SessionError;
use crate::ctf::files::HIDDEN;
use crate::ctf::{Folder, Share};
use rustix::fs::FileType;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Makes the directory, or takes `fd`, and sees that it is one of this user and empty; and
/// makes the folder for the trace, hidden still, so that of two sessions only one finds it so.
pub(crate) fn prepare(
    dir: &Path,
    fd: Option<OwnedFd>,
    share: Share,
) -> Result<Folder, SessionError> {
    let failed = |source| SessionError::Directory { path: dir.to_owned(), source };
    let not_empty = || SessionError::NotEmpty(dir.to_owned());
    let found = match fd {
        Some(fd) => Some(check(Folder::of(fd, dir, share), dir)?),
        None => own(dir, share)?,
    };
    let folder = match found {
        Some(folder) => folder,
        None => match Folder::create_path(dir, share) {
            // Another's, just now.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                own(dir, share)?.ok_or_else(not_empty)?
            }
            made => made.map_err(failed)?,
        },
    };
    if !folder.names(1).map_err(failed)?.is_empty() {
        return Err(not_empty());
    }
    folder.set_mode().map_err(failed)?;
    match folder.create(HIDDEN) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(not_empty()),
        made => made.map_err(failed)?,
    };
    // Another may have been here, and be further.
    if folder.names(2).map_err(failed)?.len() > 1 {
        let _ = folder.remove_folder(HIDDEN);
        return Err(not_empty());
    }
    Ok(folder)
}

/// Opens a directory that is there, `None` if there is none. It, and a link to it if it is one, must be this user's: in
/// another's, that user could exchange and read what is written.
///
/// # Errors
/// If it is another user's, is no directory, or cannot be opened.
pub fn own(dir: &Path, share: Share) -> Result<Option<Folder>, SessionError> {
    let failed = |source| SessionError::Directory { path: dir.to_owned(), source };
    match rustix::fs::lstat(dir).map_err(io::Error::from) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => check_owner(found.map_err(failed)?.st_uid, dir)?,
    }
    let folder = Folder::open(dir, share).map_err(|e| match e.kind() {
        io::ErrorKind::NotADirectory => SessionError::NotADirectory(dir.to_owned()),
        _ => failed(e),
    })?;
    check(folder, dir).map(Some)
}

/// Returns the folder if it is a directory of this user.
fn check(folder: Folder, dir: &Path) -> Result<Folder, SessionError> {
    let failed = |source| SessionError::Directory { path: dir.to_owned(), source };
    let stat = folder.stat().map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(SessionError::NotADirectory(dir.to_owned()));
    }
    check_owner(stat.st_uid, dir)?;
    Ok(folder)
}

fn check_owner(owner: u32, dir: &Path) -> Result<(), SessionError> {
    let (path, user) = (dir.to_owned(), rustix::process::geteuid().as_raw());
    if owner == user { Ok(()) } else { Err(SessionError::NotOwned { path, owner, user }) }
}
