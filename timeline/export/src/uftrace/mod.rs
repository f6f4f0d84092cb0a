// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes a directory for uftrace: calls of functions, with the events of a session among the calls.
//!
//! ```text
//! beside   calls of a function trace, and the events of the session on the same clock
//! compiled calls that a program's own events have: function_entry and function_exit
//! stack    the open functions of a thread, closed where their exits are missing
//! ```
//!
//! uftrace shows these events (`extern.dat`) only in `uftrace replay`, and does not show the thread of an
//! event.

mod beside;
mod compiled;
mod stack;

pub use beside::beside;
pub use compiled::compiled;

use hypertrace_format::number::grouped;
use hypertrace_functions::symbols::Symbols;
use hypertrace_functions::write::Directory;
use hypertrace_timeline::{EntryRef, Module, Recording};
use std::fmt;

use crate::Result;

/// Returns the range of addresses of functions.
fn range(symbols: &Symbols) -> Option<(u64, u64)> {
    let first = symbols.iter().next()?.address;
    let last = symbols.iter().last()?;
    Some((first, last.address.saturating_add(last.size)))
}

/// Returns whether the address ranges of both sets of functions overlap.
fn overlap(a: &Symbols, b: &Symbols) -> bool {
    range(a).zip(range(b)).is_some_and(|(a, b)| a.0 < b.1 && b.0 < a.1)
}

/// Inputs of an export.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The recording that is exported.
    pub recording: &'a Recording,
    /// Names of functions.
    pub modules: &'a [Module],
    /// Returns the text of an entry of the timeline, or `None` to leave the entry out.
    pub text: &'a dyn Fn(&EntryRef<'_>) -> Option<String>,
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("recording", &self.recording).finish_non_exhaustive()
    }
}

/// Counts of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of tracks: threads, or virtual CPUs at a privilege level.
    pub tasks: u64,
    /// Number of events among the calls.
    pub events: u64,
    /// Number of calls of compiled-in functions that are left out because they are nested in more than 1,023
    /// functions.
    pub too_deep: u64,
    /// Number of exits of compiled-in functions that are left out because the entry is missing: the function
    /// was called before the recording began, or the entry was lost.
    pub without_entry: u64,
    /// Number of entries and exits of compiled-in functions that are left out, because there are too many
    /// threads.
    pub without_track: u64,
    /// Number of functions without a name, because the names of all modules are too long for readers.
    pub without_name: u64,
}

impl Counts {
    /// Returns a text that says what is left out, with numbers. The text is empty if nothing is left out.
    #[must_use]
    pub fn left_out(&self) -> String {
        let Counts { too_deep, without_entry, without_track, .. } = *self;
        let all = [
            (too_deep, "calls too deep"),
            (without_entry, "exits without an entry"),
            (without_track, "entries and exits of too many threads"),
        ];
        let some = all.into_iter().filter(|(number, _)| *number > 0);
        let text = some.map(|(number, what)| format!("{} {what}", grouped(number)));
        text.collect::<Vec<_>>().join(", ")
    }
}

/// Adds the modules to a directory, each as `NAME.sym`.
fn add_modules(directory: &mut Directory, modules: &[Module]) -> Result<()> {
    for Module { name, symbols, .. } in modules {
        directory.add_module(name, symbols)?;
    }
    Ok(())
}
