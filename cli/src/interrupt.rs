//! SIGINT and SIGTERM as a question that a loop asks, for commands that have something to finish.
//! SIGXFSZ comes to nothing: a write beyond the limit of a file's size fails.
//!
//! Unsafe, because of signal handlers.
#![allow(unsafe_code)]

use hypertrace_user::Signals;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The first signal that came, 0 if none did.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: c_int) {
    if signal == libc::SIGXFSZ {
        return;
    }
    if CAME.swap(signal, Relaxed) != 0 {
        // Twice is a wish to end at once.
        // SAFETY: _exit may be called in a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// While it lives, the first SIGINT or SIGTERM does not end the process; a second one does.
#[derive(Debug)]
pub struct Interrupts {
    _caught: Signals,
}

impl Interrupts {
    pub fn catch() -> Interrupts {
        // SAFETY: the handler stores a number and calls _exit, which a handler may.
        let caught =
            unsafe { Signals::catch(&[libc::SIGINT, libc::SIGTERM, libc::SIGXFSZ], on_signal) };
        Interrupts { _caught: caught }
    }

    /// Returns the signal that came.
    pub fn came() -> Option<c_int> {
        Some(CAME.load(Relaxed)).filter(|signal| *signal != 0)
    }
}
