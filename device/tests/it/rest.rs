// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A drain loop that waits for a KICK without a timer while nothing is traced.

use crate::common;
use common::{Recorder, geometry, register};
use hypertrace_abi::drain::{LONGEST_POLL, REST};
use hypertrace_abi::layout::{guest_page, register as r};
use hypertrace_abi::ring::ClientMemory;
use hypertrace_device::{
    Chip, ChipConfig, DrainPolicy, DrainWaker, Geometry, Kick, Memory, Region,
};
use hypertrace_test_support::wait_until;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const POLICY: DrainPolicy =
    DrainPolicy { period: Duration::from_millis(1), budget: Duration::from_micros(250) };

fn quiet() -> Arc<Recorder> {
    let recorder = Arc::<Recorder>::default();
    *recorder.quiet_for.lock().unwrap() = Duration::MAX;
    recorder
}

fn chip(has_doorbells: bool, sink: Arc<Recorder>, waker: impl DrainWaker + 'static) -> Chip {
    let config = ChipConfig::default().with(|config| config.has_doorbells = has_doorbells);
    Chip::new(Memory::anonymous(geometry()).unwrap(), &config, sink, waker)
}

/// Makes passes until the loop may rest. Returns the time that the loop needed.
fn rest(chip: &Chip) -> Duration {
    let begin = Instant::now();
    while chip.drain(&POLICY, false).is_some() {
        thread::yield_now();
    }
    begin.elapsed()
}

/// Checks for the time 2 × `REST` that the loop does not rest. A loop without new kicks rests after `REST`.
fn rests_not(chip: &Chip) {
    let begin = Instant::now();
    while begin.elapsed() < 2 * REST {
        assert_eq!(chip.drain(&POLICY, false), Some(POLICY.period));
    }
}

#[test]
fn a_loop_rests_after_passes_that_found_nothing_and_begins_again_with_a_kick() {
    let chip = chip(true, quiet(), || ());
    assert_eq!(chip.drain(&POLICY, true), Some(POLICY.period));
    assert!(rest(&chip) >= REST);
    assert_eq!(chip.drain(&POLICY, false), None, "a signal wakes nobody");
    assert_eq!(chip.drain(&POLICY, true), Some(POLICY.period));
    assert!(rest(&chip) >= REST, "what the KICK announces may come later");
}

#[test]
fn a_loop_that_rests_makes_the_next_pass_when_its_sink_has_something_to_do() {
    let sink = Arc::<Recorder>::default();
    let accounts = Duration::from_millis(900);
    *sink.quiet_for.lock().unwrap() = accounts;
    let chip = chip(true, sink.clone(), || ());
    let begin = Instant::now();
    while chip.drain(&POLICY, false) != Some(accounts) {
        thread::yield_now();
    }
    assert!(begin.elapsed() >= REST);
    *sink.quiet_for.lock().unwrap() = Duration::MAX;
    assert_eq!(chip.drain(&POLICY, false), None, "it has waited already");
}

#[test]
fn a_ring_that_moves_keeps_the_timer() {
    let chip = chip(true, quiet(), || ());
    rest(&chip);
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let memory = ClientMemory::of_rings(rings, 2, &geometry(), Default::default()).unwrap();
    memory.guest[guest_page::HEAD].store(8, Relaxed);
    assert_eq!(chip.drain(&POLICY, false), Some(POLICY.period));
    assert!(rest(&chip) >= REST);
}

#[test]
fn each_store_that_may_record_something_wakes_a_resting_loop_once() {
    let wakes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wakes);
    let chip = chip(true, quiet(), move || _ = count.fetch_add(1, Relaxed));
    let word = 1u64.to_le_bytes();
    for offset in [register(1, r::EMIT), register(1, r::LEASE), 8] {
        rest(&chip);
        assert_eq!(wakes.swap(0, Relaxed), 0);
        chip.write(Region::Control, offset, &word);
        chip.write(Region::Control, offset, &word);
        assert_eq!(wakes.swap(0, Relaxed), 1, "offset {offset:#x}");
        assert_eq!(chip.drain(&POLICY, true), Some(POLICY.period));
    }
}

#[test]
fn a_loop_of_a_restored_guest_keeps_its_timer() {
    let chip = chip(true, quiet(), || ());
    rest(&chip);
    let config = ChipConfig::default().with(|config| config.has_doorbells = true);
    let memory = Memory::anonymous(geometry()).unwrap();
    let restored = Chip::new(memory, &config, quiet(), || ());
    restored.restore(&chip.state(), None).unwrap();
    // The guest may have kicked before the snapshot, and write the record of this kick only after the
    // restore. So the drain loop keeps the loop's timer.
    rests_not(&restored);
    // A KICK of one client says nothing about other clients.
    assert_eq!(restored.drain(&POLICY, true), Some(POLICY.period));
    rests_not(&restored);
}

#[test]
fn a_loop_keeps_its_timer_where_nobody_would_wake_it() {
    rests_not(&chip(false, quiet(), || ()));
    rests_not(&chip(true, quiet(), ()));
    rests_not(&chip(true, Arc::default(), || ()));
}

#[test]
fn a_loop_that_nobody_wakes_polls_less_while_the_rings_are_idle() {
    let geometry = Geometry { ring_bytes: 1 << 20, block_bytes: 1 << 14, ..geometry() };
    let memory = Memory::anonymous(geometry).unwrap();
    let config = ChipConfig::default().with(|config| config.has_doorbells = false);
    let chip = Chip::new(memory, &config, quiet(), || ());
    assert_eq!(chip.drain(&POLICY, false), Some(POLICY.period));
    wait_until("the longest wait", || chip.drain(&POLICY, false) == Some(LONGEST_POLL));
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let memory = ClientMemory::of_rings(rings, 2, &geometry, Default::default()).unwrap();
    memory.guest[guest_page::HEAD].store(8, Relaxed);
    assert_eq!(chip.drain(&POLICY, false), Some(POLICY.period));
}

#[test]
fn a_thread_that_rests_makes_no_pass_until_it_is_kicked() {
    let sink = quiet();
    let chip = Arc::new(chip(true, sink.clone(), || ()));
    let passes = || common::passes(&sink);
    let kick = Kick::new().unwrap();
    let drain = chip.drain_thread(&kick, POLICY, || Ok(())).unwrap();
    // With a timer of 1 ms, the loop makes a pass within 200 ms, unless the whole machine stops.
    let rested = || {
        let before = passes();
        thread::sleep(Duration::from_millis(200));
        passes() == before
    };
    assert!((0..50).any(|_| rested()), "it keeps its timer");
    let before = passes();
    kick.wake();
    wait_until("a pass", || passes() > before);
    drain.finish();
}
