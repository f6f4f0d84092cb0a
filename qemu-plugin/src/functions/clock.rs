//! The time of records.

use hypertrace_abi::clock::ticks;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for which the counter's rate is measured. It is known to some parts in 100,000 then.
const MEASURED: Duration = Duration::from_millis(20);

/// Nanoseconds since the beginning, by this machine's counter.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    begin: u64,
    /// Nanoseconds a tick, in units of 2^-32.
    scale: u64,
}

impl Clock {
    /// Measures the counter's rate. The beginning is now.
    pub fn measure() -> Clock {
        let (begin, at) = (ticks(), Instant::now());
        sleep(MEASURED);
        let (end, passed) = (ticks(), at.elapsed());
        let scale = (passed.as_nanos() << 32) / u128::from(end.wrapping_sub(begin).max(1));
        Clock { begin, scale: u64::try_from(scale).unwrap_or(u64::MAX) }
    }

    /// Returns the nanoseconds since the beginning.
    #[inline]
    pub fn now(&self) -> u64 {
        let ticks = ticks().saturating_sub(self.begin);
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }
}
