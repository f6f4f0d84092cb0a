//! Errors of a session.

use crate::ctf::WriteFailed;
use crate::drain::TooManyRules;
use hypertrace_abi::layout::GeometryError;
use hypertrace_format::error::{BadInput, DirectoryError};
use std::io;
use std::path::{Path, PathBuf};

/// Error of creating or finishing a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The session cannot be written to a journal, or the descriptor is not suitable for a journal.
    #[error("cannot write the session to a journal")]
    Journal(#[source] io::Error),
    /// A file of the session cannot be written.
    #[error(transparent)]
    Write(#[from] WriteFailed),
    /// The session cannot be recovered.
    #[error("cannot recover {}: {why}", path.display())]
    NotRecoverable {
        /// Path of the session, or of the faulty file of the session.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The configuration has more patterns of events than a session keeps.
    #[error("cannot switch events on")]
    Events(#[from] TooManyRules),
    /// The configured sizes are impossible for a host ring.
    #[error("cannot make host rings")]
    HostRings(#[from] GeometryError),
}

impl SessionError {
    pub(super) fn not_recoverable(path: &Path, why: impl Into<String>) -> SessionError {
        SessionError::NotRecoverable { path: path.to_owned(), why: why.into() }
    }

    pub(super) fn not_in_a_journal(why: &str) -> SessionError {
        SessionError::Journal(io::Error::new(io::ErrorKind::Unsupported, why))
    }
}

impl BadInput for SessionError {
    fn is_bad_input(&self) -> bool {
        match self {
            SessionError::Journal(_) | SessionError::NotRecoverable { .. } => true,
            SessionError::Directory(why) => why.is_bad_input(),
            SessionError::Write(_) | SessionError::Events(_) | SessionError::HostRings(_) => false,
        }
    }
}
