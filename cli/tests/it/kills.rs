//! SIGKILL while the demo drains: every reader reads all that was committed. `HYPERTRACE_TEST_KILLS` is
//! the number of kills.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::random::Random;
use hypertrace_tests::{IS_OPTIMIZED, babeltrace2, packets};
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn kills() -> u64 {
    let usual = if IS_OPTIMIZED { 20 } else { 10 };
    std::env::var("HYPERTRACE_TEST_KILLS").map_or(usual, |kills| kills.parse().unwrap())
}

/// Session whose process was killed, and the records committed just before.
struct Killed {
    dir: tempfile::TempDir,
    committed: u64,
}

/// Runs the demo and kills it after `delay` of draining. Returns `None` if it had ended.
fn killed_after(delay: Duration, vcpus: u32) -> Option<Killed> {
    let dir = tempfile::tempdir().unwrap();
    let mut demo = HYPERTRACE.demo(dir.path(), vcpus).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while !dir.path().join("ctf/guest-000-0000").exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never began to drain");
    }
    std::thread::sleep(delay);
    // Retried if a header is being written or a file being truncated.
    let mut looks = (0..100).map(|_| packets::committed(dir.path()));
    let committed = looks.find_map(Result::ok).expect("a session").all();
    demo.kill().unwrap();
    let by_signal = demo.wait().unwrap().signal() == Some(9);
    (by_signal && is_mid_run(dir.path(), vcpus)).then_some(Killed { dir, committed })
}

/// Returns whether the session is unfinished and lacks some of the guest's records.
fn is_mid_run(dir: &Path, vcpus: u32) -> bool {
    let json: Value =
        serde_json::from_slice(&std::fs::read(dir.join("session.json")).unwrap()).unwrap();
    // Of each vCPU: its lease, its events, its stamps.
    let whole = u64::from(vcpus) * (1 + 100_000 + 100);
    json["finished"] == false && packets::committed(dir).unwrap().guest < whole
}

#[test]
fn a_killed_demo_is_read_to_its_end() {
    let mut random = Random::seeded();
    let (mut hits, mut tries, mut longest) = (0, 0, 50_000);
    let mut sizes = Vec::new();
    let kills = kills();
    while hits < kills {
        tries += 1;
        assert!(tries < 20 * kills, "{hits} hits in {tries} tries");
        let delay = Duration::from_micros(random.below(longest));
        let Some(killed) = killed_after(delay, 2 + random.below(3) as u32) else {
            longest = longest * 7 / 8;
            continue;
        };
        longest = longest * 9 / 8;
        hits += 1;

        let committed = packets::committed(killed.dir.path()).unwrap().all();
        assert!(committed >= killed.committed, "{committed}, and {} before", killed.committed);
        sizes.push(committed);
        let report = || run(HYPERTRACE.command(["report"]).arg(killed.dir.path())).reported();
        let (report, read) = std::thread::scope(|scope| {
            let report = scope.spawn(report);
            let read = babeltrace2::read(&killed.dir.path().join("ctf"));
            (report.join().unwrap(), read)
        });
        assert_eq!(report.lines().count() as u64, committed, "report, kill {hits}");
        assert_eq!(HYPERTRACE.stat(killed.dir.path())["missing"], 0, "kill {hits}");
        if let Some(read) = read {
            assert_eq!(read.clean(), committed, "babeltrace2, kill {hits}");
        }
    }
    sizes.sort();
    println!("{hits} of {tries} kills in the middle of a run, at {sizes:?} records");
}
