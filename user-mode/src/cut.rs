//! A segment's file that is cut off while it is mapped: the next look at it is a
//! SIGBUS, which ends the process with a message instead of a core.
//!
//! It does not continue: words that are not there would be recorded as if they
//! were. The part that was committed to the session is whole, as after any kill.
//!
//! Unsafe, because of signal handlers.
#![allow(unsafe_code)]

use hypertrace_segment::Segment;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;

/// State of the handler.
struct Watched {
    /// Where the segment is mapped.
    at: Range<usize>,
    said: String,
    /// The action for such signals before.
    before: libc::sigaction,
}

static WATCHED: OnceLock<Watched> = OnceLock::new();

/// Watches this segment's file: if a process that can write to the file
/// truncates it, this process writes `said` to stderr and ends with status 1.
/// For programs that only trace others; a memfd cannot be truncated. It can be
/// called once in a process, and a watched segment must not be unmapped.
///
/// # Errors
/// If another is watched already, or the system refuses.
pub fn end_if_cut(segment: &Segment, said: &str) -> io::Result<()> {
    // SAFETY: asks for the action only, which is plain data.
    let before = unsafe {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        check(libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()))?;
        before.assume_init()
    };
    let watched = Watched { at: segment.mapping().range(), said: format!("{said}\n"), before };
    WATCHED.set(watched).map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
    // SAFETY: the handler calls nothing that a handler must not, and what it
    // needs is there.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        check(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()))
    }
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let Some(watched) = WATCHED.get() else { return };
    // SAFETY: the kernel's own, for a SIGBUS: it has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    // SAFETY: system calls that a handler may make, with memory that stays.
    unsafe {
        if watched.at.contains(&address) {
            libc::write(libc::STDERR_FILENO, watched.said.as_ptr().cast(), watched.said.len());
            libc::_exit(1);
        }
        // The fault is elsewhere: it is raised again, for the handler that was installed before.
        libc::sigaction(libc::SIGBUS, &watched.before, ptr::null_mut());
    }
}
