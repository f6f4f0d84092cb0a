// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lanes: the intervals of all threads of a host around chosen regions.

use super::causes::CauseNumber;
use super::host::Thread;
use super::parts::{Interval, Part};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of lanes of a window.
const MAX_LANES: usize = 32;
/// Maximum number of intervals of a lane.
const MAX_INTERVALS: usize = 1000;
/// Maximum number of intervals before a window that are searched for an event of the kernel.
const MAX_BEFORE: usize = 1000;

/// A region, and a time around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Unix time of the region's beginning in nanoseconds.
    pub begin: i64,
    /// Unix time of the region's end in nanoseconds.
    pub end: i64,
    /// Time that is shown before and after the region, in nanoseconds.
    pub around: u64,
}

impl Window {
    /// Returns the beginning of the window.
    pub fn from(&self) -> i64 {
        self.begin.saturating_sub_unsigned(self.around)
    }

    /// Returns the end of the window.
    pub fn to(&self) -> i64 {
        self.end.saturating_add_unsigned(self.around)
    }
}

/// The lanes of a window.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Lanes {
    /// Lanes of threads. If the client's thread has a lane, this lane comes first.
    pub lanes: Vec<Lane>,
    /// Whether the first lane is the lane of the client's thread.
    pub has_own: bool,
    /// Number of threads without a lane, because there are too many threads.
    pub left_out: usize,
}

/// The intervals of a thread.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lane {
    /// Name of the thread. The program chooses the name: escape it.
    pub name: String,
    /// Id of the thread.
    pub tid: u32,
    /// Intervals in order. Times are Unix times in nanoseconds.
    pub intervals: Vec<Interval>,
    /// Turns in order. While the thread had a CPU, or could run and waited for a CPU, the turns show which
    /// thread had this CPU. At other times, the thread needed no CPU, or it is not known what the thread did.
    /// `None` if only the session's own threads were recorded.
    pub turns: Option<Vec<Turn>>,
    /// Whether intervals and turns cover all of the time. If there are too many intervals or turns, entries
    /// outside of the region are removed first, and short entries before long entries.
    pub is_whole: bool,
}

/// A time in which one thread had a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turn {
    /// Unix time of the beginning in nanoseconds.
    pub from: i64,
    /// Unix time of the end in nanoseconds.
    pub to: i64,
    /// Id of the CPU, if it is known.
    pub cpu: Option<u16>,
    /// Who had the CPU while the lane's thread waited: an index of
    /// [`Regions::causes`](super::Regions::causes). `None` if the lane's thread had the CPU.
    pub other: Option<CauseNumber>,
}

impl Lane {
    /// Removes intervals until `most` intervals are left, and turns until `most` turns are left. Entries
    /// outside of the region are removed first, and short entries before long entries.
    pub fn shorten(&mut self, most: usize, window: &Window) {
        let times = |interval: &Interval| (interval.from, interval.to);
        self.is_whole &= shorten(&mut self.intervals, times, most, window);
        if let Some(turns) = &mut self.turns {
            self.is_whole &= shorten(turns, |turn| (turn.from, turn.to), most, window);
        }
    }
}

/// Removes entries until `most` entries are left. Returns whether nothing had to be removed.
fn shorten<T>(
    all: &mut Vec<T>,
    times: impl Fn(&T) -> (i64, i64),
    most: usize,
    window: &Window,
) -> bool {
    let excess = all.len().saturating_sub(most);
    if excess == 0 {
        return true;
    }
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|at| {
        let (from, to) = times(&all[*at]);
        (to > window.begin && from < window.end, to - from)
    });
    order.truncate(excess);
    order.sort_unstable();
    let mut removed = order.into_iter().peekable();
    let mut at = 0..;
    all.retain(|_| removed.next_if_eq(&at.next().unwrap_or(0)).is_none());
    false
}

/// Returns the turns of the CPUs that a thread had or waited for. If an event of the kernel ends an interval
/// in which the thread had a CPU or waited for a CPU, the event is on this CPU.
fn turns(intervals: &[Interval]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for interval in intervals {
        let &Interval { from, to, part, cause, .. } = interval;
        let other = match part {
            part if part.is_on_cpu() => None,
            Part::Stolen | Part::Behind | Part::Runnable => Some(cause),
            _ => continue,
        };
        let last = turns.last_mut().filter(|last| last.to == from);
        // After an event of the program, or of the VMM, a thread stays on its CPU.
        let cpu = interval.cpu().or(last.as_ref().and_then(|last| last.cpu));
        match last {
            Some(last) if (last.cpu, last.other) == (cpu, other) => last.to = to,
            _ => turns.push(Turn { from, to, cpu, other }),
        }
    }
    turns
}

/// A thread of a session's host, and its intervals.
#[derive(Debug)]
pub(super) struct Logged {
    name: Option<Arc<str>>,
    tid: u32,
    is_recorded: bool,
    intervals: Vec<Interval>,
}

impl Logged {
    pub fn of(thread: Thread) -> Logged {
        let Thread { name, tid, recording, mut tally, .. } = thread;
        Logged { name, tid, is_recorded: recording.is_some(), intervals: tally.take_log() }
    }

    /// Returns the thread's number and name.
    pub fn thread(&self) -> (u32, Option<&str>) {
        (self.tid, self.name.as_deref())
    }

    /// Returns the intervals within a time, and whether the intervals cover all of the time.
    pub fn within(&self, from: i64, to: i64) -> (Vec<Interval>, bool) {
        let within = &self.intervals[self.range(from, to)];
        let is_whole = self.intervals.first().is_some_and(|first| first.from <= from)
            && within.windows(2).all(|pair| pair[0].to == pair[1].from);
        (within.iter().map(|interval| interval.within(from, to)).collect(), is_whole)
    }

    /// Returns who had the thread's CPU within a time.
    fn turns(&self, from: i64, to: i64) -> Vec<Turn> {
        let Range { start, end } = self.range(from, to);
        // The search goes back to the kernel's last event before `from`, because this event tells which CPU
        // the thread had at `from`.
        let before = self.intervals[..start].iter().rev().take(MAX_BEFORE);
        let before = before.take_while(|interval| interval.cpu().is_none()).count();
        let mut turns = turns(&self.intervals[start.saturating_sub(before + 1)..end]);
        turns.retain(|turn| turn.to > from);
        for turn in &mut turns {
            (turn.from, turn.to) = (turn.from.max(from), turn.to.min(to));
        }
        turns
    }

    /// Returns the indices of the intervals within a time.
    fn range(&self, from: i64, to: i64) -> Range<usize> {
        let begin = self.intervals.partition_point(|interval| interval.to <= from);
        let end = self.intervals.partition_point(|interval| interval.from < to);
        begin..end.max(begin)
    }
}

impl Lanes {
    /// Returns the lanes of threads in a window. The lane of the region's own thread comes first.
    /// `has_turns`: whether all threads were recorded, so that lanes can have turns.
    pub(super) fn of(threads: &[Logged], own: usize, window: &Window, has_turns: bool) -> Lanes {
        let mut lanes = Lanes::default();
        let others = (0..threads.len()).filter(|at| *at != own);
        for at in threads.get(own).map(|_| own).into_iter().chain(others) {
            let (thread, is_own) = (&threads[at], at == own);
            if !thread.is_recorded || !is_own && thread.name.is_none() {
                continue;
            }
            if lanes.lanes.len() == MAX_LANES {
                lanes.left_out += 1;
                continue;
            }
            let name = thread.name.as_deref().unwrap_or("thread").to_owned();
            let (intervals, is_whole) = thread.within(window.from(), window.to());
            let turns = has_turns.then(|| thread.turns(window.from(), window.to()));
            let mut lane = Lane { name, tid: thread.tid, intervals, turns, is_whole };
            lane.shorten(MAX_INTERVALS, window);
            lanes.has_own |= is_own;
            lanes.lanes.push(lane);
        }
        lanes
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
                let (part, to) = (Part::Vmm, from + length);
                Interval { from, to, part, reason: 0, cause: 0, ended_by: None }
            });
            Lane {
                name: String::new(),
                tid: 1,
                intervals: all.collect(),
                turns: None,
                is_whole: true,
            }
        };
        let window = |begin, end| Window { begin, end, around: 0 };
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
