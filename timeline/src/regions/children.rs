// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regions inside others. Consider all regions of a client, or of a thread of the VMM, in which a region
//! begins and ends. The region is a child of the innermost of these regions. The children of a parted span
//! are the spans that name the parted span as their parent. If the span's group has no such spans, the span's
//! polls are its children.
//!
//! The regions of a client are stored in the order of their ends, and each region has its depth. If the
//! regions are read from the last to the first, a parent comes before its children:
//!
//! ```text
//! time         [a [b ] [c [d ] ] ]
//! depth         0  1    1  2
//! by ends         b, d, c, a
//! from the last   a, c (in a), d (in c), b (in a)
//! ```

use super::parts::{Part, Times};
use super::spans::Whole;
use super::spans::inner::{self, Inner};
use super::store::{Holder, NO_THREAD, Sample, State, Store};
use super::summary::{Group, Own};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Maximum number of names of a group's children.
const MAX_NAMES: usize = 32;
/// Maximum number of names of the children of all groups together, of some 200 bytes each.
const MAX_OF_ALL: usize = 1 << 16;

/// All regions with one name inside the regions of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Child {
    /// Name of the regions. `None` stands for all names after the first 32 names of the group, or after the
    /// first 65,536 names of all groups together.
    pub name: Option<String>,
    /// How many regions there are.
    pub count: u64,
    /// Sum of the parts in nanoseconds.
    pub duration_ns: u64,
    /// Sums of the regions' times in each part.
    #[serde(rename = "parts")]
    pub times: Times,
}

/// The owner of regions that may be inside each other: a client with its holder, or a thread of the VMM.
type Owner = (u16, Holder, u16);

fn owner(sample: &Sample) -> Option<Owner> {
    let thread = match sample.holder {
        // Regions with `any_client`, and regions of unknown threads, are not in the order of their ends.
        Holder::NONE if sample.thread == NO_THREAD => return None,
        Holder::NONE => sample.thread,
        _ => NO_THREAD,
    };
    Some((sample.session, sample.holder, thread))
}

/// Finds the children of all groups. Each group must already have the index with which the regions refer to
/// the group. `spans`: the parted spans.
pub(super) fn find(groups: &mut [Group], store: &Store, spans: &[Whole]) {
    let mut left = MAX_OF_ALL;
    let mut found = inside(groups, store, |_| true, &mut left);
    let mut outside = Vec::from_iter(groups.iter().map(|group| group.total.times));
    for (children, outside) in found.iter().zip(&mut outside) {
        children.iter().for_each(|child| subtract(outside, &child.times));
    }
    // A span's inner spans overlap the span's polls, so only the time outside of the inner spans counts.
    let mut has_inner = vec![false; groups.len()];
    for (parent, group, inner) in families(store) {
        has_inner[group] = true;
        let outside = &mut outside[group];
        subtract(outside, &parent.times);
        plus(outside, &inner::own(&parent.times, inner.map(|(of, child)| (of, &child.times))));
    }
    for Whole { index, polls, unknown, dropped } in spans {
        let sample = store.get(*index);
        let group = usize::from(sample.group);
        if sample.state.is_counted() && *polls > 0 && !has_inner[group] {
            let mut times = sample.times;
            times.0[Part::Idle as usize] = 0;
            times.0[Part::Unknown as usize] -= unknown;
            if let Some(dropped) = dropped {
                subtract(&mut times, &store.get(*dropped).times);
            }
            subtract(&mut outside[group], &times);
            add(
                &mut found[group],
                Some("poll"),
                (u64::from(*polls), &times),
                &mut MAX_OF_ALL.clone(),
            );
        }
    }
    add_inner(&mut found, groups, store, |_| true, &mut left);
    for ((group, mut children), times) in groups.iter_mut().zip(found).zip(outside) {
        sort(&mut children);
        group.children = children;
        group.own = Own { duration_ns: times.total(), times };
    }
}

/// Iterates over the parted spans that have inner spans. Each entry has the parted span, the id of the span's
/// group, and the span's inner spans.
fn families(
    store: &Store,
) -> impl Iterator<Item = (&Sample, usize, impl Iterator<Item = (&Inner, &Sample)>)> {
    store.inner.iter().filter_map(|(parent, inner)| {
        let parent = store.get(*parent);
        let of = |of: &'_ Inner| store.get(of.index).state != State::Dropped;
        let mut all = inner.iter().filter(move |inner| of(inner)).peekable();
        let is_any = parent.state.is_counted() && all.peek().is_some();
        let all = all.map(|inner| (inner, store.get(inner.index)));
        is_any.then(|| (parent, usize::from(parent.group), all))
    })
}

/// Adds the spans inside parted spans to the children of the parted spans for which `is_parent` is true.
fn add_inner(
    found: &mut [Vec<Child>],
    groups: &[Group],
    store: &Store,
    is_parent: impl Fn(&Sample) -> bool,
    left: &mut usize,
) {
    for (_, group, inner) in families(store).filter(|(parent, ..)| is_parent(parent)) {
        for (of, child) in inner {
            let name = &groups[usize::from(child.group)].name;
            let times = inner::counted(&child.times, of.counted);
            add(&mut found[group], Some(name), (1, &times), left);
        }
    }
}

fn subtract(from: &mut Times, times: &Times) {
    from.0.iter_mut().zip(times.0).for_each(|(sum, ns)| *sum = sum.saturating_sub(ns));
}

fn plus(to: &mut Times, times: &Times) {
    to.0.iter_mut().zip(times.0).for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
}

/// Returns the children of the regions for which `is_parent` is true, by the number of the parent's group.
/// The polls of spans are not among the children.
pub(super) fn of_parents(
    groups: &[Group],
    store: &Store,
    is_parent: impl Fn(&Sample) -> bool,
) -> Vec<Vec<Child>> {
    let mut left = MAX_OF_ALL;
    let mut found = inside(groups, store, &is_parent, &mut left);
    add_inner(&mut found, groups, store, is_parent, &mut left);
    found.iter_mut().for_each(|children| sort(children));
    found
}

/// Returns the regions inside regions of the same client or thread.
fn inside(
    groups: &[Group],
    store: &Store,
    is_parent: impl Fn(&Sample) -> bool,
    left: &mut usize,
) -> Vec<Vec<Child>> {
    let mut found = vec![Vec::new(); groups.len()];
    if store.with_inside().all(|sample| sample.depth == 0) {
        return found;
    }
    let mut around: HashMap<Owner, Vec<&Sample>> = HashMap::new();
    for sample in store.with_inside().rev() {
        let Some(owner) = owner(sample) else { continue };
        let around = around.entry(owner).or_default();
        while around.pop_if(|other| other.depth >= sample.depth).is_some() {}
        // A region with less depth that ended later may also have begun later, because a region around both
        // regions may be missing. Such a region is no parent.
        let parent = around.iter().rfind(|other| other.begin_ns <= sample.begin_ns);
        if let Some(parent) = parent.filter(|p| p.state != State::Inside && is_parent(p)) {
            let name = Some(&*groups[usize::from(sample.group)].name);
            add(&mut found[usize::from(parent.group)], name, (1, &sample.times), left);
        }
        around.push(sample);
    }
    found
}

/// Sorts children, the longest first.
fn sort(children: &mut [Child]) {
    children.sort_by_key(|child| {
        (child.name.is_none(), Reverse(child.duration_ns), child.name.clone())
    });
}

/// Adds a child. `left` is the number of names that may still be added.
fn add(
    children: &mut Vec<Child>,
    name: Option<&str>,
    (count, times): (u64, &Times),
    left: &mut usize,
) {
    let at = match children.iter().position(|child| child.name.as_deref() == name) {
        Some(at) => at,
        None if name.is_some() && (children.len() >= MAX_NAMES || *left == 0) => {
            return add(children, None, (count, times), left);
        }
        None => {
            *left = left.saturating_sub(1);
            let name = name.map(str::to_owned);
            children.push(Child { name, count: 0, duration_ns: 0, times: Times::default() });
            children.len() - 1
        }
    };
    let child = &mut children[at];
    child.count += count;
    child.duration_ns += times.total();
    plus(&mut child.times, times);
}
