// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A trace in Common Trace Format (CTF 1.8): all events on one clock, in one stream.
//!
//! ```text
//! writer    events and losses as records
//! class     event classes, one for each schema
//! values    values of fields
//! packets   the stream's file
//! metadata  the text that describes it
//! ```
//!
//! Numbers have eight bytes, and nothing is aligned. Memory depends on the number of classes, not on the
//! number of events.

mod class;
mod metadata;
mod packets;
mod values;
mod writer;

use crate::choice::Choice;
use crate::{Error, Result};
use hypertrace_timeline::{EntryRef, Recording, Warning};
use std::io::Write;
use writer::Writer;

/// Names of the trace's files: the describing text, and the stream.
pub const FILES: [&str; 2] = ["metadata", "events"];

/// Counts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of events.
    pub events: u64,
    /// Number of places where events were lost.
    pub losses: u64,
    /// Number of lost events that were counted.
    pub lost: u64,
    /// Number of texts that were cut. A text is cut at its first NUL, because readers stop at a NUL. A text
    /// is also cut at the maximum size.
    pub cut: u64,
    /// Number of events and losses whose times were changed. A time is changed if it is earlier than the time
    /// of the event before, or outside the range of times that readers accept.
    pub moved: u64,
}

/// Description of a stream that was written.
#[derive(Debug)]
pub struct Written {
    /// Counts of an export.
    pub counts: Counts,
    /// Text of the file `metadata`.
    pub metadata: String,
    /// Faults of the inputs.
    pub warnings: Vec<Warning>,
}

/// Writes the stream of the events and losses that are wanted.
///
/// # Errors
/// If an input is damaged, or the output cannot be written.
pub fn write(recording: &Recording, choice: &Choice, out: &mut dyn Write) -> Result<Written> {
    let mut writer = Writer::new(out, recording.start_unix_ns())?;
    let warnings = choice.read(recording, &mut |entry: &EntryRef<'_>| {
        match entry {
            EntryRef::Event(event) => writer.event(event),
            EntryRef::Lost(lost) => writer.lost(lost),
        }
        .map_err(Error::Write)?;
        Result::Ok(true)
    })?;
    let first = recording.sessions.first().map(|(session, _)| session.json());
    let (counts, base, classes) = writer.finish()?;
    let metadata = metadata::text(first, base, &classes);
    Ok(Written { counts, metadata, warnings })
}
