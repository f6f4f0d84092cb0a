//! Asking for a cache line before it is stored to.
#![allow(unsafe_code)]

/// Has the CPU fetch this word's cache line for a store, if it can; whether
/// anything is mapped there does not matter.
#[inline(always)]
pub(crate) fn prefetch_for_store<T>(at: *const T) {
    // The compiler's own makes a prefetch for a load of it, which leaves the
    // line shared, unless told that the CPU has this one. Those that do not,
    // take it for nothing.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes nothing but the caches, and faults nowhere.
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
