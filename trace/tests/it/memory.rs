//! Memory of a session before its first event. The test is alone in its process, because the memory of the
//! process is measured.

use hypertrace_test_support::child;
use hypertrace_trace::{Session, SessionConfig};

/// Returns the resident anonymous memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_session_for_2_vcpus_takes_at_most_512_kib_before_its_first_event() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let before = resident();

        let session = Session::create(SessionConfig::new(dir.path()).for_vcpus(2)).unwrap();

        let taken = resident().saturating_sub(before);
        assert!(taken <= 512, "{taken} KiB");
        session.finish().unwrap();
    });
}
