//! SIGKILL while the demo drains: every reader reads all records that were committed.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{FULL_SIZE, babeltrace2, kill, packets, wait_until};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Starts the demo, and waits until it drains.
fn draining(dir: &Path, vcpus: u32) -> Child {
    let demo = HYPERTRACE.demo(dir, vcpus).stdout(Stdio::null()).spawn().unwrap();
    wait_until("a guest's events", || dir.join("ctf/guest-000-0000").exists());
    demo
}

/// Returns whether the session is unfinished and lacks some of the guest's records.
fn is_mid_run(dir: &Path, vcpus: u32) -> bool {
    let json: Value =
        serde_json::from_slice(&std::fs::read(dir.join("session.json")).unwrap()).unwrap();
    // Each vCPU has one lease and 100,000 events.
    let whole = u64::from(vcpus) * (1 + 100_000);
    json["finished"] == false && packets::committed(dir).unwrap().guest < whole
}

#[test]
fn a_killed_demo_is_read_to_its_end() {
    let whole = tempfile::tempdir().unwrap();
    let mut demo = draining(whole.path(), 3);
    let begin = Instant::now();
    assert!(demo.wait().unwrap().success());
    let span = begin.elapsed();

    let start = |kill| {
        let (dir, vcpus) = (tempfile::tempdir().unwrap(), 2 + kill as u32 % 3);
        let demo = draining(dir.path(), vcpus);
        (dir, vcpus, demo, 0)
    };
    let kills = if FULL_SIZE { 20 } else { 10 };
    kill::sweep(
        kills,
        span,
        start,
        |(dir, vcpus, demo, before)| {
            // A read of the session fails while the demo writes a header or truncates a file, so the test
            // reads again.
            let mut looks = (0..100).map(|_| packets::committed(dir.path()));
            *before = looks.find_map(Result::ok).expect("a session").all();
            kill::kill(demo) && is_mid_run(dir.path(), *vcpus)
        },
        |(dir, _, _, before)| {
            let committed = packets::committed(dir.path()).unwrap().all();
            assert!(committed >= before, "{committed}, and {before} before");
            // JSON shows leases, too.
            let report =
                || run(HYPERTRACE.command(["report", "--json"]).arg(dir.path())).reported();
            let (report, read) = std::thread::scope(|scope| {
                let report = scope.spawn(report);
                let read = babeltrace2::read(&dir.path().join("ctf"));
                (report.join().unwrap(), read)
            });
            assert_eq!(report.lines().count() as u64, committed);
            assert_eq!(HYPERTRACE.info(dir.path())["missing"], 0);
            if let Some(read) = read {
                assert_eq!(read.clean(), committed);
            }
        },
    );
}
