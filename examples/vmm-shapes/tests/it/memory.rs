//! Memory that a session and its device need, measured in a process for this test alone.

use hypertrace_test_support::child;
use hypertrace_vmm::{DeviceConfig, Hypertrace, SessionConfig};

/// Returns the private memory of this process in KiB.
fn private() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_session_and_a_device_for_4_vcpus_take_less_than_4_mib_of_private_memory() {
    child::in_own_process(|| {
        let dir = tempfile::tempdir().unwrap();
        let session = SessionConfig::new(dir.path());
        let before = private();

        let hypertrace = Hypertrace::start(session, DeviceConfig::new(4)).unwrap();

        let taken = private() - before;
        assert!(taken < 4 << 10, "{taken} KiB");
        hypertrace.finish().unwrap();
    });
}
