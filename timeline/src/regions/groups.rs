// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The groups of regions, by session, name and value.

use super::breakdown::{Named, rank};
use super::parts::{Detail, Times};
use super::spans::Whole;
use super::steals::Steals;
use super::store::{Holder, Store};
use super::summary::{ByValue, Group};
use super::{MAX_GROUPS, children};
use std::collections::{BTreeSet, HashMap};

/// Name of the regions whose duration is the cost of an empty region.
pub const EMPTY: &str = "empty";
/// Maximum size of a value in bytes. Longer values are cut, and values with the same beginning become one
/// group.
const MAX_VALUE: usize = 100;
/// Value of the group for all regions whose own values have no group, because there are too many values.
const OTHERS: &str = "other values";
/// Name of the group for all regions whose own names have no group, because there are too many names. No
/// event has this name, because names of events contain no space.
const OTHER_NAMES: &str = "other names";

/// Number that stands for the target of polls of spans, because polls have no target.
pub(super) const POLLS: u32 = u32::MAX;

/// Key of a group: the session, the ids of the name and of a span's target, and the value. The ids are `None`
/// for the group of other names. The value is `None` if regions have no values, and for the groups of other
/// names and of other values.
type Key = (usize, Option<(u32, u32)>, Option<String>);
/// The id of a name, the id of a span's target (0 if there is no target), and the name.
type Name<'a> = (u32, u32, &'a str);

/// All groups.
#[derive(Debug)]
pub(super) struct Groups {
    pub all: Vec<Group>,
    /// Key of the values.
    by: String,
    by_value: HashMap<Key, u32>,
    /// For each target of spans, the target's id, from 1 on.
    targets: HashMap<String, u32>,
    /// If there are this many groups, a new name gets no group of its own. The remaining groups are for the
    /// other names of each session.
    most_names: usize,
    /// If there are this many groups, a new value gets no group of its own. The remaining groups are for new
    /// names, and for the other values of each name.
    most_values: usize,
    /// Whether some values have no group of their own.
    pub has_others: bool,
    /// Whether some names have no group of their own.
    pub has_other_names: bool,
    /// Whether some regions have no group at all.
    pub is_cut: bool,
}

impl Groups {
    /// Makes an empty list of groups for `names` names in each of `sessions` sessions. `by` is the key of the
    /// values.
    pub fn new(names: usize, sessions: usize, by: &str) -> Groups {
        let most_names = MAX_GROUPS - sessions.min(MAX_GROUPS / 4);
        let others = names.saturating_mul(sessions).min(MAX_GROUPS / 2);
        Groups {
            all: Vec::new(),
            by: by.to_owned(),
            by_value: HashMap::new(),
            targets: HashMap::new(),
            most_names,
            most_values: most_names - others,
            has_others: false,
            has_other_names: false,
            is_cut: false,
        }
    }

    /// Returns the id of a span's target. If there are too many targets, returns 0, as for a span without a
    /// target.
    pub fn target(&mut self, target: &[u8]) -> u32 {
        let target = match String::from_utf8_lossy(target) {
            long if long.len() > MAX_VALUE => cut(long.into_owned()).into(),
            target => target,
        };
        if let Some(number) = self.targets.get(&*target) {
            return *number;
        }
        if self.targets.len() == MAX_GROUPS {
            return 0;
        }
        let number = self.targets.len() as u32 + 1;
        self.targets.insert(target.into_owned(), number);
        number
    }

    /// Returns the group of a session's regions with this name and value; `None` if there are too many
    /// groups.
    pub fn find(&mut self, session: usize, name: Name<'_>, value: Option<String>) -> Option<u32> {
        let Some(value) = value else { return self.without_value(session, name, false) };
        let key = (session, Some((name.0, name.1)), Some(value.clone()));
        if let Some(group) = self.by_value.get(&key) {
            return Some(*group);
        }
        if self.all.len() >= self.most_values {
            self.has_others = true;
            return self.without_value(session, name, true);
        }
        self.add(key, name.2, Some(value))
    }

    /// Returns the group of a session's regions with this name that have no value, or whose values have no
    /// group of their own.
    pub fn without_value(
        &mut self,
        session: usize,
        name: Name<'_>,
        has_values: bool,
    ) -> Option<u32> {
        let key = (session, Some((name.0, name.1)), None);
        if let Some(group) = self.by_value.get(&key) {
            return Some(*group);
        }
        self.add(key, name.2, has_values.then(|| OTHERS.into()))
    }

    fn add(&mut self, mut key: Key, mut name: &str, mut value: Option<String>) -> Option<u32> {
        if self.all.len() >= self.most_names {
            self.has_other_names = true;
            (key.1, key.2, name) = (None, None, OTHER_NAMES);
            value = value.map(|_| OTHERS.into());
            if let Some(group) = self.by_value.get(&key) {
                return Some(*group);
            }
        }
        if self.all.len() == MAX_GROUPS {
            self.is_cut = true;
            return None;
        }
        let number = self.all.len() as u32;
        let group = Group {
            session: key.0,
            name: name.to_owned(),
            event: name.to_owned(),
            name_number: key.1.map(|(name, _)| name),
            target_number: key.1.map_or(0, |(_, target)| target),
            is_others: value.is_some() && key.2.is_none(),
            by: value.map(|value| ByValue { key: self.by.clone(), value }),
            number: number as u16,
            bound_ns: Some(0),
            ..Group::default()
        };
        self.all.push(group);
        self.by_value.insert(key, number);
        Some(number)
    }

    /// Notes a region as the slowest of its group, if no region was slower.
    pub fn offer(&mut self, store: &Store, index: u32, detail: &Detail) {
        let longest = &mut self.all[usize::from(store.get(index).group)].longest;
        let key = |index: u32| (store.get(index).duration_ns(), index);
        if longest.as_ref().is_none_or(|(longest, _)| key(index) >= key(*longest)) {
            *longest = Some((index, detail.clone()));
        }
    }

    /// Sums up, and sorts the groups by name and value.
    pub fn finish(
        mut self,
        store: &mut Store,
        spans: &[Whole],
        (steals, named): (&Steals, Named<'_>),
    ) -> Vec<Group> {
        self.by_value = HashMap::new();
        self.name_targets();
        let mut counts = vec![0; self.all.len()];
        store.iter().for_each(|sample| counts[sample.group as usize] += 1);
        let mut orders: Vec<Vec<u32>> = counts.into_iter().map(Vec::with_capacity).collect();
        for index in 0..store.len() as u32 {
            let sample = store.get(index);
            if sample.state.is_counted() {
                orders[sample.group as usize].push(index);
            }
        }
        for (group, order) in self.all.iter_mut().zip(orders) {
            group.finish((store, steals, named), order);
            if group.count == 0 {
                group.bound_ns = None;
            }
        }
        self.set_empty(store);
        children::find(&mut self.all, store, spans);
        self.all.iter_mut().for_each(Group::show);
        // A group without regions is left out. Such a group was made for regions that were put into other
        // groups when the regions ended.
        let has_any = |group: &Group| group.count > 0 || group.not_counted.iter().any(|n| *n > 0);
        let numbers = self.all.len();
        self.all.retain(has_any);
        // The samples refer to groups by the index of the group, so the indices in the samples change with
        // the order.
        self.all.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut places = vec![0; numbers];
        for (place, group) in self.all.iter().enumerate() {
            places[usize::from(group.number)] = place as u16;
        }
        for index in 0..store.len() as u32 {
            let sample = store.get_mut(index);
            sample.group = places[sample.group as usize];
        }
        self.all
    }

    /// If spans with the same name have several targets, writes the target in front of the name of each
    /// group.
    fn name_targets(&mut self) {
        if self.targets.is_empty() {
            return;
        }
        let names =
            Vec::from_iter(self.targets.iter().map(|(name, number)| (*number, name.clone())));
        let names: HashMap<u32, String> = names.into_iter().collect();
        let mut targets: HashMap<(usize, String), BTreeSet<u32>> = HashMap::new();
        for group in &mut self.all {
            group.target = names.get(&group.target_number).cloned();
            let of_name = targets.entry((group.session, group.event.clone())).or_default();
            of_name.insert(group.target_number);
        }
        for group in &mut self.all {
            let count = targets.get(&(group.session, group.event.clone())).map_or(0, BTreeSet::len);
            if let Some(target) = group.target.as_ref().filter(|_| count > 1) {
                group.name = format!("{target}::{}", group.event);
            }
        }
    }

    /// Sets the cost of an empty region for each group. Each holder of the group's regions has a median of
    /// the durations of its empty regions, and the cost is the least of these medians. Each holder must have
    /// empty regions, because an earlier holder of the same client may be another program with another cost.
    fn set_empty(&mut self, store: &Store) {
        // Medians by session, holder, and whether the regions begin with a reference point.
        let mut medians: HashMap<(u16, Holder, bool), u64> = HashMap::new();
        for group in self.all.iter().filter(|group| group.name == EMPTY) {
            let of = |index: &u32| {
                let sample = store.get(*index);
                (sample.session, sample.holder, group.is_point)
            };
            let mut counts: HashMap<_, (usize, usize)> = HashMap::new();
            let of_one = |index: &&u32| store.get(**index).holder.is_one();
            for index in group.order.iter().filter(of_one) {
                counts.entry(of(index)).or_default().0 += 1;
            }
            // The regions are in order of their durations.
            for index in &group.order {
                let Some((count, before)) = counts.get_mut(&of(index)) else { continue };
                if *before == rank(*count, 0.5) {
                    let ns = store.get(*index).duration_ns();
                    medians.entry(of(index)).and_modify(|m| *m = ns.min(*m)).or_insert(ns);
                }
                *before += 1;
            }
        }
        if medians.is_empty() {
            return;
        }
        // The group of other names gets no cost of an empty region, because some of its regions may begin
        // with reference points and others not.
        for group in self.all.iter_mut().filter(|group| group.name_number.is_some()) {
            let own = |index: &u32| {
                let sample = store.get(*index);
                medians.get(&(sample.session, sample.holder, group.is_point)).copied()
            };
            let all: Option<u64> = group
                .order
                .iter()
                .map(own)
                .try_fold(u64::MAX, |least, own| own.map(|own| own.min(least)));
            group.empty_ns = all.filter(|_| group.count > 0);
        }
    }
}

/// Cuts a long value at the end of a character.
pub(super) fn cut(mut value: String) -> String {
    if value.len() > MAX_VALUE {
        let end = (0..=MAX_VALUE).rev().find(|at| value.is_char_boundary(*at)).unwrap_or(0);
        value.truncate(end);
        value.push('…');
    }
    value
}

fn key(group: &Group) -> (bool, &str, usize, bool, Option<u64>, Option<&str>) {
    let is_other_names = group.name_number.is_none();
    // Values that are numbers are ordered by their size.
    let value = group.value();
    let number = value.and_then(|value| value.parse().ok());
    (is_other_names, &group.name, group.session, group.is_others, number, value)
}

/// Returns the times of a region whose whole time is unknown.
pub(super) fn unknown(time: u64) -> Times {
    let mut times = Times::default();
    times.0[super::Part::Unknown as usize] = time;
    times
}
