// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The time of a guest's threads by both kernels: the guest's says which CPU a thread had or waited for, and the host's
//! what the vCPU's thread did meanwhile.
//!
//! A guest's thread that has a guest's CPU runs only while the vCPU is in guest mode. A thread that waits for a guest's CPU
//! waits for the guest's thread that has the CPU, or for a thread of the host that took the vCPU's.
//!
//! Which thread of the host runs a guest's CPU is proven: all events of the guest's kernel on that CPU lie in guest mode of
//! one thread. An event that does not refutes the proof from there on.
//!
//! The guest's times have a bound. Within the bound of a border between two intervals of the host, where the parts on both
//! sides differ, the time is unknown.

use super::causes::{Causes, Unknown};
use super::parts::{Interval, Part, Reason};
use crate::inputs::ctf::{ClockMaps, proven_threads};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};

/// Maximum number of past intervals that are kept of all vCPUs together, of 64 bytes each; a vCPU keeps the second number in
/// any case.
const MOST_PAST: (usize, usize) = (1 << 19, 1 << 12);
/// Maximum number of intervals of a guest's threads that wait until the host's kernel has shown what the vCPU did, of 64 bytes
/// each.
pub(super) const MOST_UNPLACED: usize = 1 << 19;
/// Maximum number of a guest CPU's events that wait to be compared with guest mode. While as many wait, later events are not
/// compared.
const MOST_UNCHECKED: usize = 1 << 12;

/// A CPU of a guest: the guest's clock, and the guest's number of the CPU. A guest that is reset, or started again, has another
/// clock.
pub(super) type GuestCpu = (u32, u16);

/// The CPUs of a session's guests.
#[derive(Debug)]
pub(super) struct Vcpus {
    /// By the number of the host's thread that runs the CPU.
    all: HashMap<u32, Vcpu>,
    /// That thread.
    threads: HashMap<GuestCpu, u32>,
    /// CPUs that had events, and whose thread is not known.
    unproven: BTreeSet<GuestCpu>,
    /// Bounds on the error of the guest's times, each from a time on.
    bounds: VecDeque<(i64, Option<u64>)>,
    /// Number of the intervals of the guest's threads, and of critical paths, that wait.
    pub unplaced: usize,
    /// Time of the last event of the guest so far, and of the last one of the host's recordings.
    now: i64,
    pub end: i64,
}

/// A thread of the host that runs a CPU of a guest.
#[derive(Debug, Default)]
struct Vcpu {
    /// What it did, in order, and up to when that is known.
    past: VecDeque<Past>,
    until: i64,
    most: usize,
    /// Times of the guest's events that were not looked for yet, and the last one that was in guest mode.
    unchecked: VecDeque<i64>,
    inside: i64,
    /// The time from which on it is not known that it runs the CPU.
    refuted: Option<i64>,
    /// Who waits for the past, and up to which time.
    waiting: BinaryHeap<Reverse<(i64, Waiter)>>,
}

/// Who waits for the past of a thread of the host that runs a guest's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Waiter {
    /// The guest's thread with this index.
    Thread(usize),
    /// The critical path of the region with this index.
    Path(u32),
}

/// An interval of a vCPU's thread, with the reason of the exit that begins with it.
#[derive(Clone, Copy, Debug)]
struct Past {
    interval: Interval,
    exit: Option<Reason>,
}

/// Intervals of a guest's thread, or of a critical path, that wait.
#[derive(Debug, Default)]
pub(super) struct Unplaced {
    /// Each with the thread of the host whose past divides it.
    waiting: VecDeque<(Interval, Option<u32>)>,
    /// The guest's CPU that the thread has.
    cpu: Option<u16>,
    /// The thread of the host for whose past it waits.
    waits_for: Option<u32>,
    /// Whether more had to wait than are kept.
    pub is_cut: bool,
}

/// An interval that is divided, with the reason of the exit that begins with it.
type Divided = (Interval, Option<Reason>);

impl Vcpus {
    /// Returns those of the guest's CPUs whose thread is known; `None` if there are none.
    pub fn of(maps: &ClockMaps) -> Option<Vcpus> {
        let threads = proven_threads(maps).into_iter();
        let threads: HashMap<GuestCpu, u32> = threads
            .filter_map(|((clock, cpu), tid)| Some(((clock, u16::try_from(cpu).ok()?), tid)))
            .collect();
        let most = (MOST_PAST.0 / threads.len().max(1)).max(MOST_PAST.1);
        let vcpu = || Vcpu { until: i64::MIN, inside: i64::MIN, most, ..Vcpu::default() };
        let all = threads.values().map(|tid| (*tid, vcpu())).collect();
        let vcpus = Vcpus {
            all,
            threads,
            unproven: BTreeSet::new(),
            bounds: VecDeque::new(),
            unplaced: 0,
            now: i64::MIN,
            end: i64::MIN,
        };
        (!vcpus.all.is_empty()).then_some(vcpus)
    }

    /// Iterates over the threads of the host that run them.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.all.keys().copied()
    }

    /// Returns whether a thread of the host runs a guest's CPU.
    pub fn has(&self, tid: u32) -> bool {
        self.all.contains_key(&tid)
    }

    /// Iterates over the threads of the host that turned out not to run a guest's CPU, with the guest's number of it.
    pub fn refuted(&self) -> impl Iterator<Item = (u16, u32)> {
        let refuted = self.all.iter().filter(|(_, vcpu)| vcpu.refuted.is_some());
        refuted.filter_map(|(tid, _)| {
            let mut cpus = self.threads.iter().filter(|(_, of)| *of == tid);
            cpus.next().map(|((_, cpu), _)| (*cpu, *tid))
        })
    }

    /// Iterates over the guests' CPUs whose thread is proven, with the time from which on it is not any more.
    pub fn proven(&self) -> impl Iterator<Item = (GuestCpu, u32, Option<i64>)> {
        let until = |tid| self.all.get(tid).and_then(|vcpu| vcpu.refuted);
        self.threads.iter().map(move |(cpu, tid)| (*cpu, *tid, until(tid)))
    }

    /// Returns how many CPUs of guests had events, and no thread of the host is known to run them.
    pub fn unproven(&self) -> usize {
        self.unproven.len()
    }

    /// Takes an event of the guest's kernel on a CPU, with the bound on the error of its time.
    pub fn guest_event(&mut self, cpu: GuestCpu, time: i64, bound: Option<u64>) {
        self.now = time;
        let last = self.bounds.back().map(|(_, bound)| *bound);
        let is_new = match (last, bound) {
            (Some(Some(last)), Some(bound)) => bound > last || bound < last / 2,
            (Some(last), bound) => last != bound,
            (None, _) => true,
        };
        if is_new {
            // Before that, the larger one of both counts.
            if self.bounds.len() == MOST_UNCHECKED {
                let first = self.bounds.pop_front().map(|(_, bound)| bound);
                if let (Some(first), Some(next)) = (first, self.bounds.front_mut()) {
                    next.1 = next.1.zip(first).map(|(a, b)| a.max(b));
                }
            }
            self.bounds.push_back((time, bound));
        }
        let Some(tid) = self.threads.get(&cpu) else {
            if self.unproven.len() < MOST_UNCHECKED {
                self.unproven.insert(cpu);
            }
            return;
        };
        let Some(vcpu) = self.all.get_mut(tid).filter(|vcpu| vcpu.refuted.is_none()) else {
            return;
        };
        if let (Some(_), true) = (bound, vcpu.unchecked.len() < MOST_UNCHECKED) {
            vcpu.unchecked.push_back(time);
        }
    }

    /// Returns the largest bound in a time: of the event before it, and of those in it.
    fn bound(&self, from: i64, to: i64) -> Option<i64> {
        let begin = self.bounds.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let end = self.bounds.partition_point(|(at, _)| *at <= to).max(begin);
        let mut bounds = self.bounds.range(begin..end).map(|(_, bound)| *bound).peekable();
        bounds.peek()?;
        let most = bounds.try_fold(0, |most, bound| Some(most.max(bound?)))?;
        i64::try_from(most).ok()
    }

    /// Takes an interval of a thread that runs a CPU, with the reason of the exit that begins with it.
    pub fn take(&mut self, tid: u32, interval: &Interval, exit: Option<Reason>) {
        let Some(vcpu) = self.all.get_mut(&tid) else { return };
        vcpu.until = interval.to;
        if vcpu.past.len() >= vcpu.most {
            vcpu.past.pop_front();
        }
        vcpu.past.push_back(Past { interval: *interval, exit });
        while let Some(time) = self.all.get(&tid).and_then(|vcpu| vcpu.unchecked.front().copied()) {
            let bound = self.bound(time, time);
            let Some(vcpu) = self.all.get_mut(&tid) else { return };
            if bound.is_some_and(|bound| time.saturating_add(bound) >= vcpu.until) {
                return;
            }
            vcpu.unchecked.pop_front();
            bound.into_iter().for_each(|bound| vcpu.check(time, bound));
        }
    }

    /// Takes one who waited for the past of a thread of the host, which is known now.
    pub fn next_waiting(&mut self, tid: u32) -> Option<Waiter> {
        let vcpu = self.all.get_mut(&tid)?;
        let Reverse((to, waiter)) = *vcpu.waiting.peek()?;
        (to <= vcpu.until).then(|| {
            vcpu.waiting.pop();
            waiter
        })
    }

    /// Knows no more of any CPU.
    pub fn end(&mut self) {
        self.all.values_mut().for_each(|vcpu| vcpu.until = i64::MAX);
    }
}

impl Vcpu {
    /// Returns the intervals that overlap a time.
    fn within(&self, from: i64, to: i64) -> impl Iterator<Item = &Past> {
        let begin = self.past.partition_point(|past| past.interval.to <= from);
        self.past.range(begin..).take_while(move |past| past.interval.from < to)
    }

    /// Looks for an event of the guest in guest mode.
    fn check(&mut self, time: i64, bound: i64) {
        let (from, to) = (time.saturating_sub(bound), time.saturating_add(bound));
        // Both ends of an interval are in it.
        let may_be = |past: &Past| matches!(past.interval.part, Part::Guest | Part::Unknown);
        let begin = self.past.partition_point(|past| past.interval.to < from);
        let mut touched =
            self.past.range(begin..).take_while(|past| past.interval.from <= to).peekable();
        let is_known = touched.peek().is_some_and(|first| first.interval.from <= from);
        if !is_known || touched.any(may_be) {
            self.inside = self.inside.max(time);
        } else if self.refuted.is_none() {
            self.refuted = Some(self.inside);
            self.unchecked.clear();
        }
    }
}

impl Unplaced {
    /// Returns whether no interval waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next proven interval of a thread. `clock` is that of the guest.
    pub fn push(
        &mut self,
        interval: Interval,
        clock: Option<u32>,
        vcpus: &mut Vcpus,
        causes: &Causes,
    ) {
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
        self.push_on(interval, clock.zip(cpu), vcpus, causes);
    }

    /// Takes the next interval, of a thread that had this CPU or got it next.
    pub fn push_on(
        &mut self,
        mut interval: Interval,
        cpu: Option<GuestCpu>,
        vcpus: &mut Vcpus,
        causes: &Causes,
    ) {
        if interval.part == Part::Runnable && causes.is_thread(interval.cause) {
            interval.part = Part::Behind;
        }
        let tid = cpu.and_then(|cpu| vcpus.threads.get(&cpu).copied());
        self.waiting.push_back((interval, tid));
        vcpus.unplaced += 1;
        if vcpus.unplaced > MOST_UNPLACED {
            self.is_cut = true;
            self.waiting.iter_mut().for_each(|(_, tid)| *tid = None);
        }
    }

    /// Forgets all: no region needs them.
    pub fn clear(&mut self, vcpus: &mut Vcpus) {
        vcpus.unplaced -= self.waiting.len();
        self.waiting.clear();
    }

    /// Notes that they do not wait for a CPU's past any more.
    pub fn wake(&mut self) {
        self.waits_for = None;
    }

    /// Divides the intervals whose vCPU's past is known. `waiter` waits for the past of those after them.
    pub fn divide(&mut self, waiter: Waiter, vcpus: &mut Vcpus, out: &mut Vec<Divided>) {
        while let Some((interval, tid)) = self.waiting.front() {
            let Interval { from, to, .. } = *interval;
            let vcpu = tid.and_then(|tid| vcpus.all.get(&tid));
            match (vcpu, vcpus.bound(from, to)) {
                // After the host's last event, nothing more becomes known.
                (Some(vcpu), Some(bound))
                    if vcpu.until < to.saturating_add(bound) && vcpus.now <= vcpus.end =>
                {
                    if let Some(vcpu) = tid.and_then(|tid| vcpus.all.get_mut(&tid))
                        && self.waits_for != *tid
                    {
                        vcpu.waiting.push(Reverse((to.saturating_add(bound), waiter)));
                        self.waits_for = *tid;
                    }
                    return;
                }
                (Some(vcpu), Some(bound)) => vcpu.divide(interval, bound, out),
                // Which thread runs the CPU, or when, is not known.
                _ if has_cpu(interval.part) => {
                    let why = if self.is_cut { Unknown::TooMany } else { Unknown::Vcpu };
                    out.push((unknown(from, to, why), None));
                }
                _ => out.push((*interval, None)),
            }
            self.waiting.pop_front();
            vcpus.unplaced -= 1;
        }
    }
}

impl Vcpu {
    /// Divides an interval of a guest's thread that had this CPU, or waited for it.
    fn divide(&self, of: &Interval, bound: i64, out: &mut Vec<Divided>) {
        let around = (of.from.saturating_sub(bound), of.to.saturating_add(bound));
        let forgotten = self.past.front().filter(|_| self.past.len() >= self.most);
        let forgotten = forgotten.map_or(i64::MIN, |first| first.interval.from);
        let why = |at| if at < forgotten { Unknown::TooMany } else { Unknown::Vcpu };
        let refuted = self.refuted.unwrap_or(i64::MAX);
        // One after the other, from the beginning of the bound to its end.
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
        // Within the bound of a border, either side may be meant.
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
                // The exit is shorter than the error, and was there all the same.
                out.push((unknown(at, at, Unknown::Border), exit));
            }
        }
        if of.to > at {
            out.push((unknown(at, of.to, Unknown::Border), None));
        }
    }
}

/// Returns whether a guest's thread has a CPU in a part by its own kernel, or waits for one.
fn has_cpu(part: Part) -> bool {
    matches!(part, Part::OnCpu | Part::Behind | Part::Runnable)
}

/// Returns whether the time of two intervals is of one kind.
fn is_same(a: &Interval, b: &Interval) -> bool {
    (a.part, a.reason, a.cause) == (b.part, b.reason, b.cause)
}

fn unknown(from: i64, to: i64, why: Unknown) -> Interval {
    Interval { from, to, part: Part::Unknown, reason: 0, cause: why.number(), ended_by: None }
}

/// Returns what the time of a guest's thread is, where this is what its vCPU's thread did; and whether an exit there is
/// the guest's thread's own.
fn product(guest: &Interval, host: &Interval) -> (Interval, bool) {
    let is_on = guest.part == Part::OnCpu;
    let piece = match host.part {
        Part::Unknown => unknown(host.from, host.to, Unknown::Vcpu),
        Part::Stolen => *host,
        // Whatever the guest's other thread did with the CPU.
        _ if guest.part == Part::Behind => *guest,
        Part::Halted | Part::OffCpu => *host,
        _ if is_on => *host,
        _ => *guest,
    };
    // Another thread, or the idle one, made the exit.
    (Interval { reason: if is_on { piece.reason } else { 0 }, ..piece }, is_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: GuestCpu = (1, 0);

    fn interval(from: i64, to: i64, part: Part) -> Interval {
        Interval { from, to, part, reason: 0, cause: 0, ended_by: None }
    }

    /// Makes a vCPU that is in guest mode from 100 to 200, and then in the kernel until 300, and so on.
    fn vcpus() -> Vcpus {
        let vcpu = Vcpu { until: i64::MIN, inside: i64::MIN, most: 9, ..Vcpu::default() };
        let (all, threads, unproven) = ([(7, vcpu)].into(), [(CPU, 7)].into(), BTreeSet::new());
        let (bounds, unplaced, now) = (VecDeque::new(), 1, i64::MIN);
        Vcpus { all, threads, unproven, bounds, unplaced, now, end: i64::MAX }
    }

    fn take(vcpus: &mut Vcpus, rounds: std::ops::Range<i64>) {
        for from in rounds.map(|round| round * 200 + 100) {
            vcpus.take(7, &interval(from, from + 100, Part::Guest), None);
            vcpus.take(7, &interval(from + 100, from + 200, Part::Kernel), Some(1));
        }
    }

    /// Divides the time of a thread that has the CPU.
    fn divided(vcpus: &mut Vcpus, from: i64, to: i64) -> Vec<(i64, i64, Part)> {
        let mut unplaced = Unplaced::default();
        unplaced.waiting.push_back((interval(from, to, Part::OnCpu), Some(7)));
        vcpus.unplaced += 1;
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
        // An interval that is shorter than the error has no part, and its neighbours keep theirs.
        vcpus.guest_event(CPU, 300, Some(60));
        assert_eq!(divided(&mut vcpus, 310, 390), [(310, 360, Unknown), (360, 390, Unknown)]);
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
