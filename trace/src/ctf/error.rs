//! The error of a write to a session's files.

use std::io;
use std::path::{Path, PathBuf};

/// A file of the session could not be written. What was committed before is
/// intact, and the same call may be made again.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct WriteFailed {
    /// What was being done.
    pub action: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: io::Error,
}

impl WriteFailed {
    /// For `map_err`.
    pub(crate) fn on<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> WriteFailed + 'a {
        move |source| WriteFailed { action, path: path.to_owned(), source }
    }
}
