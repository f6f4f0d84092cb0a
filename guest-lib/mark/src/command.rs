//! The command that a region is around.

use hypertrace_segment::child;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Exit statuses for commands that cannot be run. A shell returns the same statuses.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Runs a command. Returns the command's status, as a shell does.
pub fn run(command: &[OsString]) -> u8 {
    match child::run(&mut prepared(command)) {
        Ok(status) => child::exit_code(status),
        Err(why) => not_run(command, &why),
    }
}

/// Runs a command in place of this program. Returns only if the command cannot be run.
pub fn replace(command: &[OsString]) -> ExitCode {
    let why = prepared(command).exec();
    ExitCode::from(not_run(command, &why))
}

fn prepared(command: &[OsString]) -> Command {
    let mut prepared = Command::new(&command[0]);
    prepared.args(&command[1..]);
    prepared
}

fn not_run(command: &[OsString], why: &std::io::Error) -> u8 {
    eprintln!("hypertrace-mark: cannot run {}: {why}", command[0].to_string_lossy());
    if why.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN }
}
