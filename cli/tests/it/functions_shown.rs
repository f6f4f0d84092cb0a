//! Output of `functions` and of other commands for a function trace. For people, the commands show names of
//! C++ and Rust functions as in the source. For other tools, the commands show symbols. On a terminal, the
//! progress is shown.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use hypertrace_test_support::functions;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, Ran, run};
use hypertrace_tests::golden::golden;
use serde_json::Value;
use tempfile::TempDir;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Address, symbol, and name as in the source.
const FUNCTIONS: [(u64, &str, &str); 4] = [
    (0x1000, "main", "main"),
    (0x1100, "_ZN5space6WorkerIiE3runEib", "space::Worker<int>::run(int, bool)"),
    (0x1200, "_ZN7program6worker3run17h0123456789abcdefE", "program::worker::run"),
    (0x1300, "_RNvNtCs1234_7program6worker4work", "program::worker::work"),
];

/// A function trace `F` in which each function of [`FUNCTIONS`] calls the next function. The file `symbols`
/// has their symbols.
struct Traced(TempDir);

impl Traced {
    fn new() -> Traced {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("F");
        let calls = FUNCTIONS.iter().map(|(address, ..)| ('+', *address));
        let returns = FUNCTIONS.iter().rev().map(|(address, ..)| ('-', *address));
        let records = (1..).zip(calls.chain(returns)).map(|(n, (sign, at))| (n * 1_000, sign, at));
        let anchor = functions::anchor_at(1_000_000_000);
        functions::write_task(&path, &anchor, &Vec::from_iter(records));
        let line = |(address, symbol, _): &(u64, &str, &str)| format!("{address:x} T {symbol}\n");
        let symbols: String = FUNCTIONS.iter().map(line).collect();
        fs::write(folder.path().join("symbols"), symbols).unwrap();
        Traced(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn hypertrace(&self, arguments: &[&str]) -> Ran {
        let mut command = HYPERTRACE.command(arguments);
        run(command.args(["--symbols", "symbols"]).current_dir(self.0.path()))
    }
}

#[test]
fn people_read_the_names_of_the_source() {
    let traced = Traced::new();
    let commands = ["functions F --callers --symbols symbols", "report F --symbols symbols"];
    golden("people", HYPERTRACE.transcript_in(traced.0.path(), &commands));

    let flame = traced.hypertrace(&["functions", "F", "--flame", "F.svg"]);

    assert_eq!(flame.code, Some(0), "{}", flame.stderr);
    let flame = fs::read_to_string(traced.path("F.svg")).unwrap();
    for (_, symbol, name) in FUNCTIONS {
        let title = name.replace(' ', "\u{a0}").replace('<', "&lt;").replace('>', "&gt;");
        assert!(flame.contains(&format!("<title>{title} (")), "{title}: {flame}");
        assert!(symbol == name || !flame.contains(symbol), "{symbol}: {flame}");
    }
}

#[test]
fn scripts_get_the_symbol_too() {
    let traced = Traced::new();
    let commands = ["functions F --json --symbols symbols", "report F --json --symbols symbols"];
    golden("scripts", HYPERTRACE.transcript_in(traced.0.path(), &commands));
}

#[test]
fn names_that_control_a_terminal_are_escaped() {
    let traced = Traced::new();
    // A text with beginnings of commands to a terminal, and a character that changes the direction of text.
    let name = "\u{1b}[2J\u{9b}2J\u{202e}x";
    fs::write(traced.path("symbols"), format!("1000 T {name}\n")).unwrap();

    for arguments in
        [&["functions", "F"][..], &["functions", "F", "--json"], &["report", "F", "--json"]]
    {
        let shown = traced.hypertrace(arguments).ok();
        assert!(!shown.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{arguments:?}: {shown:?}");
    }
    let sums: Value = traced.hypertrace(&["functions", "F", "--json"]).json();
    let functions = sums["functions"].as_array().unwrap();
    assert!(functions.iter().any(|function| function["name"] == name));
}

#[test]
fn uftrace_gets_the_symbols() {
    let traced = Traced::new();

    let ran = traced.hypertrace(&["export", "F", "--to", "uftrace", "-o", "U"]);

    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let written = fs::read_to_string(traced.path("U/symbols.sym")).unwrap();
    for (_, symbol, _) in FUNCTIONS {
        assert!(written.lines().any(|line| line.ends_with(&format!(" T {symbol}"))), "{written}");
    }
}

#[test]
fn a_terminal_shows_the_progress() {
    let traced = Traced::new();
    let Some(script) = capability::program("script") else { return };
    let command = format!("{} functions F --symbols symbols", HYPERTRACE.0);

    let shown = run(Command::new(script)
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        // A dumb terminal is shown no progress.
        .env("TERM", "xterm")
        .current_dir(traced.0.path()))
    .ok();

    assert!(shown.contains("% of 8 records"), "{shown}");
    assert!(shown.contains("4 calls"), "{shown}");
    // A pipe is shown no progress.
    traced.hypertrace(&["functions", "F"]).ok();
}
