//! Tests that the session counts all losses, tears no record and keeps the order of the records while a
//! producer runs as fast as it can.

use crate::common;
use common::guest::{Guest, geometry};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::drain;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::ring::{Consumer, Emit};
use hypertrace_test_support::babeltrace2;
use hypertrace_trace::Session;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Emits events on this thread, while another thread makes a pass after each pause of `cadence`. Returns the
/// number of events that the producer could not record.
fn race(session: &Session, guest: &mut Guest, events: u64, cadence: Duration) -> u64 {
    let Guest { client, memory, producer, consumer, .. } = guest;
    let (client, memory) = (*client, *memory);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let last = done.load(Ordering::Acquire);
                drain::pass(session, |session, _| {
                    while session.drain(client, &mut Consumer::new(memory, consumer)).more {}
                });
                if last {
                    break;
                }
                std::thread::sleep(cadence);
            }
        });
        let mut refused = 0;
        for i in 0..events {
            let (site, fields) = event_type!("number", i, twice = 2 * i);
            let emit = producer.emit((site, fields), ticks);
            refused += u64::from(emit != Emit::Recorded);
        }
        producer.release();
        done.store(true, Ordering::Release);
        refused
    })
}

fn check(mode: RingMode, ring_bytes: u64, events: u64, cadence: Duration) {
    let (_dir, session) = common::session(|c| c.file_bytes = 1 << 20);
    let geometry = Geometry { ring_bytes, block_bytes: ring_bytes / 16, ..geometry() };
    let mut guest = Guest::with(0, &geometry, mode);

    let refused = race(&session, &mut guest, events, cadence);

    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    // A flight recorder may have overwritten not only events but also the lease record.
    assert_eq!(summary.ring_events + summary.leases + summary.lost, events + 1, "{summary:?}");
    assert!(mode == RingMode::Overwrite || summary.lost == refused);
    assert!(summary.faults.is_empty() && summary.time_faults == 0, "{summary:?}");
    let Some(read) = babeltrace2::read(&ctf) else { return };
    assert_eq!(read.complete(), summary.records);
    let mut before = None;
    for line in read.events.iter().filter(|l| l.contains(" number: ")) {
        let (_, fields) = line.split_once("{ i = ").unwrap();
        let (i, twice) = fields.trim_end_matches(" }").split_once(", twice = ").unwrap();
        let (i, twice): (u64, u64) = (i.parse().unwrap(), twice.parse().unwrap());
        assert_eq!(twice, 2 * i, "torn");
        assert!(before < Some(i), "out of order");
        before = Some(i);
    }
}

#[test]
fn a_lossless_ring_counts_events_without_room() {
    for ring_bytes in [1 << 14, 1 << 16, 1 << 20] {
        check(RingMode::Discard, ring_bytes, 100_000, Duration::from_micros(50));
        check(RingMode::Discard, ring_bytes, 100_000, Duration::from_millis(2));
    }
}

#[test]
fn a_flight_recorder_counts_overwritten_events() {
    for ring_bytes in [1 << 14, 1 << 16, 1 << 20] {
        check(RingMode::Overwrite, ring_bytes, 100_000, Duration::from_micros(50));
        check(RingMode::Overwrite, ring_bytes, 100_000, Duration::from_millis(2));
    }
}

#[test]
fn losses_among_events_that_nobody_wants_are_counted() {
    for mode in [RingMode::Discard, RingMode::Overwrite] {
        let (_dir, session) = common::session(|_| ());
        let geometry = Geometry { ring_bytes: 1 << 12, block_bytes: 256, ..geometry() };
        let mut guest = Guest::with(0, &geometry, mode);
        guest.pass(&session);
        session.set_events(&"number".parse().unwrap(), false).unwrap();
        let events = 1000;
        for i in 0..events {
            guest.emit(event_type!("number", i));
        }
        guest.producer.release();
        // The producer has ended, so this pass finds all records that are left in the ring.
        guest.pass(&session);

        let summary = session.finish().unwrap();

        assert!(summary.filtered > 0 && summary.lost > 0, "{mode:?}");
        assert_eq!(summary.filtered + summary.lost, events, "{mode:?}");
    }
}
