// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The raw counter, the source of all timestamps.
#![allow(unsafe_code)]

/// Reads the counter: the TSC on x86-64, the virtual counter on AArch64, `time` on
/// RISC-V. Not ordered against surrounding memory accesses.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC only reads a register. No system that this crate supports
    // sets CR4.TSD, which would make it fault.
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
    #[cfg(target_arch = "riscv64")]
    // SAFETY: reads the CSR `time`, which every OS lets user code read.
    unsafe {
        let ticks: u64;
        core::arch::asm!("rdtime {}", out(reg) ticks, options(nomem, nostack));
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
    compile_error!("hypertrace needs a raw counter: x86-64, AArch64 or riscv64")
}

/// Reads the counter after all earlier loads have completed. If one of them saw a
/// store of another thread, the result is later than any time that thread read
/// before the store.
#[inline(always)]
pub fn ticks_after_loads() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE waits for earlier loads and has no other effect. It is part of
    // SSE2, which every x86-64 CPU has.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: waits for loads and then flushes the pipeline.
    unsafe {
        core::arch::asm!("dmb ishld", "isb", options(nostack));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: orders earlier loads before later device input, as which a fence takes
    // the read of a CSR (the unprivileged specification, "CSR Access Ordering").
    unsafe {
        core::arch::asm!("fence r, i", options(nostack));
    }
    ticks()
}

/// Returns the counter's ticks per second if the CPU reports them, as AArch64 does. On RISC-V they
/// are the `timebase-frequency` of the machine's description, which the VMM writes.
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

/// Converts a time to ticks of a counter. A counter of unknown frequency (0) counts
/// as one of 1 GHz.
pub fn in_ticks(time: core::time::Duration, frequency: u64) -> u64 {
    let frequency = if frequency == 0 { 1_000_000_000 } else { frequency };
    let ticks = time.as_nanos() * u128::from(frequency) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}
