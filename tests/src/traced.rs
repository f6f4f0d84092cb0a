//! A program in user mode: what the traced side of a scenario does, and how a test is one itself.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hypertrace::{Emit, Status, commit, event, reference_point};

/// How a test that is run as a program knows, and what it is to do.
const AS_PROGRAM: &str = "HYPERTRACE_TEST_PROGRAM";

/// This test executable as a program that runs the test `name` alone, in which [`argument`] gives
/// `argument`. For `hypertrace run -- ..`: what stands behind the dashes, and the environment.
pub fn program(command: &mut Command, name: &str, argument: &str) {
    command.arg("--").arg(std::env::current_exe().expect("this program has a path"));
    command.args([name, "--exact", "--nocapture", "--test-threads=1", "-q"]);
    command.env(AS_PROGRAM, argument);
}

/// What this program is to do; `None` in an ordinary test run, where it is nobody's program.
pub fn argument() -> Option<String> {
    std::env::var(AS_PROGRAM).ok()
}

/// Words of an event in [`four_threads`], so that it waits for room before it emits.
const WORDS: u64 = 8;

/// Threads of [`four_threads`].
pub const THREADS: u64 = 4;

/// What each of four threads does: `events` ring events `step`, each of which says which one it is,
/// and spread among them `points` commits and as many acknowledged points. It waits for room rather
/// than lose an event. Gives what could not be recorded.
pub fn four_threads(events: u64, points: u64) -> u64 {
    // Else the threads that come first find it being opened, and their events have no client.
    hypertrace::open(&hypertrace::Options::default()).expect("a segment");
    let failed = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let failed = &failed;
            thread::Builder::new()
                .name(format!("worker{thread}"))
                .spawn_scoped(scope, move || {
                    failed.fetch_add(one_thread(thread, events, points), Ordering::Relaxed)
                })
                .expect("a thread can be started");
        }
    });
    failed.into_inner()
}

fn one_thread(thread: u64, events: u64, points: u64) -> u64 {
    let every = (events / points.max(1)).max(1);
    let mut failed = 0;
    let mut point = 0;
    for n in 0..events {
        let room = hypertrace::with_client(|client| client.wait_for_room(WORDS));
        failed += u64::from(room != Some(true));
        event!("step", thread, n, negative = -(n as i64), half = n as f64 / 2.0);
        if n % every == every - 1 && point < points {
            failed += u64::from(commit!("committed", thread, point) != Emit::Recorded);
            let reply = reference_point!("acknowledged", thread, point);
            failed += u64::from(!reply.is_ok_and(|reply| reply.status == Status::Recorded));
            point += 1;
        }
    }
    failed
}
