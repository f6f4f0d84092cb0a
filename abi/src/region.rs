// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The guard of a region of interest, for the macros of guests and of the host.

/// A region that is open; it ends where this is dropped.
#[must_use = "the region ends where this is dropped"]
pub struct Region<F: FnMut()> {
    end: F,
}

impl<F: FnMut()> Region<F> {
    #[doc(hidden)]
    pub fn new(end: F) -> Self {
        Region { end }
    }
}

impl<F: FnMut()> core::fmt::Debug for Region<F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Region").finish_non_exhaustive()
    }
}

impl<F: FnMut()> Drop for Region<F> {
    fn drop(&mut self) {
        (self.end)();
    }
}
