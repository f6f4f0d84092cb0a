//! The host's counter beside its system's clocks: one instant on all of them, and the counter's rate.

use hypertrace_abi::clock::ticks;
use rustix::time::{ClockId, clock_gettime};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// Frequencies that a counter may have, ticks per second.
pub const FREQUENCIES: RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// Nanoseconds of a second.
pub const NS: i128 = 1_000_000_000;

/// Shortest time for which the rate is measured: two readings of the clocks are some 100 ns apart, so it is within 200 parts in
/// a million then.
const LEAST_NS: i128 = 500_000;

/// Time after which the rate is measured well enough, within some parts in a million.
const ENOUGH_NS: i128 = 20_000_000;

/// Readings of the clocks, of which the best one is taken: another thread may get the CPU between two of them.
const READINGS: u32 = 32;

/// Returns the identity of this boot of the machine; `None` if `/proc` does not have it.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim_end().to_owned())
}

/// Returns the counter's ticks per second: the CPU's word, or else a measurement since the process's first call. In the first
/// half of a millisecond after that one, the call takes the rest of it; the later the call, the closer is the measurement, and after
/// 20 ms it is always the same.
pub fn frequency() -> u64 {
    static FREQUENCY: OnceLock<u64> = OnceLock::new();
    static FIRST: OnceLock<Anchor> = OnceLock::new();
    if let Some(known) = FREQUENCY.get() {
        return *known;
    }
    let told = hypertrace_abi::clock::frequency().filter(|told| FREQUENCIES.contains(told));
    if let Some(told) = told {
        return told;
    }
    let first = FIRST.get_or_init(Anchor::now);
    let (measured, ns) = measured(first);
    if ns >= ENOUGH_NS { *FREQUENCY.get_or_init(|| measured) } else { measured }
}

/// Measures the counter's ticks per second since an instant, half a millisecond ago at least. Returns them, and since how long.
fn measured(first: &Anchor) -> (u64, i128) {
    loop {
        let now = Anchor::now();
        let ns = now.monotonic_ns - first.monotonic_ns;
        if ns >= LEAST_NS {
            return (first.frequency_until(&now).unwrap_or(NS as u64), ns);
        }
    }
}

/// One instant on all of the host's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    /// The raw counter.
    pub raw: u64,
    /// CLOCK_REALTIME, nanoseconds.
    pub unix_ns: i128,
    /// CLOCK_MONOTONIC_RAW, nanoseconds.
    pub monotonic_ns: i128,
}

impl Anchor {
    /// Reads the clocks between two reads of the counter. Returns the try with the shortest time between the two reads.
    pub fn now() -> Anchor {
        let sample = || {
            let before = ticks();
            // A time before 1970 is taken as 1970.
            let unix_ns = read(ClockId::Realtime).max(0);
            let monotonic_ns = read(ClockId::MonotonicRaw);
            let width = ticks().saturating_sub(before);
            (width, Anchor { raw: before + width / 2, unix_ns, monotonic_ns })
        };
        let shorter = |a: (u64, Anchor), b: (u64, Anchor)| if b.0 < a.0 { b } else { a };
        (0..READINGS).map(|_| sample()).fold(sample(), shorter).1
    }

    /// Returns the counter's ticks per second of CLOCK_MONOTONIC_RAW from here to a later instant. `None` if no counter
    /// has this frequency.
    pub fn frequency_until(&self, later: &Anchor) -> Option<u64> {
        let ns = later.monotonic_ns - self.monotonic_ns;
        let ticks = i128::from(later.raw.checked_sub(self.raw)?);
        let frequency = u64::try_from((ticks * NS + ns / 2).checked_div(ns)?).ok()?;
        FREQUENCIES.contains(&frequency).then_some(frequency)
    }
}

/// Reads a clock of the system, nanoseconds.
pub fn read(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * NS + i128::from(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn adjustments_of_the_systems_clock_do_not_change_the_rate() {
        let first = Anchor { raw: 5_000, unix_ns: 7_000_000_000_000, monotonic_ns: 90_000_000_000 };
        let after = |real_ns: i128| Anchor {
            raw: 5_000 + 26_000_000_000,
            unix_ns: first.unix_ns + real_ns,
            monotonic_ns: first.monotonic_ns + 10_000_000_000,
        };
        // Steady, slewed by 500 ppm, set back an hour.
        for real in [10_000_000_000, 10_005_000_000, -3_590_000_000_000] {
            assert_eq!(first.frequency_until(&after(real)), Some(2_600_000_000));
        }
    }

    #[test]
    fn on_a_busy_machine_all_measurements_are_of_one_rate() {
        let is_over = AtomicBool::new(false);
        let frequencies: Vec<u64> = std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        spin_loop();
                    }
                });
            }
            let found = (0..10).map(|_| measured(&Anchor::now()).0).collect();
            is_over.store(true, Relaxed);
            found
        });

        let (least, most) = (frequencies.iter().min().unwrap(), frequencies.iter().max().unwrap());
        // A reader takes recordings whose rates differ by more than 1,000 ppm as those of different machines.
        assert!(most - least < least / 2_000, "{frequencies:?}");
    }

    #[test]
    fn the_boot_has_an_id() {
        let boot = boot_id().unwrap();
        assert_eq!((boot.len(), boot_id()), (36, Some(boot)));
    }
}
