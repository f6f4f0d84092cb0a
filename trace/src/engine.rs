//! The drain loop's side of a session, behind its one lock.

use crate::budget::Payer;
use crate::drain::{drain, learn, meet, note, tell};
use crate::host_ring::HostConsumer;
use crate::lane::{Guests, Lane, MAX_CLIENTS, Stats};
use crate::packet::Domain;
use crate::pattern::Pattern;
use crate::recorder::Recorder;
use crate::resume::{Committed, Found};
use crate::session::random_uuid;
use crate::shared::{BOOKS, HIDDEN, Shared};
use crate::stream::WriteFailed;
use crate::wanted::TooManyRules;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::sink::Drained;
use std::fmt::Write;
use std::sync::atomic::Ordering;

pub(crate) struct Engine {
    pub shared: Shared,
    pub guests: Guests,
    hosts: Vec<(HostConsumer, Lane)>,
    /// Clients that relay others' points.
    relays: Vec<Lane>,
    /// If it is a flight recorder.
    pub recorder: Option<Recorder>,
    /// What another process left.
    found: Option<Found>,
    pub finished: bool,
}

impl Engine {
    pub fn new(mut shared: Shared, hosts: Vec<HostConsumer>, recorder: Option<Recorder>) -> Engine {
        let hosts = hosts
            .into_iter()
            .zip(0..)
            .map(|(consumer, number)| {
                let mut lane = Lane::new(Domain::Host, number, shared.stats.len());
                lane.payer = Payer::Host;
                shared.stats.push(Stats::new(Domain::Host, number));
                (consumer, lane)
            })
            .collect();
        let (guests, relays) = (Guests::default(), Vec::new());
        Engine { shared, guests, hosts, relays, recorder, found: None, finished: false }
    }

    /// Clients below `count` relay others' points: host rings in all but their
    /// place.
    pub fn relay(&mut self, count: u32) {
        // One lane is that of threads which found no ring.
        let first = self.hosts.len() as u32 + 1;
        for number in first..first + count.min(MAX_CLIENTS) {
            self.relays.push(Lane::new(Domain::Host, number, self.shared.stats.len()));
            self.shared.stats.push(Stats::new(Domain::Host, number));
        }
    }

    /// Goes on where another process left off.
    pub fn resume(&mut self, found: Found) {
        for number in found.guests() {
            // Made, if there can be such a client.
            let _ = self.guests.lane(number, &mut self.shared.stats);
        }
        self.for_each_lane(|shared, lane| {
            let stats = &mut shared.stats[lane.stats];
            found.resume(lane, stats, &mut shared.classes, &shared.clocks);
        });
        let others: Vec<Stats> = found.others(&self.shared.stats).collect();
        self.shared.stats.extend(others);
        self.found = Some(found);
    }

    /// Where a client's ring was committed by another process.
    pub fn committed(&mut self, client: u32) -> Option<Committed> {
        let found = self.found.as_ref()?;
        let lane = match self.relays.get_mut(client as usize) {
            Some(relay) => relay,
            None => self.guests.lane(client, &mut self.shared.stats)?,
        };
        Some(found.committed(lane, &self.shared.stats[lane.stats]))
    }

    /// One packet of a client.
    pub fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        if self.finished {
            consumer.set_write_failed(true);
            return Drained::default();
        }
        if let Some(relay) = self.relays.get_mut(client as usize) {
            let whose = relay.stats;
            let recorder = self.recorder.as_ref();
            let result = take(recorder, &mut self.shared, relay, &mut self.guests, consumer);
            return self.account(whose, result);
        }
        let Some(mut lane) = self.guests.take(client, &mut self.shared.stats) else {
            return Drained::default();
        };
        let recorder = self.recorder.as_ref();
        let result = take(recorder, &mut self.shared, &mut lane, &mut self.guests, consumer);
        let whose = lane.stats;
        self.guests.put(lane);
        self.account(whose, result)
    }

    /// Notes how far host rings go; begins the snapshot that was asked for.
    pub fn begin_pass(&mut self) {
        self.shared.partial = false;
        self.note();
        let Some(dir) = self.recorder.as_mut().and_then(Recorder::begin) else {
            return;
        };
        self.for_each_lane(|shared, lane| {
            lane.restart();
            shared.stats[lane.stats].restart();
        });
        let shared = &mut self.shared;
        let begun = dir.and_then(|dir| {
            dir.create(HIDDEN).map_err(WriteFailed::on("create", dir.path()))?;
            shared.begin_trace(dir, random_uuid())
        });
        if let Err(failed) = begun {
            self.failed(BOOKS, failed);
        }
    }

    fn note(&mut self) {
        for (consumer, _) in &mut self.hosts {
            consumer.note();
        }
    }

    /// A pass over the host rings alone, which may come in the middle of the
    /// drain loop's: then that goes on as this does.
    pub fn pass(&mut self) {
        if self.recorder.is_some() {
            // It would end a snapshot that the guests' rings are still missing in.
            return;
        }
        self.shared.partial = true;
        self.note();
        self.end_pass();
    }

    /// Drains host rings as far as was noted, and keeps the books.
    pub fn end_pass(&mut self) {
        if self.finished {
            return;
        }
        for i in 0..self.hosts.len() {
            // Bounded by what was noted.
            while let Drained { more: true, words: 1.. } = self.drain_host(i) {}
        }
        self.tell_gaps(HostConsumer::gaps);
        self.shared.simple_pass();
        if self.recorder.as_ref().is_some_and(|recorder| recorder.taking) {
            self.end_snapshot();
        }
        let now = ticks();
        if self.shared.are_accounts_due(now) {
            self.shared.tell_accounts(now);
        }
    }

    /// Switches guest events by pattern; gives the names seen that it is about.
    pub fn set_guest_events(&mut self, pattern: &Pattern, on: bool) -> Result<usize, TooManyRules> {
        let about = self.shared.classes.wanted.set(pattern, on)?;
        self.guests.iter_mut().for_each(Lane::forget);
        Ok(about)
    }

    /// Names of guest events that were seen, their states, and whose they are.
    pub fn guest_events(&self) -> Vec<(String, bool, &'static str)> {
        let names = self.shared.classes.wanted.names();
        names.map(|(name, on)| (name.to_owned(), on, " (guest)")).collect()
    }

    /// What there is, for people.
    pub fn describe_trace(&mut self, text: &mut String) {
        let Engine { shared, guests, hosts, recorder, .. } = self;
        // Writing to a String does not fail.
        let _ = shared.describe_files(text, recorder.as_ref());
        for (consumer, lane) in hosts {
            let stats = &shared.stats[lane.stats];
            if consumer.is_claimed() || stats.is_used() {
                let _ = consumer.describe(text, lane, stats, &shared.classes);
            }
        }
        for lane in guests.iter_mut() {
            let _ = writeln!(text, "guest client {}: {}", lane.number, shared.stats[lane.stats]);
        }
    }

    fn drain_host(&mut self, i: usize) -> Drained {
        let (host, lane) = &mut self.hosts[i];
        let Some(mut consumer) = host.consumer() else {
            return Drained::default();
        };
        let whose = lane.stats;
        let recorder = self.recorder.as_ref();
        let result = take(recorder, &mut self.shared, lane, &mut self.guests, &mut consumer);
        self.account(whose, result)
    }

    fn account(&mut self, whose: usize, result: Result<Drained, WriteFailed>) -> Drained {
        match result {
            Ok(drained) => {
                if drained.words > 0 {
                    self.shared.works(whose);
                }
                drained
            }
            Err(failed) => {
                self.failed(whose, failed);
                Drained::default()
            }
        }
    }

    /// A write failed. A snapshot ends there: the rings go on.
    fn failed(&mut self, whose: usize, failed: WriteFailed) {
        self.shared.failed(whose, &failed);
        if let Some(recorder) = &mut self.recorder {
            recorder.failed.get_or_insert(failed);
        }
    }

    /// The snapshot is complete, unless some ring has more to take.
    fn end_snapshot(&mut self) {
        let mut unfinished = false;
        self.for_each_lane(|_, lane| unfinished |= lane.unfinished);
        if unfinished && self.recorder.as_ref().is_some_and(|recorder| recorder.failed.is_none()) {
            return;
        }
        if self.shared.open {
            let told = self.tell_all();
            self.close_all();
            if let Err(failed) = told.and_then(|()| self.shared.describe(true).map(drop)) {
                self.failed(BOOKS, failed);
            }
        }
        (self.shared.open, self.shared.files) = (false, None);
        if let Some(recorder) = &mut self.recorder {
            recorder.end();
        }
    }

    fn for_each_lane(&mut self, mut f: impl FnMut(&mut Shared, &mut Lane)) {
        let Engine { shared, guests, hosts, relays, .. } = self;
        let hosts = hosts.iter_mut().map(|(_, lane)| lane).chain(relays);
        hosts.chain(guests.iter_mut()).for_each(|lane| f(shared, lane));
    }

    /// Tells the last counters, as far as it goes.
    fn tell_all(&mut self) -> Result<(), WriteFailed> {
        let now = ticks();
        let mut told = Ok(());
        self.for_each_lane(|shared, lane| {
            if told.is_ok() {
                told = tell(shared, lane, now);
            }
        });
        told
    }

    fn close_all(&mut self) {
        self.for_each_lane(|shared, lane| {
            if let (Some(stream), Some(files)) = (lane.stream.take(), &mut shared.files) {
                // A file that cannot be cut is whole with its filler.
                let _ = stream.close(files);
            }
        });
    }

    /// The session's end: what host rings still hold, the last counters, the
    /// last maps. May be called again when it failed.
    pub fn finish(&mut self) -> Result<(), WriteFailed> {
        if self.recorder.is_some() {
            // What is in the rings goes with them.
            self.finished = true;
            return Ok(());
        }
        self.begin_pass();
        // Nothing more is read that a point could wait for.
        self.shared.behind = 0;
        self.for_each_lane(|_, lane| lane.behind = 0);
        if let Err(failed) = self.finish_streams() {
            self.shared.simple_pass();
            return Err(failed);
        }
        self.finished = true;
        self.tell_gaps(HostConsumer::last_gaps);
        self.shared.simple_close();
        self.close_all();
        self.shared.clocks.refresh();
        if !self.shared.open {
            return Ok(());
        }
        self.shared.describe(true).map(drop)
    }

    /// The end of a session that cannot be finished: what host rings still hold
    /// counts as lost, and that is told as far as it can be.
    pub fn give_up(&mut self) {
        let Engine { shared, hosts, .. } = self;
        for (host, lane) in hosts {
            if let Some(mut consumer) = host.consumer() {
                shared.fit_stage(&consumer);
                consumer.forsake(&mut shared.stage);
                note(shared, lane, &mut consumer);
            }
        }
        self.finished = true;
        self.tell_gaps(HostConsumer::last_gaps);
        self.shared.simple_close();
        // Each lane by itself: the files of some may have room.
        let now = ticks();
        self.for_each_lane(|shared, lane| {
            let _ = tell(shared, lane, now);
        });
        self.close_all();
        if self.shared.open {
            let _ = self.shared.describe(true);
        }
    }

    fn finish_streams(&mut self) -> Result<(), WriteFailed> {
        for i in 0..self.hosts.len() {
            while self.finish_host(i)?.more {}
        }
        self.tell_all()
    }

    /// Tells the simple backend what declared events the host rings lost.
    fn tell_gaps(&mut self, gaps: impl Fn(&mut HostConsumer, u64, &mut dyn FnMut(u64, u64))) {
        let Engine { shared, hosts, .. } = self;
        let mut lost = |lane: u32, time: u64, lost: u64| {
            if let Some(simple) = &mut shared.simple {
                simple.lost(lane, time, lost);
            }
        };
        for (consumer, lane) in hosts.iter_mut() {
            gaps(consumer, lane.ring_end, &mut |time, more| lost(lane.number, time, more));
        }
        // Threads that found no ring are one more lane.
        let missed = shared.missed.load(Ordering::Relaxed);
        lost(hosts.len() as u32, ticks(), missed - shared.missed_told);
        shared.missed_told = missed;
    }

    fn finish_host(&mut self, i: usize) -> Result<Drained, WriteFailed> {
        let (host, lane) = &mut self.hosts[i];
        match host.consumer() {
            Some(mut consumer) => drain(&mut self.shared, lane, &mut self.guests, &mut consumer),
            None => Ok(Drained::default()),
        }
    }
}

/// What a pass does with one ring: takes a packet out of it; or, of a flight
/// recorder's, learns its schemas, and takes what it holds if somebody asked.
fn take(
    recorder: Option<&Recorder>,
    shared: &mut Shared,
    lane: &mut Lane,
    guests: &mut Guests,
    consumer: &mut Consumer<'_>,
) -> Result<Drained, WriteFailed> {
    let Some(recorder) = recorder else {
        return drain(shared, lane, guests, consumer);
    };
    if !shared.open || recorder.failed.is_some() {
        learn(shared, lane, consumer)?;
        meet(shared, lane, consumer);
        return Ok(Drained::default());
    }
    match lane.until {
        Some(until) => consumer.up_to(until),
        None => {
            consumer.rewind();
            // A producer cannot keep the snapshot busy.
            lane.until = Some(consumer.head());
            consumer.up_to(consumer.head());
        }
    }
    let drained = drain(shared, lane, guests, consumer)?;
    lane.unfinished = drained.more || lane.is_deferred;
    Ok(drained)
}
