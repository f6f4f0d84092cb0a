//! A daemon that opens the channel as root, drops its rights, and forks workers that may not open the
//! channel.
//!
//! The code is unsafe because of the daemon's system calls.
#![allow(unsafe_code)]

use hypertrace::{Options, event};
use hypertrace_tests::command::run;
use hypertrace_tests::{this_test, traced};
use hypertrace_user::{Config, Session};

/// Number of events of the daemon, and of each of two threads of its worker.
const EVENTS: u64 = 100;
/// Id of a user without rights.
const NOBODY: libc::uid_t = 65534;

fn emit() {
    (0..EVENTS).for_each(|n| event!("step", n));
}

fn daemon(segment: &str) {
    let segment = Some(segment.into());
    hypertrace::open(&Options::default().with(|options| options.segment = segment)).unwrap();
    emit();
    // SAFETY: this process has one thread only, and the child ends by itself.
    unsafe {
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        let worker = libc::fork();
        assert!(worker >= 0);
        if worker == 0 {
            emit();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains("/segment"), "{maps}");
            std::thread::spawn(emit).join().unwrap();
            libc::exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(worker, &mut status, 0), status), (worker, 0));
    }
}

#[test]
fn a_worker_that_may_not_open_the_channel_shares_nothing_and_says_what_it_lost() {
    if let Some(segment) = traced::argument() {
        return daemon(&segment);
    }
    // SAFETY: geteuid takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: only root has rights to drop");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("segment");
    let config = Config::new(dir.path().join("session"))
        .with(|config| config.segment = Some(segment.clone()));
    let session = Session::create(config).unwrap();

    let ran = run(&mut traced::alone(this_test!(), segment.to_str().unwrap()));

    assert_eq!(ran.code, Some(0), "{ran:?}");
    let summary = session.finish().unwrap();
    assert_eq!((summary.ring_events, summary.lost), (EVENTS, 0), "{ran:?}");
    let lost = format!("{} events of process", 2 * EVENTS);
    assert!(ran.stderr.contains(&lost), "{ran:?}");
    let said =
        ran.stderr.lines().filter(|line| line.starts_with("hypertrace: the events of process"));
    assert_eq!(said.count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("Permission denied"), "{ran:?}");
}

/// Emits in a child process. The child's first event reports that the child has no channel.
fn emit_in_child(segment: &str) {
    let segment = Some(segment.into());
    hypertrace::open(&Options::default().with(|options| options.segment = segment)).unwrap();
    // SAFETY: this process has one thread only, and the child ends by itself. C programs have this action for
    // SIGPIPE.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        let worker = libc::fork();
        if worker == 0 {
            emit();
            libc::_exit(7);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(worker, &mut status, 0), worker);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
    }
}

#[test]
fn a_line_for_a_reader_that_is_gone_or_slow_neither_kills_nor_stops_the_program() {
    if let Some(segment) = traced::argument() {
        return emit_in_child(&segment);
    }
    // SAFETY: geteuid takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("not run: only root has rights to drop");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("segment");
    let config = Config::new(dir.path().join("session"))
        .with(|config| config.segment = Some(segment.clone()));
    let session = Session::create(config).unwrap();
    let (reader, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while std::io::Write::write(&mut full, &[0; 1 << 12]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let (gone, closed) = std::io::pipe().unwrap();
    drop(gone);

    for stderr in [full, closed] {
        let mut command = traced::alone(this_test!(), segment.to_str().unwrap());
        let status = command.stdout(std::process::Stdio::null()).stderr(stderr).status().unwrap();
        assert!(status.success(), "{status:?}");
    }

    drop(reader);
    session.finish().unwrap();
}
