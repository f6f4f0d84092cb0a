//! `simpletrace.py`, which checks a file of the simple backend. The script was written from the format's
//! description alone.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use hypertrace_trace::event::trace_events_all;
use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::capability;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/simpletrace.py");

/// Argument of an event.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Arg {
    /// A value of an unsigned type, or a pointer.
    Unsigned(u64),
    /// A negative value of a signed type.
    Signed(i64),
    /// A string's bytes.
    Text {
        /// The bytes in hexadecimal.
        hex: String,
    },
}

impl Arg {
    /// A string's bytes.
    #[track_caller]
    pub fn bytes(&self) -> Vec<u8> {
        let Arg::Text { hex } = self else { panic!("{self:?} is no string") };
        let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
    }

    /// Returns a number that is not negative.
    #[track_caller]
    pub fn number(&self) -> u64 {
        let Arg::Unsigned(number) = self else { panic!("{self:?} is no such number") };
        *number
    }
}

/// Record of a file, except mappings.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An event.
    Event(Event),
    /// The number of events that are missing at this place.
    Dropped(u64),
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // as in the format
pub struct Event {
    pub name: String,
    pub ns: u64,
    pub pid: u32,
    pub args: Vec<Arg>,
}

/// Line of the reader's output.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Event { event: String, ns: u64, pid: u32, args: Vec<Arg> },
    Dropped { dropped: u64 },
    Mapping {},
}

/// Contents of a valid file.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Records in the order of the file.
    pub records: Vec<Record>,
}

/// Reads a valid file that this program has written. Without python3, returns `None`, with a report.
#[track_caller]
pub fn read(file: &Path) -> Option<Trace> {
    match try_read(file)? {
        Ok(trace) => Some(trace),
        Err(why) => panic!("{why}"),
    }
}

/// Reads a file that may be invalid. The error names the fault and its place.
pub fn try_read(file: &Path) -> Option<Result<Trace, String>> {
    let python = capability::program("python3")?;
    let all = declarations();
    let out = Command::new(python).arg(SCRIPT).arg(all.path()).arg(file).output().unwrap();
    if !out.status.success() {
        return Some(Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()));
    }
    capability::used("python3");
    let text = String::from_utf8(out.stdout).unwrap();
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let records = text.lines().map(parse).filter_map(|line| match line {
        Line::Event { event: name, ns, pid, args } => {
            Some(Record::Event(Event { name, ns, pid, args }))
        }
        Line::Dropped { dropped } => Some(Record::Dropped(dropped)),
        Line::Mapping {} => None,
    });
    Some(Ok(Trace { records: records.collect() }))
}

/// Writes the declarations that a reader needs besides the file.
fn declarations() -> NamedTempFile {
    let mut all = NamedTempFile::new().unwrap();
    all.write_all(trace_events_all().as_bytes()).unwrap();
    all
}

/// Numbers of records by kind.
#[derive(Debug, Deserialize)]
pub struct Counts {
    /// Number of missing events, as recorded in the file.
    pub dropped: u64,
    /// Numbers of events by name.
    pub events: BTreeMap<String, u64>,
}

/// Reader that counts while the file is written.
#[derive(Debug)]
pub struct Counter {
    reader: Child,
    _all: NamedTempFile,
}

impl Counter {
    /// Starts a reader. Returns the reader, and its input for the file's bytes. Without python3, returns
    /// `None`, with a report.
    pub fn start() -> Option<(Counter, ChildStdin)> {
        let python = capability::program("python3")?;
        let all = declarations();
        let mut reader = Command::new(python)
            .args([SCRIPT, "--counts"])
            .arg(all.path())
            .arg("/dev/stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let bytes = reader.stdin.take().unwrap();
        Some((Counter { reader, _all: all }, bytes))
    }

    /// Returns the counts of a file, which must be valid. The caller has closed the reader's input.
    #[track_caller]
    pub fn counts(self) -> Counts {
        let out = self.reader.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        capability::used("python3");
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

/// Reads these files in sequence. Returns `None` without python3.
#[track_caller]
pub fn read_all(files: &[PathBuf]) -> Option<Trace> {
    let traces: Option<Vec<Trace>> = files.iter().map(|file| read(file)).collect();
    Some(Trace { records: traces?.into_iter().flat_map(|trace| trace.records).collect() })
}

impl Trace {
    /// Returns the events.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.records.iter().filter_map(|record| match record {
            Record::Event(event) => Some(event),
            Record::Dropped(_) => None,
        })
    }

    /// Returns the arguments of the events of this name.
    pub fn args(&self, name: &str) -> Vec<&[Arg]> {
        self.events().filter(|event| event.name == name).map(|event| &*event.args).collect()
    }

    /// Returns the number of missing events, as recorded in the file.
    pub fn dropped(&self) -> u64 {
        let dropped = |record: &Record| match record {
            Record::Dropped(count) => *count,
            Record::Event(_) => 0,
        };
        self.records.iter().map(dropped).sum()
    }

    /// Checks the events of a source that emitted the numbers from 0 up to `emitted`. `number` returns the
    /// number of an event of this source. The events must be in order. For the missing events, the file must
    /// count at least as many dropped events. Returns the number of events.
    #[track_caller]
    pub fn account(&self, emitted: u64, number: impl Fn(&Event) -> Option<u64>) -> u64 {
        let (mut next, mut count) = (0, 0);
        for number in self.events().filter_map(number) {
            assert!(number >= next, "{number} again or late, after {next}");
            (next, count) = (number + 1, count + 1);
        }
        assert!(next <= emitted, "{next} of {emitted}");
        assert!(count + self.dropped() >= emitted, "some of {emitted} silently gone");
        count
    }
}
