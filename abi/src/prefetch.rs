// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Prefetching of a cache line that is about to be written.
#![allow(unsafe_code)]

/// Prefetches the cache line of this word for a store, where the CPU can. The
/// address need not be mapped.
#[inline(always)]
pub(crate) fn prefetch_for_store<T>(at: *const T) {
    // In assembly: without the target feature of this instruction the compiler emits a
    // prefetch for loads, which leaves the line shared. CPUs without the instruction
    // execute it as a no-op.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: affects nothing but the caches, and never faults.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{}]",
            in(reg) at,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
