//! Reports of passing tests about capabilities: in the file, and on a stderr that the test harness does not hide.

use hypertrace_tests::{capability, child, this_test};

/// Environment variable that is set in the child process, which makes the reports.
const SPEAKER: &str = "HYPERTRACE_CAPABILITY_SPEAKER";

#[test]
fn reports_of_a_passing_test_are_recorded() {
    if std::env::var_os(SPEAKER).is_some() {
        capability::used("kvm");
        capability::missing("tracefs", "not\tmounted,\nnot root");
        return;
    }
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("capability-notes");
    let _ = std::fs::remove_file(&file);

    let speaker =
        child::alone(this_test!()).env(SPEAKER, "1").env(capability::FILE, &file).output().unwrap();

    assert!(speaker.status.success());
    let stderr = String::from_utf8(speaker.stderr).unwrap();
    assert_eq!(stderr, "capability missing: tracefs: not mounted, not root\n");
    let notes = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        notes,
        "used\tkvm\tcapability::reports_of_a_passing_test_are_recorded\nmissing\ttracefs\tnot mounted, not root\n"
    );
}

#[test]
fn reports_from_a_process_of_its_own_are_heard() {
    if std::env::var_os(SPEAKER).is_some() {
        return child::in_own_process(|| capability::missing("tracefs", "not mounted"));
    }

    let speaker =
        child::alone(this_test!()).env(SPEAKER, "1").env_remove(capability::FILE).output().unwrap();

    assert!(speaker.status.success());
    let stderr = String::from_utf8(speaker.stderr).unwrap();
    assert_eq!(stderr, "capability missing: tracefs: not mounted\n");
}
