//! SIGPIPE, which the kernel sends to a thread that writes to a pipe without a reader. It ends the
//! process unless the process ignores it, and there is no flag of write(2) against it.
#![allow(unsafe_code)] // libc's pthread_sigmask(3) and sigtimedwait(2)

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{from_ref, null_mut};

/// Calls `write` while this thread blocks SIGPIPE, and takes the signal that it may have caused.
pub(super) fn without_sigpipe<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes `pipe` before sigaddset and pthread_sigmask read it; all three
    // pointers are to sets on this stack.
    let blocked = unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr())
    };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    let written = write();
    if written.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::BrokenPipe) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `pipe` is initialized, the time is on this stack, and no information is asked for.
        // An error says that there was no signal.
        unsafe { libc::sigtimedwait(pipe.as_ptr(), null_mut(), from_ref(&at_once)) };
    }
    // SAFETY: pthread_sigmask has initialized `before`; nothing is returned through the null pointer.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

    /// The last thread that got the signal.
    static SIGNALLED: AtomicI32 = AtomicI32::new(0);

    extern "C" fn note(_: libc::c_int) {
        // SAFETY: a plain call without arguments.
        SIGNALLED.store(unsafe { libc::gettid() }, Relaxed);
    }

    #[test]
    fn a_write_to_a_pipe_without_a_reader_is_an_error_and_no_signal() {
        let (from, mut to) = io::pipe().unwrap();
        drop(from);
        // SAFETY: the handler stores a number.
        unsafe { libc::signal(libc::SIGPIPE, note as extern "C" fn(_) as libc::sighandler_t) };

        let written = without_sigpipe(|| to.write(b"text"));

        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        // SAFETY: a plain call without arguments.
        assert_ne!(SIGNALLED.load(Relaxed), unsafe { libc::gettid() });
        // SAFETY: the setting of Rust's runtime.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    }
}
