//! A guest that writes anything anywhere at any time, beside a client that keeps the rules: everybody
//! reads the session to its end, and the other client's events are complete.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hypertrace::ProducerState;
use hypertrace_abi::event_type;
use hypertrace_device::{Geometry, RingMode};
use hypertrace_tests::acts::{Act, Actor, act};
use hypertrace_tests::babeltrace2;
use hypertrace_tests::host::{Host, Recorded};
use hypertrace_timeline::Value;
use hypertrace_trace::session_json::StreamJson;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRng, TestRunner};

const CASES: u32 = if cfg!(debug_assertions) { 48 } else { 200 };
const HONEST: u32 = 0;
const HOSTILE: u32 = 1;

fn geometry() -> Geometry {
    Geometry { clients: 2, ring_bytes: 1 << 16, block_bytes: 1 << 12, ..Geometry::default() }
}

/// Everybody reads it to its end, and the honest client is as if it were alone.
fn check(recorded: &Recorded, emitted: u64, is_complete: bool) {
    let events = recorded.events();
    assert_eq!(events.len() as u64, recorded.summary.records);
    let honest = events.iter().filter(|event| &*event.name == "honest");
    let numbers: Vec<u64> = honest
        .map(|event| match event.fields[0].1 {
            Value::Unsigned(number) if event.client == Some(HONEST) => number,
            _ => panic!("{event:?}"),
        })
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "in order, none twice");
    let StreamJson { events, lost_full, lost_busy, lost_overwritten, faults, .. } =
        recorded.client(HONEST);
    assert_eq!((numbers.len() as u64, faults.len()), (*events, 0));
    // Of a flight recorder that was not drained in time, the lease may be gone, too.
    let lost = lost_full + lost_busy + lost_overwritten;
    assert!(events + lost == emitted || lost > 1 && events + lost == emitted + 1);
    assert!(!is_complete || *events == emitted);
    assert_eq!(recorded.client(HOSTILE).faults, recorded.summary.faults);
    if let Some(read) = babeltrace2::read(&recorded.ctf()) {
        assert_eq!(read.complete(), recorded.summary.records);
    }
}

fn attack(acts: &[Act], mode: RingMode) {
    let host = Host::with_mode(geometry(), mode);
    let mut hostile = Actor::new(&host, HOSTILE);
    let state = ProducerState::new();
    let honest = host.lease(HONEST, &state, "honest");
    for (act, number) in acts.iter().zip(0u64..) {
        hostile.perform(act);
        let (site, fields) = event_type!("honest", number);
        honest.emit(site, fields);
    }
    honest.release();
    host.chip.drain_all();
    check(&host.finish(), acts.len() as u64, true);
}

#[test]
fn one_thing_after_the_other() {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let modes = proptest::sample::select(vec![RingMode::Discard, RingMode::Overwrite]);
    let acts = proptest::collection::vec(act(), 1..300);
    let run = |(acts, mode): (Vec<Act>, RingMode)| {
        attack(&acts, mode);
        Ok(())
    };
    TestRunner::new(config).run(&(acts, modes), run).unwrap();
}

/// What one of two vCPUs does on the hostile client.
fn act_until(done: &AtomicBool, host: &Host, vcpu: u8) {
    let config = Config::default();
    let rng = TestRng::from_seed(config.rng_algorithm, &[vcpu + 1; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let mut actor = Actor::new(host, HOSTILE);
    // The drain loop has a thread of its own.
    let act = act().prop_filter("not a guest's", |act| !matches!(act, Act::Drain));
    while !done.load(Ordering::Relaxed) {
        actor.perform(&act.new_tree(&mut runner).unwrap().current());
    }
}

fn attack_from_two_vcpus(mode: RingMode) {
    let host = Host::with_mode(geometry(), mode);
    let drain = host.drain();
    let (begin, done) = (Instant::now(), AtomicBool::new(false));
    let mut number = 0u64;
    std::thread::scope(|scope| {
        for vcpu in 0..2 {
            let (host, done) = (&host, &done);
            scope.spawn(move || act_until(done, host, vcpu));
        }
        let state = ProducerState::new();
        let honest = host.lease(HONEST, &state, "honest");
        while begin.elapsed() < Duration::from_secs(1) {
            assert!(honest.wait_for_room(8));
            let (site, fields) = event_type!("honest", number);
            honest.emit(site, fields);
            number += 1;
            if number.is_multiple_of(16) {
                std::thread::yield_now();
            }
        }
        honest.release();
        done.store(true, Ordering::Relaxed);
    });
    drain.finish();
    let recorded = host.finish();
    println!("{mode:?}: {} records, {:?}", recorded.summary.records, recorded.summary.faults);
    check(&recorded, number, mode == RingMode::Discard);
}

#[test]
fn all_at_once() {
    attack_from_two_vcpus(RingMode::Discard);
}

#[test]
fn all_at_once_into_a_flight_recorder() {
    attack_from_two_vcpus(RingMode::Overwrite);
}
