// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The division of regions' time, with the names that all outputs show.

use super::causes::{Cause, CauseNumber, GroupWaits, Unknown};
use super::members;
use super::parts::{Detail, Exits, PARTS, Part, REASONS, Reason, Times};
use super::steps::{self, Steps};
use super::store::{Sample, Store};
use serde::Serialize;
use std::sync::Arc;

/// The division of the time of one or several regions.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Breakdown {
    /// Sum of the parts in nanoseconds.
    pub duration_ns: u64,
    /// Largest bound on the error of a region's duration in nanoseconds; `None` if a bound is unknown.
    pub bound_ns: Option<u64>,
    /// Number of regions.
    pub regions: u64,
    /// Time in each part. A total has the sum over all regions, and any other breakdown has the mean.
    #[serde(rename = "parts")]
    pub times: Times,
    /// Exits by reason. If the exits come from all regions, their times in the kernel add up to the part
    /// *kernel*, and their times in the VMM add up to the part *VMM*.
    pub exits: Vec<Exit>,
    /// Waits by part and cause. The longest wait of each part comes first. If the waits come from all
    /// regions, the waits add up to their parts.
    pub waits: Vec<Wait>,
    /// Critical path, the longest step first. In a total, the steps add up to the duration. Empty if the path
    /// is not wanted.
    pub path: Vec<PathStep>,
    /// Number of regions that `exits`, `waits` and `path` cover. If there are too many regions, the details
    /// of some regions are dropped.
    pub exits_of: u64,
    /// Number of regions during which a hypervisor may have taken time from the machine's CPUs; `None` if no
    /// recording says whether a hypervisor took time.
    pub steal_regions: Option<u64>,
    /// Maximum time in nanoseconds that a hypervisor can have taken from a region while the region's thread
    /// had a CPU. A total has the sum over all regions, and any other breakdown has the mean. `None` if the
    /// time is not known.
    pub steal_at_most_ns: Option<u64>,
    /// Maximum time in nanoseconds that threads of a guest can have run in a region. A total has the sum over
    /// all regions, and any other breakdown has the mean. `None` if no region has [such a
    /// bound](Sample::guest_at_most_ns).
    pub guest_at_most_ns: Option<u64>,
    /// Whether the guest's time includes KVM's own part, which the kernel did not trace.
    pub guest_includes_kvm: bool,
    /// One of the regions, as an example.
    #[serde(skip)]
    pub example: Option<Sample>,
}

/// Exits for one reason, each until the guest runs again.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Exit {
    /// Index of the reason in [`Regions::reasons`](super::Regions::reasons).
    #[serde(skip)]
    pub number: Reason,
    /// Name of the reason.
    pub reason: Arc<str>,
    /// Number of exits that began: the mean if the exits come from several regions.
    pub count: f64,
    /// Time in the kernel for these exits in nanoseconds.
    pub kernel_ns: u64,
    /// Time in the VMM for these exits in nanoseconds.
    pub vmm_ns: u64,
    /// Time in which the thread waited during these exits, for a CPU or for anything else, in nanoseconds.
    pub waits_ns: u64,
}

/// Waits of one part and of one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "members::Wait")]
#[non_exhaustive]
pub struct Wait {
    /// Part of the waits.
    pub part: Part,
    /// What the thread waited for.
    pub cause: CauseEntry,
    /// Time of the waits in nanoseconds.
    pub ns: u64,
}

/// The time of a thread on the critical paths of regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "members::PathStep")]
#[non_exhaustive]
pub struct PathStep {
    /// Thread that did the step. If the thread is not known, or if there are too many threads, another cause
    /// stands for the thread.
    pub thread: CauseEntry,
    /// Part that says what the thread did.
    pub part: Part,
    /// Cause of the step. If the thread was blocked and no thread ended the wait, the cause is what the
    /// thread waited for. If the part is [`Part::Stolen`] or [`Part::Behind`], the cause is the thread
    /// that had the CPU. If the time is unknown, the cause says why.
    pub cause: Option<CauseEntry>,
    /// Time of the step in nanoseconds.
    pub ns: u64,
}

/// An entry of [`Regions::causes`](super::Regions::causes). Entries are compared and ordered by their
/// numbers.
#[derive(Clone, Debug)]
pub struct CauseEntry {
    number: CauseNumber,
    cause: Arc<Cause>,
}

impl CauseEntry {
    /// Returns the index of the entry.
    pub fn number(&self) -> CauseNumber {
        self.number
    }
}

impl std::ops::Deref for CauseEntry {
    type Target = Cause;

    fn deref(&self) -> &Cause {
        &self.cause
    }
}

impl PartialEq for CauseEntry {
    fn eq(&self, other: &CauseEntry) -> bool {
        self.number == other.number
    }
}

impl Eq for CauseEntry {}

impl PartialOrd for CauseEntry {
    fn partial_cmp(&self, other: &CauseEntry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CauseEntry {
    fn cmp(&self, other: &CauseEntry) -> std::cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

/// The names of reasons and causes, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    pub reasons: &'a [Arc<str>],
    pub causes: &'a [CauseEntry],
}

impl CauseEntry {
    /// Numbers causes.
    pub(super) fn number_all(causes: Vec<Cause>) -> Vec<CauseEntry> {
        let entry = |(number, cause)| CauseEntry { number, cause: Arc::new(cause) };
        (0..=CauseNumber::MAX).zip(causes).map(entry).collect()
    }
}

/// Sums of the details of regions.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    /// Exits by reason. `None` until a region has an exit, because programs have no exits.
    exits: Option<Box<[Exits; REASONS]>>,
    waits: GroupWaits,
    path: Steps,
    /// Number of regions.
    pub count: u64,
}

impl Details {
    pub fn of<'d>(all: impl IntoIterator<Item = &'d Detail>) -> Details {
        let mut sums = Details::default();
        all.into_iter().for_each(|detail| sums.add(detail));
        sums
    }

    /// Adds the details of a region.
    pub fn add(&mut self, detail: &Detail) {
        for (reason, exits) in &detail.exits {
            self.exits.get_or_insert_default()[usize::from(*reason)].add(exits);
        }
        self.waits.add(&detail.waits);
        self.path.add_all(&detail.path);
        self.count += 1;
    }

    /// Subtracts the details of a region that were added before.
    pub fn remove(&mut self, detail: &Detail) {
        for (reason, exits) in &detail.exits {
            let sum = &mut self.exits.get_or_insert_default()[usize::from(*reason)];
            *sum = sum.since(exits);
        }
        self.waits.remove(&detail.waits);
        self.path.remove_all(&detail.path);
        self.count = self.count.saturating_sub(1);
    }
}

impl Breakdown {
    /// Returns the sums of the regions' parts, each divided by `by`.
    pub(super) fn of(store: &Store, regions: &[u32], by: u64) -> Breakdown {
        let samples = regions.iter().map(|index| store.get(*index));
        let times = mean(samples.clone().map(|sample| &sample.times), by);
        let bounds = samples.clone().map(Sample::bound_ns);
        let guest = samples.filter_map(Sample::guest_at_most_ns).reduce(u64::saturating_add);
        Breakdown {
            duration_ns: times.total(),
            bound_ns: bounds.into_iter().try_fold(0, |most: u64, bound| Some(most.max(bound?))),
            regions: regions.len() as u64,
            times,
            guest_at_most_ns: guest.map(|ns| ns.div_ceil(by)),
            ..Breakdown::default()
        }
    }

    /// Divides the parts further: adds the sums of the regions' details, each divided by `by`. `are_all`:
    /// whether the details come from all regions. If true, the details add up to the parts.
    pub(super) fn add(&mut self, (sums, named): (&Details, Named<'_>), by: u64, are_all: bool) {
        let cause = |number: CauseNumber| named.causes[usize::from(number)].clone();
        let step = |steps::PathStep { thread, part, cause: why, ns, .. }: steps::PathStep| {
            PathStep { thread: cause(thread), part, cause: why.map(cause), ns }
        };
        let waits = mean_waits(&sums.waits, &self.times, by, are_all).sorted().into_iter();
        self.path = sums.path.mean(by).into_iter().map(step).collect();
        self.waits = waits.map(|((part, of), ns)| Wait { part, cause: cause(of), ns }).collect();
        self.exits = match &sums.exits {
            Some(exits) => mean_exits(exits, named.reasons, by, are_all.then_some(&self.times)),
            None => Vec::new(),
        };
        self.exits_of = sums.count;
    }

    /// Extends the path to the duration of the regions. If the path is shorter because means are rounded, the
    /// longest step gets the rest. Otherwise, the rest becomes a step with an unknown thread and an unknown
    /// part.
    pub(super) fn complete_path(&mut self, named: Named<'_>) {
        let left = self.duration_ns.saturating_sub(self.path.iter().map(|step| step.ns).sum());
        let are_rounded = left <= self.path.len() as u64;
        match self.path.first_mut().filter(|_| are_rounded) {
            Some(longest) => longest.ns += left,
            None => {
                let why = named.causes[usize::from(Unknown::NotRecorded.number())].clone();
                let (part, cause) = (Part::Unknown, Some(why.clone()));
                self.path.push(PathStep { thread: why, part, cause, ns: left });
            }
        }
    }
}

/// Returns the index of a quantile among `len` sorted values.
pub(super) fn rank(len: usize, part: f64) -> usize {
    ((len as f64 * part).ceil() as usize).clamp(1, len.max(1)) - 1
}

/// Returns the rank that is nearest to `rank` and has a region with details. If no region within a thousandth
/// of all regions around `rank` has details, returns `rank`.
pub(super) fn nearest(store: &Store, order: &[u32], rank: usize) -> usize {
    let most = order.len() / 1000;
    let has = |at: &usize| order.get(*at).is_some_and(|index| store.detail(*index).is_some());
    let around = (0..=most).flat_map(|far| [rank + far, rank.saturating_sub(far)]);
    around.into_iter().find(has).unwrap_or(rank)
}

/// Returns the mean waits of a group: `sums` divided by the number of regions. If `are_all` is true, `sums`
/// has the waits of all regions. In this case, the rest of each part of `mean` becomes a wait without a
/// recorded cause, so that the waits add up to the parts of `mean`.
fn mean_waits(sums: &GroupWaits, mean: &Times, regions: u64, are_all: bool) -> GroupWaits {
    let mut left = *mean;
    let mut means = GroupWaits::default();
    let sorted = sums.sorted();
    for ((part, cause), sum) in &sorted {
        let left = &mut left.0[*part as usize];
        let mean = sum / regions.max(1);
        let mean = if are_all { mean.min(*left) } else { mean };
        *left = left.saturating_sub(mean);
        means.add(&[((*part, *cause), mean)]);
    }
    for part in Part::ALL.into_iter().filter(|part| are_all && part.has_causes()) {
        let mut of_part = sorted.iter().filter(|((of, _), _)| *of == part);
        let (number, longest) = (of_part.clone().count() as u64, of_part.next());
        // The longest wait gets the rest if rounding is the reason, because rounding takes less than a
        // nanosecond from each mean.
        let rounded = longest.filter(|_| left.get(part) <= number);
        let wait = rounded.map_or((part, Unknown::NotRecorded.number()), |(wait, _)| *wait);
        means.add(&[(wait, left.get(part))]);
    }
    means
}

/// Returns sums of exits, divided by the number of regions. If the exits come from all regions, `of` has the
/// mean times of the regions. In this case, the exits' times in the kernel and in the VMM add up to the same
/// parts of `of`.
fn mean_exits(
    sums: &[Exits; REASONS],
    reasons: &[Arc<str>],
    regions: u64,
    of: Option<&Times>,
) -> Vec<Exit> {
    let shares = |part, time: fn(&Exits) -> u64| {
        let all: u128 = sums.iter().map(|exits| u128::from(time(exits))).sum();
        let mean = of.map_or(all / u128::from(regions.max(1)), |times| times.get(part).into());
        let (mut sum, mut shared) = (0, 0);
        sums.each_ref().map(|exits| {
            sum += u128::from(time(exits));
            let share = sum * mean / all.max(1) - shared;
            shared += share;
            u64::try_from(share).unwrap_or(u64::MAX)
        })
    };
    let kernel = shares(Part::Kernel, |exits| exits.kernel);
    let vmm = shares(Part::Vmm, |exits| exits.vmm);
    let all = sums.iter().zip(reasons).enumerate();
    let all = all.filter(|(_, (exits, _))| **exits != Exits::default());
    let mean = |(at, (exits, reason)): (usize, (&Exits, &Arc<str>))| Exit {
        number: at as Reason,
        reason: Arc::clone(reason),
        count: exits.count as f64 / regions.max(1) as f64,
        kernel_ns: kernel[at],
        vmm_ns: vmm[at],
        waits_ns: exits.waits / regions.max(1),
    };
    all.map(mean).collect()
}

/// Returns the sums of the parts, each divided by `by`, and rounded so that the results add up to the rounded
/// total.
fn mean<'a>(all: impl Iterator<Item = &'a Times>, by: u64) -> Times {
    let mut sums = [0u128; PARTS];
    for times in all {
        sums.iter_mut().zip(times.0).for_each(|(sum, time)| *sum += u128::from(time));
    }
    let (mut sum, mut shared) = (0, 0);
    Times(sums.map(|time| {
        sum += time;
        let part = sum / u128::from(by.max(1)) - shared;
        shared += part;
        u64::try_from(part).unwrap_or(u64::MAX)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        for (len, part, expected) in
            [(1, 0.5, 0), (2, 0.5, 0), (3, 0.5, 1), (100, 0.99, 98), (101, 0.99, 99), (0, 0.5, 0)]
        {
            assert_eq!(rank(len, part), expected, "{len} {part}");
        }
    }

    #[test]
    fn rounded_means_add_up() {
        let all = [
            Times([1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Times([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ];
        let mean = mean(all.iter(), 2);
        assert_eq!(mean.total(), 2);
        assert_eq!(mean.0, [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
