//! `hypertrace demo` without a usable /dev/kvm: the demo runs the same guest program on threads, and says so.

use std::collections::BTreeSet;
use std::process::Command;

use crate::demo::has_an_excerpt_a_summary_and_next_steps;

use hypertrace_tests::command::{Demo, Hypertrace, run};
use hypertrace_tests::interrupt::demo_ends_cleanly;
use hypertrace_tests::report::Line;
use hypertrace_tests::{babeltrace2, build, capability, namespace};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// Mount that makes /dev empty.
const NO_DEVICE: &str = "mount -t tmpfs none /dev";
/// Mount that makes /dev/kvm another device.
const NOT_KVM: &str = "mount --bind /dev/null /dev/kvm";

/// Returns the command with KVM hidden, or unchanged on a machine without KVM.
fn hidden(mounts: &str, command: Command) -> Option<Command> {
    if std::fs::exists("/dev/kvm").unwrap() {
        namespace::inside(mounts, &command)
    } else {
        Some(command)
    }
}

fn same_guest_on_threads(mounts: &str) {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut demo) = hidden(mounts, HYPERTRACE.demo(dir.path(), 2)) else { return };

    let demo: Demo = run(&mut demo).json();

    assert_eq!((&*demo.mode, demo.vcpus), ("user", 2));
    assert_eq!((demo.ring_events, demo.reference_points), (200_000, 2_000));
    assert_eq!((demo.lost, demo.faults), (0, 0));
    let lines = HYPERTRACE.report(dir.path());
    assert_eq!(lines.len() as u64, demo.records);
    assert!(lines.is_sorted_by_key(|line| line.ts_ns), "in order of time");
    let Some(read) = babeltrace2::read(&dir.path().join("ctf")) else { return };
    assert_eq!(read.clean(), demo.records);
}

#[test]
fn without_the_device_node() {
    same_guest_on_threads(NO_DEVICE);
}

#[test]
fn with_a_device_node_that_is_not_kvm() {
    same_guest_on_threads(NOT_KVM);
}

#[test]
fn without_json_it_prints_an_excerpt_a_summary_and_next_steps() {
    let dir = tempfile::tempdir().unwrap();
    let session = dir.path().join("S");
    let demo = HYPERTRACE.command(["demo", "-o", session.to_str().unwrap()]);
    let Some(mut demo) = hidden(NO_DEVICE, demo) else { return };

    let shown = run(&mut demo).ok();

    has_an_excerpt_a_summary_and_next_steps(&shown, &session, "events", "program/");
}

#[test]
fn leases_name_the_threads_that_run_the_guests_program() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut demo) = hidden(NO_DEVICE, HYPERTRACE.demo(dir.path(), 2)) else { return };

    run(&mut demo).ok();

    let lines = HYPERTRACE.report(dir.path());
    let is_lease = |line: &&Line| line.event == "lease" && line.source.starts_with("program/");
    let leases: Vec<&Line> = lines.iter().filter(is_lease).collect();
    let number = |line: &Line, name: &str| line.fields[name].as_u64().unwrap();
    let pids: BTreeSet<u64> = leases.iter().map(|line| number(line, "pid")).collect();
    let tids: BTreeSet<u64> = leases.iter().map(|line| number(line, "tid")).collect();
    assert_eq!((pids.len(), tids.len()), (1, 2), "{leases:?}");
    // The process's first thread runs no vCPU's work.
    assert!(!pids.contains(&0) && tids.is_disjoint(&pids), "{leases:?}");
}

#[test]
fn the_output_says_why_kvm_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let demo = HYPERTRACE.command(["demo", "-o", dir.path().to_str().unwrap()]);
    let Some(mut demo) = hidden(NO_DEVICE, demo) else { return };

    let shown = run(&mut demo).ok();

    assert!(shown.contains("KVM is not usable here (there is no /dev/kvm)"), "{shown}");
    // The output has no words about a VM, because there is no VM.
    let words = ["guest", "vCPU", "VMM"];
    let said = words.iter().find(|word| shown.contains(**word));
    assert_eq!(said, None, "{shown}");
    assert!(shown.contains("200,000 events, 2,000 reference points"), "{shown}");
}

#[test]
#[ignore = "builds the command for AArch64: cargo xtask full"]
fn the_command_for_aarch64_runs_the_same_program_on_threads() {
    let Some(emulator) = capability::program("qemu-aarch64") else { return };
    let Some(folder) = build::aarch64("hypertrace-cli", &[]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut demo = Command::new(emulator);
    demo.arg(folder.join("debug/hypertrace"));

    let demo: Demo = run(demo.args(["demo", "--json", "-o"]).arg(dir.path())).json();

    assert_eq!((&*demo.mode, demo.vcpus), ("user", 2));
    assert_eq!((demo.ring_events, demo.reference_points), (200_000, 2_000));
    assert_eq!((demo.lost, demo.faults), (0, 0));
    capability::used("qemu-aarch64");
}

#[test]
fn a_signal_ends_it_and_keeps_what_was_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let mut demo = HYPERTRACE.command(["demo", "--times", "10000", "-o"]);
    demo.arg(dir.path());
    let Some(mut demo) = hidden(NO_DEVICE, demo) else { return };
    demo_ends_cleanly(HYPERTRACE, &mut demo, dir.path(), "INT");
}
