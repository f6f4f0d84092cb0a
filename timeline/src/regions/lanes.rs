// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lanes: the intervals of all threads of a host around chosen regions.

use super::parts::{Account, Interval};
use crate::sort;
use std::collections::VecDeque;

/// Most windows of a pass.
pub const MOST_WINDOWS: usize = 64;
/// Most lanes of a window.
const MOST_LANES: usize = 32;
/// Most intervals of a lane.
const MOST_INTERVALS: usize = 1000;

/// A region, and a time around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of the session.
    pub session: usize,
    /// Client of the region.
    pub client: Option<u32>,
    /// Beginning of the region, Unix time in nanoseconds.
    pub begin: i64,
    /// End of the region.
    pub end: i64,
    /// Time before and after it, nanoseconds.
    pub around: u64,
}

impl Window {
    /// Returns the beginning of all that is shown.
    pub fn from(&self) -> i64 {
        self.begin.saturating_sub_unsigned(self.around)
    }

    /// Returns the end of all that is shown.
    pub fn to(&self) -> i64 {
        self.end.saturating_add_unsigned(self.around)
    }
}

/// The lanes of a window.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Lanes {
    /// That of the client's thread is the first one.
    pub lanes: Vec<Lane>,
    /// Whether the first lane is that of the client's thread.
    pub has_own: bool,
    /// Number of threads without a lane, as there are too many.
    pub left_out: usize,
}

/// The intervals of a thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lane {
    /// Name of the thread. Chosen by the program: escape it.
    pub name: String,
    /// Number of the thread.
    pub tid: u32,
    /// In order. Times are Unix times in nanoseconds.
    pub intervals: Vec<Interval>,
    /// Whether the intervals are all of the time: only the last ones of a thread are known, and
    /// of those the ones within the region and the longest are kept.
    pub is_whole: bool,
}

impl Lane {
    /// Removes intervals until so many are left: first those outside of the region, and the
    /// shortest first.
    pub fn shorten(&mut self, most: usize, window: &Window) {
        let excess = self.intervals.len().saturating_sub(most);
        if excess == 0 {
            return;
        }
        self.is_whole = false;
        let mut order: Vec<usize> = (0..self.intervals.len()).collect();
        sort::by_key(&mut order, |at| {
            let interval = &self.intervals[*at];
            let is_within = interval.to > window.begin && interval.from < window.end;
            (is_within, interval.to - interval.from)
        });
        order.truncate(excess);
        order.sort_unstable();
        let mut removed = order.into_iter().peekable();
        let mut at = 0..;
        self.intervals.retain(|_| removed.next_if_eq(&at.next().unwrap_or(0)).is_none());
    }
}

/// A lane whose intervals are not known yet.
#[derive(Debug)]
struct Owed {
    /// Session and thread.
    of: (usize, usize),
    window: usize,
    lane: usize,
}

/// The windows of a pass.
#[derive(Debug)]
pub(super) struct Windows {
    all: Vec<(Window, Lanes)>,
    /// Indices of the windows that have not ended, the first end first.
    open: VecDeque<usize>,
    owed: Vec<Owed>,
    /// End of the next window.
    next: i64,
}

impl Windows {
    pub fn new(windows: &[Window]) -> Windows {
        let all: Vec<_> =
            windows.iter().take(MOST_WINDOWS).map(|window| (*window, Lanes::default())).collect();
        let mut open: Vec<usize> = (0..all.len()).collect();
        sort::by_key(&mut open, |index| all[*index].0.to());
        let mut windows = Windows { all, open: open.into(), owed: Vec::new(), next: i64::MAX };
        windows.set_next();
        windows
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether all lanes are known.
    pub fn is_done(&self) -> bool {
        self.open.is_empty() && self.owed.is_empty()
    }

    /// Returns whether a window ends at this time or earlier.
    pub fn has_ended(&self, time: i64) -> bool {
        time >= self.next
    }

    /// Takes the next window that ends at this time or earlier.
    pub fn ended(&mut self, time: i64) -> Option<(usize, Window)> {
        let index = *self.open.front().filter(|index| self.all[**index].0.to() <= time)?;
        self.open.pop_front();
        self.set_next();
        Some((index, self.all[index].0))
    }

    fn set_next(&mut self) {
        self.next = self.open.front().map_or(i64::MAX, |index| self.all[*index].0.to());
    }

    /// Adds a lane. Returns its number, if there is space.
    pub fn add(&mut self, window: usize, name: String, tid: u32) -> Option<usize> {
        let lanes = &mut self.all[window].1;
        if lanes.lanes.len() == MOST_LANES {
            lanes.left_out += 1;
            return None;
        }
        lanes.lanes.push(Lane { name, tid, intervals: Vec::new(), is_whole: false });
        Some(lanes.lanes.len() - 1)
    }

    /// Notes that a lane waits for the intervals of a thread.
    pub fn owe(&mut self, of: (usize, usize), (window, lane): (usize, usize)) {
        // At most one for each lane of each window.
        self.owed.push(Owed { of, window, lane });
    }

    /// Notes that the first lane is that of the client's thread.
    pub fn set_own(&mut self, window: usize) {
        self.all[window].1.has_own = true;
    }

    /// Takes the intervals of a thread's lanes that are proven up to this time.
    pub fn settle(&mut self, of: (usize, usize), account: &Account, until: i64) {
        let all = &mut self.all;
        self.owed.retain(|owed| {
            let (window, lanes) = &mut all[owed.window];
            if owed.of != of || until < window.to() {
                return true;
            }
            let lane = &mut lanes.lanes[owed.lane];
            (lane.intervals, lane.is_whole) = account.intervals(window.from(), window.to());
            lane.shorten(MOST_INTERVALS, window);
            false
        });
    }

    pub fn into_lanes(self) -> Vec<Lanes> {
        self.all.into_iter().map(|(_, lanes)| lanes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions::Part;

    #[test]
    fn intervals_in_the_region_and_the_longest_are_kept_in_order() {
        let of = |lengths: &[i64]| {
            let all = lengths.iter().enumerate().map(|(at, length)| {
                let from = at as i64 * 100;
                Interval { from, to: from + length, part: Part::Vmm, reason: 0, ended_by: None }
            });
            Lane { name: String::new(), tid: 1, intervals: all.collect(), is_whole: true }
        };
        let window = |begin, end| Window { session: 0, client: None, begin, end, around: 0 };
        for most in 0..9 {
            let mut lane = of(&[5, 1, 9, 5, 5, 2, 7]);
            lane.shorten(most, &window(0, 0));
            assert_eq!((lane.intervals.len(), lane.is_whole), (most.min(7), most >= 7));
            assert!(lane.intervals.is_sorted_by_key(|interval| interval.from));
        }
        let mut lane = of(&[5, 1, 9, 5, 5, 2, 7]);
        lane.shorten(4, &window(100, 105));
        let lengths: Vec<i64> = lane.intervals.iter().map(|i| i.to - i.from).collect();
        assert_eq!(lengths, [1, 9, 5, 7]);
    }
}
