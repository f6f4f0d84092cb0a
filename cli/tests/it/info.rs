//! `hypertrace info` shows what this machine can do if there is no session.

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::kvm;
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

#[test]
fn without_a_session_the_machine_is_described_with_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let at = |args: &[&str]| run(HYPERTRACE.command(args).current_dir(dir.path()));

    let text = at(&["info"]).ok();
    let json: Value = at(&["info", "--json"]).json();

    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let abilities = json["machine"].as_array().unwrap();
    let names = abilities.iter().map(|ability| ability["name"].as_str().unwrap());
    let names = Vec::from_iter(names);
    assert_eq!(names, ["KVM", "tracefs", "perf", "locked memory", "clock"]);
    for ability in abilities {
        let name = ability["name"].as_str().unwrap();
        let (answer, shown) = match ability["usable"].as_bool().unwrap() {
            true => ("yes", "detail"),
            false => ("no", "remedy"),
        };
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        assert_eq!(
            line.trim_start()[name.len()..].split(':').next().map(str::trim),
            Some(answer),
            "{text}"
        );
        assert!(!ability[shown].as_str().unwrap().is_empty(), "{ability}");
    }
    assert_eq!(abilities[0]["usable"], kvm::is_usable(), "{json}");
}

#[test]
fn the_machine_is_described_beside_a_session_only_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let at = |args: &[&str]| run(HYPERTRACE.command(args).current_dir(dir.path()));
    assert_eq!(at(&["record", "-q", "true"]).code, Some(0));

    let shown = at(&["info"]).ok();
    assert!(shown.starts_with("hypertrace.data\n"), "{shown}");
    assert!(!shown.contains("device"), "a program has none: {shown}");
    assert!(at(&["info", "--machine"]).ok().contains("KVM"));
    assert_eq!(at(&["info", "/nonexistent"]).code, Some(2));
}
