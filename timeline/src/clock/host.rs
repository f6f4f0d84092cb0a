// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host's raw counter, and the one map to Unix time that all recordings of a boot share.
//!
//! A recording has an *anchor*: one reading of the raw counter together with Unix time. Each anchor has its
//! own error, and somebody may set the system's clock between two anchors, but the counter runs on without a
//! step for the whole boot. So all recordings of a boot use one of their anchors, and the recordings' events
//! are merged by raw ticks. Recordings of different boots, or of unknown boots, have no counter in common, so
//! the difference between their anchors is unknown.
//!
//! The counter must be the same on all CPUs, and must not stop within a boot. The kernel checks that the
//! counters of all CPUs agree, and then uses the clock source `tsc`. If a machine was suspended, the counter
//! may have stopped.

use super::FRACTION;
use hypertrace_format::clock::FREQUENCIES;

/// The host's raw counter during one boot, mapped to Unix time with one anchor and one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCounter {
    boot_id: Option<u128>,
    /// Raw reading at the anchor, in ticks.
    raw: u64,
    /// Unix time at the anchor in nanoseconds.
    unix_ns: i64,
    /// Rate in ticks per second.
    frequency: u64,
    /// Length of a tick in units of 1/[`FRACTION`] ns, rounded down, as a fixed-point number with [`BITS`]
    /// fraction bits.
    units: u128,
}

/// Number of units in a second.
const SECOND: u128 = 1_000_000_000 * FRACTION as u128;
const BITS: u32 = 40;

impl HostCounter {
    /// Makes a counter that had the value `raw` at Unix time `unix_ns`. `boot_id` is the number in
    /// `/proc/sys/kernel/random/boot_id` (see [`uuid`](hypertrace_format::uuid)), or `None` if the recording
    /// does not have this number. A frequency outside of [`FREQUENCIES`] is replaced by the nearest frequency
    /// in this range.
    pub fn new(boot_id: Option<u128>, raw: u64, unix_ns: i64, frequency: u64) -> HostCounter {
        let frequency = frequency.clamp(*FREQUENCIES.start(), *FREQUENCIES.end());
        let units = (SECOND << BITS) / u128::from(frequency);
        HostCounter { boot_id, raw, unix_ns, frequency, units }
    }

    /// Returns the ID of the boot, or `None` if the boot is unknown.
    pub fn boot_id(&self) -> Option<u128> {
        self.boot_id
    }

    /// Returns the anchor: raw ticks, and Unix time in nanoseconds.
    pub fn anchor(&self) -> (u64, i64) {
        (self.raw, self.unix_ns)
    }

    /// Returns the ticks per second.
    pub fn frequency(&self) -> u64 {
        self.frequency
    }

    /// Returns the Unix time of a raw reading, in 1/[`FRACTION`] ns, rounded down.
    pub fn unix(&self, raw: impl Into<i128>) -> i128 {
        let ticks = raw.into() - i128::from(self.raw);
        let start = i128::from(self.unix_ns) * i128::from(FRACTION);
        let Ok(ticks) = u64::try_from(ticks) else {
            // 2^65 ticks x 2^38 fit in 128 bits.
            return start + (ticks * SECOND as i128).div_euclid(self.frequency.into());
        };
        // The rest is below 10^12, so the estimate is too low by at most 1 and needs no division of 128 bits.
        let (seconds, rest) = (ticks / self.frequency, u128::from(ticks % self.frequency));
        let mut units = (rest * self.units) >> BITS;
        if (units + 1) * u128::from(self.frequency) <= rest * SECOND {
            units += 1;
        }
        start + (u128::from(seconds) * SECOND + units) as i128
    }

    /// Returns the first raw reading at or after a Unix time in nanoseconds. If the reading would be
    /// negative, returns 0. If the reading would exceed 64 bits, returns the largest number.
    pub fn raw(&self, unix_ns: i64) -> u64 {
        let ns = i128::from(unix_ns) - i128::from(self.unix_ns);
        // 2^64 ns x 2^40 ticks fit in 128 bits.
        let product = ns * i128::from(self.frequency);
        let ticks = -(-product).div_euclid(1_000_000_000);
        (i128::from(self.raw) + ticks).clamp(0, u64::MAX.into()) as u64
    }

    /// Returns a counter whose Unix times are `ns` nanoseconds later.
    pub fn later(&self, ns: i64) -> HostCounter {
        HostCounter { unix_ns: self.unix_ns.saturating_add(ns), ..*self }
    }

    /// Returns whether both values describe the same counter: the boot is known and the same, and the rates
    /// differ by at most 1,000 ppm. The rates are compared because a restored copy of a machine has the boot
    /// ID of the original machine.
    pub fn is_same(&self, other: &HostCounter) -> bool {
        let slower = self.frequency.min(other.frequency);
        self.boot_id.is_some()
            && self.boot_id == other.boot_id
            && self.frequency.abs_diff(other.frequency) <= slower / 1000
    }
}

/// Puts all counters of one boot on the anchor and rate of the counter with the earliest anchor. Counters of
/// unknown boots do not change.
pub fn share(counters: &mut [HostCounter]) {
    let mut by_age = counters.to_vec();
    by_age.sort_by_key(|counter| counter.raw);
    for counter in counters {
        if let Some(first) = by_age.iter().find(|first| first.is_same(counter)) {
            *counter = *first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_counters_time_is_the_exact_one_rounded_down(
            frequency in 1_000u64..=1_000_000_000_000,
            base: u64,
            tick: u64,
        ) {
            let counter = HostCounter::new(None, base, 0, frequency);
            let ticks = i128::from(tick) - i128::from(base);
            let exact = (ticks * SECOND as i128).div_euclid(frequency.into());
            prop_assert_eq!(counter.unix(tick), exact);
        }
    }

    const GHZ: u64 = 1_000_000_000;

    #[test]
    fn counters_of_one_boot_get_the_earliest_anchor_and_others_stay() {
        // The second anchor has an error of 300 ns, and the third anchor is from another boot.
        let mut counters = [
            HostCounter::new(Some(7), 5_000, 1_000_000_300, GHZ + 10),
            HostCounter::new(Some(7), 1_000, 999_996_000, GHZ),
            HostCounter::new(Some(8), 2_000, 5, GHZ),
            HostCounter::new(None, 1, 6, GHZ),
            HostCounter::new(None, 0, 6, GHZ),
        ];
        let before = counters;

        share(&mut counters);

        assert_eq!(counters[0], before[1]);
        assert_eq!(counters[1..], before[1..]);
        assert_eq!(counters[0].unix(5_001), 1_000_000_001 * 256);
        assert_eq!(counters[0].unix(999), 999_995_999 * 256);
    }

    #[test]
    fn a_copy_of_a_machine_with_another_rate_is_another_counter() {
        let counter = |frequency| HostCounter::new(Some(7), 0, 0, frequency);
        assert!(counter(GHZ).is_same(&counter(GHZ + GHZ / 1000)));
        assert!(!counter(GHZ).is_same(&counter(GHZ + GHZ / 900)));
        assert!(!HostCounter::new(None, 0, 0, GHZ).is_same(&HostCounter::new(None, 0, 0, GHZ)));
    }

    #[test]
    fn the_extremes_of_a_counter_have_a_time() {
        for frequency in [0, 1_000, 1_000_000_000_000, u64::MAX] {
            for raw in [0, u64::MAX] {
                let counter = HostCounter::new(None, raw, i64::MIN, frequency);
                assert!(counter.unix(0) <= counter.unix(u64::MAX));
            }
        }
    }

    #[test]
    fn a_unix_time_gives_back_the_first_reading_in_it() {
        for frequency in [1_000, 24_000_000, GHZ, 2_499_999_937, 1_000_000_000_000] {
            let counter = HostCounter::new(None, 1 << 50, 1_700_000_000_000_000_000, frequency);
            for raw in [1 << 50, (1 << 50) + 12_345, (1 << 50) - 987, (1 << 50) + (1 << 40)] {
                let unix_ns = counter.unix(raw).div_euclid(FRACTION.into()) as i64;

                let first = counter.raw(unix_ns);

                assert!(first <= raw, "{frequency} {raw}");
                assert!(counter.unix(first) >= i128::from(unix_ns) * i128::from(FRACTION) - 1);
            }
        }
        assert_eq!(HostCounter::new(None, 5, i64::MAX, GHZ).raw(i64::MIN), 0);
        assert_eq!(HostCounter::new(None, u64::MAX, 0, GHZ).raw(i64::MAX), u64::MAX);
    }
}
