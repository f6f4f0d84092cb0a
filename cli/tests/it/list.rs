//! `hypertrace list`: what can be recorded, and the names in a session.

use hypertrace_test_support::made::{Made, OPENED, Packet, VCPU_EXIT};
use hypertrace_tests::capability;
use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::golden::golden;
use serde_json::Value;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

#[test]
fn the_names_of_a_session_are_those_that_other_commands_take() {
    let made = Made::new()
        .stream("host-0", &[Packet::host(0), Packet::host(0).event(5, VCPU_EXIT, &[1])])
        .stream("guest-0", &[Packet::guest(0), Packet::guest(0).event(7, OPENED, &[])]);
    let commands =
        ["list S", "list names S --json", "list events S", "list S/none", "list event S"];
    golden("names", HYPERTRACE.transcript(&[made], &commands));
}

#[test]
fn a_program_declares_the_events_of_its_trace_events_files() {
    // This command is itself a VMM.
    let program = env!("CARGO_BIN_EXE_hypertrace");
    let json: Value = HYPERTRACE.run(["list", "events", program, "--json"]).json();

    let names = json["events"].as_array().unwrap().iter();
    let names = Vec::from_iter(names.map(|event| event["name"].as_str().unwrap()));
    assert!(names.contains(&"vcpu_exit") && names.is_sorted(), "{names:?}");
    let none = HYPERTRACE.run(["list", "/bin/true"]).failed(2);
    assert!(none.contains("declares no event"), "{none}");
    let none = HYPERTRACE.run(["list", "/etc/passwd"]).failed(2);
    assert!(none.contains("neither a program"), "{none}");
}

#[test]
fn the_kernels_events_are_as_record_takes_them() {
    let ran = HYPERTRACE.run(["list", "events", "--json"]);
    if ran.code == Some(1) {
        assert!(ran.stderr.contains("the kernel's tracing cannot be used"), "{}", ran.stderr);
        capability::missing("tracefs", ran.stderr);
        return;
    }
    let json: Value = ran.json();
    let events = json["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "sched:sched_switch"), "{json}");
    let dir = tempfile::tempdir().unwrap();
    let mut record = HYPERTRACE.command(["record", "-q", "-e", "sched:sched_switch", "true"]);
    assert_eq!(run(record.current_dir(dir.path())).code, Some(0));
    capability::used("tracefs");
}
