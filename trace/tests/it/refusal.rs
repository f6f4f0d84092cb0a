//! Tests of directories that a session refuses and does not change.

use hypertrace_trace::control::error_chain;
use hypertrace_trace::{DirectoryError, Session, SessionConfig, SessionError};
use std::path::Path;

fn refusal(dir: &Path) -> (SessionError, String) {
    let error = Session::create(SessionConfig::new(dir)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(dir.to_str().unwrap()), "{text}");
    (error, text)
}

#[test]
fn a_directory_with_something_in_it_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes"), "mine").unwrap();
    let (error, text) = refusal(dir.path());
    assert!(matches!(error, SessionError::Directory(DirectoryError::NotEmpty(_))));
    assert!(text.contains("give a new or an empty directory"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_finished_session_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    Session::create(SessionConfig::new(dir.path())).unwrap().finish().unwrap();
    assert!(matches!(refusal(dir.path()).0, SessionError::Directory(DirectoryError::NotEmpty(_))));
}

#[test]
fn a_file_is_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(refusal(&file).0, SessionError::Directory(DirectoryError::NotADirectory(_))));
    assert!(matches!(
        refusal(&file.join("below")).0,
        SessionError::Directory(DirectoryError::Unusable { .. })
    ));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_directory_in_one_that_is_missing_is_refused_and_none_is_made() {
    let dir = tempfile::tempdir().unwrap();

    let (error, _) = refusal(&dir.path().join("a/b"));

    assert!(matches!(error, SessionError::Directory(DirectoryError::Unusable { .. })));
    let missing = dir.path().join("a");
    let text = error_chain(&error);
    assert!(text.ends_with(&format!("there is no directory {}", missing.display())), "{text}");
    assert!(!missing.exists());
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let (error, text) = refusal(Path::new("/proc/no/such/place"));
    assert!(matches!(error, SessionError::Directory(DirectoryError::Unusable { .. })));
    assert!(text.contains("give one that can be written"), "{text}");
}

#[test]
fn an_empty_directory_and_a_new_one_below_it_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    Session::create(SessionConfig::new(dir.path().join("new"))).unwrap();
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    Session::create(SessionConfig::new(&empty)).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(&empty).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["classes.jsonl", "ctf", "session.json"]);
}

#[test]
fn more_host_rings_than_there_can_be_are_refused_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let of = |vcpus| SessionConfig::new(dir.path().join("s")).for_vcpus(vcpus);

    let error = Session::create(of(1017)).unwrap_err();

    assert!(error_chain(&error).contains("host_rings must be at most 1024"), "{error:?}");
    assert_eq!(std::fs::read_dir(dir.path().join("s")).unwrap().count(), 0);
    Session::create(of(1016)).unwrap();
}
