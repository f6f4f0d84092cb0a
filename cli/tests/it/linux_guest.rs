//! `hypertrace serve` for a Linux guest of a stock QEMU: with a shared file, and with vfio-user.

use std::collections::BTreeMap;
use std::path::Path;

use hypertrace_tests::build;
use hypertrace_tests::c::{self, Linked};
use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::serve::Server;
use hypertrace_tests::traced::sizes;
use hypertrace_tests::{FULL_SIZE, babeltrace2, bare, interface_2016};
use serde_json::{Value, json};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Events of each of four threads.
const EVENTS: u64 = if FULL_SIZE { 250_000 } else { 20_000 };
/// Number of points of each thread with a shared file, where a point takes a millisecond, and with vfio-user.
const FILE_POINTS: u64 = if FULL_SIZE { 250 } else { 100 };
const SOCKET_POINTS: u64 = if FULL_SIZE { 2_500 } else { 250 };

/// Runs the program in a guest with this device. `clock` is the clock that the guest's environment requests,
/// and the clock that the program then uses.
#[track_caller]
fn run(linux: &Linux, folder: &Path, device: &[String], points: u64, clock: (&str, &str)) {
    let program = static_program("hypertrace-linux-guest");
    let (named, taken) = clock;
    let script = format!("HYPERTRACE_CLOCK={named} program {EVENTS} {points}; echo \"ended: $?\"");
    let console = linux.start(folder, device, &[("program", &program)], &script).console();
    assert!(console.contains(&format!("clock {taken}")), "{console}");
    assert!(console.contains("failed: 0") && console.contains("ended: 0"), "{console}");
}

/// Asserts that a session has all events of `runs` runs, each thread's events in order, and nothing else.
#[track_caller]
pub fn check(session: &Path, stat: &Value, runs: u64, events: u64, points: u64) {
    let total = &stat["total"];
    let expected = [4 * events, 4 * 2 * points, 0].map(|n| Value::from(n * runs));
    let found = ["events", "reference_points", "lost"].map(|name| total[name].clone());
    assert_eq!(found, expected, "{stat}");
    assert_eq!(total["faults"], json!({}), "{stat}");
    assert_eq!(stat["unusable_reference_points"], 0);
    check_numbers(session, events, points);
    if let Some(count) = babeltrace2::count(&session.join("ctf")) {
        assert_eq!(Value::from(count), total["records"]);
    }
}

/// Asserts that in each run of the program, each thread's events and points are numbered in order from 0 on.
/// The last run must have all events and points.
#[track_caller]
pub fn check_numbers(session: &Path, events: u64, points: u64) {
    let mut next: BTreeMap<(u64, String), u64> = BTreeMap::new();
    HYPERTRACE.report_each(session, |line| {
        let number = match line.event.as_str() {
            "step" => "n",
            "committed" | "acknowledged" => "point",
            _ => return,
        };
        let of = |name: &str| line.fields[name].as_u64().unwrap();
        let next = next.entry((of("thread"), line.event.clone())).or_default();
        let most = if number == "n" { events } else { points };
        assert_eq!(of(number), *next % most, "{line:?}");
        *next += 1;
    });
    assert_eq!(next.len(), 12);
    for ((_, event), next) in next {
        let most = if event == "step" { events } else { points };
        assert_eq!(next % most, 0, "{event}: {next}");
    }
}

#[test]
fn a_guest_with_a_shared_file_loses_nothing_over_two_boots() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_file(HYPERTRACE, folder.path());

    // The guest's kernel does not use the TSC, because the kernel does not know that all CPUs of an emulator
    // share one TSC.
    for clock in [("", "Counter"), ("monotonic_raw", "MonotonicRaw")] {
        run(&linux, folder.path(), &server.device, FILE_POINTS, clock);
    }

    let session = server.session.clone();
    check(&session, &server.end(), 2, EVENTS, FILE_POINTS);
    Linux::used();
}

#[test]
fn a_guest_with_the_device_over_vfio_user_loses_nothing_over_two_vms() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);

    for _ in 0..2 {
        run(&linux, folder.path(), &server.device, SOCKET_POINTS, ("tsc", "Counter"));
    }

    let session = server.session.clone();
    check(&session, &server.end(), 2, EVENTS, SOCKET_POINTS);
    Linux::used();
}

#[test]
fn an_aarch64_guest_loses_nothing_by_a_shared_file_and_by_the_device_over_vfio_user() {
    let Some(linux) = Linux::find_aarch64() else { return };
    let Some(built) = build::aarch64("hypertrace-linux-guest", &["--release"]) else { return };
    let program = built.join("release/hypertrace-linux-guest");
    let folder = tempfile::tempdir().unwrap();
    let file = Server::of_file(HYPERTRACE, &folder.path().join("file"));
    let socket = Server::of_socket(HYPERTRACE, &folder.path().join("socket"), &[]);
    let devices = [&file.device[..], &socket.device].concat();
    let (events, points) = sizes(10_000);
    let script = format!(
        "for id in 0x1110 0x10f0; do
        for path in /sys/bus/pci/devices/*; do grep -q $id $path/device && break; done
        program {events} {points} ${{path##*/}}; echo \"$id ended: $?\"; done"
    );

    let console = linux.start(folder.path(), &devices, &[("program", &program)], &script).console();

    let said = ["0x1110 ended: 0", "0x10f0 ended: 0"];
    assert!(said.iter().all(|text| console.contains(text)), "{console}");
    for server in [file, socket] {
        let session = server.session.clone();
        check(&session, &server.end(), 1, events, points);
    }
    Linux::used_aarch64();
}

#[test]
fn a_boot_with_marks_of_its_shell_a_program_of_2016_and_firmware() {
    let (Some(linux), Some(compiler)) = (Linux::find(), c::compiler()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let options = ["--args", "5", "--ring", "64K"];
    let server = Server::of_socket(HYPERTRACE, folder.path(), &options);
    let source = c::source("tests/c/interface_2016.c");
    let legacy = compiler.program(&source, Linked::Static, folder.path());
    let bare = bare::program(&compiler, folder.path());
    let script = "mark --begin boot; mark --sync point; mark mounted device=/dev/vda n=2
        mark nap id=7 -- sh -c 'sleep 0.05; exit 3'; echo \"nap: $?\"
        mark --sync --end boot; mark done
        legacy - 3 20; echo \"legacy: $?\"
        for path in /sys/bus/pci/devices/*; do grep -q 0x10f0 $path/device && break; done
        legacy $path 1 0; echo \"path: $?\"; bare $path 9 20000 50";

    let programs =
        [("mark", &*static_program("hypertrace-mark")), ("legacy", &legacy), ("bare", &bare)];
    let console = linux.start(folder.path(), &server.device, &programs, script).console();

    let session = server.session.clone();
    assert_eq!(server.end()["total"]["lost"], 0);
    let ended =
        ["nap: 3", "15 clients, 5 arguments", "legacy: 0", "path: 0", "dropped 0, unanswered 0"];
    assert!(ended.iter().all(|text| console.contains(text)), "{console}");
    let mut lines = HYPERTRACE.report(&session);
    interface_2016::check(&lines, 3, 20, 5);
    bare::check(&lines, 9, 20_000, 50, true);
    let of_2016 = lines.iter().filter(|line| line.number("client") == Some(9));
    assert!(of_2016.map(|line| &line.fields["args"]).eq([&json!([1, 2, 3, 0, 0])]));
    let is_other =
        |name: &str| name == "lease" || name == "hypertrace" || name.starts_with("bare_");
    lines.retain(|line| !is_other(&line.event));
    let found = lines.into_iter().map(|line| (line.event, Value::Object(line.fields)));
    let expected = [
        ("boot_begin", json!({"id": 0, "any_client": true})),
        ("point", json!({"any_client": true})),
        ("mounted", json!({"device": "/dev/vda", "n": 2, "any_client": true})),
        ("nap_begin", json!({"id": 7, "command": "sh -c sleep 0.05; exit 3"})),
        ("nap_end", json!({"id": 7, "status": 3})),
        ("boot_end", json!({"id": 0, "any_client": true})),
        ("done", json!({"any_client": true})),
    ];
    assert_eq!(Vec::from_iter(found), expected.map(|(name, fields)| (name.to_owned(), fields)));
    assert_eq!(HYPERTRACE.regions(&session, &[]), [("boot".into(), 1), ("nap".into(), 1)]);
    Linux::used();
}
