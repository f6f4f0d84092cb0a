// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The conversion from the ticks of a trace's clock to the timeline's time.

use super::options::TscToNs;
use super::shift::TimeShift;
use crate::clock::FRACTION;
use crate::clock::host::HostCounter;
use crate::inputs::ctf::{GuestClock, Offset};
use crate::inputs::input::Time;
use std::sync::Arc;

/// Values that convert the times of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub scale: Scale,
    /// Map from a guest's clock to the clock of its host. If there is a map, `scale` is the scale of the
    /// host's clock.
    pub shift: Option<Arc<TimeShift>>,
    /// Offset that is added to each time.
    pub offset: Option<Offset>,
    /// Bound on the error of all times against the timeline's host, in nanoseconds.
    pub bound: Option<u64>,
    /// Bound on the error against the trace's own clock, in nanoseconds.
    pub own_bound: u64,
}

/// Values that convert ticks to nanoseconds.
#[derive(Clone, Debug)]
pub(crate) enum Scale {
    /// Ticks of a counter whose Unix time is known.
    Counter(HostCounter),
    /// Nanoseconds that the kernel derives from a counter whose Unix time is known. Each of the two readings
    /// has the nanoseconds and the ticks of one moment.
    Derived(HostCounter, [(u64, u64); 2]),
    /// Ticks of a guest's clock that reference points relate to the host's clock. If there are two readings,
    /// the times are nanoseconds that the guest's kernel derives from this clock. Each reading has the
    /// nanoseconds and the clock's ticks of one moment.
    Guest(Box<GuestClock>, Option<[(u64, u64); 2]>),
    /// Ticks of the TSC with the factors that convert the ticks to nanoseconds, and the number of nanoseconds
    /// to add.
    Tsc(TscToNs, i64),
    /// Nanoseconds, and the number of nanoseconds to add.
    Nanoseconds(i64),
    /// Ticks of unknown length.
    Ticks,
}

impl Times {
    /// Returns the time of an event of a CPU, and the bound on the error of this time in nanoseconds. `hints`
    /// are the places of the last lookups.
    pub fn at(&self, hints: &mut (usize, usize), cpu: u32, raw: u64) -> (Time, Option<u64>) {
        let ticks = match &self.shift {
            Some(shift) => shift.host(cpu, raw),
            None => raw.into(),
        };
        let bound = self.bound.filter(|_| self.shift.is_none());
        let (time, bound) = match &self.scale {
            Scale::Counter(counter) => (counter.unix(ticks), bound),
            Scale::Derived(counter, readings) => {
                // Both readings are converted to times first, so that the length of a tick need not be
                // rounded.
                let [(from, begin), (to, end)] =
                    readings.map(|(ns, ticks)| (ns, counter.unix(ticks)));
                let since = (ticks - Time::from(from)).saturating_mul(end - begin);
                let time = begin.saturating_add(since.div_euclid(Time::from(to - from)));
                (time, bound)
            }
            Scale::Guest(clock, readings) => {
                let (time, units) = clock.at(hints, readings.map_or(raw, |r| ticks_of(r, raw)));
                // One nanosecond is added, because the error includes the part of a nanosecond that is not
                // shown.
                let own = self.own_bound.saturating_add(1);
                let bound = units.map(|units| units.div_ceil(FRACTION as u64).saturating_add(own));
                (time, bound)
            }
            // The product of 65, 32 and 8 bits fits in 128 bits.
            Scale::Tsc(tsc, added) => {
                let time = (ticks * Time::from(tsc.mult) * Time::from(FRACTION)) >> tsc.shift;
                (time + Time::from(*added) * Time::from(FRACTION), bound)
            }
            Scale::Nanoseconds(added) => {
                ((ticks + Time::from(*added)) * Time::from(FRACTION), bound)
            }
            // Ticks take the place of nanoseconds, so that the events of the trace are in order.
            Scale::Ticks => (ticks * Time::from(FRACTION), bound),
        };
        match self.offset {
            None => (time, bound),
            // The offset is ignored, because its length in ticks is not known.
            Some(_) if matches!(self.scale, Scale::Ticks) => (time, bound),
            Some(Offset { ns, bound_ns, .. }) => {
                let own = bound.unwrap_or(self.own_bound);
                let bound = bound_ns.map(|stated| stated.saturating_add(own));
                (time + Time::from(ns) * Time::from(FRACTION), bound)
            }
        }
    }
}

/// Returns the tick of a counter that is nearest to a time that was derived from the counter.
fn ticks_of([(from, begin), (to, end)]: [(u64, u64); 2], ns: u64) -> u64 {
    let (since, span) = (Time::from(ns) - Time::from(from), Time::from(to - from));
    let ticks =
        (since.saturating_mul(Time::from(end - begin)).saturating_add(span / 2)).div_euclid(span);
    ticks.saturating_add(begin.into()).clamp(0, u64::MAX.into()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_of_a_derived_clock_keep_their_distances_between_ticks() {
        // A tick has 16 ns.
        let counter = HostCounter::new(Some(7), 1_000, 5_000, 62_500_000);
        let readings = [(800, 1_000), (800 + 16 * 62_500, 1_000 + 62_500)];
        let scale = Scale::Derived(counter, readings);
        let times = Times { scale, shift: None, offset: None, bound: Some(9), own_bound: 9 };
        for raw in [0, 800, 801, 807, 16 * 62_500, 5_000_000] {
            let expected = (5_000 + i128::from(raw) - 800) * 256;
            assert_eq!(times.at(&mut (0, 0), 0, raw), (expected, Some(9)));
        }
        for tick in [1_000, 1_001, 62_499, 70_000] {
            // The kernel rounds nanoseconds down.
            let ns = 800 + 16 * (tick - 1_000);
            assert_eq!([ns - 1, ns, ns + 1].map(|ns| ticks_of(readings, ns)), [tick; 3]);
        }
        let extremes = [(0, 0), (u64::MAX, u64::MAX)];
        // Readings of a damaged file may be any numbers: a product may be too large for 128 bits.
        assert!(ticks_of(extremes, 0) < ticks_of(extremes, u64::MAX));
        assert_eq!(ticks_of([(u64::MAX - 1, 0), (u64::MAX, u64::MAX)], 0), 0);
        let times = Times { scale: Scale::Derived(counter, extremes), ..times };
        assert!(times.at(&mut (0, 0), 0, 0).0 < times.at(&mut (0, 0), 0, u64::MAX).0);
    }

    #[test]
    fn ticks_are_scaled_as_trace_cmd_does() {
        let scale = Scale::Tsc(TscToNs { mult: 3, shift: 2 }, 0);
        let mut times = Times { scale, shift: None, offset: None, bound: None, own_bound: 3 };
        assert_eq!(times.at(&mut (0, 0), 0, 1_001), ((1_001 * 3 * 256) >> 2, None));
        times.offset = Some(Offset::new(-5, None));
        assert_eq!(times.at(&mut (0, 0), 0, 1_001), (((1_001 * 3 * 256) >> 2) - 5 * 256, None));
        times.offset = Some(Offset::new(-5, Some(10)));
        assert_eq!(
            times.at(&mut (0, 0), 0, 1_001).1,
            Some(13),
            "of the offset, and of the trace's clock"
        );
    }
}
