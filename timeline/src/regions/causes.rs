// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What threads waited for. A ready thread waited for the thread that had the CPU. A thread that slept waited
//! for what woke the thread.

use super::lives::Life;
use super::members;
use super::parts::{Interval, Part};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::rc::Rc;

/// Maximum size of the name of a thread with its NUL, in bytes: Linux's `TASK_COMM_LEN`.
const COMM: usize = 16;
/// Maximum number of names of threads that are kept, not counting the first name of each thread. Each name
/// takes some 32 bytes.
const MAX_NAMES: usize = 1 << 16;
/// Maximum number of causes that are kept of a thread's waits, until the thread has no open region. Waits
/// with further causes count for [`Cause::Others`].
const MAX_OF_THREAD: usize = 1 << 11;
/// Maximum number of causes of waits in the regions of a group.
const MAX_OF_GROUP: usize = 1 << 12;

/// Names of softirqs, by their numbers in the kernel.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Index of a cause in [`Regions::causes`](super::Regions::causes).
pub type CauseNumber = u16;

/// What a thread waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "members::Cause")]
#[non_exhaustive]
pub enum Cause {
    /// The cause is not known.
    Unknown(Unknown),
    /// A thread that had the CPU on which the waiting thread ran next, or that woke the waiting thread.
    Thread {
        /// Id of the thread.
        tid: u32,
        /// Last name of the thread, if it is known. The program chooses the name: escape it.
        name: Option<String>,
        /// Number of names that the thread had while other threads waited for the thread; 0 if no name is
        /// known. The first name of each thread is always counted. Of all further names, at most 65,536 are
        /// counted for all threads together.
        names: u32,
        /// Session whose vCPU or program the thread runs: an index of
        /// [`Regions::sessions`](super::Regions::sessions).
        session: Option<usize>,
    },
    /// No thread had the CPU for which the thread waited, because a wake-up, or a move from another CPU, was
    /// under way. If `Idle` is the cause of a wake-up, the kernel's idle loop woke the thread.
    Idle,
    /// A high resolution timer.
    Timer,
    /// A hard interrupt, with the name of its handler if the name was recorded.
    Interrupt(Option<String>),
    /// A softirq, with its name if its beginning was recorded.
    Softirq(Option<&'static str>),
    /// A cause without a separate id, because there are too many causes.
    Others,
}

/// Why the cause of a wait is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Unknown {
    /// Only the session's own threads were recorded.
    NotRecorded,
    /// An event of the CPU, or the wake-up, is missing.
    Missing,
    /// Too many other threads had the CPU in the meantime.
    TooMany,
    /// It is not known which thread a region was on. Only for paths.
    NoThread,
    /// The region's thread had no CPU at the time of the region's end. The error of the clock that gave this
    /// time can be the reason. Only for paths.
    Clock,
    /// The host's recording does not prove what the guest's CPU did, or which thread of the host runs that
    /// CPU. Only for a guest's threads.
    Vcpu,
    /// The time is near a border between two parts of the vCPU's thread. The distance to the border is at
    /// most the error of the guest's clock, so either part may be right. Only for a guest's threads.
    Border,
    /// No thread was in the span, and it is not known what the span waited for. Only for paths of spans.
    Idle,
}

impl Unknown {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Unknown; 8] = [
        Unknown::NotRecorded,
        Unknown::Missing,
        Unknown::TooMany,
        Unknown::NoThread,
        Unknown::Clock,
        Unknown::Vcpu,
        Unknown::Border,
        Unknown::Idle,
    ];

    /// Returns the reason's name in JSON, such as `not_recorded`. The name never changes.
    pub fn key(self) -> &'static str {
        match self {
            Unknown::NotRecorded => "not_recorded",
            Unknown::Missing => "missing_event",
            Unknown::TooMany => "too_many",
            Unknown::NoThread => "no_thread",
            Unknown::Clock => "clock_error",
            Unknown::Vcpu => "vcpu_not_proven",
            Unknown::Border => "clock_bound",
            Unknown::Idle => "idle",
        }
    }

    /// Returns the number that stands for this reason where a cause is expected.
    pub(super) const fn number(self) -> CauseNumber {
        self as CauseNumber
    }
}

/// A name of a thread, with NUL bytes after it.
type Comm = [u8; COMM];

/// A thread, whose name may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub tid: u32,
    /// Index of the kernel's trace, because another machine may have a thread with the same id.
    pub trace: u16,
    /// Life of the number. Threads that had the same id one after another have different lives.
    pub life: Life,
}

/// A thread as an event of the scheduler shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub thread: Thread,
    comm: Comm,
}

impl Task {
    pub fn new(thread: Thread, name: &[u8]) -> Task {
        let mut comm = [0; COMM];
        // The name of an idle thread is left out, because the idle thread of each CPU has another name.
        let len = if thread.tid == 0 { 0 } else { name.len().min(COMM) };
        comm[..len].copy_from_slice(&name[..len]);
        Task { thread, comm }
    }

    /// Returns the number of the task's thread.
    pub fn tid(&self) -> u32 {
        self.thread.tid
    }
}

/// The names that a thread had while others waited for it.
#[derive(Clone, Copy, Debug)]
struct Names {
    first: Comm,
    last: Comm,
    /// Time of the event with the last name.
    at: i64,
    count: u32,
}

impl Names {
    /// Returns the last name.
    fn last(&self) -> String {
        let name = self.last.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

/// A cause while the events are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Found {
    Unknown(Unknown),
    Thread(Thread),
    Idle,
    Timer,
    Interrupt(Option<Box<[u8]>>),
    Softirq(Option<u8>),
    Others,
}

/// All causes, by id.
#[derive(Debug)]
pub(super) struct Causes {
    all: Vec<Found>,
    numbers: HashMap<Found, CauseNumber>,
    /// Names of threads that events named.
    names: HashMap<CauseNumber, Names>,
    /// For each thread, all names after the thread's first name.
    others: HashSet<(CauseNumber, Comm)>,
}

impl Causes {
    /// Number of [`Cause::Others`].
    pub const OTHERS: CauseNumber = Unknown::ALL.len() as CauseNumber;

    pub fn new() -> Causes {
        let (all, numbers) = (Vec::new(), HashMap::new());
        let mut causes = Causes { all, numbers, names: HashMap::new(), others: HashSet::new() };
        // These causes get their numbers before any thread, because a guest may name more threads than there
        // are numbers. Parts depend on whether a CPU was idle.
        let all = [
            Found::Others,
            Found::Idle,
            Found::Timer,
            Found::Interrupt(None),
            Found::Softirq(None),
        ];
        for first in Unknown::ALL.map(Found::Unknown).into_iter().chain(all) {
            causes.number(first);
        }
        causes
    }

    /// If the number stands for an unknown cause of a wait, returns why the cause is not known.
    pub fn unknown(number: CauseNumber) -> Option<Unknown> {
        let all = [Unknown::NotRecorded, Unknown::Missing, Unknown::TooMany];
        all.get(usize::from(number)).copied()
    }

    /// Returns whether a cause is a thread, or [`Cause::Others`].
    pub fn is_thread(&self, number: CauseNumber) -> bool {
        let found = self.all.get(usize::from(number));
        matches!(found, Some(Found::Thread(_) | Found::Others))
    }

    /// Returns whether a cause says that no thread had the CPU.
    pub fn is_idle(&self, number: CauseNumber) -> bool {
        matches!(self.all.get(usize::from(number)), Some(Found::Idle))
    }

    /// Returns whether a cause is a hard interrupt, or a softirq that is not a timer's.
    pub fn is_interrupt(&self, number: CauseNumber) -> bool {
        match self.all.get(usize::from(number)) {
            Some(Found::Interrupt(_)) => true,
            Some(Found::Softirq(vec)) => {
                let name = vec.and_then(|vec| SOFTIRQS.get(usize::from(vec)));
                name.is_some_and(|name| !name.ends_with("TIMER"))
            }
            _ => false,
        }
    }

    /// Returns the id of a cause, or [`Causes::OTHERS`] if there are too many causes.
    pub fn number(&mut self, cause: Found) -> CauseNumber {
        if let Some(number) = self.numbers.get(&cause) {
            return *number;
        }
        let Ok(number) = CauseNumber::try_from(self.all.len()) else { return Causes::OTHERS };
        self.all.push(cause.clone());
        self.numbers.insert(cause, number);
        number
    }

    /// Returns the cause id of a thread. An event at the time `at` told the thread's name. A thread that
    /// renames itself stays the same cause.
    pub fn thread(&mut self, task: &Task, at: i64) -> CauseNumber {
        if task.tid() == 0 {
            return self.number(Found::Idle);
        }
        let number = self.number(Found::Thread(task.thread));
        let comm = task.comm;
        if number == Causes::OTHERS || comm[0] == 0 {
            return number;
        }
        let new = Names { first: comm, last: comm, at, count: 1 };
        let names = self.names.entry(number).or_insert(new);
        if names.last != comm
            && names.first != comm
            && self.others.len() < MAX_NAMES
            && self.others.insert((number, comm))
        {
            names.count += 1;
        }
        // The name with the latest time is kept, because the turns of a CPU in a wait are read from the last
        // to the first.
        if names.at <= at {
            (names.last, names.at) = (comm, at);
        }
        number
    }

    /// Returns the cause with a number. `thread` returns the name and the session of a thread, if known. The
    /// arguments of `thread` are the index of the trace and the id of the thread.
    pub fn get(
        &self,
        number: CauseNumber,
        thread: impl Fn(u16, u32) -> (Option<String>, Option<usize>),
    ) -> Cause {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.all[usize::from(number)] {
            Found::Unknown(why) => Cause::Unknown(*why),
            Found::Idle => Cause::Idle,
            Found::Thread(Thread { tid, trace, life }) => {
                // If several threads had this number, nothing says which of these threads belongs to a
                // session.
                let (name, session) = if *life > 0 { (None, None) } else { thread(*trace, *tid) };
                let names = self.names.get(&number);
                let count = names.map_or(u32::from(name.is_some()), |names| names.count);
                let name = names.map(Names::last).or(name);
                Cause::Thread { tid: *tid, name, names: count, session }
            }
            Found::Timer => Cause::Timer,
            Found::Interrupt(name) => Cause::Interrupt(name.as_deref().map(text)),
            Found::Softirq(vec) => {
                Cause::Softirq(vec.and_then(|vec| SOFTIRQS.get(usize::from(vec)).copied()))
            }
            Found::Others => Cause::Others,
        }
    }

    /// Returns all causes, by id.
    pub fn finish(
        &self,
        thread: impl Fn(u16, u32) -> (Option<String>, Option<usize>),
    ) -> Vec<Cause> {
        // The range is inclusive, because the last number may be the largest `CauseNumber`.
        let numbers = (0..=CauseNumber::MAX).take(self.all.len());
        numbers.map(|number| self.get(number, &thread)).collect()
    }
}

impl fmt::Display for Cause {
    /// Formats the cause in a few words, with names as they are.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Unknown(_) => out.write_str("not known"),
            Cause::Thread { tid, name: Some(name), .. } => write!(out, "{name}-{tid}"),
            Cause::Thread { tid, name: None, .. } => write!(out, "thread {tid}"),
            Cause::Idle => out.write_str("idle CPU"),
            Cause::Timer => out.write_str("timer"),
            Cause::Interrupt(Some(name)) => write!(out, "interrupt {name}"),
            Cause::Interrupt(None) => out.write_str("interrupt"),
            Cause::Softirq(Some(name)) => write!(out, "softirq {name}"),
            Cause::Softirq(None) => out.write_str("softirq"),
            Cause::Others => out.write_str("others"),
        }
    }
}

/// The part of a wait, and its cause.
pub(super) type Wait = (Part, CauseNumber);

/// Sums of a thread's waits by cause. Copies share memory until one of them changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits(Option<Rc<Vec<(Wait, u64)>>>);

impl Waits {
    /// Adds an interval, if it is a wait whose cause was searched for.
    pub fn add(&mut self, interval: &Interval) {
        if interval.part == Part::Unknown || interval.cause == Unknown::NotRecorded.number() {
            return;
        }
        let wait = (interval.part, interval.cause);
        add(Rc::make_mut(self.0.get_or_insert_default()), wait, interval.length(), MAX_OF_THREAD);
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &Waits) -> Box<[(Wait, u64)]> {
        let Some(now) = &self.0 else { return Box::default() };
        let before = match &before.0 {
            Some(before) if Rc::ptr_eq(now, before) => return Box::default(),
            Some(before) => &before[..],
            None => &[],
        };
        // New waits are only added at the end, so each wait has the same place in `before` and in `now`.
        let old = |at: usize| before.get(at).map_or(0, |(_, time)| *time);
        let since = now.iter().enumerate().map(|(at, (wait, time))| (*wait, time - old(at)));
        since.filter(|(_, time)| *time > 0).collect()
    }
}

/// Adds time of a wait. If there are `most` causes already, adds the time of a new cause to
/// [`Causes::OTHERS`].
fn add(all: &mut Vec<(Wait, u64)>, wait: Wait, time: u64, most: usize) {
    match all.iter().position(|(known, _)| *known == wait) {
        Some(at) => all[at].1 += time,
        None if all.len() < most || wait.1 == Causes::OTHERS => all.push((wait, time)),
        None => add(all, (wait.0, Causes::OTHERS), time, most),
    }
}

/// Sums of the waits of a group's regions.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupWaits(HashMap<Wait, u64>);

impl GroupWaits {
    pub fn add(&mut self, waits: &[(Wait, u64)]) {
        for (wait, time) in waits {
            let wait = match self.0.contains_key(wait) || self.0.len() < MAX_OF_GROUP {
                true => *wait,
                false => (wait.0, Causes::OTHERS),
            };
            *self.0.entry(wait).or_default() += time;
        }
    }

    /// Subtracts the waits of a region that were added before.
    pub fn remove(&mut self, waits: &[(Wait, u64)]) {
        for (wait, time) in waits {
            let others = (wait.0, Causes::OTHERS);
            let key = if self.0.contains_key(wait) { *wait } else { others };
            if let Some(sum) = self.0.get_mut(&key) {
                *sum = sum.saturating_sub(*time);
            }
        }
    }

    /// Returns the sums in order.
    pub fn sorted(&self) -> Vec<(Wait, u64)> {
        let mut all: Vec<(Wait, u64)> = self.0.iter().map(|(wait, time)| (*wait, *time)).collect();
        all.retain(|(_, time)| *time > 0);
        sort(&mut all);
        all
    }
}

/// Sorts waits by part, the longest first within a part.
pub(super) fn sort(all: &mut [(Wait, u64)]) {
    all.sort_by_key(|((part, cause), time)| (*part as usize, std::cmp::Reverse(*time), *cause));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(tid: u32, trace: u16, life: Life, name: &str) -> Task {
        Task::new(Thread { tid, trace, life }, name.as_bytes())
    }

    #[test]
    fn however_many_threads_there_are_that_none_had_the_cpu_and_the_timer_are_causes() {
        let mut causes = Causes::new();
        for tid in 1..=u32::from(CauseNumber::MAX) + 9 {
            causes.thread(&task(tid, 0, 0, ""), 0);
        }
        let idle = causes.thread(&task(0, 0, 0, ""), 0);
        assert!(causes.is_idle(idle) && !causes.is_thread(idle));
        let all = [Found::Timer, Found::Interrupt(None), Found::Softirq(None)];
        assert!(all.into_iter().all(|cause| causes.number(cause) != Causes::OTHERS));
    }

    #[test]
    fn a_thread_of_another_machine_or_that_began_later_is_another_cause() {
        let mut causes = Causes::new();
        let all = [task(1, 0, 0, "a"), task(1, 1, 0, "b"), task(1, 0, 1, "c"), task(1, 0, 0, "d")];
        let numbers = all.each_ref().map(|task| causes.thread(task, 0));

        let shown = causes.finish(|trace, _| (None, Some(usize::from(trace))));

        let expected = [("d", 2, Some(0)), ("b", 1, Some(1)), ("c", 1, None), ("d", 2, Some(0))];
        for (number, (name, names, session)) in numbers.into_iter().zip(expected) {
            let name = Some(name.to_owned());
            let expected = Cause::Thread { tid: 1, name, names, session };
            assert_eq!(shown[usize::from(number)], expected);
        }
    }

    #[test]
    fn names_are_counted_up_to_a_limit_and_each_once() {
        let mut causes = Causes::new();
        let mut after = |names: std::ops::Range<usize>| {
            let of = |at: usize| task(1, 0, 0, &format!("x{at}"));
            let number = names.map(|at| causes.thread(&of(at), at as i64)).last().unwrap();
            match causes.get(number, |_, _| (None, None)) {
                Cause::Thread { name, names, .. } => (name.unwrap(), names as usize),
                other => panic!("{other:?}"),
            }
        };

        assert_eq!(after(0..80), ("x79".into(), 80));
        // Earlier names that were counted already change neither the last name nor the number of names.
        assert_eq!(after(20..60), ("x79".into(), 80));
        assert_eq!(after(80..MAX_NAMES + 99), (format!("x{}", MAX_NAMES + 98), MAX_NAMES + 1));
    }
}
