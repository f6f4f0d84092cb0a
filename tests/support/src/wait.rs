// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Waiting for another thread or process.

use std::thread;
use std::time::{Duration, Instant};

/// Maximum time to wait, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `is_so` returns true. `is_so` may panic if it sees that it will never return true.
///
/// # Panics
/// If the wait takes five minutes. The message contains `what`.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    loop {
        let look = Instant::now();
        if is_so() {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        // The sleep lasts at least as long as the call of `is_so`, so the wait uses at most half of a CPU's
        // time.
        thread::sleep(look.elapsed().max(Duration::from_millis(1)));
    }
}
