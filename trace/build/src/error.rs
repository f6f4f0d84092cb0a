//! What is wrong with a `trace-events` file, and where.

use std::fmt;

/// Errors of one run that are kept; of the rest there is the number.
pub const MAX_ERRORS: usize = 20;
/// Characters of somebody's text that a message repeats.
const MAX_SHOWN: usize = 60;

/// One thing that is wrong with a `trace-events` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: expected {expected}, found {found}")]
pub struct SyntaxError {
    /// The file, as it was named to the parser.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters; one more than the line has, if its end is wrong.
    pub column: usize,
    /// What belongs there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// All that is wrong: one error a line when displayed, at most [`MAX_ERRORS`]
/// of them and then `and N more`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    errors: Vec<SyntaxError>,
    more: usize,
}

impl Errors {
    /// The errors, in the order of the files.
    pub fn errors(&self) -> &[SyntaxError] {
        &self.errors
    }

    /// How many more there are than [`Errors::errors`] has.
    pub fn more(&self) -> usize {
        self.more
    }

    /// How many there are in all.
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

    /// The value, if nothing is wrong.
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

/// Where the errors of one line go.
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

/// Somebody's text for a message: in quotes, visible, bounded.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(visible).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push_str("...");
    }
    format!("'{shown}'")
}

/// A character, or an escape where it cannot be seen.
fn visible(c: char) -> impl Iterator<Item = char> {
    let plain = matches!(c, '"' | '\'' | '\\').then_some(c);
    plain.into_iter().chain(plain.is_none().then(|| c.escape_debug()).into_iter().flatten())
}
