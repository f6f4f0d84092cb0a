// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What critical paths add up to, and those that wait for what the host's kernel proves of a guest's CPUs.

use super::causes::{CauseNumber, Causes, GroupWaits, Unknown};
use super::parts::{Divided, Interval, Part, Reason, Times};
use super::path::{Doing, Stay};
use super::vcpus::{Unplaced, Vcpus, Waiter};
use std::collections::HashMap;

/// Most entries of the paths of a group's regions; the others' time is that of other threads.
const MOST_STEPS: usize = 1 << 12;

/// The time of a thread on the critical paths of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStep {
    /// The thread: an index of [`Regions::causes`](super::Regions::causes).
    pub thread: CauseNumber,
    /// What it did.
    pub part: Part,
    /// What a blocked thread waited for, if no thread ended the wait; which thread had the CPU in time that was stolen, or behind
    /// guest threads; why time is unknown. An index of [`Regions::causes`](super::Regions::causes).
    pub cause: Option<CauseNumber>,
    /// Time, nanoseconds.
    pub ns: u64,
}

impl PathStep {
    pub(super) fn new(thread: CauseNumber, interval: &Interval) -> PathStep {
        let has_cause =
            matches!(interval.part, Part::Stolen | Part::Behind | Part::Blocked | Part::Unknown);
        let cause = has_cause.then_some(interval.cause);
        PathStep { thread, part: interval.part, cause, ns: interval.length() }
    }

    /// Returns a step of which nothing is known.
    pub(super) fn unknown(why: Unknown, ns: u64) -> PathStep {
        let cause = Some(why.number());
        PathStep { thread: why.number(), part: Part::Unknown, cause, ns }
    }
}

type Key = (CauseNumber, Part, Option<CauseNumber>);

/// The steps of one path or of several.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps(HashMap<Key, u64>);

impl Steps {
    /// Returns where the time of a step is added: that of other threads if there are too many.
    fn key(&self, step: &PathStep) -> Key {
        let key = (step.thread, step.part, step.cause);
        if self.0.len() < MOST_STEPS || self.0.contains_key(&key) {
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

    /// Adds those of a path.
    pub fn add_all(&mut self, path: &[PathStep]) {
        path.iter().for_each(|step| self.add(step));
    }

    /// Takes away those of a path that were added.
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

    /// Returns the mean of so many paths, the longest step first.
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

/// Returns the parts of a program's region by its path: the time in which any thread ran is the program's.
fn times(path: &[PathStep]) -> Times {
    let mut times = Times::default();
    for step in path {
        times.0[step.part as usize] += step.ns;
    }
    times
}

/// The critical path of a region, while it or the time of the region's own thread is not known.
#[derive(Debug)]
pub(super) struct Path {
    steps: Steps,
    /// The waits on it by cause, if they are wanted.
    waits: Option<GroupWaits>,
    /// The clock of the guest whose time on it the host's kernel divides.
    divided: Option<u32>,
    /// What is to be divided, the last first, and the one that waits.
    stays: Vec<Timed>,
    unplaced: Unplaced,
    thread: CauseNumber,
    /// Whether it is the path of the region's thread, which is not known until the region's end yet.
    pub is_walked: bool,
    /// Whether the region's time is divided along it, and not by the region's own thread.
    pub is_division: bool,
    /// How the region's time divides by its own thread, once that is known.
    pub own: Option<Divided>,
}

/// A time of a thread on a path, and the CPU that it had then or next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub thread: CauseNumber,
    pub interval: Interval,
    pub cpu: Option<u16>,
}

impl Timed {
    /// Makes that of a stay, within a time, in which another thread had the CPU if that is its cause.
    pub fn new(stay: &Stay, (from, to): (i64, i64), cause: CauseNumber) -> Timed {
        let (part, cpu, cause) = match stay.doing {
            Doing::Running(cpu) => (Part::OnCpu, cpu, cause),
            Doing::Runnable(cpu) => (Part::Runnable, cpu, cause),
            Doing::Blocked(cause) => (Part::Blocked, None, cause),
            Doing::Unknown(why) => (Part::Unknown, None, why.number()),
        };
        let interval = Interval { from, to, part, reason: 0, cause, ended_by: None };
        Timed { thread: stay.thread, interval, cpu: cpu.and_then(|cpu| cpu.try_into().ok()) }
    }
}

impl Timed {
    /// Makes one of which nothing is known.
    pub fn unknown(why: Unknown, (from, to): (i64, i64)) -> Timed {
        let (part, cause) = (Part::Unknown, why.number());
        let interval = Interval { from, to, part, reason: 0, cause, ended_by: None };
        Timed { thread: cause, interval, cpu: None }
    }
}

impl Path {
    /// Makes an empty one. `divided`: the clock of the guest whose time the host's kernel divides.
    pub fn new(has_waits: bool, divided: Option<u32>) -> Path {
        Path {
            steps: Steps::default(),
            waits: has_waits.then(GroupWaits::default),
            divided,
            stays: Vec::new(),
            unplaced: Unplaced::of(divided.unwrap_or_default()),
            thread: CauseNumber::default(),
            is_walked: false,
            is_division: false,
            own: None,
        }
    }

    /// Makes one of the region's thread, until that is [known](Self::set_walked).
    pub fn walked() -> Path {
        Path { is_walked: true, ..Path::new(false, None) }
    }

    /// Takes the steps of the region's thread.
    pub fn set_walked(&mut self, steps: Steps) {
        (self.steps, self.is_walked) = (steps, false);
    }

    /// Makes one of which nothing is known.
    pub fn unknown(why: Unknown, ns: u64) -> Path {
        let mut path = Path::new(false, None);
        path.steps.add(&PathStep::unknown(why, ns));
        path
    }

    /// Takes the next time, from the end of the region back to its begin.
    pub fn push(&mut self, timed: Timed) {
        match self.divided {
            Some(_) => self.stays.push(timed),
            None => self.add(timed.thread, &timed.interval),
        }
    }

    fn add(&mut self, thread: CauseNumber, interval: &Interval) {
        self.steps.add(&PathStep::new(thread, interval));
        if let Some(waits) = self.waits.as_mut().filter(|_| interval.part.has_causes()) {
            waits.add(&[((interval.part, interval.cause), interval.length())]);
        }
    }

    /// Notes that it may have to wait for the host's part.
    pub fn hold(&self, vcpus: &mut Vcpus) {
        self.divided.into_iter().for_each(|clock| vcpus.hold(clock, self.stays.len()));
    }

    /// Divides what is known by now of the path of the region with this index, which waits for nothing then, or for what
    /// it waited for is known.
    pub fn divide(
        &mut self,
        index: u32,
        vcpus: &mut Vcpus,
        causes: &Causes,
        divided: &mut Vec<(Interval, Option<Reason>)>,
    ) {
        self.unplaced.wake();
        loop {
            self.unplaced.divide(Waiter::Path(index), vcpus, divided);
            divided.drain(..).for_each(|(interval, _)| self.add(self.thread, &interval));
            if !self.unplaced.is_empty() {
                return self.wait(vcpus);
            }
            let Some(Timed { thread, interval, cpu }) = self.stays.pop() else {
                return self.stays.shrink_to_fit();
            };
            self.thread = thread;
            self.divided.into_iter().for_each(|clock| vcpus.release(clock, 1));
            self.unplaced.push_on(interval, cpu, vcpus, causes);
        }
    }

    /// Keeps what is to be divided for later. If there is too much of it, none will be.
    fn wait(&mut self, vcpus: &mut Vcpus) {
        if let Some(clock) = self.divided.filter(|clock| vcpus.has_too_many(*clock)) {
            vcpus.release(clock, self.stays.len());
            for Timed { thread, interval, .. } in std::mem::take(&mut self.stays) {
                let (part, cause) = (Part::Unknown, Unknown::TooMany.number());
                self.add(thread, &Interval { part, cause, ..interval });
            }
        }
        // A path that waits often would be copied each time.
        if self.stays.len() < self.stays.capacity() / 2 {
            self.stays.shrink_to_fit();
        }
    }

    /// Returns whether all of it is known, and how the region's time divides.
    pub fn is_known(&self) -> bool {
        let is_placed = self.stays.is_empty() && self.unplaced.is_empty();
        is_placed && !self.is_walked && (self.is_division || self.own.is_some())
    }

    /// Returns how the region's time divides.
    pub fn finish(self) -> Divided {
        let path = self.steps.mean(1);
        let along = || Divided {
            times: times(&path),
            waits: self.waits.unwrap_or_default().sorted().into(),
            ..Divided::default()
        };
        let own = self.own.unwrap_or_else(along);
        Divided { path: path.into(), ..own }
    }
}
