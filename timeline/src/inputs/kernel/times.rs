// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! From the ticks of a trace's clock to the timeline's time.

use super::options::TscToNs;
use super::shift::TimeShift;
use crate::clock::FRACTION;
use crate::inputs::input::Time;

/// Times of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub scale: Scale,
    /// Map to the clock of the host, whose scale it is then.
    pub shift: Option<TimeShift>,
    /// Added to each time.
    pub offset_ns: i64,
    /// Whether the clock is the session's own, so that times are exact.
    pub exact: bool,
}

/// From ticks to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// Ticks of a counter whose Unix time is known.
    Counter(Counter),
    Tsc(TscToNs),
    Nanoseconds,
}

/// A counter with a known rate and Unix time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counter {
    frequency: u64,
    base: u64,
    offset_ns: i64,
    /// Units per tick, rounded down, with 40 fraction bits.
    units: u128,
}

/// Units of a second.
const SECOND: u128 = 1_000_000_000 * FRACTION as u128;
const BITS: u32 = 40;

impl Counter {
    /// Makes the counter that ticks at 10^3 to 10^12 Hz and had `base` at the Unix time
    /// `offset_ns`.
    pub fn new(frequency: u64, base: u64, offset_ns: i64) -> Counter {
        let frequency = frequency.clamp(1_000, 1_000_000_000_000);
        Counter { frequency, base, offset_ns, units: (SECOND << BITS) / u128::from(frequency) }
    }

    /// Returns the time of a tick, rounded down to a unit.
    fn time(&self, tick: i128) -> Time {
        let start = Time::from(self.offset_ns) * Time::from(FRACTION);
        let Ok(ticks) = u64::try_from(tick - i128::from(self.base)) else {
            let ticks = tick - i128::from(self.base);
            return start + (ticks * SECOND as i128).div_euclid(self.frequency.into());
        };
        // Without a division of 128 bits: the rest is below 10^12, so the estimate is
        // too low by at most 1.
        let (seconds, rest) = (ticks / self.frequency, u128::from(ticks % self.frequency));
        let mut units = (rest * self.units) >> BITS;
        if (units + 1) * u128::from(self.frequency) <= rest * SECOND {
            units += 1;
        }
        start + (u128::from(seconds) * SECOND + units) as Time
    }
}

impl Times {
    /// Returns the time of an event of a CPU.
    pub fn at(&self, cpu: u32, raw: u64) -> Time {
        let ticks = match &self.shift {
            Some(shift) => shift.host(cpu, raw),
            None => raw.into(),
        };
        let time = match &self.scale {
            Scale::Counter(counter) => counter.time(ticks),
            // 65 bits, 32 and 8: within 128.
            Scale::Tsc(tsc) => (ticks * Time::from(tsc.mult) * Time::from(FRACTION)) >> tsc.shift,
            Scale::Nanoseconds => ticks * Time::from(FRACTION),
        };
        time + Time::from(self.offset_ns) * Time::from(FRACTION)
    }

    /// Returns the bound on the error of all times, in nanoseconds.
    pub fn bound(&self) -> Option<u64> {
        (self.exact && self.shift.is_none() && self.offset_ns == 0).then_some(0)
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
            let counter = Counter::new(frequency, base, 0);
            let ticks = i128::from(tick) - i128::from(base);
            let exact = (ticks * SECOND as i128).div_euclid(frequency.into());
            prop_assert_eq!(counter.time(tick.into()), exact);
        }
    }

    #[test]
    fn ticks_are_scaled_as_trace_cmd_does() {
        let scale = Scale::Tsc(TscToNs { mult: 3, shift: 2 });
        let times = Times { scale, shift: None, offset_ns: -5, exact: false };
        assert_eq!(times.at(0, 1_001), ((1_001 * 3 * 256) >> 2) - 5 * 256);
        assert_eq!(times.bound(), None);
    }
}
