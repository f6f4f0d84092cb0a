//! uftrace, which reads what the plugin writes.

use super::capability;
use std::path::Path;
use std::process::Command;

/// Releases 0.13 and 0.19.
const READERS: [&str; 2] = ["uftrace-bookworm", "uftrace-trixie"];

/// Reads a directory with four commands of each release, and checks how many calls of a function they find.
#[track_caller]
pub fn check(dir: &Path, function: &str, calls: u64) {
    for name in READERS {
        let Some(uftrace) = capability::program(name) else { continue };
        let read = |command: &str| {
            let mut uftrace = Command::new(&uftrace);
            let ran = uftrace.args([command, "--no-pager", "-d"]).arg(dir).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(ran.status.success() && said.is_empty(), "{name} {command}: {said}");
            String::from_utf8_lossy(&ran.stdout).into_owned()
        };
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
        capability::used(name);
    }
}
