//! `hypertrace run --qemu`: the same programs, emulated.

use std::path::Path;
use std::process::Command;

use hypertrace_tests::command::{Hypertrace, plugin, run};
use hypertrace_tests::{babeltrace2, capability, traced};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const QEMU: &str = "qemu-x86_64";
const EVENTS: u64 = if cfg!(debug_assertions) { 5_000 } else { 250_000 };

/// `run` with these arguments, then this test as the program.
fn run_test(dir: &Path, arguments: &[&str], name: &str, argument: &str) -> Command {
    let mut command = HYPERTRACE.command(["run", "--out"]);
    command.arg(dir).args(arguments).env("HYPERTRACE_QEMU_PLUGIN", plugin());
    traced::program(&mut command, name, argument);
    command
}

#[test]
fn a_program_does_the_same_natively_and_emulated() {
    let (events, points) = traced::sizes(EVENTS);
    if traced::argument().is_some() {
        assert_eq!(traced::four_threads(events, points), 0);
        return;
    }
    if capability::program(QEMU).is_none() {
        return;
    }
    let name = "a_program_does_the_same_natively_and_emulated";
    for arguments in [&[][..], &["--qemu", QEMU]] {
        let dir = tempfile::tempdir().unwrap();
        let ran = run(&mut run_test(dir.path(), arguments, name, "-"));
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);

        traced::check_four_threads(dir.path(), events, points);
        let stat = HYPERTRACE.stat(dir.path());
        let total = &stat["total"];
        assert_eq!((total["lost"].as_u64(), total["faults_total"].as_u64()), (Some(0), Some(0)));
        // They were recorded on the vCPUs' own threads, not by the host for them.
        assert_eq!(stat.to_string().contains("\"vcpu "), !arguments.is_empty(), "{stat}");
        if let Some(read) = babeltrace2::count(&dir.path().join("ctf")) {
            assert_eq!(Some(read), total["records"].as_u64());
        }
    }
    capability::used(QEMU);
}

#[test]
fn the_plugin_may_be_loaded_by_hand() {
    if traced::argument().is_some() {
        let reply = hypertrace::reference_point!("acknowledged", thread = 0u64, point = 1u64);
        assert_eq!(reply.unwrap().status, hypertrace::Status::Recorded);
        return;
    }
    let Some(qemu) = capability::program(QEMU) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["run", "--relays", "4", "--out"]);
    command.arg(dir.path()).arg("--").arg(qemu).arg("-plugin").arg(plugin());
    let mut program = Command::new("-");
    traced::program(&mut program, "the_plugin_may_be_loaded_by_hand", "-");
    command.args(program.get_args().skip(1));
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = run(&mut command);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
    let points = HYPERTRACE.report(dir.path());
    assert!(points.iter().any(|line| line.event == "acknowledged"), "{points:?}");
    assert!(HYPERTRACE.stat(dir.path()).to_string().contains("\"vcpu "));
}

#[test]
fn what_is_missing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("S");
    let refused = |qemu: &str, plugin: &str| {
        let mut command = HYPERTRACE.command(["run", "--out"]);
        command.arg(&out).args(["--qemu", qemu, "--", "/bin/true"]);
        command.env("HYPERTRACE_QEMU_PLUGIN", plugin);
        let ran = run(&mut command);
        assert!(!out.exists(), "nothing was begun");
        ran
    };
    let told = refused("/nowhere/qemu", "").failed(127);
    assert!(told.contains("/nowhere/qemu: no such program"), "{told}");
    let told = refused("/bin/true", "").failed(1);
    assert!(told.contains("/bin/true is no emulator of QEMU's user mode"), "{told}");
    if capability::program(QEMU).is_some() {
        let told = refused(QEMU, "/nowhere/plugin.so").failed(1);
        assert!(told.contains("HYPERTRACE_QEMU_PLUGIN names /nowhere/plugin.so"), "{told}");
    }
    let mut command = HYPERTRACE.command(["run", "--clients", "1000", "--relays", "100", "--out"]);
    let told = run(command.arg(&out).args(["--", "/bin/true"])).failed(2);
    assert!(told.contains("more than the 1024"), "{told}");
}

#[test]
fn the_exit_code_is_the_programs() {
    if capability::program(QEMU).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["run", "--qemu", QEMU, "--out"]);
    command.arg(dir.path()).env("HYPERTRACE_QEMU_PLUGIN", plugin());
    let ran = run(command.args(["--", "sh", "-c", "exit 7"]));
    assert_eq!((ran.code, &*ran.stderr), (Some(7), ""));
}
