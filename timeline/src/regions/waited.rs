// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The times that threads waited in the regions that are counted. Each thread's time counts once, although a
//! region may be inside another region.

use super::causes::{Causes, Unknown};
use super::parts::{Divided, Part, between};
use std::collections::HashMap;

/// Maximum number of spans of a thread, of 48 bytes each. If there are more spans, the first two spans become
/// one span, which includes the time between them.
const MAX_SPANS: usize = 256;

/// Time in which threads waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waited {
    /// All time in which threads waited, in nanoseconds.
    pub all_ns: u64,
    /// Time in nanoseconds for which the cause of the wait is not known, by [`Unknown`]. If the recording has
    /// no wake-ups, such time is in [`Unknown::NotRecorded`].
    pub unknown_ns: [u64; Unknown::ALL.len()],
}

impl Waited {
    /// Returns the time that the thread of a region waited.
    fn of(divided: &Divided) -> Waited {
        let waits =
            divided.times.iter().filter(|(part, _)| part.has_causes() || *part == Part::OffCpu);
        let all_ns: u64 = waits.map(|(_, ns)| ns).sum();
        let mut unknown_ns = [0; Unknown::ALL.len()];
        let mut known = 0;
        for ((_, cause), ns) in &divided.detail.waits {
            known += ns;
            if let Some(why) = Causes::unknown(*cause) {
                unknown_ns[why as usize] += ns;
            }
        }
        // Nobody searched for the cause of the waits that remain.
        unknown_ns[Unknown::NotRecorded as usize] += all_ns.saturating_sub(known);
        Waited { all_ns, unknown_ns }
    }

    fn add(self, other: Waited) -> Waited {
        let unknown = |at: usize| self.unknown_ns[at].saturating_add(other.unknown_ns[at]);
        Waited {
            all_ns: self.all_ns.saturating_add(other.all_ns),
            unknown_ns: std::array::from_fn(unknown),
        }
    }

    /// Divides the time into `of` equal shares, and returns the sum of `part` shares.
    fn share(self, part: u64, of: u64) -> Waited {
        let share = |ns: u64| (u128::from(ns) * u128::from(part) / u128::from(of.max(1))) as u64;
        Waited { all_ns: share(self.all_ns), unknown_ns: self.unknown_ns.map(share) }
    }
}

/// A time that regions of a thread cover.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: i64,
    to: i64,
    waited: Waited,
}

/// For each session and thread, the times that regions cover. Regions that are divided along a path count
/// under no thread.
#[derive(Debug, Default)]
pub(super) struct Spans(HashMap<(u16, u16), Vec<Span>>);

impl Spans {
    /// Adds a region. Regions of a thread come in the order of their ends.
    pub fn add(&mut self, thread: (u16, u16), (mut from, to): (i64, i64), divided: &Divided) {
        let mut waited = Waited::of(divided);
        if waited.all_ns == 0 {
            return;
        }
        let spans = self.0.entry(thread).or_default();
        // A region around other regions includes their time, so the spans of the other regions are dropped.
        while spans.pop_if(|span| span.from >= from).is_some() {}
        if let Some(last) = spans.last().filter(|last| last.to > from) {
            // Both regions overlap, and neither region is inside the other, so nothing says where in the
            // regions the thread waited. The new region counts in proportion to its time after the last span.
            waited = waited.share(between((last.to, to)), between((from, to)));
            from = last.to.min(to);
        }
        if spans.len() == MAX_SPANS {
            let second = spans.remove(1);
            let first = &mut spans[0];
            (first.to, first.waited) = (second.to, first.waited.add(second.waited));
        }
        spans.push(Span { from, to, waited });
    }

    /// Returns the sum of all threads.
    pub fn sum(&self) -> Waited {
        let all = self.0.values().flatten().map(|span| span.waited);
        all.fold(Waited::default(), Waited::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions::Times;
    use crate::regions::parts::Detail;

    /// Adds a region whose thread waited for half of the region's time. A tenth of the region's time is a
    /// wait with an unknown cause, and the other waits are for a thread.
    fn add(spans: &mut Spans, thread: u16, from: i64, to: i64) {
        let ns = between((from, to));
        let mut times = Times::default();
        (times.0[Part::Guest as usize], times.0[Part::Blocked as usize]) = (ns / 2, ns / 2);
        let unknown = ns / 10;
        let waits = [(9, ns / 2 - unknown), (Unknown::Missing.number(), unknown)];
        let waits = waits.map(|(cause, ns)| ((Part::Blocked, cause), ns)).into();
        let detail = Detail { waits, ..Detail::default() };
        let divided = Divided { times, detail, ..Divided::default() };
        spans.add((0, thread), (from, to), &divided);
    }

    fn waited(spans: &Spans) -> (u64, u64) {
        let Waited { all_ns, unknown_ns } = spans.sum();
        assert_eq!((unknown_ns[0], unknown_ns[2]), (0, 0));
        (all_ns, unknown_ns[1])
    }

    #[test]
    fn regions_inside_others_count_once_and_other_threads_too() {
        let mut spans = Spans::default();
        for (from, to) in [(100, 200), (300, 400), (50, 450), (600, 700), (0, 1_000)] {
            add(&mut spans, 0, from, to);
        }
        assert_eq!(waited(&spans), (500, 100));
        add(&mut spans, 1, 0, 1_000);
        assert_eq!(waited(&spans), (1_000, 200));
    }

    #[test]
    fn of_regions_that_overlap_the_second_counts_from_the_end_of_the_first() {
        let mut spans = Spans::default();
        add(&mut spans, 0, 0, 1_000);
        add(&mut spans, 0, 500, 1_500);
        assert_eq!(waited(&spans), (750, 150));
    }

    #[test]
    fn more_spans_than_are_kept_are_still_inside_the_region_around_them() {
        let mut spans = Spans::default();
        for n in 0..10_000 {
            add(&mut spans, 0, n * 100, n * 100 + 50);
        }
        assert_eq!(waited(&spans), (250_000, 50_000));
        assert!(spans.0[&(0, 0)].len() <= MAX_SPANS);
        add(&mut spans, 0, 0, 1_000_000);
        assert_eq!(waited(&spans), (500_000, 100_000));
    }
}
