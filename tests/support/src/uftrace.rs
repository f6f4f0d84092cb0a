//! Releases of uftrace, which the tests run as readers of real users.

use crate::capability;

use std::path::Path;
use std::process::{Command, Output};

/// Names of releases 0.13 and 0.19.
pub const READERS: [&str; 2] = ["uftrace-bookworm", "uftrace-forky"];

/// Executes a command of the release `name` of uftrace, if this machine has this release.
pub fn output(name: &str, command: &[&str], path: &Path) -> Option<Output> {
    let mut uftrace = Command::new(capability::program(name)?);
    Some(uftrace.args(command).arg("--no-pager").arg("-d").arg(path).output().unwrap())
}

/// Executes a command of each release that this machine has. Returns the lines of each output, with single
/// spaces.
#[track_caller]
pub fn outputs(command: &[&str], path: &Path, warnings: &str) -> Vec<Vec<String>> {
    let mut outputs = Vec::new();
    for name in READERS {
        let Some(output) = output(name, command, path) else { continue };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert_eq!(said.trim(), warnings, "{name}");
        let text = String::from_utf8_lossy(&output.stdout);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        outputs.push(text.lines().map(words).filter(|line| !line.is_empty()).collect());
        capability::used(name);
    }
    outputs
}
