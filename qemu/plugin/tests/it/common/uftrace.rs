//! uftrace, which reads what the plugin writes.

use super::capability;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the programs of uftrace's releases 0.13 and 0.19.
pub const READERS: [&str; 2] = ["uftrace-bookworm", "uftrace-forky"];

/// A release of uftrace.
pub struct Reader {
    name: &'static str,
    program: PathBuf,
}

impl Reader {
    /// Finds a release. Returns `None` if this machine lacks this release.
    pub fn new(name: &'static str) -> Option<Reader> {
        Some(Reader { name, program: capability::program(name)? })
    }

    /// Returns the output of a command about a directory. Asserts that `is_known` returns true for each line
    /// of uftrace's own messages.
    #[track_caller]
    pub fn read(&self, command: &str, dir: &Path, is_known: fn(&str) -> bool) -> String {
        let mut uftrace = Command::new(&self.program);
        let ran = uftrace.args([command, "--no-pager", "-d"]).arg(dir).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        let is_good = ran.status.success() && said.lines().all(is_known);
        assert!(is_good, "{} {command}: {said}", self.name);
        capability::used(self.name);
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }
}

/// Returns whether a message of uftrace is about functions without an exit.
pub fn is_unfinished(line: &str) -> bool {
    line.contains("invalid rstack read")
}

/// Reads a directory with four commands of each release, and checks the number of calls of a function.
#[track_caller]
pub fn check(dir: &Path, function: &str, calls: u64) {
    for reader in READERS.into_iter().filter_map(Reader::new) {
        let name = reader.name;
        let read = |command: &str| reader.read(command, dir, |_| false);
        let report = read("report");
        let line = report.lines().find(|line| line.ends_with(&format!(" {function}"))).unwrap();
        let count = line.split_whitespace().rev().nth(1).unwrap();
        assert_eq!(count.parse(), Ok(calls), "{name}: {line}");
        let count = |text: &str, word: &str| text.matches(word).count() as u64;
        let replay = read("replay");
        let open = format!(" {function}() {{\n");
        assert_eq!(
            count(&replay, &open) + count(&replay, &format!(" {function}();\n")),
            calls,
            "{name}"
        );
        assert_eq!(count(&read("dump"), &format!("[entry] {function}(")), calls, "{name}");
        assert!(read("graph").contains(&format!(") {function}\n")), "{name}");
    }
}

/// Reads a directory with a release of uftrace, if this machine has the release. The commands that print each
/// record read the directory `short`.
#[track_caller]
pub fn reads(reader: &'static str, dir: &Path, short: &Path) {
    let Some(reader) = Reader::new(reader) else { return };
    for (command, dir, word) in [
        ("report", dir, "Total time"),
        ("replay", short, "() {"),
        ("graph", short, "(1)"),
        ("dump", short, "[entry]"),
    ] {
        let text = reader.read(command, dir, is_unfinished);
        let begin = text.chars().take(2000).collect::<String>();
        assert!(text.contains(word), "{} {command}: {begin}", reader.name);
    }
}
