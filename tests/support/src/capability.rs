//! Reports of tests about capabilities of this machine that they used or missed.
//!
//! A test that cannot run on this machine returns early and passes, so it has to report the missing
//! capability by [`missing`], which prints a line on the real stderr (the test harness would hide `eprintln!`
//! of a passing test). A test that used a special capability reports its use by [`used`]. `cargo xtask test`
//! reads these reports from the file that `HYPERTRACE_CAPABILITIES` names, and compares them with its probes
//! of the machine.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// Environment variable with the path of the file for reports; unset outside of `cargo xtask test`.
pub const FILE: &str = "HYPERTRACE_CAPABILITIES";

/// Environment variable with the capabilities that `cargo xtask test` has not found, each as a line
/// `NAME<TAB>WHY`. A program on PATH may have the name of such a capability. Tests must not use this program,
/// because it does not do what tests need.
pub const ABSENT: &str = "HYPERTRACE_ABSENT";

/// Reports that this test used the capability. Tests call this function after the use, not before the
/// attempt.
pub fn used(name: &str) {
    note("used", name, std::thread::current().name().unwrap_or("?"));
}

/// Reports that this test, or a part of it, did not run, and why.
pub fn missing(name: &str, why: impl Display) {
    let why = why.to_string();
    say(&format!("{MISSING} {name}: {}", one_line(&why)));
    note("missing", name, &why);
}

/// Beginning of a line about a missing capability.
pub const MISSING: &str = "capability missing:";

/// Writes a line to the real stderr.
pub fn say(line: &str) {
    // The line does not go through eprintln!, which the test harness captures. A single write appends the
    // whole line, because the harness prints to the same stderr at the same time. A closed stderr must not
    // fail a test.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Finds the program of a capability that has the program's name, or reports that the capability is missing.
pub fn program(name: &str) -> Option<PathBuf> {
    program_of(name, name)
}

/// Finds the program of a capability, or reports that the capability is missing. `cargo xtask test` puts
/// fetched programs on PATH.
pub fn program_of(capability: &str, program: &str) -> Option<PathBuf> {
    let absent = std::env::var(ABSENT).unwrap_or_default();
    let mut absent = absent.lines().filter_map(|line| line.split_once('\t'));
    let why = match absent.find(|(name, _)| *name == capability) {
        Some((_, why)) => why.to_owned(),
        None => match on_path(program) {
            Some(found) => return Some(found),
            None => format!(
                "{program} is not on PATH (`cargo xtask test` fetches what it can for its own run)"
            ),
        },
    };
    missing(capability, why);
    None
}

/// Finds a program in the folders of [`search_path`].
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = search_path();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns PATH, followed by the folders of the administrator's programs, which an ordinary user's PATH
/// lacks.
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// Appends a tab-separated line: `used NAME TEST` or `missing NAME WHY`. The line is a single write in append
/// mode, so that tests in parallel threads and processes do not mix their lines.
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
