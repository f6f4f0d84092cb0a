// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Begins and ends of regions without the other: some are of a region that moved to another client,
//! or was in two processes.

use super::super::pairs::Open;
use super::super::store::{Holder, State};
use super::{Kind, Pass};
use crate::event::EventRef;
use crate::sort;
use std::collections::{HashMap, HashSet};

/// Most begins and ends without the other that are compared with those of other clients.
const MOST_STRAYS: usize = 1 << 15;
/// Most ends of one name and id that are compared with each begin: so the work is bounded. An id that
/// occurs more often without its begin says nothing.
const MOST_ALIKE: usize = 16;

/// A begin or an end without the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray {
    pub session: usize,
    pub client: u32,
    pub holder: Holder,
    /// Process of the holder, 0 if it is unknown.
    pub pid: u32,
    /// Time of its lease.
    pub leased: i64,
    pub name: u32,
    pub id: u64,
    pub time: i64,
    pub group: u32,
    pub is_begin: bool,
}

impl Pass<'_> {
    /// Takes a region whose end is no longer waited for.
    pub fn never_ended(&mut self, session: usize, client: u32, open: &Open) {
        self.forget(session, open.thread);
        self.stray_begin(session, client, open);
    }

    /// Closes the regions that the last holder of a client left open.
    pub fn end_holder(&mut self, session: usize, client: u32, lease: &EventRef<'_>) {
        let host = self.hosts.get_mut(session);
        let of = host.and_then(|host| host.clients.get_mut(client as usize));
        let Some(of) = of else { return };
        // The host's time of a point, and the mapped one of the lease.
        let bound = lease.bound_ns.and_then(|ns| i64::try_from(ns).ok()).unwrap_or(i64::MAX);
        for open in of.pairs.take_before(lease.ts_ns.saturating_sub(bound)) {
            self.never_ended(session, client, &open);
        }
    }

    pub fn stray_begin(&mut self, session: usize, client: u32, open: &Open) {
        // Without its end, nothing is nested in it.
        if let Some(why) = open.wrong.filter(|why| *why != Kind::Nested) {
            self.count(open.group, why);
            return;
        }
        self.stray((session, client), (open.name, open.id, open.group), open.begin, true);
    }

    /// Takes a begin or an end without the other, of a region's name, id and group.
    pub fn stray(
        &mut self,
        (session, client): (usize, u32),
        (name, id, group): (u32, u64, u32),
        time: i64,
        is_begin: bool,
    ) {
        let host = &self.hosts[session];
        let holder = host.holder(client);
        let of = host.clients.get(client as usize);
        let (pid, leased) = of.map_or((0, i64::MIN), |of| (of.pid, of.leased));
        let stray = Stray { session, client, holder, pid, leased, name, id, time, group, is_begin };
        if self.strays.len() < MOST_STRAYS {
            self.strays.push(stray);
        } else {
            self.count_stray(&stray, None);
        }
    }

    fn count_stray(&mut self, stray: &Stray, why: Option<Kind>) {
        let own = if stray.is_begin { Kind::BeginWithoutEnd } else { Kind::EndWithoutBegin };
        let why = why.unwrap_or(own);
        self.count(stray.group, why);
    }

    /// Finds out which begins and ends without the other are of a region that moved to another
    /// client, or was in two processes.
    pub fn match_strays(&mut self) {
        let strays = std::mem::take(&mut self.strays);
        let mut ends: HashMap<(usize, u32, u64), Vec<usize>> = HashMap::new();
        for (at, stray) in strays.iter().enumerate().filter(|(_, stray)| !stray.is_begin) {
            let alike = ends.entry((stray.session, stray.name, stray.id)).or_default();
            if alike.len() < MOST_ALIKE {
                alike.push(at);
            }
        }
        let mut kinds: Vec<Option<Option<Kind>>> = vec![None; strays.len()];
        for (at, begin) in strays.iter().enumerate().filter(|(_, stray)| stray.is_begin) {
            let others = ends.get(&(begin.session, begin.name, begin.id)).into_iter().flatten();
            let mut others = others.filter(|end| kinds[**end].is_none());
            let moved = others.find(|end| {
                let end = &strays[**end];
                end.client != begin.client && end.time >= begin.time
            });
            if let Some(end) = moved.copied() {
                // One region: its end is not counted again.
                kinds[at] = Some(Some(Kind::Migration));
                kinds[end] = Some(None);
            }
        }
        self.match_forks(&strays, &mut kinds);
        for (stray, kind) in strays.iter().zip(kinds) {
            match kind {
                None => self.count_stray(stray, None),
                Some(Some(kind)) => self.count_stray(stray, Some(kind)),
                Some(None) => {}
            }
        }
    }

    /// Finds the ends by a child process of a region that its parent ended, too.
    ///
    /// A child has its lease after the region began, and at most one region of a name was open on the
    /// thread that started it. So a process takes no more than that out of another one's regions.
    fn match_forks(&mut self, strays: &[Stray], kinds: &mut [Option<Option<Kind>>]) {
        let mut ends: HashMap<(usize, u32, u64), Vec<usize>> = HashMap::new();
        for (at, end) in strays.iter().enumerate() {
            if !end.is_begin && end.pid != 0 && kinds[at].is_none() {
                let alike = ends.entry((end.session, end.name, end.id)).or_default();
                if alike.len() < MOST_ALIKE {
                    alike.push(at);
                }
            }
        }
        if ends.is_empty() {
            return;
        }
        // The last region that may be each end's.
        let mut of_ends: HashMap<usize, u32> = HashMap::new();
        for index in 0..self.store.len() as u32 {
            let sample = self.store.get(index);
            let session = usize::from(sample.session);
            let Some(name) = self.groups.all[sample.group as usize].name_number else { continue };
            let Some(alike) = ends.get(&(session, name, sample.id)) else { continue };
            let parent = self.hosts[session].pid_of(sample.holder);
            for at in alike {
                let end = &strays[*at];
                let is_of_child = parent != 0
                    && parent != end.pid
                    && sample.state != State::Dropped
                    && sample.begin_ns <= end.time.min(end.leased);
                if is_of_child {
                    let last = of_ends.entry(*at).or_insert(index);
                    if self.store.get(*last).begin_ns <= sample.begin_ns {
                        *last = index;
                    }
                }
            }
        }
        // In the order of the ends.
        let mut of_ends = Vec::from_iter(of_ends);
        sort::by_key(&mut of_ends, |of| *of);
        let mut children = HashSet::new();
        for (at, index) in of_ends {
            let end = &strays[at];
            if self.store.get(index).state != State::Dropped
                && children.insert((end.session, end.holder, end.name))
            {
                kinds[at] = Some(Some(Kind::Fork));
                self.drop_sample(index, Kind::Fork);
            }
        }
    }
}
