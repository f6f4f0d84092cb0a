//! One session over everything that can end: kills of QEMU, reboots of the guest, a kill of
//! `hypertrace serve`.

use std::collections::BTreeMap;
use std::path::Path;

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::serve::Server;
use hypertrace_tests::{babeltrace2, packets, wait_until};

use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Events and points of each of four threads, in each boot.
const EVENTS: u64 = 2_000;
const POINTS: u64 = 20;

/// Returns the number of guest records on the disk.
fn recorded(session: &Path) -> u64 {
    packets::committed(session).map_or(0, |committed| committed.guest)
}

/// Asserts that all readers see the same, and that the totals have not fallen since `before`. Returns the
/// totals.
#[track_caller]
fn check(session: &Path, before: &Value) -> Value {
    let stat = HYPERTRACE.info(session);
    let total = stat["total"].clone();
    for name in ["records", "events", "reference_points", "lost"] {
        assert!(total[name].as_u64() >= before[name].as_u64(), "{name}: {before} {total}");
    }
    assert_eq!(stat["unusable_reference_points"], 0, "{stat}");
    let (mut reported, mut missing) = (0, 0);
    let mut next: BTreeMap<(String, u64, u64), u64> = BTreeMap::new();
    let mut tokens: BTreeMap<String, u64> = BTreeMap::new();
    HYPERTRACE.report_each(session, |line| {
        reported += 1;
        match line.event.as_str() {
            "lease" => drop(tokens.insert(line.source.clone(), line.number("token").unwrap())),
            // Steps are in order in each boot. A ring fills if the server's thread does not run for long.
            "step" => {
                let (thread, n) = (line.number("thread").unwrap(), line.number("n").unwrap());
                let token = tokens.get(&line.source).copied().unwrap_or(0);
                let next = next.entry((line.source.clone(), token, thread)).or_default();
                missing += n.checked_sub(*next).unwrap_or_else(|| panic!("{next}: {line:?}"));
                *next = n + 1;
            }
            _ => {}
        }
    });
    assert_eq!(total["records"], reported, "{stat}");
    // A guest that boots again while no server reads its rings begins each ring anew. `recover` counts one
    // fault for each ring, and not the events that the new boot has overwritten.
    let is_counted = total["lost"].as_u64() >= Some(missing) || total["faults"]["head"].is_u64();
    assert!(is_counted, "{missing} missing: {stat}");
    let parts = [session.to_owned(), session.join("recovered")];
    let parts = parts.iter().filter(|part| part.exists());
    if let Some(counts) = parts.map(|part| babeltrace2::count(&part.join("ctf"))).collect() {
        let counts: Vec<u64> = counts;
        assert_eq!(total["records"], counts.iter().sum::<u64>());
    }
    total
}

#[test]
fn a_session_survives_kills_of_qemu_reboots_and_a_kill_of_its_server() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::of_file(HYPERTRACE, folder.path());
    let session = server.session.clone();
    let program = static_program("hypertrace-linux-guest");
    let programs = [("program", &*program)];
    let mut device = server.device.clone();
    device.extend(["-action", "reboot=reset"].map(str::to_owned));
    // The guest boots again and again.
    let script = format!("program {EVENTS} {POINTS}\nreboot -f");

    let first = linux.start(folder.path(), &device, &programs, &script);
    wait_until("a boot", || recorded(&session) > EVENTS);
    first.kill();
    let killed = check(&session, &Value::Null);

    // The test starts a new QEMU, and its guest reboots, too.
    let second = linux.start(folder.path(), &device, &programs, &script);
    let all = recorded(&session) + 5 * EVENTS;
    wait_until("some boots", || recorded(&session) > all);
    server.kill();
    let orphaned = check(&session, &killed);
    second.kill();
    let memory = folder.path().join("memory");
    let mut recover = HYPERTRACE.command(["recover"]);
    run(recover.arg(memory).arg(&session)).ok();

    let total = check(&session, &orphaned);

    assert!(total["events"].as_u64().unwrap() > 4 * EVENTS, "{total}");
    let clocks = HYPERTRACE.info(&session)["clocks"].as_array().unwrap().len();
    assert!(clocks >= 3, "each boot has a clock of its own: {clocks}");
    Linux::used();
}
