//! Lines on stderr and work on files, in QEMU's process, that do not disturb the guest.
//!
//! In QEMU's user mode, a program's signals are those of the process. A signal that the plugin's own work causes must not
//! reach the program, and one that is for the program must not be taken by a thread of the plugin.
//!
//! Unsafe, because these are C functions.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// Signals that a write can cause: of a pipe without a reader, and of a file that is too large.
const CAUSED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Longest wait for a reader of stderr, milliseconds. A line that it does not take is lost.
const PATIENCE: libc::c_int = 1000;

/// Blocks all signals of this thread until it is dropped. Signals that this thread has caused meanwhile are taken back.
#[derive(Debug)]
pub struct Quiet {
    before: libc::sigset_t,
    /// Those of [`CAUSED`] that were pending before.
    were_pending: [bool; 2],
}

impl Quiet {
    /// Begins it.
    pub fn begin() -> Quiet {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are filled by these functions.
        let before = unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Quiet { before, were_pending: CAUSED.map(is_pending) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        for (signal, was_pending) in CAUSED.into_iter().zip(self.were_pending) {
            if !was_pending && is_pending(signal) {
                take(signal);
            }
        }
        // SAFETY: `begin` has filled the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, null_mut()) };
    }
}

fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: the function fills the set.
    unsafe {
        libc::sigpending(pending.as_mut_ptr()) == 0
            && libc::sigismember(pending.as_ptr(), signal) == 1
    }
}

/// Takes a signal that is pending.
fn take(signal: libc::c_int) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is filled before it is used.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::sigtimedwait(set.as_ptr(), null_mut(), &now);
    }
}

/// Writes a line to stderr. It is lost if stderr is closed, full or without a reader.
pub fn say(line: impl Display) {
    let line = format!("{line}\n");
    let mut poll = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    let _quiet = Quiet::begin();
    // SAFETY: `poll` and `line` are as long as said.
    unsafe {
        if libc::poll(&mut poll, 1, PATIENCE) == 1 && poll.revents & libc::POLLOUT != 0 {
            libc::write(poll.fd, line.as_ptr().cast(), line.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_of_quiet_work_is_taken_back() {
        let raise = |signal| {
            // SAFETY: sends a signal to this thread, which blocks it.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
        };
        let quiet = Quiet::begin();
        raise(libc::SIGXFSZ);
        assert!(is_pending(libc::SIGXFSZ));

        drop(quiet);

        // It would have ended this process.
        assert!(!is_pending(libc::SIGXFSZ));
    }
}
