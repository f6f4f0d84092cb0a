// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Calls of one task. A call is an entry with its exit.

use std::collections::{HashMap, VecDeque};

use super::paths::Paths;
use super::records::Records;
use super::spans::{Cursor, SpanPosition, Spans};
use super::trace::Trace;
use crate::Result;
use crate::record::{Record, RecordType};

/// Maximum number of addresses whose functions are remembered.
const MAX_REMEMBERED: usize = 1 << 16;

/// Number of records after which the function of [`Trace::watch`] is called.
const WATCHED: u64 = 1 << 16;

/// Call of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Address of the function, of 48 bits.
    pub function: u64,
    /// Address of the calling function, if known.
    pub caller: Option<u64>,
    /// Id of the path of functions that leads to this call. [`Calls::path`] returns the functions.
    pub path: u32,
    /// Number of functions around the call.
    pub depth: u16,
    /// Time of the entry, in nanoseconds.
    pub start: u64,
    /// Time of the exit, in nanoseconds.
    pub end: u64,
    /// Time from entry to exit in nanoseconds, within the chosen parts of the trace.
    pub time: u64,
    /// Time in the function itself in nanoseconds, within the chosen parts of the trace. The time of the
    /// functions that the function called is not included.
    pub self_time: u64,
    /// Whether the same function is around the call.
    pub is_recursive: bool,
    /// Whether the call was made earlier. The entry then shows only that the guest has returned to the call's
    /// stack. A recorder that uses this crate gives such an entry the time of the record that follows. In all
    /// other cases, two records have different times. Other recorders make no such entries.
    pub is_continued: bool,
    /// Whether the call has its own exit. A call without an exit ends when the function around the call ends,
    /// or at the last record.
    pub has_exit: bool,
}

/// Iterator over the calls of a task, in the order in which the calls ended. If records are damaged, then the
/// last item is an error. The calls before and after the damage come first.
#[derive(Debug)]
pub struct Calls<'t> {
    trace: &'t Trace,
    tid: u32,
    records: Records,
    /// Calls without an exit yet. A later call in this list is deeper. There is at most one such call for
    /// each depth
    open: Vec<Open>,
    /// Calls that have ended, but that the iterator has not returned yet. There are at most as many as there
    /// were open calls
    ended: VecDeque<Call>,
    error: Option<crate::Error>,
    functions: HashMap<u64, u64>,
    paths: Paths,
    time: u64,
    /// Parts of the trace for which times are counted; `None`: the whole trace
    within: Option<Cursor<'t>>,
    place: SpanPosition,
    /// Whether the last record was an entry
    was_entry: bool,
    orphans: u64,
    lost: u64,
    /// Number of records since the last call of the watching function
    unwatched: u64,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    function: u64,
    path: u32,
    depth: u16,
    start: u64,
    /// Position of the call's start in relation to the parts of the time
    place: SpanPosition,
    /// Nanoseconds in functions that the function called
    inner: u64,
    is_continued: bool,
}

impl Trace {
    /// Returns an iterator over a task's calls, in the order in which the calls ended. The address of a call
    /// is the address of the function's first byte, if this address is known.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn calls(&self, tid: u32) -> Result<Calls<'_>> {
        Ok(Calls::new(self, tid, self.records(tid)?))
    }
}

impl<'t> Calls<'t> {
    fn new(trace: &'t Trace, tid: u32, records: Records) -> Self {
        Calls {
            trace,
            tid,
            records,
            open: Vec::new(),
            ended: VecDeque::new(),
            error: None,
            functions: HashMap::new(),
            paths: Paths::default(),
            time: 0,
            within: None,
            place: SpanPosition::default(),
            was_entry: false,
            orphans: 0,
            lost: 0,
            unwatched: 0,
            is_over: false,
        }
    }

    /// Limits the calls to some parts of the time, and counts only the calls' time in these parts.
    #[must_use]
    pub fn within(mut self, spans: &'t Spans) -> Self {
        self.within = Some(Cursor::new(spans));
        self
    }

    /// Returns the number of exits without an entry so far. The functions of these exits were called before
    /// the recording began.
    #[must_use]
    pub fn orphans(&self) -> u64 {
        self.orphans
    }

    /// Returns the number of records that were lost so far, as the recorder says.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the functions of a path, the outermost function first. Paths and the calls' own times make a
    /// flame graph.
    #[must_use]
    pub fn path(&self, path: u32) -> Vec<u64> {
        self.paths.functions(path)
    }

    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Returns the address of the function that contains a record's address. If no function contains the
    /// address, returns the address itself. Both addresses have the form that [`Trace::function`] takes.
    fn function(&mut self, record: &Record) -> u64 {
        if self.functions.len() >= MAX_REMEMBERED {
            self.functions.clear();
        }
        let trace = self.trace;
        let address = trace.placed(self.tid, record.time, record.address);
        let find = || trace.function(address).map_or(address, |symbol| symbol.address);
        *self.functions.entry(address).or_insert_with(find)
    }

    fn take(&mut self, record: Record) {
        // Times of a damaged file may run backwards.
        let is_same_time = record.time <= self.time && self.trace.anchor().is_some();
        self.time = self.time.max(record.time);
        self.place = match &mut self.within {
            Some(cursor) => cursor.to(self.time),
            None => SpanPosition { elapsed: self.time, is_inside: true, begun: 0 },
        };
        if let Some(last) = self.open.last_mut().filter(|_| self.was_entry && is_same_time) {
            last.is_continued = true;
        }
        self.was_entry = record.kind == RecordType::Entry;
        match record.kind {
            RecordType::Entry => {
                self.end_from(record.depth);
                let function = self.function(&record);
                let (depth, start) = (record.depth, self.time);
                let outer = self.open.last().map(|outer| outer.path);
                let path = self.paths.within(outer, function);
                let place = self.place;
                self.open.push(Open {
                    function,
                    path,
                    depth,
                    start,
                    place,
                    inner: 0,
                    is_continued: false,
                });
            }
            RecordType::Exit => {
                let function = self.function(&record);
                let is_its = |open: &Open| {
                    // Some recorders store the depth of the function's caller in an exit record.
                    open.function == function
                        && (open.depth == record.depth || open.depth == record.depth + 1)
                };
                match self.open.iter().rposition(is_its) {
                    Some(index) => {
                        while self.open.len() > index + 1 {
                            self.end(false);
                        }
                        self.end(true);
                    }
                    None => self.orphans += 1,
                }
            }
            RecordType::Lost => self.lost = self.lost.saturating_add(record.address),
            RecordType::Event => {}
        }
    }

    /// Ends all calls at this depth and at greater depths, because the exits of these calls are missing.
    fn end_from(&mut self, depth: u16) {
        while self.open.last().is_some_and(|open| open.depth >= depth) {
            self.end(false);
        }
    }

    /// Ends the innermost call.
    fn end(&mut self, has_exit: bool) {
        let Some(open) = self.open.pop() else { return };
        let Open { function, path, depth, start, place, inner, is_continued } = open;
        let time = self.place.elapsed - place.elapsed;
        let caller = self.open.last_mut().map(|caller| {
            caller.inner = caller.inner.saturating_add(time);
            caller.function
        });
        // The search has at most one round for each depth.
        let is_recursive = self.open.iter().any(|outer| outer.function == function);
        let self_time = time.saturating_sub(inner);
        let end = self.time;
        if !place.is_inside && self.place.begun == place.begun {
            return;
        }
        self.ended.push_back(Call {
            function,
            caller,
            path,
            depth,
            start,
            end,
            time,
            self_time,
            is_recursive,
            is_continued,
            has_exit,
        });
    }
}

impl Iterator for Calls<'_> {
    type Item = Result<Call>;

    fn next(&mut self) -> Option<Result<Call>> {
        loop {
            if let Some(call) = self.ended.pop_front() {
                return Some(Ok(call));
            }
            if self.is_over {
                return self.error.take().map(Err);
            }
            match self.records.next() {
                Some(Ok(record)) => {
                    self.take(record);
                    self.unwatched += 1;
                    if self.unwatched == WATCHED {
                        self.trace.notify(std::mem::take(&mut self.unwatched));
                    }
                }
                other => {
                    self.is_over = true;
                    self.trace.notify(self.unwatched);
                    self.error = other.and_then(Result::err);
                    self.end_from(0);
                }
            }
        }
    }
}
