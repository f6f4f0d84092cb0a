//! Tests of the corrections of a guest's times that trace-cmd applies. trace-cmd computes with 64 bits.

use hypertrace_test_support::kept::{self, Entry};
use hypertrace_test_support::{made, trace_dat};
use hypertrace_timeline::{ClockMaps, KernelTrace, Needs, Recording, Session};
use made::*;
use std::fs;
use trace_dat::{Page, TraceDat};

/// Raw value of the host's counter when its clock has tick 0.
const HOST_BASE: i64 = 1_000_000;

/// Corrections of a guest's times: a raw time of the guest, and the difference to the host's ticks.
type Corrections = Vec<(u64, i64)>;

/// Makes a session whose guest has a clock of this rate. The guest has a point each ms. The host sees each
/// point after 8 us, and the guest reads its clock again after 10 us.
fn session(frequency: u64) -> Made {
    let ticks = |ns: u64| (u128::from(ns) * u128::from(frequency) / u128::from(GHZ)) as u64;
    let host = clock(0, "host", 0, GHZ, HOST_BASE as u64, START_NS);
    let guest = clock(1, "guest", 0, frequency, GUEST_BASE, START_NS);
    let json = json(&format!("[{host},{guest}]"), EVENTS, "[]");
    let (mut ring, mut thread) = (Packet::guest(0), Packet::host(0));
    for point in 0..50u64 {
        let time = 1_000_000 * (point + 1);
        thread = thread.point(time + 8_000, 0, point as u32, GUEST_BASE + ticks(time), point);
        ring = ring.event(ticks(time + 10_000), DISK_READ, &[point, 0]);
    }
    Made::with_json(&with_boot(&json, Some(BOOT)))
        .stream("guest-0", &[Packet::guest(0), ring])
        .stream("host-0", &[Packet::host(0), thread])
}

/// Returns the corrections for a guest's events at these raw times. For each event, also returns the host's
/// ticks that the session's points give, and the bound on their error.
fn corrections(
    frequency: u64,
    times: &[u64],
    most: usize,
) -> (Option<Corrections>, Vec<(i64, u64)>) {
    let made = session(frequency);
    let pages: Vec<Page> = times.iter().map(|time| Page::at(*time).mmio(0, 5, 0)).collect();
    let path = made.path().join("guest.dat");
    fs::write(&path, TraceDat::new("x86-tsc").cpu(&pages).version_7()).unwrap();
    let session = Session::open(made.path()).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let mut trace = KernelTrace::open(&path).unwrap();
    trace.set_guest(&session, &maps).unwrap();

    let corrections = trace.corrections(&session, most).unwrap();

    let recording = Recording::of([], [trace]);
    let (entries, _) = kept::entries(&recording, Needs::ALL).unwrap();
    let mut shown = Vec::new();
    for entry in entries {
        if let Entry::Event(event) = entry {
            shown.push((event.ts_ns - START_NS + HOST_BASE, event.bound_ns.unwrap_or(0)));
        }
    }
    (corrections, shown)
}

/// Computes the host's ticks from a guest's ticks as trace-cmd does. An overflow is a panic.
fn by_trace_cmd(corrections: &[(u64, i64)], guest: u64) -> i64 {
    let after = corrections.partition_point(|(time, _)| *time < guest);
    let at = after.clamp(1, corrections.len() - 1);
    let [(from, first), (to, last)] = [corrections[at - 1], corrections[at]];
    let (elapsed, all) = ((guest - from) as i64, (to - from) as i64);
    let grown = elapsed.checked_mul(last - first).unwrap().checked_add(all / 2).unwrap() / all;
    guest as i64 + first + grown
}

#[test]
fn corrected_times_are_those_of_the_map_within_a_16th_of_their_bound() {
    for frequency in [GHZ, GHZ / 10 * 4, 3 * GHZ] {
        // The first time is before the first point, and the last time is about 100 s after the last point. If
        // the guest's rate differs from the host's, a single line cannot hold all corrections.
        let times = (0..100u64).map(|n| n * n * n * 100_000 * (frequency / 1_000_000) / 1_000);
        let times: Vec<u64> = times.map(|time| GUEST_BASE - 5 + time).collect();

        let (corrections, shown) = corrections(frequency, &times, 1_000);

        let corrections = corrections.unwrap();
        assert_eq!(corrections.len() > 20, frequency != GHZ, "{frequency}: {corrections:?}");
        for (raw, (time, bound)) in times.iter().zip(shown) {
            let off = by_trace_cmd(&corrections, *raw).abs_diff(time);
            assert!(off <= bound / 16 + 3, "{frequency}: {raw}: {off} of {bound}");
        }
    }
}

#[test]
fn a_clock_that_needs_too_many_has_none() {
    let times: Vec<u64> = (0..100u64).map(|n| GUEST_BASE + n * GHZ).collect();
    let (all, _) = corrections(GHZ / 10 * 4, &times, 1_000);
    let needed = all.unwrap().len();
    assert_eq!(corrections(GHZ / 10 * 4, &times, needed).0.map(|all| all.len()), Some(needed));
    assert_eq!(corrections(GHZ / 10 * 4, &times, needed - 1).0, None);
}

#[test]
fn times_that_no_guest_has_make_no_endless_work() {
    for times in [&[0, u64::MAX][..], &[1, 1 << 63, u64::MAX - 1], &[u64::MAX, 0], &[7], &[]] {
        let (corrections, _) = corrections(GHZ / 10 * 4, times, 1_000);
        assert!(corrections.is_none_or(|all| (1..=1_000).contains(&all.len())), "{times:?}");
    }
}
