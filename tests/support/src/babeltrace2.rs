// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! babeltrace2, which checks that a session is a valid CTF trace.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::capability;

/// Output of babeltrace2 for a trace.
#[derive(Debug)]
pub struct Read {
    /// One line per event.
    pub events: Vec<String>,
    /// Warnings and errors.
    pub stderr: String,
    ok: bool,
}

/// Returns a command that reads a trace. babeltrace2 opens all files at once, so the command raises the limit
/// of open files.
fn command(ctf: &Path) -> Option<Command> {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn $(ulimit -Hn); exec \"$0\" \"$1\""]);
    command.arg(capability::program("babeltrace2")?).arg(ctf);
    Some(command)
}

/// Reads a whole trace. Reports a missing babeltrace2 and returns `None`.
pub fn read(ctf: &Path) -> Option<Read> {
    let out = command(ctf)?.output().expect("babeltrace2 starts");
    capability::used("babeltrace2");
    let text = String::from_utf8_lossy(&out.stdout);
    Some(Read {
        events: text.lines().map(str::to_owned).collect(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        ok: out.status.success(),
    })
}

/// Reads a trace that must be read to its end without a complaint. Returns its events.
#[track_caller]
pub fn read_clean(ctf: &Path) -> Option<Vec<String>> {
    let read = read(ctf)?;
    read.clean();
    Some(read.events)
}

/// Counts the events of a trace without keeping them. babeltrace2 must not complain, except about lost
/// events. Reports a missing babeltrace2 and returns `None`.
#[track_caller]
pub fn count(ctf: &Path) -> Option<u64> {
    let mut command = command(ctf)?;
    // stderr goes to a file, because nobody would read a pipe meanwhile.
    let complaints = ctf.with_extension("complaints");
    let stderr = fs::File::create(&complaints).expect("a file beside the trace");
    let mut reader =
        command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("babeltrace2 starts");
    let lines = BufReader::new(reader.stdout.take().expect("a pipe")).split(b'\n').count();
    let ok = reader.wait().expect("babeltrace2 ends").success();
    let said = fs::read_to_string(&complaints).unwrap_or_default();
    let is_loss = |line: &str| line.starts_with("WARNING: Tracer discarded");
    assert!(ok, "babeltrace2: {said}");
    assert!(said.lines().all(|line| line.is_empty() || is_loss(line)), "babeltrace2: {said}");
    capability::used("babeltrace2");
    Some(lines as u64)
}

impl Read {
    /// Asserts that babeltrace2 read the whole trace without complaints. Returns the number of events.
    #[track_caller]
    pub fn clean(&self) -> u64 {
        assert!(self.ok && self.stderr.is_empty(), "babeltrace2: {}", self.stderr);
        self.events.len() as u64
    }

    /// Asserts that babeltrace2 read the whole trace with no complaints except losses. Returns the number of
    /// events.
    #[track_caller]
    pub fn complete(&self) -> u64 {
        assert!(self.ok, "babeltrace2: {}", self.stderr);
        for line in self.stderr.lines().filter(|line| !line.is_empty()) {
            assert!(line.starts_with("WARNING: Tracer discarded"), "babeltrace2: {line}");
        }
        self.events.len() as u64
    }
}
