// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Puts the entries of a session in order of time while the session is being written.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Time for which an entry waits for earlier entries of other streams.
const DELAY: Duration = Duration::from_millis(250);
/// Maximum number of entries that are held back.
const MAX_HELD: usize = 200_000;
/// Maximum size of the entries that are held back, in bytes.
const MAX_HELD_BYTES: usize = 64 << 20;

/// Entries of [`Follow`](crate::Follow) in order of time. Entries of the same time keep the order in which
/// they were read. The host drains the streams of a session one after the other, so each entry waits a
/// quarter of a second for entries with earlier times. At most 200,000 entries with at most 64 MiB in total
/// wait.
///
/// `T` is the caller's form of an entry.
#[derive(Debug)]
pub struct Order<T> {
    held: BTreeMap<(i64, u64), Held<T>>,
    /// Size of the entries that are held back, in bytes.
    bytes: usize,
    entries: u64,
    /// Latest Unix time of an entry that was read, in nanoseconds.
    last: i64,
    /// End of each round, with the latest time of all entries that were read until the end of the round.
    rounds: VecDeque<(Instant, i64)>,
    /// Latest time of all entries that were given out.
    given: i64,
    late: Late,
}

#[derive(Debug)]
struct Held<T> {
    bytes: usize,
    entry: T,
}

/// Counts of late events: events that came after events with later times had been given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Late {
    /// Number of late events.
    pub events: u64,
    /// Largest delay of a late event in nanoseconds: the latest time that was given out before, minus the
    /// time of the event.
    pub most_ns: i64,
}

impl<T> Order<T> {
    /// Makes an empty order for a session that started at this Unix time, in nanoseconds.
    pub fn new(started_unix_ns: i64) -> Order<T> {
        Order {
            held: BTreeMap::new(),
            bytes: 0,
            entries: 0,
            last: started_unix_ns,
            rounds: VecDeque::new(),
            given: i64::MIN,
            late: Late::default(),
        }
    }

    /// Adds an event of this Unix time, in nanoseconds. `bytes` is the memory that the event takes.
    pub fn event(&mut self, ts_ns: i64, bytes: usize, event: T) {
        if ts_ns < self.given {
            self.late.events += 1;
            self.late.most_ns = self.late.most_ns.max(self.given.saturating_sub(ts_ns));
        }
        self.push(ts_ns, bytes, event);
    }

    /// Adds a place where events were lost. If the time is unknown, the losses get the place of the latest
    /// entry.
    pub fn lost(&mut self, ts_ns: Option<i64>, bytes: usize, lost: T) {
        self.push(ts_ns.unwrap_or(self.last), bytes, lost);
    }

    fn push(&mut self, time: i64, bytes: usize, entry: T) {
        self.last = self.last.max(time);
        self.entries += 1;
        self.bytes += bytes;
        self.held.insert((time, self.entries), Held { bytes, entry });
    }

    /// Removes and returns the first entry, if the entry need not wait any more. An entry need not wait if
    /// its time is at most `until`, or if too many entries wait.
    pub fn pop(&mut self, until: i64) -> Option<T> {
        let first = self.held.first_entry()?;
        let (time, _) = *first.key();
        if time > until && !self.is_full() {
            return None;
        }
        self.given = self.given.max(time);
        let (_, Held { bytes, entry }) = self.held.pop_first()?;
        self.bytes -= bytes;
        Some(entry)
    }

    fn is_full(&self) -> bool {
        self.held.len() > MAX_HELD || self.bytes > MAX_HELD_BYTES
    }

    /// Ends a [round](crate::Round). Returns the latest time of the entries that have waited long enough.
    pub fn settle(&mut self, now: Instant, more_after: Option<i64>) -> i64 {
        self.rounds.push_back((now, self.last));
        let mut until = i64::MIN;
        while let Some((at, last)) = self.rounds.front()
            && now.duration_since(*at) >= DELAY
        {
            until = until.max(*last);
            self.rounds.pop_front();
        }
        // Entries later than `after` wait, because a stream that has further packets may still give earlier
        // entries.
        more_after.map_or(until, |after| {
            until.max(after.saturating_sub(DELAY.as_nanos() as i64)).min(after)
        })
    }

    /// Returns the number of events that came too late for their place, and the largest delay.
    pub fn late(&self) -> Late {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(times: &[i64]) -> Order<i64> {
        let mut order = Order::new(0);
        times.iter().for_each(|time| order.event(*time, 1, *time));
        order
    }

    fn pop(order: &mut Order<i64>, until: i64) -> Vec<i64> {
        std::iter::from_fn(|| order.pop(until)).collect()
    }

    #[test]
    fn events_wait_for_earlier_ones_of_later_rounds() {
        let begun = Instant::now();
        let mut order = order(&[10]);
        let first = order.settle(begun, None);
        assert!(pop(&mut order, first).is_empty());
        order.event(5, 1, 5);
        order.event(20, 1, 20);

        let until = order.settle(begun + DELAY, None);

        assert_eq!(pop(&mut order, until), [5, 10]);
        assert_eq!(order.late(), Late::default());
    }

    #[test]
    fn an_event_that_comes_too_late_is_given_and_counted() {
        let mut order = order(&[10]);
        assert_eq!(pop(&mut order, 10), [10]);

        order.event(3, 1, 3);
        order.lost(Some(1), 1, 1);

        assert_eq!(pop(&mut order, 10), [1, 3]);
        assert_eq!(order.late(), Late { events: 1, most_ns: 7 });
    }

    #[test]
    fn an_event_can_be_late_by_more_than_all_of_time() {
        let mut order = order(&[i64::MAX]);
        assert_eq!(pop(&mut order, i64::MAX).len(), 1);

        order.event(i64::MIN, 1, 0);

        assert_eq!(order.late(), Late { events: 1, most_ns: i64::MAX });
    }

    #[test]
    fn a_stream_that_has_more_is_not_overtaken() {
        let (begun, second) = (Instant::now(), 1_000_000_000);
        let mut order = order(&[second, 3 * second]);
        order.settle(begun, Some(second));

        let until = order.settle(begun + DELAY, Some(second));

        assert_eq!(until, second);
        assert_eq!(pop(&mut order, until), [second]);
    }

    #[test]
    fn a_full_order_gives_its_first() {
        let mut order = order(&[]);
        (0..200_002).for_each(|time| order.event(time, 1, time));

        assert_eq!(pop(&mut order, i64::MIN), [0, 1]);
        order.event(-1, MAX_HELD_BYTES, -1);
        assert_eq!(pop(&mut order, i64::MIN), [-1]);
    }
}
