// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sessions of simulated machines, which have clocks of all kinds. The true time of each event is known.

use crate::made::*;
use crate::trace_dat::{self, KVM_FPU_ID, KVM_MMIO_ID, Page, TraceDat};
use hypertrace_timeline::GuestTsc;

/// Random numbers from a fixed seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `from..to`.
    pub fn in_range(&mut self, from: i64, to: i64) -> i64 {
        from + (self.next() % (to - from) as u64) as i64
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Ways in which a guest's clock differs from the host's clock, besides a random offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Steady,
    /// The rate changes evenly.
    Drift,
    /// From half of the time on, the rate is 300 ppm higher.
    Step,
    /// The rate oscillates by 200 ppm.
    Wobble,
    /// The clock runs at 2.1 GHz, and is declared as 2.6 GHz.
    Scaled,
    /// The clock of each vCPU has its own offset and rate.
    PerVcpu,
    /// A jump by about 20 us, ahead or back.
    SmallJump,
    /// A jump by about 1 ms.
    LargeJump,
    /// Pauses of up to 100 ms in which there are events but no points.
    Pauses,
    /// Pauses as in `Pauses`. One pause begins with a jump that is too small to be found.
    JumpInPause,
    /// The guest is stopped again and again, for a moment.
    Stops,
    /// Events come up to ten minutes after the last point, while the clock runs at its fastest or slowest
    /// allowed rate.
    Late,
    /// All vCPUs except the first claim the same false readings, even if the first vCPU has few points.
    FalseReadings,
}

pub const KINDS: [Kind; 13] = [
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

/// Events of the kernel's trace that belong to the simulated session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    None,
    /// For each point, the trace has the guest's store and the host's return to the guest.
    All,
    /// One event of six is missing, and nothing reports the loss.
    Missing,
    /// All events have times that are wrong by more than the duration of an exit.
    Moved,
    /// The time of each event is off by a random time of up to 50 us.
    Random,
}

/// Number of fraction bits of the ticks in this module.
pub const PART: u32 = 32;

/// Length of a piece of constant rate, ns.
pub const STEP: i64 = 50_000;

/// A guest's counter: pieces of constant rate.
#[derive(Clone, Debug)]
pub struct Counter {
    /// Each piece's start in ns, the ticks at its start, and its ticks per nanosecond. Both tick numbers are
    /// in units of 2^-32.
    pieces: Vec<(i64, i128, i128)>,
    /// Times during which the guest and its counter are stopped.
    stops: Vec<(i64, i64)>,
}

impl Counter {
    /// Makes a counter that runs for `until` nanoseconds; `ppb` returns its rate at a time. `jumps` are in
    /// order. Each jump has a time and a number of nanoseconds: from this time on, the guest's counter is
    /// late by this number.
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
                // After a stop, the counter has fewer ticks. After a jump ahead, it has more ticks.
                ticks -= rate * i128::from(*by);
            }
            pieces.push((from, ticks, rate));
            ticks += rate * i128::from(STEP);
        }
        // A jump changes the counter only when the next piece begins, so each stop lasts one piece longer.
        let stops = jumps.iter().filter(|(_, by)| *by > 0);
        Counter { pieces, stops: stops.map(|(at, by)| (*at, at + by + STEP)).collect() }
    }

    /// Returns `now` if the counter runs at this time, and otherwise the time at which the counter runs
    /// again.
    fn readable(&self, now: i64) -> i64 {
        let stop = self.stops.iter().find(|(from, to)| (*from..=*to).contains(&now));
        stop.map_or(now, |(_, to)| to + 1)
    }

    /// Returns the counter's offset and rate in its first or its last piece, as a hypervisor stores them. The
    /// first and the last piece are the same for a clock of one rate that does not jump. The host's counter
    /// has one tick per nanosecond, from 0 on.
    pub fn tsc(&self, at_end: bool) -> GuestTsc {
        let piece = if at_end { self.pieces.last() } else { self.pieces.first() };
        let (from, ticks, rate) = *piece.unwrap();
        let offset = (ticks - rate * i128::from(from)) >> PART;
        GuestTsc { offset: offset as i64, multiplier: rate as u64, shift: PART }
    }

    /// Returns all TSCs that the hypervisor computes. Each entry has the times in ns from which and until
    /// which the TSC holds.
    pub fn tscs(&self) -> Vec<(i64, i64, GuestTsc)> {
        let mut all: Vec<(i64, i64, GuestTsc)> = Vec::new();
        let ends = self.pieces.iter().skip(1).map(|piece| piece.0).chain([i64::MAX]);
        for ((from, ticks, rate), until) in self.pieces.iter().zip(ends) {
            let offset = (ticks - rate * i128::from(*from)) >> PART;
            let tsc = GuestTsc { offset: offset as i64, multiplier: *rate as u64, shift: PART };
            match all.last_mut() {
                Some(last) if last.2 == tsc => last.1 = until,
                _ => all.push((*from, until, tsc)),
            }
        }
        all
    }

    fn at(&self, ns: i64) -> u64 {
        let piece = self.pieces.partition_point(|p| p.0 <= ns) - 1;
        let (from, ticks, rate) = self.pieces[piece];
        ((ticks + rate * i128::from(ns - from)) >> PART) as u64
    }
}

/// Readings that a vCPU claims.
#[derive(Clone, Copy, Debug)]
pub enum Claim {
    True,
    /// The clock nearly stops for most of each period, and then runs faster until its time is right again.
    Stops(u64),
    /// A rate that differs from the true rate by this many parts per million.
    Rate(i64),
    /// Another offset.
    Offset(u64),
}

impl Claim {
    /// Returns the claim for a true reading. Claims never go backwards.
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
pub struct Vcpu {
    pub claim: Claim,
    pub counter: Counter,
    /// Constraints on the clock: each has a number of guest ticks and a host time in ns.
    pub not_after: Vec<(u64, i64)>,
    pub not_before: Vec<(u64, i64)>,
    /// True time and ticks of each event. The index is the event's index.
    pub events: Vec<(i64, u64)>,
}

pub struct Machine {
    pub made: Made,
    pub hz: i64,
    pub declared: i64,
    pub vcpus: Vec<Vcpu>,
}

impl Machine {
    /// Declares this frequency as the guest's rate, and that this rate is only assumed.
    pub fn assume(&self, frequency: u64) {
        let path = self.made.path().join("session.json");
        let json = std::fs::read_to_string(&path).unwrap();
        let (from, to) = (self.declared, frequency);
        let json = json.replacen(
            &format!("\"frequency\":{from},"),
            &format!("\"frequency\":{to},\"assumed\":true,"),
            1,
        );
        std::fs::write(path, json).unwrap();
    }

    /// Adds what the VMM says about the TSCs of clients. `None` stands for all clients that are not named.
    pub fn tell(&self, said: &[(Option<u32>, GuestTsc)]) {
        let said = said.iter().map(|(client, tsc)| {
            let GuestTsc { offset, multiplier, shift } = tsc;
            let client = client.map_or("null".into(), |client| client.to_string());
            format!(
                r#"{{"epoch":0,"client":{client},"offset":{offset},"multiplier":{multiplier},"shift":{shift}}}"#
            )
        });
        self.made.tell(&said.collect::<Vec<_>>().join(","));
    }
}

/// Returns a waiting time of at least `floor`. Most times are only a little longer, and few are much longer.
fn delay(random: &mut Random, floor: i64) -> i64 {
    let usual = random.in_range(0, 1 + floor / 2);
    let rare = if random.one_in(40) { random.in_range(0, 300_000) } else { 0 };
    floor + usual.min(random.in_range(0, 1 + floor)) + rare
}

pub fn machine(kind: Kind, seed: u64, kernel: Kernel) -> Machine {
    let mut of_kernel = Random(seed ^ 0x5555);
    let moved = of_kernel.in_range(50_000, 300_000) * if seed.is_multiple_of(2) { 1 } else { -1 };
    let (id, version) = trace_dat::recorded(BOOT, 0);
    let mut trace = TraceDat::new("x86-tsc").option((id, version));
    let mut random = Random(seed);
    let r = &mut random;
    // As in recordings, there is a point every 0.1 ms or so. If the test measures the clock's rate, there are
    // four times as many points, because the measurement takes longer.
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
    // Pieces begin at multiples of their length. A jump takes effect at the beginning of the next piece.
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
    // Time from the start to the first pause, and from the end of each pause to the next pause.
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
    // A period lasts from one point to the next, or longer.
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
        // In one of four sessions, the vCPU with true readings has few points.
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
        // Reads the counter, in order and never while the counter is stopped.
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
            see(reading + (now - reading) / 3, KVM_MMIO_ID, trace_dat::mmio(0xbb91_3871 << 32 | n));
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
        made.kernel(&trace);
    }
    Machine { made, hz, declared, vcpus }
}
