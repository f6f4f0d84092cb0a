//! Clocks: linear maps from raw ticks to Unix time, for CTF readers.
//!
//! The session measures the rate of the host's clock against CLOCK_MONOTONIC_RAW, because no adjustment of
//! the system's clock changes this rate. One reading of CLOCK_REALTIME anchors the clock. So Unix time in a
//! session is the Unix time of the session's start plus the measured time since the start. Later adjustments
//! of the system's clock do not change Unix time in the session. The map of a guest's clock is an estimate
//! that improves. The guest wrote each timestamp before the host saw the timestamp, so the smallest
//! difference between the two times bounds the offset. A client can claim any time, true or false, so each
//! client has its own estimate, and the map of the clock is the estimate of the client in the middle. As soon
//! as some clients have reference points, only these clients count. (`hypertrace-timeline` computes finer
//! maps with error bounds from the reference points. The maps of this module are for all other readers.)
//! Readers convert ticks to doubles, so ticks are counted from a base near the session's start.

use super::metadata::ClockEntry;
use hypertrace_abi::clock::{Counter, CounterKind, Reason, frequency as told, ticks};
use hypertrace_abi::record::ClockKind;
use hypertrace_format::clock::{Anchor, FREQUENCIES, NS, frequency, read};
use hypertrace_format::limits::{MAX_CLOCKS, MAX_SESSION_CLOCKS};
use hypertrace_format::packet::Domain;
use hypertrace_format::session_json::{ClockJson, GuestTscJson, SessionJson};
use rustix::time::ClockId;
use std::ops::Range;

/// The clock of all host rings.
pub(crate) const HOST_CLOCK: u32 = 0;

/// The host's clock.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    /// The instant at which the session began.
    pub first: Anchor,
    /// CLOCK_BOOTTIME at the instant `first` in nanoseconds, or `None` if another process began the session.
    pub boot_ns: Option<i64>,
    /// Raw ticks at tick 0 of the streams.
    pub base: u64,
    /// Frequency in ticks per second.
    pub frequency: u64,
    /// True if another process measured the clock. This process then does not measure the clock again.
    fixed: bool,
    /// True if the VMM gave the frequency. This frequency counts until the session has measured the clock.
    is_known: bool,
}

impl HostClock {
    /// Anchors the clock at this instant. Measures the frequency, unless `known` is a possible frequency.
    pub fn start(known: Option<u64>) -> HostClock {
        let known = known.filter(|frequency| FREQUENCIES.contains(frequency));
        let frequency = known.unwrap_or_else(frequency);
        let first = Anchor::now();
        let boot_ns = i64::try_from(boot_ns_at(&first)).ok();
        // The base is one second before the start, because guests may have stamped points before the start.
        let base = first.raw.saturating_sub(frequency);
        HostClock { first, boot_ns, base, frequency, fixed: false, is_known: known.is_some() }
    }

    /// Returns the host's clock as `session.json` describes it.
    fn restore(json: &ClockJson) -> HostClock {
        let frequency = json.frequency.clamp(*FREQUENCIES.start(), *FREQUENCIES.end());
        let first = Anchor {
            raw: json.base.saturating_add(frequency),
            unix_ns: i128::from(json.offset_ns) + NS,
            monotonic_ns: read(ClockId::MonotonicRaw),
        };
        HostClock { first, boot_ns: None, base: json.base, frequency, fixed: true, is_known: true }
    }

    /// Measures the frequency again, from the session's first anchor until now. In the session's first 20 ms,
    /// measures from the process's first anchor instead.
    pub fn refresh(&mut self) {
        let now = Anchor::now();
        let is_early = now.monotonic_ns - self.first.monotonic_ns < 20_000_000;
        if self.fixed || is_early && self.is_known {
            return;
        }
        self.frequency = match self.first.frequency_until(&now) {
            // The frequency that the CPU tells is exact, unless the CPU tells the frequency of another
            // counter.
            Some(measured) if !is_early => {
                told().filter(|told| measured.abs_diff(*told) <= told / 10_000).unwrap_or(measured)
            }
            _ => frequency(),
        };
    }

    /// Returns the Unix time of a raw value in nanoseconds.
    pub fn unix_ns(&self, raw: u64) -> i128 {
        self.unix_ns_at(raw, self.frequency)
    }

    /// Returns the Unix time of a raw value in nanoseconds, at this frequency.
    fn unix_ns_at(&self, raw: u64, frequency: u64) -> i128 {
        self.first.unix_ns + ticks_to_ns(i128::from(raw) - i128::from(self.first.raw), frequency)
    }

    /// Returns the Unix time of tick 0 in nanoseconds.
    pub fn offset_ns(&self) -> i128 {
        self.unix_ns(self.base)
    }
}

/// Returns CLOCK_BOOTTIME at an earlier instant. CLOCK_BOOTTIME and CLOCK_REALTIME run at the same rate, so
/// the function reads both clocks now, one after the other, and subtracts the time since `first`. Several
/// tries are made, and the shortest try counts, because another thread may get the CPU during a try.
fn boot_ns_at(first: &Anchor) -> i128 {
    let sample = || {
        let before = read(ClockId::Realtime);
        let boot_ns = read(ClockId::Boottime);
        let after = read(ClockId::Realtime);
        ((after - before).abs(), boot_ns - (before + (after - before) / 2 - first.unix_ns))
    };
    let shorter = |a: (i128, i128), b: (i128, i128)| if b.0 < a.0 { b } else { a };
    (0..TRIES).map(|_| sample()).fold(sample(), shorter).1
}

/// Number of further tries to read two clocks at the same instant.
const TRIES: u32 = 8;

/// Maximum span of the times of found records in seconds: 30 days. Records are found records if they were
/// already in the rings when the host began to serve the rings.
const FOUND_SECONDS: u64 = 30 * 24 * 3600;

/// Maximum number of clients that bound one clock. Only the times of the first clients count.
const MAX_BOUNDS: usize = 64;

fn ticks_to_ns(ticks: i128, frequency: u64) -> i128 {
    // 2^64 ticks x 10^9 fit 127 bits.
    (ticks * NS).div_euclid(i128::from(frequency))
}

/// Facts about a guest's clock that the VMM and the guest give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSpec {
    /// A counter or CLOCK_MONOTONIC_RAW.
    pub kind: ClockKind,
    /// Kind of the counter.
    pub counter: CounterKind,
    /// Frequency in ticks per second, or `None` if the clock has the rate of the host's counter.
    frequency: Option<u64>,
    /// True if nobody has confirmed the rate: the guest claims this rate, or the host assumes it.
    pub is_assumed: bool,
    /// Reason why the guest's first client stamps with this clock.
    pub reason: Reason,
}

impl ClockSpec {
    /// Returns the frequency in ticks per second.
    fn frequency(&self, host: &HostClock) -> u64 {
        match self.kind {
            ClockKind::MonotonicRaw => NS as u64,
            ClockKind::Tsc => self.frequency.unwrap_or(host.frequency),
        }
    }

    /// Returns the name of the clock's kind.
    fn name(&self) -> &'static str {
        match self.kind {
            ClockKind::Tsc => counter_name(self.counter),
            ClockKind::MonotonicRaw => MONOTONIC_RAW,
        }
    }
}

const MONOTONIC_RAW: &str = "monotonic_raw";

fn counter_name(kind: CounterKind) -> &'static str {
    match kind {
        CounterKind::Tsc => "tsc",
        CounterKind::Cntvct => "cntvct",
        CounterKind::Other => "counter",
    }
}

/// Returns true if a guest's counter has the kind of the host's counter and, if the guest tells a rate, also
/// the rate of the host's counter.
fn is_like_hosts(counter: Counter, host: &HostClock) -> bool {
    let far = counter.frequency.abs_diff(host.frequency);
    counter.kind != CounterKind::Other
        && counter.kind == Counter::own().kind
        && (counter.frequency == 0 || far <= host.frequency / 1000)
}

/// A guest clock, shared by all clients whose timestamps fit it.
#[derive(Clone, Debug)]
pub struct GuestClock {
    /// Kind and frequency that the VMM and the guest give for the clock.
    pub said: ClockSpec,
    /// Clock epoch.
    pub epoch: u32,
    /// The source that added the clock, or `None` if a killed process added it.
    source: Option<usize>,
    /// Raw ticks at tick 0 of the streams.
    pub base: u64,
    /// The first timestamp that the host saw.
    first: u64,
    /// Ticks of the host's raw counter at the beginning of the epoch.
    began: u64,
    /// For each source, the pair of a guest's time and a host's time with the smallest difference.
    bounds: Vec<(usize, (u64, u64))>,
    /// True if the pairs in `bounds` are from reference points.
    has_points: bool,
    /// The pair of times that makes the map. The sources are sorted by their offsets, and this pair belongs
    /// to the source in the middle.
    best: (u64, u64),
    /// Distance by which the map has moved since the map was published, in nanoseconds.
    moved: i128,
    /// True if the clock's records were already in the rings when the host began to serve the rings.
    /// Reference points say nothing about the times of such records.
    is_found: bool,
    /// True if a killed process made the map. Such a map does not change any more.
    is_fixed: bool,
}

impl GuestClock {
    /// Returns a clock with `first` as its first timestamp. The host saw this timestamp at `seen`.
    pub fn new(
        said: ClockSpec,
        epoch: u32,
        host: &HostClock,
        (began, is_found): (u64, bool),
        (first, seen): (u64, u64),
    ) -> GuestClock {
        let mut clock = GuestClock {
            said,
            epoch,
            source: None,
            base: 0,
            first,
            began,
            bounds: Vec::new(),
            has_points: false,
            best: (first, seen),
            moved: 0,
            is_found,
            is_fixed: false,
        };
        // No timestamp of the epoch is older than the epoch's beginning.
        let room = u128::from(clock.allowed(host, seen)) + u128::from(clock.frequency(host));
        clock.base = first.saturating_sub(u64::try_from(room).unwrap_or(u64::MAX));
        clock
    }

    /// Returns the frequency in ticks per second.
    pub fn frequency(&self, host: &HostClock) -> u64 {
        self.said.frequency(host)
    }

    /// Returns the maximum number of the clock's ticks since the epoch began: the host's time x 1.001 + 1 ms.
    /// The times of found records may span `FOUND_SECONDS`. If the rate is assumed, the real rate may be as
    /// high as the host's rate.
    pub fn allowed(&self, host: &HostClock, now: u64) -> u64 {
        let least = if self.said.is_assumed { host.frequency } else { 0 };
        let frequency = self.frequency(host).max(least);
        if self.is_found {
            return frequency.saturating_mul(FOUND_SECONDS);
        }
        let frequency = u128::from(frequency);
        let elapsed = u128::from(now.saturating_sub(self.began));
        let ticks = elapsed * frequency / u128::from(host.frequency);
        u64::try_from(ticks + ticks / 1000 + frequency / 1000).unwrap_or(u64::MAX)
    }

    /// Returns the latest timestamp that the clock can have at the host's time `now`, if `first` is an
    /// earlier timestamp of the clock.
    pub fn limit(&self, host: &HostClock, first: u64, now: u64) -> u64 {
        first.saturating_add(self.allowed(host, now))
    }

    /// Returns true if a client's first timestamp is possible on this clock.
    pub fn fits(&self, host: &HostClock, timestamp: u64, now: u64) -> bool {
        (self.base..=self.limit(host, self.first, now)).contains(&timestamp)
    }

    /// Bounds the clock with a pair of times of a source: when the host's counter was `host_raw`, the guest's
    /// time was `guest` or later. A reference point is exact within the duration of an exit. So after the
    /// first reference point, plain events count no more.
    pub fn bound(
        &mut self,
        host: &HostClock,
        source: usize,
        (guest, host_raw): (u64, u64),
        is_point: bool,
    ) {
        if self.has_points && !is_point || self.is_found && is_point || self.is_fixed {
            return;
        }
        if self.has_points != is_point {
            self.has_points = true;
            self.bounds.clear();
        }
        let mut bounds = std::mem::take(&mut self.bounds);
        let offset = |pair: (u64, u64)| self.unix_at(host, pair, self.base);
        let new = (guest, host_raw);
        let own = bounds.iter().position(|(of, _)| *of == source);
        let is_better = match own.and_then(|own| bounds.get(own)) {
            Some((_, best)) => offset(new) < offset(*best),
            None => bounds.len() < MAX_BOUNDS,
        };
        if is_better {
            match own {
                Some(own) => bounds[own].1 = new,
                None => bounds.push((source, new)),
            }
            // If the number of sources is even, then there are two sources in the middle, and nobody knows
            // which of the two is right. So the newest source does not count.
            let odd = (bounds.len() - 1) | 1;
            let mut offsets =
                Vec::from_iter(bounds.iter().take(odd).map(|(_, p)| (offset(*p), *p)));
            let middle = offsets.len() / 2;
            let (at, best) = *offsets.select_nth_unstable(middle).1;
            self.moved += (at - offset(self.best)).abs();
            self.best = best;
        }
        self.bounds = bounds;
    }

    /// Returns true if the map has moved noticeably since the last call that returned true.
    pub fn has_moved(&mut self) -> bool {
        let noticeable = self.moved >= 1_000;
        if noticeable {
            self.moved = 0;
        }
        noticeable
    }

    fn unix_at(&self, host: &HostClock, pair: (u64, u64), guest: u64) -> i128 {
        let ticks = i128::from(guest) - i128::from(pair.0);
        host.unix_ns(pair.1) + ticks_to_ns(ticks, self.frequency(host))
    }

    /// Returns the Unix time of tick 0 in nanoseconds.
    pub fn offset_ns(&self, host: &HostClock) -> i128 {
        self.unix_at(host, self.best, self.base)
    }
}

/// All clocks of a session. Clock 0 is the host's.
#[derive(Debug)]
pub(crate) struct Clocks {
    pub host: HostClock,
    guests: Vec<GuestClock>,
    /// Epoch of the records that the drain takes now.
    epoch: u32,
    /// Ticks of the host's raw counter at the beginning of the epoch.
    began: u64,
    /// True if the epoch's records were already in the rings when the host began to serve the rings.
    is_found: bool,
    own_frequency: Option<u64>,
    /// Identity of the boot at which the counter of the host's clock started.
    pub boot_id: Option<String>,
    /// True if guests stamp with the host's counter.
    pub shared: bool,
    /// True if the session is a flight recorder.
    pub is_recorder: bool,
    /// TSCs of guests. The VMM gave these values.
    pub guest_tscs: Vec<GuestTscJson>,
    /// True if the maps differ from the maps in the metadata on disk.
    pub changed: bool,
    /// Frequency of the host's clock in the metadata on disk, in ticks per second.
    described_frequency: u64,
    /// Number of clocks that are described already, either in `classes.jsonl` or in `session.json` at the
    /// session's beginning.
    pub listed: u32,
    /// Number of clocks in the metadata on disk.
    pub described: u32,
}

impl Clocks {
    /// Returns the ticks per second of the guests' TSC.
    pub fn guest_frequency(&self) -> u64 {
        self.own_frequency.unwrap_or(self.host.frequency)
    }

    pub fn new(
        host: HostClock,
        epoch: u32,
        began: Option<u64>,
        own_frequency: Option<u64>,
    ) -> Clocks {
        // If the VMM gives an impossible frequency, this function ignores the frequency.
        let own_frequency = own_frequency.filter(|f| FREQUENCIES.contains(f));
        let began = began.unwrap_or(host.first.raw);
        let described_frequency = host.frequency;
        Clocks {
            host,
            guests: Vec::new(),
            epoch,
            began,
            is_found: false,
            own_frequency,
            boot_id: None,
            shared: false,
            is_recorder: false,
            guest_tscs: Vec::new(),
            changed: false,
            described_frequency,
            listed: 0,
            described: 0,
        }
    }

    /// Returns the clocks of a session that a killed process left, for records of `epoch` or of later epochs.
    /// The maps of the clocks do not change, because the time of the recovery says nothing about the times of
    /// the records.
    pub fn restore(json: &SessionJson, epoch: u32) -> Option<Clocks> {
        let (host, guests) = json.clocks.split_first()?;
        let host = HostClock::restore(host);
        let mut clocks = Clocks::new(host, epoch, Some(host.base), None);
        clocks.shared = json.programs;
        // The ticks in the rings belong to the boot in the JSON file, and the machine may have booted again
        // since.
        clocks.boot_id.clone_from(&json.boot_id);
        clocks.guest_tscs.clone_from(&json.guest_tscs);
        for guest in guests.iter().take(MAX_SESSION_CLOCKS - 1) {
            let (kind, counter) = match &*guest.kind {
                MONOTONIC_RAW => (ClockKind::MonotonicRaw, CounterKind::Other),
                "tsc" => (ClockKind::Tsc, CounterKind::Tsc),
                "cntvct" => (ClockKind::Tsc, CounterKind::Cntvct),
                _ => (ClockKind::Tsc, CounterKind::Other),
            };
            let frequency = FREQUENCIES.contains(&guest.frequency).then_some(guest.frequency);
            let ns = i128::from(guest.offset_ns) - host.unix_ns(host.base);
            let ticks = ns * i128::from(host.frequency) / NS;
            let seen = (i128::from(host.base) + ticks).clamp(0, u64::MAX.into()) as u64;
            clocks.epoch = clocks.epoch.max(guest.epoch);
            let reason = guest.reason.as_deref().map(Reason::named).unwrap_or_default();
            clocks.guests.push(GuestClock {
                said: ClockSpec { kind, counter, frequency, is_assumed: guest.assumed, reason },
                epoch: guest.epoch,
                source: None,
                base: guest.base,
                first: guest.base,
                began: host.base,
                bounds: Vec::new(),
                has_points: false,
                best: (guest.base, seen),
                moved: 0,
                is_found: guest.found,
                is_fixed: true,
            });
        }
        Some(clocks)
    }

    /// Uses the host's clock for the guests' timestamps from the epoch's beginning on, because the guests
    /// read the host's counter.
    pub fn share(&mut self) {
        self.shared = true;
        self.host.base = self.host.base.min(self.began.saturating_sub(self.host.frequency));
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins another epoch. If the records of the new epoch are already in the rings, `found` is the
    /// earliest raw time at which the machine may have started to run.
    pub fn begin_epoch(&mut self, epoch: u32, found: Option<u64>) {
        let follows_found = std::mem::replace(&mut self.is_found, found.is_some());
        // Each packet has its epoch, and the epoch never decreases in a file.
        self.epoch = epoch.max(self.epoch);
        // A flight recorder's rings hold older records. The next snapshot takes these records with the
        // records of this epoch, so records may be as old as the session. The epoch that follows an epoch of
        // found records keeps `began`. A guest may emit records while the host still takes the found records,
        // and these new records belong to the new epoch.
        if !self.is_recorder && (found.is_some() || !follows_found) {
            self.began = found.unwrap_or_else(ticks);
        }
    }

    /// Returns the number of clocks.
    pub fn len(&self) -> u32 {
        1 + self.guests.len() as u32
    }

    pub fn guest(&self, clock: u32) -> Option<&GuestClock> {
        self.guests.get((clock as usize).checked_sub(1)?)
    }

    pub fn guest_mut(&mut self, clock: u32) -> Option<&mut GuestClock> {
        self.guests.get_mut((clock as usize).checked_sub(1)?)
    }

    /// Returns the kind of a clock.
    pub fn kind(&self, clock: u32) -> ClockKind {
        self.guest(clock).map_or(ClockKind::Tsc, |guest| guest.said.kind)
    }

    /// Returns the raw ticks at tick 0 of the clock's streams.
    pub fn base(&self, clock: u32) -> u64 {
        self.guest(clock).map_or(self.host.base, |guest| guest.base)
    }

    /// Returns the latest timestamp that this clock can have now in a lease. The first timestamp of the lease
    /// is `first`.
    pub fn limit(&self, clock: u32, first: u64, now: u64) -> u64 {
        match self.guest(clock) {
            Some(guest) => guest.limit(&self.host, first, now),
            // The counters of two CPUs may differ by some ticks.
            None => now.saturating_add(self.host.frequency / 1000),
        }
    }

    /// Returns the latest timestamp with which a lease can begin now.
    pub fn latest(&self, clock: u32, now: u64) -> u64 {
        let first = self.guest(clock).map_or(0, |guest| guest.first);
        self.limit(clock, first, now)
    }

    /// Returns the facts that the VMM and the guest give about the guests' clock of this kind.
    fn said(&self, kind: ClockKind, counter: Counter) -> ClockSpec {
        let told = Some(counter.frequency).filter(|frequency| *frequency > 0);
        let (frequency, is_assumed) = match self.own_frequency {
            _ if kind == ClockKind::MonotonicRaw => (None, false),
            Some(own) => (Some(own), false),
            None if is_like_hosts(counter, &self.host) => (None, false),
            None => (told, true),
        };
        let reason = counter.reason;
        let counter = match kind {
            ClockKind::Tsc => counter.kind,
            ClockKind::MonotonicRaw => CounterKind::Other,
        };
        ClockSpec { kind, counter, frequency, is_assumed, reason }
    }

    /// Returns a clock for a guest whose time is `timestamp`: the guest's current clock, another clock that
    /// fits, or a new clock. If the session can have no more clocks, returns a clock that does not fit, and
    /// the guest's timestamps will be clamped. `source` is the index of the `Stats` of the source that needs
    /// the clock. In each epoch, a source may add one clock even if other sources have added the maximum
    /// number of clocks.
    pub fn for_guest(
        &mut self,
        source: usize,
        current: Option<u32>,
        (kind, counter): (ClockKind, Counter),
        timestamp: u64,
        now: u64,
    ) -> u32 {
        // A program in an emulator reads the emulated machine's counter, which may differ from the host's
        // counter.
        let is_told = (counter.kind, counter.frequency) != (CounterKind::Other, 0);
        let is_other = || is_told && !is_like_hosts(counter, &self.host);
        if self.shared && kind == ClockKind::Tsc && !is_other() {
            return HOST_CLOCK;
        }
        let said = self.said(kind, counter);
        let is_said = |c: &ClockSpec| {
            let frequency = |said: &ClockSpec| said.frequency(&self.host);
            ClockSpec { frequency: None, ..*c }
                == ClockSpec { frequency: None, reason: c.reason, ..said }
                && frequency(c) == frequency(&said)
        };
        let like = |c: &GuestClock| is_said(&c.said) && c.epoch == self.epoch;
        let fits = |c: &GuestClock| like(c) && c.fits(&self.host, timestamp, now);
        let is = |what: &dyn Fn(&GuestClock) -> bool| {
            current.filter(|current| self.guest(*current).is_some_and(what))
        };
        if let Some(current) = is(&fits) {
            return current;
        }
        let number = |index: usize| index as u32 + 1;
        if let Some(index) = self.guests.iter().position(fits) {
            return number(index);
        }
        let of_epoch = || self.guests.iter().filter(|clock| clock.epoch == self.epoch);
        let is_first = of_epoch().all(|clock| clock.source != Some(source));
        if (is_first || of_epoch().count() + 1 < MAX_CLOCKS)
            && self.guests.len() + 1 < MAX_SESSION_CLOCKS
        {
            let began = (self.began, self.is_found);
            let clock = GuestClock::new(said, self.epoch, &self.host, began, (timestamp, now));
            self.guests.push(GuestClock { source: Some(source), ..clock });
            return number(self.guests.len() - 1);
        }
        let last = number(self.guests.len() - 1);
        is(&like).or(self.guests.iter().position(like).map(number)).unwrap_or(last)
    }

    /// Measures the host's clock again. Sets `changed` if a map must be written again.
    pub fn refresh(&mut self) {
        let now = ticks();
        self.host.refresh();
        // The map is compared with the map on the disk, and not with the last map, so that many small steps
        // count as one large step.
        let described = self.host.unix_ns_at(now, self.described_frequency);
        self.changed |= (self.host.unix_ns(now) - described).abs() >= 1_000;
        for guest in &mut self.guests {
            self.changed |= guest.has_moved();
        }
    }

    /// Notes that the metadata on disk has the present maps of all clocks.
    pub fn metadata_written(&mut self) {
        self.changed = false;
        self.described = self.len();
        self.described_frequency = self.host.frequency;
    }

    fn frequency(&self, clock: u32) -> u64 {
        self.guest(clock).map_or(self.host.frequency, |guest| guest.frequency(&self.host))
    }

    /// Returns the Unix time of tick 0 of the clock's streams in nanoseconds.
    fn offset_ns(&self, clock: u32) -> i128 {
        self.guest(clock).map_or(self.host.offset_ns(), |guest| guest.offset_ns(&self.host))
    }

    /// Returns true if the files on disk have all clocks.
    #[inline]
    pub fn is_described(&self) -> bool {
        let clocks = self.len();
        (self.listed, self.described) == (clocks, clocks)
    }

    /// Returns the entries of these clocks in the metadata.
    pub fn entries(&self, uuid: &[u8; 16], clocks: Range<u32>) -> Vec<ClockEntry> {
        let entry = |id: u32| {
            let mut uuid = *uuid;
            // Each clock has its own UUID, which is made from the session's UUID.
            for (byte, x) in uuid[12..].iter_mut().zip((id + 1).to_be_bytes()) {
                *byte ^= x;
            }
            let name = match id {
                HOST_CLOCK => "host".into(),
                id => format!("guest{id}"),
            };
            let (frequency, offset_ns) = (self.frequency(id), self.offset_ns(id));
            ClockEntry { id, name, uuid, frequency, offset_ns }
        };
        clocks.map(entry).collect()
    }

    /// Returns the entries of these clocks in the JSON descriptions.
    pub fn to_json(&self, clocks: Range<u32>) -> Vec<ClockJson> {
        let clock = |id: u32| {
            let guest = self.guest(id);
            let offset_ns = self.offset_ns(id).clamp(i64::MIN.into(), i64::MAX.into());
            ClockJson {
                id,
                domain: guest.map_or(Domain::Host, |_| Domain::Guest),
                kind: guest.map_or(counter_name(Counter::own().kind), |g| g.said.name()).into(),
                epoch: guest.map_or(0, |guest| guest.epoch),
                frequency: self.frequency(id),
                base: self.base(id),
                offset_ns: offset_ns as i64,
                host_frequency: self.host.frequency,
                assumed: guest.is_some_and(|guest| guest.said.is_assumed),
                found: guest.is_some_and(|guest| guest.is_found),
                reason: guest.and_then(|guest| guest.said.reason.name()).map(str::to_owned),
            }
        };
        clocks.map(clock).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn host() -> HostClock {
        let mut host = HostClock::start(None);
        host.frequency = 1_000_000_000;
        host.first.raw = 10_000_000_000;
        host.first.unix_ns = 5_000_000_000_000;
        host
    }

    fn guest(host: &HostClock, first: u64, seen: u64) -> GuestClock {
        let (kind, counter) = (ClockKind::Tsc, CounterKind::Tsc);
        let said = ClockSpec {
            kind,
            counter,
            frequency: None,
            is_assumed: false,
            reason: Reason::Unknown,
        };
        GuestClock::new(said, 0, host, (10_000_000_000, false), (first, seen))
    }

    #[test]
    fn the_boots_clock_is_read_at_the_anchor() {
        // Another thread may get the CPU between two readings in this test.
        let apart = |_| {
            let clock = HostClock::start(None);
            let since = read(ClockId::Realtime) - clock.first.unix_ns;
            (read(ClockId::Boottime) - since - i128::from(clock.boot_ns.unwrap())).abs()
        };
        let least = (0..10).map(apart).min().unwrap();
        assert!(least < 100_000, "{least} ns");
    }

    #[test]
    fn the_host_clock_counts_the_time_that_passes() {
        let mut clock = HostClock::start(None);
        std::thread::sleep(Duration::from_millis(50));
        clock.refresh();
        let now = Anchor::now();
        let elapsed = now.monotonic_ns - clock.first.monotonic_ns;
        assert!((clock.unix_ns(now.raw) - clock.first.unix_ns - elapsed).abs() < 20_000);
    }

    #[test]
    fn small_steps_of_the_host_clock_are_described_when_they_add_up() {
        let mut clocks = Clocks::new(HostClock::start(None), 0, None, None);
        std::thread::sleep(Duration::from_millis(30));
        clocks.refresh();
        clocks.metadata_written();
        // Many steps since the metadata was written, each of less than a microsecond, add up to this change.
        clocks.described_frequency += clocks.host.frequency / 1000;

        clocks.refresh();

        assert!(clocks.changed);
    }

    #[test]
    fn a_guest_clock_starts_before_every_timestamp_of_its_epoch() {
        let host = host();
        let second = 1_000_000_000;
        let clock = guest(&host, 700 * second, 12 * second);
        // The base is 3.003 s before the first timestamp: the 2 s since the epoch began, 0.1 % of these 2 s,
        // 1 ms, and one more second.
        assert_eq!(clock.base, 700 * second - 3 * second - 3_000_000);
        assert!(clock.fits(&host, 698 * second, 12 * second));
        assert!(!clock.fits(&host, 690 * second, 12 * second));
        assert!(!clock.fits(&host, 703 * second, 12 * second));
        assert!(clock.fits(&host, 703 * second, 13 * second));
    }

    #[test]
    fn a_guest_that_runs_while_its_rings_are_taken_over_is_not_ahead_of_its_clock() {
        let mut clocks = Clocks::new(HostClock::start(None), 0, None, None);
        let at_first = ticks();
        std::thread::sleep(Duration::from_millis(50));
        clocks.begin_epoch(1, Some(at_first));
        clocks.begin_epoch(2, None);
        let kind = (ClockKind::Tsc, Counter::default());
        let first = 700_000_000_000;
        let clock = clocks.for_guest(0, None, kind, first, ticks());

        let now = ticks();

        assert!(clocks.limit(clock, first, now) >= first + (now - at_first));
        // The rings hold no found records any more, so the limit of a clock in this epoch is lower.
        clocks.begin_epoch(3, None);
        let clock = clocks.for_guest(0, None, kind, first, ticks());
        assert!(clocks.limit(clock, first, ticks()) < first + (ticks() - at_first));
    }

    #[test]
    fn a_young_guest_counter_has_base_zero() {
        let host = host();
        assert_eq!(guest(&host, 5, 12_000_000_000).base, 0);
    }

    #[test]
    fn the_smallest_difference_of_the_client_in_the_middle_makes_the_offset() {
        let host = host();
        let mut clock = guest(&host, 100_000_000_000, 11_000_000_000);
        let at_first = clock.offset_ns(&host);
        let ms = 1_000_000_i64;
        // Each case adds a pair of a guest's time and a host's time from a source. The pair comes from a
        // plain event or from a reference point. The pair's host time is `later` ms after the host time that
        // follows from the first pair. Then the clock must have moved by `expected` ms.
        for (source, is_point, later, expected) in [
            (0, false, 500, 500),
            (0, false, -100, -100),
            (0, false, 0, -100),
            // With two clients, the first client alone decides.
            (1, false, -900, -100),
            (2, false, -300, -300),
            // As soon as a client has points, all plain events count no more.
            (2, true, 50, 50),
            (0, false, -200, 50),
            (1, true, -999, 50),
            (3, true, 40, 40),
            (3, true, 30, 30),
            (4, true, 999, 30),
        ] {
            let pair = (100_500_000_000, (11_500_000_000_i64 + later * ms) as u64);
            clock.bound(&host, source, pair, is_point);
            let off = clock.offset_ns(&host) - at_first;
            assert_eq!(off, i128::from(expected * ms), "{source} {is_point} {later}");
        }
        assert!(clock.has_moved());
        assert!(!clock.has_moved());
    }
}
