//! SIGINT and SIGTERM as a flag for loops to poll, for commands that end a session first.
//!
//! Unsafe, because of sigaction(2).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The first signal that was received, 0 if none.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: c_int) {
    if CAME.swap(signal, Relaxed) != 0 {
        // A second signal asks to end at once.
        // SAFETY: _exit may be called in a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Guard that keeps the first SIGINT or SIGTERM from ending the process. A second one ends it.
#[derive(Debug)]
pub struct Interrupts {
    before: Vec<(c_int, libc::sigaction)>,
}

impl Interrupts {
    pub fn catch() -> Interrupts {
        let mut before = Vec::new();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: both structures are plain data that live through the calls; the handler uses
            // an atomic and _exit only, which a handler may.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut old);
                // A shell script's background process ignores it, and continues to.
                if old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut new: libc::sigaction = std::mem::zeroed();
                let handler: extern "C" fn(c_int) = on_signal;
                new.sa_sigaction = handler as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &new, std::ptr::null_mut());
                before.push((signal, old));
            }
        }
        Interrupts { before }
    }

    /// Returns the signal that was received.
    pub fn came() -> Option<c_int> {
        Some(CAME.load(Relaxed)).filter(|signal| *signal != 0)
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        for (signal, old) in &self.before {
            // SAFETY: restores the action that sigaction(2) returned in `catch`.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
    }
}
