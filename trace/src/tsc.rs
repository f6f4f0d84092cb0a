//! The host's raw counter: the TSC, or CLOCK_MONOTONIC_RAW where there is none
//! that a program may read.
#![allow(unsafe_code)] // an intrinsic, and libc's clock_gettime

/// What [`now`] counts.
pub const KIND: &str = if cfg!(target_arch = "x86_64") { "tsc" } else { "monotonic_raw" };

/// The raw counter, now.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: reads a counter; every x86-64 has the instruction, and Linux
    // leaves it to user mode.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The raw counter, now.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn now() -> u64 {
    monotonic_raw()
}

/// CLOCK_MONOTONIC_RAW, nanoseconds.
pub fn monotonic_raw() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result; a clock that the kernel
    // does not know leaves it as it is.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut ts) };
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}
