//! The few system calls that threads make when they get a client.
//!
//! Unsafe, because they are C functions. All of them may be called in a signal
//! handler: none allocates or takes a lock.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    /// Number of the thread's values of [`Undisturbed`].
    static UNDISTURBED: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, no signal handler runs on this thread, and afterwards errno
/// is what it was: an event does not disturb the code around it.
pub(super) struct Undisturbed {
    mask: libc::sigset_t,
    errno: i32,
}

impl Undisturbed {
    /// Returns true if this thread has one: it runs the library's own code, or what that calls, such as a memory
    /// allocator of the program.
    pub(super) fn is_here() -> bool {
        UNDISTURBED.get() > 0
    }

    pub(super) fn begin() -> Undisturbed {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: errno is this thread's own. sigfillset fills `all`, and
        // pthread_sigmask, which cannot fail with these arguments, `mask`.
        // Signals that the CPU raises stay: blocked, they would kill.
        unsafe {
            let errno = *libc::__errno_location();
            libc::sigfillset(all.as_mut_ptr());
            for raised in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
                libc::sigdelset(all.as_mut_ptr(), raised);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), mask.as_mut_ptr());
            UNDISTURBED.set(UNDISTURBED.get() + 1);
            Undisturbed { mask: mask.assume_init(), errno }
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        UNDISTURBED.set(UNDISTURBED.get() - 1);
        // SAFETY: `mask` is what pthread_sigmask gave; errno is this thread's.
        // A pending signal is delivered in the first call, and its handler
        // keeps errno or it is broken anyway.
        unsafe {
            *libc::__errno_location() = self.errno;
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// Writes a line to stderr, if that can be done at once. A line for a reader that is slow, or gone, is lost: the
/// program must neither wait nor be killed for it. errno stays.
pub(super) fn say(line: &str) {
    // A line that a pipe has room for is written as a whole.
    let line = line.as_bytes().get(..libc::PIPE_BUF).unwrap_or(line.as_bytes());
    let mut poll = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // A reader that leaves now would have SIGPIPE sent to this thread: it is blocked, and taken.
    let _undisturbed = Undisturbed::begin();
    // SAFETY: `poll` and `line` are as long as said; the sets are filled before they are used. Not by the
    // standard library: a thread that a forked child does not have may hold its lock.
    unsafe {
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigpending(pending.as_mut_ptr());
        let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
        if libc::poll(&mut poll, 1, 0) != 1 || poll.revents != libc::POLLOUT {
            return;
        }
        let written = libc::write(poll.fd, line.as_ptr().cast(), line.len());
        if written < 0 && *libc::__errno_location() == libc::EPIPE && !was_pending {
            let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(pipe.as_mut_ptr());
            libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &now);
        }
    }
}

/// Returns true if the program runs with rights that the user who started it
/// does not have. The environment must not be trusted then.
pub(super) fn is_secure() -> bool {
    // SAFETY: takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

pub(super) fn thread_id() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Returns the kernel's name of this thread: the program's, unless the thread was given one.
pub(super) fn thread_name(name: &mut [u8; 16]) -> &str {
    // SAFETY: PR_GET_NAME writes at most 16 bytes, a NUL among them.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).unwrap_or("?")
}
