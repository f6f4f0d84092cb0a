// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Samples of a session's guest clocks, and the constraints that follow from the samples. The reader of the
//! kernel's trace fills in the kernel's times.
//!
//! Collecting samples takes one pass over the host's streams and over the streams of those guest clients that
//! have reference points.

use super::clock_maps::ClockMaps;
use super::guest_tscs::GuestCpu;
use super::lease::Lease;
use super::packet::{Domain, MAX_CLIENTS};
use super::session::Session;
use super::session_json::{Clock, GuestTsc};
use super::stream::Records;
use crate::clock::{Limits, Line, Point};
use crate::error::Result;
use crate::event::{EventKind, Reference};
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};

/// A reference point. The guest read its clock before the host time of the point, and the client's next
/// reading was after this host time. If the host's kernel recorded the exit, the sample also has the kernel's
/// times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Reading of the guest's clock in ticks.
    pub guest: i64,
    /// Time at which the host handled the point, in host units from the session's origin.
    pub host: i64,
    /// Next reading of the client's clock in ticks.
    next: Option<i64>,
    /// Thread of the host that served the point, if the thread is known.
    pub tid: Option<u32>,
    /// Value that the guest stored.
    pub seq: u32,
    /// Latest host time at which the kernel can have handled the store.
    pub reached: Option<i64>,
    /// Earliest host time at which the kernel can have entered the guest again.
    pub resumed: Option<i64>,
}

impl Sample {
    /// Returns whether the point may come from a client that reads the TSC of this line.
    pub fn is_possible(&self, line: &Line) -> bool {
        let is_before = line.at(self.guest) <= self.host;
        is_before && self.next.is_some_and(|next| self.host < line.at(next))
    }
}

/// Maximum number of reference points of a session that are kept. If a session has more points, an evenly
/// spread part of the points is kept, so that the memory is bounded.
pub(crate) const MAX_POINTS: usize = 1 << 17;

/// Maximum number of CPUs of a guest: the maximum of Linux.
const MAX_CPUS: u32 = 8192;

/// Samples by clock and client.
type Samples = BTreeMap<(u32, u32), Thinned<Sample>>;

/// A time in which one thread of the VMM, or several threads in turns, served all reference points of a
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Thread that served the points. `None` if several threads served the points in turns.
    pub tid: Option<u32>,
    /// Time of the first point in host units from the session's origin.
    pub first: i64,
    /// Time of the last point in host units from the session's origin.
    pub last: i64,
}

/// The seats of a client, in order of time. If there are too many seats, neighbouring seats become one seat
/// of several threads.
#[derive(Debug)]
struct Seats {
    kept: Vec<Seat>,
    /// Maximum number of changes from one serving thread to another within one seat.
    every: usize,
    /// Number of changes of the serving thread in the last seat: the change at the beginning of the seat, and
    /// the changes within the seat. In a seat of several threads, each point counts as a change.
    in_last: usize,
}

impl Seats {
    fn new() -> Seats {
        Seats { kept: Vec::new(), every: 1, in_last: 0 }
    }

    fn push(&mut self, tid: u32, time: i64) {
        let tid = Some(tid);
        match self.kept.last_mut() {
            Some(seat) if seat.tid == tid => seat.last = time,
            Some(seat) if self.in_last < self.every => {
                (seat.tid, seat.last) = (None, time);
                self.in_last += 1;
            }
            _ => {
                self.kept.push(Seat { tid, first: time, last: time });
                self.in_last = 1;
            }
        }
    }

    fn halve(&mut self) {
        if self.kept.len().is_multiple_of(2) {
            self.in_last += self.every;
        }
        let pairs = self.kept.chunks(2).filter_map(|pair| {
            let (first, last) = (pair.first()?, pair.last()?);
            let tid = first.tid.filter(|_| first.tid == last.tid);
            Some(Seat { tid, first: first.first, last: last.last })
        });
        self.kept = pairs.collect();
        self.every *= 2;
    }
}

/// The times of one client.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub samples: Vec<Sample>,
}

impl Times {
    /// Returns the constraints that follow from the reference points alone.
    pub(super) fn of_points(&self) -> Limits {
        let mut found = Limits::default();
        for Sample { guest, host, next, .. } in &self.samples {
            found.not_after.push(Point { x: *guest, y: *host });
            // The host handled the point at the time `host`, so the next reading is later than `host`.
            found.not_before.extend(next.map(|next| Point { x: next, y: host + 1 }));
        }
        found
    }

    /// Returns the constraints that follow from the kernel's times.
    pub(super) fn of_kernel(&self) -> Limits {
        let mut found = Limits::default();
        for Sample { guest, next, reached, resumed, .. } in &self.samples {
            found.not_after.extend(reached.map(|y| Point { x: *guest, y }));
            let resumed = next.zip(*resumed).map(|(x, y)| Point { x, y });
            found.not_before.extend(resumed);
        }
        found
    }
}

/// The times of a session's reference points. The key is the clock and the client.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub by_clock: BTreeMap<u32, BTreeMap<u32, Times>>,
    /// Number of unusable reference points: the session has no such client, or no clock of the session fits
    /// the point.
    pub unusable: u64,
    /// Threads that served each client's reference points, in order of time.
    pub served: BTreeMap<u32, Vec<Seat>>,
    /// TSCs that KVM gave to the VMs of this host, in host units from the session's origin.
    pub tscs: Vec<KvmTsc<i64>>,
    /// CPUs of guests, each with the host's threads that can have run the CPU.
    pub cpus: Vec<GuestCpu>,
}

/// A TSC that KVM computed for a VM, with the range of host time for which the TSC held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvmTsc<T> {
    /// Thread that made the VM.
    pub pid: u32,
    pub tsc: GuestTsc,
    pub from: T,
    pub until: T,
}

/// Collects the times of at most `most_points` reference points of a session.
///
/// # Errors
/// If the session is damaged.
pub(crate) fn find(session: &Session, most_points: usize) -> Result<Found> {
    let mut found = Found::default();
    let all = samples(session, most_points, &mut found)?;
    for ((clock, client), samples) in all {
        let is_thinned = samples.every > 1;
        let mut samples = in_order(samples.kept, &mut found.unusable);
        if !is_thinned {
            // No point was left out, so `of_client` takes the next reading of each point from the next point.
            samples.iter_mut().for_each(|sample| sample.next = None);
        }
        let times = of_client(session, (clock, client), samples)?;
        found.by_clock.entry(clock).or_default().insert(client, times);
    }
    Ok(found)
}

/// A reference point, with the values that the host's stream has for the point.
struct Served {
    point: Reference,
    epoch: u32,
    /// Id of the host's clock.
    clock: u32,
    /// Time of the point in host units from the session's origin.
    host: i64,
    /// Thread that served the point, if the thread is known.
    tid: Option<u32>,
}

/// The reference points of a stream of the host.
struct Points<'a> {
    session: &'a Session,
    records: Records<'a>,
    tid: Option<u32>,
}

impl Points<'_> {
    fn next(&mut self) -> Result<Option<Served>> {
        while let Some(record) = self.records.read()? {
            if record.kind() == EventKind::Lease {
                self.tid = Lease::of(&record).tid;
            }
            let Some(point) = record.class.reference(record.payload) else { continue };
            let (epoch, clock) = (record.packet.epoch, record.packet.stream_id);
            let Some(of) = self.session.json().clock(clock) else { continue };
            let host = self.session.host_time(of, record.timestamp);
            return Ok(Some(Served { point, epoch, clock, host, tid: self.tid }));
        }
        Ok(None)
    }
}

/// Calls `each` for the reference points of a session, in order of time.
fn points(session: &Session, mut each: impl FnMut(&Served)) -> Result<()> {
    let mut streams = Vec::new();
    let mut heap = BinaryHeap::new();
    for stream in session.streams().iter().filter(|s| s.domain == Domain::Host) {
        let records = stream.records(session.classes());
        let mut points = Points { session, records, tid: None };
        if let Some(next) = points.next()? {
            heap.push(Reverse((next.host, streams.len())));
            streams.push((points, next));
        }
    }
    while let Some(mut first) = heap.peek_mut() {
        let Reverse((_, index)) = *first;
        let Some((points, served)) = streams.get_mut(index) else { break };
        each(served);
        match points.next()? {
            Some(next) => {
                *first = Reverse((next.host, index));
                *served = next;
            }
            None => drop(PeekMut::pop(first)),
        }
    }
    Ok(())
}

/// Returns the host's thread of each CPU of the guests. The key is the guest's clock and the CPU's id. A
/// thread runs a CPU if all events of the guest's kernel on that CPU are at times at which this thread was in
/// guest mode. A thread also runs a CPU if this thread handled all the CPU's reference points and no
/// reference point of another CPU. If a process other than the VMM handled the reference points, the points
/// show no thread. Each guest has a clock of its own, and a guest gets a new clock after a reset or in
/// another VM.
///
/// # Errors
/// If the session is damaged.
pub fn vcpu_threads(session: &Session, maps: &ClockMaps) -> Result<BTreeMap<(u32, u32), u32>> {
    let mut threads: BTreeMap<(u32, u32), Option<u32>> = BTreeMap::new();
    if !session.json().served {
        let mut clocks = PointClocks::default();
        points(session, |served| {
            let cpu = served.point.cpu;
            let Some((clock, _)) = clocks.read(session, served) else { return };
            // The number is checked, because a guest can claim any CPU number.
            if cpu < MAX_CPUS {
                let known = threads.entry((clock, cpu)).or_insert(served.tid);
                *known = known.filter(|tid| Some(*tid) == served.tid);
            }
        })?;
    }
    for (cpu, possible) in possible_threads(maps) {
        let claimed = threads.entry(cpu).or_default();
        *claimed = match possible[..] {
            [only] => Some(only),
            _ => claimed.filter(|tid| possible.contains(tid)),
        };
    }
    Ok(each_of_one(threads))
}

/// Returns the host's threads that provably run a CPU of a guest, with the keys of [`vcpu_threads`]. The
/// proof: at all events of the guest's kernel on this CPU, this thread and no other thread was in guest mode.
/// No other CPU of the guest has the same proof for this thread.
pub(crate) fn proven_threads(maps: &ClockMaps) -> BTreeMap<(u32, u32), u32> {
    let only = |threads: Vec<u32>| if let [only] = threads[..] { Some(only) } else { None };
    let possible = possible_threads(maps).into_iter();
    each_of_one(possible.map(|(cpu, threads)| (cpu, only(threads))).collect())
}

/// Returns the host's threads that can have run each CPU of the guests. The key is the guest's clock and the
/// CPU's id. A thread can have run the CPU if the thread may have been in guest mode at all events of the
/// guest's kernel on this CPU.
fn possible_threads(maps: &ClockMaps) -> BTreeMap<(u32, u32), Vec<u32>> {
    let mut possible: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for of in maps.guest_cpus() {
        let all = possible.entry((of.clock, of.cpu)).or_insert_with(|| of.threads.clone());
        all.retain(|tid| of.threads.contains(tid));
    }
    possible
}

/// Leaves out each thread that is given for several CPUs of a guest.
fn each_of_one(threads: BTreeMap<(u32, u32), Option<u32>>) -> BTreeMap<(u32, u32), u32> {
    let mut cpus: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for ((clock, _), tid) in &threads {
        tid.iter().for_each(|tid| *cpus.entry((*clock, *tid)).or_default() += 1);
    }
    let only = |(of, tid): ((u32, u32), Option<u32>)| {
        Some((of, tid.filter(|tid| cpus[&(of.0, *tid)] == 1)?))
    };
    threads.into_iter().filter_map(only).collect()
}

/// Collects reference points. The key is the clock that the point's client reads. If there are more than
/// `most` points, every second point of the client with the most points is left out, so that a client with
/// many points does not crowd out the points of other clients. The threads that served the points are thinned
/// in the same way.
fn samples(session: &Session, most: usize, found: &mut Found) -> Result<Samples> {
    let mut samples = Samples::default();
    let mut kept = 0;
    let (mut clocks, mut served) = (PointClocks::default(), BTreeMap::default());
    let mut seats = 0;
    points(session, |of_point| {
        let Served { point, clock, host, tid, .. } = *of_point;
        if point.client >= MAX_CLIENTS {
            found.unusable += 1;
            return;
        }
        if let Some(tid) = tid {
            let of = served.entry(point.client).or_insert_with(Seats::new);
            seats -= of.kept.len();
            of.push(tid, host);
            seats += of.kept.len();
            if seats > most {
                seats -= halve_largest(&mut served, |of| of.kept.len(), Seats::halve);
            }
        }
        // A point of the 2016 interface has no guest time.
        if point.guest_time == 0 {
            return;
        }
        let client = point.client;
        match clocks.read(session, of_point) {
            // A point is ignored if the client reads the host's own clock, because such a point gives no
            // constraint.
            Some((read, _)) if read == clock => {}
            // A point is ignored if its clock has records that were in the ring before the host began to
            // serve the ring.
            Some((clock, _)) if session.json().clock(clock).is_some_and(|c| c.found) => {}
            Some((clock, guest)) => {
                let (reached, resumed) = (None, None);
                let sample =
                    Sample { guest, host, next: None, tid, seq: point.seq, reached, resumed };
                let of = samples.entry((clock, client)).or_default();
                // This reading is the next reading of the last kept point, even if the new point is left out.
                if let Some(last) = of.kept.last_mut()
                    && last.next.is_none()
                {
                    last.next = (last.guest < guest && last.host <= host).then_some(guest);
                }
                kept -= of.kept.len();
                of.push(sample);
                kept += of.kept.len();
                if kept > most {
                    kept -= halve_largest(&mut samples, |of| of.kept.len(), Thinned::halve);
                }
            }
            None => found.unusable += 1,
        }
    })?;
    found.served = served.into_iter().map(|(client, seats)| (client, seats.kept)).collect();
    Ok(samples)
}

/// Halves the longest of several sequences. Returns the number of elements that were removed.
fn halve_largest<K: Copy + Ord, T>(
    all: &mut BTreeMap<K, T>,
    len: impl Fn(&T) -> usize,
    halve: impl Fn(&mut T),
) -> usize {
    let Some(largest) = all.values_mut().max_by_key(|of| len(of)) else { return 0 };
    let before = len(largest);
    halve(largest);
    before - len(largest)
}

/// For each client and epoch, the clocks that points may have read.
#[derive(Default)]
struct PointClocks<'a>(BTreeMap<(u32, u32), Vec<&'a Clock>>);

impl<'a> PointClocks<'a> {
    /// Returns the clock that the client read for a point, and the point's ticks. Returns `None` if no clock
    /// of the session fits.
    fn read(&mut self, session: &'a Session, of: &Served) -> Option<(u32, i64)> {
        let Served { point, epoch, host, .. } = of;
        let client = point.client;
        let clocks =
            self.0.entry((client, *epoch)).or_insert_with(|| clocks_of(session, client, *epoch));
        let read = clocks.iter().filter_map(|clock| {
            let guest = point.guest_time.checked_sub(clock.base)?;
            let far = session.host_time(clock, guest).abs_diff(*host);
            Some((far, clock.id, i64::try_from(guest).ok()?))
        });
        // A client has several clocks if its holders read different clocks. The right clock is the clock with
        // the estimated time nearest to the host time, because the clocks are far apart.
        read.min().map(|(_, clock, guest)| (clock, guest))
    }
}

/// Returns the clocks in a client's packets in an epoch, including the host's clock if the client is a
/// program of the host. If the client has no packets, returns all guest clocks of this epoch.
fn clocks_of(session: &Session, client: u32, epoch: u32) -> Vec<&Clock> {
    let json = session.json();
    let is_guest = |clock: &Clock| clock.domain == Domain::Guest;
    let in_epoch = json.clocks.iter().filter(|c| !is_guest(c) || c.epoch == epoch);
    let stream = session.stream(Domain::Guest, client);
    let (own, mut others): (Vec<_>, Vec<_>) = in_epoch.partition(|clock| {
        stream.is_some_and(|s| s.segments.iter().any(|s| s.first.stream_id == clock.id))
            || is_guest(clock)
                && json.stream(Domain::Guest, client).is_some_and(|s| s.clock == clock.id)
    });
    others.retain(|clock| is_guest(clock));
    if own.is_empty() { others } else { own }
}

/// Sorts one client's points by host time. The guest time and the host time both increase from point to
/// point, because the client waits for each reply. Points that break this rule are dropped. The number of
/// dropped points is minimal, so one wrong guest time does not cost the points after it.
fn in_order(mut samples: Vec<Sample>, unusable: &mut u64) -> Vec<Sample> {
    samples.sort_by_key(|s| (s.host, s.guest));
    // The loop finds the longest increasing subsequence. Of all subsequences of the same length, `ends` keeps
    // the last point of the subsequence that ends at the earliest guest time.
    let mut ends: Vec<usize> = Vec::new();
    let mut before = vec![None; samples.len()];
    for (at, sample) in samples.iter().enumerate() {
        let is_before = |end: &usize| samples.get(*end).is_some_and(|s| s.guest < sample.guest);
        let len = ends.partition_point(is_before);
        if let (Some(slot), Some(end)) = (before.get_mut(at), len.checked_sub(1)) {
            *slot = ends.get(end).copied();
        }
        match ends.get_mut(len) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut next = ends.last().copied();
    let mut longest = Vec::with_capacity(ends.len());
    while let Some(at) = next {
        longest.extend(samples.get(at));
        next = before.get(at).copied().flatten();
    }
    longest.reverse();
    *unusable += (samples.len() - longest.len()) as u64;
    longest
}

/// Fills in the next reading of each point, from the client's own records. The first record after a point is
/// later than the reply to the point, because the client waits for the reply.
fn of_client(
    session: &Session,
    (clock, client): (u32, u32),
    mut samples: Vec<Sample>,
) -> Result<Times> {
    // The next reading is the reading of the next kept point, unless a record or a point that was left out
    // has an earlier reading.
    let mut later = None;
    for sample in samples.iter_mut().rev() {
        sample.next = sample.next.into_iter().chain(later).min();
        later = Some(sample.guest);
    }
    let mut at = 0;
    if let Some(stream) = session.stream(Domain::Guest, client) {
        let mut records = stream.records(session.classes());
        while at < samples.len() {
            let Some((time, of)) = records.read_time()? else { break };
            let Ok(guest) = i64::try_from(time) else { continue };
            if of != clock {
                continue;
            }
            while let Some(sample) = samples.get_mut(at).filter(|s| s.guest < guest) {
                sample.next = Some(sample.next.map_or(guest, |next| next.min(guest)));
                at += 1;
            }
        }
    }
    Ok(Times { samples })
}

/// Evenly spaced elements of a sequence of any length.
#[derive(Debug)]
struct Thinned<T> {
    kept: Vec<T>,
    /// Distance between two kept elements: a power of two.
    every: usize,
    /// Number of all elements so far.
    count: usize,
}

impl<T> Default for Thinned<T> {
    fn default() -> Thinned<T> {
        Thinned { kept: Vec::new(), every: 1, count: 0 }
    }
}

impl<T> Thinned<T> {
    fn push(&mut self, value: T) {
        if self.count.is_multiple_of(self.every) {
            self.kept.push(value);
        }
        self.count += 1;
    }

    /// Removes every second element that is kept, and doubles the distance for further elements.
    fn halve(&mut self) {
        let mut at = 0;
        self.kept.retain(|_| {
            at += 1;
            at % 2 == 1
        });
        self.every *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_sequence_is_even_and_bounded() {
        for most in [1, 2, 7, 100] {
            for length in [0, 1, 7, 8, 99, 100, 101, 1_000] {
                let mut thinned = Thinned::default();
                for n in 0..length {
                    thinned.push(n);
                    if thinned.kept.len() > most {
                        thinned.halve();
                    }
                }

                let every = thinned.every;
                let expected = (0..length).step_by(every);
                assert!(thinned.kept.iter().copied().eq(expected), "{most} of {length}");
                assert!(thinned.kept.len() <= most);
                // A smaller distance would keep too many elements.
                assert!(every == 1 || length > most * every / 2, "{most} of {length}");
            }
        }
    }

    #[test]
    fn threads_that_serve_in_turns_become_one_seat_of_several() {
        let mut seats = Seats::new();
        let turns = (0..64).map(|n| (1 + n % 2, i64::from(n)));
        let stays = (64..200).map(|n| (7, i64::from(n)));
        for (tid, time) in turns.chain(stays) {
            seats.push(tid, time);
        }
        let seat = |tid, first, last| Seat { tid, first, last };
        assert_eq!(seats.kept.len(), 65);
        assert_eq!(seats.kept.last(), Some(&seat(Some(7), 64, 199)));

        (0..5).for_each(|_| seats.halve());

        let expected = [seat(None, 0, 31), seat(None, 32, 63), seat(Some(7), 64, 199)];
        assert_eq!(seats.kept, expected);

        // The last seat has room for 31 more changes.
        (200..231).for_each(|n| seats.push(1 + (n % 2) as u32, n));
        assert_eq!(seats.kept.len(), 3);
        seats.push(3, 231);
        assert_eq!(seats.kept[2..], [seat(None, 64, 230), seat(Some(3), 231, 231)]);
    }

    #[test]
    fn one_wrong_guest_time_costs_one_point() {
        let sample = |n: i64| Sample {
            guest: 1_000 * n,
            host: 256_000 * n + 50,
            next: None,
            tid: None,
            seq: 0,
            reached: None,
            resumed: None,
        };
        for wrong in [Sample { guest: i64::MAX, ..sample(50) }, Sample { guest: 0, ..sample(50) }] {
            let mut samples: Vec<Sample> = (1..=200).map(sample).collect();
            samples[49] = wrong;
            let mut unusable = 0;

            let kept = in_order(samples, &mut unusable);

            assert_eq!((kept.len(), unusable), (199, 1));
            assert!(kept.windows(2).all(|pair| pair[0].guest < pair[1].guest));
        }
    }
}
