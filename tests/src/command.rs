//! Running `hypertrace`, and holding it to its exit code and to what it said where.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::report::{Line, Lost};

/// The plugin for qemu-user, as cargo has built it for the test that calls this.
pub fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libhypertrace_qemu_plugin.so")
}

/// What a program left when it ended.
#[derive(Debug)]
pub struct Ran {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

/// Runs a command to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    Ran {
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

impl Ran {
    /// It ended with 0 and complained of nothing: what it wrote.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, &*self.stderr), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// As [`Ran::ok`], of `report`, which may say that a session was not ended: what it wrote.
    #[track_caller]
    pub fn reported(self) -> String {
        let said: Vec<&str> =
            self.stderr.lines().filter(|line| !line.contains(": not finished: ")).collect();
        assert_eq!((self.code, &*said), (Some(0), &[][..]), "{}", self.stdout);
        self.stdout
    }

    /// As [`Ran::ok`]: what it wrote, as JSON.
    #[track_caller]
    pub fn json<T: for<'a> Deserialize<'a>>(self) -> T {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// It ended with this code and one line about it: that line.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.stderr
    }
}

/// The program: `Hypertrace(env!("CARGO_BIN_EXE_hypertrace"))`, which cargo gives to the tests of its
/// own package only.
#[derive(Clone, Copy, Debug)]
pub struct Hypertrace(pub &'static str);

/// What `demo --json` prints.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // as the program's help says
pub struct Demo {
    pub mode: String,
    pub vcpus: u32,
    pub ring_events: u64,
    pub reference_points: u64,
    pub stamps: u64,
    pub lost: u64,
    pub faults: u64,
    pub records: u64,
    pub session: std::path::PathBuf,
}

impl Hypertrace {
    /// The program with these arguments.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(self.0);
        command.args(args);
        command
    }

    /// Runs it.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        run(&mut self.command(args))
    }

    /// `demo --json` into `dir`, not yet started.
    pub fn demo(&self, dir: &Path, vcpus: u32) -> Command {
        let mut command = self.command(["demo", "--json", "--vcpus", &vcpus.to_string(), "--out"]);
        command.arg(dir);
        command
    }

    /// `report --json`: all events of a session.
    #[track_caller]
    pub fn report(&self, dir: &Path) -> Vec<Line> {
        let text = run(self.command(["report", "--json"]).arg(dir)).reported();
        text.lines().filter_map(Line::parse).collect()
    }

    /// Where `report --json` says that events were lost.
    #[track_caller]
    pub fn losses(&self, dir: &Path) -> Vec<Lost> {
        let text = run(self.command(["report", "--json"]).arg(dir)).reported();
        text.lines().filter_map(Lost::parse).collect()
    }

    /// [`Hypertrace::report`], a line at a time: for sessions that are too large to be held.
    #[track_caller]
    pub fn report_each(&self, dir: &Path, mut each: impl FnMut(Line)) {
        let mut command = self.command(["report", "--json"]);
        let mut report = command.arg(dir).stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(report.stdout.take().unwrap()).lines() {
            Line::parse(&line.unwrap()).into_iter().for_each(&mut each);
        }
        assert!(report.wait().unwrap().success(), "report of {}", dir.display());
    }

    /// `stat --json` of a session.
    #[track_caller]
    pub fn stat(&self, dir: &Path) -> Value {
        run(self.command(["stat", "--json"]).arg(dir)).json()
    }
}
