//! Prepares the directory of a session.

use super::error::SessionError;
use crate::ctf::files::HIDDEN;
use crate::ctf::{Folder, Share};
use hypertrace_format::error::DirectoryError;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Makes the directory, or takes `fd`. Checks that the directory is empty and belongs to this user. Then
/// makes the hidden folder for the trace: if two sessions begin in the same directory, only one of them can
/// make this folder.
pub(crate) fn prepare(
    dir: &Path,
    fd: Option<OwnedFd>,
    share: Share,
) -> Result<Folder, SessionError> {
    let failed = DirectoryError::unusable(dir);
    let not_empty = || DirectoryError::NotEmpty(dir.to_owned());
    let folder = match fd {
        Some(fd) => {
            let folder = Folder::of(fd, dir, share);
            folder.take_empty()?;
            folder
        }
        None => Folder::new_or_empty(dir, share)?,
    };
    match folder.create(HIDDEN) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(not_empty().into()),
        made => made.map_err(&failed)?,
    };
    // Another session may have made and already renamed the folder.
    if folder.names(2).map_err(&failed)?.len() > 1 {
        let _ = folder.remove_folder(HIDDEN);
        return Err(not_empty().into());
    }
    Ok(folder)
}
