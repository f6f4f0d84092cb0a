//! Regions that the guest's own events begin and end. If the trace has a region, then functions are recorded
//! only while such a region is open.
//!
//! Both ends of a region are reference points. A store makes a reference point. The stored value contains the
//! hash of the event's name, and the store instruction has a form that no other code has
//! ([`mark`](hypertrace_abi::layout::mark)).

use hypertrace_abi::schema::name_hash;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The regions of one name, and the number of open regions.
#[derive(Debug)]
pub struct Region {
    begin: u32,
    end: u32,
    /// Number of open regions of all clients.
    open: AtomicU32,
    /// Time of the last beginning or end.
    time: AtomicU64,
    /// Number of regions that have begun.
    begun: AtomicU64,
}

impl Region {
    /// Makes the region of this name, closed at first.
    pub fn new(name: &str) -> Region {
        Region {
            begin: name_hash(&format!("{name}_begin")),
            end: name_hash(&format!("{name}_end")),
            open: AtomicU32::new(0),
            time: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        }
    }

    /// Handles a store of this value to EMIT.
    pub fn emitted(&self, value: u64, now: u64) {
        let hash = (value >> 32) as u32;
        if hash == self.begin {
            self.time.store(now, Relaxed);
            self.open.fetch_add(1, Relaxed);
            self.begun.fetch_add(1, Relaxed);
        } else if hash == self.end {
            self.time.store(now, Relaxed);
            // A region that has never begun may end. The number of open regions then stays 0.
            let _ = self.open.fetch_update(Relaxed, Relaxed, |open| open.checked_sub(1));
        }
    }

    /// Returns whether a region is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed) > 0
    }

    /// Returns the time of the last beginning or end.
    pub fn time(&self) -> u64 {
        self.time.load(Relaxed)
    }

    /// Returns the number of regions that have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_open_from_the_first_beginning_to_the_last_end() {
        let region = Region::new("batch");
        let point = |name: &str, now| region.emitted(u64::from(name_hash(name)) << 32 | 7, now);
        point("batch_end", 1);
        point("other_begin", 2);
        assert!(!region.is_open());
        point("batch_begin", 3);
        point("batch_begin", 4);
        point("batch_end", 5);
        assert!(region.is_open());
        point("batch_end", 6);
        assert_eq!((region.is_open(), region.time(), region.begun()), (false, 6, 2));
    }
}
