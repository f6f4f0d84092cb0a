//! babeltrace2 as the judge of what a session wrote.
#![allow(dead_code)] // each test file uses a part

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::Path;
use std::process::Command;

/// Output of the reader.
pub struct Read {
    /// Exit status 0.
    pub ok: bool,
    /// One line per event.
    pub lines: Vec<String>,
    /// Warnings and errors.
    pub stderr: String,
}

/// Reads a trace with babeltrace2. `None`, loudly, if there is none here.
pub fn read(ctf: &Path) -> Option<Read> {
    // It opens all files of a trace at once.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let out = match Command::new("babeltrace2").arg(ctf).output() {
        Ok(out) => out,
        Err(e) => {
            eprintln!("capability missing: babeltrace2 ({e})");
            return None;
        }
    };
    Some(Read {
        ok: out.status.success(),
        lines: out
            .stdout
            .split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// Reads a trace that must be read to its end without a word of complaint.
pub fn read_clean(ctf: &Path) -> Option<Vec<String>> {
    let read = read(ctf)?;
    assert!(read.ok && read.stderr.is_empty(), "babeltrace2: {}", read.stderr);
    Some(read.lines)
}

pub mod guest;

/// A session in a directory of its own, which goes with it.
pub fn session(
    with: impl FnOnce(&mut hypertrace_trace::SessionConfig),
) -> (tempfile::TempDir, hypertrace_trace::Session) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = hypertrace_trace::SessionConfig::new(dir.path().join("s"));
    with(&mut config);
    let session = hypertrace_trace::Session::create(config).unwrap();
    (dir, session)
}

/// The environment variable that is set in a test's child process.
pub const CHILD: &str = "HYPERTRACE_TEST_CHILD";

/// A command that runs one test of this binary again as a child, which finds
/// `value` in [`CHILD`].
pub fn child(test: &str, value: &Path) -> Command {
    let mut command = hypertrace_test_support::child::alone(test);
    command.env(CHILD, value);
    command
}

/// Finishes a session with an honest client 0, which emitted this many events called
/// `honest`. Checks that a reader gets all of them, and reports nothing but losses.
pub fn check_honest(session: hypertrace_trace::Session, emitted: u64, seed: u64) {
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    println!(
        "seed {seed}: {} records, {} lost, {:?}",
        summary.records, summary.lost, summary.faults
    );
    let Some(read) = read(&ctf) else { return };
    assert!(read.ok, "seed {seed}: {}", read.stderr);
    for line in read.stderr.lines().filter(|l| !l.is_empty()) {
        assert!(line.starts_with("WARNING: Tracer discarded"), "seed {seed}: {line}");
    }
    assert_eq!(summary.records, read.lines.len() as u64, "seed {seed}");
    assert!(honest_events(&read.lines).into_iter().eq(0..emitted), "seed {seed}");
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
