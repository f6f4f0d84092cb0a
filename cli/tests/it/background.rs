//! Commands that record in the background of a script. The shell makes such commands ignore SIGINT.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use hypertrace_tests::command::{Hypertrace, run};
use hypertrace_tests::interrupt::{send, with_ignored_interrupt};
use hypertrace_tests::wait_until;

const HYPERTRACE: Hypertrace = Hypertrace(env!("CARGO_BIN_EXE_hypertrace"));

/// A command that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command that ignores SIGINT, and sends SIGINT once the command catches SIGINT. Returns the
/// command's exit code as a shell reports it.
#[track_caller]
fn interrupted(command: &mut Command) -> i32 {
    let command = with_ignored_interrupt(command).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    let status = format!("/proc/{}/status", running.0.id());
    let mut has_ended = false;
    wait_until("a handler of SIGINT", || {
        has_ended = running.0.try_wait().unwrap().is_some();
        if has_ended {
            return true;
        }
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << (libc::SIGINT - 1) != 0
    });
    if !has_ended {
        send("INT", running.0.id().into());
    }
    let ended = running.0.wait().unwrap();
    ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap()
}

#[test]
fn sigint_ends_every_command_that_records_until_ctrl_c() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let pid = std::process::id().to_string();
    let [joined, served, memory, received, compared, demo] =
        ["joined", "served", "memory", "received", "compared", "demo"].map(path);

    for (arguments, codes) in [
        // The exit code is 1 if the kernel lets this user record nothing.
        (&["record", "-o", &joined, "-p", &pid][..], &[0, 1][..]),
        (&["serve", "-o", &served, "--file", &memory], &[0]),
        // The journal on stdin ends at once.
        (&["receive", "-o", &received], &[0, 1]),
        (&["compare", "--run", "-o", &compared, "sleep 1000", "true"], &[130]),
        (&["demo", "-o", &demo, "--times", "10000"], &[130]),
    ] {
        let code = interrupted(&mut HYPERTRACE.command(arguments));
        assert!(codes.contains(&code), "{arguments:?}: {code}");
    }
}

#[test]
fn a_program_in_the_background_ignores_sigint_as_without_a_recorder() {
    let dir = tempfile::tempdir().unwrap();
    let mut record = HYPERTRACE.command(["record", "--quiet", "-o"]);
    record.arg(dir.path()).args(["--", "sh", "-c", "kill -INT $$; kill -INT $PPID; exit 7"]);

    assert_eq!(run(with_ignored_interrupt(&mut record)).code, Some(7));
}
