//! More threads than clients: each event is recorded or counted as lost, exactly.

#![allow(unsafe_code)] // fork

use hypertrace_tests::child;
use std::sync::{Arc, Barrier};
use std::thread;

use hypertrace::{Options, counts};
use hypertrace_device::Geometry;
use hypertrace_timeline::{Session as Recorded, SessionStat};
use hypertrace_user::{Config, Session};

const THREADS: u64 = 200;
const EVENTS: u64 = 100;

#[test]
fn two_hundred_threads_on_64_clients_are_recorded_or_counted_exactly() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::new(dir.path());
        let geometry = Geometry { clients: 64, ..config.geometry };
        let session = Session::create(config.with(|config| config.geometry = geometry)).unwrap();
        let segment = Some(session.segment().location().into());
        hypertrace::open(&Options::default().with(|options| options.segment = segment)).unwrap();
        let all = Arc::new(Barrier::new(THREADS as usize));

        let threads = (0..THREADS).map(|_| {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
                all.wait();
                (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
            })
        });
        // The threads are joined without a scope, because a scope does not wait for the thread-local
        // destructors of a thread.
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());

        let summary = session.finish().unwrap();
        assert!(summary.lost_unattached >= (THREADS - 64) * EVENTS, "{summary:?}");
        assert_eq!(summary.lost_unattached, counts().unattached);
        assert_eq!(summary.ring_events + summary.lost, THREADS * EVENTS * 2);
        let recorded = Recorded::open(dir.path()).unwrap();
        let total = SessionStat::of(&recorded).unwrap().total;
        assert_eq!((total.events, total.lost), (summary.ring_events, summary.lost));
        assert_eq!(total.causes.unattached, summary.lost_unattached);
        assert_eq!(total.faults, 0);
    });
}

/// A thread that got no client does not ask for a client again within 10 ms. The thread's child opens its own
/// channel at its first event. Without this channel, the host would not learn how many events the child
/// loses.
#[test]
fn a_child_of_a_thread_that_waits_for_a_client_counts_what_it_loses() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::new(dir.path());
        let geometry = Geometry { clients: 1, ..config.geometry };
        let session = Session::create(config.with(|config| config.geometry = geometry)).unwrap();
        let segment = Some(session.segment().location().into());
        hypertrace::open(&Options::default().with(|options| options.segment = segment)).unwrap();
        let (is_held, is_over) = (Barrier::new(2), Barrier::new(2));

        thread::scope(|threads| {
            threads.spawn(|| {
                hypertrace::event!("holds");
                is_held.wait();
                is_over.wait();
            });
            is_held.wait();
            for _ in 0..20 {
                hypertrace::event!("step");
                // SAFETY: the child emits, and ends without a return to the harness.
                match unsafe { libc::fork() } {
                    0 => {
                        (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
                        // SAFETY: as above.
                        unsafe { libc::exit(0) }
                    }
                    pid => {
                        let mut status = -1;
                        // SAFETY: the call writes the status.
                        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                        assert_eq!(status, 0);
                    }
                }
            }
            is_over.wait();
        });

        assert_eq!(session.finish().unwrap().lost_unattached, 20 * (1 + EVENTS));
    });
}
