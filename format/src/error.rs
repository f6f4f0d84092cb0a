//! The error of a write to a session's files.

use std::io;
use std::path::{Path, PathBuf};

/// Error: a file of the session could not be written. Packets committed before
/// are intact, and the same call may be made again.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct WriteFailed {
    /// The action that failed.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl WriteFailed {
    /// Returns a conversion for `map_err`.
    pub fn on<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> WriteFailed + 'a {
        move |source| WriteFailed { action, path: path.to_owned(), source }
    }
}
