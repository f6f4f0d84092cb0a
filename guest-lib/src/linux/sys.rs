//! The few system calls that threads make when they get a client.
//!
//! The code is unsafe because of C functions. A signal handler may call all functions here but `threads`:
//! no function allocates or takes a lock.
#![allow(unsafe_code)]

use hypertrace_segment::signals;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Writes a line to stderr if stderr takes the line at once, because the program must not wait for a reader.
pub(super) fn say(line: &str) {
    signals::say(line, Duration::ZERO);
}

/// Returns true if the program runs with rights that the user who started it
/// does not have. The environment must not be trusted then.
pub(super) fn is_secure() -> bool {
    // SAFETY: getauxval takes a number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

pub(super) fn thread_id() -> i32 {
    // SAFETY: gettid takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Whether the main thread has ended without ending the process.
static MAIN_ENDED: AtomicBool = AtomicBool::new(false);

/// If the calling thread is the main thread, notes that the main thread ends. The process may continue
/// without its main thread.
pub(super) fn note_end() {
    if thread_id() == std::process::id() as i32 {
        MAIN_ENDED.store(true, Relaxed);
    }
}

/// Forgets, in a forked child, that the parent's main thread has ended.
pub(super) fn forget_end() {
    MAIN_ENDED.store(false, Relaxed);
}

/// Returns whether the main thread has ended by itself, while other threads may run. The library knows this
/// only if the main thread has used the library.
pub(super) fn main_has_ended() -> bool {
    MAIN_ENDED.load(Relaxed)
}

/// Returns how many threads the process has, including a main thread that has ended, if the system shows the
/// number. A signal handler must not call this function.
pub(super) fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// Names the calling thread.
pub(super) fn name_thread(name: &CStr) {
    // SAFETY: PR_SET_NAME reads up to the NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Returns the kernel's name of this thread: the program's name, unless the thread was given a name of its
/// own.
pub(super) fn thread_name(name: &mut [u8; 16]) -> &str {
    // SAFETY: PR_GET_NAME writes at most 16 bytes, including a NUL.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).unwrap_or("?")
}
