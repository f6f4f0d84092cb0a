// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The scheduling of kernels' traces: switches and wake-ups, in order of time.

use super::followed::Followed;
use super::marks::Kernel;
use super::roles::ByFormat;
use crate::error::Result;
use crate::event::{EntryRef, EventRef};
use crate::inputs::kernel::{KernelTrace, inputs_of_scheduling};
use crate::inputs::names::Names;
use crate::merge::Timeline;

/// Reader of the scheduling of kernels' traces. If a trace has the scheduling of all threads in a buffer of
/// its own, only that buffer is read.
#[derive(Debug)]
pub struct Scheduling<'a> {
    timeline: Timeline<'a>,
    traces: Vec<(bool, Followed)>,
    kinds: ByFormat<Kind>,
}

/// A step of the scheduling of a CPU.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Scheduled<'a> {
    /// Unix time of the step in nanoseconds.
    pub ts_ns: i64,
    /// Index of the trace.
    pub trace: usize,
    /// Id of the CPU.
    pub cpu: u32,
    /// What happened.
    pub step: Step<'a>,
}

/// What happened on a CPU.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A thread got the CPU that another thread had.
    Switch {
        /// Thread that had the CPU.
        prev: Task<'a>,
        /// State of that thread, as the kernel's number.
        state: i64,
        /// Thread that has the CPU now.
        next: Task<'a>,
    },
    /// The thread or the interrupt that runs on this CPU wakes a thread.
    Waking {
        /// Thread that is woken.
        task: Task<'a>,
        /// CPU on which the thread is to run.
        target: u32,
        /// Kernel's flags of the event, which say whether the event was in an interrupt.
        flags: u32,
    },
    /// A thread is ready to run.
    Ready {
        /// Thread that is ready.
        task: Task<'a>,
    },
    /// Events were lost here.
    Lost,
}

/// A thread as an event of the kernel describes the thread.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Id of the thread, 0 for the idle thread of any CPU.
    pub tid: u32,
    /// Name of the thread: bytes that a program chose.
    pub name: &'a [u8],
    /// Priority of the thread.
    pub prio: i32,
    /// Whether all switches of the thread are recorded.
    pub is_followed: bool,
}

/// Kind of an event, with the indices of the fields that the reader needs.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Switch { prev: [usize; 3], state: usize, next: [usize; 3] },
    Waking { task: [usize; 3], target: usize, flags: usize },
    Ready { task: [usize; 3] },
    Other,
}

impl Kind {
    fn of(event: &EventRef<'_>) -> Option<Kind> {
        let format = event.fields.kernel()?.format;
        let task = |names: [&str; 3]| {
            let [tid, name, prio] = names.map(|name| format.field(name));
            Some([tid?, name?, prio?])
        };
        let woken = || task(["pid", "comm", "prio"]);
        Some(match &**event.name {
            "sched:sched_switch" => Kind::Switch {
                prev: task(["prev_pid", "prev_comm", "prev_prio"])?,
                state: format.field("prev_state")?,
                next: task(["next_pid", "next_comm", "next_prio"])?,
            },
            "sched:sched_waking" => Kind::Waking {
                task: woken()?,
                target: format.field("target_cpu")?,
                flags: format.field("common_flags")?,
            },
            "sched:sched_wakeup" | "sched:sched_wakeup_new" => Kind::Ready { task: woken()? },
            _ => Kind::Other,
        })
    }
}

impl<'a> Scheduling<'a> {
    /// Starts at the beginning of traces.
    ///
    /// # Errors
    /// If the first records of a trace are damaged.
    pub fn of(traces: &'a [KernelTrace]) -> Result<Scheduling<'a>> {
        let of_trace =
            |trace: &KernelTrace| (trace.has_all_threads(), Followed::new(trace.threads()));
        let inputs = |(number, trace)| inputs_of_scheduling(number, trace);
        let inputs = (0..).zip(traces).flat_map(inputs).collect();
        Ok(Scheduling {
            timeline: Timeline::of(inputs, Names::new(Vec::new()), Vec::new())?,
            traces: traces.iter().map(of_trace).collect(),
            kinds: ByFormat::default(),
        })
    }

    /// Hands over all steps.
    ///
    /// # Errors
    /// If a trace is damaged, or if the sink returns an error.
    pub fn each<E: From<crate::error::Error>>(
        &mut self,
        mut sink: impl FnMut(&Scheduled<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Scheduling { timeline, traces, kinds } = self;
        while let Some(entry) = timeline.read() {
            match entry? {
                EntryRef::Event(event) => {
                    let Some((has_all, followed)) = traces.get_mut(event.trace) else { continue };
                    if let Some(scheduled) = step(&event, *has_all, followed, kinds) {
                        sink(&scheduled)?;
                    }
                }
                EntryRef::Lost(lost) => {
                    let (trace, cpu) = (lost.trace, lost.cpu.unwrap_or(0));
                    let ts_ns = lost.ts_ns.unwrap_or(i64::MAX);
                    sink(&Scheduled { ts_ns, trace, cpu, step: Step::Lost })?;
                }
            }
        }
        Ok(())
    }
}

/// If an event is a step of the scheduling, returns the step.
fn step<'e>(
    event: &EventRef<'e>,
    has_all: bool,
    followed: &mut Followed,
    kinds: &mut ByFormat<Kind>,
) -> Option<Scheduled<'e>> {
    let fields = event.fields.kernel()?;
    let kind = kinds.get(event, || Kind::of(event).unwrap_or(Kind::Other));
    let thread = event.thread?;
    let kernel = if has_all { Kernel::Other } else { Kernel::of(event) };
    if !has_all {
        followed.add(kernel, fields, thread.tid);
    }
    let number = |at: usize| fields.number(at).unwrap_or(-1);
    let task = |[tid, name, prio]: [usize; 3], followed: &Followed| {
        let tid = u32::try_from(number(tid)).ok()?;
        let is_followed = has_all || followed.has(tid);
        let (name, prio) = (fields.text(name).unwrap_or_default(), number(prio) as i32);
        Some(Task { tid, name, prio, is_followed })
    };
    let step = match kind {
        Kind::Switch { prev, state, next } => Step::Switch {
            prev: task(prev, followed)?,
            state: number(state),
            next: task(next, followed)?,
        },
        Kind::Waking { task: woken, target, flags } => Step::Waking {
            task: task(woken, followed)?,
            target: u32::try_from(number(target)).ok()?,
            flags: number(flags) as u32,
        },
        Kind::Ready { task: ready } => Step::Ready { task: task(ready, followed)? },
        Kind::Other => return None,
    };
    if !has_all {
        followed.remove(kernel, fields);
    }
    let cpu = thread.cpu.unwrap_or(0);
    Some(Scheduled { ts_ns: event.ts_ns, trace: event.trace, cpu, step })
}
