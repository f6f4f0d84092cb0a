// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the kernel's events around reference points: which of these events limit the guest's clock.

use hypertrace_test_support::{made, trace_dat};
use hypertrace_timeline::{ClockMaps, KernelTrace, Session};
use made::{
    BOOT, DISK_READ, EVENTS, GHZ, GUEST_BASE, Made, Packet, START_NS, clock, json, with_boot,
};
use std::slice::from_ref;
use trace_dat::{KVM_FPU_ID, KVM_MMIO_ID, Page, TraceDat};

/// Hash of the points' name, which a guest stores with the points' sequence numbers.
const HASH: u64 = 0xbb91_3871;

const TID: u32 = 43;
const MS: u64 = 1_000_000;

/// A kernel's event: time, id, payload.
type Seen = (u64, u16, Vec<u8>);

/// Makes a session of a guest with the host's clock. `points` are the times at which the guest reads its
/// clock for a point. The host sees the point 10 us later, and the guest reads its clock again 10 us after
/// that. The function also returns the kernel's events around the points: a store 1 us after the first
/// reading, and a load 1 us before the second reading.
fn session(points: &[u64]) -> (Made, Vec<Seen>) {
    let clocks = [("host", 0), ("guest", GUEST_BASE)]
        .map(|(domain, base)| clock(u32::from(domain == "guest"), domain, 0, GHZ, base, START_NS));
    let json = json(&format!("[{}]", clocks.join(",")), EVENTS, "[]");
    let (mut ring, mut host) = (Packet::guest(0), Packet::host(0).lease(1, 9, "vcpu0"));
    let mut kernel = Vec::new();
    for (number, at) in points.iter().copied().enumerate() {
        host = host.point(at + 10_000, 0, number as u32, GUEST_BASE + at, 0);
        ring = ring.event(at + 20_000, DISK_READ, &[0, 0]);
        kernel.push((at + 1_000, KVM_MMIO_ID, trace_dat::mmio(HASH << 32 | number as u64)));
        kernel.push((at + 3_000, KVM_FPU_ID, vec![0; 4]));
        kernel.push((at + 19_000, KVM_FPU_ID, vec![1, 0, 0, 0]));
    }
    let made = Made::with_json(&with_boot(&json, Some(BOOT)))
        .stream("guest-0", &[Packet::guest(0), ring])
        .stream("host-0", &[Packet::host(0), host]);
    (made, kernel)
}

fn pages(seen: &[Seen]) -> Vec<Page> {
    // A new page begins if two events are far apart, because a page cannot represent such a long time between
    // events.
    let near = seen.chunk_by(|a, b| b.0 - a.0 < 100 * MS);
    let events = |seen: &[Seen]| {
        Vec::from_iter(seen.iter().map(|(at, id, payload)| (*at, *id, TID, payload.clone())))
    };
    near.flat_map(|seen| Page::all(&events(seen))).collect()
}

/// Writes a kernel.dat with these pages, one list for each CPU, and makes the maps.
fn maps(made: &Made, cpus: &[Vec<Page>]) -> (Session, ClockMaps) {
    let trace = TraceDat::new("x86-tsc").option(trace_dat::recorded(BOOT, 0));
    let trace = cpus.iter().fold(trace, |trace, pages| trace.cpu(pages));
    made.kernel(&trace);
    let session = Session::open(made.path()).unwrap();
    let trace = KernelTrace::of_session(0, &session).unwrap().unwrap();
    let (sessions, traces) = (from_ref(&session), from_ref(&trace));
    let maps = KernelTrace::clock_maps_of(0, sessions, traces, &[]).unwrap();
    (session, maps)
}

fn p50(maps: &ClockMaps) -> u64 {
    let (.., map) = maps.iter().next().unwrap();
    map.bounds().unwrap().p50 / 256
}

fn each_ms(count: u64) -> Vec<u64> {
    (1..=count).map(|n| n * MS).collect()
}

#[test]
fn stores_and_loads_around_points_limit_the_clock() {
    let (made, kernel) = session(&each_ms(50));
    let session = Session::open(made.path()).unwrap();
    let points = ClockMaps::of(&session).unwrap();
    assert!((9_000..11_500).contains(&p50(&points)), "{}", p50(&points));

    let (_, maps) = maps(&made, &[pages(&kernel)]);

    assert_eq!(maps.of_kernel(), Some((100, 0)));
    assert!(p50(&maps) < 2_500, "{}", p50(&maps));
}

#[test]
fn times_near_lost_events_are_not_used() {
    let (made, kernel) = session(&each_ms(20));
    // On another CPU, events were lost between these two times.
    let (from, to) = (5 * MS + 18_000, 7 * MS + 500);
    let event = |page: Page| page.event(0, trace_dat::KVM_USERSPACE_EXIT_ID, 7, &[0; 8]);
    let other = [event(Page::at(from)), event(Page::at(to).missed(true))];

    let (_, maps) = maps(&made, &[pages(&kernel), other.into()]);

    // The load after point 5, and both events of point 6, are missing.
    assert_eq!(maps.of_kernel(), Some((37, 0)));
}

#[test]
fn a_point_whose_store_is_missing_has_no_load_of_another() {
    let (made, mut kernel) = session(&each_ms(20));
    let at = kernel.iter().position(|(time, ..)| *time == 5 * MS + 1_000).unwrap();
    kernel.drain(at..at + 3);

    let (_, maps) = maps(&made, &[pages(&kernel)]);

    assert_eq!(maps.of_kernel(), Some((38, 0)));
}
