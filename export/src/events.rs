// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events of what is exported, one after the other.

use crate::choice::Choice;
use crate::names::Functions;
use crate::row::Row;
use crate::{Error, Result};
use hypertrace_format::pattern::matches;
use hypertrace_functions::symbols;
use hypertrace_timeline::{Needs, Recording, Warning};
use std::io;

/// What is exported: a recording, and which of its events.
#[derive(Clone, Copy, Debug)]
pub struct Events<'a> {
    /// What was given to read.
    pub recording: &'a Recording,
    /// Names of the functions that are compiled in.
    pub symbols: &'a [symbols::Source],
    /// Which events are wanted.
    pub choice: &'a Choice,
}

impl Events<'_> {
    /// Returns the first and the last Unix time that are wanted, nanoseconds.
    pub fn window(&self) -> (i64, i64) {
        let start = self.recording.start_unix_ns();
        let at = |since: Option<i64>| since.map(|since| start.saturating_add(since));
        (at(self.choice.from).unwrap_or(i64::MIN), at(self.choice.to).unwrap_or(i64::MAX))
    }

    fn needs(&self) -> Needs {
        if !self.symbols.is_empty() {
            // Earlier events of other names say where the files with the functions are.
            return Needs::default();
        }
        let needs = Needs::default().since(self.choice.from.map(|_| self.window().0));
        match &*self.choice.events {
            [] => needs,
            // An event of any name shows that the last time has come.
            _ if self.choice.to.is_some() => needs,
            patterns => needs.named(&self.recording.sessions, |name| {
                patterns.iter().any(|pattern| matches(pattern, name))
            }),
        }
    }

    /// Hands over the events and losses in order of time, until the sink wants no more. Returns the faults of the
    /// inputs, although these could be read.
    ///
    /// # Errors
    /// If an input is damaged, after the events before the damage; or an error of the sink.
    pub fn each(&self, mut sink: impl FnMut(Row<'_>) -> io::Result<bool>) -> Result<Vec<Warning>> {
        let start = self.recording.start_unix_ns();
        let mut names = Functions::read(self.symbols)?;
        let needs = self.needs();
        let mut timeline = self.recording.timeline(&needs)?;
        while let Some(entry) = timeline.read() {
            let entry = entry?;
            let row = Row::of(&entry, start, &mut names);
            let is_last = matches!(&row, Row::Event { since, .. } if self.choice.is_past(*since));
            if is_last || self.choice.admits(&row) && !sink(row).map_err(Error::Write)? {
                break;
            }
        }
        Ok(timeline.warnings())
    }
}
