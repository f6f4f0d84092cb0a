// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Quantiles of groups, and breakdowns of single regions.

use super::breakdown::{Breakdown, Details, Named, nearest, rank};
use super::children::Child;
use super::groups::POLLS;
use super::histogram::Histogram;
use super::parts::{Detail, Part, Times};
use super::steals::Steals;
use super::store::Store;
use super::{MAX_REGIONS, NotCounted};
use serde::Serialize;
use std::ops::RangeInclusive;

/// All regions with the same name, and with the same value if regions are grouped by a value: see
/// [`By`](super::By).
///
/// All outputs show the data of groups, and `hypertrace regions --json` prints the JSON of each group.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Group {
    /// Name of the regions; `A to B` for regions between the events A and B. Guests choose the name: escape
    /// it.
    pub name: String,
    /// Index of the session.
    pub session: usize,
    /// Value that the group's regions have in common.
    pub by: Option<ByValue>,
    /// Number of regions.
    pub count: u64,
    /// Largest bound on the error of a duration in nanoseconds; `None` if a bound is unknown.
    pub bound_ns: Option<u64>,
    /// Cost of an empty region in nanoseconds. The cost for one holder is the median of the holder's regions
    /// `empty` with the group's kind of events (events in a ring, or reference points). If the group has
    /// several holders, the group's cost is the least of the holders' costs. `None` if a holder has no such
    /// regions `empty`.
    pub empty_ns: Option<u64>,
    /// Shortest duration in nanoseconds; `None` without regions.
    pub min_ns: Option<u64>,
    /// Duration that half of the regions do not exceed.
    pub p50_ns: Option<u64>,
    /// Duration that 90 % of the regions do not exceed.
    pub p90_ns: Option<u64>,
    /// Duration that 99 % of the regions do not exceed.
    pub p99_ns: Option<u64>,
    /// Longest duration.
    pub max_ns: Option<u64>,
    /// Numbers of durations.
    pub histogram: Histogram,
    /// For each [`NotCounted`](super::NotCounted), the number of regions that are not counted for this
    /// reason.
    #[serde(with = "not_counted")]
    pub not_counted: [u64; NotCounted::ALL.len()],
    /// How the time of some of the group's regions divides.
    pub breakdown: Breakdowns,
    /// Sum of all regions.
    pub total: Breakdown,
    /// Time of all the group's regions outside of all inner regions.
    #[serde(rename = "self")]
    pub own: Own,
    /// Regions inside the group's regions, by name. The name with most time comes first.
    pub children: Vec<Child>,
    /// Whether the regions are of programs of the host.
    #[serde(skip)]
    pub is_program: bool,
    /// Whether the guest's time includes KVM's own part, which the kernel did not trace.
    #[serde(skip)]
    pub includes_kvm: bool,
    /// Whether only the guest's kernel says what the threads did. If true, time that the host took from a CPU
    /// of the guest counts as time of the thread on that CPU.
    #[serde(skip)]
    pub is_by_guest_alone: bool,
    /// Id of the group while regions are added.
    #[serde(skip)]
    pub(super) number: u16,
    /// Name of the events that begin and end the group's regions, without the suffix.
    #[serde(skip)]
    pub(super) event: String,
    /// Target of the group's spans. `target_number` is the target's number.
    #[serde(skip)]
    pub(super) target: Option<String>,
    #[serde(skip)]
    pub(super) target_number: u32,
    /// Id of the name; `None` for the group of other names.
    #[serde(skip)]
    pub(super) name_number: Option<u32>,
    /// Whether the group is the group of other values.
    #[serde(skip)]
    pub(super) is_others: bool,
    /// Whether the regions begin with a reference point.
    #[serde(skip)]
    pub(super) is_point: bool,
    /// Indices of the regions, in the order of the regions' durations.
    #[serde(skip)]
    pub(super) order: Vec<u32>,
    /// Durations in the same order.
    #[serde(skip)]
    pub(super) durations: Vec<u64>,
    /// Sums of the regions' details, while regions are added.
    #[serde(skip)]
    pub(super) sums: Details,
    /// Index and details of the slowest region so far.
    #[serde(skip)]
    pub(super) longest: Option<(u32, Detail)>,
}

/// Value that the regions of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct ByValue {
    /// Key of the value: `client`, `vcpu`, or the name of a field.
    pub key: String,
    /// The value, cut after 100 bytes; `other values` for values that have no group of their own. Guests
    /// choose the value: escape it.
    pub value: String,
}

/// How the time of some regions of a group divides; `None` without regions.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Breakdowns {
    /// Mean of the regions from the 49th to the 51st percentile.
    pub median: Option<Breakdown>,
    /// The region at the 99th percentile.
    pub p99: Option<Breakdown>,
    /// The slowest region.
    pub slowest: Option<Breakdown>,
}

/// Time of a group's regions outside of all inner regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Own {
    /// Sum of the parts in nanoseconds.
    pub duration_ns: u64,
    /// Sums of the times in each part.
    #[serde(rename = "parts")]
    pub times: Times,
}

mod not_counted {
    use super::NotCounted;
    use serde::Serializer;

    type Counts = [u64; NotCounted::ALL.len()];

    pub fn serialize<S: Serializer>(counts: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(NotCounted::ALL.map(|(kind, name)| (name, counts[kind as usize])))
    }

    #[cfg(test)]
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Counts, D::Error> {
        let counts: std::collections::BTreeMap<String, u64> =
            serde::Deserialize::deserialize(from)?;
        let count = |(_, name): (NotCounted, &str)| counts.get(name).copied().unwrap_or(0);
        Ok(NotCounted::ALL.map(count))
    }
}

impl Group {
    /// Returns the name of a part of the group's regions for people.
    pub fn label(&self, part: Part) -> &'static str {
        match part {
            Part::Guest if self.includes_kvm => "guest with KVM",
            Part::OnCpu if self.is_by_guest_alone => "on-CPU (guest)",
            _ => part.label(),
        }
    }

    /// Returns whether the group's regions are polls of spans of the crate `tracing`. The id of a poll is the
    /// id of the poll's span.
    pub fn is_of_polls(&self) -> bool {
        self.target_number == POLLS
    }

    /// Returns the value that the group's regions have in common.
    pub fn value(&self) -> Option<&str> {
        self.by.as_ref().map(|by| &*by.value)
    }

    /// Returns all durations in nanoseconds, in ascending order.
    pub fn durations_ns(&self) -> &[u64] {
        &self.durations
    }

    /// Returns the names and values of quantiles of the durations; nothing without regions.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("min", self.min_ns),
            ("p50", self.p50_ns),
            ("p90", self.p90_ns),
            ("p99", self.p99_ns),
            ("max", self.max_ns),
        ];
        all.into_iter().filter_map(|(name, ns)| Some((name, ns?)))
    }

    /// Returns the least duration in nanoseconds that this share of the regions does not exceed; 0 if there
    /// are no regions. The durations include the cost of an empty region.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        self.durations.get(rank(self.durations.len(), part)).copied().unwrap_or(0)
    }

    /// Sorts the regions of the group, and divides their time.
    pub(super) fn finish(
        &mut self,
        (store, steals, named): (&Store, &Steals, Named<'_>),
        mut order: Vec<u32>,
    ) {
        self.durations = sort(&mut order, |index| store.get(index).duration_ns());
        self.count = order.len() as u64;
        let add_steals = |of: &mut Breakdown, regions: &[u32], by: u64| {
            of.guest_includes_kvm = self.includes_kvm;
            of.steal_regions = steals.hit(store, regions);
            of.steal_at_most_ns = steals.most(store, regions).map(|ns| ns.div_ceil(by));
        };
        let around = |order: &[u32], ranks: RangeInclusive<usize>, example: usize| {
            let chosen = &order[ranks];
            let sums = Details::of(chosen.iter().filter_map(|index| store.detail(*index)));
            let mut mean = Breakdown::of(store, chosen, chosen.len() as u64);
            let are_all = sums.count == mean.regions;
            mean.add((&sums, named), sums.count, are_all);
            if are_all && !mean.path.is_empty() {
                mean.complete_path(named);
            }
            add_steals(&mut mean, chosen, chosen.len() as u64);
            let example = order.get(nearest(store, order, example));
            let example = example.filter(|index| store.detail(**index).is_some());
            mean.example = example.map(|index| *store.get(*index));
            mean
        };
        let at = |part| rank(order.len(), part);
        self.total = Breakdown::of(store, &order, 1);
        self.total.bound_ns = self.bound_ns;
        add_steals(&mut self.total, &order, 1);
        self.total.add((&std::mem::take(&mut self.sums), named), 1, true);
        self.total.exits_of = self.count;
        if let [.., last] = order[..] {
            let median = around(&order, at(0.49)..=at(0.51), at(0.5));
            let p99 = nearest(store, &order, at(0.99));
            let mut slowest = around(&[last], 0..=0, 0);
            if let Some((_, longest)) = self.longest.as_ref().filter(|(index, _)| *index == last) {
                slowest.add((&Details::of([longest]), named), 1, true);
                slowest.example = Some(*store.get(last));
            }
            // Regions without the kernel's events have no path of their own.
            if !median.path.is_empty() {
                self.total.complete_path(named);
            }
            self.breakdown = Breakdowns {
                median: Some(median),
                p99: Some(around(&order, p99..=p99, p99)),
                slowest: Some(slowest),
            };
        }
        self.order = order;
    }

    /// Sets the quantiles and the histogram of the durations.
    pub(super) fn show(&mut self) {
        let at = |part| (self.count > 0).then(|| self.quantile_ns(part));
        [self.min_ns, self.p50_ns, self.p90_ns, self.p99_ns, self.max_ns] =
            [0.0, 0.5, 0.9, 0.99, 1.0].map(at);
        self.histogram = Histogram::of(&self.durations);
    }
}

/// Sorts indices in the order of the durations, and returns the sorted durations. The function needs no more
/// memory than the indices and the durations.
fn sort(order: &mut [u32], duration: impl Fn(u32) -> u64) -> Vec<u64> {
    const BITS: u32 = (MAX_REGIONS as u32).next_power_of_two().trailing_zeros();
    let key = |index: &u32| Some(duration(*index)).filter(|ns| *ns < 1 << (64 - BITS));
    let keys = order.iter().map(|index| Some(key(index)? << BITS | u64::from(*index)));
    // A key holds a duration and an index. A duration of more than some minutes leaves no room for the index.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_durations_are_sorted_as_short_ones_are() {
        for most in [9, u64::MAX] {
            let durations = [5, most, 0, 5, 7];
            let mut order = vec![4, 3, 2, 1, 0];
            let sorted = sort(&mut order, |index| durations[index as usize]);
            assert_eq!((order, sorted), (vec![2, 0, 3, 4, 1], vec![0, 5, 5, 7, most]));
        }
    }
}
