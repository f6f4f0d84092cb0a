//! babeltrace2, the judge of whether a session is a trace for everybody.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::capability;

/// What it made of a trace.
#[derive(Debug)]
pub struct Read {
    /// One line per event.
    pub events: Vec<String>,
    /// Warnings and errors.
    pub stderr: String,
    ok: bool,
}

/// Reads a trace to its end. `None`, said loudly, where there is no babeltrace2.
pub fn read(ctf: &Path) -> Option<Read> {
    let program = capability::program("babeltrace2")?;
    let out = Command::new(program).arg(ctf).output().expect("babeltrace2 starts");
    capability::used("babeltrace2");
    let text = String::from_utf8_lossy(&out.stdout);
    Some(Read {
        events: text.lines().map(str::to_owned).collect(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        ok: out.status.success(),
    })
}

/// Reads a trace to its end without a word of complaint, except about events that were lost, and
/// keeps nothing of it. Returns how many events there are. `None`, said loudly, where there is no babeltrace2.
#[track_caller]
pub fn count(ctf: &Path) -> Option<u64> {
    let program = capability::program("babeltrace2")?;
    // A file, as nobody reads a pipe meanwhile.
    let complaints = ctf.with_extension("complaints");
    let stderr = fs::File::create(&complaints).expect("a file beside the trace");
    let mut command = Command::new(program);
    let command = command.arg(ctf).stdout(Stdio::piped()).stderr(stderr);
    let mut reader = command.spawn().expect("babeltrace2 starts");
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
    /// It came to the end without a word of complaint: how many events there are.
    #[track_caller]
    pub fn clean(&self) -> u64 {
        assert!(self.ok && self.stderr.is_empty(), "babeltrace2: {}", self.stderr);
        self.events.len() as u64
    }

    /// It came to the end, and told losses at most: how many events there are.
    #[track_caller]
    pub fn complete(&self) -> u64 {
        assert!(self.ok, "babeltrace2: {}", self.stderr);
        for line in self.stderr.lines().filter(|line| !line.is_empty()) {
            assert!(line.starts_with("WARNING: Tracer discarded"), "babeltrace2: {line}");
        }
        self.events.len() as u64
    }
}
