//! The one thread of this library, which does the work that is due even if no thread emits.
//!
//! The code is unsafe because the C library makes the thread. A thread of the standard library takes a lock
//! when it begins. If another thread held this lock at a fork, the lock stays taken in the forked child, and
//! the child's thread would wait for ever.
#![allow(unsafe_code)]

use super::sys;
use crate::os;
use libc::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::time::Duration;

/// Period of the thread's work: the longest delay of a change to the enable mask.
const INTERVAL: Duration = Duration::from_millis(10);
/// Size of the thread's stack, in bytes. The thread's calls are shallow.
const STACK: usize = 64 * 1024;
/// Number of rounds after which the thread checks whether it is the last thread of the process.
const ROUNDS: u32 = 10;

/// Starts a thread that calls `look` every 10 ms until it returns `false`. If the system refuses to start the
/// thread, the work is done later, by slow paths, by [`crate::poll`] and at the end of threads. The caller
/// has blocked signals, so the thread handles no signal.
pub(super) fn start<F: FnMut() -> bool + Send + 'static>(look: F) {
    let look = Box::into_raw(Box::new(look));
    // The second try uses the default size, because a program with many thread-locals needs a larger stack.
    let is_begun = [Some(STACK), None].into_iter().any(|stack| {
        let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let attributes = attributes.as_mut_ptr();
        // SAFETY: the attributes are initialized, then used, then destroyed. `run::<F>` receives a box of its
        // type, and owns the box as soon as the thread begins.
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
        // SAFETY: no thread has the box.
        drop(unsafe { Box::from_raw(look) });
    }
}

extern "C" fn run<F: FnMut() -> bool>(look: *mut c_void) -> *mut c_void {
    // SAFETY: `start` made the box, for this thread.
    let mut look = unsafe { Box::from_raw(look.cast::<F>()) };
    sys::name_thread(c"hypertrace");
    // A forked child has no copy of this thread, and starts a thread of its own.
    let mut rounds = 0;
    while look() {
        rounds = (rounds + 1) % ROUNDS;
        // If the main thread has ended and no other thread is left, this thread ends, too; otherwise the
        // process would not end.
        if rounds == 0 && sys::main_has_ended() && sys::threads().is_some_and(|n| n <= 2) {
            break;
        }
        if !os::nap(INTERVAL) {
            sys::say(
                "hypertrace: the system does not let the library's thread sleep (a seccomp filter may refuse \
                 that): from now on, the host's switches and the counts of lost events come late\n",
            );
            break;
        }
    }
    null_mut()
}
