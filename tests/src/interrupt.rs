//! Signals like those of a person at a terminal, and checks of an interrupted command.
#![allow(unsafe_code)] // signal(2) between fork and exec

use hypertrace_test_support::wait_until;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::Hypertrace;

/// Gives the command the default actions of SIGINT, SIGTERM and SIGHUP, because a shell ignores SIGINT for
/// commands in the background.
pub fn with_default_signals(command: &mut Command) -> &mut Command {
    // SAFETY: signal(2) may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    }
}

/// Has the command ignore SIGINT, as a shell without job control does for its commands in the background.
pub fn with_ignored_interrupt(command: &mut Command) -> &mut Command {
    // SAFETY: signal(2) may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            Ok(())
        })
    }
}

/// Sends a signal, such as `INT`, to a process, or to a process group if the number is negative.
#[track_caller]
pub fn send(signal: &str, process: i64) {
    let mut kill = Command::new("kill");
    kill.args(["-s", signal, "--", &process.to_string()]);
    assert!(kill.status().unwrap().success(), "{kill:?}");
}

/// Starts a long `demo`, ends it by this signal once it has recorded something, and checks the demo's exit
/// code, message and session.
#[track_caller]
pub fn demo_ends_cleanly(hypertrace: Hypertrace, demo: &mut Command, dir: &Path, signal: &str) {
    let demo = with_default_signals(demo).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let said = lines.find(|line| line.as_ref().unwrap().starts_with("The session is in ")).unwrap();
    assert!(said.unwrap().ends_with(dir.to_str().unwrap()));
    wait_until("a guest's events", || {
        assert!(demo.try_wait().unwrap().is_none(), "it ended by itself");
        dir.join("ctf/guest-000-0000").exists()
    });

    send(signal, demo.id().into());

    let mut stderr = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = 128 + if signal == "INT" { libc::SIGINT } else { libc::SIGTERM };
    assert_eq!(demo.wait().unwrap().code(), Some(code), "{stderr}");
    assert_eq!((stderr.lines().count(), lines.count()), (1, 0), "{stderr}");
    assert!(stderr.contains(&format!("ended by SIG{signal}: {}", dir.display())), "{stderr}");
    let stat = hypertrace.info(dir);
    assert_eq!(stat["finished"], true);
    assert!(stat["total"]["events"].as_u64().unwrap() > 0, "{stat}");
}
