// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes events as instants, functions as slices, and losses. Each event, function and loss is on the track
//! of its thread.

use super::fields::{event, track};
use super::intern::{Interned, Kind};
use super::machines::{Machine, Machines};
use super::proto::Proto;
use super::sequence::{Output, Sequence, TraceClock};
use super::tracks::{self, Part, Track, Tracks};
use super::{Counts, arguments};
use crate::Result;
use crate::by_name::ByNumber;
use crate::json::causes;
use hypertrace_timeline::{
    ClockMaps, Domain, ENTRY, EXIT, EventKind, EventRef, KernelTrace, Lost, SYMBOL, Session,
    ValueRef,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of entries in each of the maps of sources, of threads' processes, and of clients.
const MAX: usize = 1 << 16;

/// Maximum number of reference points that are noted at once. A noted point takes some 50 bytes.
const MAX_POINTS: usize = 1 << 17;
/// Maximum number of flows from one exit. A flow leads from the exit to a reference point that the thread
/// served in the exit.
const MAX_FLOWS: usize = 64;
/// Maximum depth of functions that become slices. Viewers nest at most 512 slices, and take the end of a
/// deeper slice for the end of another slice.
const MAX_NESTED: u64 = 511;

/// Writer of events.
pub(super) struct Writer<'w, 'o> {
    pub out: &'w mut Output<'o>,
    pub clock: TraceClock,
    pub machines: &'w [Machines],
    /// Descriptions of all machines.
    pub all: &'w [Machine],
    /// For each kernel's trace, the id of the machine whose kernel wrote the trace.
    pub of_traces: &'w [u64],
    /// One sequence for each machine, for packets in the order of time.
    pub sequences: &'w mut [Sequence],
    /// One sequence for each machine, for packets in any order of time.
    pub others: &'w mut [Sequence],
    pub tracks: &'w mut Tracks,
    pub counts: &'w mut Counts,
    pub known: Known,
}

/// Facts that the writer has learned from earlier events.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Process of a thread. The key is the machine and the thread's id.
    processes: HashMap<(u64, u32), u32>,
    /// Holders of clients, by session.
    clients: ByNumber<(usize, u32), Client>,
    /// Sum of the lengths of all [`Client::before`].
    leases: usize,
    sources: HashMap<Arc<str>, usize>,
    /// Points that a thread served. The key is the session and the thread. `noted` is the number of these
    /// points.
    points: HashMap<(usize, u32), Vec<Point>>,
    noted: usize,
    /// Number of open functions, by track.
    depths: ByNumber<u64, u64>,
    /// Track with the kernel's events of a thread, by machine and thread. The thread keeps this track even if
    /// the thread's process becomes known later.
    kernel: HashMap<(u64, u32), u64>,
    /// Unix time of the last event of each kernel's trace.
    pub ends: Vec<i64>,
    /// Time of the last event on the trace's clock.
    last: u64,
}

/// Holder of a client.
#[derive(Debug, Default)]
struct Client {
    /// Id of the holder's track. 0 if the holder has no track yet.
    track: u64,
    /// Id of the track that shows the bound on the error of the client's clock, and the bound that was
    /// written last.
    bound: (u64, u64),
    /// Times and tracks of all leases but the last.
    before: Vec<(i64, u64)>,
    /// Time of the last lease.
    since: i64,
}

/// A reference point that a thread served.
#[derive(Debug)]
struct Point {
    ts_ns: i64,
    id: u64,
    /// Process of the thread.
    pid: Option<u32>,
    name: Arc<str>,
}

impl Known {
    /// Notes the thread and process of each holder that is described by the first event of a stream. Returns
    /// the process of the session's VMM.
    pub fn read(&mut self, session: &Session, machines: Machines) -> Result<Option<u32>> {
        let mut vmm = None;
        for stream in session.streams() {
            let mut records = stream.records(session.classes());
            let Some(record) = records.read()? else { continue };
            if &*record.class.name != LEASE {
                continue;
            }
            let fields = record.class.fields.iter().zip(record.values());
            if let Some((pid, tid)) = holder(fields.map(|(name, value)| (&**name, value))) {
                let is_guest = stream.domain == Domain::Guest;
                let machine = if is_guest { machines.guest } else { machines.host };
                self.thread(machine, pid, tid);
                if !is_guest && machines.guest != machines.host {
                    vmm = Some(pid);
                }
            }
        }
        Ok(vmm)
    }

    /// Notes the time of an event of a kernel's trace.
    pub fn saw(&mut self, trace: usize, ts_ns: i64) {
        if self.ends.len() <= trace {
            self.ends.resize(trace + 1, i64::MIN);
        }
        self.ends[trace] = self.ends[trace].max(ts_ns);
    }

    fn thread(&mut self, machine: u64, pid: u32, tid: u32) {
        if self.processes.len() == MAX {
            self.processes.clear();
        }
        self.processes.insert((machine, tid), pid);
    }
}

/// Name of the event that says which thread holds a client.
const LEASE: &str = "lease";

/// Returns the process and the thread that hold a client, from the fields of a `lease` event, if both numbers
/// are valid.
fn holder<'a>(fields: impl Iterator<Item = (&'a str, ValueRef<'a>)>) -> Option<(u32, u32)> {
    let (mut pid, mut tid) = (None, None);
    for (name, value) in fields {
        match (name, value) {
            ("pid", ValueRef::Unsigned(v)) => pid = u32::try_from(v).ok(),
            ("tid", ValueRef::Unsigned(v)) => tid = u32::try_from(v).ok(),
            _ => {}
        }
    }
    pid.zip(tid).filter(|(pid, tid)| tracks::is_thread(*pid, *tid))
}

impl Writer<'_, '_> {
    /// Returns a Unix time on the trace's clock. A time before the clock's 0 becomes 0, and counts as moved.
    pub fn at(&mut self, ts_ns: i64) -> u64 {
        let at = self.clock.at(ts_ns);
        self.counts.moved += u64::from(at.is_none());
        let at = at.unwrap_or(0);
        self.known.last = at;
        at
    }

    /// Writes an event, if the event is wanted. An event that is not wanted is still read, because the event
    /// may say which thread other events belong to.
    pub fn event(&mut self, event: &EventRef<'_>, is_wanted: bool) -> Result<()> {
        if event.kind == EventKind::Lease {
            self.lease(event)?;
        }
        if let Some(trace) = event.kernel_trace() {
            self.known.saw(trace, event.ts_ns);
        }
        if !is_wanted {
            return Ok(());
        }
        let at = self.at(event.ts_ns);
        let (machine, track) = self.track(event)?;
        if event.source.client.is_some() && event.kind != EventKind::Kernel {
            self.bound(event, machine, at, track)?;
        }
        match &**event.name {
            ENTRY | EXIT if matches!(event.kind, EventKind::Function | EventKind::Event) => {
                return self.function(event, (machine, at, track));
            }
            _ => {}
        }
        self.counts.events += 1;
        let id = point_id(event);
        // A flow is written only for a guest with a host of its own, because a program serves its own points.
        let of = self.machines.get(event.source.session).filter(|of| of.host != of.guest);
        let served = of.and_then(|of| Some((id?, event.thread?, of.host)));
        // Viewers show no flow that begins or ends at an instant, so an event with a flow is written as a
        // slice of no length.
        let kind = if served.is_some() { event::SLICE_BEGIN } else { event::INSTANT };
        let sequence = &mut self.sequences[machine as usize];
        sequence.event(self.out, self.clock, (at, kind, track), |proto, interned| {
            proto.number(event::NAME_IID, interned.event(event.name));
            if let Some((id, ..)) = served {
                proto.fixed(event::FLOW_IDS, id);
            }
            arguments::fields(proto, interned, event.name, &event.fields);
            arguments::point(proto, interned, event);
        })?;
        match served {
            Some((id, thread, host)) => {
                sequence.event(self.out, self.clock, (at, event::SLICE_END, track), |_, _| {})?;
                self.served(event, (thread.pid, thread.tid), (host, id))
            }
            None => Ok(()),
        }
    }

    /// Notes a reference point that a vCPU's thread served. The point waits until the exits are written,
    /// because the exit in which the thread served the point gets a flow to the point. If too many points are
    /// noted already, the point is written at once.
    fn served(
        &mut self,
        event: &EventRef<'_>,
        (pid, tid): (Option<u32>, u32),
        (host, id): (u64, u64),
    ) -> Result<()> {
        self.counts.served += 1;
        let point = Point { ts_ns: event.ts_ns, id, pid, name: event.name.clone() };
        if self.known.noted == MAX_POINTS {
            return self.point(host, tid, &point);
        }
        self.known.noted += 1;
        self.known.points.entry((event.source.session, tid)).or_default().push(point);
        Ok(())
    }

    /// Writes a reference point on the track of the thread that served the point, as a slice of no length.
    fn point(&mut self, machine: u64, tid: u32, point: &Point) -> Result<()> {
        let name = format!("thread {tid}").into();
        let track = self.host_thread(machine, (point.pid, tid), None, &name)?;
        self.slice_begin(machine, (point.ts_ns, track), &point.name, |proto, _| {
            proto.fixed(event::FLOW_IDS, point.id);
        })?;
        self.slice_end(machine, point.ts_ns, track)
    }

    /// Returns the points that a thread served in a half-open range of time: at most [`MAX_FLOWS`] of these
    /// points. The caller begins the points' flows at the thread's exit.
    pub fn served_in(&self, session: usize, tid: u32, times: (i64, i64)) -> Vec<u64> {
        let points = self.known.points.get(&(session, tid)).map_or(&[][..], |of| of);
        let first = points.partition_point(|point| point.ts_ns < times.0);
        let within = points[first..].iter().take_while(|point| point.ts_ns < times.1);
        within.take(MAX_FLOWS).map(|point| point.id).collect()
    }

    /// Writes the points that were noted.
    pub fn points(&mut self) -> Result<()> {
        let mut all = Vec::from_iter(std::mem::take(&mut self.known.points));
        all.sort_unstable_by_key(|(of, _)| *of);
        for ((session, tid), points) in all {
            let machine = self.machines[session].host;
            points.iter().try_for_each(|point| self.point(machine, tid, point))?;
        }
        Ok(())
    }

    /// Writes the beginning or the end of a function. An end without a beginning is written as an instant. If
    /// a function is nested too deep, the function's beginning and end are written as instants too.
    fn function(
        &mut self,
        event: &EventRef<'_>,
        (machine, at, track): (u64, u64, u64),
    ) -> Result<()> {
        self.counts.events += 1;
        let sequence = &self.sequences[machine as usize];
        let out = (&mut *self.out, sequence);
        let track = self.tracks.part(out, track, Part::Functions, |_| {})?;
        if self.known.depths.len() == MAX {
            self.known.depths.clear();
        }
        let depth = self.known.depths.entry(track).or_insert(0);
        let kind = match (&**event.name == ENTRY, *depth) {
            (true, before) => {
                *depth += 1;
                if before < MAX_NESTED {
                    self.counts.slices += 1;
                    event::SLICE_BEGIN
                } else {
                    self.counts.too_deep += 1;
                    event::INSTANT
                }
            }
            (false, 0) => event::INSTANT,
            (false, before) => {
                *depth -= 1;
                if before > MAX_NESTED { event::INSTANT } else { event::SLICE_END }
            }
        };
        let symbol = event.fields.iter().find_map(|(name, value)| match value {
            ValueRef::Str(text) if **name == *SYMBOL || **name == *"name" => Some(text),
            _ => None,
        });
        let address = event.fields.iter().find_map(|(name, value)| match value {
            ValueRef::Hex(address) if **name == *"address" => Some(address),
            _ => None,
        });
        let sequence = &mut self.sequences[machine as usize];
        sequence.event(self.out, self.clock, (at, kind, track), |proto, interned| {
            let symbol = symbol.and_then(|text| std::str::from_utf8(text).ok());
            let name = event.function.map(|function| &*function.name).or(symbol);
            // The end of a slice is written without a name. If the end had a name, viewers would end only a
            // slice of that name. At the end, a function's name may be missing or may not be the name from
            // the beginning.
            if kind != event::SLICE_END {
                proto.number(
                    event::NAME_IID,
                    match (name, address) {
                        (Some(name), _) => interned.number(Kind::Event, name),
                        (None, Some(address)) => {
                            interned.number(Kind::Event, &format!("{address:#x}"))
                        }
                        (None, None) => interned.event(event.name),
                    },
                );
            }
            arguments::fields(proto, interned, event.name, &event.fields);
        })
    }

    /// Writes a place where events were lost as a slice of no length. If a loss has no time, then the place
    /// is at the time of the last event.
    pub fn lost(&mut self, lost: &Lost) -> Result<()> {
        let at = match lost.ts_ns {
            Some(ts_ns) => self.at(ts_ns),
            None => self.known.last,
        };
        let of = self.machines.get(lost.source.session).copied();
        let (machine, track) = match (lost.kernel_trace(), lost.source.client, lost.thread, of) {
            (Some(trace), ..) => {
                let machine = self.of_traces[trace];
                let cpu = Track::Cpu { machine, cpu: lost.cpu.unwrap_or(0) };
                (machine, self.named(machine, cpu, &lost.source.text)?)
            }
            (_, Some(client), _, Some(Machines { guest, .. })) => {
                (guest, self.client(lost.source.session, client, &lost.source.text)?)
            }
            (_, _, Some(thread), Some(Machines { host, .. })) => {
                (host, self.host_thread(host, (thread.pid, thread.tid), None, &lost.source.text)?)
            }
            _ => {
                let host = of.map_or(0, |of| of.host);
                let name =
                    if lost.source.text.is_empty() { "no client" } else { &*lost.source.text };
                (host, self.source(host, lost.source.session, &name.into())?)
            }
        };
        self.counts.losses += 1;
        self.counts.lost = self.counts.lost.saturating_add(lost.events);
        let sequence = &mut self.sequences[machine as usize];
        let begin = (at, event::SLICE_BEGIN, track);
        sequence.event(self.out, self.clock, begin, |proto, interned| {
            let name = match lost.ts_ns {
                Some(_) => "events lost",
                None => "events lost at unknown times",
            };
            proto.number(event::NAME_IID, interned.number(Kind::Event, name));
            arguments::number(proto, interned, "lost", lost.events);
            // The counts by cause are totals over all losses of this source.
            for (cause, count) in causes(lost.causes) {
                arguments::number(proto, interned, cause, count);
            }
        })?;
        sequence.event(self.out, self.clock, (at, event::SLICE_END, track), |_, _| {})
    }

    /// Notes the thread that holds a client from now on.
    fn lease(&mut self, event: &EventRef<'_>) -> Result<()> {
        let Some(client) = event.source.client else { return Ok(()) };
        let machine = self.machines[event.source.session].guest;
        let fields = event.fields.iter().map(|(name, value)| (&**name, value));
        let track = match holder(fields) {
            Some((pid, tid)) => {
                self.known.thread(machine, pid, tid);
                let sequence = &self.sequences[machine as usize];
                let (out, name) = ((&mut *self.out, sequence), event.source.name.as_deref());
                self.tracks.thread(out, (machine, pid, tid), name, true)?
            }
            None => {
                let of = Track::Client { session: event.source.session, client };
                let group = self.group(machine)?;
                let sequence = &self.sequences[machine as usize];
                self.tracks.rename((self.out, sequence), of, |proto| {
                    tracks::grouped(proto, of, group, &event.source.text);
                })?
            }
        };
        let leases = &mut self.known.leases;
        let known = self.known.clients.entry((event.source.session, client)).or_default();
        if known.track != 0 && *leases < MAX {
            *leases += 1;
            known.before.push((known.since, known.track));
        }
        (known.track, known.since, known.bound) = (track, event.ts_ns, (0, 0));
        Ok(())
    }

    /// Returns the machine and the track of an event.
    fn track(&mut self, event: &EventRef<'_>) -> Result<(u64, u64)> {
        let session = event.source.session;
        let of = self.machines.get(session).copied();
        match (event.kind, event.source.client, event.thread, of) {
            (EventKind::Kernel, ..) => {
                let trace = event.kernel_trace().unwrap_or_default();
                let machine = self.of_traces[trace];
                Ok((machine, self.kernel(event, machine)?))
            }
            (_, Some(client), _, Some(Machines { guest, .. })) => {
                Ok((guest, self.client(session, client, &event.source.text)?))
            }
            (_, None, Some(thread), Some(Machines { host, .. })) => {
                let (numbers, name) = ((thread.pid, thread.tid), event.source.name.as_deref());
                let track = self.host_thread(host, numbers, name, &event.source.text)?;
                Ok((host, track))
            }
            _ => {
                let host = of.map_or(0, |of| of.host);
                Ok((host, self.source(host, session, &event.source.text)?))
            }
        }
    }

    /// Returns the track of a client's holder.
    fn client(&mut self, session: usize, client: u32, source: &Arc<str>) -> Result<u64> {
        if let Some(known) = self.known.clients.get(&(session, client)) {
            return Ok(known.track);
        }
        let machine = self.machines[session].guest;
        let track = self.named(machine, Track::Client { session, client }, source)?;
        let known = Client { track, since: i64::MIN, ..Client::default() };
        self.known.clients.insert((session, client), known);
        Ok(track)
    }

    /// Returns the track of the thread that held a client at the time `at`.
    pub fn holder(&mut self, session: usize, client: u32, at: i64) -> Result<u64> {
        if let Some(known) = self.known.clients.get(&(session, client)) {
            let after = known.before.partition_point(|(since, _)| *since <= at);
            let before = after.checked_sub(1).and_then(|last| known.before.get(last));
            let first = known.before.first().map_or(known.track, |(_, track)| *track);
            let is_last = known.since <= at;
            let track = if is_last { known.track } else { before.map_or(first, |(_, t)| *t) };
            return Ok(track);
        }
        self.client(session, client, &format!("client {client}").into())
    }

    /// Returns the track of a host's thread, given only the thread's id.
    pub fn task(&mut self, machine: u64, tid: u32, name: Option<&str>) -> Result<u64> {
        let pid = self.known.processes.get(&(machine, tid)).copied();
        let name = name.map(|name| name.strip_prefix("vmm/").unwrap_or(name));
        let source = match name {
            Some(name) => format!("{name}-{tid}"),
            None => format!("thread {tid}"),
        };
        self.host_thread(machine, (pid, tid), name, &source.into())
    }

    /// Writes an event of a track. Events may come in any order of time.
    pub fn other(
        &mut self,
        machine: u64,
        (ts_ns, kind, track): (i64, u64, u64),
        write: impl FnOnce(&mut Proto, &mut Interned),
    ) -> Result<()> {
        let at = self.at(ts_ns);
        let sequence = &mut self.others[machine as usize];
        sequence.event(self.out, self.clock, (at, kind, track), write)
    }

    /// Writes the beginning of a slice.
    pub fn slice_begin(
        &mut self,
        machine: u64,
        (ts_ns, track): (i64, u64),
        name: &Arc<str>,
        write: impl FnOnce(&mut Proto, &mut Interned),
    ) -> Result<()> {
        self.other(machine, (ts_ns, event::SLICE_BEGIN, track), |proto, interned| {
            proto.number(event::NAME_IID, interned.event(name));
            write(proto, interned);
        })
    }

    /// Writes the end of a slice.
    pub fn slice_end(&mut self, machine: u64, ts_ns: i64, track: u64) -> Result<()> {
        self.other(machine, (ts_ns, event::SLICE_END, track), |_, _| {})
    }

    /// Returns the track of a thread of a host.
    fn host_thread(
        &mut self,
        machine: u64,
        (pid, tid): (Option<u32>, u32),
        name: Option<&str>,
        source: &Arc<str>,
    ) -> Result<u64> {
        let sequence = &self.sequences[machine as usize];
        match pid.filter(|pid| tracks::is_thread(*pid, tid)) {
            Some(pid) => self.tracks.thread((self.out, sequence), (machine, pid, tid), name, false),
            None => self.named(machine, Track::Task { machine, tid }, source),
        }
    }

    /// Returns the track for a kernel's event. The event's thread determines the track.
    fn kernel(&mut self, event: &EventRef<'_>, machine: u64) -> Result<u64> {
        let Some(thread) = event.thread else { return self.source(machine, 0, &event.source.text) };
        let tid = thread.tid;
        if tid == 0 {
            let cpu = thread.cpu.unwrap_or(0);
            let name = format!("idle, CPU {cpu}").into();
            return self.named(machine, Track::Cpu { machine, cpu }, &name);
        }
        if let Some(track) = self.known.kernel.get(&(machine, tid)) {
            return Ok(*track);
        }
        let track = self.new_kernel(event, machine, tid)?;
        if self.known.kernel.len() == MAX {
            self.known.kernel.clear();
        }
        self.known.kernel.insert((machine, tid), track);
        Ok(track)
    }

    /// Makes the track for a kernel's events of a thread, and returns the track.
    fn new_kernel(&mut self, event: &EventRef<'_>, machine: u64, tid: u32) -> Result<u64> {
        let pid = self.known.processes.get(&(machine, tid)).copied();
        let Some(pid) = pid.filter(|pid| tracks::is_thread(*pid, tid)) else {
            if let Some(name) = event.source.name.as_deref() {
                let sequence = &self.sequences[machine as usize];
                self.tracks.main_thread((self.out, sequence), (machine, tid), name)?;
            }
            return self.named(machine, Track::Task { machine, tid }, &event.source.text);
        };
        let (out, name) = (&mut *self.out, event.source.name.as_deref());
        let sequence = &self.sequences[machine as usize];
        let parent = self.tracks.thread((out, sequence), (machine, pid, tid), name, false)?;
        self.tracks.part((out, sequence), parent, Part::Kernel, |_| {})
    }

    /// Returns the track of a source. The source's name determines the track.
    fn source(&mut self, machine: u64, session: usize, source: &Arc<str>) -> Result<u64> {
        let number = match self.known.sources.get(source) {
            Some(number) => *number,
            None => {
                if self.known.sources.len() == MAX {
                    self.known.sources.clear();
                }
                let number = self.tracks.new_number() as usize;
                self.known.sources.insert(source.clone(), number);
                number
            }
        };
        self.named(machine, Track::Source { session, number }, source)
    }

    /// Returns a track with a name, in the group of its machine.
    pub fn named(&mut self, machine: u64, of: Track, name: &Arc<str>) -> Result<u64> {
        let group = self.group(machine)?;
        let sequence = &self.sequences[machine as usize];
        self.tracks.number((self.out, sequence), of, |proto| {
            tracks::grouped(proto, of, group, name);
        })
    }

    /// Returns the track of a machine's group, which has all tracks that belong to no known process.
    pub fn group(&mut self, machine: u64) -> Result<u64> {
        let of = Track::Group { machine };
        let sequence = &self.sequences[machine as usize];
        let name = &self.all[machine as usize].name;
        self.tracks.number((self.out, sequence), of, |proto| tracks::around(proto, name))
    }

    /// Writes the bound on the error of a client's clock, if the bound has changed by more than a sixteenth.
    fn bound(&mut self, event: &EventRef<'_>, machine: u64, at: u64, parent: u64) -> Result<()> {
        let Some(bound_ns) = event.bound_ns() else { return Ok(()) };
        let client = event.source.client.unwrap_or_default();
        let Some(known) = self.known.clients.get_mut(&(event.source.session, client)) else {
            return Ok(());
        };
        if bound_ns.abs_diff(known.bound.1) <= known.bound.1 / 16 {
            return Ok(());
        }
        known.bound.1 = bound_ns;
        let sequence = &mut self.sequences[machine as usize];
        if known.bound.0 == 0 {
            let out = (&mut *self.out, &*sequence);
            known.bound.0 = self.tracks.part(out, parent, Part::Bound, |proto| {
                proto.message(track::COUNTER, |counter| {
                    counter.number(track::UNIT, track::NANOSECONDS);
                });
            })?;
        }
        self.counts.bounds += 1;
        let of_track = (at, event::COUNTER, known.bound.0);
        sequence.event(self.out, self.clock, of_track, |proto, _| {
            proto.signed(event::COUNTER_VALUE, bound_ns.try_into().unwrap_or(i64::MAX));
        })
    }
}

/// Returns the id of a reference point's flow. With this id, viewers connect the guest's event to the thread
/// that served the point.
fn point_id(event: &EventRef<'_>) -> Option<u64> {
    let point = event.reference?;
    // The points of a client have consecutive sequence numbers, so points that are near each other in time
    // differ in this number. The session's index is counted from 1, so that no number is 0.
    Some(
        (event.source.session as u64 + 1) << 48
            | u64::from(point.client) << 32
            | u64::from(point.seq),
    )
}

/// Returns the machine of each kernel's trace, and the number of all machines.
pub(super) fn machines_of(
    sessions: &[(Session, ClockMaps)],
    traces: &[KernelTrace],
    machines: &[Machines],
    mut count: u64,
) -> (Vec<u64>, u64) {
    let of_trace = |trace: &KernelTrace| {
        let session = trace.session().or((sessions.len() == 1).then_some(0));
        match session.and_then(|session| machines.get(session)) {
            Some(of) if trace.is_of_guest() => of.guest,
            Some(of) => of.host,
            None => {
                count += 1;
                count - 1
            }
        }
    };
    let of_traces = traces.iter().map(of_trace).collect();
    (of_traces, count)
}
