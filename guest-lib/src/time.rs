//! What a client stamps its records with.

use hypertrace_abi::record::ClockKind;

/// A clock, read on every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Clock {
    /// The CPU's counter: the choice wherever it runs at a constant rate.
    #[default]
    Counter,
    /// CLOCK_MONOTONIC_RAW, for guests whose counter is not usable.
    #[cfg(feature = "std")]
    MonotonicRaw,
}

impl Clock {
    /// Now, nonzero.
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
#[allow(unsafe_code)]
fn monotonic_raw() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec that lives through the call. The clock
    // exists since Linux 2.6.28, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
