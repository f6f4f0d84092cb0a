//! The one thread of this library: the work that is due even if no thread emits.
//!
//! Unsafe, because it is made by the C library. A thread of the standard library takes a lock when it begins, which
//! it never gets in a forked child if another thread had it at the fork.
#![allow(unsafe_code)]

use super::sys;
use crate::os;
use libc::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

/// Period of its work: the longest delay of a change to the enable mask.
const INTERVAL: Duration = Duration::from_millis(10);
/// Enough: its calls are shallow.
const STACK: usize = 64 * 1024;
/// Rounds of its work after which it looks whether it is alone.
const ROUNDS: u32 = 10;

/// Starts it: calls `look` every 10 ms until that returns `false`. If the system
/// has no thread for it, slow paths, [`crate::poll`] and the end of threads do the
/// same, later. The caller has blocked signals, so it handles none.
pub(super) fn start<F: FnMut() -> bool + Send + 'static>(look: F) {
    let look = Box::into_raw(Box::new(look));
    // A program with many thread-locals needs the default, which is larger.
    let is_begun = [Some(STACK), None].into_iter().any(|stack| {
        let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes are initialized, then used, then destroyed. `run::<F>` gets a box of its type, which is
        // its own as soon as the thread begins.
        unsafe {
            libc::pthread_attr_init(attributes);
            libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
            if let Some(stack) = stack {
                libc::pthread_attr_setstacksize(attributes, stack);
            }
            let run = run::<F> as extern "C" fn(*mut c_void) -> *mut c_void;
            let errno = libc::pthread_create(thread.as_mut_ptr(), attributes, run, look.cast());
            libc::pthread_attr_destroy(attributes);
            errno == 0
        }
    });
    if !is_begun {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(look) });
    }
}

extern "C" fn run<F: FnMut() -> bool>(look: *mut c_void) -> *mut c_void {
    // SAFETY: `start` made it, for this thread.
    let mut look = unsafe { Box::from_raw(look.cast::<F>()) };
    sys::name_thread(c"hypertrace");
    // A forked child has no copy of this thread; it starts its own.
    let mut rounds = 0;
    while look() {
        rounds = (rounds + 1) % ROUNDS;
        // Else the process would not end: its main thread has ended, and no other is left.
        if rounds == 0 && sys::main_has_ended() && sys::threads().is_some_and(|n| n <= 2) {
            break;
        }
        if !os::nap(INTERVAL) {
            sys::say(
                "hypertrace: the system refuses sleep to the library's thread, as by a seccomp filter: the \
                 host's switches and counts of lost events are late from now on\n",
            );
            break;
        }
    }
    null_mut()
}
