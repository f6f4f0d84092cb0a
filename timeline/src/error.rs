// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors of reading a session, with the file and the byte at fault.

use hypertrace_format::error::{BadInput, of_contents};
use hypertrace_format::folder::is_bad_path;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a session cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path is not a session's directory.
    #[error("{}: {why}", path.display())]
    NotASession {
        /// The path that was given.
        path: PathBuf,
        /// Kind of the thing at the path, and advice to the user.
        why: String,
    },
    /// `session.json` breaks a rule.
    #[error("{}: {why}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// The rule that the file breaks.
        why: String,
    },
    /// A file has an unexpected value at an offset.
    #[error("{}: damaged at byte {offset}: expected {expected}, found {found}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Offset of the wrong field from the file's start.
        offset: u64,
        /// Value that an undamaged file would have.
        expected: String,
        /// Value that was found.
        found: String,
    },
    /// A file was given as a trace of a kernel, but is another kind of file.
    #[error("{}: not a trace.dat of trace-cmd, but {found}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// Probable kind of the file, and advice to the user.
        found: &'static str,
    },
    /// A trace of a kernel has a form that is not supported.
    #[error("{}: not supported: {why}", path.display())]
    NotSupported {
        /// The file.
        path: PathBuf,
        /// Form of the trace, and advice to the user.
        why: String,
    },
    /// A kernel's trace and the session in the same directory were recorded in different boots.
    #[error(
        "{}: recorded in another boot than the session beside it: move it away, or show it alone",
        path.display()
    )]
    AnotherBoot {
        /// The file.
        path: PathBuf,
    },
    /// A trace cannot be put on the clock of a session's guest.
    #[error("{}: cannot be put on the clock of the guest in {}: {why}", path.display(), session.display())]
    NoGuestClock {
        /// Path of the trace.
        path: PathBuf,
        /// Directory of the session.
        session: PathBuf,
        /// Why the trace cannot be put on the guest's clock.
        why: String,
    },
    /// Recordings of guests' kernels in a session are not read.
    #[error("{why}")]
    GuestKernels {
        /// Why the recordings are not read.
        why: String,
        /// Whether the reason is that the recordings have not ended yet.
        is_coming: bool,
    },
    /// A trace was recorded by the guest of a session that was not given.
    #[error("{}: recorded in the guest of {}; give that session, too", path.display(), session.display())]
    NotGiven {
        /// Path of the trace.
        path: PathBuf,
        /// Directory of the session.
        session: PathBuf,
    },
    /// A function trace cannot be put on the clock of another recording.
    #[error(
        "{}: recorded on another machine, or after another boot, than {}: show it alone",
        path.display(), other.display()
    )]
    AnotherHost {
        /// Path of the function trace.
        path: PathBuf,
        /// Path of the other recording.
        other: PathBuf,
    },
    /// A function trace cannot be read.
    #[error(transparent)]
    Functions(hypertrace_functions::Error),
    /// The system cannot read the file.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

/// Result of reading a session.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
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
            expected: of_contents(&expected.to_string()),
            found: of_contents(&found.to_string()),
        }
    }

    /// Returns a function for `map_err`. This function makes an error from a text that says which rule the
    /// description breaks.
    pub(crate) fn description(path: &Path) -> impl Fn(String) -> Error + '_ {
        |why| Error::Description { path: path.to_owned(), why: of_contents(&why) }
    }
}

impl BadInput for Error {
    fn is_bad_input(&self) -> bool {
        match self {
            Error::NotASession { .. }
            | Error::Description { .. }
            | Error::Damaged { .. }
            | Error::NotATrace { .. }
            | Error::NotSupported { .. }
            | Error::AnotherBoot { .. }
            | Error::AnotherHost { .. }
            | Error::GuestKernels { .. }
            | Error::NotGiven { .. }
            | Error::NoGuestClock { .. } => true,
            Error::Functions(error) => error.is_bad_input(),
            Error::Io { source, .. } => is_bad_path(source),
        }
    }
}
