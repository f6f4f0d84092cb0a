//! Errors of recordings.

use hypertrace_format::error::{BadInput, DirectoryError};
use std::io;
use std::path::PathBuf;

/// Error of a recording of the kernel's events.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The directory has no session.
    #[error("{} has no session.json: it is no session's directory", .0.display())]
    NoSession(PathBuf),
    /// The directory has a recording already.
    #[error("{} has a kernel.dat already; record into another directory", .0.display())]
    Recorded(PathBuf),
    /// Another process records into the directory.
    #[error("another process records into {} now; wait for its end, or use another directory", .0.display())]
    Busy(PathBuf),
    /// The kernel's tracing cannot be used.
    #[error("the kernel's tracing cannot be used: {0}")]
    NoTracefs(String),
    /// The kernel's tracing refuses a setting.
    #[error("the kernel's tracing does not take {value:?} as {file}")]
    Setting {
        /// File in the instance.
        file: String,
        /// The text that was written to the setting's file.
        value: String,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The kernel does not have this event.
    #[error(
        "this kernel has no event {0:?}: `hypertrace info --events` shows all, as SYSTEM:EVENT"
    )]
    NoEvent(String),
    /// This process does not exist.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// The scheduling of a thread cannot be recorded without tracefs.
    #[error("perf_event_open of thread {thread} failed: {why}")]
    Perf {
        /// Id of the thread.
        thread: u32,
        /// The reason of the refusal, and a remedy.
        why: String,
    },
    /// A file of the recording cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A file of a killed recording is damaged.
    #[error("{} is damaged: {why}; remove {} to give the recording up", path.display(), path.parent().unwrap_or(path).display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The damage, and the byte where it is.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
}

impl Error {
    /// Returns true if the machine is the reason of the error, and not the directory: the machine's kernel
    /// does not let this user record, or lacks the source of events.
    pub fn is_of_machine(&self) -> bool {
        matches!(
            self,
            Error::NoTracefs(_)
                | Error::Setting { .. }
                | Error::NoEvent(_)
                | Error::Perf { .. }
                | Error::System(..)
        )
    }
}

impl BadInput for Error {
    fn is_bad_input(&self) -> bool {
        match self {
            Error::Directory(error) => error.is_bad_input(),
            Error::NoSession(_)
            | Error::Recorded(_)
            | Error::Busy(_)
            | Error::NoEvent(_)
            | Error::NoProcess(_)
            | Error::Damaged { .. } => true,
            Error::NoTracefs(_)
            | Error::Setting { .. }
            | Error::Perf { .. }
            | Error::File { .. }
            | Error::System(..) => false,
        }
    }
}
