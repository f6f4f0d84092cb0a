//! A guest with two clients: one client writes anything anywhere at any time, and the other client is honest.
//! All readers read the whole session, and the honest client's events are complete.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hypertrace::ProducerState;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_device::{Geometry, RingMode};
use hypertrace_test_support::kept::Value;
use hypertrace_tests::acts::{Act, Actor, act};
use hypertrace_tests::forger::Forger;
use hypertrace_tests::host::{Host, Recorded};
use hypertrace_tests::{FULL_SIZE, babeltrace2};
use hypertrace_trace::session_json::StreamJson;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRng, TestRunner};

const CASES: u32 = if FULL_SIZE { 200 } else { 48 };
const HONEST: u32 = 0;
const HOSTILE: u32 = 1;

fn geometry() -> Geometry {
    Geometry { clients: 2, ring_bytes: 1 << 16, block_bytes: 1 << 12, ..Geometry::default() }
}

/// Asserts that all readers read the whole session, and that the honest client is unaffected.
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
    assert_eq!(recorded.client(HONEST).lost_unattached, 0);
    assert_eq!((numbers.len() as u64, faults.len()), (*events, 0));
    // In a flight recorder that was not drained in time, the lease may be overwritten, too.
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
fn hostile_acts_in_sequence() {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let modes = proptest::sample::select(vec![RingMode::Discard, RingMode::Overwrite]);
    let acts = proptest::collection::vec(act(), 1..300);
    let run = |(acts, mode): (Vec<Act>, RingMode)| {
        attack(&acts, mode);
        Ok(())
    };
    TestRunner::new(config).run(&(acts, modes), run).unwrap();
}

/// Runs one of the two vCPUs, which use the hostile client.
fn act_until(done: &AtomicBool, host: &Host, vcpu: u8) {
    let config = Config::default();
    let rng = TestRng::from_seed(config.rng_algorithm, &[vcpu + 1; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let mut actor = Actor::new(host, HOSTILE);
    // Another thread drains.
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
            assert!(honest.wait_for_room(1, 1));
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
fn hostile_acts_of_two_vcpus() {
    attack_from_two_vcpus(RingMode::Discard);
}

#[test]
fn hostile_acts_of_two_vcpus_in_a_flight_recorder() {
    attack_from_two_vcpus(RingMode::Overwrite);
}

/// Filtered records move the ring's position and are in no packet.
#[test]
fn files_are_consistent_when_a_ring_goes_back_under_a_filter() {
    let host = Host::new(geometry());
    let mut forger = Forger::new(&host.chip, HOSTILE);
    let unwanted = forger.tell("unwanted(i:u64)");
    let block = 4096 / 8;
    forger.head = 2 * block;
    forger.block(0, 1);
    (0..20).for_each(|i| forger.record(ticks(), unwanted, 1, 0, &[i]));
    forger.publish();
    // The host records only a part of the records, because the guest has never written the words before the
    // block of `head`.
    host.chip.drain_all();
    forger.record(ticks(), unwanted, 1, 0, &[20]);
    forger.publish();
    host.chip.drain_all();
    host.session.set_events(&"unwanted".parse().unwrap(), false).unwrap();
    forger.head = 0;
    forger.publish();
    host.chip.drain_all();
    forger.block(0, 1);
    forger.record(ticks(), unwanted, 1, 0, &[21]);
    forger.publish();
    host.chip.drain_all();
    // A second holder's clock does not fit the client's file, so the session begins a new file.
    let e = forger.tell("e(x:u64)");
    forger.head = block;
    forger.block(1, 2);
    forger.record(1 << 50, e, 1, 0, &[7]);
    forger.publish();
    host.chip.drain_all();

    let recorded = host.finish();

    let faults = &recorded.summary.faults;
    assert!(faults["head"] > 0 && recorded.summary.filtered > 0, "{:?}", recorded.summary);
    let files = std::fs::read_dir(recorded.ctf()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(names.filter(|name| name.starts_with("guest-001-")).count() > 1);
    assert_eq!(recorded.events().len() as u64, recorded.summary.records);
}
