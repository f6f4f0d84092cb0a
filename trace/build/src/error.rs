//! Errors in a `trace-events` file, with their positions.

use std::fmt;

/// Maximum number of errors that are kept in one run; further errors are only counted.
pub const MAX_ERRORS: usize = 20;
/// Maximum number of characters of a file's text that a message repeats.
const MAX_SHOWN: usize = 60;

/// An error in a `trace-events` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: expected {expected}, found {found}")]
pub struct SyntaxError {
    /// Name of the file, as given to the parser.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, counted from 1. For an error at the line's end, the column is one more than the
    /// line's length.
    pub column: usize,
    /// Description of the expected text.
    pub expected: String,
    /// Description of the text that was found.
    pub found: String,
}

/// All errors of one run. The display has one error per line: at most [`MAX_ERRORS`] errors, and then `and N
/// more`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    errors: Vec<SyntaxError>,
    more: usize,
}

impl Errors {
    /// Returns the errors, in the order of the files.
    pub fn errors(&self) -> &[SyntaxError] {
        &self.errors
    }

    /// Returns the number of errors that [`Errors::errors`] does not contain.
    pub fn more(&self) -> usize {
        self.more
    }

    /// Returns the number of all errors.
    pub fn total(&self) -> usize {
        self.errors.len() + self.more
    }

    pub(crate) fn push(&mut self, error: SyntaxError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        } else {
            self.more += 1;
        }
    }

    /// Returns `value` if there is no error, or else the errors.
    pub(crate) fn or<T>(self, value: T) -> Result<T, Errors> {
        if self.errors.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            let end = if i == 0 { "" } else { "\n" };
            write!(f, "{end}{error}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Receiver of the errors of one line.
pub(crate) struct Report<'a> {
    pub file: &'a str,
    pub line: usize,
    pub errors: &'a mut Errors,
}

impl Report<'_> {
    pub fn add(&mut self, column: usize, expected: impl Into<String>, found: impl Into<String>) {
        self.errors.push(SyntaxError {
            file: self.file.to_owned(),
            line: self.line,
            column,
            expected: expected.into(),
            found: found.into(),
        });
    }
}

/// Formats a file's text for a message: in quotes, with hidden characters escaped, and of bounded length.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(visible).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push_str("...");
    }
    format!("'{shown}'")
}

/// Returns the character, or its escape if it is hidden.
fn visible(c: char) -> impl Iterator<Item = char> {
    let plain = matches!(c, '"' | '\'' | '\\').then_some(c);
    plain.into_iter().chain(plain.is_none().then(|| c.escape_debug()).into_iter().flatten())
}
