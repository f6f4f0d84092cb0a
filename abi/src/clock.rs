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

/// Returns whether QEMU emulates the CPU: then its counter is one clock on all CPUs, whatever a kernel
/// that compares them has found, as each CPU is a thread that can stop at any time.
#[must_use]
pub fn is_emulated() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::__cpuid;
        /// In ECX of leaf 1: a hypervisor has the leaves from [`HYPERVISOR`] on.
        const HAS_HYPERVISOR: u32 = 1 << 31;
        const HYPERVISOR: u32 = 0x4000_0000;
        // SAFETY: every x86-64 CPU has CPUID, and leaf 1. Rust before 1.94 calls it unsafe.
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

/// A machine's raw counter, as a guest tells it to the host: a claim, which the host does not rely on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Which counter it is.
    pub kind: CounterKind,
    /// Ticks per second; 0 if they are unknown.
    pub frequency: u64,
    /// Why the guest stamps with its clock, which may be another one than the counter.
    pub reason: Reason,
}

/// Why a guest stamps with the counter, or with CLOCK_MONOTONIC_RAW.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Unknown, as from firmware, and from guests that do not tell it.
    #[default]
    Unknown = 0,
    /// An option or the environment names the clock.
    Named = 1,
    /// The guest's kernel keeps the counter as a clock.
    Kept = 2,
    /// An emulator's CPUs have one counter.
    Emulated = 3,
    /// The guest's kernel has dropped the counter, but the counters of all CPUs agree.
    Agreeing = 4,
    /// The counters of the CPUs differ.
    Differing = 5,
    /// Nothing shows that the counter is one clock: its rate may vary, or the guest's kernel has dropped the counter.
    Doubtful = 6,
}

impl Reason {
    /// All that are known, with their names in `session.json`.
    pub const NAMES: [(Reason, &str); 6] = [
        (Reason::Named, "named"),
        (Reason::Kept, "kept"),
        (Reason::Emulated, "emulated"),
        (Reason::Agreeing, "agreeing"),
        (Reason::Differing, "differing"),
        (Reason::Doubtful, "doubtful"),
    ];

    /// Returns the name in `session.json`; `None` if the reason is unknown.
    pub fn name(self) -> Option<&'static str> {
        Reason::NAMES.iter().find(|(reason, _)| *reason == self).map(|(_, name)| *name)
    }

    /// Returns the reason of this name in `session.json`.
    pub fn named(name: &str) -> Reason {
        let named = Reason::NAMES.iter().find(|(_, known)| *known == name);
        named.map(|(reason, _)| *reason).unwrap_or_default()
    }
}

/// The raw counter of an architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum CounterKind {
    /// Another one, or unknown, as from guests that do not tell it.
    #[default]
    Other = 0,
    /// The TSC of x86-64.
    Tsc = 1,
    /// CNTVCT_EL0 of AArch64.
    Cntvct = 2,
}

impl Counter {
    /// Frequencies that a host believes to be those of a guest's counter, ticks per second.
    pub const FREQUENCIES: core::ops::RangeInclusive<u64> = 1_000_000..=10_000_000_000;

    /// Position of the kind in the word of page G.
    pub const KIND_SHIFT: u32 = 56;

    /// Position of the reason in the word of page G, after the ticks per second.
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

    /// Returns the word of page G that tells it.
    pub(crate) const fn to_word(self) -> u64 {
        let frequency = self.frequency & ((1 << Counter::REASON_SHIFT) - 1);
        frequency
            | (self.reason as u64) << Counter::REASON_SHIFT
            | (self.kind as u64) << Counter::KIND_SHIFT
    }

    /// Returns the counter that a word of page G tells. What cannot be is unknown.
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

/// Converts a time to ticks of a counter. A counter of unknown frequency (0) counts
/// as one of 1 GHz.
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
