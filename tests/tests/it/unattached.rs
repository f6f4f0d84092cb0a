//! More threads than clients: each event is recorded or counted as lost, exactly.

use hypertrace_tests::child;
use std::sync::{Arc, Barrier};
use std::thread;

use hypertrace::{Options, counts};
use hypertrace_timeline::{Session as Recorded, SessionStat};
use hypertrace_user::{Config, Session};

const THREADS: u64 = 200;
const EVENTS: u64 = 100;

#[test]
fn two_hundred_threads_on_64_clients_are_recorded_or_counted_exactly() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::create(Config::new(dir.path())).unwrap();
        let segment = Some(session.segment().location().into());
        hypertrace::open(&Options { segment, ..Options::default() }).unwrap();
        let all = Arc::new(Barrier::new(THREADS as usize));

        let threads = (0..THREADS).map(|_| {
            let all = Arc::clone(&all);
            thread::spawn(move || {
                (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
                all.wait();
                (0..EVENTS).for_each(|n| hypertrace::event!("step", n));
            })
        });
        // Not a scope, which does not wait for the thread-local destructors of a thread.
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
