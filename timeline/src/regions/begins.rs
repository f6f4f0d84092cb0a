// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events that begin regions. A second pass finds these events, because regions do not keep their events.

use super::groups::cut;
use super::roles::{ANY_CLIENT, SPAN, is_poll, span};
use super::{Regions, Sample};
use crate::event::EventRef;
use crate::value::ValueRef;
use std::collections::HashMap;
use std::iter::Peekable;

/// Maximum number of regions with the same begin time that are handed over with their events.
const MAX_TOGETHER: usize = 1 << 16;

/// What an event says about the region that the event begins: the region's group, client and id.
type Key = (u16, Option<u32>, u64);

/// A region, with the event that begins it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Region<'a> {
    /// The region.
    pub sample: &'a Sample,
    /// The event that begins the region; `None` if the reader did not find the event, or if the region lies
    /// between two given events.
    pub begin: Option<&'a EventRef<'a>>,
    /// Position of `begin` among the events with the same time, name, client and id, counted from 1; 0 if
    /// `begin` is `None`.
    pub number: u64,
}

impl Region<'_> {
    /// If the region is a span of the crate `tracing`, returns the id of the span around the region, or 0 if
    /// there is no such span.
    pub fn span_parent(&self) -> Option<u64> {
        self.begin.and_then(span).map(|(parent, _)| parent)
    }
}

/// A function that is called with each region. The function returns true if it wants more regions.
type Each<'f, E> = &'f mut dyn FnMut(&Region<'_>) -> Result<bool, E>;

/// Finds the event that begins each region, while the caller passes the events of the sessions in order of
/// time.
pub(crate) struct Begins<'a> {
    /// Indices of the groups. The key is the session, the name of the events, and the target.
    groups: HashMap<(usize, &'a str, Option<&'a str>), u16>,
    /// The regions that begin later.
    later: Peekable<Box<dyn Iterator<Item = &'a Sample> + 'a>>,
    /// The regions that begin at `time`, by key. Each entry has the regions that were not handed over yet,
    /// the last region first, and the number of regions that were handed over.
    now: HashMap<Key, (Vec<&'a Sample>, u64)>,
    time: i64,
}

impl<'a> Begins<'a> {
    /// Starts before the first region of sessions.
    pub fn of(regions: &'a Regions) -> Begins<'a> {
        let numbered = (0..).zip(&regions.groups);
        let groups = numbered.map(|(number, group)| {
            let target = if group.is_of_polls() { Some(SPAN) } else { group.target.as_deref() };
            ((group.session, &*group.event, target), number)
        });
        let later: Box<dyn Iterator<Item = &'a Sample> + 'a> = Box::new(regions.by_begin());
        Begins {
            groups: groups.collect(),
            later: later.peekable(),
            now: HashMap::new(),
            time: i64::MIN,
        }
    }

    /// Processes the next event. Hands over all earlier regions whose events were not found, and then the
    /// region that the event begins. Returns whether `each` wants more regions.
    ///
    /// # Errors
    /// Returns the error of `each` if `each` fails.
    pub fn event<E>(&mut self, event: &EventRef<'_>, each: Each<'_, E>) -> Result<bool, E> {
        if event.ts_ns != self.time && !self.advance(event.ts_ns, each)? {
            return Ok(false);
        }
        let Some(name) = event.name.strip_suffix("_begin") else { return Ok(true) };
        let field = |wanted: &str| event.fields.iter().find(|(name, _)| ***name == *wanted);
        // The key of a group includes the target, because spans with the same name can have several targets.
        let is_poll = is_poll(event.name, event.fields.names());
        let target = match span(event) {
            Some((_, target)) => Some(cut(String::from_utf8_lossy(target).into_owned())),
            None => is_poll.then(|| SPAN.to_owned()),
        };
        let session = event.source.session;
        let group = self.groups.get(&(session, name, target.as_deref()));
        let Some(group) = group.or_else(|| self.groups.get(&(session, name, None))).copied() else {
            return Ok(true);
        };
        let id = field(if is_poll { SPAN } else { "id" });
        let id = match id.map(|(_, value)| value) {
            Some(ValueRef::Unsigned(id) | ValueRef::Hex(id)) => id,
            Some(ValueRef::Signed(id)) => id as u64,
            _ => return Ok(true),
        };
        let client = event.source.client.filter(|_| field(ANY_CLIENT).is_none());
        let has = |key: &Key| self.now.get(key).is_some_and(|(samples, _)| !samples.is_empty());
        // Both keys are tried, because only the end of a span says whether the span belongs to one client.
        let any = (group, None, id);
        let key = if has(&any) { any } else { (group, client, id) };
        let Some((samples, number)) = self.now.get_mut(&key) else { return Ok(true) };
        let Some(sample) = samples.pop() else { return Ok(true) };
        *number += 1;
        each(&Region { sample, begin: Some(event), number: *number })
    }

    /// After the last event, hands over the regions that are left.
    ///
    /// # Errors
    /// Returns the error of `each` if `each` fails.
    pub fn finish<E>(mut self, each: Each<'_, E>) -> Result<(), E> {
        // The second call hands over regions that begin at the last possible time.
        let _ = self.advance(i64::MAX, each)? && self.advance(i64::MAX, each)?;
        Ok(())
    }

    /// Moves on to `time`. First hands over the earlier regions without their events, because these events
    /// were not found. Then collects the regions that begin at `time`.
    fn advance<E>(&mut self, time: i64, each: Each<'_, E>) -> Result<bool, E> {
        let mut alone = |sample| each(&Region { sample, begin: None, number: 0 });
        self.time = time;
        if self.now.values().any(|(samples, _)| !samples.is_empty()) {
            let mut left = Vec::from_iter(self.now.drain().flat_map(|(_, (samples, _))| samples));
            left.sort_by_key(|sample| (sample.group, sample.id));
            for sample in left {
                if !alone(sample)? {
                    return Ok(false);
                }
            }
        }
        self.now.clear();
        let mut together = 0;
        while let Some(sample) = self.later.next_if(|sample| sample.begin_ns <= time) {
            if sample.begin_ns < time || together == MAX_TOGETHER {
                if !alone(sample)? {
                    return Ok(false);
                }
                continue;
            }
            together += 1;
            let key = (sample.group, sample.client(), sample.id);
            self.now.entry(key).or_default().0.push(sample);
        }
        self.now.values_mut().for_each(|(samples, _)| samples.reverse());
        Ok(true)
    }
}
