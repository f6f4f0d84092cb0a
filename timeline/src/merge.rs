//! One timeline out of all streams of one or several sessions.

use crate::class::{Class, Reference, Value};
use crate::clock::{ClockMap, FRACTION};
use crate::error::{Error, Result};
use crate::packet::{Domain, Packet};
use crate::reference::ClockMaps;
use crate::session::Session;
use crate::session_json::Clock;
use crate::source::{Names, Source};
use crate::stream::{Record, Records, Stream};
use hypertrace_abi::record::{Flags, id};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

/// What kind of event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A declared event: of the guest's ring, or of the VMM.
    Event,
    /// A reference point: on the host's clock if a vCPU thread took it. Those
    /// of the 2016 interface are among them.
    ReferencePoint,
    /// A point whose time the host's kernel has, too.
    Stamp,
    /// A new lessee took the client.
    Lease,
    /// An event of the 2016 interface that went through a ring.
    Hypertrace,
    /// The guest's timestamp was impossible; this is what it was.
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
pub struct Event {
    /// Unix time, nanoseconds.
    pub ts_ns: i64,
    /// How far off that may be against the host's clock; `None` is unknown.
    pub bound_ns: Option<u64>,
    /// Which of the sessions.
    pub session: usize,
    /// Who: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0`. The name behind the client is the
    /// guest's own: escape it.
    pub source: Arc<str>,
    /// The event's name.
    pub name: Arc<str>,
    /// Its fields with their names.
    pub fields: Vec<(Arc<str>, Value)>,
    /// The record's flags.
    pub flags: u16,
    /// The guest client that it came from; none of the VMM's own events has
    /// one.
    pub client: Option<u32>,
    /// What kind of event it is.
    pub kind: Kind,
    /// Of a reference point that a vCPU thread took: what came with it.
    pub reference: Option<Reference>,
}

/// All events of one or several sessions in order of time.
///
/// Within a stream nothing is reordered. Among streams, a guest's events stand
/// before a reference point if the guest emitted them before, and behind it if
/// it emitted them after the reply. Memory: one window per stream.
#[derive(Debug)]
pub struct Timeline<'a> {
    inputs: Vec<Input<'a>>,
    heap: BinaryHeap<Reverse<Key>>,
    names: Names,
    several: bool,
    /// Damage behind the event that was given last.
    failed: Option<Error>,
}

/// Where a stream's next event goes. Fields in order of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Unix time in host units.
    time: i128,
    /// At the same instant, guests go first: what a guest did before a
    /// reference point may be mapped to its very time, what it did after never.
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
    /// How the packets of the present stream class tell time.
    clock: Option<(u32, Ticks<'a>)>,
    last: i128,
    next: Option<Pending>,
}

#[derive(Clone, Debug)]
enum Ticks<'a> {
    Host(&'a Clock),
    Guest(Arc<ClockMap>),
}

/// An event that was read but is not due; its source is known only then.
#[derive(Debug)]
struct Pending {
    event: Event,
    token: u64,
}

impl<'a> Timeline<'a> {
    /// Starts at the begin of all sessions. Each comes with its clock maps.
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
        };
        for (number, (session, maps)) in sessions.iter().enumerate() {
            for stream in session.streams() {
                let mut input = Input {
                    session,
                    number,
                    maps,
                    stream,
                    records: stream.records(session.classes()),
                    clock: None,
                    last: i128::MIN,
                    next: None,
                };
                if let Some(time) = input.advance()? {
                    let host = stream.domain == Domain::Host;
                    timeline.heap.push(Reverse(Key { time, host, input: timeline.inputs.len() }));
                    timeline.inputs.push(input);
                }
            }
        }
        Ok(timeline)
    }

    fn take(&mut self) -> Option<Event> {
        let mut first = self.heap.peek_mut()?;
        let input = self.inputs.get_mut(first.0.input)?;
        let Pending { mut event, token } = input.next.take()?;
        let stream = input.stream;
        match input.advance() {
            Ok(Some(time)) => first.0.time = time,
            Ok(None) => drop(PeekMut::pop(first)),
            Err(error) => self.failed = Some(error),
        }
        let from = Source { session: event.session, domain: stream.domain, client: stream.client };
        if event.kind == Kind::Lease {
            self.names.lease(from, &event.fields);
        } else {
            self.names.token(from, token);
        }
        event.source = match (stream.domain, event.client) {
            // What a vCPU thread recorded for a client comes from the client.
            (Domain::Host, Some(client)) => {
                self.names.get(Source { domain: Domain::Guest, client, ..from }, self.several)
            }
            _ => self.names.get(from, self.several),
        };
        Some(event)
    }
}

impl Iterator for Timeline<'_> {
    type Item = Result<Event>;

    /// Ends after an error.
    fn next(&mut self) -> Option<Result<Event>> {
        match self.failed.take() {
            Some(error) => {
                self.heap.clear();
                Some(Err(error))
            }
            None => self.take().map(Ok),
        }
    }
}

impl<'a> Input<'a> {
    /// Reads the next event and tells its time.
    fn advance(&mut self) -> Result<Option<i128>> {
        let Some(record) = self.records.read()? else { return Ok(None) };
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
        self.last = time;
        self.next = Some(Pending {
            token: record.packet.lease_token,
            event: decode(&record, self.stream, self.number, time, bound),
        });
        Ok(Some(time))
    }
}

/// How a stream class's packets tell time. What was opened has all of its
/// clocks.
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
        // What stamps with the host's clock needs no map.
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
    let ns = time.div_euclid(FRACTION.into());
    Event {
        ts_ns: ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
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
