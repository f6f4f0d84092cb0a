//! The kernel's two sources of events.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A source of the kernel's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The kernel's trace: all events, for root.
    Tracefs,
    /// perf_event_open(2): the scheduling of the user's threads.
    Perf,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Tracefs => "tracefs",
            Source::Perf => "perf",
        })
    }
}
