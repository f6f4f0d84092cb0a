// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How the time of a guest's threads divides, as the events of both kernels show. The guest's kernel says
//! which CPU a thread had or waited for. The host's kernel says what the vCPU's thread did at the same time.
//!
//! A guest's thread that has a guest's CPU runs only while the vCPU is in guest mode. If another thread of
//! the guest has the guest's CPU, a waiting thread waits for that thread. If a thread of the host has taken
//! the host's CPU from the vCPU's thread, the waiting thread waits for the thread of the host.
//!
//! A proof says which thread of the host runs a guest's CPU: all events of the guest's kernel on that CPU lie
//! in times at which this thread was in guest mode. An event outside of guest mode refutes the proof. The
//! proof then counts only up to the last event that was in guest mode.
//!
//! The error of the guest's times has a bound. Consider a border between two intervals of the vCPU's thread.
//! If the parts on both sides of the border differ, then the time that is nearer to the border than the bound
//! is unknown.
//!
//! A guest may lie. A guest's statements, bounds and refutations count only for the guest's own threads. The
//! waiting intervals of a guest's threads take no space from the intervals of another guest.

use super::causes::{Causes, Unknown};
use super::parts::{Interval, Part, Reason};
use super::path::Stretch;
use crate::inputs::ctf::{ClockMaps, proven_threads};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

/// Maximum number of past intervals that are kept of all vCPUs together, and the number that is kept of each
/// vCPU in any case. Each interval takes 64 bytes. With paths, the same number of halts is kept, of 40 bytes
/// each.
const MAX_PAST: (usize, usize) = (1 << 19, 1 << 12);
/// Maximum number of intervals of all guests' threads that wait until the host's kernel has shown what the
/// vCPU did. Each interval takes 64 bytes. The first number is the maximum for all guests, who share it
/// equally. The second number is the least share of a guest.
const MAX_UNPLACED: (usize, usize) = (1 << 19, 1 << 12);
/// Maximum number of a guest CPU's events that wait to be compared with guest mode. While so many events
/// wait, further events are not compared.
const MAX_UNCHECKED: usize = 1 << 12;

/// A CPU of a guest: the guest's clock, and the number that the guest gives the CPU. A guest that is reset,
/// or started again, has another clock.
pub(super) type GuestCpu = (u32, u16);

/// The CPUs of a session's guests.
#[derive(Debug)]
pub(super) struct Vcpus {
    /// Threads of the host that run CPUs, by thread id.
    all: HashMap<u32, Vcpu>,
    /// Proofs of the guests' CPUs. `by_cpu` has the index of each CPU's proof.
    proofs: Vec<Proof>,
    by_cpu: HashMap<GuestCpu, u32>,
    /// For each clock, the guest that has a CPU with a proof.
    guests: HashMap<u32, Guest>,
    /// Maximum number of a guest's intervals that wait.
    most_unplaced: usize,
    /// CPUs of these guests that had events, but have no proof.
    unproven: BTreeSet<GuestCpu>,
    /// Time of the last event of the host's recordings.
    pub end: i64,
}

/// What is known of a guest.
#[derive(Debug)]
struct Guest {
    /// Bounds on the error of the guest's times. Each entry has the time from which on a bound counts, and
    /// the bound.
    bounds: VecDeque<(i64, Option<u64>)>,
    /// Time of the guest's last event so far.
    now: i64,
    /// Number of waiting intervals of the guest's threads and of critical paths.
    unplaced: usize,
}

/// A proof that a thread of the host runs a guest's CPU. If `refuted` is a time, the proof counts only up to
/// this time.
#[derive(Debug)]
struct Proof {
    cpu: GuestCpu,
    tid: u32,
    /// Times of the guest's events that were not compared with guest mode yet. `inside` is the time of the
    /// last event that was in guest mode.
    unchecked: VecDeque<i64>,
    inside: i64,
    /// Time from which on the proof does not count, because an event refuted the proof.
    refuted: Option<i64>,
}

/// A thread of the host that runs a CPU of a guest.
#[derive(Debug, Default)]
struct Vcpu {
    /// Intervals of the thread in order. `until` is the time up to which the intervals are known.
    past: VecDeque<Past>,
    until: i64,
    most: usize,
    /// Times in which the thread was halted, in order, if paths are wanted. Each time comes with the index of
    /// the host's trace that tells what woke the thread.
    halts: VecDeque<(Stretch, u16)>,
    /// Indices of the proofs of the guests' CPUs that the thread runs. If a guest was reset, there is a proof
    /// for each of the guest's clocks.
    proofs: Vec<u32>,
    /// Waiters that wait until the thread's past is known up to a time.
    waiting: BinaryHeap<Reverse<(i64, Waiter)>>,
}

/// Something that waits until the past of a vCPU's thread is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waiter {
    /// The guest's thread with this index.
    Thread(usize),
    /// The critical path of the region with this index.
    Path(u32),
    /// The critical path of the guest's thread with this index.
    Walked(usize),
}

/// An interval of a vCPU's thread. `exit` is the reason of the exit, if an exit begins with the interval.
#[derive(Clone, Copy, Debug)]
struct Past {
    interval: Interval,
    exit: Option<Reason>,
}

/// Intervals of a guest's thread, or of a critical path, that wait.
#[derive(Debug)]
pub(super) struct Unplaced {
    /// Id of the guest's clock.
    clock: u32,
    /// Intervals. Each interval comes with the index of the proof of the CPU that the thread had or waited
    /// for.
    waiting: VecDeque<(Interval, Option<u32>)>,
    /// Guest's number of the CPU that the thread has.
    cpu: Option<u16>,
    /// Thread of the host. The intervals wait until more is known about the past of this thread.
    waits_for: Option<u32>,
    /// Whether more intervals had to wait than the guest's share.
    pub is_cut: bool,
}

/// A divided interval, and the reason of the exit if an exit begins with the interval.
type Divided = (Interval, Option<Reason>);

impl Vcpus {
    /// Returns the guests' CPUs whose threads are known; `None` if no thread is known.
    pub fn of(maps: &ClockMaps) -> Option<Vcpus> {
        let mut proofs = Vec::new();
        for ((clock, cpu), tid) in proven_threads(maps) {
            let Ok(cpu) = u16::try_from(cpu) else { continue };
            let cpu = (clock, cpu);
            proofs.push(Proof {
                cpu,
                tid,
                unchecked: VecDeque::new(),
                inside: i64::MIN,
                refuted: None,
            });
        }
        (!proofs.is_empty()).then(|| Vcpus::with(proofs, MAX_PAST))
    }

    /// Makes the CPUs with these proofs. `past`: maximum numbers of past intervals, as in [`MAX_PAST`].
    fn with(proofs: Vec<Proof>, past: (usize, usize)) -> Vcpus {
        let (mut all, mut guests) = (HashMap::<u32, Vcpu>::new(), HashMap::new());
        for (number, Proof { cpu, tid, .. }) in (0..).zip(&proofs) {
            all.entry(*tid).or_default().proofs.push(number);
            let guest = || Guest { bounds: VecDeque::new(), now: i64::MIN, unplaced: 0 };
            guests.entry(cpu.0).or_insert_with(guest);
        }
        let most = (past.0 / all.len().max(1)).max(past.1);
        all.values_mut().for_each(|vcpu| (vcpu.until, vcpu.most) = (i64::MIN, most));
        Vcpus {
            all,
            by_cpu: proofs.iter().map(|proof| proof.cpu).zip(0..).collect(),
            proofs,
            most_unplaced: (MAX_UNPLACED.0 / guests.len().max(1)).max(MAX_UNPLACED.1),
            guests,
            unproven: BTreeSet::new(),
            end: i64::MIN,
        }
    }

    /// Returns whether the host's kernel divides the time of the guest with this clock.
    pub fn has_guest(&self, clock: u32) -> bool {
        self.guests.contains_key(&clock)
    }

    /// Iterates over the threads of the host that run guests' CPUs.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.all.keys().copied()
    }

    /// Returns whether a thread of the host runs a guest's CPU.
    pub fn has(&self, tid: u32) -> bool {
        self.all.contains_key(&tid)
    }

    /// Iterates over the refuted proofs. Each entry has the number that the guest gives the CPU, and the
    /// thread of the host that was thought to run the CPU.
    pub fn refuted(&self) -> impl Iterator<Item = (u16, u32)> {
        let refuted = self.proofs.iter().filter(|proof| proof.refuted.is_some());
        refuted.map(|proof| (proof.cpu.1, proof.tid))
    }

    /// Iterates over all proofs. Each entry has the guest's CPU, the thread of the host, and the time from
    /// which on the proof does not count, if there is such a time.
    pub fn proven(&self) -> impl Iterator<Item = (GuestCpu, u32, Option<i64>)> {
        self.proofs.iter().map(|proof| (proof.cpu, proof.tid, proof.refuted))
    }

    /// Returns the number of guests' CPUs that had events, although nothing proves which thread of the host
    /// runs them.
    pub fn unproven(&self) -> usize {
        self.unproven.len()
    }

    /// Processes an event of the guest's kernel on a CPU. `bound` is the bound on the error of the event's
    /// time.
    pub fn guest_event(&mut self, cpu: GuestCpu, time: i64, bound: Option<u64>) {
        let Some(guest) = self.guests.get_mut(&cpu.0) else { return };
        guest.event(time, bound);
        let Some(proof) = self.by_cpu.get(&cpu).map(|number| &mut self.proofs[*number as usize])
        else {
            if self.unproven.len() < MAX_UNCHECKED {
                self.unproven.insert(cpu);
            }
            return;
        };
        let is_checked = proof.refuted.is_none() && bound.is_some();
        if is_checked && proof.unchecked.len() < MAX_UNCHECKED {
            proof.unchecked.push_back(time);
        }
    }

    /// Adds an interval of a thread that runs a CPU. `exit` is the reason of the exit, if an exit begins with
    /// the interval.
    pub fn take(&mut self, tid: u32, interval: &Interval, exit: Option<Reason>) {
        let Some(vcpu) = self.all.get_mut(&tid) else { return };
        vcpu.until = interval.to;
        if vcpu.past.len() >= vcpu.most {
            vcpu.past.pop_front();
        }
        vcpu.past.push_back(Past { interval: *interval, exit });
        for number in &vcpu.proofs {
            let proof = &mut self.proofs[*number as usize];
            let Some(guest) = self.guests.get(&proof.cpu.0) else { continue };
            while let Some(time) = proof.unchecked.front().copied() {
                let bound = guest.bound(time, time);
                if bound.is_some_and(|bound| time.saturating_add(bound) >= vcpu.until) {
                    break;
                }
                proof.unchecked.pop_front();
                bound.into_iter().for_each(|bound| proof.check(time, bound, vcpu));
            }
        }
    }

    /// Adds a halt of a thread that runs a CPU. `trace` is the index of the host's trace that tells what woke
    /// the thread.
    pub fn take_halt(&mut self, halt: Stretch, trace: u16) {
        let Some(vcpu) = self.all.get_mut(&halt.tid) else { return };
        if vcpu.halts.len() >= vcpu.most {
            vcpu.halts.pop_front();
        }
        vcpu.halts.push_back((halt, trace));
    }

    /// Returns the halt of a guest's CPU that belongs to a divided interval of a thread. If the interval is
    /// in [`Part::Halted`], returns the halt at the interval's begin. The thread may also be in
    /// [`Part::Blocked`] until the CPU wakes the thread. In this case, returns the halt if the CPU ran the
    /// guest at the wake-up for the first time since the halt.
    pub fn halt(&self, cpu: GuestCpu, of: &Interval) -> Option<(Stretch, u16)> {
        let proof = &self.proofs[*self.by_cpu.get(&cpu)? as usize];
        let vcpu =
            self.all.get(&proof.tid).filter(|_| proof.refuted.is_none_or(|at| at > of.to))?;
        let halt = match of.part {
            Part::Halted => vcpu.within(of.from, of.to).next()?,
            Part::Blocked => vcpu.halt_before(of.from, of.to)?,
            _ => return None,
        };
        let Interval { from, to, part, .. } = halt.interval;
        let at = vcpu.halts.binary_search_by_key(&to, |(halt, _)| halt.to).ok()?;
        Some(vcpu.halts[at]).filter(|(halt, _)| part == Part::Halted && halt.from == from)
    }

    /// Iterates over the guests' CPUs that a thread of the host is known to run until a time.
    pub fn run_by(&self, tid: u32, until: i64) -> impl Iterator<Item = GuestCpu> {
        let numbers = self.all.get(&tid).into_iter().flat_map(|vcpu| &vcpu.proofs);
        let proofs = numbers.map(|number| &self.proofs[*number as usize]);
        proofs.filter(move |of| of.refuted.is_none_or(|at| at > until)).map(|of| of.cpu)
    }

    /// Adds `count` to the number of a guest's waiting intervals.
    pub fn hold(&mut self, clock: u32, count: usize) {
        if let Some(guest) = self.guests.get_mut(&clock) {
            guest.unplaced += count;
        }
    }

    /// Subtracts `count` from the number of a guest's waiting intervals.
    pub fn release(&mut self, clock: u32, count: usize) {
        if let Some(guest) = self.guests.get_mut(&clock) {
            guest.unplaced -= count;
        }
    }

    /// Returns whether a guest has more waiting intervals than its share.
    pub fn has_too_many(&self, clock: u32) -> bool {
        self.guests.get(&clock).is_some_and(|guest| guest.unplaced > self.most_unplaced)
    }

    /// If the past of a thread of the host is now known up to the time that the next waiter needs, removes
    /// and returns this waiter.
    pub fn next_waiting(&mut self, tid: u32) -> Option<Waiter> {
        let vcpu = self.all.get_mut(&tid)?;
        let Reverse((to, waiter)) = *vcpu.waiting.peek()?;
        (to <= vcpu.until).then(|| {
            vcpu.waiting.pop();
            waiter
        })
    }

    /// Notes that nothing more will become known about any CPU.
    pub fn end(&mut self) {
        self.all.values_mut().for_each(|vcpu| vcpu.until = i64::MAX);
    }
}

impl Guest {
    /// Processes an event. `bound` is the bound on the error of the event's time.
    fn event(&mut self, time: i64, bound: Option<u64>) {
        self.now = time;
        let last = self.bounds.back().map(|(_, bound)| *bound);
        let is_new = match (last, bound) {
            (Some(Some(last)), Some(bound)) => bound > last || bound < last / 2,
            (Some(last), bound) => last != bound,
            (None, _) => true,
        };
        if !is_new {
            return;
        }
        // If there are too many bounds, the larger of the first two bounds counts for the times of both
        // bounds.
        if self.bounds.len() == MAX_UNCHECKED {
            let first = self.bounds.pop_front().map(|(_, bound)| bound);
            if let (Some(first), Some(next)) = (first, self.bounds.front_mut()) {
                next.1 = next.1.zip(first).map(|(a, b)| a.max(b));
            }
        }
        self.bounds.push_back((time, bound));
    }

    /// Returns the largest of the bounds that count at some time between two times.
    fn bound(&self, from: i64, to: i64) -> Option<i64> {
        let begin = self.bounds.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let end = self.bounds.partition_point(|(at, _)| *at <= to).max(begin);
        let mut bounds = self.bounds.range(begin..end).map(|(_, bound)| *bound).peekable();
        bounds.peek()?;
        let most = bounds.try_fold(0, |most, bound| Some(most.max(bound?)))?;
        i64::try_from(most).ok()
    }
}

impl Proof {
    /// Checks whether an event of the guest can have been in guest mode of the thread. If the event was
    /// outside of guest mode, the proof is refuted.
    fn check(&mut self, time: i64, bound: i64, vcpu: &Vcpu) {
        let (from, to) = (time.saturating_sub(bound), time.saturating_add(bound));
        // An interval includes both of its ends.
        let may_be = |past: &Past| matches!(past.interval.part, Part::Guest | Part::Unknown);
        let begin = vcpu.past.partition_point(|past| past.interval.to < from);
        let mut touched =
            vcpu.past.range(begin..).take_while(|past| past.interval.from <= to).peekable();
        let is_known = touched.peek().is_some_and(|first| first.interval.from <= from);
        if !is_known || touched.any(may_be) {
            self.inside = self.inside.max(time);
        } else if self.refuted.is_none() {
            self.refuted = Some(self.inside);
            self.unchecked.clear();
        }
    }
}

impl Vcpu {
    /// Returns the intervals that overlap a time.
    fn within(&self, from: i64, to: i64) -> impl Iterator<Item = &Past> {
        let begin = self.past.partition_point(|past| past.interval.to <= from);
        self.past.range(begin..).take_while(move |past| past.interval.from < to)
    }

    /// Returns the last halt between two times, if the CPU runs the guest at the end for the first time since
    /// the halt.
    fn halt_before(&self, from: i64, to: i64) -> Option<&Past> {
        let end = self.past.partition_point(|past| past.interval.from < to);
        let mut before = self.past.range(..end).rev();
        let is_last = |past: &&Past| past.interval.part == Part::Guest && past.interval.to >= to;
        before.next().filter(is_last)?;
        let is_exit = |past: &&Past| {
            matches!(past.interval.part, Part::Kernel | Part::Vmm | Part::Runnable | Part::Stolen)
        };
        before.find(|past| !is_exit(past)).filter(|past| past.interval.to > from)
    }
}

impl Unplaced {
    /// Makes the waiting intervals of a thread of the guest with this clock.
    pub fn of(clock: u32) -> Unplaced {
        Unplaced { clock, waiting: VecDeque::new(), cpu: None, waits_for: None, is_cut: false }
    }

    /// Returns whether no interval waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds the next proven interval of a thread.
    pub fn push(&mut self, interval: Interval, vcpus: &mut Vcpus, causes: &Causes) {
        let at = interval.cpu();
        let cpu = match interval.part {
            Part::OnCpu => at.or(self.cpu),
            Part::Runnable => at,
            _ => None,
        };
        self.cpu = match interval.part {
            Part::Blocked => None,
            Part::OnCpu => cpu,
            _ => at,
        };
        self.push_on(interval, cpu, vcpus, causes);
    }

    /// Adds the next interval of a thread. The thread had the CPU `cpu` in this time, or got this CPU next.
    pub fn push_on(
        &mut self,
        mut interval: Interval,
        cpu: Option<u16>,
        vcpus: &mut Vcpus,
        causes: &Causes,
    ) {
        if interval.part == Part::Runnable && causes.is_thread(interval.cause) {
            interval.part = Part::Behind;
        }
        let proof = cpu.and_then(|cpu| vcpus.by_cpu.get(&(self.clock, cpu)).copied());
        self.waiting.push_back((interval, proof));
        vcpus.hold(self.clock, 1);
        if vcpus.has_too_many(self.clock) {
            self.is_cut = true;
            self.waiting.iter_mut().for_each(|(_, proof)| *proof = None);
        }
    }

    /// Forgets all intervals, because no region needs them.
    pub fn clear(&mut self, vcpus: &mut Vcpus) {
        vcpus.release(self.clock, self.waiting.len());
        self.waiting.clear();
    }

    /// Notes that the intervals do not wait for a CPU's past any more.
    pub fn wake(&mut self) {
        self.waits_for = None;
    }

    /// Divides the intervals whose vCPU's past is known. If the next intervals need more of the past of their
    /// vCPU, `waiter` waits for this past.
    pub fn divide(&mut self, waiter: Waiter, vcpus: &mut Vcpus, out: &mut Vec<Divided>) {
        while let Some((interval, proof)) = self.waiting.front() {
            let Interval { from, to, .. } = *interval;
            let proof = proof.map(|number| &vcpus.proofs[number as usize]);
            let vcpu = proof.and_then(|proof| vcpus.all.get_mut(&proof.tid).zip(Some(proof)));
            let guest = vcpus.guests.get(&self.clock);
            match vcpu.zip(guest.and_then(|guest| Some((guest.now, guest.bound(from, to)?)))) {
                // After the host's last event, nothing waits, because nothing more will become known.
                Some(((vcpu, proof), (now, bound)))
                    if vcpu.until < to.saturating_add(bound) && now <= vcpus.end =>
                {
                    if self.waits_for != Some(proof.tid) {
                        vcpu.waiting.push(Reverse((to.saturating_add(bound), waiter)));
                        self.waits_for = Some(proof.tid);
                    }
                    return;
                }
                Some(((vcpu, proof), (_, bound))) => match has_cpu(interval.part) {
                    true => vcpu.divide(interval, bound, proof.refuted, out),
                    false => out.push((*interval, None)),
                },
                // Nothing proves which thread runs the CPU, or the error of the guest's time is not known.
                _ if has_cpu(interval.part) => {
                    let why = if self.is_cut { Unknown::TooMany } else { Unknown::Vcpu };
                    out.push((unknown(from, to, why), None));
                }
                _ => out.push((*interval, None)),
            }
            self.waiting.pop_front();
            vcpus.release(self.clock, 1);
        }
    }
}

impl Vcpu {
    /// Divides an interval of a guest's thread that had or waited for a CPU. The thread of this vCPU runs the
    /// CPU of the interval until the time `refuted`.
    fn divide(&self, of: &Interval, bound: i64, refuted: Option<i64>, out: &mut Vec<Divided>) {
        let around = (of.from.saturating_sub(bound), of.to.saturating_add(bound));
        let forgotten = self.past.front().filter(|_| self.past.len() >= self.most);
        let forgotten = forgotten.map_or(i64::MIN, |first| first.interval.from);
        let why = |at| if at < forgotten { Unknown::TooMany } else { Unknown::Vcpu };
        let refuted = refuted.unwrap_or(i64::MAX);
        // The pieces follow one after another, and cover the interval and the bound on each side.
        let mut pieces: Vec<Divided> = Vec::new();
        let mut add = |piece: Interval, exit: Option<Reason>| match pieces.last_mut() {
            Some((last, _)) if exit.is_none() && is_same(last, &piece) => {
                (last.to, last.ended_by) = (piece.to, piece.ended_by);
            }
            _ => pieces.push((piece, exit)),
        };
        let mut at = around.0;
        for Past { interval, exit } in self.within(around.0, around.1.min(refuted)) {
            let (from, to) = (interval.from.max(at), interval.to.min(around.1).min(refuted));
            if from > at {
                add(unknown(at, from, why(at)), None);
            }
            let exit = exit.filter(|_| interval.from >= of.from && interval.from < of.to);
            let (piece, is_on) = product(of, interval);
            add(Interval { from, to, ..piece }, exit.filter(|_| is_on));
            at = to;
        }
        if at < around.1 {
            add(unknown(at, around.1, why(at)), None);
        }
        // Time within the bound of a border is unknown, because the time may be on either side of the border.
        let mut at = of.from;
        for (number, (piece, exit)) in pieces.iter().enumerate() {
            let differs = |other: Option<&Divided>| {
                other.is_some_and(|(other, _)| !is_same(other, piece)).then_some(bound)
            };
            let before = differs(number.checked_sub(1).and_then(|before| pieces.get(before)));
            let after = differs(pieces.get(number + 1));
            let from = piece.from.saturating_add(before.unwrap_or(0)).clamp(at, of.to);
            let to = piece.to.saturating_sub(after.unwrap_or(0)).min(of.to);
            let mut exit = *exit;
            if from > at {
                out.push((unknown(at, from, Unknown::Border), exit.take()));
                at = from;
            }
            if to > at {
                let ended_by = if to == of.to { of.ended_by } else { piece.ended_by };
                out.push((Interval { from: at, to, ended_by, ..*piece }, exit.take()));
                at = to;
            } else if exit.is_some() {
                // The exit is shorter than the error of the times, but the exit happened, so it counts.
                out.push((unknown(at, at, Unknown::Border), exit));
            }
        }
        if of.to > at {
            out.push((unknown(at, of.to, Unknown::Border), None));
        }
    }
}

/// The guest's kernel told the part of an interval. Returns whether a guest's thread has a CPU, or waits for
/// a CPU, in this part.
fn has_cpu(part: Part) -> bool {
    matches!(part, Part::OnCpu | Part::Behind | Part::Runnable)
}

/// Returns whether two intervals have the same part, reason and cause.
fn is_same(a: &Interval, b: &Interval) -> bool {
    (a.part, a.reason, a.cause) == (b.part, b.reason, b.cause)
}

fn unknown(from: i64, to: i64, why: Unknown) -> Interval {
    Interval { from, to, part: Part::Unknown, reason: 0, cause: why.number(), ended_by: None }
}

/// Combines an interval of a guest's thread with an interval of the vCPU's thread at the same time. The
/// function also returns whether an exit in this time is an exit of the guest's thread.
fn product(guest: &Interval, host: &Interval) -> (Interval, bool) {
    let is_on = guest.part == Part::OnCpu;
    let piece = match host.part {
        Part::Unknown => unknown(host.from, host.to, Unknown::Vcpu),
        Part::Stolen => *host,
        // The thread waits for another thread of the guest, so it does not matter what the other thread did
        // with the CPU.
        _ if guest.part == Part::Behind => *guest,
        Part::Halted | Part::OffCpu => *host,
        _ if is_on => *host,
        _ => *guest,
    };
    // If the thread had no CPU, then another thread of the guest, or the idle thread, made the exit.
    (Interval { reason: if is_on { piece.reason } else { 0 }, ..piece }, is_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: GuestCpu = (1, 0);

    fn interval(from: i64, to: i64, part: Part) -> Interval {
        Interval { from, to, part, reason: 0, cause: 0, ended_by: None }
    }

    /// Makes a vCPU that is in guest mode from 100 to 200, then in the kernel until 300, and so on.
    fn vcpus() -> Vcpus {
        with(&[CPU])
    }

    /// Makes the same vCPU, but the vCPU's thread runs all CPUs in `cpus`.
    fn with(cpus: &[GuestCpu]) -> Vcpus {
        let (tid, inside, refuted) = (7, i64::MIN, None);
        let proof =
            |cpu: &GuestCpu| Proof { cpu: *cpu, tid, unchecked: VecDeque::new(), inside, refuted };
        Vcpus { end: i64::MAX, ..Vcpus::with(cpus.iter().map(proof).collect(), (9, 9)) }
    }

    fn take(vcpus: &mut Vcpus, rounds: std::ops::Range<i64>) {
        for from in rounds.map(|round| round * 200 + 100) {
            vcpus.take(7, &interval(from, from + 100, Part::Guest), None);
            vcpus.take(7, &interval(from + 100, from + 200, Part::Kernel), Some(1));
        }
    }

    /// Divides the time of a thread that has the CPU.
    fn divided(vcpus: &mut Vcpus, from: i64, to: i64) -> Vec<(i64, i64, Part)> {
        let mut unplaced = Unplaced::of(CPU.0);
        unplaced.waiting.push_back((interval(from, to, Part::OnCpu), Some(0)));
        vcpus.hold(CPU.0, 1);
        let mut out = Vec::new();
        unplaced.divide(Waiter::Thread(3), vcpus, &mut out);
        out.into_iter().map(|(of, _)| (of.from, of.to, of.part)).collect()
    }

    #[test]
    fn time_within_the_bound_of_a_border_is_unknown_also_where_the_border_is_outside() {
        let mut vcpus = vcpus();
        vcpus.guest_event(CPU, 120, Some(10));
        take(&mut vcpus, 0..3);

        use Part::{Guest, Kernel, Unknown};
        let expected = [(120, 190, Guest), (190, 210, Unknown), (210, 280, Kernel)];
        assert_eq!(divided(&mut vcpus, 120, 280), expected);
        let expected = [(205, 210, Unknown), (210, 290, Kernel), (290, 295, Unknown)];
        assert_eq!(divided(&mut vcpus, 205, 295), expected);
        // An interval that is shorter than the error has no part, and the intervals before and after it keep
        // their parts.
        vcpus.guest_event(CPU, 300, Some(60));
        assert_eq!(divided(&mut vcpus, 310, 390), [(310, 360, Unknown), (360, 390, Unknown)]);
    }

    #[test]
    fn a_guests_events_and_their_bound_count_for_no_other_guest() {
        let another = (2, 0);
        let mut vcpus = with(&[CPU, another]);
        vcpus.guest_event(CPU, 120, Some(10));
        // The event at 250 comes while the vCPU is in the kernel.
        for (time, bound) in [(110, Some(1)), (150, Some(100)), (160, None), (250, Some(1))] {
            vcpus.guest_event(another, time, bound);
        }
        take(&mut vcpus, 0..3);

        use Part::{Guest, Kernel, Unknown};
        let expected = [(120, 190, Guest), (190, 210, Unknown), (210, 280, Kernel)];
        assert_eq!(divided(&mut vcpus, 120, 280), expected);
        assert_eq!(Vec::from_iter(vcpus.proven()), [(CPU, 7, None), (another, 7, Some(150))]);
    }

    #[test]
    fn the_intervals_of_a_guest_that_wait_take_no_space_from_another_one() {
        let another = (2, 0);
        let mut vcpus = with(&[CPU, another]);
        let causes = Causes::new();
        let push = |vcpus: &mut Vcpus, clock: u32, count: usize| {
            let mut unplaced = Unplaced::of(clock);
            let all = (0..count).map(|_| interval(0, 1, Part::OnCpu));
            all.for_each(|of| unplaced.push_on(of, Some(0), vcpus, &causes));
            unplaced.is_cut
        };
        assert!(push(&mut vcpus, 2, MAX_UNPLACED.0 / 2 + 1));
        assert!(!push(&mut vcpus, 1, MAX_UNPLACED.0 / 2));
        assert!(push(&mut vcpus, 1, 1));
    }

    #[test]
    fn what_is_stolen_or_halted_in_an_exit_is_of_the_exit_of_the_thread_that_had_the_cpu() {
        for part in [Part::Stolen, Part::Halted] {
            let host = Interval { reason: 5, ..interval(100, 200, part) };
            let reason_of = |own| product(&interval(50, 300, own), &host).0.reason;
            assert_eq!([Part::OnCpu, Part::Behind, Part::Runnable].map(reason_of), [5, 0, 0]);
        }
    }

    #[test]
    fn a_thread_that_is_ready_while_the_vm_is_stopped_waits_for_nobody_that_woke_the_vcpu() {
        let woken_by = |cause, part| Interval { cause, ..interval(100, 200, part) };
        let host = woken_by(7, Part::Blocked);
        for own in [Part::Behind, Part::Runnable] {
            let (piece, _) = product(&woken_by(3, own), &host);
            assert_eq!((piece.part, piece.cause), (own, 3));
        }
    }

    #[test]
    fn an_event_outside_of_guest_mode_makes_time_unknown_from_the_one_before() {
        let mut vcpus = vcpus();
        for time in [110, 150, 320, 340, 450] {
            vcpus.guest_event(CPU, time, Some(2));
        }
        take(&mut vcpus, 0..4);

        assert_eq!(Vec::from_iter(vcpus.refuted()), [(0, 7)]);
        assert_eq!(
            divided(&mut vcpus, 310, 340),
            [(310, 338, Part::Guest), (338, 340, Part::Unknown)]
        );
        assert_eq!(divided(&mut vcpus, 710, 760), [(710, 760, Part::Unknown)]);
    }

    #[test]
    fn a_thread_waits_for_what_is_not_known_yet_and_gets_no_part_of_what_is_forgotten() {
        let mut vcpus = vcpus();
        vcpus.guest_event(CPU, 50, Some(0));
        take(&mut vcpus, 0..1);

        assert_eq!(divided(&mut vcpus, 150, 400), []);
        assert_eq!(vcpus.next_waiting(7), None);
        take(&mut vcpus, 1..9);
        assert_eq!(vcpus.next_waiting(7), Some(Waiter::Thread(3)));
        assert_eq!(vcpus.next_waiting(7), None);
        // Nine intervals are kept.
        assert_eq!(divided(&mut vcpus, 150, 400), [(150, 400, Part::Unknown)]);
        assert_eq!(divided(&mut vcpus, 1_510, 1_590), [(1_510, 1_590, Part::Guest)]);
    }
}
