//! The threads that record cost the machine little while nothing is recorded.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use hypertrace_test_support::sleeps::sleeps_in;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::serve::Server;
use hypertrace_tests::{this_test, traced};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Time after which the threads look only at their longest interval, and have written the session's first
/// accounts.
const SETTLE: Duration = Duration::from_millis(1500);

/// Maximum number of times in a second that all threads of a recorder wake while the program traces nothing:
/// one look every 16 ms, and some more.
const MAX_A_SECOND: u64 = 150;

/// Asserts that all threads of the recorder's process together wake seldom.
#[track_caller]
fn rests(pid: u32) {
    sleep(SETTLE);
    let sleeps = sleeps_in(Duration::from_secs(2), pid);
    assert!(sleeps.values().sum::<u64>() <= 2 * MAX_A_SECOND, "{sleeps:?}");
}

#[test]
fn a_server_of_a_shared_file_rests_beside_an_idle_guest() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, dir.path());
    rests(server.id());
    server.end();
}

#[test]
fn a_server_of_a_socket_rests_beside_an_idle_guest() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, dir.path(), &[]);
    rests(server.id());
    server.end();
}

#[test]
fn a_recorder_rests_beside_a_program_that_is_idle_after_an_event() {
    if traced::argument().is_some() {
        hypertrace::event!("once");
        println!("\nidle");
        // The program waits until the recorder's test has ended.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut record: Command = HYPERTRACE.command(["record", "--quiet", "-o"]);
    record.arg(dir.path());
    traced::program(&mut record, this_test!(), "-");
    let mut record = record.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(record.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "idle"), "the program has ended");

    rests(record.id());

    drop(record.stdin.take());
    assert!(record.wait().unwrap().success());
    let report = HYPERTRACE.report(dir.path());
    assert_eq!(report.iter().filter(|line| line.event == "once").count(), 1);
}
