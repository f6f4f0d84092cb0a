//! Gaps: places at which a host ring had no room for declared events, and the numbers of lost events.
//!
//! A ring has running totals of all lost events, and the header of a packet needs only these totals. The
//! simple backend's file also shows the places at which declared events were lost. So a thread that loses a
//! declared event notes the time in the ring's gaps, and the drain takes this note. An emit that finds room
//! in the ring runs no code of this module.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering, Ordering::Relaxed};

/// Maximum number of a ring's gaps between two passes. Further losses count for the last gap.
const SLOTS: usize = 64;

/// A gap: all events that were lost at one place of the ring.
#[derive(Debug, Default)]
struct Gap {
    /// Head of the ring at the gap. The head is the same for all losses of the gap, because the thread wrote
    /// no record between these losses.
    at: AtomicU64,
    /// Time of the last loss.
    time: AtomicU64,
    /// Number of events that were lost at the gap, and that the drain has not taken yet.
    lost: AtomicU64,
}

/// The gaps of a ring. The thread that has the ring begins gaps, and the drain takes them.
#[derive(Debug)]
pub(crate) struct Gaps {
    slots: [Gap; SLOTS],
    begun: AtomicU64,
    taken: AtomicU64,
}

impl Default for Gaps {
    fn default() -> Self {
        Gaps {
            slots: array::from_fn(|_| Gap::default()),
            begun: AtomicU64::new(0),
            taken: AtomicU64::new(0),
        }
    }
}

impl Gaps {
    /// Notes that the ring's thread lost an event at time `now`, when the ring's head was `at`.
    pub fn lost(&self, at: u64, now: u64) {
        let begun = self.begun.load(Relaxed);
        // ORDERING: pairs with the Release in `take`: before this store, the drain has finished its accesses
        // to the slot.
        let all_used = begun - self.taken.load(Ordering::Acquire) >= SLOTS as u64;
        let last = self.slot(begun.wrapping_sub(1));
        if all_used || (begun > 0 && last.at.load(Relaxed) == at) {
            last.time.store(now, Relaxed);
            last.lost.fetch_add(1, Relaxed);
            return;
        }
        let next = self.slot(begun);
        next.at.store(at, Relaxed);
        next.time.store(now, Relaxed);
        // The number is added and not stored, because a signal handler may lose events between any two of
        // these lines, and the slot may have got a loss after the drain took it.
        next.lost.fetch_add(1, Relaxed);
        // ORDERING: pairs with the Acquire in `take`.
        self.begun.store(begun + 1, Ordering::Release);
    }

    fn slot(&self, index: u64) -> &Gap {
        &self.slots[(index % SLOTS as u64) as usize]
    }

    /// Takes the gaps up to the ring's position `end`. The drain has stopped at this position. Calls `gap`
    /// with the time and the number of events of each gap.
    pub fn take(&self, end: u64, mut gap: impl FnMut(u64, u64)) {
        // ORDERING: pairs with the Release in `lost`.
        let begun = self.begun.load(Ordering::Acquire);
        let mut taken = self.taken.load(Relaxed);
        while taken < begun {
            let slot = self.slot(taken);
            let at = slot.at.load(Relaxed);
            if at > end {
                break;
            }
            // The number is taken before the time is loaded, so that the time is not earlier than the last
            // loss in the number.
            let lost = slot.lost.swap(0, Relaxed);
            if lost > 0 {
                gap(slot.time.load(Relaxed), lost);
            }
            if at == end {
                // This gap may still get losses. Earlier gaps get no more losses, because the thread has
                // written a record after these gaps.
                break;
            }
            taken += 1;
        }
        // ORDERING: pairs with the Acquire in `lost`.
        self.taken.store(taken, Ordering::Release);
    }

    /// Takes all remaining gaps. Returns the number of events that were lost at these gaps.
    pub fn take_all(&self) -> u64 {
        self.slots.iter().map(|slot| slot.lost.swap(0, Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(gaps: &Gaps, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        gaps.take(end, |time, count| found.push((time, count)));
        found
    }

    #[test]
    fn a_gap_is_reported_at_its_place_and_as_it_grows() {
        let gaps = Gaps::default();
        gaps.lost(10, 100);
        gaps.lost(10, 101);
        gaps.lost(20, 200);

        assert_eq!(taken(&gaps, 9), []);
        assert_eq!(taken(&gaps, 10), [(101, 2)]);
        gaps.lost(20, 201);
        assert_eq!(taken(&gaps, 20), [(201, 2)]);
        gaps.lost(20, 202);
        assert_eq!(taken(&gaps, 30), [(202, 1)]);
        assert_eq!((taken(&gaps, 40), gaps.take_all()), (vec![], 0));
        gaps.lost(50, 500);
        assert_eq!((taken(&gaps, 49), gaps.take_all()), (vec![], 1));
    }

    #[test]
    fn more_gaps_than_slots_are_reported_as_one() {
        let gaps = Gaps::default();
        let many = 2 * SLOTS as u64;
        (0..many).for_each(|at| gaps.lost(at, at));

        let found = taken(&gaps, many);

        assert_eq!(found.len(), SLOTS);
        assert_eq!(found.iter().map(|(_, count)| count).sum::<u64>(), many);
        assert_eq!(found[0], (0, 1));
    }
}
