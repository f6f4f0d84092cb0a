//! Errors of a session.

use crate::ctf::WriteFailed;
use crate::drain::TooManyRules;
use hypertrace_abi::layout::GeometryError;
use std::io;
use std::path::{Path, PathBuf};

/// Error of creating or finishing a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The directory is a file or the like.
    #[error("{} is not a directory; give a new or an empty one", .0.display())]
    NotADirectory(PathBuf),
    /// There is something in it already; nothing was touched.
    #[error("{} is not empty; give a new or an empty directory, or remove what is in it", .0.display())]
    NotEmpty(PathBuf),
    /// It belongs to another user, who could exchange and read its files.
    #[error(
        "{} belongs to user {owner}, not to user {user} who runs this; give a directory of your \
         own, or a new one",
        path.display()
    )]
    NotOwned {
        /// Which.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
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
    /// The session cannot be written to a journal, or not to this descriptor.
    #[error("cannot write the session to a journal")]
    Journal(#[source] io::Error),
    /// A file in it cannot be written.
    #[error(transparent)]
    Write(#[from] WriteFailed),
    /// It cannot be completed.
    #[error("cannot complete {}: {why}", path.display())]
    NotResumable {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// More patterns of events than are kept.
    #[error("cannot switch events on")]
    Events(#[from] TooManyRules),
    /// Sizes that no host ring can have.
    #[error("cannot make host rings")]
    HostRings(#[from] GeometryError),
}

impl SessionError {
    pub(super) fn not_resumable(path: &Path, why: impl Into<String>) -> SessionError {
        SessionError::NotResumable { path: path.to_owned(), why: why.into() }
    }

    pub(super) fn not_in_a_journal(why: &str) -> SessionError {
        SessionError::Journal(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Returns whether another directory would help: the request is at fault, not the machine.
    pub fn is_bad_input(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            SessionError::NotADirectory(_)
            | SessionError::NotEmpty(_)
            | SessionError::NotOwned { .. }
            | SessionError::Journal(_)
            | SessionError::NotResumable { .. } => true,
            SessionError::Directory { source, .. } => {
                let none_left = matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                !none_left && !matches!(source.kind(), StorageFull | QuotaExceeded)
            }
            SessionError::Write(_) | SessionError::Events(_) | SessionError::HostRings(_) => false,
        }
    }
}
