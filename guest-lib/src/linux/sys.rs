//! The few system calls that threads make when they get a client.
//!
//! Unsafe, because they are C functions. All of them may be called in a signal
//! handler: none allocates or takes a lock.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// While it lives, no signal handler runs on this thread, and afterwards errno
/// is what it was: an event does not disturb the code around it.
pub(super) struct Undisturbed {
    mask: libc::sigset_t,
    errno: i32,
}

impl Undisturbed {
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
            Undisturbed { mask: mask.assume_init(), errno }
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        // SAFETY: `mask` is what pthread_sigmask gave; errno is this thread's.
        // A pending signal is delivered in the first call, and its handler
        // keeps errno or it is broken anyway.
        unsafe {
            *libc::__errno_location() = self.errno;
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut());
        }
    }
}

/// Writes a line to stderr. It may be lost; errno stays.
pub(super) fn say(line: &str) {
    // SAFETY: reads `line`. errno is this thread's own, and is put back. Not by the standard library: a thread
    // that a forked child does not have may hold its lock.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        *libc::__errno_location() = errno;
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
