//! Runs the program of a command to its end. Meanwhile, signals that would end the command go to the program.
//!
//! The code is unsafe because this module calls sigaction(2) and kill(2).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

/// Signals that a handler handles as long as this value lives.
#[derive(Debug)]
pub struct Signals {
    before: Vec<(c_int, libc::sigaction)>,
}

impl Signals {
    /// Begins to catch these signals. Signals that are ignored, as under nohup or in the background of a
    /// shell script, stay ignored. A system call that a signal interrupts is made again.
    ///
    /// # Safety
    /// `handler` does only what a signal handler may.
    pub unsafe fn catch(signals: &[c_int], handler: extern "C" fn(c_int)) -> Signals {
        let mut before = Vec::new();
        for &signal in signals {
            // SAFETY: both structures are plain data that live through the calls. The caller promises that a
            // signal handler may do what `handler` does. An exec removes a handler, but an ignored signal
            // stays ignored.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut old);
                if old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = handler as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &new, std::ptr::null_mut());
                before.push((signal, old));
            }
        }
        Signals { before }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: `old` is the action that the signal had before.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
    }
}

/// Runs a program to its end. Meanwhile, this process passes SIGTERM and SIGHUP on to the program. This
/// process does nothing at SIGINT and SIGQUIT, because a terminal sends these signals to the program, too.
///
/// # Errors
/// If the program cannot be started.
pub fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let _signals = pass_signals_on();
    let mut child = command.spawn()?;
    PROGRAM.store(child.id().cast_signed(), SeqCst);
    pass_early();
    let status = child.wait();
    PROGRAM.store(0, SeqCst);
    status
}

/// Returns the exit code that a shell reports for a program with this status: 128 plus the number of the
/// signal, if a signal ended the program.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Id of the program to which this process passes signals; 0 if there is no program.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Signal that came before the program was there; 0 if no signal came.
static EARLY: AtomicI32 = AtomicI32::new(0);

/// Whether a signal that ends programs was passed on.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Returns whether the program of [`run`] was told to end with a signal to this process.
pub fn was_told_to_end() -> bool {
    TOLD.load(SeqCst)
}

/// Passes on a signal that came before the program was started. The program did not get this signal, even if
/// a terminal sent the signal.
fn pass_early() {
    let program = PROGRAM.load(SeqCst);
    if program != 0 {
        let early = EARLY.swap(0, SeqCst);
        if early != 0 {
            TOLD.store(true, SeqCst);
            // SAFETY: as in `pass_on`.
            unsafe { libc::kill(program, early) };
        }
    }
}

extern "C" fn pass_on(signal: libc::c_int) {
    let program = PROGRAM.load(SeqCst);
    if signal == libc::SIGXFSZ {
        // This process has written beyond the limit of a file's size. The signal needs no action, because the
        // write fails.
    } else if program == 0 {
        EARLY.store(signal, SeqCst);
        // Meanwhile, another thread may have started the program, and may have looked for an early signal
        // before this signal came.
        pass_early();
    } else if matches!(signal, libc::SIGTERM | libc::SIGHUP) {
        TOLD.store(true, SeqCst);
        // SAFETY: kill may be called in a signal handler. A child that has ended keeps its id until this
        // process waits for it.
        unsafe { libc::kill(program, signal) };
    }
}

/// Keeps signals from ending this process until the result is dropped. The signals are meant for the program
/// of [`run`], even if they arrive before that program starts. This function is for a process that first
/// creates a session, and has to end the session after the program. This process catches SIGXFSZ, too, so
/// that a write beyond the limit of a file's size (RLIMIT_FSIZE) is an error. In the program, each of these
/// signals has its default action or stays ignored, because exec removes handlers.
pub fn pass_signals_on() -> Signals {
    let signals = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGXFSZ];
    // SAFETY: the handler only calls kill(2), and a signal handler may call kill(2).
    unsafe { Signals::catch(&signals, pass_on) }
}
