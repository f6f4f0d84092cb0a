//! A disk that is full, or a file that may not grow: counted, told once,
//! tried again, and nothing that was committed is hurt.
#![allow(unsafe_code)] // setrlimit

mod common;

use common::guest::Guest;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_trace::{Session, SessionConfig};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Outcome {
    told: Arc<AtomicU64>,
    session: Session,
    guest: Guest,
    emitted: u64,
    recorded: u64,
}

fn begin(dir: &Path) -> Outcome {
    let told = Arc::new(AtomicU64::new(0));
    let mut config = SessionConfig::new(dir.join("s"));
    config.segment_bytes = 1 << 20;
    let count = told.clone();
    config.on_write_failed = Some(Box::new(move |failed| {
        eprintln!("told: {failed}: {}", failed.source);
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let session = Session::create(config).unwrap();
    Outcome { told, session, guest: Guest::new(0), emitted: 0, recorded: 0 }
}

impl Outcome {
    fn rounds(&mut self, rounds: u64) {
        for round in 0..rounds {
            for i in 0..1000u64 {
                self.emitted += 1;
                let emit = self.guest.emit(event_type!("e", round, i));
                self.recorded += u64::from(emit == Emit::Recorded);
            }
            self.session.emit(event_type!("round", round));
            self.guest.pass(&self.session);
        }
    }

    /// Finishes, and checks that every event is recorded or counted as lost.
    fn finish(mut self, dir: &Path) {
        self.guest.producer.release();
        self.guest.pass(&self.session);
        let lost_here = self.emitted - self.recorded;
        let summary = self.session.finish().unwrap();
        assert!(summary.write_failures > 1);
        assert_eq!(self.told.load(Ordering::Relaxed), 1, "told once");
        assert!(lost_here > 0);
        assert_eq!(summary.ring_events, self.recorded);
        let guest = summary.streams.iter().find(|s| s.domain == "guest").unwrap();
        assert_eq!(guest.lost_full, lost_here);
        let Some(read) = common::read(&dir.join("s/ctf")) else { return };
        assert!(read.ok, "{}", read.stderr);
        assert_eq!(read.lines.len() as u64, summary.records);
        assert!(read.stderr.contains("Tracer discarded"));
        assert!(
            read.stderr.lines().all(|l| l.is_empty() || l.starts_with("WARNING: Tracer discarded"))
        );
    }
}

fn set_file_limit(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls with a valid struct; the child has no other thread
    // that writes files now.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

#[test]
fn a_file_that_may_not_grow_is_tried_again() {
    let test = "a_file_that_may_not_grow_is_tried_again";
    let Some(dir) = std::env::var_os(common::CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        assert!(common::child(test, dir.path()).status().unwrap().success());
        return;
    };
    let dir = Path::new(&dir);
    let mut run = begin(dir);
    run.rounds(3);
    // Not a multiple of anything: a write is short first, then fails.
    set_file_limit(250_001);
    run.rounds(30);
    set_file_limit(u64::MAX);
    run.rounds(3);
    run.finish(dir);
}

/// Where the last packet of a stream's file begins, and what it says was lost.
fn last_packet(path: &Path) -> (u64, u64) {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let mut at = 0;
    loop {
        let next = at + word(at + 48) as usize / 8;
        if next == bytes.len() {
            return (at as u64, word(at + 56));
        }
        at = next;
    }
}

#[test]
fn what_was_lost_is_told_where_there_is_no_room_to_tell() {
    let test = "what_was_lost_is_told_where_there_is_no_room_to_tell";
    let Some(dir) = std::env::var_os(common::CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        assert!(common::child(test, dir.path()).status().unwrap().success());
        return;
    };
    let dir = Path::new(&dir);
    let stream = dir.join("s/ctf/guest-000-0000");
    let mut run = begin(dir);
    run.rounds(3);
    let (filler, told) = last_packet(&stream);
    assert_eq!(told, 0);
    // Not a byte behind the filler's header.
    set_file_limit(filler + 128);
    run.rounds(30);
    let lost = run.emitted - run.recorded;
    run.guest.producer.release();
    run.guest.forsake(&run.session);
    let summary = run.session.finish().unwrap();
    assert!(lost > 0 && summary.lost > lost, "{lost} of {}", summary.lost);
    assert_eq!(last_packet(&stream), (filler, summary.lost));
    let Some(read) = common::read(&dir.join("s/ctf")) else { return };
    assert!(read.ok, "{}", read.stderr);
    assert!(read.stderr.contains(&format!("Tracer discarded {} events", summary.lost)));
}

#[test]
fn a_full_disk_is_tried_again() {
    let test = "a_full_disk_is_tried_again";
    let Some(dir) = std::env::var_os(common::CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        let child = common::child(test, dir.path());
        // A small disk of the child's own.
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs -o size=600k none \"$0\" && exec \"$@\"",
        ]);
        command.arg(dir.path()).arg(child.get_program()).args(child.get_args());
        command.env(common::CHILD, dir.path());
        let can = Command::new("unshare")
            .args(["--mount", "sh", "-c", "mount -t tmpfs none /mnt"])
            .output()
            .is_ok_and(|out| out.status.success());
        if !can {
            eprintln!("capability missing: mount namespace (unshare --mount and tmpfs need root)");
            return;
        }
        assert!(command.status().unwrap().success());
        return;
    };
    let dir = Path::new(&dir);
    std::fs::write(dir.join("ballast"), vec![1; 300_000]).unwrap();
    let mut run = begin(dir);
    run.rounds(40);
    std::fs::remove_file(dir.join("ballast")).unwrap();
    run.rounds(2);
    run.finish(dir);
}

#[test]
fn a_session_that_cannot_begin_leaves_nothing() {
    let test = "a_session_that_cannot_begin_leaves_nothing";
    let Some(dir) = std::env::var_os(common::CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        assert!(common::child(test, dir.path()).status().unwrap().success());
        return;
    };
    let dir = Path::new(&dir);
    set_file_limit(100);
    let error = Session::create(SessionConfig::new(dir)).err().unwrap();
    set_file_limit(u64::MAX);
    assert!(error.to_string().contains("session.json"), "{error}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}
