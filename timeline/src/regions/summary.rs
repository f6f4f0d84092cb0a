// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Quantiles of groups, and breakdowns of single regions.

use super::causes::{CauseNumber, GroupWaits, Unknown, Wait};
use super::children::Child;
use super::parts::{Exits, PARTS, Part, REASONS, Reason, Times};
use super::steals::Steals;
use super::steps::{PathStep, Steps};
use super::store::{Detail, Sample, Store};
use super::{MOST_REGIONS, NotCounted};

/// Regions with a name, and with a value if there is a [`By`](super::By).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Group {
    /// Index of the session.
    pub session: usize,
    /// Name of the region; `A to B` between two events. Chosen by guests: escape it.
    pub name: String,
    /// Value that its regions have in common, cut after 100 bytes; `other values` for those that
    /// are too many. Chosen by guests: escape it.
    pub value: Option<String>,
    /// Largest bound on the error of a duration, nanoseconds; `None` if one is unknown.
    pub bound_ns: Option<u64>,
    /// Number of regions that are not counted, by [`NotCounted`](super::NotCounted).
    pub not_counted: [u64; NotCounted::ALL.len()],
    /// Whether they are of programs of the host.
    pub is_program: bool,
    /// Whether the guest's time includes KVM's own part, which the kernel did not trace.
    pub includes_kvm: bool,
    /// Whether the guest's kernel alone says what the threads did: what the host took from a CPU of the guest is part of its time.
    pub is_by_guest_alone: bool,
    /// Median of the regions `empty` of the same kind (events in a ring, or reference points) and
    /// holder; the least one of several holders. `None` if one of its holders has none.
    pub empty_ns: Option<u64>,
    /// Mean of the regions from the 49th to the 51st percentile.
    pub median: Option<Breakdown>,
    /// The region at the 99th percentile.
    pub p99: Option<Breakdown>,
    /// The slowest region.
    pub slowest: Option<Breakdown>,
    /// Sum of all regions.
    pub total: Breakdown,
    /// The regions inside its regions, those with most time first.
    pub children: Vec<Child>,
    /// Number of its first regions that are left out.
    pub(super) skipped: u64,
    /// Its number while regions are added.
    pub(super) number: u16,
    /// Number of the name; `None` for all other names.
    pub(super) name_number: Option<u32>,
    /// Whether it is the group of all other values.
    pub(super) is_others: bool,
    /// Whether they begin with a reference point.
    pub(super) is_point: bool,
    /// The regions' indices in order of their durations.
    pub(super) order: Vec<u32>,
    /// Durations in the same order.
    pub(super) durations: Vec<u64>,
    /// Exits by reason, while regions are added. `None` until a region of the group has an exit: programs have none.
    pub(super) exits: Option<Box<[Exits; REASONS]>>,
    /// Waits by cause, while regions are added.
    pub(super) waits: GroupWaits,
    /// Their paths, while regions are added.
    pub(super) path: Steps,
    /// The slowest one so far.
    pub(super) longest: Option<Longest>,
}

/// The slowest region so far.
#[derive(Clone, Debug)]
pub(super) struct Longest {
    pub duration: u64,
    pub detail: Detail,
}

/// How the time of one or several regions divides.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Breakdown {
    /// Number of regions.
    pub regions: u64,
    /// Their mean; of the total: their sum. The parts add up to the duration.
    pub times: Times,
    /// Largest bound on the error of one's duration, nanoseconds; `None` if one is unknown.
    pub bound_ns: Option<u64>,
    /// Exits by reason, an index of [`Regions::reasons`](super::Regions::reasons): numbers of each region, and times in
    /// nanoseconds. Those in the kernel and in the VMM add up to these parts, if they are of all regions.
    pub exits: Vec<(Reason, Exits<f64>)>,
    /// Waits by the part, runnable or blocked, and the cause, an index of
    /// [`Regions::causes`](super::Regions::causes), with its time in nanoseconds: the longest
    /// first. They add up to both parts, if they are of all regions.
    pub waits: Vec<(Part, CauseNumber, u64)>,
    /// Critical path, the longest step first. Of the total it adds up to the duration. Empty if it is not wanted.
    pub path: Vec<PathStep>,
    /// Number of regions that exits, waits and path are of: details of some regions are dropped where
    /// there are too many.
    pub exits_of: u64,
    /// Number of regions during which, as far as is known, a hypervisor took time from the machine's CPUs.
    pub steals: u64,
    /// Most time that was taken from the regions while their threads had a CPU, nanoseconds: of each one on average, or of
    /// the total. `None` if it is not known.
    pub steal_at_most_ns: Option<u64>,
    /// Most time in which threads of a guest can have run there, nanoseconds: of each region on average, or of the total. `None`
    /// if none of the regions has [such a bound](Sample::guest_at_most_ns).
    pub guest_at_most_ns: Option<u64>,
    /// One of the regions.
    pub example: Option<Sample>,
}

impl Group {
    /// Adds the exits and waits of a region.
    pub(super) fn add(&mut self, detail: &Detail) {
        for (reason, exits) in &detail.exits {
            self.exits.get_or_insert_default()[usize::from(*reason)].add(exits);
        }
        self.waits.add(&detail.waits);
        self.path.add_all(&detail.path);
    }

    /// Takes away those of a region that were added.
    pub(super) fn remove(&mut self, detail: &Detail) {
        for (reason, exits) in &detail.exits {
            let sum = &mut self.exits.get_or_insert_default()[usize::from(*reason)];
            *sum = sum.since(exits);
        }
        self.waits.remove(&detail.waits);
        self.path.remove_all(&detail.path);
    }

    /// Returns the name of a part of its regions for people.
    pub fn label(&self, part: Part) -> &'static str {
        match part {
            Part::Guest if self.includes_kvm => "guest with KVM",
            Part::OnCpu if self.is_by_guest_alone => "on-CPU (guest)",
            _ => part.label(),
        }
    }

    /// Returns the number of regions.
    pub fn count(&self) -> u64 {
        self.order.len() as u64
    }

    /// Returns all durations in ascending order, nanoseconds.
    pub fn durations_ns(&self) -> &[u64] {
        &self.durations
    }

    /// Returns the least duration that this part of all regions does not exceed, nanoseconds;
    /// 0 if there are none.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        self.durations.get(rank(self.durations.len(), part)).copied().unwrap_or(0)
    }

    /// Returns the time of all regions outside of the regions inside them.
    pub fn own_times(&self) -> Times {
        let inside = |part: usize| self.children.iter().map(move |child| child.times.0[part]);
        Times(std::array::from_fn(|part| {
            inside(part).fold(self.total.times.0[part], u64::saturating_sub)
        }))
    }

    /// Sorts the regions of the group, and chooses those to show.
    pub(super) fn finish(&mut self, store: &Store, mut order: Vec<u32>, steals: &Steals) {
        self.durations = sort(&mut order, |index| store.get(index).duration_ns());
        self.total = Breakdown {
            regions: order.len() as u64,
            times: mean(order.iter().map(|index| &store.get(*index).times), 1),
            bound_ns: self.bound_ns,
            exits: mean_exits(self.exits.as_deref().unwrap_or(&Default::default()), 1, None),
            waits: Vec::new(),
            path: self.path.mean(1),
            exits_of: order.len() as u64,
            steals: steals.hit(store, &order),
            steal_at_most_ns: steals.most(store, &order),
            guest_at_most_ns: guest_at_most(store, &order),
            example: None,
        };
        self.total.waits = mean_waits(&self.waits, &self.total, 1, true);
        let at = |part| rank(order.len(), part);
        if let Some(last) = order.last().copied() {
            self.median = Some(around(store, steals, &order, at(0.49)..=at(0.51), at(0.5)));
            let p99 = nearest(store, &order, at(0.99));
            self.p99 = Some(around(store, steals, &order, p99..=p99, p99));
            let mut slowest = around(store, steals, &order[order.len() - 1..], 0..=0, 0);
            if let Some(longest) = self.longest.as_ref().filter(|l| l.detail.index == last) {
                slowest.exits = mean_exits(&sum_exits([&longest.detail]), 1, None);
                let mut sums = GroupWaits::default();
                sums.add(&longest.detail.waits);
                slowest.path = longest.detail.path.to_vec();
                slowest.waits = mean_waits(&sums, &slowest, 1, true);
                slowest.exits_of = 1;
                slowest.example = Some(*store.get(last));
            }
            self.slowest = Some(slowest);
        }
        // Regions without the kernel's events have no path of their own.
        if self.median.as_ref().is_some_and(|median| !median.path.is_empty()) {
            complete(&mut self.total.path, self.total.times.total());
        }
        self.order = order;
    }
}

/// Sorts indices by durations, and returns these. It needs no more memory than both results.
fn sort(order: &mut [u32], duration: impl Fn(u32) -> u64) -> Vec<u64> {
    const BITS: u32 = (MOST_REGIONS as u32).next_power_of_two().trailing_zeros();
    let key = |index: &u32| Some(duration(*index)).filter(|ns| *ns < 1 << (64 - BITS));
    let keys = order.iter().map(|index| Some(key(index)? << BITS | u64::from(*index)));
    // With durations of more than some minutes, both do not fit.
    let Some(mut keys) = keys.collect::<Option<Vec<u64>>>() else {
        order.sort_unstable_by_key(|index| (duration(*index), *index));
        return order.iter().map(|index| duration(*index)).collect();
    };
    keys.sort_unstable();
    for (index, key) in order.iter_mut().zip(&mut keys) {
        *index = (*key & ((1 << BITS) - 1)) as u32;
        *key >>= BITS;
    }
    keys
}

/// Returns the index of a quantile among `len` sorted values.
pub(super) fn rank(len: usize, part: f64) -> usize {
    ((len as f64 * part).ceil() as usize).clamp(1, len.max(1)) - 1
}

/// Returns the rank nearest to this one whose region has details, within a thousandth of all.
fn nearest(store: &Store, order: &[u32], rank: usize) -> usize {
    let most = order.len() / 1000;
    let has = |at: &usize| order.get(*at).is_some_and(|index| store.detail(*index).is_some());
    let around = (0..=most).flat_map(|far| [rank + far, rank.saturating_sub(far)]);
    around.into_iter().find(has).unwrap_or(rank)
}

/// Returns the most time in which the threads of regions can have run in the guest, where nothing more is known of one.
fn guest_at_most(store: &Store, regions: &[u32]) -> Option<u64> {
    let samples = regions.iter().map(|index| store.get(*index));
    samples.filter_map(|sample| sample.guest_at_most_ns()).reduce(u64::saturating_add)
}

/// Returns the mean of the regions of some ranks, with one as example.
fn around(
    store: &Store,
    steals: &Steals,
    order: &[u32],
    ranks: std::ops::RangeInclusive<usize>,
    example_rank: usize,
) -> Breakdown {
    let chosen = &order[ranks];
    let regions = chosen.len() as u64;
    let times = mean(chosen.iter().map(|index| &store.get(*index).times), regions);
    let mut bounds = chosen.iter().map(|index| store.get(*index).bound_ns());
    let bound_ns = bounds.try_fold(0, |most: u64, bound| Some(most.max(bound?)));
    let details = chosen.iter().filter_map(|index| store.detail(*index));
    let exits_of = details.clone().count() as u64;
    let mut waits = GroupWaits::default();
    details.clone().for_each(|detail| waits.add(&detail.waits));
    let mut path = Steps::default();
    details.clone().for_each(|detail| path.add_all(&detail.path));
    let mut path = path.mean(exits_of);
    if exits_of == regions && !path.is_empty() {
        complete(&mut path, times.total());
    }
    let exits = mean_exits(&sum_exits(details), exits_of, (exits_of == regions).then_some(&times));
    let detail = order.get(nearest(store, order, example_rank));
    let example = detail.and_then(|index| store.detail(*index));
    let example = example.map(|detail| *store.get(detail.index));
    let most = steals.most(store, chosen);
    let mut mean = Breakdown {
        regions,
        times,
        bound_ns,
        exits,
        waits: Vec::new(),
        path,
        exits_of,
        steals: steals.hit(store, chosen),
        steal_at_most_ns: most.map(|ns| ns.div_ceil(regions)),
        guest_at_most_ns: guest_at_most(store, chosen).map(|ns| ns.div_ceil(regions)),
        example,
    };
    mean.waits = mean_waits(&waits, &mean, exits_of, exits_of == regions);
    mean
}

/// Makes a path as long as its regions: rounded means are shorter, and nothing is known of what no path has.
fn complete(path: &mut Vec<PathStep>, ns: u64) {
    let left = ns.saturating_sub(path.iter().map(|step| step.ns).sum());
    let are_rounded = left <= path.len() as u64;
    match path.first_mut().filter(|_| are_rounded) {
        Some(longest) => longest.ns += left,
        None => path.push(PathStep::unknown(Unknown::NotRecorded, left)),
    }
}

/// Returns the waits of so many regions with this mean, divided by their number. Of all regions of a mean, they
/// add up to its parts: what is left of a part is a wait whose cause was not recorded.
fn mean_waits(
    sums: &GroupWaits,
    mean: &Breakdown,
    regions: u64,
    are_all: bool,
) -> Vec<(Part, CauseNumber, u64)> {
    let mut left = mean.times;
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
        // Each mean lost less than a nanosecond.
        let rounded = longest.filter(|_| left.get(part) <= number);
        let wait = rounded.map_or((part, Unknown::NotRecorded.number()), |(wait, _)| *wait);
        means.add(&[(wait, left.get(part))]);
    }
    let flat = |((part, cause), ns): (Wait, u64)| (part, cause, ns);
    means.sorted().into_iter().map(flat).collect()
}

/// Returns the exits of several regions by reason.
pub(super) fn sum_exits<'d>(details: impl IntoIterator<Item = &'d Detail>) -> [Exits; REASONS] {
    let mut sums = [Exits::default(); REASONS];
    for (reason, exits) in details.into_iter().flat_map(|detail| &detail.exits) {
        sums[usize::from(*reason)].add(exits);
    }
    sums
}

/// Returns exits divided by a number of regions. If they are of all regions of these mean times, those in the kernel and
/// in the VMM add up to these parts.
fn mean_exits(
    sums: &[Exits; REASONS],
    regions: u64,
    of: Option<&Times>,
) -> Vec<(Reason, Exits<f64>)> {
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
    let means = sums.iter().zip(kernel).zip(vmm).enumerate();
    let means = means.filter(|(_, ((exits, _), _))| **exits != Exits::default());
    let mean = |(reason, ((exits, kernel), vmm)): (usize, ((&Exits, u64), u64))| {
        let count = exits.count as f64 / regions.max(1) as f64;
        (reason as Reason, Exits { count, kernel, vmm, waits: exits.waits / regions.max(1) })
    };
    means.map(mean).collect()
}

/// Returns the sums divided by a number, rounded so that they add up to the rounded mean.
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
    fn long_durations_are_sorted_as_short_ones_are() {
        for most in [9, u64::MAX] {
            let durations = [5, most, 0, 5, 7];
            let mut order = vec![4, 3, 2, 1, 0];
            let sorted = sort(&mut order, |index| durations[index as usize]);
            assert_eq!((order, sorted), (vec![2, 0, 3, 4, 1], vec![0, 5, 5, 7, most]));
        }
    }

    #[test]
    fn rounded_means_add_up() {
        let all = [
            Times([1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Times([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ];
        let mean = mean(all.iter(), 2);
        assert_eq!(mean.total(), 2);
        assert_eq!(mean.0, [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
