// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The raw counter, the source of all timestamps.
#![allow(unsafe_code)]

/// Reads the raw counter: the TSC on x86-64, the virtual counter on AArch64, `time` on RISC-V. The read is
/// not ordered against surrounding memory accesses.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC only reads a register. RDTSC would fault if the system set CR4.TSD, but no system that
    // this crate supports sets this bit.
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

/// Reads the raw counter after all earlier loads have completed. If one of these loads saw a store of another
/// thread, the result is later than any time that the other thread had read before this store.
#[inline(always)]
pub fn ticks_after_loads() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE waits for earlier loads and has no other effect. LFENCE is part of SSE2, which every
    // x86-64 CPU has.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: waits for loads and then flushes the pipeline.
    unsafe {
        core::arch::asm!("dmb ishld", "isb", options(nostack));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: orders earlier loads before later device input. For a fence, the read of a CSR counts as device
    // input (the unprivileged specification, "CSR Access Ordering").
    unsafe {
        core::arch::asm!("fence r, i", options(nostack));
    }
    ticks()
}

/// Returns whether QEMU emulates the CPU. If QEMU emulates the CPU, the counters of all CPUs are one clock. A
/// kernel's comparison of the counters may say otherwise, because each emulated CPU is a thread that can stop
/// at any time.
#[must_use]
pub fn is_emulated() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::__cpuid;
        /// Bit in ECX of leaf 1: a hypervisor provides the leaves from [`HYPERVISOR`] on.
        const HAS_HYPERVISOR: u32 = 1 << 31;
        const HYPERVISOR: u32 = 0x4000_0000;
        // SAFETY: every x86-64 CPU has CPUID and leaf 1. Before Rust 1.94, `__cpuid` is an unsafe function.
        #[allow(unused_unsafe)]
        let cpuid = |leaf| unsafe { __cpuid(leaf) };
        let is_guest = cpuid(1).ecx & HAS_HYPERVISOR != 0;
        let name = is_guest.then(|| cpuid(HYPERVISOR));
        let name = name.map(|leaf| [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes));
        name.is_some_and(|name| name.as_flattened() == b"TCGTCGTCGTCG")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Returns the raw counter's ticks per second if the CPU reports them, as AArch64 does. On RISC-V, the VMM
/// writes the frequency to the devicetree as `timebase-frequency`.
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

/// A machine's raw counter, as a guest describes it. The host does not rely on the description.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The kind of the counter.
    pub kind: CounterKind,
    /// Ticks per second, 0 if unknown.
    pub frequency: u64,
    /// Reason why the guest uses its clock for timestamps. The guest's clock may be another clock than this
    /// counter.
    pub reason: Reason,
}

/// Why a guest uses the raw counter or CLOCK_MONOTONIC_RAW for timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Unknown: firmware and some guests do not tell the reason.
    #[default]
    Unknown = 0,
    /// An option or the environment names the clock.
    Named = 1,
    /// The guest's kernel uses the counter as a clock.
    Kept = 2,
    /// All CPUs of an emulator share one counter.
    Emulated = 3,
    /// The guest's kernel no longer uses the counter, but the counters of all CPUs agree.
    Agreeing = 4,
    /// The counters of the CPUs differ.
    Differing = 5,
    /// Nothing shows that the counter is one clock: its rate may vary, or the guest's kernel no longer uses
    /// it.
    Doubtful = 6,
}

impl Reason {
    /// All reasons except the unknown one, with their names in `session.json`.
    pub const NAMES: [(Reason, &str); 6] = [
        (Reason::Named, "named"),
        (Reason::Kept, "kept"),
        (Reason::Emulated, "emulated"),
        (Reason::Agreeing, "agreeing"),
        (Reason::Differing, "differing"),
        (Reason::Doubtful, "doubtful"),
    ];

    /// Returns the name in `session.json`, or `None` if the reason is unknown.
    pub fn name(self) -> Option<&'static str> {
        Reason::NAMES.iter().find(|(reason, _)| *reason == self).map(|(_, name)| *name)
    }

    /// Returns the reason with this name in `session.json`, or [`Reason::Unknown`].
    pub fn named(name: &str) -> Reason {
        let named = Reason::NAMES.iter().find(|(_, known)| *known == name);
        named.map(|(reason, _)| *reason).unwrap_or_default()
    }
}

/// The raw counter of an architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CounterKind {
    /// Another counter, or a counter of which the guest does not tell the kind.
    #[default]
    Other = 0,
    /// The TSC of x86-64.
    Tsc = 1,
    /// CNTVCT_EL0 of AArch64.
    Cntvct = 2,
}

impl Counter {
    /// Frequencies that the host accepts for a guest's counter, in ticks per second.
    pub const FREQUENCIES: core::ops::RangeInclusive<u64> = 1_000_000..=10_000_000_000;

    /// Bit position of the kind in the word of page G.
    pub const KIND_SHIFT: u32 = 56;

    /// Bit position of the reason in the word of page G, above the ticks per second.
    pub const REASON_SHIFT: u32 = 48;

    /// Returns the counter of this machine.
    pub fn own() -> Counter {
        let kind = if cfg!(target_arch = "x86_64") {
            CounterKind::Tsc
        } else if cfg!(target_arch = "aarch64") {
            CounterKind::Cntvct
        } else {
            CounterKind::Other
        };
        Counter { kind, frequency: frequency().unwrap_or(0), reason: Reason::Unknown }
    }

    /// Returns the word of page G that describes the counter.
    pub(crate) const fn to_word(self) -> u64 {
        let frequency = self.frequency & ((1 << Counter::REASON_SHIFT) - 1);
        frequency
            | (self.reason as u64) << Counter::REASON_SHIFT
            | (self.kind as u64) << Counter::KIND_SHIFT
    }

    /// Returns the counter that a word of page G describes. Impossible values count as unknown.
    pub(crate) fn from_word(word: u64) -> Counter {
        let kind = match word >> Counter::KIND_SHIFT {
            1 => CounterKind::Tsc,
            2 => CounterKind::Cntvct,
            _ => CounterKind::Other,
        };
        let reason = (word >> Counter::REASON_SHIFT) as u8;
        let mut reasons = Reason::NAMES.iter().map(|(reason, _)| *reason);
        let reason = reasons.find(|known| *known as u8 == reason).unwrap_or_default();
        let frequency = word & ((1 << Counter::REASON_SHIFT) - 1);
        let is_possible = Counter::FREQUENCIES.contains(&frequency);
        Counter { kind, frequency: if is_possible { frequency } else { 0 }, reason }
    }
}

/// Converts a time to ticks of a counter. If the frequency is 0 (unknown), the function computes with 1 GHz.
pub fn in_ticks(time: core::time::Duration, frequency: u64) -> u64 {
    let frequency = if frequency == 0 { 1_000_000_000 } else { frequency };
    let ticks = time.as_nanos() * u128::from(frequency) / 1_000_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_word_tells_its_counter_or_nothing() {
        for (reason, _) in Reason::NAMES {
            let own = Counter { reason, ..Counter::own() };
            assert_eq!(Counter::from_word(own.to_word()), own);
        }
        for (word, kind, frequency) in [
            (0, CounterKind::Other, 0),
            (1 << 56, CounterKind::Tsc, 0),
            (2 << 56 | 62_500_000, CounterKind::Cntvct, 62_500_000),
            (2 << 56 | 999_999, CounterKind::Cntvct, 0),
            (1 << 56 | 7 << 48, CounterKind::Tsc, 0),
            (10_000_000_001, CounterKind::Other, 0),
            (u64::MAX, CounterKind::Other, 0),
        ] {
            let counter = Counter { kind, frequency, reason: Reason::Unknown };
            assert_eq!(Counter::from_word(word), counter, "{word:#x}");
        }
    }
}
