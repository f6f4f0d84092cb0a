//! The host's raw counter and the system's clocks: all of them at one instant, and the counter's rate.

use hypertrace_abi::clock::ticks;
use rustix::time::{ClockId, clock_gettime};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// Possible frequencies of a counter in ticks per second.
pub const FREQUENCIES: RangeInclusive<u64> = 1_000..=1_000_000_000_000;

/// Number of nanoseconds in a second.
pub const NS: i128 = 1_000_000_000;

/// Minimum time for a measurement of the rate, in nanoseconds. One reading of the clocks is exact within some
/// 50 ns, so a rate that is measured over this time is exact within 200 parts in a million.
const LEAST_NS: i128 = 500_000;

/// Time in nanoseconds after which the measured rate is good enough: exact within some parts in a million.
const ENOUGH_NS: i128 = 20_000_000;

/// Number of readings of the clocks. Only the best reading counts, because another thread may get the CPU
/// between two reads of one reading.
const READINGS: u32 = 32;

/// Returns the identity of this boot of the machine, or `None` if `/proc` does not have it.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim_end().to_owned())
}

/// Returns the counter's ticks per second. If the CPU does not tell this number, the function measures the
/// rate over the time since the first call of this process. A call within half a millisecond after the first
/// call waits until the half millisecond is over. The later a call, the more exact is the measurement, and
/// after 20 ms all calls return the same number.
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

/// Measures the counter's ticks per second since `first`. Waits until at least half a millisecond has passed
/// since `first`. Returns the frequency, and the length of the measurement in nanoseconds.
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
    /// Value of the raw counter.
    pub raw: u64,
    /// CLOCK_REALTIME in nanoseconds.
    pub unix_ns: i128,
    /// CLOCK_MONOTONIC_RAW in nanoseconds.
    pub monotonic_ns: i128,
}

impl Anchor {
    /// Reads the clocks between two reads of the counter, several times. Returns the clocks of the try with
    /// the shortest time between the two reads of the counter.
    pub fn now() -> Anchor {
        let sample = || {
            let before = ticks();
            // A time before 1970 counts as 1970.
            let unix_ns = read(ClockId::Realtime).max(0);
            let monotonic_ns = read(ClockId::MonotonicRaw);
            let width = ticks().saturating_sub(before);
            (width, Anchor { raw: before + width / 2, unix_ns, monotonic_ns })
        };
        let shorter = |a: (u64, Anchor), b: (u64, Anchor)| if b.0 < a.0 { b } else { a };
        (0..READINGS).map(|_| sample()).fold(sample(), shorter).1
    }

    /// Returns the counter's ticks per second between this instant and a later instant, as
    /// CLOCK_MONOTONIC_RAW measures the time between them. Returns `None` if no counter can have this
    /// frequency.
    pub fn frequency_until(&self, later: &Anchor) -> Option<u64> {
        let ns = later.monotonic_ns - self.monotonic_ns;
        let ticks = i128::from(later.raw.checked_sub(self.raw)?);
        let frequency = u64::try_from((ticks * NS + ns / 2).checked_div(ns)?).ok()?;
        FREQUENCIES.contains(&frequency).then_some(frequency)
    }
}

/// Reads a clock of the system in nanoseconds.
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
        // In the first case, CLOCK_REALTIME is steady. In the second case, CLOCK_REALTIME runs too fast by
        // 500 ppm. In the third case, someone sets CLOCK_REALTIME back by an hour.
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
        // If the rates of two recordings differ by more than 1,000 ppm, a reader assumes that the recordings
        // come from different machines.
        assert!(most - least < least / 2_000, "{frequencies:?}");
    }

    #[test]
    fn the_boot_has_an_id() {
        let boot = boot_id().unwrap();
        assert_eq!((boot.len(), boot_id()), (36, Some(boot)));
    }
}
