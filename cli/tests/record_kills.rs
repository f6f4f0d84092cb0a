//! SIGKILL for `record`: after the next start, no instance is left in the kernel and each recording can
//! be read. `HYPERTRACE_TEST_KILLS` is the number of kills.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::interrupt::{send, with_default_signals};
use hypertrace_tests::random::Random;
use hypertrace_tests::trace_cmd;
use hypertrace_tests::tracefs::Instance;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

fn kills() -> u64 {
    std::env::var("HYPERTRACE_TEST_KILLS").map_or(5, |kills| kills.parse().unwrap())
}

/// Starts to record a process.
fn record(dir: &Path, pid: u32) -> Child {
    let mut command = HYPERTRACE.command(["record", "--out"]);
    command.arg(dir).args(["--pid", &pid.to_string()]).stderr(Stdio::piped());
    with_default_signals(&mut command).spawn().unwrap()
}

/// Removes what a test that was killed, or this one at its end, started.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_recording_is_completed_by_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::seeded();
    let busy = "while :; do /bin/true; done";
    let busy = Killed(Command::new("sh").args(["-c", busy]).spawn().unwrap());
    // Its mount is the one through which instances are seen here.
    let Some(own) = Instance::new() else { return };
    let instances = own.dir().parent().unwrap();
    let mut pids = Vec::new();
    let kills = kills();
    for n in 0..kills {
        let mut recorder = record(&dir.path().join(n.to_string()), busy.0.id());
        pids.push(recorder.id());
        // A third at any instant of the start, a third while it records, a third while it ends.
        if n % 3 > 0 {
            let mut lines = BufReader::new(recorder.stderr.take().unwrap()).lines();
            let started = |line: &str| line.contains("recording the kernel's events");
            assert!(lines.any(|line| started(&line.unwrap())));
        }
        if n % 3 == 2 {
            thread::sleep(Duration::from_millis(random.below(30)));
            send("INT", recorder.id().into());
        }
        thread::sleep(Duration::from_micros(random.below(60_000)));
        // It may have ended.
        let _ = recorder.kill();
        recorder.wait().unwrap();
    }

    let out = dir.path().join("last");
    let last = run(HYPERTRACE.command(["record", "--out"]).arg(&out).args(["--", "true"]));

    assert_eq!(last.code, Some(0), "{last:?}");
    let left: Vec<String> = fs::read_dir(instances)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| pids.iter().any(|pid| name.starts_with(&format!("hypertrace.{pid}."))))
        .collect();
    assert_eq!(left, [""; 0], "{last:?}");
    capability::used("tracefs");
    let mut read = 0;
    for n in 0..kills {
        let session = dir.path().join(n.to_string());
        assert!(!session.join(".kernel").exists(), "{n}: {last:?}");
        let file = session.join("kernel.dat");
        // Those killed at the start may have made none.
        assert!(file.exists() || n % 3 == 0, "{n}: {last:?}");
        if file.exists() {
            let Some(events) = trace_cmd::read(&file) else { return };
            assert!(events.is_sorted_by_key(|event| event.time), "{n}");
            read += u64::from(!events.is_empty());
            run(HYPERTRACE.command(["report"]).arg(&session)).reported();
        }
    }
    assert!(read >= kills / 3, "{read} of {kills} have events");
}

/// System calls of a flood, and the bytes of an event of one at least.
const CALLS: u64 = 40_000;
const EVENT_BYTES: u64 = 60;

#[test]
fn pages_that_were_on_disk_and_pages_in_the_kernel_make_one_recording() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let dd = format!("read line; dd if=/dev/zero of=/dev/null bs=1 count={}", CALLS / 2);
    let mut shell = Command::new("sh");
    shell.args(["-c", &dd]).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut shell = shell.spawn().unwrap();
    let mut command = HYPERTRACE.command(["record", "-e", "raw_syscalls:sys_enter", "--out"]);
    command.arg(&out).args([
        "--pid",
        &shell.id().to_string(),
        "--pid",
        &std::process::id().to_string(),
    ]);
    let mut recorder = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(recorder.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Recordings of the other test's processes may be completed first.
    let said = |line: &String| {
        line.contains("recording the kernel's events") || line.contains("cannot be used")
    };
    let said = lines.into_iter().find(said).unwrap();
    if said.contains("cannot be used") {
        capability::missing("tracefs", said);
        let _ = (shell.kill(), shell.wait());
        return;
    }
    drop(shell.stdin.take());
    assert!(shell.wait().unwrap().success());
    let on_disk = || -> u64 {
        let files = fs::read_dir(out.join(".kernel")).unwrap().map(|entry| entry.unwrap());
        let pages = files.filter(|file| file.file_name().to_string_lossy().starts_with("cpu"));
        pages.map(|file| file.metadata().unwrap().len()).sum()
    };
    // The calls of this test itself are recorded, so some are always in the kernel's buffers.
    while on_disk() < CALLS * EVENT_BYTES * 9 / 10 {
        thread::sleep(Duration::from_millis(1));
    }

    drop(recorder);

    let report = run(HYPERTRACE.command(["report"]).arg(&out));
    assert_eq!(report.code, Some(0), "{report:?}");
    capability::used("tracefs");
    // Another test's recorder may complete it at the same time.
    while out.join(".kernel").exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let Some(events) = trace_cmd::read(&out.join("kernel.dat")) else { return };
    assert!(events.len() as u64 >= CALLS * 9 / 10, "{}", events.len());
    assert!(events.is_sorted_by_key(|event| event.time));
}
