//! The time of the simple backend's records.

use crate::ctf::HostClock;

/// Converts host ticks to Unix nanoseconds with one multiplication.
pub(super) struct Ns {
    raw: u64,
    /// Unix time at the raw time `raw`, in nanoseconds with 32 fraction bits.
    ns: i128,
    /// Nanoseconds per tick with 32 fraction bits: first the rate before `raw`, second the rate from `raw`
    /// on.
    rates: [u64; 2],
}

impl Ns {
    /// Returns a clock that is exact at `raw`.
    pub fn of(clock: &HostClock, raw: u64) -> Ns {
        let ns = clock.unix_ns(raw).max(0);
        Ns { raw, ns: ns << 32, rates: [Ns::rate(clock, 0); 2] }
    }

    /// Returns the clock's rate in nanoseconds per tick, increased by `faster` parts in a billion.
    fn rate(clock: &HostClock, faster: i64) -> u64 {
        let ns = (1_000_000_000 + i128::from(faster)) as u128;
        ((ns << 32) / u128::from(clock.frequency)) as u64
    }

    /// Returns the Unix time of a raw value in nanoseconds.
    pub fn at(&self, raw: u64) -> u64 {
        (self.exactly(raw) >> 32) as u64
    }

    fn exactly(&self, raw: u64) -> i128 {
        let ticks = raw.wrapping_sub(self.raw) as i64;
        let rate = self.rates[usize::from(ticks >= 0)];
        self.ns + i128::from(ticks) * i128::from(rate)
    }

    /// If a second has passed since the last change of the rate, changes to the clock's present rate at
    /// `raw`. The rate is corrected so that the time is exact one second later. The time has no step at
    /// `raw`, so the time of no thread goes back.
    pub fn refresh(&mut self, clock: &HostClock, raw: u64) {
        if raw.saturating_sub(self.raw) < clock.frequency {
            return;
        }
        let ns = self.exactly(raw);
        let behind = (clock.unix_ns(raw) - (ns >> 32)).clamp(-1_000_000, 1_000_000);
        let rate = Ns::rate(clock, behind as i64);
        *self = Ns { raw, ns, rates: [self.rates[1], rate] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back_and_becomes_exact() {
        let mut clock = HostClock::start(None);
        let second = clock.frequency;
        let start = clock.first.raw;
        let mut ns = Ns::of(&clock, start);
        // In this test, the first measured frequency was wrong by 50 parts in a million.
        clock.frequency -= clock.frequency / 20_000;
        let mut last = 0;
        for tick in 1..=100 {
            let raw = start + tick * second / 10;
            for near in raw - 2..raw {
                assert!(ns.at(near) >= last);
                last = ns.at(near);
            }
            ns.refresh(&clock, raw);
            assert!(ns.at(raw - 1) >= last, "what was written stays so");
        }
        let end = start + 10 * second;
        assert!((i128::from(ns.at(end)) - clock.unix_ns(end)).abs() < 1_000);
    }
}
