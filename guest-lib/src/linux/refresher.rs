//! The one thread of this library: what has to happen though nobody emits.

use std::time::Duration;

/// How often: also the age at which a change of the enable mask is old.
const INTERVAL: Duration = Duration::from_millis(10);
/// It calls nothing deep.
const STACK: usize = 64 * 1024;

/// Starts it: calls `look` every 10 ms until that returns `false`. If the system
/// has no thread for it, slow paths, [`crate::poll`] and the end of threads do the
/// same, later. The caller has blocked signals, so it handles none.
pub(super) fn start(mut look: impl FnMut() -> bool + Send + 'static) {
    let thread = std::thread::Builder::new().name("hypertrace".into()).stack_size(STACK);
    let _ = thread.spawn(move || {
        // A forked child has no copy of this thread; it starts its own.
        while look() {
            std::thread::sleep(INTERVAL);
        }
    });
}
