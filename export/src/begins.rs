// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events that begin regions: found in a second pass, as regions do not keep them.

use hypertrace_timeline::regions::{Regions, Sample};
use hypertrace_timeline::{EventRef, ValueRef};
use std::collections::HashMap;
use std::fmt;
use std::iter::Peekable;

/// Most regions that begin at one time and get their events.
const MOST_TOGETHER: usize = 1 << 16;

/// What the event that begins a region says of it: its group, its client, its id.
type Key = (u16, Option<u32>, u64);

/// The event that begins a region, and its number among those of its region's key and time.
pub type Begin<'e> = (&'e EventRef<'e>, u64);

/// Takes a region, with the event that begins it if that was found.
type Each<'f, 'a, E> = &'f mut dyn FnMut(&'a Sample, Option<Begin<'_>>) -> Result<(), E>;

/// The regions of sessions in the order of their beginnings, while the events of these sessions come in order of time.
pub struct Begins<'a> {
    /// Numbers of the groups, by session and name.
    groups: HashMap<(usize, &'a str), u16>,
    /// The regions that begin later.
    later: Peekable<Box<dyn Iterator<Item = &'a Sample> + 'a>>,
    /// The regions that begin now, the last one first, and how many of a key were handed over.
    now: HashMap<Key, (Vec<&'a Sample>, u64)>,
    time: i64,
}

impl fmt::Debug for Begins<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begins").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> Begins<'a> {
    /// Starts before the first region of sessions.
    pub fn of(regions: &'a Regions) -> Begins<'a> {
        let numbered = (0..).zip(&regions.groups);
        let groups = numbered.map(|(number, group)| ((group.session, &*group.name), number));
        let later: Box<dyn Iterator<Item = &'a Sample> + 'a> = Box::new(regions.by_begin());
        Begins {
            groups: groups.collect(),
            later: later.peekable(),
            now: HashMap::new(),
            time: i64::MIN,
        }
    }

    /// Takes the next event. Hands over the regions before it whose events were not found, and the one that it begins.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn event<E>(&mut self, event: &EventRef<'_>, each: Each<'_, 'a, E>) -> Result<(), E> {
        if event.ts_ns != self.time {
            self.advance(event.ts_ns, each)?;
        }
        let Some(name) = event.name.strip_suffix("_begin") else { return Ok(()) };
        let Some(group) = self.groups.get(&(event.session, name)).copied() else { return Ok(()) };
        let id = event.fields.iter().find(|(name, _)| ***name == *"id");
        let id = match id.map(|(_, value)| value) {
            Some(ValueRef::Unsigned(id) | ValueRef::Hex(id)) => id,
            Some(ValueRef::Signed(id)) => id as u64,
            _ => return Ok(()),
        };
        let is_of_any = event.fields.iter().any(|(name, _)| &**name == "any_client");
        let client = event.client.filter(|_| !is_of_any);
        let Some((samples, number)) = self.now.get_mut(&(group, client, id)) else {
            return Ok(());
        };
        let Some(sample) = samples.pop() else { return Ok(()) };
        *number += 1;
        each(sample, Some((event, *number)))
    }

    /// Hands over the regions that are left, after the last event.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn finish<E>(mut self, each: Each<'_, 'a, E>) -> Result<(), E> {
        self.advance(i64::MAX, each)?;
        // Those that begin at the last possible time.
        self.advance(i64::MAX, each)
    }

    /// Takes the regions that begin at a time. Those before it whose events were not found come first.
    fn advance<E>(&mut self, time: i64, each: Each<'_, 'a, E>) -> Result<(), E> {
        self.time = time;
        if self.now.values().any(|(samples, _)| !samples.is_empty()) {
            let mut left = Vec::from_iter(self.now.drain().flat_map(|(_, (samples, _))| samples));
            left.sort_by_key(|sample| (sample.group, sample.id));
            left.into_iter().try_for_each(|sample| each(sample, None))?;
        }
        self.now.clear();
        let mut together = 0;
        while let Some(sample) = self.later.next_if(|sample| sample.begin_ns <= time) {
            if sample.begin_ns < time || together == MOST_TOGETHER {
                each(sample, None)?;
                continue;
            }
            together += 1;
            let key = (sample.group, sample.client(), sample.id);
            self.now.entry(key).or_default().0.push(sample);
        }
        self.now.values_mut().for_each(|(samples, _)| samples.reverse());
        Ok(())
    }
}
