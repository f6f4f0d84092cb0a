//! When a host drains, and how long it stays awake.

use hypertrace_abi::drain::DrainPolicy;
use std::time::Duration;

/// When and how much to drain, and how long to stay awake.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// When and how much to drain. The period, 50 ms at most, is for rings that get events: idle ones are drained every 16 ms at
    /// last.
    pub drain: DrainPolicy,
    /// How long to look for the next point before sleeping, from the last one
    /// on. A point that finds the host awake costs a fraction of one that has
    /// to wake it.
    pub spin: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { drain: DrainPolicy::default(), spin: Duration::from_micros(50) }
    }
}
