//! A program that traces and then installs a seccomp filter for all of its threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use hypertrace::{Options, event};
use hypertrace_tests::command::run;
use hypertrace_tests::{this_test, traced};
use hypertrace_user::{Config, Session};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter_all_threads};

/// Number of events before the filter, and of events after it.
const EVENTS: u64 = 100;

/// Refuses these calls to all threads of the process, also to the threads of the library.
fn refuse(calls: &[libc::c_long]) {
    let rules: BTreeMap<_, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    apply_filter_all_threads(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Returns the file with the name of the library's thread. The file disappears with the thread.
fn library_thread() -> PathBuf {
    let is_library = |name: &PathBuf| fs::read(name).is_ok_and(|name| name == b"hypertrace\n");
    // A new thread gets its name only when it runs.
    loop {
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        if let Some(found) = threads.map(|thread| thread.path().join("comm")).find(is_library) {
            return found;
        }
    }
}

fn program(segment: &str) {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    std::panic::set_hook(Box::new(|why| {
        eprintln!("{why}");
        PANICS.fetch_add(1, Relaxed);
    }));
    let emit = || (0..EVENTS).for_each(|n| event!("step", n));
    let segment = Some(segment.into());
    hypertrace::open(&Options::default().with(|options| options.segment = segment)).unwrap();
    emit();
    let library = library_thread();

    refuse(&[libc::SYS_nanosleep, libc::SYS_clock_nanosleep]);
    refuse(&[libc::SYS_fcntl, libc::SYS_fstat, libc::SYS_newfstatat]);

    while fs::read(&library).is_ok() {
        thread::yield_now();
    }
    emit();
    assert_eq!((PANICS.load(Relaxed), hypertrace::counts().unattached), (0, 0));
}

#[test]
fn a_filter_that_refuses_sleep_and_locks_ends_the_librarys_thread_quietly() {
    if let Some(segment) = traced::argument() {
        return program(&segment);
    }
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(Config::new(dir.path())).unwrap();
    let segment = session.segment().location();

    let ran = run(&mut traced::alone(this_test!(), segment.to_str().unwrap()));

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said =
        ran.stderr.lines().filter(|line| line.starts_with("hypertrace: the system does not let"));
    assert_eq!(said.count(), 1, "{ran:?}");
    let summary = session.finish().unwrap();
    assert_eq!((summary.ring_events, summary.lost), (2 * EVENTS, 0));
}
