//! The clock of a client's timestamps.

use hypertrace_abi::record::ClockKind;

/// Maximum number of turns of a bounded wait if the clock's rate is not known.
pub(crate) const MAX_TURNS: u32 = 1_000_000;

/// A clock, read on every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The CPU's counter: the choice wherever the counter runs at a constant rate.
    #[default]
    Counter,
    /// CLOCK_MONOTONIC_RAW, for guests whose counter is not usable.
    #[cfg(feature = "std")]
    MonotonicRaw,
}

impl Clock {
    /// Returns the present time, nonzero.
    #[inline(always)]
    pub fn now(self) -> u64 {
        match self {
            Clock::Counter => hypertrace_abi::clock::ticks(),
            #[cfg(feature = "std")]
            Clock::MonotonicRaw => monotonic_raw(),
        }
    }

    pub(crate) fn kind(self) -> ClockKind {
        match self {
            Clock::Counter => ClockKind::Tsc,
            #[cfg(feature = "std")]
            Clock::MonotonicRaw => ClockKind::MonotonicRaw,
        }
    }
}

#[cfg(feature = "std")]
#[cold]
fn monotonic_raw() -> u64 {
    crate::os::nanoseconds()
}
