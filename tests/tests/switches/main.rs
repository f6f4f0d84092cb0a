// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests that switch the events of the whole program. Therefore the tests wait for each other.

mod declared;
mod host_regions;
mod simple;
mod simple_slow;
mod triggers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, so that one test runs at a time, because the switches of events belong to the whole program.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
