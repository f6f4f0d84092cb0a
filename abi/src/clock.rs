//! The raw counter that timestamps are made of.
#![allow(unsafe_code)]

/// Reads the counter: the TSC on x86-64, the virtual counter on AArch64. Not
/// ordered against memory accesses around it.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC reads a register and nothing else; CR4.TSD is not set by
    // any system that this crate is meant for.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads CNTVCT_EL0, which every OS lets user code read.
    unsafe {
        let ticks: u64;
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack));
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("hypertrace needs a raw counter: x86-64 or AArch64")
}

/// Reads the counter when all loads before this are done: what another thread
/// did before a store that was seen has an earlier time.
#[inline(always)]
pub fn ticks_after_loads() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE, of SSE2, which every x86-64 has, waits and does nothing
    // else.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: waits for loads and then empties the pipeline.
    unsafe {
        core::arch::asm!("dmb ishld", "isb", options(nostack));
    }
    ticks()
}

/// Ticks per second of the counter, where the CPU tells: on AArch64.
pub fn frequency() -> Option<u64> {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads CNTFRQ_EL0, which every OS lets user code read.
    unsafe {
        let frequency: u64;
        core::arch::asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack));
        Some(frequency)
    }
    #[cfg(not(target_arch = "aarch64"))]
    None
}

/// Returns how many ticks of a counter this time is. A counter whose ticks per
/// second are not known (0) is taken for one of 1 GHz.
pub fn in_ticks(time: core::time::Duration, frequency: u64) -> u64 {
    let frequency = if frequency == 0 { 1_000_000_000 } else { frequency };
    let ticks = time.as_nanos() * u128::from(frequency) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}
