// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sums up what the threads of VMMs did in each stage, in one pass over the intervals of threads.

use super::events::Found;
use super::path::{Span, Threads, steps};
use super::{Boot, Thread, Wait};
use crate::consumer::Consumer;
use crate::error::{Error, Result};
use crate::recording::Recording;
use crate::regions::{Cause, Options, Part, Select, ThreadInterval, Times};
use hypertrace_format::error::Warning;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Maximum number of intervals that are kept for critical paths. If there are more intervals, no stage has a
/// critical path.
const MAX_SPANS: usize = 1 << 22;
/// Maximum number of causes of a thread's waits in a stage. Further causes share one count.
const MAX_CAUSES: usize = 64;

/// Maximum number of pairs of a stage and a thread, over all stages. The result leaves out the threads of
/// further pairs.
const MAX_SUMS: usize = 1 << 20;

/// Sums of a thread in a stage, while intervals are read.
#[derive(Default)]
struct Sums {
    times: Times,
    waits: HashMap<(usize, String), u64>,
}

struct Intervals<'a> {
    found: &'a Found,
    /// Sums by boot, stage and thread.
    sums: HashMap<(usize, usize, u32), Sums>,
    has_more: bool,
    names: HashMap<u32, String>,
    /// Intervals by thread.
    spans: HashMap<u32, Vec<Span>>,
    kept: usize,
}

impl Consumer for Intervals<'_> {
    type Error = Error;

    fn interval(&mut self, of: &ThreadInterval<'_>) -> Result<()> {
        if of.is_of_guest {
            return Ok(());
        }
        let Some(boot) = self.found.boot_of(of.tid) else { return Ok(()) };
        if let Some(name) = of.name {
            self.names.insert(of.tid, name.to_owned());
        }
        let (from, to, part) = (of.interval.from, of.interval.to, of.interval.part);
        let cause = of.cause.as_ref().map(ToString::to_string);
        let stages = &self.found.boots[boot].stages;
        let first = stages.partition_point(|stage| stage.end_ns <= from);
        for (at, stage) in stages.iter().enumerate().skip(first) {
            let (from, to) = (from.max(stage.begin_ns), to.min(stage.end_ns));
            if from >= to {
                break;
            }
            let ns = (to - from).unsigned_abs();
            let key = (boot, at, of.tid);
            if self.sums.len() >= MAX_SUMS && !self.sums.contains_key(&key) {
                self.has_more = true;
                break;
            }
            let sums = self.sums.entry(key).or_default();
            sums.times.0[part as usize] += ns;
            if let Some(cause) = &cause {
                let key = (part as usize, cause.clone());
                let is_full = sums.waits.len() >= MAX_CAUSES && !sums.waits.contains_key(&key);
                let key = if is_full { (part as usize, "others".into()) } else { key };
                *sums.waits.entry(key).or_default() += ns;
            }
        }
        self.kept += 1;
        if self.kept <= MAX_SPANS {
            let waker = match of.cause {
                Some(Cause::Thread { tid, .. }) => Some(tid),
                _ => None,
            };
            self.spans.entry(of.tid).or_default().push(Span { from, to, part, waker, cause });
        }
        Ok(())
    }
}

impl Found {
    /// Returns the boot to which a thread belongs. The threads of the VMM and of processes that the VMM
    /// created belong to a boot.
    fn boot_of(&self, tid: u32) -> Option<usize> {
        if let Some(members) = &self.members {
            return members.contains(&tid).then_some(0);
        }
        let mut process = self.processes.get(&tid).copied().unwrap_or(tid);
        // The loop is limited, because the kernel may use process ids again, so the parents may form a
        // circle. No real chain of parents is longer than 64.
        for _ in 0..64 {
            let boot = self.boots.iter().position(|boot| boot.pid == Some(process));
            if boot.is_some() {
                return boot;
            }
            process = *self.parents.get(&process)?;
        }
        None
    }
}

/// Adds the time of threads and the critical path to each stage of the boots that were found.
pub(super) fn divide(
    recording: &Recording,
    mut found: Found,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Boot>> {
    let mut all = Intervals {
        found: &found,
        sums: HashMap::new(),
        has_more: false,
        names: HashMap::new(),
        spans: HashMap::new(),
        kept: 0,
    };
    let known = found.processes.keys().chain(found.vcpus.keys()).copied();
    let known = known.chain(found.boots.iter().filter_map(|boot| boot.pid));
    let known = known.chain(found.members.iter().flatten().copied()).collect::<BTreeSet<_>>();
    let of_boots = known.into_iter().filter(|tid| found.boot_of(*tid).is_some());
    let vcpu = |tid: u32| found.vcpus.get(&tid).map(|(_, number)| *number);
    let threads = of_boots.map(|tid| (tid, vcpu(tid))).collect();
    // The empty name selects no region, because only the intervals are needed.
    let select = Select::Names(vec![String::new()]);
    let options = Options { select, threads, ..Options::default() };
    let regions = recording.regions(&options, &mut all)?;
    warnings.extend(regions.warnings);
    let Intervals { sums, has_more, names, mut spans, kept, .. } = all;
    if has_more {
        warnings.push("threads are left out of stages, because there are too many".into());
    }
    if kept > MAX_SPANS {
        spans.clear();
        warnings.push("critical paths are left out, because the boots are too long".into());
    }
    let mut boots = std::mem::take(&mut found.boots);
    let of_host = || recording.traces.iter().filter(|trace| !trace.is_of_guest());
    let of_kernel =
        |tid: u32| of_host().find_map(|trace| trace.thread_name(tid)).map(str::to_owned);
    let thread_name = |tid: u32| {
        let known = names.get(&tid).cloned().or_else(|| of_kernel(tid));
        known.unwrap_or_else(|| "thread".into())
    };
    let step_name = |tid: u32| format!("{}-{tid}", thread_name(tid));
    let threads = Threads { spans: &spans, makers: &found.makers, name: &step_name };
    for ((boot, stage, tid), Sums { times, waits }) in sums {
        let waits =
            waits.into_iter().map(|((part, cause), ns)| Wait { part: Part::ALL[part], cause, ns });
        let mut waits = Vec::from_iter(waits);
        waits.sort_by(|a, b| (b.ns, &a.cause).cmp(&(a.ns, &b.cause)));
        let vcpu = found.vcpus.get(&tid).map(|(_, number)| *number);
        boots[boot].stages[stage].threads.push(Thread {
            tid,
            name: thread_name(tid),
            vcpu,
            times,
            waits,
        });
    }
    for (boot, enders) in boots.iter_mut().zip(&found.enders) {
        if let Some(pid) = boot.pid.filter(|_| boot.name.is_empty()) {
            boot.name = thread_name(pid);
        }
        for (stage, ender) in boot.stages.iter_mut().zip(enders) {
            let on_cpu = |thread: &Thread| {
                thread
                    .times
                    .iter()
                    .filter(|(part, _)| part.is_on_cpu())
                    .map(|(_, ns)| ns)
                    .sum::<u64>()
            };
            stage.threads.sort_by_key(|thread| (Reverse(on_cpu(thread)), thread.tid));
            if !spans.is_empty() {
                stage.path = steps(&threads, *ender, (stage.begin_ns, stage.end_ns));
            }
        }
    }
    Ok(boots)
}
