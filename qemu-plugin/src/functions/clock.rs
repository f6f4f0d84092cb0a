//! The time of records.

use hypertrace_abi::clock::ticks;
use hypertrace_functions::clock::{Anchor, Clock as Scale};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time for which the counter's rate is measured. It is known to some parts in 100,000 then.
const MEASURED: Duration = Duration::from_millis(20);

/// Nanoseconds since the beginning, by this machine's counter.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Scale);

impl Clock {
    /// Measures the counter's rate. Returns the clock, and where its beginning is on this machine's clocks.
    pub fn measure() -> (Clock, Anchor) {
        let (counter, at, unix) = (ticks(), Instant::now(), SystemTime::now());
        sleep(MEASURED);
        let (end, passed) = (ticks(), at.elapsed());
        let ticks = u128::from(end.wrapping_sub(counter));
        let frequency = ticks * 1_000_000_000 / passed.as_nanos().max(1);
        let since = unix.duration_since(UNIX_EPOCH).unwrap_or_default();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let anchor = Anchor {
            boot_id: boot.ok().map(|id| id.trim_end().to_owned()),
            counter,
            frequency: u64::try_from(frequency).unwrap_or(u64::MAX),
            unix_ns: i64::try_from(since.as_nanos()).unwrap_or(0),
        };
        (Clock(anchor.clock()), anchor)
    }

    /// Returns the nanoseconds since the beginning.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.time(ticks())
    }
}
