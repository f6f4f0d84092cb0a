//! Errors of a session.

use crate::ctf::error::WriteFailed;
use hypertrace_abi::layout::GeometryError;
use std::io;
use std::path::PathBuf;

/// Why a session cannot be created or finished.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The directory is a file or the like.
    #[error("{} is not a directory; give a new or an empty one", .0.display())]
    NotADirectory(PathBuf),
    /// There is something in it already; nothing was touched.
    #[error("{} is not empty; give a new or an empty directory, or remove what is in it", .0.display())]
    NotEmpty(PathBuf),
    /// It belongs to another user, who could exchange and read what is written.
    #[error(
        "{} belongs to user {owner}, not to user {user} who runs this; give a directory of your \
         own, or a new one",
        path.display()
    )]
    NotOwned {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose this process is.
        user: u32,
    },
    /// It cannot be made or read.
    #[error("cannot use {} as a session directory; give one that can be written", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file in it cannot be written.
    #[error(transparent)]
    Write(#[from] WriteFailed),
    /// It cannot be gone on with.
    #[error("cannot complete {}: {why}", path.display())]
    NotResumable {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Sizes that no host ring can have.
    #[error("cannot make host rings")]
    HostRings(#[from] GeometryError),
}

impl SessionError {
    /// Whether another directory would help: what was asked for is at fault,
    /// not the machine.
    pub fn is_bad_input(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            SessionError::NotADirectory(_)
            | SessionError::NotEmpty(_)
            | SessionError::NotOwned { .. }
            | SessionError::NotResumable { .. } => true,
            SessionError::Directory { source, .. } => {
                let none_left = matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                !none_left && !matches!(source.kind(), StorageFull | QuotaExceeded)
            }
            SessionError::Write(_) | SessionError::HostRings(_) => false,
        }
    }
}
