//! Turns SIGINT, SIGTERM and SIGHUP (of a closed terminal) into a flag that loops poll. Commands use the flag
//! to end a session before the process ends. SIGXFSZ has no effect: a write beyond the limit of a file's size
//! fails.
//!
//! Unsafe code is allowed, because this module sets signal handlers.
#![allow(unsafe_code)]

use hypertrace_user::Signals;
use rustix::event::{Timespec, poll};
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// A signal may come just before a wait. The signal is then noticed after at most this time.
const PERIOD: Duration = Duration::from_millis(200);

/// First signal that was received, 0 if none.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: c_int) {
    if signal == libc::SIGXFSZ {
        return;
    }
    if CAME.swap(signal, Relaxed) != 0 {
        // A second signal asks to end at once.
        // SAFETY: _exit may be called in a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Guard that keeps the first SIGINT, SIGTERM or SIGHUP from ending the process. A second signal ends the
/// process.
#[derive(Debug)]
pub struct Interrupts {
    _caught: Signals,
}

impl Interrupts {
    pub fn catch() -> Interrupts {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGXFSZ];
        // SAFETY: the handler uses only an atomic and _exit, and a signal handler may use both.
        let caught = unsafe { Signals::catch(&signals, on_signal) };
        Interrupts { _caught: caught }
    }

    /// Catches signals as [`Interrupts::catch`] does, for a command that Ctrl-C ends. A shell without job
    /// control sets SIGINT to be ignored in a command that it starts with `&`. SIGINT ends this command all
    /// the same, because nobody means to start a command that does not end.
    pub fn catch_end() -> Interrupts {
        // SAFETY: the structure is plain data that lives through the call; the default action has no handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGINT, std::ptr::null(), &mut action);
            if action.sa_sigaction == libc::SIG_IGN {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
            }
        }
        Interrupts::catch()
    }

    /// Drops the guard. If a signal was received, raises the signal again, which then ends the process.
    pub fn end(self) {
        drop(self);
        if let Some(signal) = Interrupts::came() {
            // SAFETY: no memory is passed.
            unsafe { libc::raise(signal) };
        }
    }

    /// Waits until a signal is received.
    pub fn wait() {
        while Interrupts::came().is_none() {
            // A signal ends `poll`, unless the signal came just before the call.
            let _ = poll(&mut [], Timespec::try_from(PERIOD).ok().as_ref());
        }
    }

    /// Returns the first signal that was received.
    pub fn came() -> Option<c_int> {
        Some(CAME.load(Relaxed)).filter(|signal| *signal != 0)
    }
}
