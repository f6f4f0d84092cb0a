//! `hypertrace receive`: makes a session of a journal, while the journal is written, after kills, and from
//! damaged journals.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::interrupt::with_default_signals;
use hypertrace_tests::report::Line;
use hypertrace_tests::{
    FULL_SIZE, babeltrace2, child, kill, packets, this_test, traced, wait_until,
};
use hypertrace_trace::{Destination, Session, SessionConfig, Writer};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Number of kills of each kind.
const KILLS: u64 = if FULL_SIZE { 30 } else { 5 };
/// Maximum time that events are received before a kill.
const SPAN: Duration = Duration::from_millis(30);

fn receiver(journal: UnixStream, dir: &Path) -> Child {
    let mut command = HYPERTRACE.command(["receive", "-o"]);
    command.arg(dir).stdin(OwnedFd::from(journal)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn session(journal: UnixStream) -> (Session, Writer) {
    let mut config = SessionConfig::new("J");
    config.destination = Destination::Journal(journal.into(), "J".into());
    config.file_bytes = 1 << 18;
    let session = Session::create(config).unwrap();
    session.attach("worker");
    let writer = session.start_writer(Duration::from_millis(1)).unwrap();
    (session, writer)
}

fn tick(session: &Session, n: u64) {
    while !session.has_room(1, 8) {
        thread::yield_now();
    }
    session.emit(event_type!("tick", n));
}

fn ran(child: Child) -> Ran {
    let out = child.wait_with_output().unwrap();
    Ran {
        code: out.status.code(),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}

#[test]
fn a_journal_that_does_not_wait_by_itself_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = UnixStream::pair().unwrap();
    from.set_nonblocking(true).unwrap();
    let receiver = receiver(from, dir.path());
    // The receiver has begun to read, and nothing was written yet.
    wait_until("a reader", || dir.path().join(".ctf").exists());
    thread::sleep(Duration::from_millis(50));

    let (session, writer) = session(to);
    tick(&session, 1);
    drop(writer);
    session.finish().unwrap();

    let ran = ran(receiver);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_receiver_that_is_interrupted_before_it_has_begun_leaves_nothing() {
    for wait in 0..KILLS {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("S");
        let (from, _to) = UnixStream::pair().unwrap();
        let receiver = receiver(from, &out);
        while !out.join(".ctf").exists() {
            thread::yield_now();
        }
        // Signals come just before the receiver waits, and while the receiver waits.
        thread::sleep(Duration::from_micros(20 * wait));

        kill_process(Pid::from_child(&receiver), Signal::TERM).unwrap();

        let ran = ran(receiver);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("interrupted by a signal"), "{ran:?}");
        assert!(!out.exists());
    }
}

#[test]
fn a_receiver_whose_pipe_has_no_writer_ends_by_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, out) = (dir.path().join("J"), dir.path().join("S"));
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    let mut command = HYPERTRACE.command(["receive", "-o"]);
    let mut receiver = with_default_signals(command.arg(&out).arg(&pipe)).spawn().unwrap();
    thread::sleep(Duration::from_millis(50));

    kill_process(Pid::from_child(&receiver), Signal::TERM).unwrap();

    assert!(!receiver.wait().unwrap().success());
    assert!(!out.exists());
}

#[test]
fn events_can_be_followed_while_they_are_received() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = UnixStream::pair().unwrap();
    let (session, writer) = session(to);
    let receiver = receiver(from, dir.path());
    wait_until("a session", || dir.path().join("ctf").exists());
    let mut follow = HYPERTRACE.command(["report", "--follow", "--json", "--event", "tick"]);
    let mut follower = follow.arg(dir.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();

    for n in 0..3 {
        tick(&session, n);
        // The read waits until the event is shown.
        let line: Line = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line.fields["n"], Value::from(n));
    }
    drop(writer);
    session.finish().unwrap();

    assert_eq!(ran(receiver).ok(), "");
    assert!(lines.next().is_none() && follower.wait().unwrap().success());
    assert_eq!(HYPERTRACE.info(dir.path())["total"]["lost"], 0);
}

/// Asserts that the events in a session are the first events of [`tick`]. Returns their number.
#[track_caller]
fn check_begin(dir: &Path) -> u64 {
    let ticks = HYPERTRACE.report(dir).into_iter().filter(|line| line.event == "tick");
    let number = ticks.zip(0u64..).map(|(line, n)| assert_eq!(line.fields["n"], n)).count() as u64;
    if let Some(read) = babeltrace2::read(&dir.join("ctf")) {
        read.complete();
    }
    number
}

/// Waits until a session of this many threads has an event. The first record of each thread is a lease.
fn wait_for_event(dir: &Path, threads: u64) {
    let has_event = || packets::committed(dir).is_ok_and(|committed| committed.host > threads);
    wait_until("an event", has_event);
}

#[test]
fn a_killed_receiver_leaves_a_session() {
    let start = |_| {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = UnixStream::pair().unwrap();
        let (session, writer) = session(to);
        let receiver = receiver(from, dir.path());
        let killed = Arc::new(AtomicBool::new(false));
        let emitter = thread::spawn({
            let (session, killed) = (session.clone(), killed.clone());
            move || {
                let (mut emitted, mut recorded) = (0, 0);
                while !killed.load(Relaxed) {
                    let emit = session.emit(event_type!("tick", n = recorded));
                    recorded += u64::from(emit == Emit::Recorded);
                    emitted += 1;
                }
                (emitted, recorded)
            }
        });
        // The thread that made the session is attached, too.
        wait_for_event(dir.path(), 2);
        (dir, session, writer, receiver, emitter, killed)
    };
    kill::sweep(
        KILLS,
        SPAN,
        start,
        |(_, _, _, receiver, _, killed)| {
            let in_time = kill::kill(receiver);
            killed.store(true, Relaxed);
            in_time
        },
        |(dir, session, writer, _, emitter, _)| {
            let killed = emitter.join().unwrap();
            drop(writer);

            let (summary, ended) = session.end();

            assert!(ended.is_err(), "{summary:?}");
            assert_eq!(summary.host_events + summary.lost, killed.0, "{summary:?}");
            let read = check_begin(dir.path());
            assert!(0 < read && read <= killed.1, "{read} of {killed:?}");
        },
    );
}

/// Processes as in crosvm: the VMM's process makes the device and moves the device to a child process. The
/// kernel kills the child at any call that opens a file. Another process makes the session.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn a_device_in_a_jail_that_opens_no_file_is_recorded_by_its_parent() {
    use hypertrace_vmm::{Destination, Region};
    use vmm_shapes::JailedDevice;

    const POINTS: u64 = 1000;
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = UnixStream::pair().unwrap();
        let receiver = receiver(from, dir.path());

        let journal = Destination::Journal(to.into(), "jailed".into());
        let device = JailedDevice::start(journal, 2).unwrap();
        let mut magic = [0; 8];
        device.access(Region::Config, 0x28, &mut magic, false).unwrap();
        for n in 0..POINTS {
            device.access(Region::Control, 8 * (n % 2), &mut n.to_le_bytes(), true).unwrap();
        }
        let status = device.finish();

        assert_eq!((&magic, status), (b"HYPTRACE", 0));
        assert_eq!(ran(receiver).ok(), "");
        let points = HYPERTRACE.report(dir.path());
        let points = points.iter().filter(|line| line.reference.is_some());
        assert_eq!(points.count() as u64, POINTS);
        assert_eq!(HYPERTRACE.info(dir.path())["total"]["lost"], 0);
    });
}

/// As a VMM, writes to the socket on standard input until the process is killed.
fn vmm() {
    let (session, _writer) = session(io::stdin().as_fd().try_clone_to_owned().unwrap().into());
    // The number is bounded, in case the process is not killed.
    (0..50_000_000).for_each(|n| tick(&session, n));
}

#[test]
fn a_killed_vmm_leaves_a_session() {
    if traced::argument().is_some() {
        return vmm();
    }
    let start = |_| {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = UnixStream::pair().unwrap();
        let out = dir.path().join("s");
        let mut vmm = child::alone(this_test!());
        vmm.env(traced::AS_PROGRAM, "J").stdout(Stdio::null()).stderr(Stdio::null());
        let vmm = vmm.stdin(OwnedFd::from(to)).spawn().unwrap();
        let receiver = receiver(from, &out);
        wait_for_event(&out, 1);
        (dir, vmm, receiver)
    };
    kill::sweep(
        KILLS,
        SPAN,
        start,
        |(_, vmm, _)| kill::kill(vmm),
        |(dir, _, receiver)| {
            let ran = ran(receiver);
            // The receiver's exit code is 1 if the journal ends between two frames, and 2 if the journal ends
            // within a frame.
            assert!(matches!(ran.code, Some(1 | 2)), "{ran:?}");
            assert!(ran.stderr.contains("has what came before: the journal "), "{ran:?}");
            assert!(check_begin(&dir.path().join("s")) > 0);
        },
    );
}

/// Returns a whole journal.
fn journal() -> Vec<u8> {
    let (to, mut from) = UnixStream::pair().unwrap();
    from.set_nonblocking(true).unwrap();
    let (session, writer) = session(to);
    (0..100).for_each(|n| tick(&session, n));
    drop(writer);
    session.finish().unwrap();
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    bytes
}

#[test]
fn a_journal_that_ends_early_is_status_1_and_a_damaged_one_status_2() {
    let whole = journal();
    let dir = tempfile::tempdir().unwrap();
    let receive = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(format!("{name}.journal"));
        File::create(&path).unwrap().write_all(bytes).unwrap();
        let out = dir.path().join(name);
        (run(HYPERTRACE.command(["receive", "-o"]).arg(&out).arg(path)), out)
    };

    let (done, out) = receive("whole", &whole);
    done.ok();
    assert_eq!(check_begin(&out), 100);
    let (cut, out) = receive("unfinished", &whole[..whole.len() - 72]);
    assert!(cut.failed(1).contains("without the end of its session"));
    assert_eq!(check_begin(&out), 100);
    let (cut, out) = receive("cut", &whole[..whole.len() - 1]);
    let why = cut.failed(2);
    assert!(why.contains(&format!("damaged at byte {}: ", whole.len() - 72)), "{why}");
    assert_eq!(check_begin(&out), 100);
    let (other, out) = receive("other", b"{\"no\": \"journal\"}");
    assert!(other.failed(2).contains("damaged at byte 0: "));
    assert!(!out.exists(), "the directory that it made is removed");
}
