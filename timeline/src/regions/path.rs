// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The critical path of a region, from its end back to its begin. While the region's thread was blocked, the
//! path shows what the waker did. The waker is the thread that woke the region's thread. While the waker was
//! blocked, the path shows what the waker's waker did, and so on.
//!
//! ```text
//! a   running | blocked .................. | runnable | running
//! b             running | blocked ... | running (wakes a)
//! c                       running (wakes b)
//! path  a       b         c             b   a
//! ```
//!
//! The switches and wake-ups of all threads are kept for some time. Each record points to the previous record
//! of the same thread, and a wake-up also points to the last record of the waker. So the walk along a path
//! begins at the last record and goes back.

use super::causes::{CauseNumber, Causes, Task, Thread, Unknown};
use super::followed::ENDED;
use super::lives;
use super::marks::is_ready;
use super::processes::{Beginner, Number, Processes};
use std::collections::{HashMap, VecDeque};

/// Maximum number of switches and wake-ups that are kept, of 40 bytes each.
const MAX_RECORDS: usize = 1 << 20;
/// Maximum number of threads.
const MAX_THREADS: usize = 1 << 16;
/// Maximum length of a chain of blocked threads in one path. Each thread of a chain waits for the next
/// thread.
const MAX_DEEP: usize = 1 << 12;
/// Maximum number of killed threads in one path.
const MAX_KILLED: usize = 1 << 12;
/// State of a waiting thread that every signal wakes, including SIGKILL: `TASK_INTERRUPTIBLE`.
const INTERRUPTIBLE: i64 = 1;
/// Place that stands for no record.
const NONE: u64 = u64::MAX;

/// A time of a thread on a critical path, as shown by the events of the kernel that schedules the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    /// Index of the thread in [`Regions::causes`](super::Regions::causes).
    pub thread: CauseNumber,
    pub tid: u32,
    pub doing: Doing,
    pub from: i64,
    pub to: i64,
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Doing {
    /// The thread had this CPU, if it is known.
    Running(Option<u32>),
    /// The thread could run, and then got this CPU.
    Runnable(Option<u32>),
    /// The thread waited for something that is no thread, and then got this CPU, if it is known.
    Blocked(CauseNumber, Option<u32>),
    /// It is not known what the thread did, or which thread woke the thread.
    Unknown(Unknown),
}

/// A switch or a wake-up of a thread.
#[derive(Clone, Copy, Debug)]
struct Record {
    time: i64,
    /// Place of the thread's previous record.
    before: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The thread got the CPU of this number.
    In(u32),
    /// The thread had an event and so had the CPU with this id, although the thread's last record says that
    /// the thread had no CPU: a switch is missing.
    Seen(u32),
    /// Another thread got the CPU, although this thread could run.
    Preempted,
    /// The thread fell asleep.
    Asleep,
    /// Another thread woke the thread: number of the waker, and place of the waker's last record.
    Woken(u32, u64),
    /// Something else than a thread woke the thread.
    WokenBy(CauseNumber),
    /// Another thread started the thread: id of the starter, and place of the starter's last record.
    Started(u32, u64),
    /// The thread had a CPU and took SIGKILL, because the process with this id ends.
    Killed(Number),
    /// The thread got a CPU and ended on it. The recording does not say whether the thread was killed.
    Ended,
}

impl Kind {
    /// Returns whether the thread has a CPU after a record of this kind.
    fn is_on(self) -> bool {
        matches!(self, Kind::In(_) | Kind::Seen(_) | Kind::Killed(_) | Kind::Ended)
    }

    /// Returns the CPU's id if the record has a CPU's id.
    fn cpu(self) -> Option<u32> {
        match self {
            Kind::In(cpu) | Kind::Seen(cpu) => Some(cpu),
            _ => None,
        }
    }

    /// Returns whether a thread's record of this kind may come right after a record of the kind `before`.
    fn follows(self, before: Kind) -> bool {
        match self {
            Kind::In(_) => !before.is_on() && before != Kind::Asleep,
            Kind::Preempted | Kind::Asleep => before.is_on(),
            Kind::Woken(..) | Kind::WokenBy(_) => before == Kind::Asleep,
            Kind::Killed(_) => before.is_on(),
            Kind::Seen(_) | Kind::Started(..) | Kind::Ended => false,
        }
    }
}

/// The last switches and wake-ups of all threads of a machine.
#[derive(Debug, Default)]
pub(super) struct History {
    records: VecDeque<Record>,
    /// Place of the first record.
    first: u64,
    threads: HashMap<u32, Last>,
    processes: Processes,
    /// Whether the recording says which threads end because their process ends.
    knows_ends: bool,
    /// Index of the trace.
    trace: u16,
}

/// The last record of a thread.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: u64,
    task: Task,
    /// Place of the thread's first record, if the thread was seen to start.
    first: u64,
    process: Number,
    /// Whether the thread took SIGKILL.
    is_killed: bool,
    /// Last time at which the thread was started, or began a sleep that a SIGKILL would end.
    slept: i64,
}

impl Last {
    fn new(task: Task) -> Last {
        Last { at: NONE, task, first: 0, process: None, is_killed: false, slept: i64::MIN }
    }
}

/// A time of a thread. The critical path of this time can be followed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub tid: u32,
    /// Place of the thread's last record that may be in the time.
    pub at: u64,
    pub from: i64,
    pub to: i64,
}

impl History {
    /// Makes the history of a recording. `knows_ends`: whether the recording says which threads end because
    /// their process ends.
    pub fn new(trace: u16, knows_ends: bool) -> History {
        History { trace, knows_ends, ..History::default() }
    }

    /// Processes a switch of a CPU from the thread `from`, in the state `state`, to the thread `to`.
    pub fn switch(&mut self, time: i64, cpu: u32, (from, state): (Task, i64), to: Task) {
        if from.tid() != 0 {
            if state & ENDED != 0 && !self.knows_ends {
                self.ended_without_reason(from.tid());
            }
            self.push(time, from, if is_ready(state) { Kind::Preempted } else { Kind::Asleep });
            if let Some(last) = self.threads.get_mut(&from.tid())
                && state & INTERRUPTIBLE != 0
            {
                last.slept = time;
            }
        }
        if to.tid() != 0 {
            self.push(time, to, Kind::In(cpu));
        }
    }

    /// Processes an event of a thread that has a CPU.
    pub fn seen(&mut self, time: i64, cpu: u32, task: Task) {
        let last = self.threads.get(&task.tid()).and_then(|last| self.get(last.at));
        if task.tid() != 0 && !last.is_some_and(|record| record.kind.is_on()) {
            self.push(time, task, Kind::Seen(cpu));
        }
    }

    /// Processes a wake-up that a thread caused.
    pub fn woken(&mut self, time: i64, tid: u32, by: u32) {
        let at = self.threads.get(&by).map_or(NONE, |last| last.at);
        self.wake(time, tid, Kind::Woken(by, at));
    }

    /// Processes a wake-up that something else than a thread caused.
    pub fn woken_by(&mut self, time: i64, tid: u32, cause: CauseNumber) {
        self.wake(time, tid, Kind::WokenBy(cause));
    }

    fn wake(&mut self, time: i64, tid: u32, kind: Kind) {
        let last = self.threads.get(&tid).copied();
        // A wake-up of a thread that is awake changes nothing.
        if let Some(last) = last
            && self.get(last.at).is_none_or(|record| record.kind == Kind::Asleep)
        {
            self.push(time, last.task, kind);
        }
    }

    /// Processes the creation of a thread, which is not started yet. The new thread belongs to the process of
    /// the thread that made it, or to a new process.
    pub fn made(&mut self, task: Task, is_of_process: bool, by: u32) {
        let of_maker = self.threads.get(&by).and_then(|last| last.process);
        let process = if is_of_process { of_maker } else { self.processes.start() };
        self.make_room(task.tid());
        // The old entry is removed, because another thread may have had the same id.
        self.threads.insert(task.tid(), Last { process, ..Last::new(task) });
    }

    /// Processes the event that a thread started another thread.
    pub fn started(&mut self, time: i64, task: Task, by: u32) {
        let at = self.threads.get(&by).map_or(NONE, |last| last.at);
        // The old entry is removed, because another thread may have had the same id.
        let made = self.threads.remove(&task.tid()).filter(|last| last.at == NONE);
        self.push(time, task, Kind::Started(by, at));
        if let Some(last) = self.threads.get_mut(&task.tid()) {
            (last.process, last.slept) = (made.and_then(|made| made.process), time);
        }
    }

    /// Notes that a thread's process executes a new program. At this time, all other threads of the process
    /// have ended.
    pub fn executed(&mut self, tid: u32) {
        if let Some(last) = self.threads.get_mut(&tid) {
            (last.process, last.is_killed) = (self.processes.start(), false);
        }
    }

    /// Notes that a thread takes a SIGKILL. The thread has a CPU at this time.
    pub fn killed(&mut self, time: i64, tid: u32) {
        if let Some(last) = self.threads.get_mut(&tid) {
            last.is_killed = true;
            let Last { task, process, slept, .. } = *last;
            self.processes.killed(process, slept, self.first);
            self.push(time, task, Kind::Killed(process));
        }
    }

    /// Notes that a SIGKILL was sent to a thread, or to the thread's process. `by` is the sender; `None`: an
    /// interrupt.
    pub fn sent_kill(&mut self, time: i64, to: u32, by: Option<u32>) {
        let process = self.threads.get(&to).and_then(|last| last.process);
        let at = by.and_then(|by| self.threads.get(&by)).map_or(NONE, |last| last.at);
        self.processes.sent(process, Beginner { tid: by, at, time }, self.first);
    }

    /// Processes the end of a thread. The thread has a CPU until its end.
    pub fn ended(&mut self, time: i64, tid: u32) {
        if let Some(last) = self.threads.get(&tid).filter(|last| !last.is_killed) {
            let by = Beginner { tid: Some(tid), at: last.at, time };
            self.processes.ended(last.process, by, self.first);
        }
    }

    /// Processes the end of a thread. The thread has a CPU until its end. Nothing says whether the thread was
    /// killed.
    fn ended_without_reason(&mut self, tid: u32) {
        let at = self.threads.get(&tid).and_then(|last| last.at.checked_sub(self.first));
        let record = at.and_then(|at| self.records.get_mut(usize::try_from(at).ok()?));
        if let Some(record) = record.filter(|record| record.kind.is_on()) {
            record.kind = Kind::Ended;
        }
    }

    /// Forgets all records, because events are missing.
    pub fn forget(&mut self) {
        self.first += self.records.len() as u64;
        self.records.clear();
        self.threads.clear();
        self.processes.forget();
    }

    /// Makes room for the last record of a thread.
    fn make_room(&mut self, tid: u32) {
        if self.threads.len() == MAX_THREADS && !self.threads.contains_key(&tid) {
            self.forget();
        }
    }

    fn push(&mut self, time: i64, task: Task, kind: Kind) {
        self.make_room(task.tid());
        if self.records.len() == MAX_RECORDS {
            self.records.pop_front();
            self.first += 1;
        }
        let at = self.first + self.records.len() as u64;
        let first = if let Kind::Started(..) = kind { at } else { 0 };
        let last = self.threads.entry(task.tid()).or_insert(Last { first, ..Last::new(task) });
        let before = std::mem::replace(&mut last.at, at);
        last.task = task;
        self.records.push_back(Record { time, before, kind });
    }

    fn get(&self, at: u64) -> Option<Record> {
        let at = at.checked_sub(self.first)?;
        self.records.get(usize::try_from(at).ok()?).copied()
    }

    /// Returns the place of a thread's last record at a time or earlier.
    pub fn last(&self, tid: u32, to: i64) -> u64 {
        let mut at = self.threads.get(&tid).map_or(NONE, |last| last.at);
        while let Some(record) = self.get(at).filter(|record| record.time > to) {
            at = record.before;
        }
        at
    }

    /// Hands over the path of a region that ended on a thread: what threads did, from the region's end back
    /// to its begin. `is_exact`: whether the region's times are those of the kernel's clock. Returns the
    /// number of records on the path.
    pub fn path(
        &self,
        tid: u32,
        (from, to): (i64, i64),
        is_exact: bool,
        causes: &mut Causes,
        take: impl FnMut(&mut Causes, Stay),
    ) -> u64 {
        self.path_of(Stretch { tid, at: self.last(tid, to), from, to }, is_exact, causes, take)
    }

    /// Hands over the path of a stretch of a thread, as [`History::path`] does.
    pub fn path_of(
        &self,
        stretch: Stretch,
        is_exact: bool,
        causes: &mut Causes,
        mut take: impl FnMut(&mut Causes, Stay),
    ) -> u64 {
        let mut records = 0;
        let from = stretch.from;
        let mut kills = MAX_KILLED;
        let mut is_inexact = !is_exact;
        let mut todo = vec![stretch];
        while let Some(stretch) = todo.pop() {
            let tid = stretch.tid;
            // The name is left out if another thread has got the id since then.
            let last = self.threads.get(&tid).filter(|last| last.first <= stretch.at);
            let other = Thread { tid, trace: self.trace, life: lives::UNKNOWN };
            let task = last.map_or(Task::new(other, b""), |last| last.task);
            let at = last.and_then(|last| self.get(last.at)).map_or(from, |record| record.time);
            let thread = causes.thread(&task, at);
            let mut add = |doing, from, to| {
                if from < to {
                    take(causes, Stay { thread, tid, doing, from, to });
                }
            };
            let is_inexact = std::mem::take(&mut is_inexact);
            let stretch = self.on_cpu(stretch, is_inexact, &mut add);
            if let Some((before, waker)) = self.follow(stretch, &mut add, &mut kills, &mut records)
            {
                if before.from < before.to {
                    todo.push(before);
                }
                match todo.len() < MAX_DEEP {
                    true => todo.push(waker),
                    false => add(Doing::Unknown(Unknown::TooMany), waker.from, waker.to),
                }
            }
        }
        records
    }

    /// Returns the stretch. If the thread has no CPU at the end of the stretch, the returned stretch ends
    /// earlier. The thread did something at the end of the stretch, so the thread had a CPU. If the thread's
    /// last record says otherwise, then either a record is missing, or the stretch's end is a time of another
    /// clock, and that clock is wrong.
    fn on_cpu(
        &self,
        stretch: Stretch,
        is_inexact: bool,
        add: &mut impl FnMut(Doing, i64, i64),
    ) -> Stretch {
        let to = match self.get(stretch.at) {
            Some(record) if record.kind.is_on() => return stretch,
            Some(record) => record.time.clamp(stretch.from, stretch.to),
            // At the stretch's end, the thread has no record yet, because the other clock is wrong.
            None if is_inexact && stretch.at == NONE => stretch.from,
            None => return stretch,
        };
        let why = if is_inexact { Unknown::Clock } else { Unknown::Missing };
        add(Doing::Unknown(why), to, stretch.to);
        Stretch { to, ..stretch }
    }

    /// Follows a thread back to the begin of its stretch, or to the last time at which another thread woke,
    /// started or killed the thread. If another thread woke, started or killed the thread, returns the rest
    /// of the stretch, and a stretch of the other thread. If two records do not fit together, a record is
    /// missing between them.
    fn follow(
        &self,
        stretch: Stretch,
        add: &mut impl FnMut(Doing, i64, i64),
        kills: &mut usize,
        records: &mut u64,
    ) -> Option<(Stretch, Stretch)> {
        let Stretch { tid, mut at, from, mut to } = stretch;
        let mut cpu = None;
        while from < to {
            let Some(record) = self.get(at) else { break };
            *records += 1;
            let begin = record.time.clamp(from, to);
            if record.kind.is_on() {
                let before = || self.get(record.before).and_then(|before| before.kind.cpu());
                cpu = record.kind.cpu().or_else(before);
            }
            match record.kind {
                Kind::In(_) | Kind::Seen(_) | Kind::Killed(_) => {
                    add(Doing::Running(cpu), begin, to);
                }
                Kind::Ended => {
                    add(Doing::Unknown(Unknown::NotRecorded), from, to);
                    return None;
                }
                // The wake-up after the sleep is missing.
                Kind::Asleep => add(Doing::Unknown(Unknown::Missing), begin, to),
                _ => add(Doing::Runnable(cpu), begin, to),
            }
            (at, to) = (record.before, begin);
            if let Kind::Started(by, by_at) = record.kind {
                let rest = Stretch { tid, at: NONE, from, to: from };
                return Some((rest, Stretch { tid: by, at: by_at, from, to }));
            }
            if let Kind::Killed(process) = record.kind {
                let by = self.processes.beginner(process).filter(|_| *kills > 0);
                let Some(Beginner { tid: Some(by), at: by_at, time }) = by else {
                    add(Doing::Unknown(Unknown::Missing), from, to);
                    return None;
                };
                *kills -= 1;
                // The thread `by` began the end of the process. As soon as `by` had ended or had sent the
                // signal, the followed thread was told to end.
                let told = time.clamp(from, to);
                let rest = Stretch { tid, at, from: told, to };
                return Some((rest, Stretch { tid: by, at: by_at, from, to: told }));
            }
            let Some(before) = self.get(at) else { break };
            let slept = before.time.clamp(from, to);
            match record.kind {
                kind if !kind.follows(before.kind) => {
                    add(Doing::Unknown(Unknown::Missing), slept, to);
                    to = slept;
                }
                Kind::Woken(by, by_at) => {
                    // Only a thread that has a CPU can wake another thread.
                    let is_on = self.get(by_at).is_none_or(|record| record.kind.is_on());
                    let by_at = if is_on { by_at } else { NONE };
                    let waker = Stretch { tid: by, at: by_at, from: slept, to };
                    return Some((Stretch { tid, at, from, to: slept }, waker));
                }
                Kind::WokenBy(cause) => {
                    add(Doing::Blocked(cause, cpu), slept, to);
                    to = slept;
                }
                _ => {}
            }
        }
        if from < to {
            let is_old = at != NONE && at < self.first;
            let why = if is_old { Unknown::TooMany } else { Unknown::Missing };
            add(Doing::Unknown(why), from, to);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions::causes::Found;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// What a CPU or a thread does at a time.
    #[derive(Clone, Copy, Debug)]
    enum Act {
        /// A CPU switches from the first thread to the second thread. The flag says whether the first thread
        /// can still run.
        Switch(u32, bool, u32),
        /// A thread wakes another thread.
        Wake(u32, u32),
        /// A timer wakes a thread.
        Expire(u32),
        /// A thread starts another thread.
        Start(u32, u32),
    }
    use Act::*;

    fn thread(tid: u32, life: u16) -> Thread {
        Thread { tid, trace: 0, life }
    }

    fn task(tid: u32) -> Task {
        Task::new(thread(tid, 0), if tid == 0 { b"" } else { b"thread" })
    }

    /// Returns the state of a thread that is switched out.
    fn state(is_ready: bool) -> i64 {
        if is_ready { 0 } else { INTERRUPTIBLE }
    }

    /// Computes the path of a region on the thread `tid`. Returns for each thread of the path what the thread
    /// did and how long, in the order of thread ids.
    fn path(acts: &[(i64, Act)], tid: u32, times: (i64, i64)) -> Vec<(u32, Doing, u64)> {
        let (mut history, mut causes) = (History::default(), Causes::new());
        let timer = causes.number(Found::Timer);
        for (time, act) in acts {
            match *act {
                Switch(from, is_ready, to) => {
                    history.switch(*time, 0, (task(from), state(is_ready)), task(to))
                }
                Wake(tid, by) => history.woken(*time, tid, by),
                Expire(tid) => history.woken_by(*time, tid, timer),
                Start(tid, by) => history.started(*time, task(tid), by),
            }
        }
        let mut sums = BTreeMap::new();
        for stay in stays(&history, tid, times, &mut causes) {
            let doing = match stay.doing {
                Doing::Blocked(cause, _) if cause == timer => TIMER,
                Doing::Running(_) => RUNNING,
                Doing::Runnable(_) => RUNNABLE,
                doing => doing,
            };
            *sums.entry((stay.tid, doing)).or_default() += (stay.to - stay.from) as u64;
        }
        sums.into_iter().map(|((tid, doing), ns)| (tid, doing, ns)).collect()
    }

    /// Returns the path of a region on a thread. Checks that there is no gap between the stays.
    fn stays(history: &History, tid: u32, times: (i64, i64), causes: &mut Causes) -> Vec<Stay> {
        let mut stays = Vec::new();
        history.path(tid, times, true, causes, |_, stay| stays.push(stay));
        stays.iter().fold(times.1, |to, stay| {
            assert_eq!(stay.to, to, "{stays:?}");
            stay.from
        });
        stays
    }

    const TIMER: Doing = Doing::Blocked(0, None);
    const MISSING: Doing = Doing::Unknown(Unknown::Missing);
    const RUNNING: Doing = Doing::Running(None);
    const RUNNABLE: Doing = Doing::Runnable(None);

    /// Thread 1 waits for 2, which waits for 3, which waits for a timer. Each thread has a CPU of its own.
    const CHAIN: [(i64, Act); 12] = [
        (0, Switch(0, true, 1)),
        (1, Switch(0, true, 2)),
        (2, Switch(0, true, 3)),
        (100, Switch(1, false, 0)),
        (110, Switch(2, false, 0)),
        (120, Switch(3, false, 0)),
        (200, Expire(3)),
        (205, Switch(0, true, 3)),
        (300, Wake(2, 3)),
        (310, Switch(0, true, 2)),
        (400, Wake(1, 2)),
        (450, Switch(0, true, 1)),
    ];

    #[test]
    fn a_path_goes_from_a_blocked_thread_to_the_one_that_woke_it() {
        let expected = [
            (1, RUNNING, 50 + 50),
            (1, RUNNABLE, 50),
            (2, RUNNING, 90 + 10),
            (2, RUNNABLE, 10),
            (3, RUNNING, 95 + 10),
            (3, RUNNABLE, 5),
            (3, TIMER, 80),
        ];
        assert_eq!(path(&CHAIN, 1, (50, 500)), expected);
        // The region lies within the wait for the second thread.
        assert_eq!(
            path(&CHAIN, 1, (350, 460)),
            [(1, RUNNING, 10), (1, RUNNABLE, 50), (2, RUNNING, 50)]
        );
    }

    #[test]
    fn a_path_goes_from_a_new_thread_to_the_one_that_started_it() {
        let acts = [
            (0, Switch(0, true, 1)),
            (50, Start(2, 1)),
            (60, Switch(1, true, 2)),
            (100, Switch(2, false, 1)),
        ];
        let expected = [(1, RUNNING, 40), (2, RUNNING, 30), (2, RUNNABLE, 10)];
        assert_eq!(path(&acts, 2, (10, 90)), expected);
    }

    #[test]
    fn a_number_that_another_thread_had_says_nothing_of_it() {
        let mut acts = vec![(0, Switch(0, true, 2)), (10, Switch(2, false, 1)), (20, Start(2, 1))];
        acts.push((30, Switch(1, true, 2)));
        let expected = [(1, RUNNING, 10), (1, MISSING, 5), (2, RUNNING, 10), (2, RUNNABLE, 10)];
        let found = path(&acts, 2, (5, 40));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_waker_does_not_get_the_name_of_a_thread_that_has_its_number_later() {
        let (mut history, mut causes) = (History::default(), Causes::new());
        history.switch(0, 0, (task(0), state(true)), task(1));
        history.switch(10, 0, (task(1), state(false)), task(2));
        history.woken(20, 1, 2);
        history.switch(30, 0, (task(2), state(false)), task(1));
        history.started(40, Task::new(thread(2, 1), b"later"), 1);

        let stays = stays(&history, 1, (5, 50), &mut causes);

        let causes = causes.finish(|_, _| (Some("later".into()), None));
        let names = stays.iter().map(|stay| causes[usize::from(stay.thread)].to_string());
        assert_eq!(Vec::from_iter(names), ["thread-1", "thread-1", "thread 2", "thread-1"]);
    }

    #[test]
    fn a_waker_whose_switch_is_missing_is_not_followed() {
        let without = |at: usize| {
            let mut acts = CHAIN.to_vec();
            acts.remove(at);
            path(&acts, 1, (350, 460))
        };
        // The second thread's switch to its CPU is missing.
        assert_eq!(without(9), [(1, RUNNING, 10), (1, RUNNABLE, 50), (2, MISSING, 50)]);
        // The second thread's wake-up of the first thread is missing.
        assert_eq!(without(10), [(1, RUNNING, 10), (1, MISSING, 100)]);
    }

    #[test]
    fn forgotten_records_end_a_path() {
        let (mut history, mut causes) = (History::default(), Causes::new());
        history.switch(0, 0, (task(0), state(true)), task(1));
        for time in 0..MAX_RECORDS as i64 {
            history.switch(1 + time * 2, 0, (task(2), state(true)), task(0));
        }
        let stays = stays(&history, 1, (0, 100), &mut causes);
        let doing = stays.iter().map(|stay| stay.doing);
        assert_eq!(Vec::from_iter(doing), [Doing::Unknown(Unknown::TooMany)]);
    }

    /// Makes random acts of threads on CPUs from random numbers. A thread that sleeps is woken by a thread
    /// that runs, or by a timer.
    fn life(choices: &[(u8, u8)]) -> Vec<(i64, Act)> {
        const THREADS: u32 = 6;
        let mut cpus = [0; 2];
        let (mut ready, mut asleep) = (Vec::from_iter(1..=THREADS), Vec::new());
        let mut acts = Vec::new();
        for (time, (what, which)) in (1..).zip(choices) {
            let time = time * 10;
            let cpu = usize::from(*which) % cpus.len();
            let on = cpus[cpu];
            match what % 4 {
                0 | 1 if !ready.is_empty() => {
                    let next = ready.remove(usize::from(*which) % ready.len());
                    let is_ready = *what % 8 < 4;
                    acts.push((time, Switch(on, is_ready, next)));
                    cpus[cpu] = next;
                    if on != 0 {
                        if is_ready { ready.push(on) } else { asleep.push(on) }
                    }
                }
                2 if on != 0 && !asleep.is_empty() => {
                    let woken = asleep.remove(usize::from(*which) % asleep.len());
                    acts.push((time, Wake(woken, on)));
                    ready.push(woken);
                }
                3 if !asleep.is_empty() => {
                    let woken = asleep.remove(usize::from(*which) % asleep.len());
                    acts.push((time, Expire(woken)));
                    ready.push(woken);
                }
                _ => {}
            }
        }
        acts
    }

    proptest! {
        #[test]
        fn a_path_is_as_long_as_its_region_and_a_missing_event_only_hides(
            choices in prop::collection::vec(any::<(u8, u8)>(), 1..120),
            tid in 1..7u32,
            from in 0..1200i64,
            missing: prop::sample::Index,
        ) {
            let acts = life(&choices);
            prop_assume!(!acts.is_empty());
            // The thread has a CPU at the end.
            let is_switch = |act: &Act| matches!(act, Switch(_, _, to) if *to == tid);
            let last = acts.iter().rfind(|(_, act)| is_switch(act));
            let Some(to) = last.map(|(time, _)| time + 5) else { return Ok(()) };
            let from = from.min(to);
            let whole = path(&acts, tid, (from, to));
            let sum = |steps: &[(u32, Doing, u64)]| steps.iter().map(|(_, _, ns)| ns).sum::<u64>();
            prop_assert_eq!(sum(&whole), (to - from) as u64);

            let mut rest = acts.clone();
            rest.remove(missing.index(acts.len()));
            let rest = path(&rest, tid, (from, to));

            prop_assert_eq!(sum(&rest), (to - from) as u64);
            for (thread, doing, ns) in rest {
                let before = whole.iter().find(|(t, d, _)| (*t, *d) == (thread, doing));
                let before = before.map_or(0, |(_, _, ns)| *ns);
                let is_hidden = matches!(doing, Doing::Unknown(_));
                prop_assert!(is_hidden || ns <= before, "{thread} {doing:?}: {ns} of {before}");
            }
        }
    }
}
