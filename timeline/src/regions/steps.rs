// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The steps of critical paths, and their sums.

use super::causes::{CauseNumber, Causes, Unknown};
use super::parts::{Interval, Part};
use super::path::{Doing, Stay};
use std::collections::HashMap;

/// Maximum number of entries in the sum of several paths. The time of further entries counts as time of
/// "other threads".
const MAX_STEPS: usize = 1 << 12;

/// The time of a thread on the critical paths of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStep {
    /// Index of the thread in [`Regions::causes`](super::Regions::causes).
    pub thread: CauseNumber,
    /// Part that says what the thread did.
    pub part: Part,
    /// Cause of the step: an index of [`Regions::causes`](super::Regions::causes). If the thread was blocked
    /// and no thread ended the wait, the cause is what the thread waited for. If the part is [`Part::Stolen`]
    /// or [`Part::Behind`], the cause is the thread that had the CPU. If the time is unknown, the cause says
    /// why.
    pub cause: Option<CauseNumber>,
    /// Time of the step in nanoseconds.
    pub ns: u64,
}

impl PathStep {
    pub(super) fn new(thread: CauseNumber, interval: &Interval) -> PathStep {
        let has_cause =
            matches!(interval.part, Part::Stolen | Part::Behind | Part::Blocked | Part::Unknown);
        let cause = has_cause.then_some(interval.cause);
        PathStep { thread, part: interval.part, cause, ns: interval.length() }
    }

    /// Returns a step with an unknown thread and an unknown part.
    pub(super) fn unknown(why: Unknown, ns: u64) -> PathStep {
        let cause = Some(why.number());
        PathStep { thread: why.number(), part: Part::Unknown, cause, ns }
    }
}

type Key = (CauseNumber, Part, Option<CauseNumber>);

/// The steps of one path or of several paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps(HashMap<Key, u64>);

impl Steps {
    /// Returns the key under which the time of a step is added. If there are too many keys, returns the key
    /// of other threads.
    fn key(&self, step: &PathStep) -> Key {
        let key = (step.thread, step.part, step.cause);
        if self.0.len() < MAX_STEPS || self.0.contains_key(&key) {
            return key;
        }
        let is_unknown = step.part == Part::Unknown;
        let cause = step.cause.map(|cause| if is_unknown { cause } else { Causes::OTHERS });
        (Causes::OTHERS, step.part, cause)
    }

    pub fn add(&mut self, step: &PathStep) {
        if step.ns > 0 {
            *self.0.entry(self.key(step)).or_default() += step.ns;
        }
    }

    /// Adds the steps of a path.
    pub fn add_all(&mut self, path: &[PathStep]) {
        path.iter().for_each(|step| self.add(step));
    }

    /// Returns the time of all steps.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Subtracts the steps of a path that were added before.
    pub fn remove_all(&mut self, path: &[PathStep]) {
        for step in path {
            if let Some(ns) = self.0.get_mut(&self.key(step)) {
                *ns = ns.saturating_sub(step.ns);
            }
        }
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &Steps) -> Steps {
        let since = |(key, ns): (&Key, &u64)| {
            let ns = ns - before.0.get(key).copied().unwrap_or(0);
            (ns > 0).then_some((*key, ns))
        };
        Steps(self.0.iter().filter_map(since).collect())
    }

    /// Returns the mean of `paths` paths. The longest step comes first.
    pub fn mean(&self, paths: u64) -> Vec<PathStep> {
        let step = |((thread, part, cause), ns): (&Key, &u64)| PathStep {
            thread: *thread,
            part: *part,
            cause: *cause,
            ns: ns / paths.max(1),
        };
        let mut all = Vec::from_iter(self.0.iter().map(step).filter(|step| step.ns > 0));
        let key = |of: &PathStep| (std::cmp::Reverse(of.ns), of.thread, of.part as usize, of.cause);
        all.sort_by_key(key);
        all
    }
}

/// A time of a thread on a path, with the CPU that the thread had in this time or got next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub thread: CauseNumber,
    pub interval: Interval,
    pub cpu: Option<u16>,
}

impl Timed {
    /// Makes the part of a stay between two times. If the thread waited for a CPU in the stay, `cause` is the
    /// thread that had the CPU.
    pub fn new(stay: &Stay, (from, to): (i64, i64), cause: CauseNumber) -> Timed {
        let (part, cpu, cause) = match stay.doing {
            Doing::Running(cpu) => (Part::OnCpu, cpu, cause),
            Doing::Runnable(cpu) => (Part::Runnable, cpu, cause),
            Doing::Blocked(cause, cpu) => (Part::Blocked, cpu, cause),
            Doing::Unknown(why) => (Part::Unknown, None, why.number()),
        };
        let interval = Interval { from, to, part, reason: 0, cause, ended_by: None };
        Timed { thread: stay.thread, interval, cpu: cpu.and_then(|cpu| cpu.try_into().ok()) }
    }
}

impl Timed {
    /// Makes a time with an unknown thread and an unknown part.
    pub fn unknown(why: Unknown, (from, to): (i64, i64)) -> Timed {
        let (part, cause) = (Part::Unknown, why.number());
        let interval = Interval { from, to, part, reason: 0, cause, ended_by: None };
        Timed { thread: cause, interval, cpu: None }
    }
}
