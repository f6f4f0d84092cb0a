//! The critical path of a script whose region begins and ends in separate processes.

use std::process::Command;

use hypertrace_tests::build::succeed;
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::linux::static_program;

use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// The script computes, waits for a process that sleeps, and waits for a pipe whose first process sleeps.
const SCRIPT: &str = r#"
"$MARK" --begin build
i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done
sleep 0.1
echo x | (sleep 0.05; cat) > /dev/null
"$MARK" --end build
"#;

/// The program computes for 100 ms. A second thread sleeps and wakes again and again, and the program ends
/// while this thread sleeps.
const POLLED: &str = r#"
#include <pthread.h>
#include <time.h>
#include <unistd.h>
static void *polls(void *none) { for (;;) usleep(5000); return none; }
static long ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, polls, 0);
    while (ns() < 100000000) {}
    return 0;
}
"#;

/// Returns the sum in nanoseconds of the steps for which `fits` returns true.
fn sum(path: &[Value], fits: impl Fn(&Value) -> bool) -> u64 {
    path.iter().filter(|step| fits(step)).map(|step| step["ns"].as_u64().unwrap()).sum()
}

#[test]
fn a_process_with_a_thread_that_polls_is_its_computing_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (out, program) = (dir.path().join("S"), dir.path().join("polled"));
    std::fs::write(dir.path().join("polled.c"), POLLED).unwrap();
    let mut cc = Command::new("cc");
    succeed(cc.args(["-O1", "-pthread", "-o"]).arg(&program).arg(dir.path().join("polled.c")));
    let mut record: Command = HYPERTRACE.command(["record", "--kernel", "-o"]);
    let script = r#""$MARK" --begin job; "$POLLED"; "$MARK" --end job"#;
    record.arg(&out).args(["sh", "-c", script]).env("POLLED", &program);
    let ran = run(record.env("MARK", static_program("hypertrace-mark")));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if !ran.stderr.contains("(by tracefs)") {
        capability::missing("tracefs", ran.stderr);
        return;
    }
    capability::used("tracefs");

    let json = run(HYPERTRACE.command(["regions", "--path", "--json"]).arg(&out));

    let json: Value = json.beside_missing_switches().json();
    let total = &json["regions"][0]["total"];
    let path = total["path"].as_array().unwrap();
    // If the kernel drops a switch, some of the time is unknown.
    let of_program =
        |doing: &str| sum(path, |step| step["doing"] == doing && step["name"] == "polled");
    assert!(of_program("on_cpu") > 50_000_000, "{path:?}");
    // The path contains at most the last sleep of the polling thread.
    assert!(of_program("blocked") < 10_000_000, "{path:?}");
}

#[test]
fn a_script_is_divided_by_the_processes_that_its_end_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let mut record: Command = HYPERTRACE.command(["record", "--kernel", "-o"]);
    record.arg(&out).args(["sh", "-c", SCRIPT]);
    let ran = run(record.env("MARK", static_program("hypertrace-mark")));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if !ran.stderr.contains("(by tracefs)") {
        capability::missing("tracefs", ran.stderr);
        return;
    }
    capability::used("tracefs");

    let json = run(HYPERTRACE.command(["regions", "--path", "--json"]).arg(&out));

    let json: Value = json.beside_missing_switches().json();
    let total = &json["regions"][0]["total"];
    let path = total["path"].as_array().unwrap();
    let duration = total["duration_ns"].as_u64().unwrap();
    assert_eq!(sum(path, |_| true), duration, "{path:?}");
    let is = |step: &Value, name: &str, doing: &str| step["name"] == name && step["doing"] == doing;
    // The second `sleep` began before `cat` waited for it.
    let slept = sum(path, |step| is(step, "sleep", "blocked") && step["cause"] == "timer");
    assert!((125_000_000..duration).contains(&slept), "{slept} of {path:?}");
    // The loop's own time on the CPU, without turns of other threads.
    let computed = sum(path, |step| is(step, "sh", "on_cpu"));
    assert!(computed > 5_000_000, "{computed} of {path:?}");
    // The parts are the sums of the path's steps.
    for part in ["on_cpu", "runnable", "blocked"] {
        let ns = total["parts"][format!("{part}_ns")].as_u64().unwrap();
        assert_eq!(ns, sum(path, |step| step["doing"] == part), "{part}");
    }
    // The causes of waits add up to the parts, too.
    let waits = total["waits"].as_array().unwrap();
    for part in ["runnable", "blocked"] {
        let ns = total["parts"][format!("{part}_ns")].as_u64().unwrap();
        assert_eq!(ns, sum(waits, |wait| wait["part"] == part), "{part}: {waits:?}");
    }
    let timer = sum(waits, |wait| wait["part"] == "blocked" && wait["cause"] == "timer");
    assert!(timer >= slept, "{timer} of {waits:?}");
}
