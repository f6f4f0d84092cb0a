//! What can be wrong with a session, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a session cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not a session's directory.
    #[error("{}: {why}", path.display())]
    NotASession {
        /// What was given.
        path: PathBuf,
        /// What it is instead, and what to do.
        why: String,
    },
    /// `session.json` does not say what it must.
    #[error("{}: {why}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        why: String,
    },
    /// A file does not hold what it must at an offset.
    #[error("{}: damaged at byte {offset}: expected {expected}, found {found}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Of the field that is wrong, from the file's start.
        offset: u64,
        /// What stands there in a whole file.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The system does not give us the file.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// What reading a session gives.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether what was given is at fault, rather than the system that should
    /// have read it.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Error::NotASession { .. } | Error::Description { .. } | Error::Damaged { .. } => true,
            Error::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::IsADirectory
                    | io::ErrorKind::PermissionDenied
            ),
        }
    }

    pub(crate) fn io<'a>(path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    pub(crate) fn damaged(
        path: &Path,
        offset: u64,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Error {
        Error::Damaged {
            path: path.to_owned(),
            offset,
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}
