// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The critical paths of single regions. Such a path waits until the host's kernel has proven what a guest's
//! CPUs did.

use super::beyond::Beyond;
use super::causes::{CauseNumber, GroupWaits, Unknown};
use super::parts::{Detail, Divided, Interval, Part, Reason, Times};
use super::steps::{PathStep, Steps, Timed};
use super::vcpus::{Unplaced, Vcpus, Waiter};

/// Returns the parts of a program's region along the region's path. The time of each thread on the path
/// counts for the program.
fn times(path: &[PathStep]) -> Times {
    let mut times = Times::default();
    for step in path {
        times.0[step.part as usize] += step.ns;
    }
    times
}

/// The critical path of a region, until both the path and the time of the region's own thread are known.
#[derive(Debug)]
pub(super) struct Path {
    steps: Steps,
    /// For each cause, the waits on the path, if the waits are wanted.
    waits: Option<GroupWaits>,
    /// If the host's kernel divides a guest's time on the path, the clock of this guest.
    divided: Option<u32>,
    /// Times that are still to be divided. The last time comes first. `unplaced` holds the time that is being
    /// divided now.
    stays: Vec<Timed>,
    unplaced: Unplaced,
    thread: CauseNumber,
    cpu: Option<u16>,
    /// Whether the steps will come later from the path of the region's thread. This path is not known up to
    /// the region's end yet.
    pub is_walked: bool,
    /// Whether the region's time is divided along the path, and not according to what the region's own thread
    /// did.
    pub is_division: bool,
    /// Parts of the region that follow from what the region's own thread did, once these parts are known.
    pub own: Option<Divided>,
}

impl Path {
    /// Makes an empty path. `divided`: the clock of the thread's guest, if the host's kernel divides the
    /// guest's time.
    pub fn new(has_waits: bool, divided: Option<u32>) -> Path {
        Path {
            steps: Steps::default(),
            waits: has_waits.then(GroupWaits::default),
            divided,
            stays: Vec::new(),
            unplaced: Unplaced::of(divided.unwrap_or_default()),
            thread: CauseNumber::default(),
            cpu: None,
            is_walked: false,
            is_division: false,
            own: None,
        }
    }

    /// Makes a path without steps. [`Path::set_walked`] later takes the steps from the path of the region's
    /// thread.
    pub fn walked() -> Path {
        Path { is_walked: true, ..Path::new(false, None) }
    }

    /// Sets the steps of the path, which come from the path of the region's thread.
    pub fn set_walked(&mut self, steps: Steps) {
        (self.steps, self.is_walked) = (steps, false);
    }

    /// Makes a path with a single step. The step has an unknown thread and an unknown part.
    pub fn unknown(why: Unknown, ns: u64) -> Path {
        let mut path = Path::new(false, None);
        path.steps.add(&PathStep::unknown(why, ns));
        path
    }

    /// Adds the next time of the path. The path goes from the end of the region back to the region's begin.
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

    /// Notes that the times of the path may have to wait until it is known what the vCPUs did.
    pub fn hold(&self, vcpus: &mut Vcpus) {
        self.divided.into_iter().for_each(|clock| vcpus.hold(clock, self.stays.len()));
    }

    /// Divides the times of the path that are known by now. `index` is the region's index in the store. If
    /// the path waited for a vCPU, the caller has made sure that the vCPU's past is known.
    pub fn divide(
        &mut self,
        index: u32,
        vcpus: &mut Vcpus,
        beyond: &mut Beyond<'_>,
        divided: &mut Vec<(Interval, Option<Reason>)>,
    ) {
        self.unplaced.wake();
        loop {
            self.unplaced.divide(Waiter::Path(index), vcpus, divided);
            for (interval, _) in divided.drain(..) {
                // If `waits` is set, the region's parts are the parts of the guest's threads on this path.
                // Such a path does not go on to threads of the host.
                if self.waits.is_some() {
                    self.add(self.thread, &interval);
                } else {
                    let of = Timed { thread: self.thread, interval, cpu: self.cpu };
                    beyond.steps(self.divided, &of, vcpus, |step| self.steps.add(&step));
                }
            }
            if !self.unplaced.is_empty() {
                return self.wait(vcpus);
            }
            let Some(Timed { thread, interval, cpu }) = self.stays.pop() else {
                return self.stays.shrink_to_fit();
            };
            (self.thread, self.cpu) = (thread, cpu);
            self.divided.into_iter().for_each(|clock| vcpus.release(clock, 1));
            self.unplaced.push_on(interval, cpu, vcpus, beyond.causes);
        }
    }

    /// Keeps the undivided times for later. If too many intervals of the guest wait, the undivided times
    /// become unknown.
    fn wait(&mut self, vcpus: &mut Vcpus) {
        if let Some(clock) = self.divided.filter(|clock| vcpus.has_too_many(*clock)) {
            vcpus.release(clock, self.stays.len());
            for Timed { thread, interval, .. } in std::mem::take(&mut self.stays) {
                let (part, cause) = (Part::Unknown, Unknown::TooMany.number());
                self.add(thread, &Interval { part, cause, ..interval });
            }
        }
        // Memory is given back only if more than half of the memory is unused. Otherwise, a path that waits
        // often would be copied each time.
        if self.stays.len() < self.stays.capacity() / 2 {
            self.stays.shrink_to_fit();
        }
    }

    /// Returns whether the whole path and the division of the region's time are known.
    pub fn is_known(&self) -> bool {
        let is_placed = self.stays.is_empty() && self.unplaced.is_empty();
        is_placed && !self.is_walked && (self.is_division || self.own.is_some())
    }

    /// Returns how the region's time divides.
    pub fn finish(self) -> Divided {
        let path = self.steps.mean(1);
        let mut divided = self.own.unwrap_or_else(|| {
            let waits = self.waits.unwrap_or_default().sorted().into();
            let detail = Detail { waits, ..Detail::default() };
            Divided { times: times(&path), detail, ..Divided::default() }
        });
        divided.detail.path = path.into();
        divided
    }
}
