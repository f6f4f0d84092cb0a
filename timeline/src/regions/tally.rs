// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The sums of a thread's proven time, and the regions that wait for proven time.
//!
//! A region's parts are the sums at its end minus the sums at its beginning. Both sums are known when a
//! proven interval has passed both times.

use super::account::Account;
use super::parts::{Divided, Interval, Reason, Sums};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Number of intervals for which memory stays allocated until the next pass.
const MAX_SPARE: usize = 16;

/// The sums of a thread up to its last proven interval, and its regions.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sums: Sums,
    /// For each id of an open region, the time of the region's beginning, and the sums at the beginning if
    /// known. `free`: numbers that no region has. `early`: ids of regions whose sums at the beginning are not
    /// known.
    open: Vec<(i64, Option<Sums>)>,
    free: Vec<u32>,
    early: Vec<u32>,
    /// Indices in the store of regions that have ended and wait, in the order of their ends.
    ended: VecDeque<u32>,
    /// Regions whose beginning was not proven when the region ended: the time of the beginning, and the
    /// region's index.
    late: BinaryHeap<Reverse<(i64, u32)>>,
    /// Sums at the beginnings of regions that began in proven time, in the order of the regions' ends. All
    /// regions of this list were open at the end of the proven time. So there are no more entries than
    /// regions that can be open at once.
    begun: VecDeque<(u32, Sums)>,
    /// Last proven intervals, if regions waited for these intervals. `until` is the time up to which
    /// intervals are known.
    passed: Passed,
    until: i64,
    /// All proven intervals, if they are wanted.
    log: Option<Vec<Interval>>,
}

/// Proven intervals, with the sums at each of their borders.
#[derive(Debug, Default)]
struct Passed {
    intervals: Vec<Interval>,
    /// Sums before each interval, and after the last interval.
    sums: Vec<Sums>,
}

impl Passed {
    /// Returns the sums at a time.
    fn at(&self, time: i64) -> Sums {
        let at = self.intervals.partition_point(|interval| interval.to <= time);
        let mut sums = self.sums[at].clone();
        if let Some(interval) = self.intervals.get(at) {
            sums.add(&interval.within(i64::MIN, time));
        }
        sums
    }
}

impl Tally {
    /// Makes the tally of a thread, with a log of its intervals if a log is wanted.
    pub fn new(has_log: bool) -> Tally {
        Tally { log: has_log.then(Vec::new), ..Tally::default() }
    }

    /// Begins a region. Returns the region's number, which stays taken until [`Tally::end`] or
    /// [`Tally::forget`]. `is_known`: whether all intervals before the region were added.
    pub fn begin(&mut self, is_known: bool, time: i64) -> u32 {
        let region = (time, is_known.then(|| self.sums.clone()));
        let number = match self.free.pop() {
            Some(number) => {
                self.open[number as usize] = region;
                number
            }
            None => {
                self.open.push(region);
                (self.open.len() - 1) as u32
            }
        };
        if !is_known {
            self.early.push(number);
        }
        number
    }

    /// Begins another region at the time at which an open region began. Returns the new region's number.
    pub fn fork(&mut self, number: u32) -> u32 {
        let (time, sums) = self.open[number as usize].clone();
        let forked = self.begin(sums.is_some(), time);
        self.open[forked as usize].1 = sums;
        forked
    }

    /// Ends a region. `index` is the region's index in the store. Returns the region's sums if they are
    /// known. If the sums are not known yet, the region waits for the sums.
    pub fn end(&mut self, is_known: bool, number: u32, index: u32) -> Option<Divided> {
        let (begin, _) = self.open[number as usize];
        match self.forget(number) {
            Some(begun) if is_known => return Some(self.sums.since(&begun)),
            Some(begun) => self.begun.push_back((index, begun)),
            None => self.late.push(Reverse((begin, index))),
        }
        self.ended.push_back(index);
        None
    }

    /// Forgets an open region. Returns the sums at the region's beginning if the sums are known.
    pub fn forget(&mut self, number: u32) -> Option<Sums> {
        self.free.push(number);
        let begun = self.open[number as usize].1.take();
        if begun.is_none()
            && let Some(at) = self.early.iter().rposition(|early| *early == number)
        {
            self.early.swap_remove(at);
        }
        begun
    }

    /// Returns whether no region is open or waits.
    pub fn is_unused(&self) -> bool {
        self.free.len() == self.open.len() && self.ended.is_empty()
    }

    /// Adds the proven intervals of the account. `take` is called with each interval, and with a flag that
    /// says whether the interval is the sum of several intervals. Returns whether regions have ended and
    /// waited for these intervals.
    pub fn pass(&mut self, account: &mut Account, mut take: impl FnMut(&Interval, bool)) -> bool {
        if !account.has_proven() {
            return false;
        }
        let has_regions = self.begin_pass();
        account.take_proven(|interval, is_merged| {
            self.add(interval, has_regions, !is_merged);
            take(interval, is_merged);
        });
        self.end_pass(i64::MAX);
        if let Some(reason) = account.take_exit() {
            self.sums.exits[usize::from(reason)].count += 1;
        }
        !self.ended.is_empty()
    }

    /// Adds consecutive intervals to the sums. An interval comes with the reason of an exit if the exit
    /// begins with the interval.
    pub fn pass_each(&mut self, intervals: &[(Interval, Option<Reason>)]) {
        let Some((last, _)) = intervals.last() else { return };
        let has_regions = self.begin_pass();
        for (interval, exit) in intervals {
            if let Some(reason) = exit {
                self.sums.exits[usize::from(*reason)].count += 1;
                // The exit counts before the interval: if a region begins or ends within the interval, the
                // exit began earlier.
                if let Some(before) = self.passed.sums.last_mut().filter(|_| has_regions) {
                    *before = self.sums.clone();
                }
            }
            self.sums.forget_cpu();
            self.add(interval, has_regions, true);
        }
        self.sums.forget_cpu();
        self.end_pass(last.to);
    }

    /// Begins to add intervals. Returns whether regions wait for the intervals.
    fn begin_pass(&mut self) -> bool {
        let has_regions = !self.early.is_empty() || !self.ended.is_empty();
        if self.is_unused() {
            self.sums.forget_waits();
        }
        if has_regions {
            let Tally { sums, passed, .. } = self;
            passed.intervals.clear();
            passed.intervals.shrink_to(MAX_SPARE);
            passed.sums.clear();
            passed.sums.shrink_to(MAX_SPARE);
            passed.sums.push(sums.clone());
        }
        has_regions
    }

    fn add(&mut self, interval: &Interval, has_regions: bool, is_logged: bool) {
        self.sums.add(interval);
        if has_regions {
            self.passed.intervals.push(*interval);
            self.passed.sums.push(self.sums.clone());
        }
        if let Some(log) = self.log.as_mut().filter(|_| is_logged) {
            add(log, interval);
        }
    }

    /// Ends the adding of intervals. All intervals up to this time were added.
    fn end_pass(&mut self, until: i64) {
        self.until = until;
        let Tally { early, open, passed, .. } = self;
        early.retain(|number| {
            let (begin, sums) = &mut open[*number as usize];
            if *begin <= until {
                *sums = Some(passed.at(*begin));
            }
            *begin > until
        });
    }

    /// Returns the next region that ended before the end of the last proven intervals, and the region's sums.
    /// `times` returns the times at which a region began and ended.
    pub fn next_passed(&mut self, times: impl Fn(u32) -> (i64, i64)) -> Option<(u32, Divided)> {
        let next = self.ended.front().map(|index| (*index, times(*index)));
        let Some((index, (begin, end))) = next.filter(|(_, (_, end))| *end <= self.until) else {
            self.keep_begun();
            return None;
        };
        self.ended.pop_front();
        let has_begun = self.begun.front().is_some_and(|(of, _)| *of == index);
        let begun = if has_begun { self.begun.pop_front() } else { None };
        let begun = begun.map_or_else(|| self.passed.at(begin), |(_, sums)| sums);
        Some((index, self.passed.at(end).since(&begun)))
    }

    /// For each region that began within the last proven intervals but ended after them, keeps the sums at
    /// the region's beginning.
    fn keep_begun(&mut self) {
        let Tally { late, ended, begun, passed, until, .. } = self;
        while let Some(Reverse((begin, index))) = late.peek().copied().filter(|of| of.0.0 <= *until)
        {
            late.pop();
            // A region with a smaller index than the first entry of `ended` does not wait any more, because
            // indices are in the order of ends.
            if ended.front().is_some_and(|first| index >= *first) {
                let at = begun.partition_point(|(of, _)| *of < index);
                begun.insert(at, (index, passed.at(begin)));
            }
        }
    }

    /// Removes and returns the intervals of the log. Unless `has_ended`, the last interval stays, because
    /// this interval may become longer.
    pub fn drain_log(&mut self, has_ended: bool) -> impl Iterator<Item = Interval> {
        let log = self.log.get_or_insert_default();
        let end = if has_ended { log.len() } else { log.len().saturating_sub(1) };
        log.drain(..end)
    }

    /// Returns the intervals of the log.
    pub fn log(&self) -> &[Interval] {
        self.log.as_deref().unwrap_or_default()
    }

    /// Removes the intervals of the log that end before a time.
    pub fn forget_before(&mut self, time: i64) {
        if let Some(log) = &mut self.log {
            log.drain(..log.partition_point(|interval| interval.to <= time));
            log.shrink_to_fit();
        }
    }

    /// Removes and returns the log.
    pub fn take_log(&mut self) -> Vec<Interval> {
        self.log.take().unwrap_or_default()
    }
}

/// Adds an interval to a log. Joins the interval with the previous interval, if both have the same part,
/// reason and cause.
fn add(log: &mut Vec<Interval>, interval: &Interval) {
    match log.last_mut() {
        Some(last)
            if (last.to, last.part, last.reason, last.cause)
                == (interval.from, interval.part, interval.reason, interval.cause) =>
        {
            (last.to, last.ended_by) = (interval.to, interval.ended_by);
        }
        _ => log.push(*interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions::parts::Part;

    #[test]
    fn regions_have_the_time_of_all_batches_of_intervals_whenever_they_ended() {
        let mut tally = Tally::default();
        let mut regions = Vec::new();
        // Each region is inside the previous region, and no time of these regions is proven when they end.
        let numbers = [5, 15, 25].map(|begin| tally.begin(false, begin));
        for (number, (begin, end)) in numbers.into_iter().zip([(5, 95), (15, 85), (25, 75)]).rev() {
            assert!(tally.end(false, number, regions.len() as u32).is_none());
            regions.push((begin, end));
        }

        let mut found = Vec::new();
        for from in (0..100).step_by(10) {
            let part = if from % 20 == 0 { Part::Guest } else { Part::Stolen };
            let to = from + 10;
            tally.pass_each(&[(
                Interval { from, to, part, reason: 0, cause: 0, ended_by: None },
                None,
            )]);
            while let Some((index, divided)) = tally.next_passed(|index| regions[index as usize]) {
                let (guest, stolen) =
                    (divided.times.get(Part::Guest), divided.times.get(Part::Stolen));
                found.push((index, guest, stolen, divided.times.total()));
            }
        }

        assert_eq!(found, [(0, 25, 25, 50), (1, 35, 35, 70), (2, 45, 45, 90)]);
        assert!(tally.is_unused() && tally.late.is_empty() && tally.begun.is_empty());
    }
}
