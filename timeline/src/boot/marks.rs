// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Marks that a user defines. Each mark is the first event that fits the definition.

use crate::event::EventRef;
use crate::filter::{Filter, FilterError};
use std::fmt;
use std::str::FromStr;

/// A mark: the first event with a given name for which a condition is true. A mark's text is `[NAME=][first]
/// EVENT [where EXPR]`. `EXPR` is an expression of [`Filter`].
///
/// ```
/// use hypertrace_timeline::boot::Mark;
///
/// let mark: Mark = "loader=first kvm:kvm_pio where port == 0x80".parse().unwrap();
/// assert_eq!(mark.name(), "loader");
/// ```
#[derive(Clone, Debug)]
pub struct Mark {
    name: String,
    event: String,
    filter: Option<Filter>,
}

/// Error in the text of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkError {
    /// The text names no event.
    NoEvent,
    /// Word that follows the event's name in place of the expected `where`.
    NotWhere(String),
    /// The condition is not valid.
    Filter(FilterError),
}

impl Mark {
    /// Returns the name of the mark: the name before `=`, or the event's name if there is no `=`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the mark's event.
    pub(super) fn event(&self) -> &str {
        &self.event
    }

    /// Returns whether an event fits the mark.
    pub fn fits(&self, event: &EventRef<'_>) -> bool {
        **event.name == *self.event && self.filter.as_ref().is_none_or(|filter| filter.fits(event))
    }
}

impl FromStr for Mark {
    type Err = MarkError;

    fn from_str(text: &str) -> Result<Mark, MarkError> {
        let (event, condition) = match text.split_once(" where ") {
            Some((event, condition)) => (event, Some(condition)),
            None => (text, None),
        };
        let named = event.split_once('=').filter(|(name, _)| !name.contains(char::is_whitespace));
        let (name, event) = named.map_or((None, event), |(name, event)| (Some(name), event));
        let mut words = event.split_whitespace().peekable();
        let _ = words.next_if_eq(&"first");
        let event = words.next().ok_or(MarkError::NoEvent)?.to_owned();
        if let Some(word) = words.next() {
            return Err(MarkError::NotWhere(word.to_owned()));
        }
        let filter = condition.map(str::parse).transpose().map_err(MarkError::Filter)?;
        let name = name.filter(|name| !name.is_empty());
        Ok(Mark { name: name.unwrap_or(&event).to_owned(), event, filter })
    }
}

impl fmt::Display for MarkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MarkError::NoEvent => f.write_str("a mark is [NAME=][first] EVENT [where EXPR]"),
            MarkError::NotWhere(word) => write!(f, "expected `where` in place of {word}"),
            MarkError::Filter(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for MarkError {}
