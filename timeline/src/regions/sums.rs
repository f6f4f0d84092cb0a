// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Exact sums over some regions of a group: those between two quantiles of their durations.

use super::causes::{CauseNumber, GroupWaits};
use super::children::{self, Child};
use super::parts::{Exits, PARTS, Part, REASONS, Reason, Times};
use super::store::Store;
use super::summary::Group;
use std::ops::RangeInclusive;

/// Sums over some regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sums {
    /// Number of regions.
    pub regions: u64,
    /// Sum of their times, nanoseconds.
    pub times: Times,
    /// The regions inside them, those with most time first.
    pub children: Vec<Child>,
    /// Number of regions that exits and waits are of: details of some regions are dropped where there are too many.
    pub details_of: u64,
    /// Exits by reason: an index of [`Regions::reasons`](super::Regions::reasons). Times are in nanoseconds.
    pub exits: Vec<(Reason, Exits)>,
    /// Waits by the part, runnable or blocked, and the cause, an index of
    /// [`Regions::causes`](super::Regions::causes), with its time in nanoseconds: the longest first.
    pub waits: Vec<(Part, CauseNumber, u64)>,
}

/// Returns the sums over the regions of each group whose durations are from one quantile to another, and equal ones.
pub(super) fn sums(groups: &[Group], store: &Store, parts: RangeInclusive<f64>) -> Vec<Sums> {
    let limits =
        |group: &Group| group.quantile_ns(*parts.start())..=group.quantile_ns(*parts.end());
    let limits: Vec<RangeInclusive<u64>> = groups.iter().map(limits).collect();
    let is_chosen = |group: u16, ns: u64| limits[usize::from(group)].contains(&ns);
    let children =
        children::of_parents(groups, store, |parent| is_chosen(parent.group, parent.duration_ns()));
    let one = |((group, limits), children): ((&Group, &RangeInclusive<u64>), Vec<Child>)| {
        let first = group.durations.partition_point(|ns| ns < limits.start());
        let end = group.durations.partition_point(|ns| ns <= limits.end());
        Sums { children, ..of_regions(store, &group.order[first..end]) }
    };
    groups.iter().zip(&limits).zip(children).map(one).collect()
}

fn of_regions(store: &Store, regions: &[u32]) -> Sums {
    let mut sums = Sums { regions: regions.len() as u64, ..Sums::default() };
    let (mut exits, mut waits) = ([Exits::default(); REASONS], GroupWaits::default());
    for index in regions {
        let times = &store.get(*index).times;
        for part in 0..PARTS {
            sums.times.0[part] = sums.times.0[part].saturating_add(times.0[part]);
        }
        let Some(detail) = store.detail(*index) else { continue };
        sums.details_of += 1;
        for (reason, more) in &detail.exits {
            exits[usize::from(*reason)].add(more);
        }
        waits.add(&detail.waits);
    }
    let exits = exits.iter().enumerate().filter(|(_, exits)| **exits != Exits::default());
    sums.exits = exits.map(|(reason, exits)| (reason as Reason, *exits)).collect();
    let waits = waits.sorted().into_iter();
    sums.waits = waits.map(|((part, cause), ns)| (part, cause, ns)).collect();
    sums
}
