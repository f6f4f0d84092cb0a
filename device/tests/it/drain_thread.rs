// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain loop on a thread of its own.

use crate::common;
use common::{Recorder, chip, passes};
use hypertrace_device::{Counter, DrainPolicy, DrainWaker, Kick, Region};
use hypertrace_test_support::wait_until;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Policy whose period is so long that the timer never fires during a test.
const NEVER: DrainPolicy =
    DrainPolicy { period: Duration::from_secs(3600), budget: Duration::from_micros(250) };

fn wait_for_pass(sink: &Recorder, number: usize) {
    wait_until("a pass", || passes(sink) >= number);
}

#[test]
fn it_drains_on_a_kick_on_a_timer_and_when_it_ends() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    let drain = chip.drain_thread(&kick, NEVER, || Ok(())).unwrap();
    kick.wake();
    wait_for_pass(&sink, 1);
    kick.wake();
    wait_for_pass(&sink, 2);
    drop(drain);
    assert!(passes(&sink) >= 3, "the rest is drained");

    let policy = DrainPolicy { period: Duration::from_millis(1), ..NEVER };
    let drain = chip.drain_thread(&kick, policy, || Ok(())).unwrap();
    wait_for_pass(&sink, 10);
    drain.finish();
}

#[test]
fn a_flood_of_kicks_causes_a_pass_each_200_us_at_most_and_the_last_one_is_served() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    let drain = chip.drain_thread(&kick, NEVER, || Ok(())).unwrap();

    let begin = Instant::now();
    while passes(&sink) < 20 {
        kick.wake();
    }

    let passes = passes(&sink);
    assert!(passes as u128 <= begin.elapsed().as_micros() / 200 + 1, "{passes}");
    assert!(chip.count(Counter::KickLimited) > 0);
    for number in 1..=2 {
        kick.wake();
        wait_for_pass(&sink, passes + number);
    }
    drain.finish();
}

#[test]
fn the_vmm_sets_the_thread_up_before_it_drains() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    kick.wake();
    let (name, names) = mpsc::channel();
    let seen = sink.clone();
    let before = move || {
        name.send((thread::current().name().map(str::to_owned), passes(&seen))).unwrap();
        Ok(())
    };
    let drain = chip.drain_thread(&kick, NEVER, before).unwrap();
    assert_eq!(names.recv().unwrap(), (Some("ht-drain".to_owned()), 0));
    wait_for_pass(&sink, 1);
    drop(drain);
}

#[test]
fn a_setup_that_fails_or_panics_is_an_error_and_nothing_is_drained() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    let failed = chip.drain_thread(&kick, NEVER, || Err(io::Error::other("no filter")));
    assert_eq!(failed.unwrap_err().to_string(), "no filter");
    chip.drain_thread(&kick, NEVER, || panic!("in the test")).unwrap_err();
    assert_eq!(passes(&sink), 0);
}

#[test]
fn a_sink_that_panics_ends_the_thread_which_is_counted_and_the_vm_runs_on() {
    let (chip, sink) = chip();
    let kick = Kick::new().unwrap();
    let drain = chip.drain_thread(&kick, NEVER, || Ok(())).unwrap();
    sink.panics.store(true, Relaxed);
    kick.wake();
    wait_until("a panic", || chip.count(Counter::DrainPanicked) > 0);
    sink.panics.store(false, Relaxed);
    chip.write(Region::Control, 0, &7u64.to_le_bytes());
    assert_eq!(common::points(&sink).len(), 1, "a vCPU makes points");
    drain.finish();
    assert_eq!(chip.count(Counter::DrainPanicked), 1);
    chip.drain_all();
}

#[test]
fn a_machine_whose_sink_panics_is_reset_all_the_same() {
    let (chip, sink) = chip();
    sink.panics.store(true, Relaxed);

    chip.reset();
    let state = chip.state();

    assert_eq!(chip.count(Counter::DrainPanicked), 2);
    assert_eq!((chip.config_page().epoch, state.clients.len()), (1, 4));
}
