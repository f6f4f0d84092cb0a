// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Compiled-in functions: a program's own events `function_entry` and `function_exit`.

use super::stack::Stack;
use super::{Counts, Source, add_modules};
use crate::{Error, Result};
use hypertrace_format::uuid;
use hypertrace_functions::Task;
use hypertrace_functions::clock::{Anchor, Clock};
use hypertrace_functions::read::MAX_TASKS;
use hypertrace_functions::write::{Directory, Records};
use hypertrace_timeline::clock::host::HostCounter;
use hypertrace_timeline::{
    Call, EntryRef, EventKind, EventRef, Lost, Needs, Session, Warning, has_functions, place,
};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// First id for tracks that cannot have the id of their thread, because the thread's id is unknown or belongs
/// to another track.
const FIRST_NUMBER: u32 = 1_000_000_000;

/// Writes the functions of sessions into a new or empty directory. Each thread has a track, and the thread's
/// other events stand among the functions on this track. Times count from the first session's start, or from
/// the first event if the first event is earlier. The directory gets an anchor: the reading of the host's
/// counter at time 0. The first session with functions describes this counter. Returns the faults of inputs
/// that could be read in spite of these faults.
///
/// # Errors
/// If no session has functions, an input is damaged, or the directory cannot be written.
pub fn compiled(source: &Source<'_>, out: &Path) -> Result<(Counts, Vec<Warning>)> {
    let mut sessions = source.recording.sessions.iter().map(|(session, _)| session);
    let counter = sessions.find(|session| has_functions(session)).map(Session::counter);
    let counter = counter.ok_or(Error::NoFunctions)?;
    let started = source.recording.start_unix_ns();
    let mut directory = Directory::create(out, "program", "hypertrace export")?;
    let mut modules = source.modules.to_vec();
    let mut tracks = Tracks::default();
    let mut counts = Counts::default();
    let mut events = directory.events()?;
    let (mut times, mut time) = (None, 0);
    let warnings = source.recording.read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
        if let Some(unix_ns) = entry.ts_ns() {
            let times: &Times = match &times {
                Some(times) => times,
                None => {
                    let new = Times::new(counter, started.min(unix_ns));
                    directory.write_anchor(&new.anchor)?;
                    times.insert(new)
                }
            };
            time = times.at(unix_ns);
        }
        if let EntryRef::Lost(lost) = entry {
            tracks.lose(lost);
        }
        if let EntryRef::Event(event) = entry
            && (tracks.take(&mut directory, event, time)? || place(&mut modules, event))
        {
            return Ok(true);
        }
        if let Some(text) = (source.text)(entry) {
            let time = match entry {
                EntryRef::Event(event) => tracks.pass(event, time.max(events.time())),
                EntryRef::Lost(_) => time,
            };
            events.write(time, &text)?;
            counts.events += 1;
        }
        Result::Ok(true)
    })?;
    events.finish()?;
    tracks.end(&mut counts)?;
    add_modules(&mut directory, &modules)?;
    counts.without_name = directory.names_left_out() as u64;
    directory.describe()?;
    Ok((counts, warnings))
}

/// Times of the directory.
#[derive(Debug)]
struct Times {
    counter: HostCounter,
    anchor: Anchor,
    clock: Clock,
}

impl Times {
    /// Makes a converter from Unix times to times of the directory: ticks of the host's counter since
    /// `start_unix_ns`.
    fn new(counter: HostCounter, start_unix_ns: i64) -> Times {
        let anchor = Anchor {
            boot_id: counter.boot_id().map(uuid::text),
            counter: counter.raw(start_unix_ns),
            frequency: counter.frequency(),
            unix_ns: start_unix_ns,
        };
        Times { counter, clock: anchor.clock(), anchor }
    }

    /// Converts a Unix time to a time of the directory. Readers use the same computation with the anchor.
    fn at(&self, unix_ns: i64) -> u64 {
        self.clock.time(self.counter.raw(unix_ns))
    }
}

/// Tracks of all threads.
#[derive(Debug, Default)]
struct Tracks {
    /// Open tracks by session and client: at most as many as there are clients.
    open: HashMap<(usize, u32), Track>,
    numbers: HashSet<u32>,
    /// Number of candidates from [`FIRST_NUMBER`] on that have been tried.
    tried: u32,
    /// Counts of the tracks that have ended.
    counts: Counts,
}

/// Track of a thread.
#[derive(Debug)]
struct Track {
    records: Records,
    stack: Stack,
}

impl Track {
    fn end(mut self, counts: &mut Counts) -> Result<()> {
        let Track { records, stack } = &mut self;
        stack.end(&mut |record| records.write(record))?;
        self.records.finish()?;
        counts.too_deep += self.stack.too_deep;
        counts.without_entry += self.stack.without_entry;
        Ok(())
    }
}

impl Tracks {
    /// Writes an entry or exit of a function to the track of its thread. Returns false if the event is no
    /// entry or exit.
    fn take(&mut self, directory: &mut Directory, event: &EventRef<'_>, time: u64) -> Result<bool> {
        let Some(client) = event.source.client else { return Ok(false) };
        let key = (event.source.session, client);
        if event.kind == EventKind::Lease {
            // The client passes to another thread, so the track of the former thread ends.
            if let Some(track) = self.open.remove(&key) {
                track.end(&mut self.counts)?;
            }
            return Ok(false);
        }
        let Some(call) = Call::of(event) else { return Ok(false) };
        if !self.open.contains_key(&key) {
            if self.numbers.len() >= MAX_TASKS {
                self.counts.without_track += 1;
                return Ok(true);
            }
            let track = self.open_track(directory, event, client)?;
            self.open.insert(key, track);
        }
        let Some(Track { records, stack }) = self.open.get_mut(&key) else { return Ok(true) };
        let mut write = |record| records.write(record);
        match call {
            Call::Entry(address) => stack.enter(time, address, &mut write)?,
            Call::Exit(address) => stack.exit(time, address, &mut write)?,
        }
        Ok(true)
    }

    /// Returns the time of an event that is neither an entry nor an exit of a function. The time differs from
    /// the times of all records of the thread, so the event keeps its place among the records. The time
    /// differs even if the counter had the same value at the event and at a record.
    fn pass(&mut self, event: &EventRef<'_>, time: u64) -> u64 {
        let track = event
            .source
            .client
            .and_then(|client| self.open.get_mut(&(event.source.session, client)));
        track.map_or(time, |track| track.stack.pass(time))
    }

    /// Notes a loss of a thread's events.
    fn lose(&mut self, lost: &Lost) {
        let track =
            lost.source.client.and_then(|client| self.open.get_mut(&(lost.source.session, client)));
        if let Some(track) = track {
            // If a signal handler interrupts its thread while the thread writes an event, the handler's
            // events are lost. These lost events have as many entries of functions as exits.
            let is_balanced = lost.causes.busy > 0 && lost.causes.busy == lost.causes.total();
            track.stack.lose(lost.events, is_balanced);
        }
    }

    fn open_track(
        &mut self,
        directory: &mut Directory,
        event: &EventRef<'_>,
        client: u32,
    ) -> Result<Track> {
        let thread = event.thread.map_or(client + 1, |thread| thread.tid);
        let is_number = |tid: &u32| (1..=i32::MAX as u32).contains(tid);
        let Tracks { numbers, tried, .. } = self;
        // The search is short: no id is tried twice, and each id that was tried belongs to a track.
        let others = (FIRST_NUMBER + *tried..).inspect(|_| *tried += 1);
        let mut candidates = Some(thread).filter(is_number).into_iter().chain(others);
        let tid = candidates.find(|tid| numbers.insert(*tid)).unwrap_or(FIRST_NUMBER);
        let name = event.source.name.as_deref().unwrap_or(&event.source.text);
        directory.create_task(Task { tid, name: name.to_owned() })?;
        let records = directory.append(tid)?;
        Ok(Track { records, stack: Stack::default() })
    }

    /// Ends all tracks, and stores the number of tracks and the sums of their counts in `counts`.
    fn end(mut self, counts: &mut Counts) -> Result<()> {
        self.open.into_values().try_for_each(|track| track.end(&mut self.counts))?;
        counts.tasks = self.numbers.len() as u64;
        counts.too_deep = self.counts.too_deep;
        counts.without_entry = self.counts.without_entry;
        counts.without_track = self.counts.without_track;
        Ok(())
    }
}
