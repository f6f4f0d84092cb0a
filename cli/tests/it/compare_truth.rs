//! `hypertrace compare` of a program with itself, and with a program that is slower in one of its regions,
//! beside load that comes and goes.

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::{child, this_test, traced};
use serde_json::Value;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Number of steps of `parse`, which take some 50 us.
const PARSE: u64 = if cfg!(debug_assertions) { 4_000 } else { 50_000 };
/// Number of steps of the slower `parse`: 5 % more than [`PARSE`].
const SLOWER: u64 = PARSE + PARSE / 20;
const REQUESTS: u64 = 500;

fn compute(steps: u64) {
    black_box((0..steps).fold(1, |sum: u64, step| black_box(sum.rotate_left(5) ^ step)));
}

/// Serves requests whose `parse` takes `parse` steps.
fn serve(parse: u64) {
    for _ in 0..REQUESTS {
        let _region = hypertrace::region!("request");
        {
            let _region = hypertrace::region!("read");
            compute(PARSE / 2);
        }
        {
            let _region = hypertrace::region!("parse");
            compute(parse);
        }
        compute(PARSE / 10);
    }
}

/// Load that comes and goes, until the value is dropped.
struct Load(&'static AtomicBool);

impl Load {
    fn start() -> Load {
        let ends: &AtomicBool = Box::leak(Box::default());
        thread::spawn(move || {
            // Loads and pauses last from 20 ms to 2 s.
            for turn in 0_u64.. {
                let time = Duration::from_millis(20 + turn * 7919 % 1_980);
                let began = Instant::now();
                while began.elapsed() < time && !ends.load(Ordering::Relaxed) {
                    compute(100_000);
                }
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(time);
            }
        });
        Load(ends)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Compares this test as a program with itself, with `parse` steps of `parse` on the second side. Returns the
/// JSON.
fn compare(test: &str, runs: &str, parse: u64) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    let command = |steps: u64| {
        format!(
            "{}={steps} exec '{}' {} --exact --include-ignored --nocapture --test-threads=1 -q",
            traced::AS_PROGRAM,
            this.display(),
            child::full_name(test)
        )
    };
    let mut compare = HYPERTRACE.command(["compare", "--run", "--kernel", "--json"]);
    compare.args(["-n", runs, "--keep", "samples", "-o"]).arg(dir.path().join("R"));
    let ran = run(compare.args([command(PARSE), command(parse)]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Returns whether the first sentence says that `parse` is slower.
fn is_named(json: &Value) -> bool {
    let first = json["answer"][0].as_str().unwrap();
    first.starts_with("parse is ") && first.contains(" slower ")
}

#[test]
fn a_slower_region_of_a_program_is_named() {
    if let Some(parse) = traced::argument() {
        return serve(parse.parse().unwrap());
    }
    let _load = Load::start();

    // Tests that run at the same time may slow some of the seven runs by more than the difference between the
    // sides. The comparison then names nothing.
    let mut seen = Vec::new();
    let is_seen = (0..3).any(|_| {
        let json = compare(this_test!(), "7", 4 * PARSE);
        seen.push(json["answer"].clone());
        is_named(&json)
    });

    assert!(is_seen, "{seen:?}");
}

#[test]
#[ignore = "40 comparisons of 20 runs: cargo xtask full"]
fn slower_builds_are_told_from_equal_ones() {
    if let Some(parse) = traced::argument() {
        return serve(parse.parse().unwrap());
    }
    let _load = Load::start();
    let answers = |parse: u64| -> Vec<Value> {
        (0..20).map(|_| compare(this_test!(), "10", parse)).collect()
    };

    let named = answers(SLOWER).iter().filter(|json| is_named(json)).count();
    let has_verdict = |json: &&Value| {
        let differences = json["differences"].as_array().unwrap();
        differences.iter().any(|d| d["typical"]["verdict"] != "no_difference_seen")
    };
    let false_alarms = answers(PARSE).iter().filter(has_verdict).count();

    println!(
        "figure: parse, 5 % slower, named in {named} of 20; {false_alarms} verdicts of 20 on equal builds"
    );
    assert!(named >= 18, "{named}");
    assert!(false_alarms <= 1, "{false_alarms}");
}
