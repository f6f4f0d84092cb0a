//! `hypertrace serve`: a Linux guest of a stock QEMU, by a shared file and by vfio-user.

use std::collections::BTreeMap;
use std::path::Path;

use hypertrace_tests::babeltrace2;
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::serve::Server;
use serde_json::{Value, json};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Events and points of each of four threads.
const EVENTS: u64 = if cfg!(debug_assertions) { 20_000 } else { 250_000 };
const POINTS: u64 = if cfg!(debug_assertions) { 100 } else { 250 };

/// Runs the program in a guest with this device.
#[track_caller]
fn run(linux: &Linux, folder: &Path, device: &[String]) {
    let program = static_program("hypertrace-linux-guest");
    let script = format!("program {EVENTS} {POINTS}; echo \"ended: $?\"");
    let console = linux.start(folder, device, &[("program", &program)], &script).console();
    // The kernel has dropped the TSC: it does not know that an emulator's CPUs have one.
    assert!(console.contains("clock Counter"), "{console}");
    assert!(console.contains("failed: 0") && console.contains("ended: 0"), "{console}");
}

/// Asserts that a session has all events of so many runs, each thread's in order, and nothing else.
#[track_caller]
fn check(session: &Path, stat: &Value, runs: u64) {
    let total = &stat["total"];
    let expected = [4 * EVENTS, 4 * 2 * POINTS, 0].map(|n| Value::from(n * runs));
    let found = ["events", "reference_points", "lost"].map(|name| total[name].clone());
    assert_eq!(found, expected, "{stat}");
    assert_eq!(total["faults"], json!({}), "{stat}");
    assert_eq!(stat["unusable_reference_points"], 0);
    let mut next: BTreeMap<(u64, String), u64> = BTreeMap::new();
    HYPERTRACE.report_each(session, |line| {
        let number = match line.event.as_str() {
            "step" => "n",
            "committed" | "acknowledged" => "point",
            _ => return,
        };
        let of = |name: &str| line.fields[name].as_u64().unwrap();
        let next = next.entry((of("thread"), line.event.clone())).or_default();
        let most = if number == "n" { EVENTS } else { POINTS };
        assert_eq!(of(number), *next % most, "{line:?}");
        *next += 1;
    });
    assert_eq!(next.len(), 12);
    if let Some(count) = babeltrace2::count(&session.join("ctf")) {
        assert_eq!(Value::from(count), total["records"]);
    }
}

#[test]
fn a_guest_with_a_shared_file_loses_nothing_over_two_boots() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());

    for _ in 0..2 {
        run(&linux, folder.path(), &server.device);
    }

    let session = server.session.clone();
    check(&session, &server.end(), 2);
    Linux::used();
}

#[test]
fn a_guest_with_the_device_over_vfio_user_loses_nothing_over_two_vms() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);

    for _ in 0..2 {
        run(&linux, folder.path(), &server.device);
    }

    let session = server.session.clone();
    check(&session, &server.end(), 2);
    Linux::used();
}
