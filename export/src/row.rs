// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An entry of a timeline, with what is made of it.

use crate::names::{FunctionName, Functions};
use hypertrace_timeline::{EntryRef, EventRef, Lost};

/// An event or a loss, with the time since the start in nanoseconds.
#[derive(Debug)]
pub enum Row<'a> {
    /// An event, with the name of a function that is not among its fields.
    Event {
        /// The event.
        event: &'a EventRef<'a>,
        /// Time since the start.
        since: i64,
        /// Function that it enters or leaves.
        function: Option<&'a FunctionName>,
    },
    /// Events are missing here.
    Lost {
        /// The loss.
        lost: &'a Lost,
        /// Time since the start, if it is known.
        since: Option<i64>,
    },
}

impl<'a> Row<'a> {
    /// Returns an entry of a timeline with its time since this start.
    pub fn of(entry: &'a EntryRef<'a>, start: i64, names: &'a mut Functions) -> Row<'a> {
        let since = |at: i64| at.saturating_sub(start);
        match entry {
            EntryRef::Event(event) => {
                Row::Event { event, since: since(event.ts_ns), function: names.name(event) }
            }
            EntryRef::Lost(lost) => Row::Lost { lost, since: lost.ts_ns.map(since) },
        }
    }

    /// Returns the time since the start, if it is known.
    pub fn since(&self) -> Option<i64> {
        match self {
            Row::Event { since, .. } => Some(*since),
            Row::Lost { since, .. } => *since,
        }
    }
}
