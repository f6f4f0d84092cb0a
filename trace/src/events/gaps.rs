//! Gaps: where a host ring had no room for declared events, and for how many.
//!
//! A ring has running totals of all that it lost, which is enough for a
//! packet's header. The simple backend's file has a count where events are
//! missing, and holds declared events only; so the thread that loses one notes
//! it here. Nothing of this is on an emit's hot path.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering, Ordering::Relaxed};

/// Gaps that one ring can have between two passes; more count as one.
const SLOTS: usize = 64;

/// A gap: all that was lost at one place of the ring.
#[derive(Debug, Default)]
struct Gap {
    /// Head of the ring: nothing was written meanwhile.
    at: AtomicU64,
    /// When the last of it was lost.
    time: AtomicU64,
    /// All that the ring had lost by then.
    total: AtomicU64,
}

/// A ring's gaps: the thread that has the ring begins them, the drain takes
/// them.
#[derive(Debug)]
pub(crate) struct Gaps {
    slots: [Gap; SLOTS],
    begun: AtomicU64,
    taken: AtomicU64,
    total: AtomicU64,
}

impl Default for Gaps {
    fn default() -> Self {
        Gaps {
            slots: array::from_fn(|_| Gap::default()),
            begun: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }
}

impl Gaps {
    /// Notes that the ring's thread lost an event at `now`, its head at `at`.
    pub fn lost(&self, at: u64, now: u64) {
        // A signal handler may come in between anywhere, so a read-modify-write.
        let total = self.total.fetch_add(1, Relaxed) + 1;
        let begun = self.begun.load(Relaxed);
        // ORDERING: pairs with the Release in `each`: it is done with the slot.
        let all_used = begun - self.taken.load(Ordering::Acquire) >= SLOTS as u64;
        let last = self.slot(begun.wrapping_sub(1));
        if all_used || (begun > 0 && last.at.load(Relaxed) == at) {
            last.time.store(now, Relaxed);
            last.total.fetch_max(total, Relaxed);
            return;
        }
        let next = self.slot(begun);
        next.at.store(at, Relaxed);
        next.time.store(now, Relaxed);
        next.total.store(total, Relaxed);
        // ORDERING: pairs with the Acquire in `each`.
        self.begun.store(begun + 1, Ordering::Release);
    }

    fn slot(&self, index: u64) -> &Gap {
        &self.slots[(index % SLOTS as u64) as usize]
    }

    /// Gives the gaps up to the ring's position `end`, after which nothing is
    /// taken yet: when, and how many events. `reported` is the total that was given
    /// before, and grows.
    pub fn each(&self, end: u64, reported: &mut u64, mut gap: impl FnMut(u64, u64)) {
        // ORDERING: pairs with the Release in `lost`.
        let begun = self.begun.load(Ordering::Acquire);
        let mut taken = self.taken.load(Relaxed);
        while taken < begun {
            let slot = self.slot(taken);
            let at = slot.at.load(Relaxed);
            if at > end {
                break;
            }
            // Loaded before the time, so that the time is that of this loss or of a later one.
            let total = slot.total.load(Relaxed);
            let more = total.saturating_sub(*reported);
            if more > 0 {
                gap(slot.time.load(Relaxed), more);
                *reported = total;
            }
            if at == end {
                // This gap may still grow. Gaps before it cannot: the thread
                // has written since.
                break;
            }
            taken += 1;
        }
        // ORDERING: pairs with the Acquire in `lost`.
        self.taken.store(taken, Ordering::Release);
    }

    /// Returns the total of lost events.
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(gaps: &Gaps, end: u64, reported: &mut u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        gaps.each(end, reported, |time, count| found.push((time, count)));
        found
    }

    #[test]
    fn a_gap_is_reported_at_its_place_and_as_it_grows() {
        let (gaps, mut reported) = (Gaps::default(), 0);
        gaps.lost(10, 100);
        gaps.lost(10, 101);
        gaps.lost(20, 200);

        assert_eq!(taken(&gaps, 9, &mut reported), []);
        assert_eq!(taken(&gaps, 10, &mut reported), [(101, 2)]);
        gaps.lost(20, 201);
        assert_eq!(taken(&gaps, 20, &mut reported), [(201, 2)]);
        gaps.lost(20, 202);
        assert_eq!(taken(&gaps, 30, &mut reported), [(202, 1)]);
        assert_eq!((taken(&gaps, 40, &mut reported), reported), (vec![], gaps.total()));
    }

    #[test]
    fn more_gaps_than_slots_are_reported_as_one() {
        let (gaps, mut reported) = (Gaps::default(), 0);
        let many = 2 * SLOTS as u64;
        (0..many).for_each(|at| gaps.lost(at, at));

        let found = taken(&gaps, many, &mut reported);

        assert_eq!(found.len(), SLOTS);
        assert_eq!(found.iter().map(|(_, count)| count).sum::<u64>(), many);
        assert_eq!(found[0], (0, 1));
    }
}
