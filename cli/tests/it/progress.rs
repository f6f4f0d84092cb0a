//! The line on a terminal that says what a long command does.

use hypertrace_abi::event_type;
use hypertrace_tests::command::Hypertrace;
use hypertrace_trace::{Session, SessionConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::thread;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of events whose report is much longer than a pipe holds.
const EVENTS: u64 = 5_000;
/// Time after which a line is missing, on a busy machine too.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

#[test]
fn after_a_second_a_terminal_shows_what_is_done_and_the_line_is_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("S");
    let mut config = SessionConfig::new(&dir);
    config.host_ring_bytes = 1 << 20;
    let session = Session::create(config).unwrap();
    session.attach("worker");
    (0..EVENTS).for_each(|n| _ = session.emit(event_type!("tick", n)));
    session.finish().unwrap();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let mut command = HYPERTRACE.command(["report", "--json"]);
    command.arg(&dir).stdout(Stdio::piped()).stderr(terminal);
    let mut report = command.spawn().unwrap();
    // Dropping the command closes this process's copies of the terminal. So the terminal reads as ended when
    // the command ends.
    drop(command);

    // The command waits, because nobody reads the pipe yet.
    let mut master = File::from(master);
    let (mut shown, mut bytes) = (String::new(), [0; 1 << 10]);
    while !shown.contains("writing events, ") {
        let mut polled = [PollFd::new(&master, PollFlags::IN)];
        assert_ne!(poll(&mut polled, Some(&PATIENCE)).unwrap(), 0, "{shown:?}");
        let count = master.read(&mut bytes).unwrap_or_else(|why| panic!("{why}: {shown:?}"));
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    let mut stdout = report.stdout.take().unwrap();
    let lines =
        thread::spawn(move || std::io::read_to_string(&mut stdout).unwrap().lines().count());
    // Reading a terminal that nobody holds any more is an error.
    while let Ok(count @ 1..) = master.read(&mut bytes) {
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }

    assert!(report.wait().unwrap().success());
    assert!(lines.join().unwrap() as u64 > EVENTS);
    let at_end = shown.rsplit('\r').find(|part| !part.is_empty()).unwrap();
    assert!(at_end.starts_with("\u{1b}[2K") && !at_end.contains("writing"), "{shown:?}");
    assert!(!shown.contains('\n'), "{shown:?}");
}
