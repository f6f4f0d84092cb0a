//! Programs that make points by a system call for an emulator's plugin. A kernel refuses the call, and
//! the points are recorded all the same.

use std::path::Path;
use std::process::Command;

use hypertrace::{OpenError, Options, Status, Store};
use hypertrace_tests::c::{self, Compiler, Linked};
use hypertrace_tests::command::{Hypertrace, plugin, run};
use hypertrace_tests::{capability, this_test, traced};

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));
const POINTS: u64 = 5;
const LIBRARY_ENVIRONMENT: &str = "HYPERTRACE_STORE";

/// Counts the plugin's system calls in this log of strace, and checks that the kernel refused each.
#[track_caller]
fn calls(log: &Path) -> u64 {
    let log = std::fs::read_to_string(log).unwrap();
    let calls: Vec<&str> = log.lines().filter(|line| line.contains("syscall_0x6874(")).collect();
    for call in &calls {
        // strace shows the result on a later line if another thread's call intervened.
        assert!(call.contains("= -1 ENOSYS") || call.contains("<unfinished ...>"), "{call}");
    }
    calls.len() as u64
}

/// Returns a `run` of strace with the program that is appended.
fn traced_by_strace(strace: &Path, dir: &Path, log: &Path) -> Command {
    let mut command = HYPERTRACE.command(["run", "--quiet", "--out"]);
    command.arg(dir).arg("--").arg(strace).args(["-f", "-qq", "-o"]).arg(log);
    command
}

#[test]
fn a_program_uses_the_system_call_if_configured() {
    let name = "a_program_uses_the_system_call_if_configured";
    if let Some(told) = traced::argument() {
        let options = match &*told {
            "option" => Options { store: Some(Store::Syscall), ..Options::default() },
            "both" => Options { store: Some(Store::Marked), ..Options::default() },
            _ => Options::default(),
        };
        hypertrace::open(&options).unwrap();
        for n in 0..POINTS {
            assert_eq!(hypertrace::reference_point!("called", n).unwrap().status, Status::Recorded);
        }
        return;
    }
    let Some(strace) = capability::program("strace") else { return };
    for (argument, environment, calls_at_points) in [
        ("option", "", true),
        ("environment", "syscall", true),
        ("neither", "", false),
        ("marked", "marked", false),
        // The program's option overrides the environment.
        ("both", "syscall", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (dir, log) = (folder.path().join("S"), folder.path().join("log"));
        let mut program = Command::new("-");
        traced::program(&mut program, name, argument);
        let mut command = traced_by_strace(&strace, &dir, &log);
        command.args(program.get_args().skip(1)).env(LIBRARY_ENVIRONMENT, environment);
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));

        let ran = run(&mut command);

        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
        let points = HYPERTRACE.report(&dir).into_iter().filter(|line| line.event == "called");
        let points: Vec<_> = points.filter_map(|line| line.number("n")).collect();
        assert_eq!(points, (0..POINTS).collect::<Vec<_>>());
        // One more call was the thread's lease.
        let expected = if calls_at_points { POINTS + 1 } else { 0 };
        assert_eq!(calls(&log), expected, "{argument}");
        capability::used("strace");
    }
}

#[test]
fn an_unknown_way_to_store_is_reported() {
    if traced::argument().is_some() {
        let why = hypertrace::open(&Options::default()).unwrap_err();
        assert!(matches!(why, OpenError::Store(_)), "{why}");
        let why = why.to_string();
        assert!(
            why.contains("HYPERTRACE_STORE=smoke") && why.contains("marked or syscall"),
            "{why}"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = HYPERTRACE.command(["run", "--quiet", "--out"]);
    command.arg(dir.path()).env(LIBRARY_ENVIRONMENT, "smoke");
    traced::program(&mut command, this_test!(), "-");
    let ran = run(&mut command);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{}", ran.stdout);
}

fn compiled(compiler: &Compiler, folder: &Path) -> std::path::PathBuf {
    compiler.program(&c::source("tests/c/by_syscall.c"), Linked::Static, folder)
}

#[test]
fn a_c_program_uses_the_system_call_if_configured() {
    let Some(strace) = capability::program("strace") else { return };
    for compiler in c::compilers() {
        let folder = tempfile::tempdir().unwrap();
        let program = compiled(&compiler, folder.path());
        let (dir, log) = (folder.path().join("S"), folder.path().join("log"));
        run(traced_by_strace(&strace, &dir, &log).arg(program)).ok();
        assert_eq!(calls(&log), 2, "the lease and the point");
        assert!(HYPERTRACE.report(&dir).iter().any(|line| line.event == "c_by_syscall"));
    }
}

#[test]
fn the_plugin_takes_system_calls_of_both_architectures() {
    let native = c::compiler().filter(|_| cfg!(target_arch = "x86_64"));
    for (emulator, compiler) in [("qemu-x86_64", native), ("qemu-aarch64", c::aarch64())] {
        let (Some(compiler), Some(_)) = (compiler, capability::program(emulator)) else { continue };
        let folder = tempfile::tempdir().unwrap();
        let program = compiled(&compiler, folder.path());
        let dir = folder.path().join("S");
        let mut command = HYPERTRACE.command(["run", "--quiet", "--qemu", emulator, "--out"]);
        command.arg(&dir).env("HYPERTRACE_QEMU_PLUGIN", plugin()).env("QEMU_LOG", "plugin");
        let ran = run(command.arg("--").arg(program));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        // The plugin saw no marked store.
        let said = ran.stderr;
        assert!(said.contains("hypertrace: recorded 1"), "{emulator}: {said}");
        assert!(!said.contains("found"), "{emulator}: {said}");
        assert!(HYPERTRACE.report(&dir).iter().any(|line| line.event == "c_by_syscall"));
        capability::used(emulator);
    }
}
