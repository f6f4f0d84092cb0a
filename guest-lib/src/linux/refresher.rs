//! The one thread of this library: the work that is due even if no thread emits.

use super::sys;
use crate::os;
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
pub(super) fn start(mut look: impl FnMut() -> bool + Send + 'static) {
    let thread = std::thread::Builder::new().name("hypertrace".into()).stack_size(STACK);
    let _ = thread.spawn(move || {
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
    });
}
