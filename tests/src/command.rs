//! Running `hypertrace`, and checks of its exit code and output.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::report::{Line, Lost};

/// Returns the path of the plugin for qemu-user, which cargo built for the calling test.
pub fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libhypertrace_qemu_plugin.so")
}

/// Result of a program that has ended.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// All of the program's standard output.
    pub stdout: String,
    /// All of the program's standard error.
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

/// Copies a program that is to be run. Another process makes the copy, because a file that is open for
/// writing cannot be run. If this process made the copy, a child that another thread starts meanwhile would
/// inherit the open descriptor for a moment.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    run(Command::new("cp").arg(from.as_ref()).arg(to.as_ref())).ok();
}

impl Ran {
    /// Removes the line about missing switches with "none lost", which `regions` writes to stderr. Some
    /// kernels now and then record no switch back to a thread.
    pub fn beside_missing_switches(self) -> Ran {
        let lines = self.stderr.split_inclusive('\n');
        let stderr =
            lines.filter(|line| !line.contains("events that give a thread its CPU back")).collect();
        Ran { stderr, ..self }
    }

    /// Asserts that the program ended with 0 and an empty stderr. Returns its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!((self.code, &*self.stderr), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// Asserts as [`Ran::ok`] does, but also accepts two messages of `report`: the session is not finished,
    /// or it has no events. Returns the output.
    #[track_caller]
    pub fn reported(self) -> String {
        let known = |line: &&str| line.contains(": not finished: ") || line.contains("no events: ");
        let said: Vec<&str> = self.stderr.lines().filter(|line| !known(line)).collect();
        assert_eq!((self.code, &*said), (Some(0), &[][..]), "{}", self.stdout);
        self.stdout
    }

    /// Asserts as [`Ran::ok`] does. Returns the output, parsed as JSON.
    #[track_caller]
    pub fn json<T: for<'a> Deserialize<'a>>(self) -> T {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// Asserts that the program ended with this code and one line on stderr. Returns this line.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        // Lines about completed recordings are ignored. All recordings of a user have their notes in the same
        // place, so the program may complete a recording that another test has killed.
        let is_others = |line: &str| line.starts_with("hypertrace: completed a recording");
        let own: Vec<_> = self.stderr.split_inclusive('\n').filter(|l| !is_others(l)).collect();
        assert_eq!(own.len(), 1, "{}", self.stderr);
        own.concat()
    }
}

/// The program: `Hypertrace(env!("CARGO_BIN_EXE_hypertrace"))`. Cargo sets this variable only for the tests
/// of the program's own package.
#[derive(Clone, Copy, Debug)]
pub struct Hypertrace(pub &'static str);

/// Output of `demo --json`.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // as in the program's help
pub struct Demo {
    pub version: u32,
    pub mode: String,
    pub vcpus: u32,
    pub ring_events: u64,
    pub reference_points: u64,
    pub lost: u64,
    pub faults: u64,
    pub records: u64,
    pub session: std::path::PathBuf,
}

impl Hypertrace {
    /// Returns a command of the program with these arguments.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(self.0);
        command.args(args);
        command
    }

    /// Runs the program with these arguments.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        run(&mut self.command(args))
    }

    /// Returns the command `demo --json` into `dir`.
    pub fn demo(&self, dir: &Path, vcpus: u32) -> Command {
        let mut command = self.command(["demo", "--json", "--vcpus", &vcpus.to_string(), "-o"]);
        command.arg(dir);
        command
    }

    /// Returns all events of a session, by `report --json`.
    #[track_caller]
    pub fn report(&self, dir: &Path) -> Vec<Line> {
        let text = run(self.command(["report", "--json"]).arg(dir)).reported();
        text.lines().filter_map(Line::parse).collect()
    }

    /// Returns the losses in the output of `report --json`.
    #[track_caller]
    pub fn losses(&self, dir: &Path) -> Vec<Lost> {
        let text = run(self.command(["report", "--json"]).arg(dir)).reported();
        text.lines().filter_map(Lost::parse).collect()
    }

    /// Passes each event of a session to a function, for sessions that are too large for
    /// [`Hypertrace::report`].
    #[track_caller]
    pub fn report_each(&self, dir: &Path, mut each: impl FnMut(Line)) {
        let mut command = self.command(["report", "--json"]);
        let mut report = command.arg(dir).stdout(Stdio::piped()).spawn().unwrap();
        for line in BufReader::new(report.stdout.take().unwrap()).lines() {
            Line::parse(&line.unwrap()).into_iter().for_each(&mut each);
        }
        assert!(report.wait().unwrap().success(), "report of {}", dir.display());
    }

    /// Returns the numbers of a session in the output of `info --json`.
    #[track_caller]
    pub fn info(&self, dir: &Path) -> Value {
        let mut all: Value = run(self.command(["info", "--json"]).arg(dir)).json();
        all["sessions"][0].take()
    }

    /// Returns the names of a session's regions, with the numbers of regions that `regions` counts.
    #[track_caller]
    pub fn regions(&self, dir: &Path, options: &[&str]) -> Vec<(String, u64)> {
        let ran = run(self.command(["regions", "--json"]).args(options).arg(dir));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let regions: Value = serde_json::from_str(&ran.stdout).unwrap();
        let groups = regions["regions"].as_array().unwrap().iter();
        let count =
            |group: &Value| Some((group["name"].as_str()?.into(), group["count"].as_u64()?));
        groups.filter_map(count).collect()
    }
}
