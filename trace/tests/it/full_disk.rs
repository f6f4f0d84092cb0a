//! Tests with a full disk, or with a file that may not grow. Losses are counted, the error is reported once,
//! writes are tried again, and committed packets stay intact.
#![allow(unsafe_code)] // setrlimit

use crate::common;
use crate::recover::{fingerprint, take};
use common::guest::Guest;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::host_page;
use hypertrace_abi::ring::Emit;
use hypertrace_format::error::BadInput;
use hypertrace_test_support::{babeltrace2, child, this_test};
use hypertrace_trace::session_json::Domain;
use hypertrace_trace::{Session, SessionConfig};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
    config.file_bytes = 1 << 20;
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

    /// Finishes the session, and checks that every event is recorded or counted as lost.
    fn finish(mut self, dir: &Path) {
        self.guest.producer.release();
        self.guest.pass(&self.session);
        let lost_here = self.emitted - self.recorded;
        let summary = self.session.finish().unwrap();
        assert!(summary.write_failures > 1);
        assert_eq!(self.told.load(Ordering::Relaxed), 1, "told once");
        assert!(lost_here > 0);
        assert_eq!(summary.ring_events, self.recorded);
        let guest = summary.streams.iter().find(|s| s.domain == Domain::Guest).unwrap();
        assert_eq!(guest.lost_full, lost_here);
        let Some(read) = babeltrace2::read(&dir.join("s/ctf")) else { return };
        assert_eq!(read.complete(), summary.records);
        assert!(read.stderr.contains("Tracer discarded"));
    }
}

fn set_file_limit(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls get a valid struct, and no other thread of the child writes files now.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit);
        limit.rlim_cur = bytes.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
}

/// A new file would exceed the limit, and the VMM has not changed the action for SIGXFSZ.
#[test]
fn a_limit_of_a_files_size_is_an_error_and_never_a_signal() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        // SAFETY: the call sets the default action, and no thread depends on another action.
        let by_default = || unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
        set_file_limit(100);
        by_default();
        let error = Session::create(SessionConfig::new(dir.join("refused"))).err().unwrap();
        assert!(error.to_string().contains("classes.jsonl"), "{error}");
        set_file_limit(u64::MAX);
        let mut run = begin(dir);
        run.session.set_simple_file(&dir.join("simple")).unwrap();
        set_file_limit((1 << 20) - 1);
        by_default();

        run.rounds(3);

        set_file_limit(u64::MAX);
        let lost = run.emitted - run.recorded;
        run.guest.producer.release();
        run.guest.pass(&run.session);
        let summary = run.session.finish().unwrap();
        assert!(summary.write_failures > 0);
        assert_eq!(run.told.load(Ordering::Relaxed), 1);
        assert_eq!(summary.ring_events + lost, run.emitted);
    });
}

#[test]
fn a_file_that_may_not_grow_is_tried_again() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut run = begin(dir);
        let told =
            |run: &Outcome| run.guest.memory.host[host_page::WRITE_FAILED].load(Ordering::Relaxed);
        run.rounds(3);
        assert_eq!(told(&run), 0);
        // The sizes of the writes do not divide the limit, so one write is short, and the next write fails.
        set_file_limit(250_001);
        run.rounds(30);
        assert_eq!(told(&run), 1);
        set_file_limit(u64::MAX);
        run.rounds(3);
        assert_eq!(told(&run), 0);
        run.finish(dir);
    });
}

/// Returns the offset of the last packet in a stream's file, and the number of lost events in the packet.
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
fn losses_are_reported_without_room_for_a_packet() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let stream = dir.join("s/ctf/guest-000-0000");
        let mut run = begin(dir);
        run.rounds(3);
        let (filler, told) = last_packet(&stream);
        assert_eq!(told, 0);
        // The limit leaves no room for a byte after the filler's header.
        set_file_limit(filler + 128);
        run.rounds(30);
        let lost = run.emitted - run.recorded;
        run.guest.producer.release();
        run.guest.discard_unread(&run.session);
        let summary = run.session.finish().unwrap();
        assert!(lost > 0 && summary.lost > lost, "{lost} of {}", summary.lost);
        assert_eq!(last_packet(&stream), (filler, summary.lost));
        // `babeltrace2::read` notes in a file that it was used, so the limit must end before this call.
        set_file_limit(u64::MAX);
        let Some(read) = babeltrace2::read(&dir.join("s/ctf")) else { return };
        read.complete();
        assert!(read.stderr.contains(&format!("Tracer discarded {} events", summary.lost)));
    });
}

/// Runs a test of this file again in a child process. The child has a new mount namespace, and may mount file
/// systems there. In the child, returns the directory for the mounts. In the parent, or without the right to
/// mount, returns `None`.
fn with_mounts(test: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(common::CHILD) {
        return Some(dir.into());
    }
    let can = Command::new("unshare")
        .args(["--mount", "sh", "-c", "mount -t tmpfs none /mnt"])
        .output()
        .is_ok_and(|out| out.status.success());
    if !can {
        eprintln!("capability missing: mount namespace (unshare --mount and tmpfs need root)");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let child = common::child(test, dir.path());
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(child.get_program()).args(child.get_args());
    command.env(common::CHILD, dir.path());
    assert!(command.status().unwrap().success());
    None
}

/// Mounts a disk of `bytes` bytes.
fn mount(dir: &Path, bytes: u64) {
    let size = format!("size={bytes}");
    let command = ["-t", "tmpfs", "-o", &size, "none"];
    assert!(Command::new("mount").args(command).arg(dir).status().unwrap().success());
}

fn unmount(dir: &Path) {
    assert!(Command::new("umount").arg(dir).status().unwrap().success());
}

#[test]
fn a_full_disk_is_tried_again() {
    let Some(dir) = with_mounts(this_test!()) else { return };
    mount(&dir, 600 << 10);
    std::fs::write(dir.join("ballast"), vec![1; 300_000]).unwrap();
    let mut run = begin(&dir);
    run.rounds(40);
    std::fs::remove_file(dir.join("ballast")).unwrap();
    run.rounds(2);
    run.finish(&dir);
    unmount(&dir);
}

/// Tests that each event is either recorded or counted as lost, for disks of many sizes. A reader must find
/// the number of events that the session has counted as recorded.
#[test]
fn whatever_the_disks_size_emitted_is_recorded_plus_lost() {
    let Some(dir) = with_mounts(this_test!()) else { return };
    let mut failed_at_all = 0;
    for pages in 1.. {
        mount(&dir, pages * 4096);
        let mut config = SessionConfig::new(dir.join("s"));
        config.file_bytes = 1 << 20;
        let Ok(session) = Session::create(config) else {
            unmount(&dir);
            assert!(pages < 16, "64 KiB is enough for an empty session");
            continue;
        };
        let mut guest = Guest::new(0);
        // Each session has a host ring of its own.
        let vmm = session.clone();
        std::thread::spawn(move || {
            assert!(vmm.attach("vmm"));
            for i in 0..2000u64 {
                vmm.emit(event_type!("exit", i));
            }
        })
        .join()
        .unwrap();
        let emitted = 2000 + 3000 + 100;
        for i in 0..3000u64 {
            guest.emit(event_type!("e", i, name = "abc"));
            if i % 30 == 0 {
                let text = format!("name_{i}(a_field_that_takes_room_in_the_descriptions:u64)");
                guest.log(&text);
                guest.emit_words(&text, &[i]);
            }
            if i % 100 == 99 {
                guest.pass(&session);
            }
        }
        guest.producer.release();
        guest.pass(&session);
        guest.discard_unread(&session);

        let (summary, written) = session.end();

        // A lease record is no event, so a lease record that is not recorded does not count as lost.
        let counted = summary.records - summary.leases + summary.lost;
        assert_eq!(counted, emitted, "{pages} pages: {summary:#?}");
        assert_eq!(summary.time_faults, 0);
        let is_whole = written.is_ok() && summary.lost == 0;
        failed_at_all += u64::from(!is_whole);
        if let Some(read) = babeltrace2::read(&dir.join("s/ctf")) {
            assert_eq!(read.complete(), summary.records, "{pages} pages");
        }
        unmount(&dir);
        if is_whole {
            break;
        }
    }
    assert!(failed_at_all > 10, "{failed_at_all}");
}

#[test]
fn a_recovery_is_whole_or_not_there_at_every_size_of_the_disk() {
    let Some(dir) = with_mounts(this_test!()) else { return };
    mount(&dir, 4 << 20);
    let config = || SessionConfig::new(dir.join("s")).with(|config| config.file_bytes = 1 << 20);
    let session = Session::create(config()).unwrap();
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", n = 0u64));
    guest.pass(&session);
    for i in 0..2000u64 {
        assert_eq!(guest.emit(event_type!("e", n = i)), Emit::Recorded);
    }
    let uuid = session.uuid();
    drop(session);
    let fill = File::create(dir.join("fill")).unwrap();
    let free = rustix::fs::statvfs(&dir).unwrap().f_bfree * 4096;
    fill.write_all_at(&vec![1; free as usize], 0).unwrap();
    let before = fingerprint(&dir.join("s"));
    let mut refused = 0;
    let summary = loop {
        match Session::recover(config(), uuid, |session| take(session, &mut guest)) {
            Ok(summary) => break summary,
            Err(error) => assert!(!error.is_bad_input(), "{error}"),
        }
        assert!(fingerprint(&dir.join("s")) == before);
        assert_eq!(std::fs::read_dir(dir.join("s")).unwrap().count(), 3);
        refused += 1;
        fill.set_len(free - refused * 4096).unwrap();
    };

    assert_eq!((summary.ring_events, summary.lost), (2000, 0));
    assert!(refused > 10, "{refused}");
    if let Some(read) = babeltrace2::read(&dir.join("s/recovered/ctf")) {
        assert_eq!(read.complete(), summary.records);
    }
    drop(fill);
    unmount(&dir);
}

#[test]
fn a_session_that_cannot_begin_leaves_nothing() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        set_file_limit(100);
        let error = Session::create(SessionConfig::new(dir)).err().unwrap();
        set_file_limit(u64::MAX);
        assert!(error.to_string().contains("classes.jsonl"), "{error}");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    });
}
