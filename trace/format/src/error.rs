//! Errors of a session's directory and files, and the texts of errors in messages.

use hypertrace_abi::event::cut;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// Error of writing a file of the session. Packets that were committed before are intact, and the same call
/// may be made again.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct WriteFailed {
    /// The action that failed.
    pub action: &'static str,
    /// Path of the file.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl WriteFailed {
    /// Returns a function for `map_err`, which adds the path to an I/O error.
    pub fn on<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> WriteFailed + 'a {
        move |source| WriteFailed { action, path: path.to_owned(), source }
    }
}

/// An error that can tell who is at fault: the request or its input, or the machine.
pub trait BadInput: std::error::Error {
    /// Returns true if another input, path or option would help.
    fn is_bad_input(&self) -> bool;
}

/// Error of a directory that cannot hold a session or another result.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The path leads to something else than a directory, such as a file.
    #[error("{} is not a directory; give a new or an empty one", .0.display())]
    NotADirectory(PathBuf),
    /// The directory is not empty. Nothing was touched.
    #[error("{} is not empty; give a new or an empty directory, or remove what is in it", .0.display())]
    NotEmpty(PathBuf),
    /// The directory belongs to another user, who could exchange and read the files in the directory.
    #[error(
        "{} belongs to user {owner}, not to user {user} who runs this; give a directory of your \
         own, or a new one",
        path.display()
    )]
    NotOwned {
        /// Path of the directory.
        path: PathBuf,
        /// Owner of the directory.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The directory cannot be made or read.
    #[error("cannot use the directory {}; give one that can be written", path.display())]
    Unusable {
        /// Path of the directory.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl DirectoryError {
    /// Returns a function for `map_err`, which adds the path to an I/O error.
    pub fn unusable(path: &Path) -> impl Fn(io::Error) -> DirectoryError + '_ {
        |source| DirectoryError::Unusable { path: path.to_owned(), source }
    }
}

impl BadInput for DirectoryError {
    fn is_bad_input(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            DirectoryError::NotADirectory(_)
            | DirectoryError::NotEmpty(_)
            | DirectoryError::NotOwned { .. } => true,
            DirectoryError::Unusable { source, .. } => {
                let none_left = matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                !none_left && !matches!(source.kind(), StorageFull | QuotaExceeded)
            }
        }
    }
}

/// Maximum number of a file's bytes that a message repeats.
const MAX_TEXT: usize = 1000;

/// Returns a text for a message about a file. The text may quote the file, so the function escapes line
/// breaks and cuts a long text.
pub fn of_contents(text: &str) -> String {
    let mut shown = cut(text, MAX_TEXT).replace('\n', "\\n");
    if text.len() > MAX_TEXT {
        shown.push_str("...");
    }
    shown
}

/// A fault of a file. A reader could read the file in spite of this fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    text: String,
    is_damage: bool,
}

impl Warning {
    /// Returns a warning of damage: a part of the file is missing or wrong.
    pub fn damage(text: impl Into<String>) -> Warning {
        Warning { text: text.into(), is_damage: true }
    }

    /// Returns the same warning with a text before it, such as the file's path.
    #[must_use]
    pub fn of(&self, what: impl fmt::Display) -> Warning {
        Warning { text: format!("{what}: {}", self.text), is_damage: self.is_damage }
    }
}

impl From<String> for Warning {
    fn from(text: String) -> Warning {
        Warning { text, is_damage: false }
    }
}

impl From<&str> for Warning {
    fn from(text: &str) -> Warning {
        text.to_owned().into()
    }
}

impl Deref for Warning {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Warning {}

impl BadInput for Warning {
    /// Returns true if a part of the file is missing or wrong: a command that shows the rest of the file has
    /// failed in part.
    fn is_bad_input(&self) -> bool {
        self.is_damage
    }
}

impl PartialEq<&str> for Warning {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

/// Formats an error with its causes on one line, for messages to a VMM's user.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_contains_is_one_short_line_in_a_message() {
        assert_eq!(of_contents("found \"a\nb\""), "found \"a\\nb\"");
        let long = of_contents(&"\u{e4}".repeat(100_000));
        assert_eq!((long.len(), &long[998..]), (1_003, "\u{e4}..."));
    }
}
