//! The fuzz target `session`, for a while, on a stable compiler; and a second
//! reader, where there is one.

use hypertrace_fuzz_inputs::{session, session_in};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::process::Command;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 1500 }))]

    #[test]
    fn a_hostile_guest_spoils_no_session(data in vec(any::<u8>(), 0..3000)) {
        session(&data);
    }
}

#[test]
fn babeltrace2_reads_every_session_to_its_end() {
    if let Err(error) = Command::new("babeltrace2").arg("--version").output() {
        eprintln!("capability missing: babeltrace2 ({error})");
        return;
    }
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..60 {
        let data = vec(any::<u8>(), 0..3000).new_tree(&mut runner).unwrap().current();
        let dir = tempfile::tempdir().unwrap();
        let written = session_in(dir.path(), &data);

        let read = Command::new("babeltrace2").arg(dir.path().join("ctf")).output().unwrap();
        let stderr = String::from_utf8_lossy(&read.stderr);
        assert!(read.status.success(), "{stderr}\n{data:?}");
        let lines = read.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(lines as u64, written.summary.records, "{data:?}");
        let due = |line: &str| written.lost > 0 && line.contains("Tracer discarded");
        let wrong: Vec<&str> =
            stderr.lines().filter(|line| !line.is_empty() && !due(line)).collect();
        assert!(wrong.is_empty(), "{wrong:?}\n{data:?}");
    }
}
