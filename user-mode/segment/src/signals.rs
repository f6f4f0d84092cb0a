//! Keeps this project's work in a program's process from disturbing the program: no signal handler runs
//! during the work, and no signal that the work causes reaches the program.
//!
//! The code is unsafe because this module calls C functions. A signal handler may call all functions here,
//! because no function allocates or takes a lock.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

/// Signals of a write to a pipe without a reader, or to a file that is too large.
const CAUSED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Signals that the CPU raises. If such a signal were blocked, the kernel would kill the process.
const RAISED: [libc::c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

thread_local! {
    /// How many values of [`SignalsBlocked`] the thread holds.
    static BLOCKED: Cell<u32> = const { Cell::new(0) };
}

/// A time in which no signal handler runs on this thread. The end of the time restores errno.
#[derive(Debug)]
pub struct SignalsBlocked {
    mask: libc::sigset_t,
    errno: i32,
    /// For each signal of [`CAUSED`], true if the end takes the signal back.
    taken_back: [bool; 2],
}

impl SignalsBlocked {
    /// Returns true if signals are blocked on this thread. This thread then runs this project's code, or code
    /// that this project's code calls, such as the program's allocator.
    #[must_use]
    pub fn is_here() -> bool {
        BLOCKED.get() > 0
    }

    /// Blocks all signals of this thread except the signals that the CPU raises.
    #[must_use]
    pub fn begin() -> SignalsBlocked {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: errno is this thread's own. sigfillset fills `all`, and pthread_sigmask, which cannot fail
        // with these arguments, fills `mask`.
        unsafe {
            let errno = *libc::__errno_location();
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            for signal in RAISED {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), mask.as_mut_ptr());
            BLOCKED.set(BLOCKED.get() + 1);
            SignalsBlocked { mask: mask.assume_init(), errno, taken_back: [false; 2] }
        }
    }

    /// Blocks signals, as [`begin`](SignalsBlocked::begin) does, for work that writes to files. The end takes
    /// back SIGPIPE and SIGXFSZ that the work has caused.
    #[must_use]
    pub fn begin_to_write() -> SignalsBlocked {
        let mut begun = SignalsBlocked::begin();
        // Signals that are pending already are the program's.
        begun.taken_back = CAUSED.map(|signal| !is_pending(signal));
        begun
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        for (signal, is_taken) in CAUSED.into_iter().zip(self.taken_back) {
            if is_taken && is_pending(signal) {
                take(signal);
            }
        }
        BLOCKED.set(BLOCKED.get() - 1);
        // SAFETY: pthread_sigmask has filled `mask`, and errno belongs to this thread. The call delivers a
        // pending signal. The signal's handler restores errno, unless the handler is broken anyway.
        unsafe {
            *libc::__errno_location() = self.errno;
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, null_mut());
        }
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

/// Writes a line to stderr, if stderr takes the line within this time. If the reader of stderr is slower, or
/// if there is no reader, the line is lost, because no line may cause the program's death. errno does not
/// change.
pub fn say(line: &str, within: Duration) {
    // A line that a pipe has room for is written as a whole.
    let line = line.as_bytes().get(..libc::PIPE_BUF).unwrap_or(line.as_bytes());
    let within = within.as_millis().try_into().unwrap_or(libc::c_int::MAX);
    let mut poll = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    let _signals_blocked = SignalsBlocked::begin_to_write();
    // SAFETY: the lengths of `poll` and `line` are right. The standard library is not used, because the
    // standard library would take a lock. In a forked child, the holder of this lock may be a thread that the
    // child does not have.
    unsafe {
        if libc::poll(&mut poll, 1, within) == 1 && poll.revents == libc::POLLOUT {
            libc::write(poll.fd, line.as_ptr().cast(), line.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise(signal: libc::c_int) {
        // SAFETY: the call sends a signal to this thread, and this thread blocks the signal.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    #[test]
    fn a_signal_that_a_write_causes_is_taken_back() {
        let signals_blocked = SignalsBlocked::begin_to_write();
        raise(libc::SIGXFSZ);
        assert!(is_pending(libc::SIGXFSZ));

        drop(signals_blocked);

        // The signal would have ended this process.
        assert!(!is_pending(libc::SIGXFSZ));
    }

    #[test]
    fn a_signal_that_came_before_stays() {
        let outer = SignalsBlocked::begin();
        raise(libc::SIGXFSZ);

        drop(SignalsBlocked::begin_to_write());

        assert!(is_pending(libc::SIGXFSZ));
        take(libc::SIGXFSZ);
        drop(outer);
        assert!(!SignalsBlocked::is_here());
    }
}
