// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the truth of bounds, with sessions of simulated machines that have clocks of all kinds. The tests
//! know the true time of each event, but the reader does not.

use hypertrace_test_support::kept::{self, Value};
use hypertrace_test_support::{machine, made, trace_dat};
use hypertrace_timeline::{ClockMaps, Domain, KernelTrace, Recording, Session};
use machine::{Claim, KINDS, Kernel, Kind, Machine, Vcpu, machine};
use made::*;
use std::fs;
use std::slice::from_ref;

/// Returns the half-width of the envelope at some of the events. The envelope lies between the lowest upper
/// limit and the highest lower limit that the constraints allow. The clock's frequency is within 1,000 ppm of
/// `hz`.
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
    /// How many of the kernel's constraints were used, and how many were left out.
    of_kernel: (usize, usize),
    /// Largest distance of an event outside of its bound, in ns.
    worst: i64,
    errors: Vec<f64>,
    bounds: Vec<f64>,
    /// Ratios of bounds to half-widths of the envelope. Each entry has a quantile, and the ratio of the two
    /// values at this quantile.
    ratios: Vec<(f64, f64)>,
}

impl Outcome {
    fn ratios_at(&self, q: f64) -> Vec<f64> {
        self.ratios.iter().filter(|(at, _)| *at == q).map(|(_, ratio)| *ratio).collect()
    }
}

fn check(kind: Kind, seed: u64, kernel: Kernel, outcome: &mut Outcome) {
    check_at_most(kind, seed, kernel, None, outcome);
}

/// Checks a machine with at most `points` of its reference points.
fn check_at_most(
    kind: Kind,
    seed: u64,
    kernel: Kernel,
    points: Option<usize>,
    outcome: &mut Outcome,
) {
    check_machine(&machine(kind, seed, kernel), kind, seed, points, outcome);
}

fn check_machine(
    machine: &Machine,
    kind: Kind,
    seed: u64,
    points: Option<usize>,
    outcome: &mut Outcome,
) {
    let session = Session::open(machine.made.path()).unwrap();
    let maps = match (KernelTrace::of_session(0, &session).unwrap(), points) {
        (Some(trace), _) => {
            let (sessions, traces) = (from_ref(&session), from_ref(&trace));
            KernelTrace::clock_maps_of(0, sessions, traces, &[]).unwrap()
        }
        (None, Some(points)) => ClockMaps::of_at_most(&session, points).unwrap(),
        (None, None) => ClockMaps::of(&session).unwrap(),
    };
    let (used, left_out) = maps.of_kernel().unwrap_or_default();
    outcome.of_kernel = (outcome.of_kernel.0 + used, outcome.of_kernel.1 + left_out);
    outcome.clocks += 1;
    outcome.jumps += maps.iter().map(|(_, _, map)| map.segments() - 1).sum::<usize>();
    let recording = Recording::of([(session, maps)], []);
    let mut bounds = Vec::new();
    let mut next = vec![0; machine.vcpus.len()];
    for event in kept::events(&recording).unwrap() {
        // The host's leases belong to no client.
        let Some(vcpu) = event.client.map(|client| client as usize) else { continue };
        let Value::Unsigned(n) = event.fields[0].1 else { panic!() };
        // A reader of all streams must see the events of a vCPU in the order in which the vCPU made the
        // events.
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
    assert!(recording.sessions[0].0.streams().iter().any(|s| s.domain == Domain::Guest));
    outcome.bounds.extend(&bounds);
    let has_few = kind == Kind::FalseReadings && seed.is_multiple_of(4);
    if !bounds.is_empty()
        && !has_few
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
        // Larger ratios are allowed if clocks differ, or if readings are false and no constraint shows this.
        // Then one map serves all clocks, and its line is not in the middle of each clock's limits.
        let differs = matches!(kind, Kind::PerVcpu | Kind::FalseReadings);
        let most = if differs { 2.0 } else { 1.5 };
        for ratio in outcome.ratios_at(0.5) {
            assert!(ratio <= most, "{kind:?}: {ratio}");
        }
        // If points are far apart, a bound allows for a jump between two points, but the envelope does not.
        if !matches!(kind, Kind::Pauses | Kind::Late) {
            let mut ratios = outcome.ratios_at(0.99);
            let large = ratios.iter().filter(|ratio| **ratio > 1.5).count();
            let is_rare = large * 16 <= ratios.len() || differs;
            assert!(is_rare, "{kind:?}: {large} of {}", ratios.len());
            assert!(ratios.is_empty() || quantile(&mut ratios, 1.0) <= 2.0, "{kind:?}");
        }
    }
}

#[test]
fn of_clocks_by_a_part_of_their_points_no_event_is_outside_of_its_bound() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        // With 100 points, a jump can be among the first or the last points, where no jump can be found.
        let jumps = matches!(kind, Kind::SmallJump | Kind::LargeJump | Kind::Stops);
        for &points in if jumps { [300].as_slice() } else { &[300, 100] } {
            let mut outcome = Outcome::default();
            for number in 0..12 {
                let seed = 1000 * index as u64 + 700 + number;
                check_at_most(kind, seed, Kernel::None, Some(points), &mut outcome);
            }
            let Outcome { events, outside, unknown, worst, out_of_order, .. } = outcome;
            println!(
                "{kind:?}, {points} points: {events} events, {outside} outside (by {worst} ns at most), {unknown} \
                 unknown, {out_of_order} out of order; bound p50 {:.0} ns",
                quantile(&mut outcome.bounds, 0.5)
            );
            // `out_of_order` is not checked, because a point that was left out does not order events.
            assert_eq!((outside, unknown), (0, 0), "{kind:?}, {points} points");
        }
    }
}

#[test]
fn of_clocks_whose_rate_is_assumed_no_event_is_outside_of_its_bound() {
    for (index, kind) in KINDS.into_iter().enumerate() {
        // The first factor makes the declared rate right. With each other factor, the guest declares the rate
        // of another machine's counter.
        for factor in [1.0, 0.024, 41.6] {
            for points in [usize::MAX, 30] {
                let is_hidden = match kind {
                    // Between few points, nothing shows a jump if the rate is wrong as well.
                    Kind::LargeJump => factor != 1.0,
                    // A client with one point relies on other clients.
                    _ => kind == Kind::FalseReadings,
                };
                if points != usize::MAX && is_hidden {
                    continue;
                }
                let mut outcome = Outcome::default();
                for number in 0..8 {
                    let seed = 1000 * index as u64 + 800 + number;
                    let machine = machine(kind, seed, Kernel::None);
                    machine.assume((machine.declared as f64 * factor) as u64);
                    check_machine(&machine, kind, seed, Some(points), &mut outcome);
                }
                let Outcome { events, outside, unknown, worst, .. } = outcome;
                println!(
                    "{kind:?}, {factor} x the rate, {points} points: {events} events, {outside} outside (by {worst} ns \
                     at most), {unknown} unknown; bound p50 {:.0} ns",
                    quantile(&mut outcome.bounds, 0.5)
                );
                assert_eq!(outside, 0, "{kind:?}, {factor} x the rate, {points} points");
                // All points together prove the rate, so the bounds are small between the points.
                if points == usize::MAX && kind != Kind::Late {
                    let mut ratios = outcome.ratios_at(0.5);
                    let is_small = ratios.is_empty() || quantile(&mut ratios, 0.5) <= 1.5;
                    assert!(is_small, "{kind:?}: {ratios:?}");
                }
            }
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

/// Makes a session of clients whose clocks differ from the host's clock by these offsets in ns. Each client
/// has a point each millisecond. The host sees the point after 5 us, and answers 5 us later. The last client
/// has events only.
fn offsets(clients: &[u64]) -> Made {
    offsets_by(&Vec::from_iter(clients.iter().map(|offset| (*offset, 49))))
}

/// Makes such a session. Each client has an offset and a number of points.
fn offsets_by(clients: &[(u64, u64)]) -> Made {
    let mut made = Made::new();
    for (number, (offset, points)) in clients.iter().enumerate() {
        let number = number as u32;
        let (mut ring, mut host) = (Packet::guest(number), Packet::host(number));
        for point in 1..=*points {
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
    // The host sees and answers the points of client 0 late, so only the points of client 1 limit the map.
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
    let recording = Recording::of([(session, maps)], []);
    let events = kept::events(&recording).unwrap().into_iter();
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
        let recording = Recording::of([(session, maps)], []);
        for event in kept::events(&recording).unwrap() {
            let client = event.client.unwrap() as usize;
            // The client without points may read any of the clocks.
            let has_bound = client < clients.len() || alone.is_empty();
            assert_eq!(event.bound_ns.is_some(), has_bound, "{clients:?}: {event:?}");
        }
    }
}

#[test]
fn a_guests_kernel_has_the_clock_of_clients_that_agree_and_bounds_for_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guest.dat");
    let cases = [
        (&[0, 0, 0][..], Some(0)),
        (&[0, 400_000, 0, 0], Some(400_000)),
        (&[0, 700_000, 0, 400_000, 0], Some(700_000)),
        (&[500_000, 0, 900_000], None),
    ];
    // Names of the guest's clock in the kernel's trace and in the session.
    for (name, (clients, least_bound)) in [("x86-tsc", "tsc"), ("mono_raw", "monotonic_raw")]
        .into_iter()
        .flat_map(|name| cases.map(|of| (name, of)))
    {
        let page = trace_dat::Page::at(GUEST_BASE + 30_000_000).mmio(0, 5, 0);
        fs::write(&path, trace_dat::TraceDat::new(name.0).cpu(&[page]).version_7()).unwrap();
        let made = offsets(clients);
        made.set_guest_kind(name.1);
        let session = Session::open(made.path()).unwrap();
        let maps = ClockMaps::of(&session).unwrap();
        let mut trace = KernelTrace::open(&path).unwrap();

        let placed = trace.set_guest(&session, &maps);

        let Some(least_bound) = least_bound else {
            let why = placed.unwrap_err().to_string();
            assert!(why.contains("clients have different clocks"), "{why}");
            continue;
        };
        placed.unwrap();
        let recording = Recording::of([(session, maps)], [trace]);
        let events = kept::events(&recording).unwrap().into_iter();
        let [event] =
            &events.filter(|event| &*event.name == "kvm:kvm_mmio").collect::<Vec<_>>()[..]
        else {
            panic!("{clients:?}")
        };
        let error = (event.ts_ns - START_NS - 30_000_000).unsigned_abs();
        let bound = event.bound_ns.unwrap();
        assert!(error <= 10_000, "{clients:?}: {event:?}");
        assert!((least_bound..least_bound + 20_000).contains(&bound), "{clients:?}: {event:?}");
    }
}

/// Returns the error and the bound of an event's time. The event is in the recording of a guest's kernel, 30
/// ms after the session's start. `sender` says which client sent the recording.
#[track_caller]
fn of_guest(session: &Session, sender: &str) -> (i64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guest.dat");
    let page = trace_dat::Page::at(GUEST_BASE + 30_000_000).mmio(0, 5, 0);
    let origin = format!("hypertrace 0.1.0; source=tracefs; guest_clock=1{sender}\0");
    let trace = trace_dat::TraceDat::new("x86-tsc").option((9, origin.into())).cpu(&[page]);
    fs::write(&path, trace.version_7()).unwrap();
    let mut trace = KernelTrace::open(&path).unwrap();
    trace.set_guest(session, &ClockMaps::of(session).unwrap()).unwrap();
    let recording = Recording::of([], [trace]);
    let event = &kept::events(&recording).unwrap()[0];
    (event.ts_ns - START_NS - 30_000_000, event.bound_ns.unwrap())
}

#[test]
fn a_recording_of_a_guests_kernel_has_the_clock_and_the_bounds_of_the_client_that_sent_it() {
    let made = offsets(&[0, 700_000, 0, 400_000, 0]);
    let session = Session::open(made.path()).unwrap();

    let all = of_guest(&session, "");

    assert!(all.1 >= 700_000);
    for (client, late) in [(0, 0), (1, 700_000), (2, 0), (3, 400_000), (4, 0)] {
        let (error, bound) = of_guest(&session, &format!("; guest_client={client}"));
        assert!((error + late).abs() <= 10_000 && bound <= 20_000, "{client}: {error} {bound}");
    }
    // A client without points, a client that does not exist, and values that are no client's number.
    for client in ["5", "77", "4294967295", "-1"] {
        assert_eq!(of_guest(&session, &format!("; guest_client={client}")), all);
    }
}

#[test]
fn a_recording_of_a_client_with_few_points_has_the_bound_of_these() {
    for offset in [0, 700_000] {
        let made = offsets_by(&[(0, 49), (0, 49), (offset, 3)]);
        let session = Session::open(made.path()).unwrap();

        let (error, bound) = of_guest(&session, "; guest_client=2");

        // The client's last point is 27 ms before the event.
        assert!((25_000..200_000).contains(&bound), "{offset}: {bound}");
        assert!((error + offset as i64).unsigned_abs() <= bound, "{offset}: {error} {bound}");
    }
}

#[test]
fn a_guests_trace_with_a_clock_of_any_bound_has_no_smaller_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("guest.dat");
    let page = trace_dat::Page::at(GUEST_BASE + 30_000_000).mmio(0, 5, 0);
    let trace = trace_dat::TraceDat::new("x86-tsc")
        .cpu(&[page])
        .option(trace_dat::recorded(made::BOOT, u64::MAX));
    fs::write(&path, trace.version_7()).unwrap();
    let made = offsets(&[0, 0, 0]);
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let mut trace = KernelTrace::open(&path).unwrap();
    trace.set_guest(&session, &maps).unwrap();

    let recording = Recording::of([], [trace]);
    let events = kept::events(&recording).unwrap();

    assert_eq!(events[0].bound_ns, Some(u64::MAX));
}
