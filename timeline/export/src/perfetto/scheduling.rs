// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shows which thread each CPU ran. If all switches are known, they are written in the form of the kernel's
//! own events. If some switches are not known, the recorded threads get states.

use super::events::Writer;
use super::fields::{packet, scheduling, task};
use super::intern::valid;
use super::tracks::Track;
use super::vcpus::Vcpus;
use crate::Result;
use hypertrace_timeline::KernelTrace;
use hypertrace_timeline::regions::{Scheduled, Scheduling, SchedulingStep as Step, Task};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of waiting steps, summed over all CPUs. A step waits until it is written in a packet.
const MAX: usize = 1 << 15;
/// Number of waiting steps of one CPU from which the CPU's steps are written as a packet.
const OF_PACKET: usize = 1 << 10;
/// Maximum number of threads whose last states are remembered.
const MAX_THREADS: usize = 1 << 16;
/// Maximum size of a thread's name in bytes.
const MAX_NAME: usize = 64;

/// States of a thread that has ended: `EXIT_DEAD` and `EXIT_ZOMBIE`.
const ENDED: i64 = 0x30;

/// States of `sched_switch` since Linux 4.14, each with the state of the same meaning in Linux 4.4. Viewers
/// assume Linux 4.4 if they do not know the kernel's release.
const SINCE_4_14: [(i64, i64); 3] = [
    // A parked thread.
    (0x40, 0x200),
    // An idle thread, which is uninterruptible and no part of the load.
    (0x80, 0x402),
    // A preempted thread, which is ready.
    (0x100, 0),
];
/// State of a thread that sleeps.
const SLEEPING: u64 = 1;
/// Priority and name of the idle thread.
const IDLE: (u64, &[u8]) = (120, b"swapper");

/// The steps of a CPU that wait for a packet.
#[derive(Debug, Default)]
struct Cpu {
    names: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u64>,
    switches: Vec<[u64; 5]>,
    wakings: Vec<[u64; 6]>,
    /// Whether events were lost before these steps.
    has_lost: bool,
}

impl Cpu {
    /// Returns the id of a name.
    fn name(&mut self, name: &[u8]) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u64;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        number
    }

    fn len(&self) -> usize {
        self.switches.len() + self.wakings.len()
    }
}

/// Writes the scheduling of kernels' traces.
pub(super) fn write(
    writer: &mut Writer<'_, '_>,
    traces: &[KernelTrace],
    mut vcpus: Vcpus,
    window: (i64, i64),
) -> Result<()> {
    let mut cpus: HashMap<(usize, u32), Cpu> = HashMap::new();
    let mut waiting = 0;
    let mut running = HashMap::new();
    let mut scheduling = Scheduling::of(traces)?;
    // The kernel's own form needs times of BOOTTIME.
    let has_boot = writer.clock.boot_ns.is_some();
    let is_whole = Vec::from_iter(traces.iter().map(|trace| has_boot && trace.has_all_threads()));
    let mut recorded = vec![(i64::MAX, i64::MIN); traces.len()];
    // Last thread of each CPU. The key is the trace and the CPU's id.
    let mut last: BTreeMap<(usize, u32), u32> = BTreeMap::new();
    scheduling.each(|scheduled| {
        let Scheduled { ts_ns, trace, cpu, .. } = *scheduled;
        let is_loss = matches!(scheduled.step, Step::Lost);
        if !is_loss && (ts_ns < window.0 || ts_ns > window.1) {
            return Ok(());
        }
        if !is_loss {
            let (from, _) = &mut recorded[trace];
            *from = (*from).min(ts_ns);
            writer.known.saw(trace, ts_ns);
        }
        vcpus.step(writer, scheduled)?;
        if let Step::Switch { next, .. } = scheduled.step {
            last.insert((trace, cpu), if next.is_followed { next.tid } else { 0 });
        }
        if !is_whole[trace] {
            return states(writer, scheduled, &mut running);
        }
        let at = if is_loss { 0 } else { writer.at(ts_ns) };
        let known = cpus.entry((trace, cpu)).or_default();
        match scheduled.step {
            Step::Switch { state, next, .. } => {
                let name = known.name(next.name);
                let has_release = writer.all[writer.of_traces[trace] as usize].release.is_some();
                let state = if has_release { state } else { without_release(state) } as u64;
                let prio = i64::from(next.prio) as u64;
                known.switches.push([at, state, next.tid.into(), prio, name]);
                writer.counts.switches += 1;
            }
            Step::Waking { task, target, flags } => {
                let name = known.name(task.name);
                let prio = i64::from(task.prio) as u64;
                let waking = [at, task.tid.into(), target.into(), prio, name, flags.into()];
                known.wakings.push(waking);
                writer.counts.wakings += 1;
            }
            Step::Ready { .. } => return Ok(()),
            Step::Lost => {
                waiting -= flush(writer, trace, cpu, known)?;
                known.has_lost = true;
                return Ok(());
            }
        }
        waiting += 1;
        if known.len() == OF_PACKET {
            waiting -= flush(writer, trace, cpu, known)?;
        }
        if waiting == MAX {
            for ((trace, cpu), known) in &mut cpus {
                flush(writer, *trace, *cpu, known)?;
            }
            waiting = 0;
        }
        Ok(())
    })?;
    vcpus.end(writer)?;
    for (at, (_, until)) in recorded.iter_mut().enumerate() {
        *until = writer.known.ends.get(at).copied().unwrap_or(i64::MIN).min(window.1);
    }
    for ((trace, cpu), tid) in last {
        let (machine, until) = (writer.of_traces[trace], recorded[trace].1);
        let mut others = recorded.iter().zip(writer.of_traces);
        let is_covered =
            others.any(|((from, to), of)| *of == machine && *from <= until && until < *to);
        if tid == 0 || is_covered {
            continue;
        }
        // If no switch ends the time of the last thread, viewers show this thread as running until the next
        // recording of the same machine. Viewers have no state for a time that was not recorded. So the last
        // thread is shown as asleep until the next recording, like the threads that were asleep before. A
        // slice on a track of the machine says that the kernel was not recorded.
        if is_whole[trace] {
            let at = writer.at(until);
            let known = cpus.entry((trace, cpu)).or_default();
            let name = known.name(IDLE.1);
            known.switches.push([at, SLEEPING, 0, IDLE.0, name]);
        } else {
            task_state(writer, trace, (until, cpu), (0, IDLE.1, IDLE.0 as i32), task::RUNNING)?;
        }
    }
    gaps(writer, &recorded)?;
    let mut left = Vec::from_iter(cpus);
    left.sort_unstable_by_key(|(of, _)| *of);
    for ((trace, cpu), mut known) in left {
        flush(writer, trace, cpu, &mut known)?;
    }
    Ok(())
}

/// Writes a slice for each time between two recordings of a machine. `recorded` has the first and the last
/// time of each trace.
fn gaps(writer: &mut Writer<'_, '_>, recorded: &[(i64, i64)]) -> Result<()> {
    let of_traces = writer.of_traces.iter().copied();
    let times = of_traces.zip(recorded.iter().copied()).filter(|(_, (from, to))| from <= to);
    let mut times = Vec::from_iter(times);
    times.sort_unstable();
    let mut last: Option<(u64, i64)> = None;
    let name = "kernel not recorded".into();
    for (machine, (from, to)) in times {
        let before = last.filter(|(of, _)| *of == machine).map(|(_, end)| end);
        if let Some(end) = before.filter(|end| *end < from) {
            let track = writer.named(machine, Track::Unrecorded { machine }, &name)?;
            writer.slice_begin(machine, (end, track), &name, |_, _| {})?;
            writer.slice_end(machine, from, track)?;
        }
        last = Some((machine, before.map_or(to, |end| end.max(to))));
    }
    Ok(())
}

/// Writes the steps of a CPU. Returns their number.
fn flush(writer: &mut Writer<'_, '_>, trace: usize, cpu: u32, known: &mut Cpu) -> Result<usize> {
    let count = known.len();
    if count == 0 {
        return Ok(0);
    }
    let Cpu { names, switches, wakings, has_lost, .. } = std::mem::take(known);
    let machine = writer.of_traces[trace];
    writer.others[machine as usize].plain(writer.out, |proto| {
        proto.message(packet::FTRACE_EVENTS, |bundle| {
            bundle.number(scheduling::CPU, cpu.into());
            if has_lost {
                bundle.number(scheduling::HAS_LOST, 1);
            }
            bundle.message(scheduling::COMPACT, |compact| {
                for name in &names {
                    compact.put(scheduling::NAMES, valid(name, MAX_NAME).0.as_bytes());
                }
                let times = |all: Vec<u64>| {
                    let mut last = 0;
                    all.into_iter()
                        .map(move |at| at.saturating_sub(std::mem::replace(&mut last, at)))
                };
                compact.packed(
                    scheduling::SWITCH[0],
                    times(switches.iter().map(|switch| switch[0]).collect()),
                );
                for (at, field) in (0..).zip(scheduling::SWITCH).skip(1) {
                    compact.packed(field, switches.iter().map(|switch| switch[at]));
                }
                compact.packed(
                    scheduling::WAKING[0],
                    times(wakings.iter().map(|waking| waking[0]).collect()),
                );
                for (at, field) in (0..).zip(scheduling::WAKING).skip(1) {
                    compact.packed(field, wakings.iter().map(|waking| waking[at]));
                }
            });
        });
    })?;
    Ok(count)
}

/// Writes the states of the threads of a step, if these threads were recorded.
fn states(
    writer: &mut Writer<'_, '_>,
    scheduled: &Scheduled<'_>,
    running: &mut HashMap<(u64, u32), Option<usize>>,
) -> Result<()> {
    let machine = writer.of_traces[scheduled.trace];
    if running.len() >= MAX_THREADS {
        running.clear();
    }
    let mut state = |task: Task<'_>, state: u64| -> Result<()> {
        if task.tid == 0 || !task.is_followed {
            return Ok(());
        }
        let now = (state == task::RUNNING).then_some(scheduled.trace);
        let before = running.insert((machine, task.tid), now).flatten();
        // Viewers reject a trace in which a thread that has a CPU gets a CPU again in the same recording.
        let ended = before.and_then(|trace| writer.known.ends.get(trace)).copied();
        if now.is_some() && before.is_some() && ended.is_none_or(|end| end >= scheduled.ts_ns) {
            return Ok(());
        }
        writer.counts.task_states += 1;
        let of = (task.tid, task.name, task.prio);
        task_state(writer, scheduled.trace, (scheduled.ts_ns, scheduled.cpu), of, state)
    };
    match scheduled.step {
        Step::Switch { prev, state: of_prev, next } => {
            state(prev, state_of(of_prev))?;
            state(next, task::RUNNING)
        }
        Step::Ready { task } => state(task, task::RUNNABLE),
        Step::Waking { .. } | Step::Lost => Ok(()),
    }
}

/// Writes a state of a thread, with the thread's id, name and priority.
fn task_state(
    writer: &mut Writer<'_, '_>,
    trace: usize,
    (ts_ns, cpu): (i64, u32),
    (tid, name, prio): (u32, &[u8], i32),
    state: u64,
) -> Result<()> {
    let at = writer.at(ts_ns);
    let sequence = &mut writer.others[writer.of_traces[trace] as usize];
    sequence.packet(writer.out, writer.clock, at, |proto, _| {
        proto.message(packet::TASK_STATE, |proto| {
            proto.number(task::CPU, cpu.into());
            proto.put(task::NAME, valid(name, MAX_NAME).0.as_bytes());
            proto.number(task::TID, tid.into());
            proto.number(task::STATE, state);
            proto.signed(task::PRIO, prio.into());
        });
    })
}

/// Converts a thread's state for viewers that do not know the kernel's release.
fn without_release(state: i64) -> i64 {
    let others = SINCE_4_14.iter().filter(|(own, _)| state & own != 0);
    others.fold(state & 0x3f, |state, (_, other)| state | other)
}

/// Returns a viewer's number for a state of Linux.
fn state_of(state: i64) -> u64 {
    match state {
        _ if state & ENDED != 0 => task::DESTROYED,
        // The thread is ready.
        0 => task::RUNNABLE,
        _ if state & 0xff == 0 => task::RUNNABLE,
        _ if state & 0x1 != 0 => task::SLEEPING,
        _ if state & 0xc != 0 => task::STOPPED,
        _ => task::UNINTERRUPTIBLE,
    }
}
