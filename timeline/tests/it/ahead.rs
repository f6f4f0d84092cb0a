// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of reading events ahead for a consumer. The consumer may want no more events, or fail.
//! `kept::entries` checks that the reader gives the same entries with and without reading ahead.

use hypertrace_test_support::kept;
use hypertrace_test_support::made::{DISK_READ, Made, OPENED, Packet};
use hypertrace_test_support::trace_dat::{Page, TraceDat};
use hypertrace_timeline::{EntryRef, Error, Given, KernelTrace, Needs, Recording};
use std::fs;

const EVENTS: u64 = 50_000;

/// Makes a session whose last packet is damaged.
fn damaged() -> Made {
    let last = (0..EVENTS).fold(Packet::guest(0), |p, n| p.event(n, DISK_READ, &[n, 0]));
    let damaged = Packet::guest(0).after(&last).event_str(EVENTS, OPENED, &[], &[1; 4]);
    let made = Made::new().stream("guest-0", &[Packet::guest(0), last, damaged]);
    let mut bytes = fs::read(made.file("guest-0")).unwrap();
    // The damage is in the length of the event's text. This length comes after the packet's header of 128
    // bytes and the event's first 16 bytes, and the packet has 256 bytes.
    let at = bytes.len() - 256 + 128 + 16;
    bytes[at..at + 4].fill(0xff);
    fs::write(made.file("guest-0"), bytes).unwrap();
    made
}

/// Reads until the consumer has received `until` events. For the last of these events, the consumer returns
/// the result of `end`. Returns the result, and the number of events.
fn read(made: &Made, until: u64, end: fn() -> Result<bool, Error>) -> (Result<(), Error>, u64) {
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let mut given = 0;
    let result = recording.read(Needs::ALL, &mut |_: &EntryRef<'_>| {
        given += 1;
        if given == until { end() } else { Ok(true) }
    });
    (result.map(drop), given)
}

#[test]
fn who_wants_no_more_gets_no_more_and_no_later_damage() {
    let made = damaged();
    for until in [1, 1_024, 1_025, EVENTS] {
        let (result, given) = read(&made, until, || Ok(false));

        assert_eq!(given, until);
        result.unwrap();
    }
}

#[test]
fn who_wants_no_more_hears_of_no_later_faults() {
    let mut pages = Vec::from_iter((0..20).map(|n| {
        let begin = Page::at(1_000 * (n + 1));
        (0..100).fold(begin, |page, value| page.mmio(1, 77, value))
    }));
    // The last event has a time before the events of all earlier pages.
    pages.push(Page::at(500).mmio(1, 77, 0));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    fs::write(&path, TraceDat::new("mono").cpu(&pages).version_7()).unwrap();
    let recording = Recording::of([], [KernelTrace::open(&path).unwrap()]);
    for (until, expected) in [(1, 0), (2_000, 0), (2_001, 1), (u64::MAX, 1)] {
        let mut given = 0;
        let warnings = recording.read(Needs::ALL, &mut |_: &EntryRef<'_>| {
            given += 1;
            Ok::<_, Error>(given < until)
        });

        assert_eq!(warnings.unwrap().len(), expected, "{until}");
    }
}

#[test]
fn all_events_before_damage_are_given() {
    let (result, given) = read(&damaged(), u64::MAX, || Ok(true));

    let why = result.unwrap_err().to_string();
    assert!(why.contains("guest-0: damaged at byte"), "{why}");
    assert_eq!(given, EVENTS);
}

#[test]
fn the_error_of_a_consumer_ends_the_reading() {
    let made = damaged();
    for until in [1, 2_000] {
        let end = || Err(Error::NotGiven { path: "mine".into(), session: "S".into() });

        let (result, given) = read(&made, until, end);

        assert_eq!(given, until);
        assert!(result.unwrap_err().to_string().contains("mine"));
    }
}

#[test]
fn a_panic_of_a_consumer_ends_the_reading() {
    let made = damaged();

    let panicked = std::panic::catch_unwind(|| read(&made, 2_000, || panic!("mine")));

    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "mine");
}

#[test]
fn more_events_than_are_read_ahead_are_the_same() {
    let last = (0..EVENTS).fold(Packet::guest(0), |p, n| p.event(n, DISK_READ, &[n, n * n]));
    let made = Made::new().stream("guest-0", &[Packet::guest(0), last]);
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    let (entries, _) = kept::entries(&recording, Needs::ALL).unwrap();

    assert_eq!(entries.len() as u64, EVENTS);
}
