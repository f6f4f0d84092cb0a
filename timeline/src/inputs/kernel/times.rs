// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! From the ticks of a trace's clock to the timeline's time.

use super::options::TscToNs;
use super::shift::TimeShift;
use crate::clock::FRACTION;
use crate::clock::host::HostCounter;
use crate::inputs::input::Time;

/// Times of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub scale: Scale,
    /// Map to the clock of the host, whose scale it is then.
    pub shift: Option<TimeShift>,
    /// Added to each time.
    pub offset_ns: i64,
    /// Bound on the error of all times against the timeline's host, in nanoseconds.
    pub bound: Option<u64>,
}

/// From ticks to nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    /// Ticks of a counter whose Unix time is known.
    Counter(HostCounter),
    Tsc(TscToNs),
    Nanoseconds,
}

impl Times {
    /// Returns the time of an event of a CPU.
    pub fn at(&self, cpu: u32, raw: u64) -> Time {
        let ticks = match &self.shift {
            Some(shift) => shift.host(cpu, raw),
            None => raw.into(),
        };
        let time = match &self.scale {
            Scale::Counter(counter) => counter.unix(ticks),
            // 65 bits, 32 and 8: within 128.
            Scale::Tsc(tsc) => (ticks * Time::from(tsc.mult) * Time::from(FRACTION)) >> tsc.shift,
            Scale::Nanoseconds => ticks * Time::from(FRACTION),
        };
        time + Time::from(self.offset_ns) * Time::from(FRACTION)
    }

    /// Returns the bound on the error of all times, in nanoseconds.
    pub fn bound(&self) -> Option<u64> {
        self.bound.filter(|_| self.shift.is_none() && self.offset_ns == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_scaled_as_trace_cmd_does() {
        let scale = Scale::Tsc(TscToNs { mult: 3, shift: 2 });
        let times = Times { scale, shift: None, offset_ns: -5, bound: None };
        assert_eq!(times.at(0, 1_001), ((1_001 * 3 * 256) >> 2) - 5 * 256);
        assert_eq!(times.bound(), None);
    }
}
