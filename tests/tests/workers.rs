//! A daemon that opens the channel as root, drops its rights, and forks workers that may not open it.
//!
//! Unsafe, because of the system calls of such a daemon.
#![allow(unsafe_code)]

use hypertrace::{Options, event};
use hypertrace_tests::command::run;
use hypertrace_tests::traced;
use hypertrace_user::{Config, Session};

/// Events of the daemon, and of each of two threads of its worker.
const EVENTS: u64 = 100;
/// A user without rights.
const NOBODY: libc::uid_t = 65534;

fn emit() {
    (0..EVENTS).for_each(|n| event!("step", n));
}

fn daemon(segment: &str) {
    let segment = Some(segment.into());
    hypertrace::open(&Options { segment, ..Options::default() }).unwrap();
    emit();
    // SAFETY: a child of this one thread, which ends by itself.
    unsafe {
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        let worker = libc::fork();
        assert!(worker >= 0);
        if worker == 0 {
            emit();
            std::thread::spawn(emit).join().unwrap();
            libc::exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(worker, &mut status, 0), status), (worker, 0));
    }
}

#[test]
fn events_of_workers_that_may_not_open_the_channel_are_counted_and_said() {
    if let Some(segment) = traced::argument() {
        return daemon(&segment);
    }
    const NAME: &str = "events_of_workers_that_may_not_open_the_channel_are_counted_and_said";
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: only root has rights to drop");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("segment");
    let config =
        Config { segment: Some(segment.clone()), ..Config::new(dir.path().join("session")) };
    let session = Session::create(config).unwrap();

    let ran = run(&mut traced::alone(NAME, segment.to_str().unwrap()));

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let summary = session.finish().unwrap();
    assert_eq!((summary.ring_events, summary.lost_unattached), (EVENTS, 2 * EVENTS), "{ran:?}");
    let said =
        ran.stderr.lines().filter(|line| line.starts_with("hypertrace: the events of process"));
    assert_eq!(said.count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("Permission denied"), "{ran:?}");
}
