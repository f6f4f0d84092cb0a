// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Waiting for what another thread or process does.

use std::thread;
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `is_so` returns true. It may panic, if it sees that this will never be.
///
/// # Panics
/// With `what`, if it takes five minutes.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    loop {
        let look = Instant::now();
        if is_so() {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        // Half of a CPU at most, if looking takes long.
        thread::sleep(look.elapsed().max(Duration::from_millis(1)));
    }
}
