// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors. An error names the file and the byte, and says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use hypertrace_format::error::{BadInput, of_contents};
use hypertrace_format::folder::is_bad_path;

/// Reason why a directory or a file of symbols cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is not of the expected kind.
    #[error("{}: {why}", path.display())]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// What the path leads to, and what to do.
        why: String,
    },
    /// A file has something unexpected at an offset.
    #[error("{}: damaged at byte {offset}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset from the file's start.
        offset: u64,
        /// The found value, the expected value, and what to do.
        why: String,
    },
    /// The system cannot read or write the file.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// Operation that failed: `read`, `write` or `create`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// Result of reading or writing a directory.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { what, path: path.to_owned(), source }
    }

    pub(crate) fn unsuitable(path: &Path, why: impl fmt::Display) -> Error {
        Error::Unsuitable { path: path.to_owned(), why: of_contents(&why.to_string()) }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, why: impl fmt::Display) -> Error {
        Error::Damaged { path: path.to_owned(), offset, why: of_contents(&why.to_string()) }
    }
}

impl BadInput for Error {
    fn is_bad_input(&self) -> bool {
        match self {
            Error::Unsuitable { .. } | Error::Damaged { .. } => true,
            Error::Io { source, .. } => is_bad_path(source),
        }
    }
}
