//! Tests of the waits of a drain loop: the loop may wait without a timer until the session gets a record.

use crate::common;
use common::guest::Guest;
use common::session;
use hypertrace_abi::drain::PAUSE;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_test_support::sleeps::sleeps_in;
use hypertrace_test_support::steps::Steps;
use hypertrace_test_support::wait_until;
use hypertrace_trace::session_json::SessionJson;
use hypertrace_trace::{Output, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn pass(session: &Session) {
    session.begin_pass();
    session.end_pass();
}

fn tick(session: &Session) {
    assert_eq!(session.emit(event_type!("tick")), Emit::Recorded);
}

/// Makes passes until the session is quiet. Returns the time until then.
fn until_quiet(session: &Session) -> Duration {
    let begin = Instant::now();
    wait_until("quiet", || {
        pass(session);
        session.is_quiet()
    });
    begin.elapsed()
}

#[test]
fn a_session_that_can_wake_nobody_is_never_quiet() {
    let (_dir, session) = session(|_| ());
    pass(&session);
    assert!(!session.is_quiet());
    session.wake_by(|| ());
    assert!(session.is_quiet());
}

#[test]
fn a_session_is_quiet_when_its_accounts_have_everything_that_was_recorded() {
    let (_dir, session) = session(|_| ());
    session.wake_by(|| ());
    pass(&session);
    tick(&session);
    assert!(!session.is_quiet(), "an event is in a ring");
    pass(&session);
    assert_eq!(session.quiet_for(), Duration::ZERO, "another one may follow");
    pass(&session);
    let until_accounts = session.quiet_for();
    assert!(until_accounts <= Duration::from_secs(1), "the accounts do not have it");
    assert!(until_accounts > Duration::ZERO, "no pass before could write them");

    until_quiet(&session);

    let text = std::fs::read_to_string(session.dir().join("session.json")).unwrap();
    let json: SessionJson = serde_json::from_str(&text).unwrap();
    assert_eq!(json.streams.iter().map(|stream| stream.events).sum::<u64>(), 1);
}

#[test]
fn a_write_that_failed_is_tried_again_by_the_timer() {
    let (_dir, session) = session(|_| ());
    session.wake_by(|| ());
    tick(&session);
    // The accounts cannot be replaced, because a folder has their name.
    let json = session.dir().join("session.json");
    std::fs::remove_file(&json).unwrap();
    std::fs::create_dir_all(json.join("in the way")).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        pass(&session);
        assert!(!session.is_quiet());
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_whose_records_were_discarded_keeps_no_failed_write() {
    let (_dir, session) = session(|_| ());
    session.wake_by(|| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("tick"));
    // The client's file cannot be made, because a folder has its name.
    let hidden = session.dir().join("ctf").join(".guest-000-0000");
    std::fs::create_dir_all(hidden.join("in the way")).unwrap();
    guest.pass(&session);
    assert!(session.summary().write_failures > 0);
    std::fs::remove_dir_all(&hidden).unwrap();

    guest.discard_unread(&session);

    until_quiet(&session);
}

#[test]
fn a_flight_recorder_is_quiet_until_a_snapshot_is_asked_for() {
    let (_dir, session) = session(|config| config.output = Output::Snapshots);
    session.wake_by(|| ());
    tick(&session);
    until_quiet(&session);
    let asker = session.clone();
    let asked = std::thread::spawn(move || asker.snapshot());
    wait_until("a request", || !session.is_quiet());
    pass(&session);
    asked.join().unwrap().unwrap();
}

#[test]
fn a_writer_rests_after_an_event_and_writes_the_accounts_once() {
    let (_dir, session) = session(|_| ());
    let writer = session.start_writer(Duration::from_millis(1)).unwrap();
    tick(&session);

    let sleeps = sleeps_in(Duration::from_secs(2), std::process::id());

    // With a timer of a millisecond, the thread would have slept some 1,800 times.
    assert!(sleeps["ht-writer"] < 300, "{sleeps:?}");
    let text = std::fs::read_to_string(session.dir().join("session.json")).unwrap();
    let json: SessionJson = serde_json::from_str(&text).unwrap();
    assert_eq!(json.streams.iter().map(|stream| stream.events).sum::<u64>(), 1);
    drop(writer);
}

#[test]
fn the_first_event_of_a_thread_wakes_the_drain_loop() {
    let (_dir, session) = session(|_| ());
    let wakes = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&wakes);
    session.wake_by(move || _ = count.fetch_add(1, Relaxed));
    tick(&session);
    assert_eq!(wakes.load(Relaxed), 1);
}

#[test]
fn an_event_of_the_vmm_after_a_pause_wakes_the_drain_loop() {
    let (_dir, session) = session(|_| ());
    let wakes = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&wakes);
    session.wake_by(move || _ = count.fetch_add(1, Relaxed));
    tick(&session);
    pass(&session);
    wakes.store(0, Relaxed);
    sleep(2 * PAUSE);
    tick(&session);
    assert_eq!(wakes.load(Relaxed), 1);
}

#[test]
fn guest_events_that_are_switched_wake_the_drain_loop() {
    let (_dir, session) = session(|_| ());
    let wakes = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&wakes);
    session.wake_by(move || _ = count.fetch_add(1, Relaxed));
    session.set_events(&"some_guest_event".parse().unwrap(), false).unwrap();
    assert_eq!(wakes.load(Relaxed), 1);
}
