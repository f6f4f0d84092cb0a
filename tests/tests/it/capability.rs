//! The reports of passing tests reach the file, and also stderr although the test harness hides the output of
//! passing tests.

use std::path::Path;

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
fn a_program_is_not_used_if_the_search_for_its_capability_was_in_vain() {
    if std::env::var_os(SPEAKER).is_some() {
        assert_eq!(capability::program("sh"), None);
        assert!(capability::program_of("another", "sh").is_some());
        return;
    }
    let mut speaker = child::alone(this_test!());
    speaker.env(SPEAKER, "1").env(capability::ABSENT, "cat\tx\nsh\ttoo old\n");

    let ran = speaker.env_remove(capability::FILE).output().unwrap();

    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!((ran.status.success(), &*stderr), (true, "capability missing: sh: too old\n"));
}

#[test]
fn programs_of_sbin_are_found_although_path_lacks_it() {
    if std::env::var_os(SPEAKER).is_some() {
        assert!(capability::on_path("chroot").is_some_and(|file| file.is_absolute()));
        return;
    }
    if !["/usr/sbin/chroot", "/sbin/chroot"].iter().any(|file| Path::new(file).exists()) {
        return capability::missing("chroot", "not in sbin");
    }

    let ran = child::alone(this_test!()).env(SPEAKER, "1").env("PATH", "/nowhere").output();

    assert!(ran.unwrap().status.success());
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
