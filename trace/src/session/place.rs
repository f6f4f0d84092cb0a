//! The directory of a session: made, or seen to be this user's.

use super::error::SessionError;
use crate::ctf::files::HIDDEN;
use crate::ctf::{Folder, Share};
use hypertrace_format::error::DirectoryError;
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
    let failed = DirectoryError::unusable(dir);
    let not_empty = || SessionError::NotEmpty(dir.to_owned());
    let found = match fd {
        Some(fd) => {
            let folder = Folder::of(fd, dir, share);
            folder.check_own()?;
            Some(folder)
        }
        None => Folder::open_own(dir, share)?,
    };
    let folder = match found {
        Some(folder) => folder,
        None => match Folder::create_path(dir, share) {
            // Another's, just now.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Folder::open_own(dir, share)?.ok_or_else(not_empty)?
            }
            made => made.map_err(&failed)?,
        },
    };
    if !folder.names(1).map_err(&failed)?.is_empty() {
        return Err(not_empty());
    }
    folder.set_mode().map_err(&failed)?;
    match folder.create(HIDDEN) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(not_empty()),
        made => made.map_err(&failed)?,
    };
    // Another may have been here, and be further.
    if folder.names(2).map_err(&failed)?.len() > 1 {
        let _ = folder.remove_folder(HIDDEN);
        return Err(not_empty());
    }
    Ok(folder)
}
