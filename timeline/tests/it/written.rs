// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of sessions that the project's own writer wrote.

use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{Fields, Site, Words};
use hypertrace_abi::event_type;
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, ConsumerState, Lease, LeaseInfo, NewRecord, Producer, ProducerState,
};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint, Status};
use hypertrace_test_support::kept::{self, Event, Value};
use hypertrace_test_support::steps::Steps;
use hypertrace_timeline::{ClockMaps, EventKind, Recording, Session, SessionStat, StreamStat};
use hypertrace_trace::SessionConfig;
use hypertrace_trace::session_json::SessionJson;
use proptest::prelude::*;
use std::path::Path;
use std::sync::atomic::Ordering;

/// A client of a guest whose counter is ahead of the host's.
pub struct Guest {
    client: u32,
    ahead: u64,
    pub area: &'static [AtomicU64],
    pub memory: ClientMemory<'static>,
    producer: Producer<'static>,
    consumer: ConsumerState,
}

impl Guest {
    pub fn new(client: u32, ahead: u64, name: &str) -> Guest {
        let geometry =
            Geometry { ring_bytes: 1 << 18, block_bytes: 1 << 14, ..Geometry::default() };
        let words = geometry.client_stride() / 8;
        let area: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let area: &'static [AtomicU64] = area.leak();
        let memory = ClientMemory::new(area, &geometry, RingMode::Discard).unwrap();
        let state: &'static ProducerState = Box::leak(Box::default());
        let info = LeaseInfo { pid: 1, tid: 2, name };
        let lease = Lease::new(77 + u64::from(client), ClockKind::Tsc, ticks() + ahead, &info);
        let producer = Producer::lease(memory, state, lease, false);
        Guest { client, ahead, area, memory, producer, consumer: ConsumerState::default() }
    }

    fn now(&self) -> u64 {
        ticks() + self.ahead
    }

    pub fn emit<S: Site, F: Fields>(&self, event: (S, F)) {
        self.producer.emit(event, || self.now());
    }

    /// Handles a store to EMIT, as a vCPU's thread does.
    fn point(&self, session: &hypertrace_trace::Session, n: u64) {
        let guest_time = self.now();
        session.emit(event_type!("vcpu_exit", n = n));
        let status = session.reference_point(&ReferencePoint {
            client: self.client,
            seq: n as u32,
            id: id_of("disk_read(lba:u64,name:str)"),
            name_hash: 0,
            cpu: self.client,
            guest_time,
            host_time: ticks(),
            words: &[n, 3 | 0x0063_6261 << 32],
        });
        assert_eq!(status, Status::Recorded);
        session.emit(event_type!("vcpu_entry", n = n));
    }

    pub fn pass(&mut self, session: &hypertrace_trace::Session) {
        session.begin_pass();
        while session.drain(self.client, &mut Consumer::new(self.memory, &mut self.consumer)).more {
        }
        session.end_pass();
    }
}

fn read(dir: &Path) -> (SessionStat, Vec<Event>) {
    let session = Session::open(dir).unwrap();
    let stat = SessionStat::of(&session).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let events = kept::events(&recording).unwrap();
    (stat, events)
}

#[test]
fn written_events_are_read_in_the_order_in_which_they_happened() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("s");
    let mut config = SessionConfig::new(&dir);
    config.file_bytes = 1 << 18; // several files
    let session = hypertrace_trace::Session::create(config).unwrap();
    assert!(session.attach("vcpu0"));
    let mut guest = Guest::new(0, 123_456_789_000, "worker");
    const ROUNDS: u64 = 300;
    const EACH: u64 = 100;
    for round in 0..ROUNDS {
        for i in 0..EACH {
            guest.emit(event_type!("disk_read", lba = round * EACH + i, name = "abc"));
        }
        guest.point(&session, round);
        guest.pass(&session);
    }
    let summary = session.finish().unwrap();

    let (stat, events) = read(&dir);

    assert_eq!(stat.total.records, summary.records);
    assert_eq!(stat.total.reference_points, ROUNDS);
    assert_eq!(stat.total.events, ROUNDS * EACH + 2 * ROUNDS);
    assert_eq!((stat.total.lost, stat.total.faults), (0, 0));
    let maps = ClockMaps::of(&Session::open(&dir).unwrap()).unwrap();
    assert_eq!(maps.unusable(), 0);
    let (.., map) = maps.iter().next().unwrap();
    assert!(map.constraints() >= 2 * ROUNDS as usize - 1, "{}", map.constraints());

    let mut next = 0;
    let mut before_exit = true;
    for event in &events {
        match (&*event.name, event.kind) {
            ("disk_read", EventKind::Event) => {
                assert_eq!(event.fields[0].1, Value::Unsigned(next));
                assert_eq!(&*event.source, "guest/0 worker");
                // The size of the bound is not checked. In trials, all errors were less than 100 us, but an
                // error may be larger on a busy machine.
                assert!(event.bound_ns.is_some(), "{event:?}");
                next += 1;
            }
            ("disk_read", EventKind::ReferencePoint) => {
                // The point comes after all events of the rounds up to its own round, and before all events
                // of later rounds.
                let Value::Unsigned(round) = event.fields[0].1 else { panic!() };
                assert_eq!(next, (round + 1) * EACH);
                assert_eq!(event.fields[1].1, Value::Str(b"abc".as_slice().into()));
                assert!(!before_exit);
            }
            ("vcpu_exit", _) => {
                assert_eq!(&*event.source, "vmm/vcpu0");
                before_exit = false;
            }
            ("vcpu_entry", _) => before_exit = true,
            ("lease", EventKind::Lease) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next, ROUNDS * EACH);
    assert!(events.is_sorted_by_key(|e| e.ts_ns));
}

#[test]
fn counts_agree_with_the_writers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("s");
    let session = hypertrace_trace::Session::create(SessionConfig::new(&dir)).unwrap();
    session.attach("vmm");
    let mut guests = [Guest::new(0, 5, "a"), Guest::new(3, 1 << 40, "b\x1b[2J")];
    for round in 0..50 {
        for guest in &mut guests {
            // The guest emits more events than the ring holds, so some are lost.
            for i in 0..10_000u64 {
                guest.emit(event_type!("disk_read", lba = i, name = "x"));
            }
            guest.point(&session, round);
            guest.producer.emit(NewRecord::of_id(0xdead_beef, Words(&[1, 2, 3])), || guest.now());
            guest.pass(&session);
        }
    }
    let summary = session.finish().unwrap();

    let (stat, events) = read(&dir);

    let json: SessionJson =
        serde_json::from_slice(&std::fs::read(dir.join("session.json")).unwrap()).unwrap();
    assert_eq!(events.len() as u64, summary.records);
    assert!(stat.total.lost > 0);
    assert_eq!(stat.total.lost, summary.lost);
    assert_eq!(stat.total.events, summary.ring_events + summary.host_events);
    for described in &json.streams {
        let found =
            stat.streams.iter().find(|s| s.stream == Some((described.domain, described.client)));
        let StreamStat { events, reference_points, lost, filtered, faults, .. } = found.unwrap();
        assert_eq!(*events, described.events);
        assert_eq!(*reference_points, described.reference_points);
        assert_eq!(
            *lost,
            described.lost_full
                + described.lost_busy
                + described.lost_unattached
                + described.lost_overwritten
        );
        assert_eq!(*filtered, described.filtered);
        assert_eq!(*faults, described.faults.values().sum::<u64>());
    }
}

#[test]
fn an_unfinished_session_is_read_up_to_its_last_commit() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("s");
    let session = hypertrace_trace::Session::create(SessionConfig::new(&dir)).unwrap();
    session.attach("vcpu0");
    assert_eq!(read(&dir).1.len(), 0);
    let mut guest = Guest::new(0, 0, "g");
    for round in 0..20 {
        guest.emit(event_type!("disk_read", lba = round, name = ""));
        guest.point(&session, round);
        guest.pass(&session);
        let (stat, events) = read(&dir);
        // There are two leases, one of the guest and one of the thread. Each round has four events: emit,
        // exit, point and entry.
        assert_eq!(events.len() as u64, 2 + 4 * (round + 1));
        assert_eq!(stat.total.records, events.len() as u64);
        assert!(!Session::open(&dir).unwrap().json().finished);
    }
}

/// Returns the values that are most likely to do harm.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        Just(u64::MAX),
        Just(u64::MAX - 5),
        Just(1 << 63),
        0u64..100_000,
        any::<u64>(),
        // a header: any id, some words, some flags
        (0u64..20, 0u64..40, 0u64..4).prop_map(|(id, words, flags)| id | words << 32 | flags << 48),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_guest_did_its_session_is_read_to_the_end(
        rounds in prop::collection::vec(
            (
                0u64..3_000,
                // counters in page G
                prop::option::weighted(0.4, (prop::sample::select(vec![0usize, 8, 9, 16]), word())),
                // words of the schema log and the ring, counted from the end of page H
                prop::collection::vec((0usize..40_000, word()), 0..40),
                // words of the client's reference point
                prop::option::of((word(), word())),
                any::<bool>(),
            ),
            1..12,
        ),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("s");
        let mut config = SessionConfig::new(&dir);
        config.file_bytes = 1 << 17;
        let session = hypertrace_trace::Session::create(config).unwrap();
        session.attach("vcpu0");
        let mut guest = Guest::new(0, 1 << 33, "bad");
        let good = Guest::new(1, 1 << 20, "good");
        for (events, counter, words, claim, again) in rounds {
            for i in 0..events {
                guest.emit(event_type!("disk_read", lba = i, name = "x"));
            }
            good.emit(event_type!("disk_read", lba = 1u64, name = "y"));
            good.point(&session, 1);
            for (at, value) in words {
                let at = (1024 + at) % guest.area.len();
                guest.area[at].store(value, Ordering::Relaxed);
            }
            if let Some((at, value)) = counter {
                guest.area[at].store(value, Ordering::Relaxed);
            }
            if let Some((guest_time, client)) = claim {
                session.reference_point(&ReferencePoint {
                    client: client as u32 % 4,
                    seq: 0,
                    id: id_of("disk_read(lba:u64,name:str)"),
                    name_hash: 0,
                    cpu: u32::MAX,
                    guest_time,
                    host_time: ticks(),
                    words: &[guest_time; 3],
                });
            }
            guest.pass(&session);
            if again {
                guest.ahead = 1 << 34;
                let now = guest.now();
                let info = LeaseInfo { pid: 1, tid: 2, name: "\u{1b}" };
                guest.producer = Producer::lease(
                    guest.memory,
                    guest.producer.state(),
                    Lease::new(now | 1, ClockKind::MonotonicRaw, now, &info),
                    false,
                );
            }
        }
        let mut good = good;
        good.pass(&session);
        let summary = session.finish().unwrap();

        let (stat, events) = read(&dir);

        prop_assert_eq!(events.len() as u64, summary.records);
        prop_assert_eq!(stat.total.records, summary.records);
        prop_assert_eq!(stat.total.lost, summary.lost);
        prop_assert_eq!(stat.total.faults, summary.faults.values().sum::<u64>());
    }
}
