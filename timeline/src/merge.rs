// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The merge of all streams of one or several sessions.

use crate::class::{Class, Reference, Value};
use crate::clock::{ClockMap, FRACTION};
use crate::error::{Error, Result};
use crate::packet::{Domain, Packet};
use crate::reference::ClockMaps;
use crate::session::Session;
use crate::session_json::{Clock, StreamJson};
use crate::source::{Names, Source};
use crate::stream::{Record, Records, Stream};
use hypertrace_abi::record::{Flags, id};
use hypertrace_abi::ring::Losses;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A declared event, in the guest's ring or of the VMM.
    Event,
    /// A reference point, on the host's clock if a vCPU thread recorded it. Those
    /// of the 2016 interface are among them.
    ReferencePoint,
    /// A point for which the host's kernel has the time, too.
    Stamp,
    /// The start of a new lessee of the client.
    Lease,
    /// An event of the 2016 interface that went through a ring.
    Hypertrace,
    /// An impossible timestamp of the guest, with its raw value.
    TimeFault,
    /// A record whose schema the host did not have.
    Untyped,
}

impl Kind {
    pub(crate) fn of(class: &Class, flags: Flags) -> Kind {
        match class.id {
            _ if class.reference_point => Kind::ReferencePoint,
            id::LEASE => Kind::Lease,
            id::TIME_FAULT => Kind::TimeFault,
            id::STAMP => Kind::Stamp,
            _ if flags.contains(Flags::STAMP) => Kind::Stamp,
            _ if flags.contains(Flags::REFERENCE_POINT) => Kind::ReferencePoint,
            id::HYPERTRACE => Kind::Hypertrace,
            id::UNTYPED => Kind::Untyped,
            _ => Kind::Event,
        }
    }
}

/// An event on the timeline.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// Unix time, nanoseconds.
    pub ts_ns: i64,
    /// Bound on the error against the host's clock; `None` if there is no bound.
    pub bound_ns: Option<u64>,
    /// Index of the session.
    pub session: usize,
    /// Name of the source: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0`. The part after
    /// the client is from the guest: escape it.
    pub source: Arc<str>,
    /// Name of the event.
    pub name: Arc<str>,
    /// Fields with their names.
    pub fields: Vec<(Arc<str>, Value)>,
    /// Flags of the record.
    pub flags: u16,
    /// Guest client that it came from; `None` for the VMM's own events.
    pub client: Option<u32>,
    /// Kind of the event.
    pub kind: Kind,
    /// Words of a reference point that a vCPU thread recorded.
    pub reference: Option<Reference>,
}

/// A place where events were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Unix time of the event before the place, or of the event after it if events
    /// were overwritten, in nanoseconds. `None` if the place is not known.
    pub ts_ns: Option<i64>,
    /// Index of the session.
    pub session: usize,
    /// Name of the source, as in [`Event`]; empty for processes that had no client.
    pub source: Arc<str>,
    /// Guest client.
    pub client: Option<u32>,
    /// Exact number of lost events.
    pub events: u64,
    /// Causes of all losses of this source, from `session.json`; packets have only the
    /// number. All zeros if not known.
    pub causes: Losses,
}

impl Lost {
    fn by(from: Source, source: Arc<str>, events: u64, causes: Losses) -> Lost {
        let client = (from.domain == Domain::Guest).then_some(from.client);
        Lost { ts_ns: None, session: from.session, source, client, events, causes }
    }
}

/// The next item of the timeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// An event.
    Event(Event),
    /// Events are missing here.
    Lost(Lost),
}

/// All events of one or several sessions in order of time.
///
/// The iterator returns events only; [`Timeline::next_entry`] also returns the places
/// where some were lost.
///
/// Within a stream nothing is reordered. Among streams, a guest's events come
/// before a reference point if the guest emitted them before it, and after the point if
/// it emitted them after the reply. Memory: one window per stream.
#[derive(Debug)]
pub struct Timeline<'a> {
    inputs: Vec<Input<'a>>,
    heap: BinaryHeap<Reverse<Key>>,
    names: Names,
    several: bool,
    /// Damage after the event that was returned last.
    failed: Option<Error>,
    /// Losses at an unknown place: they come last.
    unplaced: VecDeque<Lost>,
}

/// Position of a stream's next event. Fields in order of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Unix time in host units.
    time: i128,
    /// Whether it is a host's. At the same instant guests go first: the time of an event
    /// before a reference point may be mapped to that of the point, but never the time
    /// of an event after it.
    host: bool,
    input: usize,
}

/// A stream and its next event.
#[derive(Debug)]
struct Input<'a> {
    session: &'a Session,
    number: usize,
    maps: &'a ClockMaps,
    stream: &'a Stream,
    records: Records<'a>,
    /// Clock of the packets of the current stream class.
    clock: Option<(u32, Ticks<'a>)>,
    last: i128,
    next: Option<Pending>,
    /// An event after the loss in `next`, with its time.
    held: Option<(i128, Pending)>,
    losses: InputLosses,
}

/// Lost events, by an input's packets.
#[derive(Debug, Default)]
struct InputLosses {
    /// Whether losses come before a packet's first event, as overwritten events do.
    /// Dropped events come after its last, because the ring was full of the packet's
    /// events.
    are_before: bool,
    /// Total in all packets up to the current one.
    total: u64,
    /// Losses that come after the current packet.
    owed: u64,
    /// Number of packets so far.
    packets: u64,
    /// Losses of a stream without an event next to them.
    unplaced: u64,
}

#[derive(Clone, Debug)]
enum Ticks<'a> {
    Host(&'a Clock),
    Guest(Arc<ClockMap>),
}

/// An event that was read before its turn. Its source is determined at its turn.
#[derive(Debug)]
enum Pending {
    Event(Event, u64),
    /// A number of lost events.
    Lost(u64),
}

impl<'a> Timeline<'a> {
    /// Starts at the beginning of all sessions, given with their clock maps.
    ///
    /// # Errors
    /// If the first records of a stream are damaged.
    pub fn new(sessions: &'a [(Session, ClockMaps)]) -> Result<Timeline<'a>> {
        let mut timeline = Timeline {
            inputs: Vec::new(),
            heap: BinaryHeap::new(),
            names: Names::new(sessions.iter().map(|(s, _)| s)),
            several: sessions.len() > 1,
            failed: None,
            unplaced: VecDeque::new(),
        };
        for (number, (session, maps)) in sessions.iter().enumerate() {
            for stream in session.streams() {
                let described = session.json().stream(stream.domain, stream.client);
                let causes = described.map_or(Losses::default(), StreamJson::causes);
                let losses = InputLosses {
                    are_before: causes.overwritten > 0 && causes.total() == causes.overwritten,
                    ..InputLosses::default()
                };
                let mut input = Input {
                    session,
                    number,
                    maps,
                    stream,
                    records: stream.records(session.classes()),
                    clock: None,
                    last: i128::MIN,
                    next: None,
                    held: None,
                    losses,
                };
                if let Some(time) = input.advance()? {
                    let host = stream.domain == Domain::Host;
                    timeline.heap.push(Reverse(Key { time, host, input: timeline.inputs.len() }));
                    timeline.inputs.push(input);
                } else {
                    let from = Source { session: number, ..Source::of(stream) };
                    timeline.lose_somewhere(from, input.losses.unplaced, causes);
                }
            }
            for described in &session.json().streams {
                let (domain, client) = (described.domain, described.client);
                if !session.streams().iter().any(|s| (s.domain, s.client) == (domain, client)) {
                    let from = Source { session: number, domain, client };
                    timeline.lose_somewhere(from, described.lost(), described.causes());
                }
            }
            let unattached = session.json().lost_unattached;
            if unattached > 0 {
                timeline.unplaced.push_back(Lost {
                    ts_ns: None,
                    session: number,
                    source: Arc::default(),
                    client: None,
                    events: unattached,
                    causes: Losses { unattached, ..Losses::default() },
                });
            }
        }
        Ok(timeline)
    }

    /// Notes losses of a stream that has no event next to them.
    fn lose_somewhere(&mut self, from: Source, events: u64, causes: Losses) {
        if events > 0 {
            let source = self.names.get(from, self.several);
            self.unplaced.push_back(Lost::by(from, source, events, causes));
        }
    }

    /// Returns the next event, or the next place where some were lost. The losses of a
    /// stream's places add up exactly. A place is as exact as a packet: the drop itself
    /// may be up to a ring's content away.
    ///
    /// # Errors
    /// As for the iterator, which ends after an error.
    pub fn next_entry(&mut self) -> Option<Result<Entry>> {
        match self.failed.take() {
            Some(error) => {
                self.heap.clear();
                self.unplaced.clear();
                Some(Err(error))
            }
            None => {
                let next = self.take();
                next.or_else(|| self.unplaced.pop_front().map(Entry::Lost)).map(Ok)
            }
        }
    }

    fn take(&mut self) -> Option<Entry> {
        let mut first = self.heap.peek_mut()?;
        let input = self.inputs.get_mut(first.0.input)?;
        let next = input.next.take()?;
        let time = first.0.time;
        let from = Source { session: input.number, ..Source::of(input.stream) };
        let causes = input.session.json().stream(from.domain, from.client);
        match input.advance() {
            Ok(Some(time)) => first.0.time = time,
            Ok(None) => drop(PeekMut::pop(first)),
            Err(error) => self.failed = Some(error),
        }
        let (mut event, token) = match next {
            Pending::Event(event, token) => (event, token),
            Pending::Lost(events) => {
                let causes = causes.map_or(Losses::default(), StreamJson::causes);
                let source = self.names.get(from, self.several);
                let lost = Lost::by(from, source, events, causes);
                return Some(Entry::Lost(Lost { ts_ns: Some(nanoseconds(time)), ..lost }));
            }
        };
        if event.kind == Kind::Lease {
            self.names.lease(from, &event.fields);
        } else {
            self.names.token(from, token);
        }
        event.source = match (from.domain, event.client) {
            // The source of what a vCPU thread recorded for a client is the client.
            (Domain::Host, Some(client)) => {
                self.names.get(Source { domain: Domain::Guest, client, ..from }, self.several)
            }
            _ => self.names.get(from, self.several),
        };
        Some(Entry::Event(event))
    }
}

impl Iterator for Timeline<'_> {
    type Item = Result<Event>;

    /// Ends after an error.
    fn next(&mut self) -> Option<Result<Event>> {
        loop {
            match self.next_entry()? {
                Ok(Entry::Event(event)) => return Some(Ok(event)),
                Ok(Entry::Lost(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl<'a> Input<'a> {
    /// Reads the next event, or finds a loss. Returns its time.
    fn advance(&mut self) -> Result<Option<i128>> {
        if let Some((time, event)) = self.held.take() {
            self.last = time;
            self.next = Some(event);
            return Ok(Some(time));
        }
        let Some(record) = self.records.read()? else { return Ok(self.end()) };
        let id = record.packet.stream_id;
        let ticks = match &self.clock {
            Some((known, ticks)) if *known == id => ticks,
            _ => {
                let ticks = ticks(self.session, self.maps, self.stream, record.packet)?;
                &self.clock.insert((id, ticks)).1
            }
        };
        let (units, bound) = match ticks {
            Ticks::Host(clock) => (self.session.host_time(clock, record.timestamp), Some(0)),
            Ticks::Guest(map) => {
                let mapped = map.at(record.timestamp);
                (mapped.host, mapped.bound)
            }
        };
        // Where the clock changes, a map may begin before the last one ended.
        let time = (self.session.origin() + i128::from(units)).max(self.last);
        let event = decode(&record, self.stream, self.number, time, bound);
        let event = Pending::Event(event, record.packet.lease_token);
        let lost = self.losses.at_event(&self.records);
        if lost > 0 {
            let at = if self.losses.are_before { time } else { self.last };
            self.held = Some((time, event));
            self.next = Some(Pending::Lost(lost));
            return Ok(Some(at));
        }
        self.last = time;
        self.next = Some(event);
        Ok(Some(time))
    }

    /// Finds the losses since the last event, at the stream's end. Returns their time.
    fn end(&mut self) -> Option<i128> {
        let lost = self.losses.at_end(&self.records);
        if lost == 0 {
            return None;
        }
        if self.last == i128::MIN {
            self.losses.unplaced = lost;
            return None;
        }
        self.next = Some(Pending::Lost(lost));
        Some(self.last)
    }
}

impl InputLosses {
    /// Returns the number of lost events before the record that was read last.
    fn at_event(&mut self, records: &Records<'_>) -> u64 {
        if records.packets() == self.packets {
            return 0;
        }
        self.packets = records.packets();
        let more = records.lost() - self.total;
        self.total = records.lost();
        if self.are_before { more } else { std::mem::replace(&mut self.owed, more) }
    }

    /// Returns the number of lost events after the last record.
    fn at_end(&mut self, records: &Records<'_>) -> u64 {
        let more = records.lost() - self.total;
        self.total = records.lost();
        more + std::mem::take(&mut self.owed)
    }
}

fn nanoseconds(time: i128) -> i64 {
    time.div_euclid(FRACTION.into()).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns the clock of a stream class's packets. A session that could be opened has
/// all of them.
fn ticks<'a>(
    session: &'a Session,
    maps: &ClockMaps,
    stream: &Stream,
    packet: &Packet,
) -> Result<Ticks<'a>> {
    let id = packet.stream_id;
    let clock = session.json().clock(id);
    let found = match stream.domain {
        Domain::Host => clock.map(Ticks::Host),
        // Timestamps of the host's clock need no map.
        Domain::Guest if clock.is_some_and(|c| c.domain == Domain::Host) => clock.map(Ticks::Host),
        Domain::Guest => maps.get(id, stream.client).cloned().map(Ticks::Guest),
    };
    found.ok_or_else(|| Error::NotASession {
        path: session.dir().to_owned(),
        why: format!("no clock {id} for a stream"),
    })
}

fn decode(
    record: &Record<'_>,
    stream: &Stream,
    session: usize,
    time: i128,
    bound: Option<u64>,
) -> Event {
    let class = record.class;
    let names = class.fields.iter().cloned();
    let fields: Vec<_> = names.zip(class.values(record.payload).map(Value::from)).collect();
    let reference = class.reference(record.payload);
    let kind = Kind::of(class, Flags::from_bits_retain(record.flags));
    let client = match (stream.domain, reference) {
        (Domain::Guest, _) => Some(stream.client),
        (Domain::Host, Some(reference)) => Some(reference.client),
        (Domain::Host, None) => match (kind, fields.first()) {
            (Kind::Hypertrace, Some((_, Value::Unsigned(client)))) => Some(*client as u32),
            _ => None,
        },
    };
    Event {
        ts_ns: nanoseconds(time),
        bound_ns: bound.map(|units| units.div_ceil(FRACTION as u64)),
        session,
        source: Arc::default(),
        name: class.name.clone(),
        fields,
        flags: record.flags,
        client,
        kind,
        reference,
    }
}
