//! Sessions, and clients of a guest, for tests.
#![allow(dead_code)] // each test file uses a part

use hypertrace_test_support::babeltrace2;
use std::path::Path;
use std::process::Command;

pub mod guest;

/// Returns a session in a new directory. The drop of the returned value removes the directory.
pub fn session(
    with: impl FnOnce(&mut hypertrace_trace::SessionConfig),
) -> (tempfile::TempDir, hypertrace_trace::Session) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = hypertrace_trace::SessionConfig::new(dir.path().join("s"));
    with(&mut config);
    let session = hypertrace_trace::Session::create(config).unwrap();
    (dir, session)
}

/// Name of the environment variable that is set in a test's child process.
pub const CHILD: &str = "HYPERTRACE_TEST_CHILD";

/// Returns a command that runs one test of this binary again in a child process. The child has `value` in the
/// variable [`CHILD`].
pub fn child(test: &str, value: &Path) -> Command {
    let mut command = hypertrace_test_support::child::alone(test);
    command.env(CHILD, value);
    command
}

/// Finishes a session with an honest client 0 that has emitted `emitted` events `honest`. Checks that a
/// reader gets all these events, and reports no faults except for losses.
pub fn check_honest(session: hypertrace_trace::Session, emitted: u64, seed: u64) {
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    println!(
        "seed {seed}: {} records, {} lost, {:?}",
        summary.records, summary.lost, summary.faults
    );
    let Some(read) = babeltrace2::read(&ctf) else { return };
    assert_eq!(summary.records, read.complete(), "seed {seed}");
    assert!(honest_events(&read.events).into_iter().eq(0..emitted), "seed {seed}");
    let honest = summary
        .streams
        .iter()
        .find(|s| s.domain == hypertrace_trace::session_json::Domain::Guest && s.client == 0)
        .unwrap();
    assert!(honest.faults.is_empty(), "seed {seed}: {honest:?}");
}

fn honest_events(lines: &[String]) -> Vec<u64> {
    lines
        .iter()
        .filter(|l| l.contains(" honest: "))
        .filter_map(|l| l.rsplit_once("i = ")?.1.trim_end_matches(" }").parse().ok())
        .collect()
}
