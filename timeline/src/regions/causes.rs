// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What threads waited for: who had their CPU while they were ready, and what woke them.

use super::parts::{Interval, Part};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// Most bytes of the name of a thread, with its NUL: Linux's `TASK_COMM_LEN`.
const COMM: usize = 16;
/// Most causes of a thread's time between two times without open regions. Time of others is of
/// [`Cause::Others`].
const MOST_OF_THREAD: usize = 1 << 11;
/// The same of the regions of a group.
const MOST_OF_GROUP: usize = 1 << 12;

/// Names of softirqs, by their numbers in the kernel.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Number of a cause: an index of [`Regions::causes`](super::Regions::causes).
pub type CauseNumber = u16;

/// What a thread waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It is not known.
    Unknown(Unknown),
    /// A thread: it had the CPU on which the other one ran next, or it woke the other one.
    Thread {
        /// Number of the thread.
        tid: u32,
        /// Name of the thread, if it is known. Chosen by the program: escape it.
        name: Option<String>,
        /// Session whose vCPU or program it is: an index of [`Regions::sessions`](super::Regions::sessions).
        session: Option<usize>,
    },
    /// No thread had the CPU: the wait was the way of a wake-up or of a move from another CPU. Of a wake-up: the
    /// kernel's idle loop.
    Idle,
    /// A high resolution timer.
    Timer,
    /// A hard interrupt, with the name of its handler if that was recorded.
    Interrupt(Option<String>),
    /// A softirq, with its name if its beginning was recorded.
    Softirq(Option<&'static str>),
    /// One of those that are too many.
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
    /// The CPU had too many other threads meanwhile.
    TooMany,
}

impl Unknown {
    /// Returns its number among causes.
    pub(super) const fn number(self) -> CauseNumber {
        self as CauseNumber
    }
}

/// A thread as the scheduler's events show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Task {
    pub tid: u32,
    comm: [u8; COMM],
    /// Whether it has the number of another thread that ended.
    has_old_number: bool,
}

impl Task {
    pub fn new(tid: u32, name: &[u8], has_old_number: bool) -> Task {
        let mut comm = [0; COMM];
        // Each CPU has an idle thread with a name of its own.
        let len = if tid == 0 { 0 } else { name.len().min(COMM) };
        comm[..len].copy_from_slice(&name[..len]);
        Task { tid, comm, has_old_number }
    }

    /// Returns its name; `None` if the event had none.
    fn name(&self) -> Option<String> {
        let name = self.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
    }
}

/// A cause while the events are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Found {
    Unknown(Unknown),
    Task(Task),
    Timer,
    Interrupt(Option<Box<[u8]>>),
    Softirq(Option<u8>),
    Others,
}

/// All causes, by number.
#[derive(Debug)]
pub(super) struct Causes {
    all: Vec<Found>,
    numbers: HashMap<Found, CauseNumber>,
}

impl Causes {
    /// Number of [`Cause::Others`].
    pub const OTHERS: CauseNumber = 3;

    pub fn new() -> Causes {
        let mut causes = Causes { all: Vec::new(), numbers: HashMap::new() };
        let unknown = [Unknown::NotRecorded, Unknown::Missing, Unknown::TooMany];
        for first in unknown.map(Found::Unknown).into_iter().chain([Found::Others]) {
            causes.number(first);
        }
        causes
    }

    /// Returns the number of a cause; that of the others if there are too many.
    pub fn number(&mut self, cause: Found) -> CauseNumber {
        if let Some(number) = self.numbers.get(&cause) {
            return *number;
        }
        let Ok(number) = CauseNumber::try_from(self.all.len()) else { return Causes::OTHERS };
        self.all.push(cause.clone());
        self.numbers.insert(cause, number);
        number
    }

    /// Returns the cause with a number. `thread` returns the name and the session of a thread that events gave no name, or
    /// that is a session's.
    pub fn get(
        &self,
        number: CauseNumber,
        thread: impl Fn(u32) -> (Option<String>, Option<usize>),
    ) -> Cause {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match &self.all[usize::from(number)] {
            Found::Unknown(why) => Cause::Unknown(*why),
            Found::Task(Task { tid: 0, .. }) => Cause::Idle,
            Found::Task(task) => {
                // Which of the threads with its number is a session's, is not known.
                let known = if task.has_old_number { (None, None) } else { thread(task.tid) };
                let (name, session) = known;
                Cause::Thread { tid: task.tid, name: task.name().or(name), session }
            }
            Found::Timer => Cause::Timer,
            Found::Interrupt(name) => Cause::Interrupt(name.as_deref().map(text)),
            Found::Softirq(vec) => {
                Cause::Softirq(vec.and_then(|vec| SOFTIRQS.get(usize::from(vec)).copied()))
            }
            Found::Others => Cause::Others,
        }
    }

    /// Returns them all.
    pub fn finish(&self, thread: impl Fn(u32) -> (Option<String>, Option<usize>)) -> Vec<Cause> {
        // The last number may be the largest one.
        let numbers = (0..=CauseNumber::MAX).take(self.all.len());
        numbers.map(|number| self.get(number, &thread)).collect()
    }
}

impl fmt::Display for Cause {
    /// Formats it in a few words, with names as they are.
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

/// Sums of a thread's waits by cause. Copies are one until one of them changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits(Option<Rc<Vec<(Wait, u64)>>>);

impl Waits {
    /// Adds an interval, if it is of a wait whose cause was looked for.
    pub fn add(&mut self, interval: &Interval) {
        if interval.cause == Unknown::NotRecorded.number() {
            return;
        }
        let wait = (interval.part, interval.cause);
        add(Rc::make_mut(self.0.get_or_insert_default()), wait, interval.length(), MOST_OF_THREAD);
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &Waits) -> Box<[(Wait, u64)]> {
        let Some(now) = &self.0 else { return Box::default() };
        let before = match &before.0 {
            Some(before) if Rc::ptr_eq(now, before) => return Box::default(),
            Some(before) => &before[..],
            None => &[],
        };
        // Waits are only added at the end.
        let old = |at: usize| before.get(at).map_or(0, |(_, time)| *time);
        let since = now.iter().enumerate().map(|(at, (wait, time))| (*wait, time - old(at)));
        since.filter(|(_, time)| *time > 0).collect()
    }
}

/// Adds time of a wait; to that of the others if there are as many as `most`.
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
            let wait = match self.0.contains_key(wait) || self.0.len() < MOST_OF_GROUP {
                true => *wait,
                false => (wait.0, Causes::OTHERS),
            };
            *self.0.entry(wait).or_default() += time;
        }
    }

    /// Takes away those of a region that were added.
    pub fn remove(&mut self, waits: &[(Wait, u64)]) {
        for (wait, time) in waits {
            let others = (wait.0, Causes::OTHERS);
            let key = if self.0.contains_key(wait) { *wait } else { others };
            if let Some(sum) = self.0.get_mut(&key) {
                *sum = sum.saturating_sub(*time);
            }
        }
    }

    /// Returns them in order.
    pub fn sorted(&self) -> Vec<(Wait, u64)> {
        let mut all: Vec<(Wait, u64)> = self.0.iter().map(|(wait, time)| (*wait, *time)).collect();
        all.retain(|(_, time)| *time > 0);
        sort(&mut all);
        all
    }
}

/// Sorts waits: by part, and the longest first.
pub(super) fn sort(all: &mut [(Wait, u64)]) {
    crate::sort::by_key(all, |((part, cause), time)| {
        (*part as usize, std::cmp::Reverse(*time), *cause)
    });
}
