// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The fence between a producer's stores and the store that publishes them.

use crate::atomic::{Ordering, fence};

/// Orders all earlier stores before all later stores, including stores to write-combining memory.
#[inline(always)]
pub(super) fn store_fence() {
    #[cfg(test)]
    AT_FENCE.with_borrow_mut(|note| note.iter_mut().for_each(|note| note()));
    // ORDERING: SeqCst is the one portable fence that also drains
    // write-combining buffers (mfence on x86, dmb ish on Arm).
    fence(Ordering::SeqCst);
}

#[cfg(test)]
thread_local! {
    /// A test's function, which copies the memory of the test's thread at each fence.
    pub(super) static AT_FENCE: std::cell::RefCell<Option<Box<dyn FnMut()>>> =
        const { std::cell::RefCell::new(None) };
}
