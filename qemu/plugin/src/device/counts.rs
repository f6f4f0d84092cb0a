//! The plugin's counters. With `-d plugin`, the plugin writes the counters to a line of QEMU's log when the
//! process ends.

use hypertrace_abi::kinds;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

kinds! {
    /// A counter, and the counter's name in the line of the log.
    pub enum Counter {
        /// Marked stores that were found in translated code. A store counts again each time it is translated.
        Found => "found",
        /// Marked stores to an address outside of the segment. QEMU 7.2 also calls back for atomic
        /// instructions after a marked store, if the marked store was the last instruction of its block.
        Outside => "outside",
        /// Marked stores to a place in the segment that is neither EMIT nor LEASE of a client that programs
        /// can lease.
        Unassigned => "unassigned",
        /// Malformed slots. The plugin has answered that the slot is invalid.
        BadSlot => "bad_slot",
        /// Points left to the host, because the host has triggers on their names.
        Triggers => "left_for_triggers",
        /// Points left to the host, because the vCPU has no relay.
        NoRelay => "left_no_relay",
        /// Points left to the host, because the relay's ring was full.
        Full => "left_full",
        /// Points left to the host, because the host is not serving. The host has to count these points
        /// itself.
        NotServing => "left_not_serving",
        /// Panics in the plugin. After the first panic, the plugin does nothing more.
        Panics => "panics",
    }
}

static COUNTS: [AtomicU64; Counter::COUNT] = [const { AtomicU64::new(0) }; Counter::COUNT];

/// Adds 1 to a counter.
#[cold]
pub fn count(counter: Counter) {
    COUNTS[counter as usize].fetch_add(1, Relaxed);
}

/// Formats the number of points recorded in the relays of vCPUs, and the counters that are
/// not 0.
pub fn summary(recorded: u64) -> String {
    let mut text = format!("hypertrace: recorded {recorded}");
    for (counter, count) in Counter::ALL.into_iter().zip(&COUNTS) {
        let count = count.load(Relaxed);
        if count != 0 {
            text += &format!(", {} {count}", counter.name());
        }
    }
    text
}
