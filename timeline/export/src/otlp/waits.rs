// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Keeps the waits of threads in bounded memory. If there are too many waits, the shortest waits are
//! forgotten.

use hypertrace_timeline::regions::{CauseNumber, Interval, Part, ThreadInterval};
use hypertrace_timeline::{Consumer, Error};
use std::collections::HashMap;

/// Maximum number of waits that are kept. A wait takes 24 bytes.
const MAX_WAITS: usize = 1 << 20;

/// A time in which a thread was ready or asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Unix time of the wait's beginning in nanoseconds.
    pub from: i64,
    /// Unix time of the wait's end in nanoseconds.
    pub to: i64,
    /// Part of the wait: runnable or blocked, for example.
    pub part: Part,
    pub cause: CauseNumber,
}

/// The waits of all threads.
#[derive(Debug, Default)]
pub struct Waits {
    /// For each session and thread, the waits in the order of time.
    of_threads: HashMap<(usize, u32), Vec<Wait>>,
    count: usize,
    /// Least length of a wait that is kept, in nanoseconds.
    pub least_ns: u64,
}

impl Consumer for Waits {
    type Error = Error;

    fn interval(&mut self, of: &ThreadInterval<'_>) -> Result<(), Error> {
        let interval = of.interval;
        if interval.part.has_causes() && interval.length() > 0 {
            let Interval { from, to, part, cause, .. } = *interval;
            let wait = Wait { from, to, part, cause };
            self.keep((of.session, of.tid), wait);
        }
        Ok(())
    }
}

impl Waits {
    fn keep(&mut self, thread: (usize, u32), wait: Wait) {
        if wait.to.abs_diff(wait.from) < self.least_ns {
            return;
        }
        self.of_threads.entry(thread).or_default().push(wait);
        self.count += 1;
        if self.count > MAX_WAITS {
            self.shorten();
        }
    }

    /// Forgets the shortest waits, at least half of all waits.
    fn shorten(&mut self) {
        let ns = |wait: &Wait| wait.to.abs_diff(wait.from);
        let mut all = Vec::from_iter(self.of_threads.values().flatten().map(ns));
        let middle = all.len() / 2;
        self.least_ns = *all.select_nth_unstable(middle).1 + 1;
        for waits in self.of_threads.values_mut() {
            waits.retain(|wait| ns(wait) >= self.least_ns);
            waits.shrink_to(waits.len() * 2);
        }
        self.count = self.of_threads.values().map(Vec::len).sum();
    }

    /// Returns the waits of a session's thread that overlap a range of time.
    pub fn within(&self, session: usize, tid: u32, (from, to): (i64, i64)) -> &[Wait] {
        let Some(waits) = self.of_threads.get(&(session, tid)) else { return &[] };
        let begin = waits.partition_point(|wait| wait.to <= from);
        let end = waits.partition_point(|wait| wait.from < to);
        &waits[begin..end.max(begin)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes waits of a thread with these lengths. Before each wait there is a pause of 1 ns.
    fn waits(lengths: impl Iterator<Item = i64>) -> Waits {
        let mut waits = Waits::default();
        let mut from = 0;
        for length in lengths {
            waits.keep((0, 7), Wait { from, to: from + length, part: Part::Runnable, cause: 0 });
            from += length + 1;
        }
        waits
    }

    #[test]
    fn those_in_a_time_are_found() {
        let waits = waits([10, 20, 30].into_iter());
        let lengths = |times| {
            Vec::from_iter(waits.within(0, 7, times).iter().map(|wait| wait.to - wait.from))
        };
        assert_eq!(lengths((0, 62)), [10, 20, 30]);
        assert_eq!(lengths((10, 32)), [20]);
        assert_eq!(lengths((9, 33)), [10, 20, 30]);
        assert_eq!((lengths((10, 11)), lengths((62, 99))), (vec![], vec![]));
        assert_eq!(waits.within(1, 7, (0, 62)), []);
    }

    #[test]
    fn of_too_many_the_longest_stay() {
        let waits = waits((0..3 * MAX_WAITS as i64).map(|n| 1 + n % 1000));
        assert!(waits.count <= MAX_WAITS, "{}", waits.count);
        let left = waits.within(0, 7, (0, i64::MAX));
        assert_eq!(left.len(), waits.count);
        assert!(waits.least_ns > 1 && waits.least_ns <= 1000, "{}", waits.least_ns);
        assert!(left.iter().any(|wait| wait.to - wait.from == 1000));
        assert!(left.windows(2).all(|pair| pair[0].to < pair[1].from), "in order");
    }
}
