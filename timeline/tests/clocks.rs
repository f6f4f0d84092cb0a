// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The truth about bounds: sessions of simulated machines with clocks of all kinds. The true time
//! of each event is known, but not to the reader.

mod made;
#[path = "made/trace_dat.rs"]
mod trace_dat;

use hypertrace_timeline::{ClockMaps, Domain, KernelTrace, Session, Timeline, Value};
use made::*;
use trace_dat::{KVM_FPU_ID, KVM_MMIO_ID, Page, TraceDat};

/// Random numbers from a fixed seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `from..to`.
    fn in_range(&mut self, from: i64, to: i64) -> i64 {
        from + (self.next() % (to - from) as u64) as i64
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Ways in which a clock differs from the host's, besides a random offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Steady,
    /// The rate changes evenly.
    Drift,
    /// +300 ppm from half-way.
    Step,
    /// The rate oscillates by 200 ppm.
    Wobble,
    /// Runs at 2.1 GHz, declared as 2.6.
    Scaled,
    /// Another offset, and rate, for each vCPU.
    PerVcpu,
    /// A jump by about 20 us, ahead or back.
    SmallJump,
    /// A jump by about 1 ms.
    LargeJump,
    /// Pauses of up to 100 ms in which there are events but no points.
    Pauses,
    /// The same, with a jump at the begin of one that is too small to be found.
    JumpInPause,
    /// The guest is stopped again and again, for a moment.
    Stops,
    /// Events up to ten minutes after the last point, at the limit of the rate.
    Late,
    /// All vCPUs but the first one agree on false readings, also when that one has few points.
    FalseReadings,
}

const KINDS: [Kind; 13] = [
    Kind::Steady,
    Kind::Drift,
    Kind::Step,
    Kind::Wobble,
    Kind::Scaled,
    Kind::PerVcpu,
    Kind::SmallJump,
    Kind::LargeJump,
    Kind::Pauses,
    Kind::JumpInPause,
    Kind::Stops,
    Kind::Late,
    Kind::FalseReadings,
];

/// The kernel's events beside the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    None,
    /// A store and the way back for each point.
    All,
    /// One of six is missing, and nothing says so.
    Missing,
    /// All are earlier or later by more than an exit takes.
    Moved,
    /// Each has any time within 50 us.
    Random,
}

/// Ticks are counted in 2^-32 here.
const PART: u32 = 32;

/// Length of a piece of constant rate, ns.
const STEP: i64 = 50_000;

/// A guest's counter: pieces of constant rate.
#[derive(Clone, Debug)]
struct Counter {
    /// From when (ns), ticks then, and ticks a nanosecond, both in 2^-32.
    pieces: Vec<(i64, i128, i128)>,
    /// Times in which the guest is stopped, together with its counter.
    stops: Vec<(i64, i64)>,
}

impl Counter {
    /// Makes the counter of a rate in parts per billion, for `until` nanoseconds. Jumps are in order:
    /// from when, and by how much the guest is late from then on.
    fn new(
        hz: i64,
        start: i128,
        until: i64,
        ppb: impl Fn(i64) -> i64,
        jumps: &[(i64, i64)],
    ) -> Counter {
        let (mut pieces, mut ticks) = (Vec::new(), start << PART);
        let mut left = jumps.iter().peekable();
        for from in (0..until).step_by(STEP as usize) {
            let ppb = ppb(from).clamp(-1_000_000, 1_000_000);
            let rate = ((i128::from(hz) << PART) * i128::from(1_000_000_000 + ppb))
                / 1_000_000_000_000_000_000;
            if let Some((_, by)) = left.next_if(|(at, _)| *at < from) {
                // Stopped: the ticks of that time are missing. Ahead: they are more.
                ticks -= rate * i128::from(*by);
            }
            pieces.push((from, ticks, rate));
            ticks += rate * i128::from(STEP);
        }
        // Where a jump is within a piece, the piece before it ends there.
        let stops = jumps.iter().filter(|(_, by)| *by > 0);
        Counter { pieces, stops: stops.map(|(at, by)| (*at, at + by + STEP)).collect() }
    }

    /// Returns the next time at which the counter can be read: now, if it is not stopped.
    fn readable(&self, now: i64) -> i64 {
        let stop = self.stops.iter().find(|(from, to)| (*from..=*to).contains(&now));
        stop.map_or(now, |(_, to)| to + 1)
    }

    fn at(&self, ns: i64) -> u64 {
        let piece = self.pieces.partition_point(|p| p.0 <= ns) - 1;
        let (from, ticks, rate) = self.pieces[piece];
        ((ticks + rate * i128::from(ns - from)) >> PART) as u64
    }
}

/// Readings that a vCPU claims.
#[derive(Clone, Copy, Debug)]
enum Claim {
    True,
    /// The clock stops for most of each period, and catches up.
    Stops(u64),
    /// Another rate, in parts per million.
    Rate(i64),
    /// Another offset.
    Offset(u64),
}

impl Claim {
    /// Returns the claim for a true reading. It never goes backwards.
    fn of(self, ticks: u64, start: u64) -> u64 {
        let passed = ticks - start;
        match self {
            Claim::True => ticks,
            Claim::Stops(period) => {
                let (since, stopped) = (passed % period, period / 10 * 8);
                let shown =
                    (since / 1_000).min(stopped / 1_000) + since.saturating_sub(stopped) * 4;
                start + passed - since + shown.min(period - 1)
            }
            Claim::Rate(ppm) => ticks.saturating_add_signed(passed as i64 / 1_000_000 * ppm),
            Claim::Offset(ticks_more) => ticks + ticks_more,
        }
    }
}

/// A vCPU's true times.
struct Vcpu {
    claim: Claim,
    counter: Counter,
    /// Constraints: guest ticks and host ns.
    not_after: Vec<(u64, i64)>,
    not_before: Vec<(u64, i64)>,
    /// True time of each event, by its number; and its ticks.
    events: Vec<(i64, u64)>,
}

struct Machine {
    made: Made,
    hz: i64,
    vcpus: Vec<Vcpu>,
}

/// Waiting time with a floor, mostly little more, seldom much more.
fn delay(random: &mut Random, floor: i64) -> i64 {
    let usual = random.in_range(0, 1 + floor / 2);
    let rare = if random.one_in(40) { random.in_range(0, 300_000) } else { 0 };
    floor + usual.min(random.in_range(0, 1 + floor)) + rare
}

fn machine(kind: Kind, seed: u64, kernel: Kernel) -> Machine {
    let mut of_kernel = Random(seed ^ 0x5555);
    let moved = of_kernel.in_range(50_000, 300_000) * if seed.is_multiple_of(2) { 1 } else { -1 };
    let (id, version) = trace_dat::recorded(BOOT, 0);
    let mut trace = TraceDat::new("x86-tsc").option(id, version);
    let mut random = Random(seed);
    let r = &mut random;
    // As recorded there is a point every 0.1 ms or so. A rate that must be measured takes longer.
    let points = r.in_range(60, 160) * if kind == Kind::Scaled { 4 } else { 1 };
    let pause = r.in_range(100_000, 500_000);
    let (out, back) = (r.in_range(500, 20_000), r.in_range(500, 20_000));
    let until = points * (pause / 2 + out + back);
    let declared: i64 =
        if kind == Kind::Scaled { 2_600_000_000 } else { r.in_range(1_000_000_000, 4_000_000_000) };
    let hz = if kind == Kind::Scaled { 2_100_000_000 } else { declared };
    let start = r.in_range(1_000_000_000, 10_000_000_000_000);
    let swing = r.in_range(1_000_000, 300_000_000);
    let base_ppb = r.in_range(-800_000, 800_001);
    let end_ppb = r.in_range(-1_000_000, 1_000_001);
    let edge_ppb = if r.one_in(2) { 1_000_000 } else { -1_000_000 };
    let ppb = |kind: Kind, base: i64, t: i64| match kind {
        Kind::Steady if seed.is_multiple_of(3) => edge_ppb,
        Kind::Late => edge_ppb,
        Kind::Stops => 0,
        Kind::Drift => base + ((end_ppb - base) as i128 * t as i128 / until as i128) as i64,
        Kind::Step if t > until / 2 => base + 300_000,
        Kind::Wobble => {
            base + (200_000.0 * (t as f64 / swing as f64 * std::f64::consts::TAU).sin()) as i64
        }
        _ => base,
    };
    let size = match kind {
        Kind::SmallJump => r.in_range(15_000, 25_000),
        Kind::LargeJump => r.in_range(900_000, 1_100_000),
        _ => 0,
    };
    let sign = if r.one_in(2) { 1 } else { -1 };
    // Pieces begin at multiples of their length; a jump is at the first one after this.
    let on_piece = |at: i64| at / STEP * STEP;
    let mut jumps: Vec<(i64, i64)> = match kind {
        Kind::SmallJump | Kind::LargeJump => {
            vec![(on_piece(until * r.in_range(2, 5) / 10), sign * size)]
        }
        Kind::Stops => {
            let period = r.in_range(10_000_000, 40_000_000);
            (1..4 * until / period).map(|n| (on_piece(n * period), (out + back) * 3 / 2)).collect()
        }
        _ => Vec::new(),
    };
    // A pause begins this long after the start and after the end of the one before it.
    let has_pauses = matches!(kind, Kind::Pauses | Kind::JumpInPause);
    let (every, long) = (until / 4, r.in_range(10_000_000, 100_000_000));
    if kind == Kind::JumpInPause {
        let size = (out + back) * 9 / 10;
        jumps.push((on_piece(2 * every + long + 1_000_000), sign * size));
    }
    let guest_base = start as u64 - 1_000_000;
    let host = clock(0, "host", 0, GHZ, 0, START_NS);
    let guess = r.in_range(-1_000_000, 1_000_000);
    let guest = clock(1, "guest", 0, declared as u64, guest_base, START_NS + guess);
    let json = json(&format!("[{host},{guest}]"), EVENTS, "[]");
    let mut made = Made::with_json(&with_boot(&json, Some(BOOT)));
    let mut vcpus = Vec::new();
    // A period is between two points, or longer.
    let claim = match r.in_range(0, 5) {
        0..3 => Claim::Stops((hz as u64 / 1_000_000).max(1) * r.in_range(100, 3_000) as u64),
        3 => Claim::Rate(r.in_range(-900, 900)),
        _ => Claim::Offset(r.in_range(0, 100_000) as u64),
    };
    let vcpus_of = if kind == Kind::FalseReadings { (2, 5) } else { (1, 4) };
    for number in 0..r.in_range(vcpus_of.0, vcpus_of.1) as u32 {
        let (mut first, mut base) = (i128::from(start), base_ppb);
        if kind == Kind::PerVcpu {
            let most = if r.one_in(2) { 60_000 } else { 500_000 };
            first += i128::from(r.in_range(0, most));
            if r.one_in(2) {
                base = r.in_range(-800_000, 800_001);
            }
        }
        let all = 4 * until + 10_000_000 + if has_pauses { 4 * long } else { 0 };
        let counter = Counter::new(hz, first, all, |t| ppb(kind, base, t), &jumps);
        let mut vcpu = Vcpu {
            claim: if kind == Kind::FalseReadings && number > 0 { claim } else { Claim::True },
            counter,
            not_after: Vec::new(),
            not_before: Vec::new(),
            events: Vec::new(),
        };
        // Of the vCPU with true readings, in one of four sessions.
        let has_few = kind == Kind::FalseReadings && number == 0 && seed.is_multiple_of(4);
        let mut points_left = if has_few { r.in_range(1, 6) } else { i64::MAX };
        let tid = 100 + number;
        let lease = [u64::from(tid), 42, tid.into(), 0];
        let thread = Packet::host(number).with64(80, tid.into());
        let (mut ring, mut thread) =
            (Packet::guest(number), thread.event_str(1, 1, &lease, b"vcpu"));
        let mut seen: Vec<(u64, u16, u32, Vec<u8>)> = Vec::new();
        let mut see = |at: i64, id: u16, payload: Vec<u8>| {
            let at = match kernel {
                Kernel::Moved => at + moved,
                Kernel::Random => at + of_kernel.in_range(-50_000, 50_000),
                _ => at,
            };
            let is_missing = kernel == Kernel::Missing && of_kernel.one_in(6);
            // Times of a CPU are in order.
            let last = seen.last().map_or(1, |event| event.0);
            if !is_missing {
                seen.push((at.max(1).max(last as i64) as u64, id, tid, payload));
            }
        };
        let mut now = r.in_range(1_000, 100_000);
        let mut owed = None;
        // Reads the counter, in order and never while it is stopped.
        let read = |vcpu: &mut Vcpu, now: &mut i64| {
            *now += 2;
            *now = vcpu.counter.readable(*now);
            let ticks = vcpu.claim.of(vcpu.counter.at(*now), start as u64);
            vcpu.events.push((*now, ticks));
            ticks
        };
        let mut next_pause = if has_pauses { every } else { i64::MAX };
        for _ in 0..points {
            if now > next_pause {
                let end = now + long;
                while now < end {
                    now += r.in_range(1, long / 8);
                    let ticks = read(&mut vcpu, &mut now);
                    if let Some(h) = owed.take() {
                        vcpu.not_before.push((ticks, h));
                    }
                    let n = vcpu.events.len() as u64 - 1;
                    ring = ring.event(ticks - guest_base, DISK_READ, &[n, 0]);
                }
                next_pause = now + every;
            }
            for turn in 0..r.in_range(0, 5) {
                // Nearly always the guest reads its clock as soon as it continues.
                let most = if turn == 0 && !r.one_in(8) { 500 } else { pause / 3 };
                now += r.in_range(1, 1 + most);
                let ticks = read(&mut vcpu, &mut now);
                if let Some(h) = owed.take() {
                    vcpu.not_before.push((ticks, h));
                }
                let n = vcpu.events.len() as u64 - 1;
                ring = ring.event(ticks - guest_base, DISK_READ, &[n, 0]);
            }
            now += r.in_range(1, 1 + pause / 3);
            let ticks = read(&mut vcpu, &mut now);
            if let Some(h) = owed.take() {
                vcpu.not_before.push((ticks, h));
            }
            if points_left == 0 || has_few && !r.one_in(20) {
                let n = vcpu.events.len() as u64 - 1;
                ring = ring.event(ticks - guest_base, DISK_READ, &[n, 0]);
                continue;
            }
            points_left -= 1;
            let reading = now;
            now += delay(r, out);
            vcpu.not_after.push((ticks, now));
            let n = vcpu.events.len() as u64 - 1;
            thread = thread.point(now as u64, number, n as u32, ticks, n);
            see(reading + (now - reading) / 3, KVM_MMIO_ID, trace_dat::mmio(n));
            owed = Some(now);
            let reply = now;
            now += delay(r, back);
            see(reply + (now - reply) * 2 / 3, KVM_FPU_ID, vec![1, 0, 0, 0]);
        }
        for _ in 0..if kind == Kind::Late { 4 } else { 0 } {
            now += r.in_range(1_000_000, 150_000_000_000);
            let ticks = read(&mut vcpu, &mut now);
            let n = vcpu.events.len() as u64 - 1;
            ring = ring.event(ticks - guest_base, DISK_READ, &[n, 0]);
        }
        made = made
            .stream(&format!("guest-{number}"), &[Packet::guest(number), ring])
            .stream(&format!("host-{number}"), &[Packet::host(number), thread]);
        if !seen.is_empty() {
            trace = trace.cpu(&Page::all(&seen));
        }
        vcpus.push(vcpu);
    }
    if kernel != Kernel::None {
        std::fs::write(made.path().join("kernel.dat"), trace.version_7()).unwrap();
    }
    Machine { made, hz, vcpus }
}

/// Returns the middle of the envelope's half-widths, at each of some events, by all pairs: half of the
/// distance of the lowest upper to the highest lower limit of all constraints, for a clock whose
/// frequency is within 1,000 ppm of this.
fn envelope(vcpu: &Vcpu, hz: i64) -> Vec<f64> {
    let (min, max) = (1e9 / (1.001 * hz as f64), 1e9 / (0.999 * hz as f64));
    let half = |x: u64| {
        let high = vcpu.not_after.iter().map(|(g, h)| {
            let dx = x as f64 - *g as f64;
            *h as f64 + if dx > 0.0 { dx * max } else { dx * min }
        });
        let low = vcpu.not_before.iter().map(|(g, h)| {
            let dx = x as f64 - *g as f64;
            *h as f64 + if dx > 0.0 { dx * min } else { dx * max }
        });
        (high.fold(f64::MAX, f64::min) - low.fold(f64::MIN, f64::max)) / 2.0
    };
    vcpu.events.iter().step_by(4).map(|(_, x)| half(*x)).collect()
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q) as usize]
}

#[derive(Debug, Default)]
struct Outcome {
    clocks: usize,
    events: usize,
    outside: usize,
    unknown: usize,
    out_of_order: usize,
    jumps: usize,
    /// Constraints by the kernel that were used, and that were left out.
    of_kernel: (usize, usize),
    /// Farthest outside of the bound, ns.
    worst: i64,
    errors: Vec<f64>,
    bounds: Vec<f64>,
    /// Bounds over the envelope of the clock's points, at these quantiles of both.
    ratios: Vec<(f64, f64)>,
}

impl Outcome {
    fn ratios_at(&self, q: f64) -> Vec<f64> {
        self.ratios.iter().filter(|(at, _)| *at == q).map(|(_, ratio)| *ratio).collect()
    }
}

fn check(kind: Kind, seed: u64, kernel: Kernel, outcome: &mut Outcome) {
    let machine = machine(kind, seed, kernel);
    let session = Session::open(machine.made.path()).unwrap();
    let maps = match KernelTrace::of_session(0, &session).unwrap() {
        Some(trace) => trace.clock_maps(&session).unwrap(),
        None => ClockMaps::of(&session).unwrap(),
    };
    let (used, left_out) = maps.of_kernel().unwrap_or_default();
    outcome.of_kernel = (outcome.of_kernel.0 + used, outcome.of_kernel.1 + left_out);
    outcome.clocks += 1;
    outcome.jumps += maps.iter().map(|(_, _, map)| map.segments() - 1).sum::<usize>();
    let sessions = [(session, maps)];
    let mut bounds = Vec::new();
    let mut next = vec![0; machine.vcpus.len()];
    for event in Timeline::new(&sessions).unwrap() {
        let event = event.unwrap();
        // The host's leases are of no client.
        let Some(vcpu) = event.client.map(|client| client as usize) else { continue };
        let Value::Unsigned(n) = event.fields[0].1 else { panic!() };
        // A reader of all streams sees the events of a vCPU in the order in which it made them.
        outcome.out_of_order += usize::from(next[vcpu] != n);
        next[vcpu] = n + 1;
        if event.reference.is_some() {
            continue;
        }
        if !matches!(machine.vcpus[vcpu].claim, Claim::True) {
            continue;
        }
        outcome.events += 1;
        let (truth, _) = machine.vcpus[vcpu].events[n as usize];
        let error = (event.ts_ns - START_NS - truth).abs();
        let Some(bound) = event.bound_ns else {
            outcome.unknown += 1;
            continue;
        };
        outcome.outside += usize::from(error > bound as i64);
        outcome.worst = outcome.worst.max(error - bound as i64);
        outcome.errors.push(error as f64);
        bounds.push(bound as f64);
    }
    assert!(sessions[0].0.streams().iter().any(|s| s.domain == Domain::Guest));
    outcome.bounds.extend(&bounds);
    let has_few = kind == Kind::FalseReadings && seed.is_multiple_of(4);
    if !has_few
        && !matches!(kind, Kind::SmallJump | Kind::LargeJump | Kind::JumpInPause | Kind::Stops)
    {
        let honest = machine.vcpus.iter().filter(|vcpu| matches!(vcpu.claim, Claim::True));
        let mut least: Vec<f64> = honest.flat_map(|vcpu| envelope(vcpu, machine.hz)).collect();
        for q in [0.5, 0.99] {
            let ratio = quantile(&mut bounds, q) / quantile(&mut least, q);
            outcome.ratios.push((q, ratio));
        }
    }
}

#[test]
fn of_a_thousand_clocks_no_event_is_outside_of_its_bound() {
    let mut all = Vec::new();
    for (index, kind) in KINDS.into_iter().enumerate() {
        let mut outcome = Outcome::default();
        for number in 0..84 {
            check(kind, 1000 * index as u64 + number, Kernel::None, &mut outcome);
        }
        let Outcome { clocks, events, outside, unknown, worst, jumps, out_of_order, .. } = outcome;
        let ns = |values: &mut Vec<f64>, q| quantile(values, q) as i64;
        println!(
            "{kind:?}: {clocks} clocks, {events} events, {outside} outside of their bounds (by {worst} ns at \
             most), {unknown} unknown, {out_of_order} out of order, {jumps} jumps found; error p50/p99 {}/{} ns, \
             bound p50/p99 {}/{} ns",
            ns(&mut outcome.errors, 0.5),
            ns(&mut outcome.errors, 0.99),
            ns(&mut outcome.bounds, 0.5),
            ns(&mut outcome.bounds, 0.99),
        );
        for q in [0.5, 0.99] {
            let mut ratios = outcome.ratios_at(q);
            if !ratios.is_empty() {
                println!(
                    "    p{:.0} of the bounds over that of the envelope: {} above 1.5, median {:.2}, most {:.2}",
                    100.0 * q,
                    ratios.iter().filter(|ratio| **ratio > 1.5).count(),
                    quantile(&mut ratios, 0.5),
                    quantile(&mut ratios, 1.0)
                );
            }
        }
        all.push((kind, outcome));
    }
    for (kind, outcome) in all {
        assert_eq!((outcome.outside, outcome.unknown, outcome.out_of_order), (0, 0, 0), "{kind:?}");
        for ratio in outcome.ratios_at(0.5) {
            assert!(ratio <= 1.5, "{kind:?}: {ratio}");
        }
        // Where points are far apart, a bound has room for a jump, and the envelope has none.
        if !matches!(kind, Kind::Pauses | Kind::Late) {
            let mut ratios = outcome.ratios_at(0.99);
            let large = ratios.iter().filter(|ratio| **ratio > 1.5).count();
            assert!(large * 16 <= ratios.len(), "{kind:?}: {large} of {}", ratios.len());
            assert!(ratios.is_empty() || quantile(&mut ratios, 1.0) <= 2.0, "{kind:?}");
        }
    }
}

#[test]
fn the_kernels_events_make_bounds_smaller_and_no_event_is_outside() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        let mut without = 0.0;
        for kernel in [Kernel::None, Kernel::All, Kernel::Missing, Kernel::Moved, Kernel::Random] {
            let mut outcome = Outcome::default();
            for number in 0..8 {
                check(kind, 1000 * index as u64 + 500 + number, kernel, &mut outcome);
            }
            let Outcome { events, outside, unknown, worst, out_of_order, .. } = outcome;
            let (used, left_out) = outcome.of_kernel;
            let [half, most] = [0.5, 0.99].map(|q| quantile(&mut outcome.bounds, q));
            println!(
                "{kind:?}, {kernel:?}: {events} events, {outside} outside (by {worst} ns at most), {unknown} \
                 unknown; of the kernel's, {used} used, {left_out} left out; bound p50/p99 {half:.0}/{most:.0} ns",
            );
            assert_eq!((outside, unknown, out_of_order), (0, 0, 0), "{kind:?}, {kernel:?}");
            match kernel {
                Kernel::None => without = half,
                Kernel::All => assert!(half < without * 0.7, "{kind:?}: {half} of {without}"),
                Kernel::Missing => assert!(half < without * 0.9, "{kind:?}: {half} of {without}"),
                Kernel::Moved | Kernel::Random => {}
            }
        }
    }
}

/// Makes a session of clients whose clocks have these offsets from the host's, in ns: each has a point each
/// millisecond, seen after 5 us and answered after 5 more. The last client has events only.
fn offsets(clients: &[u64]) -> Made {
    let mut made = Made::new();
    for (number, offset) in clients.iter().enumerate() {
        let number = number as u32;
        let (mut ring, mut host) = (Packet::guest(number), Packet::host(number));
        for point in 1..50 {
            let time = point * 1_000_000 + u64::from(number) * 100_000;
            let guest = time + offset;
            host = host.point(time + 5_000, number, point as u32, GUEST_BASE + guest, point);
            ring = ring.event(guest + 10_000, DISK_READ, &[point, 0]);
        }
        made = made
            .stream(&format!("guest-{number}"), &[Packet::guest(number), ring])
            .stream(&format!("host-{number}"), &[Packet::host(number), host]);
    }
    let number = clients.len() as u32;
    let events = Packet::guest(number).event(30_000_000, DISK_READ, &[0, 0]);
    made.stream(&format!("guest-{number}"), &[Packet::guest(number), events])
}

#[test]
fn the_error_of_clients_that_share_a_map_is_that_of_their_own_points() {
    // Points of client 0 are seen late, and answered late; those of client 1 limit the map.
    let mut made = Made::new();
    for (number, late) in [(0, 400_000), (1, 5_000)] {
        let (mut ring, mut host) = (Packet::guest(number), Packet::host(number));
        for point in 1..50 {
            let time = point * 1_000_000 + u64::from(number) * 100_000;
            host = host.point(time + late, number, point as u32, GUEST_BASE + time, point);
            ring = ring.event(time + 2 * late, DISK_READ, &[point, 0]);
        }
        made = made
            .stream(&format!("guest-{number}"), &[Packet::guest(number), ring])
            .stream(&format!("host-{number}"), &[Packet::host(number), host]);
    }
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();

    let [of @ (1, None, shared)] = Vec::from_iter(maps.iter())[..] else {
        panic!("they share a map")
    };
    let bounds = maps.bounds(of).unwrap();

    assert!(shared.bounds().unwrap().max * 10 < bounds.max, "{bounds:?}");
    let sessions = [(session, maps)];
    let events = Timeline::new(&sessions).unwrap().map(Result::unwrap);
    let largest = events.map(|event| event.bound_ns.unwrap()).max().unwrap();
    assert!(largest >= 300_000 && bounds.max / 256 >= largest - 1, "{largest} {bounds:?}");
}

#[test]
fn clients_that_agree_share_a_map_beside_one_that_does_not() {
    for (clients, alone) in [
        (&[0, 0, 0, 0][..], &[][..]),
        (&[0, 400_000, 0, 0], &[1]),
        (&[500_000, 0, 0, 900_000], &[0, 3]),
        (&[500_000, 0, 900_000], &[0, 1, 2]),
    ] {
        let made = offsets(clients);
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();

        let own: Vec<u32> = maps.iter().filter_map(|(_, client, _)| client).collect();
        assert_eq!(own, alone, "{clients:?}");
        let is_shared = maps.iter().any(|(_, client, _)| client.is_none());
        assert_eq!(is_shared, alone.len() < clients.len(), "{clients:?}");
        assert_eq!(maps.without_points(&session)[&1], (1, alone.is_empty()), "{clients:?}");
        let sessions = [(session, maps)];
        for event in Timeline::new(&sessions).unwrap().map(Result::unwrap) {
            let client = event.client.unwrap() as usize;
            // The client without points may read any of the clocks.
            let has_bound = client < clients.len() || alone.is_empty();
            assert_eq!(event.bound_ns.is_some(), has_bound, "{clients:?}: {event:?}");
        }
    }
}
