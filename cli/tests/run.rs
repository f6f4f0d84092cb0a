//! `hypertrace run`: programs on this host, traced with no VM.

use std::path::Path;
use std::process::Command;

use hypertrace_tests::babeltrace2;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::traced;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// `run` with this test as the program.
fn run_test(dir: &Path, name: &str, argument: &str) -> Command {
    let mut command = HYPERTRACE.command(["run", "--out"]);
    command.arg(dir);
    traced::program(&mut command, name, argument);
    command
}

#[test]
fn a_program_of_four_threads() {
    if let Some(argument) = traced::argument() {
        let (events, points) = argument.split_once(' ').unwrap();
        assert_eq!(traced::four_threads(events.parse().unwrap(), points.parse().unwrap()), 0);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ran = run(&mut run_test(dir.path(), "a_program_of_four_threads", "1000 10"));
    println!("{ran:?}");
    for line in HYPERTRACE.report(dir.path()).iter().take(10) {
        println!("{line:?}");
    }
    println!("{}", HYPERTRACE.stat(dir.path()));
    let Some(read) = babeltrace2::read(&dir.path().join("ctf")) else { return };
    println!("{}", read.clean());
}
