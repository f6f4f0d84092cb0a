// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Which thread had each CPU of a machine, and what woke the machine's threads. The events of all threads
//! tell both.
//!
//! A thread is ready from a wake-up, or a switch away from the thread, until the next switch to the thread.
//! The event of this next switch names the CPU. The switches of the CPU before this event form a chain: each
//! switch leaves the thread to which the previous switch went. If a switch leaves another thread, a switch is
//! missing, and the chain begins there. The chain shows the threads that had the CPU.
//!
//! The events of all threads may be in another buffer than the events of a session's threads. In this case,
//! each switch is in both buffers with slightly different times, and the threads of the switch show which two
//! events belong together.

use super::causes::{CauseNumber, Causes, Found, Task, Thread, Unknown};
use super::followed::ENDED;
use super::lives::Lives;
use super::parts::Part;
use super::path::{Doing, History, Stay, Stretch};
use super::steps::Timed;
use crate::event::EventRef;
use crate::format::Fields;
use crate::inputs::kernel::AllThreads;
use std::collections::{HashMap, VecDeque};

/// Maximum number of CPUs. No kernel has so many CPUs.
pub(super) const MAX_CPUS: usize = 1 << 13;
/// Maximum number of turns of a CPU that are kept, of 32 bytes each.
const MAX_TURNS: usize = 1 << 12;
/// Maximum number of turns of all CPUs together if the waits on paths are wanted. Each CPU keeps
/// [`MAX_TURNS`] in any case.
const MAX_OF_PATHS: usize = 1 << 19;
/// Maximum number of threads that had the CPU in one wait on a path.
const MAX_IN_WAIT: usize = 1 << 10;
/// Number of last turns of each CPU that are searched for the name of a thread, if the switch to the thread
/// is missing.
const LAST_TURNS: usize = 64;
/// Maximum number of threads whose last wake-up is kept.
const MAX_WOKEN: usize = 1 << 16;
/// Bits of an event's flags. `HARD`: the event was in a hard interrupt. `SOFT`: the event was in a softirq.
const HARD: u8 = 1 << 3;
const SOFT: u8 = 1 << 4;
/// Flag of clone(2): the new thread belongs to the same process.
const CLONE_THREAD: i64 = 0x1_0000;
/// Signal that ends each thread of a process.
const SIGKILL: i64 = 9;

/// An event that tells which thread or interrupt has a CPU. Each event comes with the indices of the fields
/// that the reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuEvent {
    Other,
    Switch { prev: usize, prev_name: usize, state: usize, next: usize, next_name: usize },
    Started { tid: usize, name: usize },
    Made { tid: usize, name: usize, flags: usize },
    Executed,
    Ended,
    Killed { signal: usize },
    SentKill { signal: usize, tid: usize, result: usize },
    SwitchIn { tid: usize },
    SwitchOut,
    Waking { tid: usize },
    TimerBegin,
    TimerEnd,
    HandlerBegin { name: usize },
    HandlerEnd,
    SoftirqBegin { vec: usize },
    SoftirqEnd,
}

impl CpuEvent {
    /// Returns the kind of an event. The event's name and format determine the kind.
    pub fn of(event: &EventRef<'_>) -> CpuEvent {
        let Some(fields) = event.fields.kernel() else { return CpuEvent::Other };
        CpuEvent::named(event.name, |name| fields.format.field(name)).unwrap_or(CpuEvent::Other)
    }

    /// Returns whether the event is the begin of a timer, a handler or a softirq, which interrupts the thread
    /// that has the CPU.
    pub fn is_interrupt(self) -> bool {
        matches!(self, Self::TimerBegin | Self::HandlerBegin { .. } | Self::SoftirqBegin { .. })
    }

    /// Returns the kind of the event with this name, or `None` if the event lacks a field.
    fn named(name: &str, field: impl Fn(&str) -> Option<usize>) -> Option<CpuEvent> {
        Some(match name {
            "sched:sched_switch" => CpuEvent::Switch {
                prev: field("prev_pid")?,
                prev_name: field("prev_comm")?,
                state: field("prev_state")?,
                next: field("next_pid")?,
                next_name: field("next_comm")?,
            },
            "perf:switch_in" => CpuEvent::SwitchIn { tid: field("tid")? },
            "perf:switch_out" => CpuEvent::SwitchOut,
            "sched:sched_waking" => CpuEvent::Waking { tid: field("pid")? },
            "sched:sched_wakeup_new" => {
                CpuEvent::Started { tid: field("pid")?, name: field("comm")? }
            }
            "task:task_newtask" => CpuEvent::Made {
                tid: field("pid")?,
                name: field("comm")?,
                flags: field("clone_flags")?,
            },
            "sched:sched_process_exec" => CpuEvent::Executed,
            "sched:sched_process_exit" => CpuEvent::Ended,
            "signal:signal_deliver" => CpuEvent::Killed { signal: field("sig")? },
            "signal:signal_generate" => CpuEvent::SentKill {
                signal: field("sig")?,
                tid: field("pid")?,
                result: field("result")?,
            },
            "timer:hrtimer_expire_entry" => CpuEvent::TimerBegin,
            "timer:hrtimer_expire_exit" => CpuEvent::TimerEnd,
            "irq:irq_handler_entry" => CpuEvent::HandlerBegin { name: field("name")? },
            "irq:irq_handler_exit" => CpuEvent::HandlerEnd,
            "irq:softirq_entry" => CpuEvent::SoftirqBegin { vec: field("vec")? },
            "irq:softirq_exit" => CpuEvent::SoftirqEnd,
            _ => CpuEvent::Other,
        })
    }
}

/// The CPUs of a machine, and its threads' last wake-ups.
#[derive(Debug, Default)]
pub(super) struct Cpus {
    all: Vec<Cpu>,
    woken: HashMap<u32, Woken>,
    /// Index of the trace.
    pub trace: u16,
    lives: Lives,
    /// Whether the events are in the trace of the sessions' threads, and not in a buffer of their own.
    pub is_in_trace: bool,
    /// Time after which events of a CPU may be missing.
    pub until: i64,
    /// History for paths, if they are wanted.
    history: Option<History>,
    /// Whether more turns than [`MAX_TURNS`] are kept of each CPU.
    keeps_turns: bool,
}

/// What is known of a CPU.
#[derive(Debug, Default)]
struct Cpu {
    /// Turns of the threads that had the CPU. Each turn lasts until the next turn. `most` is the maximum
    /// number of turns.
    turns: VecDeque<Turn>,
    most: usize,
    /// Flags of the interrupt in which a timer's function runs.
    timer: Option<u8>,
    /// Handler that runs on the CPU for a hard interrupt.
    handler: Option<CauseNumber>,
    /// Kernel's number for the softirq that runs.
    softirq: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    from: i64,
    task: Result<Task, Unknown>,
}

/// What woke a thread.
#[derive(Clone, Copy, Debug)]
struct Woken {
    time: i64,
    by: By,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Task(Task),
    Cause(CauseNumber),
}

/// A thread that got a CPU after a wait: see [`Cpus::before`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub cpu: u32,
    pub tid: u32,
    /// Thread that had the CPU until the end of the wait, if the event names that thread.
    pub prev: Option<u32>,
}

impl Cpus {
    /// Makes the CPUs of a recording of all threads.
    pub fn new(trace: u16, recorded: AllThreads, has_paths: bool) -> Cpus {
        let AllThreads { is_in_trace, until, knows_ends } = recorded;
        let history = has_paths.then(|| History::new(trace, knows_ends));
        Cpus { trace, is_in_trace, until, history, ..Cpus::default() }
    }

    /// Keeps more turns, for the waits on paths.
    pub fn keep_turns(&mut self) {
        self.keeps_turns = self.history.is_some();
    }

    /// Hands over the path of a region that ended on a thread, from its end back to its begin. `is_exact`:
    /// whether the region's times are those of the kernel's clock. `has_turns`: whether the path names the
    /// threads that had the CPU during each wait for a CPU. Returns the number of switches and wake-ups on
    /// the path; `None` if no path is known.
    pub fn path(
        &self,
        tid: u32,
        times: (i64, i64),
        (is_exact, has_turns): (bool, bool),
        causes: &mut Causes,
        mut take: impl FnMut(Timed),
    ) -> Option<u64> {
        let history = self.history.as_ref().filter(|_| times.1 <= self.until)?;
        let mut found = Vec::new();
        let records = history.path(tid, times, is_exact, causes, |causes, stay| {
            if let Doing::Runnable(Some(cpu)) = stay.doing
                && has_turns
            {
                let next = Next { cpu, tid: stay.tid, prev: None };
                self.before(next, (stay.from, stay.to), MAX_IN_WAIT, causes, &mut found);
            }
            if found.is_empty() {
                found.push((stay.to, Unknown::NotRecorded.number()));
            }
            // Later causes of a wait come first, because the path goes back from its end.
            while let Some((to, cause)) = found.pop() {
                let from = found.last().map_or(stay.from, |(to, _)| *to);
                take(Timed::new(&stay, (from, to), cause));
            }
        });
        Some(records)
    }

    /// Returns the stretch of a thread between two times; `None` if no path is known. [`stays`](Self::stays)
    /// can return the path of the stretch later.
    pub fn stretch(&self, tid: u32, (from, to): (i64, i64)) -> Option<Stretch> {
        let history = self.history.as_ref().filter(|_| to <= self.until)?;
        Some(Stretch { tid, at: history.last(tid, to), from, to })
    }

    /// Returns what threads did on the path of a thread's time, from its end back to its begin.
    pub fn stays(&self, of: Stretch, causes: &mut Causes) -> Vec<Stay> {
        let mut stays = Vec::new();
        let history = self.history.iter();
        history
            .for_each(|history| _ = history.path_of(of, true, causes, |_, stay| stays.push(stay)));
        stays
    }

    /// Returns the threads that had a CPU between two times, in order. Each entry has the end of the thread's
    /// time, and the thread's index in [`Causes`].
    pub fn had(&self, cpu: u32, times: (i64, i64), causes: &mut Causes) -> Vec<(i64, CauseNumber)> {
        let mut found = Vec::new();
        // The search is for all threads that had the CPU, so `tid` is an id that no thread has.
        let next = Next { cpu, tid: u32::MAX, prev: None };
        self.before(next, times, MAX_IN_WAIT, causes, &mut found);
        found
    }

    /// Returns the index of a CPU, and adds the CPU if needed; `None` if the CPU's number is too large.
    fn make(&mut self, number: u32) -> Option<usize> {
        let number = number as usize;
        if number >= self.all.len() && number < MAX_CPUS {
            self.all.resize_with(number + 1, Cpu::default);
        }
        (number < self.all.len()).then_some(number)
    }

    /// Processes an event of a CPU. The thread `running` had the CPU.
    pub fn take(
        &mut self,
        (time, number, running): (i64, u32, u32),
        event: CpuEvent,
        fields: Fields<'_>,
        causes: &mut Causes,
    ) {
        let tid = |field| fields.number(field).and_then(|tid| u32::try_from(tid).ok());
        let context = fields.bytes.get(2).copied().unwrap_or(0) & (HARD | SOFT);
        let Some(at) = self.make(number) else { return };
        let of_paths = if self.keeps_turns { MAX_OF_PATHS / self.all.len() } else { 0 };
        self.all[at].most = of_paths.max(MAX_TURNS);
        let is_switch_of_perf = matches!(event, CpuEvent::SwitchIn { .. } | CpuEvent::SwitchOut);
        if !is_switch_of_perf && !self.all[at].has(running) {
            // A switch is missing.
            let task = self.named(running);
            self.all[at].miss();
            if !matches!(event, CpuEvent::Switch { .. }) {
                self.all[at].push(time, Ok(task));
            }
            self.history.iter_mut().for_each(|history| history.seen(time, number, task));
        }
        if let CpuEvent::Made { tid: field, .. } | CpuEvent::Started { tid: field, .. } = event
            && let Some(new) = tid(field)
        {
            self.lives.begin(new);
        }
        let (cpu, lives, trace) = (&mut self.all[at], &self.lives, self.trace);
        let named = |tid, name: &[u8]| Task::new(Thread { tid, trace, life: lives.of(tid) }, name);
        let task = |field, name| Some(named(tid(field)?, fields.text(name).unwrap_or_default()));
        cpu.leave_interrupts(context);
        match event {
            CpuEvent::Other => {}
            CpuEvent::Switch { prev, prev_name, state, next, next_name } => {
                let (from, to) = (task(prev, prev_name), task(next, next_name));
                cpu.switch(time, from, to);
                if let (Some(history), Some(from), Some(to)) = (&mut self.history, from, to) {
                    history.switch(time, number, (from, fields.number(state).unwrap_or(0)), to);
                }
                if let Some(next) = to {
                    self.lives.see(next.tid());
                }
                if fields.number(state).is_some_and(|state| state & ENDED != 0)
                    && let Some(prev) = from
                {
                    self.lives.end(prev.tid());
                }
            }
            CpuEvent::Started { tid, name } => {
                if let (Some(history), Some(task)) = (&mut self.history, task(tid, name)) {
                    history.started(time, task, running);
                }
            }
            CpuEvent::Made { tid, name, flags } => {
                if let (Some(history), Some(task)) = (&mut self.history, task(tid, name)) {
                    let flags = fields.number(flags).unwrap_or(0);
                    history.made(task, flags & CLONE_THREAD != 0, running);
                }
            }
            CpuEvent::Executed => {
                self.history.iter_mut().for_each(|history| history.executed(running));
            }
            CpuEvent::Ended => {
                self.history.iter_mut().for_each(|history| history.ended(time, running));
            }
            CpuEvent::Killed { signal } => {
                if let (Some(history), Some(SIGKILL)) = (&mut self.history, fields.number(signal)) {
                    history.killed(time, running);
                }
            }
            CpuEvent::SentKill { signal, tid: to, result } => {
                // Only a signal with the result 0 counts, because a process that already ends takes no
                // signal.
                let is_taken =
                    fields.number(signal) == Some(SIGKILL) && fields.number(result) == Some(0);
                if let (Some(history), Some(to), true) = (&mut self.history, tid(to), is_taken) {
                    history.sent_kill(time, to, (context == 0).then_some(running));
                }
            }
            CpuEvent::SwitchIn { tid: field } => {
                cpu.push(time, tid(field).map(|tid| named(tid, b"")).ok_or(Unknown::Missing));
            }
            // A thread that was not recorded got the CPU.
            CpuEvent::SwitchOut => cpu.push(time, Err(Unknown::NotRecorded)),
            CpuEvent::TimerBegin => (cpu.timer, cpu.handler) = (Some(context), None),
            CpuEvent::TimerEnd => cpu.timer = None,
            CpuEvent::HandlerBegin { name } => {
                let name = fields.text(name).map(Into::into);
                (cpu.timer, cpu.handler) = (None, Some(causes.number(Found::Interrupt(name))));
            }
            CpuEvent::HandlerEnd => cpu.handler = None,
            // A CPU runs softirqs one after another, so a timer of the previous softirq has ended too.
            CpuEvent::SoftirqBegin { vec } => {
                let vec = tid(vec).and_then(|n| n.try_into().ok());
                (cpu.timer, cpu.softirq) = (None, vec);
            }
            CpuEvent::SoftirqEnd => (cpu.timer, cpu.softirq) = (None, None),
            CpuEvent::Waking { tid: field } => {
                let by = cpu.waker(context, named(running, b""), causes);
                let Some(woken) = tid(field) else { return };
                match (&mut self.history, by) {
                    (Some(history), By::Task(by)) if by.tid() > 0 => {
                        history.woken(time, woken, by.tid());
                    }
                    (Some(history), By::Task(_)) => {
                        history.woken_by(time, woken, causes.number(Found::Idle));
                    }
                    (Some(history), By::Cause(cause)) => history.woken_by(time, woken, cause),
                    (None, _) => {}
                }
                if self.woken.len() >= MAX_WOKEN && !self.woken.contains_key(&woken) {
                    // Wake-ups that are forgotten count as missing.
                    self.woken.clear();
                }
                self.woken.insert(woken, Woken { time, by });
            }
        }
    }

    /// Returns a thread, with its name if the thread had one of the last turns of a CPU.
    fn named(&self, tid: u32) -> Task {
        let last = self.all.iter().flat_map(|cpu| cpu.turns.iter().rev().take(LAST_TURNS));
        let mut tasks = last.filter_map(|turn| turn.task.ok());
        let thread = Thread { tid, trace: self.trace, life: self.lives.of(tid) };
        tasks.find(|task| task.thread == thread).unwrap_or(Task::new(thread, b""))
    }

    /// Notes that events of a CPU were lost. A wake-up of any thread may be among the lost events.
    pub fn lost(&mut self, number: u32) {
        if let Some(cpu) = self.all.get_mut(number as usize) {
            (cpu.timer, cpu.handler, cpu.softirq) = (None, None, None);
            cpu.miss();
        }
        self.history.iter_mut().for_each(History::forget);
    }

    /// Finds what a thread waited for while the thread was blocked or ready: see [`Cpus::before`].
    pub fn explain(
        &self,
        part: Part,
        next: Next,
        times: (i64, i64),
        most: usize,
        causes: &mut Causes,
        found: &mut Vec<(i64, CauseNumber)>,
    ) {
        match part {
            Part::Blocked => found.push((times.1, self.woke(next.tid, times, causes))),
            _ => self.before(next, times, most, causes, found),
        }
    }

    /// Returns what woke a thread that slept between two times.
    fn woke(&self, tid: u32, (from, to): (i64, i64), causes: &mut Causes) -> CauseNumber {
        match self.woken.get(&tid).filter(|woken| from < woken.time && woken.time <= to) {
            Some(Woken { by: By::Task(task), time }) => causes.thread(task, *time),
            Some(Woken { by: By::Cause(cause), .. }) => *cause,
            None => Unknown::Missing.number(),
        }
    }

    /// Finds the threads that had a CPU while the thread `next` was ready and waited for the CPU. The entries
    /// of `found` are in order. Each entry has the end of a thread's time, and the thread's index in
    /// [`Causes`]. There are at most `most` threads: earlier time gets [`Unknown::TooMany`].
    fn before(
        &self,
        next: Next,
        (from, to): (i64, i64),
        most: usize,
        causes: &mut Causes,
        found: &mut Vec<(i64, CauseNumber)>,
    ) {
        found.clear();
        let missing = Unknown::Missing.number();
        let turns = self.all.get(next.cpu as usize).map(|cpu| cpu.until(to));
        let mut turns = turns.into_iter().flatten().rev().peekable();
        let is_of = |turn: &Turn, tid| turn.task.is_ok_and(|task| task.tid() == tid);
        // The turn that ended the wait may already be in the list, and is skipped. If the last turn is the
        // thread's own turn before the wait, then a switch away from the thread is missing.
        turns.next_if(|turn| is_of(turn, next.tid) && turn.from > from);
        if to > self.until {
            return found.push((to, missing));
        }
        let mut prev = next.prev;
        let mut end = to;
        for turn in turns {
            // The switch that ended the wait must go away from the thread of the last turn. If the switch
            // goes away from another thread, a switch is missing, and the end of the last turn is not known.
            let is_missing = prev.take().is_some_and(|prev| !is_of(turn, prev));
            if is_of(turn, next.tid) && !is_missing {
                // The wait began when the thread's own previous turn ended. The end of this turn may have a
                // slightly different time, because the turn may come from another buffer.
                if turn.from <= from {
                    end = from;
                }
                break;
            }
            if turn.from >= end {
                continue;
            }
            if found.len() == most {
                found.push((end, Unknown::TooMany.number()));
                end = from;
                break;
            }
            let cause = match turn.task {
                Ok(task) if !is_missing => causes.thread(&task, turn.from),
                Ok(_) => missing,
                Err(why) => why.number(),
            };
            match found.last_mut() {
                Some((_, last)) if *last == cause => {}
                _ => found.push((end, cause)),
            }
            end = turn.from.max(from);
            if end == from {
                break;
            }
        }
        if end > from {
            found.push((end, missing));
        }
        found.reverse();
    }
}

/// Iterates over the recordings that show a session's threads and have all threads of the machine.
pub(super) fn all_threads<'c>(
    traced: &'c [Vec<(usize, usize)>],
    cpus: &'c [Option<Cpus>],
    session: usize,
) -> impl Iterator<Item = &'c Cpus> {
    let shows = move |to: &[(usize, usize)]| to.iter().any(|(of, _)| *of == session);
    let all = traced.iter().zip(cpus).filter(move |(to, _)| shows(to));
    all.filter_map(|(_, cpus)| cpus.as_ref())
}

impl Cpu {
    /// An event with the context `context` shows that some interrupts are over. Forgets these interrupts,
    /// because the events of their ends may be missing.
    fn leave_interrupts(&mut self, context: u8) {
        if context & HARD == 0 {
            self.handler = None;
            self.timer = self.timer.filter(|timer| *timer == context && context != 0);
        }
        if context == 0 {
            self.softirq = None;
        }
    }

    /// Returns whether a thread has the CPU, as far as the CPU's switches say.
    fn has(&self, tid: u32) -> bool {
        self.turns.back().and_then(|turn| turn.task.ok()).is_some_and(|task| task.tid() == tid)
    }

    /// Iterates over the turns that began at a time or earlier.
    fn until(&self, time: i64) -> impl DoubleEndedIterator<Item = &Turn> {
        self.turns.range(..self.turns.partition_point(|turn| turn.from <= time))
    }

    /// Processes a `sched_switch` from the thread `away` to the thread `to`.
    fn switch(&mut self, time: i64, away: Option<Task>, to: Option<Task>) {
        if let (Some(Turn { task: Ok(task), .. }), Some(away)) = (self.turns.back_mut(), away) {
            // The name in the later event counts, because a thread may change its name.
            *task = away;
        }
        self.push(time, to.ok_or(Unknown::Missing));
    }

    /// Forgets which thread had the CPU last, because the end of its turn is not known.
    fn miss(&mut self) {
        if let Some(turn) = self.turns.back_mut() {
            turn.task = Err(Unknown::Missing);
        }
    }

    fn push(&mut self, from: i64, task: Result<Task, Unknown>) {
        if self.turns.len() >= self.most {
            self.turns.pop_front();
        }
        self.turns.push_back(Turn { from, task });
    }

    /// Returns what wakes a thread. `context` is the context of the wake-up's event. In an interrupt, the
    /// waker is not the thread that has the CPU.
    fn waker(&self, context: u8, running: Task, causes: &mut Causes) -> By {
        let cause = match context {
            0 => {
                let named = self.turns.back().and_then(|turn| turn.task.ok());
                return By::Task(
                    named.filter(|task| task.tid() == running.tid()).unwrap_or(running),
                );
            }
            _ if self.timer == Some(context) => Found::Timer,
            _ if context & HARD != 0 => match self.handler {
                Some(handler) => return By::Cause(handler),
                None => Found::Interrupt(None),
            },
            _ => Found::Softirq(self.softirq),
        };
        By::Cause(causes.number(cause))
    }
}
