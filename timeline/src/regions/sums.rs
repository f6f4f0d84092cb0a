// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Exact sums over some regions of a group: the regions between two quantiles of their durations.

use super::breakdown::{Breakdown, Details, Named};
use super::children::{self, Child};
use super::store::Store;
use super::summary::Group;
use std::ops::RangeInclusive;

/// Sums over some regions.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Sums {
    /// Division of the regions' time. Exits, waits and path are sums over the regions whose details are kept.
    pub total: Breakdown,
    /// Regions inside these regions, by name. The name with most time comes first.
    pub children: Vec<Child>,
}

/// Returns sums for each group. The sums cover the regions whose durations lie between two quantiles,
/// including durations that are equal to a quantile.
pub(super) fn sums(
    groups: &[Group],
    store: &Store,
    named: Named<'_>,
    parts: RangeInclusive<f64>,
) -> Vec<Sums> {
    let limits =
        |group: &Group| group.quantile_ns(*parts.start())..=group.quantile_ns(*parts.end());
    let limits: Vec<RangeInclusive<u64>> = groups.iter().map(limits).collect();
    let is_chosen = |group: u16, ns: u64| limits[usize::from(group)].contains(&ns);
    let children =
        children::of_parents(groups, store, |parent| is_chosen(parent.group, parent.duration_ns()));
    let one = |((group, limits), children): ((&Group, &RangeInclusive<u64>), Vec<Child>)| {
        let first = group.durations.partition_point(|ns| ns < limits.start());
        let end = group.durations.partition_point(|ns| ns <= limits.end());
        let regions = &group.order[first..end];
        let mut total = Breakdown::of(store, regions, 1);
        let details = Details::of(regions.iter().filter_map(|index| store.detail(*index)));
        total.add((&details, named), 1, false);
        Sums { total, children }
    };
    groups.iter().zip(&limits).zip(children).map(one).collect()
}
