// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The critical path of a thread, which is walked once and serves all regions of the thread.
//!
//! A region begins and ends while its thread has a CPU. The path between two such times is the same for all
//! regions that include both times. So the thread's path is walked from each begin or end of a region to the
//! next begin or end. The path of a region is the sums at the region's end minus the sums at the region's
//! begin.

use super::beyond::Beyond;
use super::causes::{CauseNumber, Unknown};
use super::parts::{Interval, Part, Reason};
use super::steps::{PathStep, Steps, Timed};
use super::vcpus::{Unplaced, Vcpus, Waiter};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// The path of a thread, as long as regions of the thread are open or wait to be divided.
#[derive(Debug)]
pub(super) struct Walked {
    /// Time up to which the path was walked.
    until: i64,
    /// If the host's kernel divides a guest's time on the path, the clock of this guest.
    pub divided: Option<u32>,
    /// Numbers of the open regions.
    open: HashSet<u32>,
    /// Pieces of the path that are not in `sums` yet, in order of time. `unplaced` holds the time that is
    /// being divided now.
    queue: VecDeque<Piece>,
    unplaced: Unplaced,
    thread: CauseNumber,
    cpu: Option<u16>,
    sums: Rc<Steps>,
    /// For each region id, the sums at the region's begin.
    begun: HashMap<u32, Rc<Steps>>,
}

#[derive(Debug)]
enum Piece {
    Time(Timed),
    /// The begin of the region with this number.
    Begin(u32),
    /// The end of the region with this number, and the region's index in the store if the region is wanted.
    End(u32, Option<u32>),
}

impl Walked {
    /// Makes the path of a thread, beginning at this time. `divided`: the clock of the thread's guest, if the
    /// host's kernel divides the guest's time.
    pub fn new(time: i64, divided: Option<u32>) -> Walked {
        Walked {
            until: time,
            divided,
            open: HashSet::new(),
            queue: VecDeque::new(),
            unplaced: Unplaced::of(divided.unwrap_or_default()),
            thread: CauseNumber::default(),
            cpu: None,
            sums: Rc::default(),
            begun: HashMap::new(),
        }
    }

    /// Notes that the path is walked up to `time`, and returns the two times between which the caller must
    /// walk the path.
    pub fn walk(&mut self, time: i64) -> (i64, i64) {
        let from = self.until.min(time);
        self.until = self.until.max(time);
        (from, time)
    }

    /// Adds the times of a walk. The last time of the walk comes first.
    pub fn take(&mut self, mut times: Vec<Timed>, vcpus: &mut Option<Vcpus>) {
        match (self.divided, vcpus) {
            (Some(clock), Some(vcpus)) => {
                vcpus.hold(clock, times.len());
                times.reverse();
                self.queue.extend(times.into_iter().map(Piece::Time));
            }
            _ => {
                let sums = Rc::make_mut(&mut self.sums);
                times.iter().for_each(|of| sums.add(&PathStep::new(of.thread, &of.interval)));
            }
        }
    }

    /// Begins a region with this number at the time that the walk has reached.
    pub fn begin(&mut self, number: u32) {
        self.open.insert(number);
        self.queue.push_back(Piece::Begin(number));
    }

    /// Returns whether the region with a number began on the path, and has not ended.
    pub fn has(&self, number: u32) -> bool {
        self.open.contains(&number)
    }

    /// Ends the region with a number. `index` is the region's index in the store, if the region is wanted.
    pub fn end(&mut self, number: u32, index: Option<u32>) {
        if self.open.remove(&number) {
            self.queue.push_back(Piece::End(number, index));
        }
    }

    /// Returns whether no region is open or waits.
    pub fn is_unused(&self) -> bool {
        self.open.is_empty() && self.queue.is_empty() && self.unplaced.is_empty()
    }

    /// Ends the path's wait for a vCPU's past, because this past is known now.
    pub fn wake(&mut self) {
        self.unplaced.wake();
    }

    /// Divides the pieces that can be divided by now. The function adds to `ended` the indices and the steps
    /// of all regions whose whole path is then known.
    pub fn divide(
        &mut self,
        waiter: Waiter,
        vcpus: &mut Option<Vcpus>,
        beyond: &mut Beyond<'_>,
        divided: &mut Vec<(Interval, Option<Reason>)>,
        ended: &mut Vec<(u32, Steps)>,
    ) {
        loop {
            if let Some(vcpus) = vcpus {
                self.unplaced.divide(waiter, vcpus, divided);
                let sums = Rc::make_mut(&mut self.sums);
                for (interval, _) in divided.drain(..) {
                    let of = Timed { thread: self.thread, interval, cpu: self.cpu };
                    beyond.steps(self.divided, &of, vcpus, |step| sums.add(&step));
                }
                if !self.unplaced.is_empty() {
                    return self.wait(vcpus);
                }
            }
            match (self.queue.pop_front(), &mut *vcpus, self.divided) {
                (None, ..) => return,
                (Some(Piece::Begin(number)), ..) => {
                    self.begun.insert(number, self.sums.clone());
                }
                (Some(Piece::End(number, index)), ..) => {
                    if let (Some(begun), Some(index)) = (self.begun.remove(&number), index) {
                        ended.push((index, self.sums.since(&begun)));
                    }
                }
                (Some(Piece::Time(Timed { thread, interval, cpu })), Some(vcpus), Some(clock)) => {
                    (self.thread, self.cpu) = (thread, cpu);
                    vcpus.release(clock, 1);
                    self.unplaced.push_on(interval, cpu, vcpus, beyond.causes);
                }
                (Some(Piece::Time(_)), ..) => {}
            }
        }
    }

    /// Keeps the undivided pieces for later. If too many intervals of the guest wait, the undivided time
    /// becomes unknown, and each stretch between two begins or ends of regions becomes one piece.
    fn wait(&mut self, vcpus: &mut Vcpus) {
        let Some(clock) = self.divided.filter(|clock| vcpus.has_too_many(*clock)) else { return };
        let mut kept = VecDeque::new();
        for piece in self.queue.drain(..) {
            match (piece, kept.back_mut()) {
                (Piece::Time(Timed { interval, .. }), Some(Piece::Time(last))) => {
                    last.interval.to = interval.to;
                    vcpus.release(clock, 1);
                }
                (Piece::Time(Timed { interval, .. }), _) => {
                    let why = Unknown::TooMany.number();
                    let interval = Interval { part: Part::Unknown, cause: why, ..interval };
                    kept.push_back(Piece::Time(Timed { thread: why, interval, cpu: None }));
                }
                (other, _) => kept.push_back(other),
            }
        }
        self.queue = kept;
    }
}
