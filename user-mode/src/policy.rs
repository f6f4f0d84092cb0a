//! When a host drains, and how long it stays awake.

use hypertrace_abi::drain::DrainPolicy;
use std::time::Duration;

/// When and how much a host drains, and how long it stays awake.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// When and how much to drain. The period applies to rings that get events, and is at most 50 ms. Idle
    /// rings are drained at least every 16 ms, or every period if the period is longer.
    pub drain: DrainPolicy,
    /// Time after a point for which the host looks for the next point before it sleeps. A point that finds
    /// the host awake costs a fraction of a point that has to wake the host.
    pub spin: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { drain: DrainPolicy::default(), spin: Duration::from_micros(50) }
    }
}
