//! What a test needed of this machine and got, or did not get, told to the person or the program that runs the tests.
//!
//! A test that cannot run here returns early and passes, so it has to say so: [`missing`] prints a line on the real
//! stderr (the test harness would swallow `eprintln!` of a passing test). A test that did run on something special
//! says that too: [`used`]. `cargo xtask test` reads both from the file that `HYPERTRACE_CAPABILITIES` names, and holds
//! them against what the machine has.
//!
//! This file needs only std and nothing else of this crate, so that a crate that `hypertrace-tests` depends on can have
//! it too, with no cycle: `#[path = "../../tests/src/capability.rs"] mod capability;`
#![allow(dead_code)] // because of that: who includes this file uses a part of it

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// The environment variable that names the file for the notes; unset outside of `cargo xtask test`.
pub const FILE: &str = "HYPERTRACE_CAPABILITIES";

/// Says that this test did use the capability. Call it after the proof, not before the attempt.
pub fn used(name: &str) {
    note("used", name, std::thread::current().name().unwrap_or("?"));
}

/// Says that this test, or a part of it, did not run, and why.
pub fn missing(name: &str, why: impl Display) {
    let why = why.to_string();
    // Not eprintln!: that is what the test harness captures. In one write, because it prints meanwhile.
    // A closed stderr must not fail a test.
    let line = format!("capability missing: {name}: {}\n", one_line(&why));
    let _ = std::io::stderr().write_all(line.as_bytes());
    note("missing", name, &why);
}

/// Finds a program on PATH, or says that it is missing. `cargo xtask test` puts what it fetched on PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let found = on_path(name);
    if found.is_none() {
        missing(name, "not on PATH (`cargo xtask test` fetches what it can for its own run)");
    }
    found
}

/// Finds a program on PATH.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// One line, tab-separated: `used NAME TEST` or `missing NAME WHY`. One write in append mode, so that
/// tests in parallel threads and processes do not mix their lines.
fn note(kind: &str, name: &str, text: &str) {
    let Some(file) = std::env::var_os(FILE) else {
        return;
    };
    let line = format!("{kind}\t{name}\t{}\n", one_line(text));
    let written = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("cannot append to {}: {error}", file.display());
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
