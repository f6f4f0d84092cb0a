// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The fence between what a producer stores and what publishes it.

use crate::atomic::{Ordering, fence};

/// Orders all earlier stores, write-combining ones too, before later ones.
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
    /// A test's function that notes this thread's memory at a fence.
    pub(super) static AT_FENCE: std::cell::RefCell<Option<Box<dyn FnMut()>>> =
        const { std::cell::RefCell::new(None) };
}
