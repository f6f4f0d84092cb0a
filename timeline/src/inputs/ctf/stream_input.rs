// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The inputs of a session. Each stream is an input.

use super::clock_maps::{ClientMap, ClockMaps};
use super::lease::Lease;
use super::packet::{Domain, Packet};
use super::session::Session;
use super::session_json::{Clock, SessionJson, StreamJson};
use super::stream::{Records, Skip, Stream};
use crate::clock::FRACTION;
use crate::error::{Error, Result};
use crate::event::{Bound, EntryRef, EventKind, EventRef, Lost, Thread};
use crate::inputs::input::{Input, Time, UNPLACED, nanoseconds};
use crate::inputs::names::{Names, Producer, SourceIndex};
use crate::inputs::needs::Needs;
use crate::source::Source;
use hypertrace_abi::record::id;
use hypertrace_abi::ring::Losses;
use std::collections::VecDeque;
use std::sync::Arc;

/// A stream and its next entry.
#[derive(Debug)]
struct StreamInput<'a> {
    session: &'a Session,
    producer: Producer,
    place: SourceIndex,
    /// In a ring of the host: the client for which a thread made the last record, and the place of this
    /// client's source.
    served: Option<(u32, SourceIndex)>,
    maps: &'a ClockMaps,
    stream: &'a Stream,
    records: Records<'a>,
    /// Stream class of the current packets, with the clock of this class.
    clock: Option<(u32, Ticks<'a>)>,
    /// Time of the next entry. Before the next entry is read, this field is the time of the last event.
    time: Time,
    /// Time of the record that was read last, until the record is taken. The record's source is determined
    /// when the timeline takes the record.
    event: Option<At>,
    /// Number of lost events before `event`, or at the end.
    lost: u64,
    causes: Losses,
    losses: PacketLosses,
    needs: &'a Needs,
    /// Token of the holder whose name the source has. The token comes from the last lease or packet.
    token: Option<u64>,
    /// Damage at which the stream ends, if the reader found the damage behind events that nobody needs.
    damage: Option<Error>,
    /// Number of events that were read although nobody needs them.
    left_out: u64,
}

/// Time at which a record was made.
#[derive(Clone, Copy, Debug)]
struct At {
    time: Time,
    /// Difference between `time` and the earlier time that the record's clock gives. The reader moves a time
    /// if the map of a new clock begins before the end of the old clock's map.
    late: u64,
    bound: Within,
}

/// Bound on the error of a time from a record's clock.
#[derive(Clone, Copy, Debug)]
enum Within {
    Units(Option<u64>),
    /// The bound follows from a guest's reading. The session's clock maps put this reading at this host time.
    OfReading(i64),
}

/// Counts of lost events, from the packets of a stream.
#[derive(Debug, Default)]
struct PacketLosses {
    /// If true, the lost events were overwritten, and are placed before the first event of the packet that
    /// counts them. If false, the ring was full and the lost events were dropped, so the lost events are
    /// placed after the packet's last event.
    are_before: bool,
    /// Number of lost events in all packets up to the current packet.
    total: u64,
    /// Number of lost events that come after the current packet.
    owed: u64,
    /// Number of packets so far.
    packets: u64,
}

#[derive(Clone, Debug)]
enum Ticks<'a> {
    Host(&'a Clock),
    Guest(ClientMap),
    /// A guest's clock. The times come from the writer's estimate.
    Estimate(&'a Clock),
}

/// Returns the inputs of a session, and adds the names from the session's description. The bounds limit the
/// error against the clock of the session's host.
pub(crate) fn inputs<'a>(
    number: usize,
    session: &'a Session,
    maps: &'a ClockMaps,
    needs: &'a Needs,
    names: &mut Names,
) -> Vec<Box<dyn Input + 'a>> {
    let has_files = |uuid: &_, domain, client| session.has_files(uuid, domain, client);
    let elsewhere = elsewhere(number, session.json(), &has_files, names);
    let mut inputs = stream_inputs(number, session, maps, needs, names);
    inputs.push(Box::new(elsewhere));
    inputs
}

/// Returns the losses of a session that belong to no stream with files.
pub(crate) fn elsewhere(
    number: usize,
    json: &SessionJson,
    has_files: &dyn Fn(&[u8; 16], Domain, u32) -> bool,
    names: &mut Names,
) -> VecDeque<Lost> {
    let producer = |domain, client| Producer { session: number, domain, client };
    let mut elsewhere = VecDeque::new();
    for stream in &json.streams {
        place(names, producer(stream.domain, stream.client), &stream.name);
    }
    for stream in json.without_files(has_files) {
        let (domain, client) = (stream.domain, stream.client);
        let place = place(names, producer(domain, client), &stream.name);
        if stream.lost() > 0 {
            let source = names.get(place).clone();
            elsewhere.push_back(lost(source, stream.lost(), stream.causes()));
        }
    }
    if json.lost_unattached > 0 {
        let causes = Losses { unattached: json.lost_unattached, ..Losses::default() };
        let nobody = names.add(number, None, String::new());
        elsewhere.push_back(lost(nobody, json.lost_unattached, causes));
    }
    elsewhere
}

/// Returns the place of a source. A new source gets the name from the description.
fn place(names: &mut Names, producer: Producer, name: &str) -> SourceIndex {
    let is_new = !names.has(producer);
    let place = names.place(producer);
    if is_new {
        names.lease(place, None, name.to_owned());
    }
    place
}

/// Returns the inputs of a session's streams.
pub(crate) fn stream_inputs<'a>(
    number: usize,
    session: &'a Session,
    maps: &'a ClockMaps,
    needs: &'a Needs,
    names: &mut Names,
) -> Vec<Box<dyn Input + 'a>> {
    let json = session.json();
    let input = |stream: &'a Stream| {
        let described = json.stream(stream.domain, stream.client);
        let causes = described.map_or(Losses::default(), StreamJson::causes);
        let producer = Producer { session: number, domain: stream.domain, client: stream.client };
        let name = described.map_or("", |described| &*described.name);
        Box::new(StreamInput {
            session,
            producer,
            place: place(names, producer, name),
            served: None,
            maps,
            stream,
            records: stream.records(session.classes()).of_many(session.streams().len()),
            clock: None,
            time: Time::MIN,
            event: None,
            lost: 0,
            causes,
            losses: PacketLosses {
                are_before: causes.overwritten > 0 && causes.total() == causes.overwritten,
                ..PacketLosses::default()
            },
            needs,
            token: None,
            damage: None,
            left_out: 0,
        }) as Box<dyn Input>
    };
    session.streams().iter().map(input).collect()
}

impl Input for StreamInput<'_> {
    fn advance(&mut self) -> Result<Option<Time>> {
        if let Some(damage) = self.damage.take() {
            return Err(damage);
        }
        if self.event.is_none() {
            self.read()?;
        }
        if self.damage.is_some() {
            return Ok(Some(self.time));
        }
        self.time = match &self.event {
            Some(at) if self.lost == 0 || self.losses.are_before => at.time,
            None if self.lost == 0 => return Ok(None),
            // The stream has no event, so its losses have no place.
            None if self.time == Time::MIN => UNPLACED,
            _ => self.time,
        };
        Ok(Some(self.time))
    }

    fn take<'s>(&'s mut self, names: &'s mut Names) -> Option<EntryRef<'s>> {
        if self.lost > 0 {
            let events = std::mem::take(&mut self.lost);
            let ts_ns = (self.time != UNPLACED).then(|| nanoseconds(self.time));
            let lost = lost(names.get(self.place).clone(), events, self.causes);
            let of_vmm = self.producer.domain == Domain::Host && !self.session.json().programs;
            let thread = names.thread(self.place).filter(|_| of_vmm).map(|(_, thread)| thread);
            return Some(EntryRef::Lost(Lost { ts_ns, thread, ..lost }));
        }
        let At { time, late, bound } = self.event.take()?;
        let rest = time.rem_euclid(FRACTION.into()) as u64;
        let bound = match bound {
            Within::Units(units) => Bound::of(units.map(|units| units.saturating_add(late)), rest),
            Within::OfReading(host) => Bound::OfReading { host, late, rest, margin_ns: 0 },
        };
        let record = self.records.last()?;
        let kind = record.kind();
        let holder = record.packet.lease_token;
        if kind == EventKind::Lease {
            let Lease { token, pid, tid, name } = Lease::of(&record);
            names.lease(self.place, token, name);
            // The thread of a guest's client is a thread of the guest, unless the guest is a program.
            let is_of_host = self.producer.domain == Domain::Host || self.session.json().programs;
            let thread = tid.filter(|_| is_of_host).map(|tid| Thread { pid, tid, cpu: None });
            names.set_thread(self.place, thread.map(|thread| (holder, thread)));
        } else {
            names.token(self.place, holder);
        }
        let client = match self.producer.domain {
            Domain::Guest => Some(self.producer.client),
            Domain::Host => record.made_for(),
        };
        let place = match (self.producer.domain, client) {
            // If a vCPU's thread recorded the event for a client, the client is the event's source.
            (Domain::Host, Some(client)) => match self.served {
                Some((last, place)) if last == client => place,
                _ => {
                    let place =
                        names.place(Producer { domain: Domain::Guest, client, ..self.producer });
                    self.served.insert((client, place)).1
                }
            },
            _ => self.place,
        };
        let reading = match &self.clock {
            Some((_, Ticks::Guest(map))) => Some(map.reading(record.timestamp)),
            _ => None,
        };
        let thread = names.thread(self.place).filter(|(token, _)| *token == holder);
        Some(EntryRef::Event(EventRef {
            ts_ns: nanoseconds(time),
            ticks: None,
            source: names.get(place),
            name: &record.class.name,
            fields: record.class.fields(record.payload),
            flags: record.flags,
            kind,
            reference: record.class.reference(record.payload),
            thread: thread.map(|(_, thread)| thread),
            trace: 0,
            function: None,
            reading,
            bound,
        }))
    }

    fn is_host(&self) -> bool {
        self.producer.domain == Domain::Host && self.time != UNPLACED
    }

    fn is_damaged(&self) -> bool {
        self.damage.is_some()
    }

    fn left_out(&self) -> Option<(usize, u64)> {
        Some((self.producer.session, self.number_left_out()))
    }
}

impl StreamInput<'_> {
    fn number_left_out(&self) -> u64 {
        self.left_out + self.records.skipped()
    }

    /// Reads the next needed event, if there is one, and finds the losses before this event.
    fn read(&mut self) -> Result<()> {
        let left_out = self.number_left_out();
        loop {
            let packets = self.records.packets();
            let next = self.records.read().map(|record| record.is_some());
            if let Some(ticks) = self.records.take_skipped()
                && let Some((_, clock)) = &mut self.clock
            {
                // The time advances to the last skipped event. A loss after the skipped events gets this
                // time, and the events of the next clock must not be earlier.
                self.time = self.time.max(clock.at(self.session, ticks).0);
            }
            let has_next = match next {
                Ok(has_next) => has_next,
                // The damage is kept until later, because the events of other streams before the damage come
                // first.
                Err(damage) if left_out < self.number_left_out() => {
                    self.damage = Some(damage);
                    return Ok(());
                }
                Err(damage) => return Err(damage),
            };
            let Some(record) = self.records.last().filter(|_| has_next) else {
                self.lost = self.losses.at_end(&self.records);
                return Ok(());
            };
            let (packet, time) = (record.packet, record.timestamp);
            let is_unneeded =
                self.needs.unneeded(self.producer.session).get(record.class.id as usize)
                    == Some(&true);
            let end = packet.timestamp_end;
            let clock_id = packet.stream_id;
            let ticks = match &mut self.clock {
                Some((known, ticks)) if *known == clock_id => ticks,
                clock => {
                    let ticks = ticks(self.session, self.maps, self.stream, packet)?;
                    &mut clock.insert((clock_id, ticks)).1
                }
            };
            let (mapped, bound) = ticks.at(self.session, time);
            let time = mapped.max(self.time);
            let late = u64::try_from(time - mapped).unwrap_or(u64::MAX);
            let has_error =
                |ticks: &Ticks<'_>| late > 0 || ticks.has_error(record.timestamp, bound);
            // The first event of each holder is never left out, because this event ends the name of the
            // previous holder.
            let (is_lease, holder) = (record.class.id == id::LEASE, packet.lease_token);
            let named = if is_lease { Lease::of(&record).token } else { Some(holder) };
            let is_of_holder = self.token == Some(holder);
            self.token = named;
            let is_of_other = is_lease && named != Some(holder);
            let is_left_out =
                is_unneeded && is_of_holder && (!self.needs.has_exact || has_error(ticks));
            let is_new = self.records.packets() != packets;
            if is_new {
                let from = self.needs.first_ns().map(|ns| Time::from(ns) * Time::from(FRACTION));
                let is_before = from.is_some_and(|from| {
                    time < from && ticks.is_monotonic() && ticks.at(self.session, end).0 < from
                });
                let unneeded = self.needs.unneeded(self.producer.session);
                let are_skipped = !unneeded.is_empty()
                    && ticks.is_monotonic()
                    && (!self.needs.has_exact || ticks.is_never_exact());
                self.records.skip(match () {
                    () if is_before => Skip::AllButLeases,
                    () if are_skipped => Skip::Classes(unneeded),
                    () => Skip::Nothing,
                });
            }
            if is_of_other {
                self.records.skip(Skip::Nothing);
            }
            self.lost = self.losses.at_event(&self.records);
            if is_left_out && self.lost == 0 {
                self.left_out += 1;
                // Only the time of the event is kept, because a loss after the event gets this time.
                self.time = time;
                continue;
            }
            self.event = Some(At { time, late, bound });
            return Ok(());
        }
    }
}

impl Ticks<'_> {
    /// Returns the time of a tick, and the bound on the error of this time.
    fn at(&mut self, session: &Session, ticks: u64) -> (Time, Within) {
        match self {
            Ticks::Host(clock) => (session.time(clock, ticks), Within::Units(Some(0))),
            Ticks::Estimate(clock) => (session.time(clock, ticks), Within::Units(None)),
            Ticks::Guest(map) => {
                let (host, exact) = map.at(ticks);
                let bound =
                    exact.map_or(Within::OfReading(host), |exact| Within::Units(Some(exact)));
                (session.origin() + Time::from(host), bound)
            }
        }
    }

    /// Returns whether the error of a time that [`Ticks::at`] returned can be more than 0.
    fn has_error(&self, ticks: u64, bound: Within) -> bool {
        match (self, bound) {
            (_, Within::Units(units)) => units != Some(0),
            (Ticks::Guest(map), Within::OfReading(host)) if map.can_be_exact() => {
                map.reading(ticks).distance(host) != Some(0)
            }
            _ => true,
        }
    }

    /// Returns whether all times have an error.
    fn is_never_exact(&self) -> bool {
        match self {
            Ticks::Host(_) => false,
            Ticks::Estimate(_) => true,
            Ticks::Guest(map) => map.lines() == 0 && !map.can_be_exact(),
        }
    }

    /// Returns whether the times never decrease from one reading to the next reading.
    fn is_monotonic(&self) -> bool {
        match self {
            Ticks::Host(_) | Ticks::Estimate(_) => true,
            // If KVM gave the vCPU another offset, there are several lines, and a later reading can have an
            // earlier time.
            Ticks::Guest(map) => map.lines() <= 1,
        }
    }
}

impl PacketLosses {
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

/// Makes the entry for losses at an unknown place.
fn lost(source: Arc<Source>, events: u64, causes: Losses) -> Lost {
    Lost { ts_ns: None, source, cpu: None, thread: None, trace: 0, events, causes }
}

/// Returns the clock of a stream class's packets. A session that could be opened describes the clocks of all
/// its stream classes.
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
        Domain::Guest if maps.is_estimate() => clock.map(Ticks::Estimate),
        Domain::Guest => maps.get(id, stream.client).map(Ticks::Guest),
    };
    found.ok_or_else(|| Error::NotASession {
        path: session.dir().to_owned(),
        why: format!("no clock {id} for a stream"),
    })
}
