// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Regions inside others. A region that begins and ends in another region of the same client, or of the same
//! thread of the VMM, is a child of the innermost one.
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
use super::store::{Holder, NO_THREAD, Sample, State, Store};
use super::summary::Group;
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
    /// Number of the regions.
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

/// Finds the children of all groups. The groups have the numbers that the regions refer to. `spans`: the
/// parted spans' indices, numbers of polls, and times that are in no poll and not idle.
pub(super) fn find(groups: &mut [Group], store: &Store, spans: &[(u32, u32, u64)]) {
    let mut found = of_parents(groups, store, |_| true);
    for (index, polls, outside) in spans {
        let sample = store.get(*index);
        if sample.state.is_counted() && *polls > 0 {
            let mut times = sample.times;
            times.0[Part::Idle as usize] = 0;
            times.0[Part::Unknown as usize] -= outside;
            let children = &mut found[usize::from(sample.group)];
            add(children, Some("poll"), (u64::from(*polls), &times), &mut MAX_OF_ALL.clone());
        }
    }
    for (group, mut children) in groups.iter_mut().zip(found) {
        sort(&mut children);
        group.children = children;
    }
}

/// Returns the children of those regions that are parents, by the number of the parent's group.
pub(super) fn of_parents(
    groups: &[Group],
    store: &Store,
    is_parent: impl Fn(&Sample) -> bool,
) -> Vec<Vec<Child>> {
    let mut found = vec![Vec::new(); groups.len()];
    if store.with_inside().all(|sample| sample.depth == 0) {
        return found;
    }
    let mut left = MAX_OF_ALL;
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
            add(&mut found[usize::from(parent.group)], name, (1, &sample.times), &mut left);
        }
        around.push(sample);
    }
    found.iter_mut().for_each(|children| sort(children));
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
    child.times.0.iter_mut().zip(times.0).for_each(|(sum, time)| *sum += time);
}
