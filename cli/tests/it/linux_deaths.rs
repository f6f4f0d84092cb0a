//! Programs of a Linux guest that are killed, and a device's server that does not answer.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use hypertrace_tests::command::Hypertrace;
use hypertrace_tests::linux::{Linux, static_program};
use hypertrace_tests::serve::Server;
use hypertrace_tests::{FULL_SIZE, wait_until};
use rustix::process::Signal;
use serde_json::json;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
/// Number of kills: a thousand kills take a minute or more under an emulator, so only a release build makes
/// 1,000.
const BATCHES: u64 = if FULL_SIZE { 100 } else { 20 };
const CHILDREN: u64 = 10;
/// Number of points without an answer after which the guest program ends.
const UNANSWERED: u64 = 5;
const KILLS: u64 = BATCHES * CHILDREN;

#[test]
fn killed_programs_lose_nothing_else_and_points_to_a_stopped_server_are_counted() {
    let Some(linux) = Linux::find() else { return };
    let folder = tempfile::tempdir().unwrap();
    let server = Server::of_socket(HYPERTRACE, folder.path(), &[]);
    let program = static_program("hypertrace-linux-guest").with_file_name("deaths");
    let script = format!(
        "deaths kills {BATCHES} {CHILDREN}; deaths points; echo \"lives: $?\"; \
         deaths points"
    );

    let guest = linux.start(folder.path(), &server.device, &[("deaths", &program)], &script);
    wait_until("points of the second program", || {
        let points = &HYPERTRACE.info(&server.session)["total"]["reference_points"];
        points.as_u64().unwrap() >= KILLS + BATCHES + 5
    });
    server.signal(Signal::STOP);
    // QEMU waits for 5 s, and then drops the device.
    sleep(Duration::from_secs(8));
    server.signal(Signal::CONT);
    let console = guest.console();

    assert!(console.contains(&format!("killed: {KILLS}")), "{console}");
    assert!(console.contains(&format!("unanswered: {UNANSWERED}")), "{console}");
    assert!(console.contains("lives: 0"), "{console}");
    assert!(console.contains("the VMM has dropped the device"), "{console}");
    let session = server.session.clone();
    let stat = server.end();
    assert_eq!((&stat["total"]["lost"], &stat["total"]["faults"]), (&json!(0), &json!({})));
    let names = check_kills(&session, BATCHES, CHILDREN);
    // The guest and the server share the rings' memory, also after QEMU drops the device.
    let answered = console.split_once("answered: ").unwrap().1.split_once(',').unwrap().0;
    assert_eq!(names["between"], answered.parse::<u64>().unwrap() + UNANSWERED, "{names:?}");
    Linux::used();
}

/// Asserts that the killed processes left the events that they had completed, and nothing else. Returns the
/// events by name.
#[track_caller]
pub fn check_kills(session: &Path, batches: u64, children: u64) -> BTreeMap<String, u64> {
    let (mut names, mut clients) = (BTreeMap::new(), BTreeMap::new());
    HYPERTRACE.report_each(session, |line| {
        *names.entry(line.event.clone()).or_insert(0) += 1;
        if line.event == "leased" {
            *clients.entry(line.fields["client"].as_u64().unwrap()).or_insert(0) += 1;
        }
    });
    let counts = ["leased", "whole", "witness", "witnessed", "cut_point", "cut_event"];
    let counts = counts.map(|name| names.get(name).copied().unwrap_or(0));
    let kills = batches * children;
    assert_eq!(counts, [kills, kills, batches, batches, 0, 0], "{names:?}");
    let again = clients.values().filter(|leases| **leases > 1).count();
    assert!(again as u64 >= children, "{clients:?}");
    names
}
