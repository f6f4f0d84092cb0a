// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Prefetching of a cache line for a later store.
#![allow(unsafe_code)]

use crate::atomic::AtomicU64;

/// Distance in words to the cache line that is prefetched. At the pace of an emit, the line arrives in time.
/// A quarter of this distance is too small.
const AHEAD: usize = 128;

/// Prefetches the cache line [`AHEAD`] words after word `at` for a store, if the CPU can. The address need
/// not be mapped.
#[inline(always)]
pub(crate) fn prefetch_for_store(words: &[AtomicU64], at: usize) {
    // The instruction is written in assembly. Without the CPU feature as a target feature, the compiler would
    // emit a prefetch for loads instead, and such a prefetch leaves the cache line shared. CPUs that do not
    // support the instruction execute a no-op.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction affects nothing but the caches, and never faults.
    unsafe {
        core::arch::asm!(
            "prefetchw [{} + 8 * {} + {ahead}]",
            in(reg) words.as_ptr(),
            in(reg) at,
            ahead = const 8 * AHEAD,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{}]",
            in(reg) words.as_ptr().wrapping_add(at + AHEAD),
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (words, at);
}
