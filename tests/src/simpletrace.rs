//! `simpletrace.py`, the judge of whether a file of the simple backend is one: a reader written from
//! the format's description alone.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use hypertrace_trace::event::trace_events_all;
use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::capability;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/simpletrace.py");

/// An argument.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Arg {
    /// Of an unsigned type, or a pointer.
    Unsigned(u64),
    /// Of a signed type, below 0.
    Signed(i64),
    /// A string's bytes.
    Text {
        /// In hexadecimal.
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

    /// A number that is not below 0.
    #[track_caller]
    pub fn number(&self) -> u64 {
        let Arg::Unsigned(number) = self else { panic!("{self:?} is no such number") };
        *number
    }
}

/// A record that is no mapping.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An event.
    Event(Event),
    /// So many events are missing here.
    Dropped(u64),
}

/// An event.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // as the format has it
pub struct Event {
    pub name: String,
    pub ns: u64,
    pub pid: u32,
    pub args: Vec<Arg>,
}

/// A line of the reader's.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Event { event: String, ns: u64, pid: u32, args: Vec<Arg> },
    Dropped { dropped: u64 },
    Mapping {},
}

/// A file that keeps every rule.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the order of the file.
    pub records: Vec<Record>,
}

/// Reads a file, written by this program, that has to be good. `None`, said loudly, where there is
/// no python3.
#[track_caller]
pub fn read(file: &Path) -> Option<Trace> {
    match try_read(file)? {
        Ok(trace) => Some(trace),
        Err(why) => panic!("{why}"),
    }
}

/// The same for a file that may be none: what is wrong with it, and where.
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

/// What a reader needs beside the file.
fn declarations() -> NamedTempFile {
    let mut all = NamedTempFile::new().unwrap();
    all.write_all(trace_events_all().as_bytes()).unwrap();
    all
}

/// How many records of each kind there are.
#[derive(Debug, Deserialize)]
pub struct Counts {
    /// What is missing, by what the file says.
    pub dropped: u64,
    /// By name.
    pub events: BTreeMap<String, u64>,
}

/// A reader that counts while the file is written.
#[derive(Debug)]
pub struct Counter {
    reader: Child,
    _all: NamedTempFile,
}

impl Counter {
    /// A reader, and where the file's bytes go to. `None`, said loudly, where there is no python3.
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

    /// What it counted, after its bytes have come to an end, in a file that has to be good.
    #[track_caller]
    pub fn counts(self) -> Counts {
        let out = self.reader.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        capability::used("python3");
        serde_json::from_slice(&out.stdout).unwrap()
    }
}

/// All of these, one behind the other; `None` where there is no python3.
#[track_caller]
pub fn read_all(files: &[PathBuf]) -> Option<Trace> {
    let traces: Option<Vec<Trace>> = files.iter().map(|file| read(file)).collect();
    Some(Trace { records: traces?.into_iter().flat_map(|trace| trace.records).collect() })
}

impl Trace {
    /// The events.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.records.iter().filter_map(|record| match record {
            Record::Event(event) => Some(event),
            Record::Dropped(_) => None,
        })
    }

    /// Arguments of the events of this name.
    pub fn args(&self, name: &str) -> Vec<&[Arg]> {
        self.events().filter(|event| event.name == name).map(|event| &*event.args).collect()
    }

    /// How many events are missing, by what the file says.
    pub fn dropped(&self) -> u64 {
        let dropped = |record: &Record| match record {
            Record::Dropped(count) => *count,
            Record::Event(_) => 0,
        };
        self.records.iter().map(dropped).sum()
    }

    /// Holds the file against a source that emitted the numbers from 0 up to `emitted`; `number` is an
    /// event's, if it is of this source. What is there is in order, and where something is missing, the
    /// file says so between its neighbours. Gives how many are there.
    #[track_caller]
    pub fn account(&self, emitted: u64, number: impl Fn(&Event) -> Option<u64>) -> u64 {
        let (mut next, mut told, mut count) = (0, false, 0);
        for record in &self.records {
            let event = match record {
                Record::Dropped(_) => {
                    told = true;
                    continue;
                }
                Record::Event(event) => event,
            };
            if let Some(number) = number(event) {
                assert!(number >= next, "{number} again or late, after {next}");
                assert!(told || number == next, "{next} to {number} silently gone");
                (next, told, count) = (number + 1, false, count + 1);
            }
        }
        assert!(told || next == emitted, "{next} to {emitted} silently gone");
        assert!(next <= emitted, "{next} of {emitted}");
        count
    }
}
