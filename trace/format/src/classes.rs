//! `classes.jsonl`: the event classes of a session, and the clocks that joined after `session.json` was last
//! written.
//!
//! Each line is a JSON object. The writer changes no line, and appends a line before the first packet that
//! needs the line. The last line may be incomplete, because the writer was killed or is still writing this
//! line. This module checks only the types of the values.

use crate::session_json::{ClockJson, EventJson};
use serde::{Deserialize, Serialize};

/// The file's name in a session's directory.
pub const FILE: &str = "classes.jsonl";

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// An event class.
    Event(EventJson),
    /// A clock, as the session first described it.
    Clock(ClockJson),
}

impl Line {
    /// Appends the line to a text.
    ///
    /// # Errors
    /// If the line cannot be encoded.
    pub fn append_to(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(&mut *text, self)?;
        text.push(b'\n');
        Ok(())
    }
}

/// Iterates over the complete lines, each with the offset of its first byte.
pub fn lines(text: &[u8]) -> impl Iterator<Item = (usize, serde_json::Result<Line>)> {
    let mut at = 0;
    text[..whole(text)].split_inclusive(|byte| *byte == b'\n').map(move |line| {
        let begin = at;
        at += line.len();
        (begin, serde_json::from_slice(line))
    })
}

/// Returns the number of bytes in the complete lines.
pub fn whole(text: &[u8]) -> usize {
    text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_line_without_an_end_is_no_line() {
        let event = |id| EventJson { id, schema: format!("e{id}()"), reference_point: false };
        let mut text = Vec::new();
        Line::Event(event(16)).append_to(&mut text).unwrap();
        let first = text.len();
        Line::Event(event(17)).append_to(&mut text).unwrap();

        for cut in 0..=text.len() {
            let found: Vec<_> = lines(&text[..cut]).map(|(at, line)| (at, line.unwrap())).collect();
            let all = [(0, Line::Event(event(16))), (first, Line::Event(event(17)))];
            let whole = usize::from(cut >= first) + usize::from(cut == text.len());
            assert_eq!(found, all[..whole]);
        }
    }
}
