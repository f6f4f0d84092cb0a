// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The times in which a hypervisor took time from the machine of a session.
//!
//! The recorder reads a counter from time to time, and the counter has steps. So the counter rose at an
//! unknown time between two readings, and less than one step of the taken time is missing in the counter. A
//! CPU adds taken time to its own counter at the next tick of the CPU's timer, or when the CPU is no longer
//! idle. The CPU then adds all time that was taken since the last addition. So a hypervisor took the time of
//! a rise after the beginning of the previous rise. This time is less than the rise plus one step. Stolen
//! time is never a part of a region, because nothing shows exactly when the time was taken.

use super::store::{Sample, Store};
use crate::inputs::kernel::{KernelTrace, STEAL_STEP_MS, Steal};
use std::collections::HashMap;

const MS: u64 = 1_000_000;
const STEP_NS: u64 = STEAL_STEP_MS * MS;

#[derive(Debug)]
pub(super) struct Steals {
    /// Machine of each session.
    machines: Vec<Machine>,
    /// Whether a recording says how much time was taken.
    are_known: bool,
}

/// The machine of a session.
#[derive(Debug)]
struct Machine {
    /// Times in which the sum of all CPUs' counters rose, in order and without overlaps.
    rises: Vec<(i64, i64)>,
    /// Maximum time that was taken from all CPUs, in nanoseconds; `None` if it is not known.
    most: Option<u64>,
    /// Spans of CPUs whose counters rose; `None` if the CPUs' own counters were not recorded.
    cpus: Option<HashMap<u16, Vec<Span>>>,
}

/// A time in which at most `most` nanoseconds were taken from a CPU. The next span of the CPU begins before
/// this span ends.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: i64,
    to: i64,
    most: u64,
}

/// The time that can have been taken from regions in a CPU's spans.
#[derive(Default)]
struct Taken {
    /// For each span id, the maximum time on a CPU within the span, summed over the regions that begin or end
    /// in the span.
    at_ends: HashMap<usize, u64>,
    /// Some regions include a whole span. The map has the changes in the count of such regions from span to
    /// span. The key is the id of the span at which the count changes.
    whole: HashMap<usize, i64>,
}

impl Steals {
    /// Reads the counters of the sessions' machines. `recordings` has for each session the recordings that
    /// show the session's threads.
    pub fn new(recordings: &[Vec<&KernelTrace>]) -> Steals {
        let machines = Vec::from_iter(recordings.iter().map(|all| Machine::new(all)));
        let are_known = machines.iter().any(|machine| machine.most.is_some());
        Steals { machines, are_known }
    }

    /// Counts the regions during which the sum of all CPUs' counters rose; `None` if no recording says how
    /// much time was taken.
    pub fn hit(&self, store: &Store, regions: &[u32]) -> Option<u64> {
        if self.machines.iter().all(|machine| machine.rises.is_empty()) {
            return self.are_known.then_some(0);
        }
        let is_hit = |index: &&u32| {
            let sample = store.get(**index);
            let Some(machine) = self.machines.get(usize::from(sample.session)) else {
                return false;
            };
            let next = machine.rises.partition_point(|(_, to)| *to <= sample.begin_ns);
            machine.rises.get(next).is_some_and(|(from, _)| *from < sample.end_ns())
        };
        Some(regions.iter().filter(is_hit).count() as u64)
    }

    /// Returns the maximum time that was taken from regions of a session, in nanoseconds; `None` if it is not
    /// known.
    pub fn most(&self, store: &Store, regions: &[u32]) -> Option<u64> {
        let samples = regions.iter().map(|index| store.get(*index));
        let Some(first) = samples.clone().next() else { return Some(0) };
        self.machines.get(usize::from(first.session))?.most_of(samples)
    }
}

impl Machine {
    fn new(recordings: &[&KernelTrace]) -> Machine {
        let all = || recordings.iter().flat_map(|trace| trace.steals());
        let sum = all().filter(|steal| steal.cpu.is_none());
        let mut rises = Vec::from_iter(sum.map(|steal| (steal.from, steal.to)));
        rises.sort_by_key(|times| *times);
        rises.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            before.1 = if joins { before.1.max(next.1) } else { before.1 };
            joins
        });
        let most =
            recordings.iter().map(|trace| Some(trace.steal_at_most_ms()?.saturating_mul(MS)));
        let most = most.reduce(|sum, most| Some(sum?.saturating_add(most?))).flatten();
        // The CPUs' own counters are used only with a single recording, because two recordings may cover the
        // same time, or two machines.
        let cpus = (recordings.len() == 1).then(|| {
            let mut cpus: HashMap<u16, Vec<Steal<i64>>> = HashMap::new();
            for steal in all() {
                if let Some(cpu) = steal.cpu.and_then(|cpu| u16::try_from(cpu).ok()) {
                    cpus.entry(cpu).or_default().push(steal);
                }
            }
            cpus.into_iter().map(|(cpu, steals)| (cpu, spans(steals))).collect()
        });
        Machine { rises, most, cpus: cpus.filter(|cpus: &HashMap<_, _>| !cpus.is_empty()) }
    }

    /// Returns the maximum time that was taken from regions, in nanoseconds; `None` if it is not known.
    fn most_of<'s>(&self, samples: impl Iterator<Item = &'s Sample> + Clone) -> Option<u64> {
        let on_cpu = samples.clone().map(Sample::on_cpu_ns).fold(0, u64::saturating_add);
        let most = self.most?.min(on_cpu);
        let Some(cpus) = &self.cpus else { return Some(most) };
        let mut taken: HashMap<u16, Taken> = HashMap::new();
        let mut elsewhere: u64 = 0;
        for sample in samples {
            match sample.cpu {
                Some(cpu) => taken.entry(cpu).or_default().add(spans_of(cpus, cpu), sample),
                // The region was on several CPUs, or its CPU is not known.
                None => elsewhere = elsewhere.saturating_add(sample.on_cpu_ns()),
            }
        }
        let sums = taken.iter().map(|(cpu, taken)| taken.most(spans_of(cpus, *cpu)));
        Some(sums.fold(elsewhere, u64::saturating_add).min(most))
    }
}

/// Returns the spans of a CPU, or a single span if the CPU's counter did not rise.
fn spans_of(cpus: &HashMap<u16, Vec<Span>>, cpu: u16) -> &[Span] {
    const WITHOUT_RISE: &[Span] = &[Span { from: i64::MIN, to: i64::MAX, most: STEP_NS }];
    cpus.get(&cpu).map_or(WITHOUT_RISE, Vec::as_slice)
}

/// Returns the spans into which the rises of a CPU divide all time.
fn spans(mut rises: Vec<Steal<i64>>) -> Vec<Span> {
    rises.sort_by_key(|rise| (rise.from, rise.to));
    let (mut from, mut last) = (i64::MIN, i64::MIN);
    let mut spans = Vec::with_capacity(rises.len() + 1);
    for rise in rises {
        // A recorder writes rises in order, so the maximum matters only for a list that no recorder wrote.
        last = last.max(rise.to);
        spans.push(Span { from, to: last, most: most(rise.ms) });
        from = rise.from;
    }
    spans.push(Span { from, to: i64::MAX, most: STEP_NS });
    spans
}

/// Returns the maximum time in nanoseconds that can have been taken if a counter rose by `ms` milliseconds.
fn most(ms: u64) -> u64 {
    ms.saturating_mul(MS).saturating_add(STEP_NS)
}

impl Taken {
    /// Adds a region.
    fn add(&mut self, spans: &[Span], sample: &Sample) {
        let (begin, end) = (sample.begin_ns, sample.end_ns());
        let first = spans.partition_point(|span| span.to <= begin);
        // The last span that begins before the region's end.
        let last = spans.partition_point(|span| span.from < end).max(first + 1) - 1;
        for at in [first, last].into_iter().take(1 + usize::from(last > first)) {
            let Some(span) = spans.get(at) else { continue };
            let within = super::parts::between((span.from.max(begin), span.to.min(end)));
            let sum = self.at_ends.entry(at).or_default();
            *sum = sum.saturating_add(within.min(sample.on_cpu_ns()));
        }
        if last > first + 1 {
            *self.whole.entry(first + 1).or_default() += 1;
            *self.whole.entry(last).or_default() -= 1;
        }
    }

    /// Returns the maximum time that was taken from all regions.
    fn most(&self, spans: &[Span]) -> u64 {
        let mut whole = 0;
        let mut sum: u64 = 0;
        for (at, span) in spans.iter().enumerate() {
            whole += self.whole.get(&at).copied().unwrap_or(0);
            let on_cpu =
                if whole > 0 { u64::MAX } else { self.at_ends.get(&at).copied().unwrap_or(0) };
            sum = sum.saturating_add(on_cpu.min(span.most));
        }
        let rises = spans.iter().map(|span| span.most - STEP_NS).fold(STEP_NS, u64::saturating_add);
        sum.min(rises)
    }
}

#[cfg(test)]
mod tests;
