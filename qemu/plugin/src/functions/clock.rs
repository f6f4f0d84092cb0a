//! The time of records.

use hypertrace_abi::clock::ticks;
use hypertrace_format::clock;
use hypertrace_functions::clock::{Anchor, Clock as Scale};

/// Clock that counts nanoseconds since the clock's beginning. The clock reads this machine's counter.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Scale);

impl Clock {
    /// Begins the clock now. Returns the clock, and the time of its beginning on this machine's clocks.
    pub fn start() -> (Clock, Anchor) {
        let frequency = clock::frequency();
        let begin = clock::Anchor::now();
        let anchor = Anchor {
            boot_id: clock::boot_id(),
            counter: begin.raw,
            frequency,
            unix_ns: begin.unix_ns.try_into().unwrap_or(i64::MAX),
        };
        (Clock(anchor.clock()), anchor)
    }

    /// Returns the nanoseconds since the clock's beginning.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0.time(ticks())
    }
}
