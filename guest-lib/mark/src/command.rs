//! The command that a region is around.
//!
//! Unsafe, because of signals.
#![allow(unsafe_code)]

use std::ffi::{OsString, c_int};
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// Statuses of commands that cannot be run, as of a shell.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Process of the command, 0 while there is none.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// The last signal that came before there was one.
static EARLY: AtomicI32 = AtomicI32::new(0);

/// Runs a command. Returns its status, as a shell does.
pub fn run(command: &[OsString]) -> u8 {
    catch_signals();
    let mut child = match prepared(command).spawn() {
        Ok(child) => child,
        Err(why) => return not_run(command, &why),
    };
    CHILD.store(child.id().cast_signed(), SeqCst);
    forward(EARLY.swap(0, SeqCst));
    let ended = child.wait();
    CHILD.store(0, SeqCst);
    match ended {
        // The system cannot say: a signal's number and a status fit.
        Err(_) => NOT_RUN,
        Ok(status) => {
            let signal = status.signal().map(|signal| 128 + signal);
            status.code().or(signal).unwrap_or(0) as u8
        }
    }
}

/// Runs a command in place of this program. Returns only if it cannot be run.
pub fn replace(command: &[OsString]) -> ExitCode {
    let why = prepared(command).exec();
    ExitCode::from(not_run(command, &why))
}

fn prepared(command: &[OsString]) -> Command {
    let mut prepared = Command::new(&command[0]);
    prepared.args(&command[1..]);
    prepared
}

fn not_run(command: &[OsString], why: &std::io::Error) -> u8 {
    eprintln!("hypertrace-mark: cannot run {}: {why}", command[0].to_string_lossy());
    if why.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN }
}

/// Keeps signals from ending this program before the command ends. A terminal's reach the command anyway; those
/// that ask this process to end are passed on to it. Signals that are ignored stay so.
fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both structures are plain data that live through the calls; the handler uses atomics and kill(2)
        // only. A handler ends at the command's exec, unlike a signal that is ignored.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction == libc::SIG_IGN {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = on_signal as extern "C" fn(c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_signal(signal: c_int) {
    if signal == libc::SIGTERM || signal == libc::SIGHUP {
        EARLY.store(signal, SeqCst);
        forward(EARLY.swap(0, SeqCst));
    }
}

/// Passes a signal on to the command, or keeps it until there is one.
fn forward(signal: c_int) {
    match CHILD.load(SeqCst) {
        _ if signal == 0 => {}
        0 => EARLY.store(signal, SeqCst),
        child => {
            // SAFETY: kill(2) has no effect on this process.
            unsafe { libc::kill(child, signal) };
        }
    }
}
