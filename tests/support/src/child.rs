// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests that run again, alone in their own process.

use crate::capability;
use std::process::Command;
use std::sync::OnceLock;

/// Returns the name of the calling test, as the harness knows it.
#[macro_export]
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::child::test_of(&here)
    }};
}

/// Returns the name of the test that has this function or closure in it.
pub fn test_of<F>(_: &F) -> &'static str {
    let path = std::any::type_name::<F>().split("::{{closure}}").next().unwrap();
    path.trim_end_matches("::here").split_once("::").unwrap().1
}

/// Runs the calling test in its own process, unless this process is already the test's own. `body` is a
/// closure in the test.
#[track_caller]
pub fn in_own_process<F: FnOnce()>(body: F) {
    const ALONE: &str = "HYPERTRACE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let ran = alone(test_of(&body)).env(ALONE, "1").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{}\n{out}{err}", ran.status);
    // The child's output says what this machine lacks, and contains the test's measurements.
    err.lines().filter(|line| line.starts_with(capability::MISSING)).for_each(capability::say);
    print!("{err}");
}

/// Returns a command that runs only the test `name` of this program.
#[track_caller]
pub fn alone(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &full_name(name), "--nocapture", "--test-threads=1"]);
    command
}

/// Returns the test's name in the harness: `name`, or `module::name`.
///
/// # Panics
/// If this program has no such test, or has several of them in different modules.
#[track_caller]
pub fn full_name(name: &str) -> String {
    static TESTS: OnceLock<Vec<String>> = OnceLock::new();
    let tests = TESTS.get_or_init(|| {
        let mut list = Command::new(std::env::current_exe().unwrap());
        let listed = list.args(["--list", "--format", "terse"]).output().unwrap().stdout;
        let listed = String::from_utf8_lossy(&listed);
        listed.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
    });
    if tests.iter().any(|test| test == name) {
        return name.to_owned();
    }
    let mut found = tests.iter().filter(|test| test.rsplit("::").next() == Some(name));
    match (found.next(), found.next()) {
        (Some(test), None) => test.clone(),
        found => panic!("{name} is not one test of this program: {found:?}"),
    }
}
