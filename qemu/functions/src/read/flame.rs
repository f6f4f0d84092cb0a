// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Stacks with their times, which a flame graph shows.

use super::paths::Paths;
use super::spans::Spans;
use super::trace::Trace;
use crate::Error;
use crate::task::Task;

/// Maximum number of stacks that are shown.
pub const MAX_STACKS: usize = 20_000;

/// Bit that marks a track's path. No address has this bit.
const TRACK: u64 = 1 << 63;

/// Time by stack. A stack is a function together with all functions that have called the function, directly
/// or indirectly.
#[derive(Debug, Default)]
pub struct Flame {
    paths: Paths,
    /// Own times of the paths' innermost functions in nanoseconds. The index is the path's number
    times: Vec<u64>,
    /// Number of calls that got no stack of their own, because there were [`MAX_PATHS`](super::MAX_PATHS)
    /// stacks already. The time of such a call counts for the calling function.
    pub beyond: u64,
    /// Damage by task. The sums contain everything that could be read in spite of the damage.
    pub damage: Vec<Error>,
}

/// A function of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// Frame of a track. This frame is the outermost frame of all the track's stacks. The value is the
    /// track's number.
    Track(u32),
    /// Frame of a function. The value is the function's address.
    Function(u64),
}

impl Flame {
    /// Adds up all stacks of a trace. If there are `spans`, then only the time in `spans` counts.
    #[must_use]
    pub fn of(trace: &Trace, spans: Option<&Spans>) -> Self {
        let mut flame = Flame::default();
        for task in trace.tasks() {
            if let Err(error) = flame.add(trace, task, spans) {
                flame.damage.push(error);
            }
        }
        flame.beyond = flame.beyond.saturating_add(flame.paths.beyond());
        flame
    }

    fn add(&mut self, trace: &Trace, task: &Task, spans: Option<&Spans>) -> Result<(), Error> {
        let mut calls = trace.calls(task.tid)?;
        if let Some(spans) = spans {
            calls = calls.within(spans);
        }
        let mut times: Vec<u64> = Vec::new();
        let mut outside = 0_u64;
        let mut damage = None;
        for call in &mut calls {
            let call = match call {
                Ok(call) => call,
                Err(error) => {
                    damage = Some(error);
                    continue;
                }
            };
            let path = call.path as usize;
            if path >= times.len() {
                // If there was no room even for the path of the outermost function, then the call has no
                // path. The call's time then counts for the track.
                if path >= super::MAX_PATHS {
                    outside = outside.saturating_add(call.self_time);
                    continue;
                }
                times.resize(path + 1, 0);
            }
            times[path] = times[path].saturating_add(call.self_time);
        }
        let track = self.paths.within(None, TRACK | u64::from(task.tid));
        self.put(track, outside);
        let mut known = Vec::new();
        for (path, (outer, function)) in calls.paths().nodes().iter().enumerate() {
            // An outer path has a lower id than its inner paths, so `known` already has the outer path.
            let outer = known.get(*outer as usize).copied().unwrap_or(track);
            let global = self.paths.within(Some(outer), *function);
            known.push(global);
            self.put(global, times.get(path).copied().unwrap_or(0));
        }
        self.beyond = self.beyond.saturating_add(calls.paths().beyond());
        damage.map_or(Ok(()), Err)
    }

    fn put(&mut self, path: u32, time: u64) {
        let path = path as usize;
        if path >= super::MAX_PATHS {
            return;
        }
        if path >= self.times.len() {
            self.times.resize(path + 1, 0);
        }
        self.times[path] = self.times[path].saturating_add(time);
    }

    /// Returns at most [`MAX_STACKS`] stacks with their own times. If there are more stacks, this method
    /// leaves out the stacks with the least total time. This method adds the own time of a left-out stack to
    /// the stack of its caller. Stacks without own time are left out, too.
    #[must_use]
    pub fn stacks(&self) -> Vec<(Vec<Frame>, u64)> {
        let nodes = self.paths.nodes();
        // The total time of a path includes the total times of its inner paths. A path has a higher id than
        // its outer path.
        let mut totals = self.times.clone();
        totals.resize(nodes.len(), 0);
        for path in (0..nodes.len()).rev() {
            let outer = nodes[path].0 as usize;
            if outer < path {
                totals[outer] = totals[outer].saturating_add(totals[path]);
            }
        }
        let mut largest = totals.clone();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let least = largest.get(MAX_STACKS).copied().unwrap_or(0);
        let mut own = self.times.clone();
        own.resize(nodes.len(), 0);
        for path in (0..nodes.len()).rev() {
            let outer = nodes[path].0 as usize;
            if totals[path] <= least && outer < path {
                own[outer] = own[outer].saturating_add(own[path]);
                own[path] = 0;
            }
        }
        let shown = own.iter().enumerate().filter(|(_, time)| **time > 0);
        let frames = |path| {
            let functions = self.paths.functions(path);
            let frame = |function: u64| match function & TRACK {
                0 => Frame::Function(function),
                _ => Frame::Track(function as u32),
            };
            functions.into_iter().map(frame).collect()
        };
        shown.map(|(path, time)| (frames(path as u32), *time)).collect()
    }
}
