// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Begins and ends of regions without the other: some are of a region that moved to another client,
//! or was in two processes.

use super::super::host::Host;
use super::super::pairs::Open;
use super::super::store::{Sample, State};
use super::super::summary::Group;
use super::{Kind, Pass};
use crate::event::EventRef;
use std::collections::HashMap;

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
    pub pid: u32,
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

    /// Closes the regions that the last lessee of a client left open.
    pub fn end_lessee(&mut self, session: usize, client: u32, lease: &EventRef<'_>) {
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
        let pid = self.hosts[session].pid(client);
        self.stray(Stray {
            session,
            client,
            pid,
            name: open.name,
            id: open.id,
            time: open.begin,
            group: open.group,
            is_begin: true,
        });
    }

    pub fn stray(&mut self, stray: Stray) {
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
        // Ends by a child process of a region that its parent ended, too.
        let is_of_child = |sample: &Sample, hosts: &[Host], groups: &[Group], end: &Stray| {
            let parent = hosts[end.session].pid(sample.client);
            let is_same = groups[sample.group as usize].name == groups[end.group as usize].name;
            let other = parent != 0 && end.pid != 0 && parent != end.pid;
            is_same && other && sample.begin_ns <= end.time
        };
        if ends.is_empty() {
            return self.count_all(&strays, &kinds);
        }
        let ids: HashMap<(usize, u64), Vec<usize>> =
            ends.iter().fold(HashMap::new(), |mut ids, ((session, _, id), all)| {
                ids.entry((*session, *id)).or_insert_with(Vec::new).extend(all);
                ids
            });
        for index in 0..self.store.len() as u32 {
            let sample = *self.store.get(index);
            let Some(all) = ids.get(&(sample.session.into(), sample.id)) else { continue };
            let is_end = |end: &&usize| {
                is_of_child(&sample, &self.hosts, &self.groups.all, &strays[**end])
                    && kinds[**end].is_none_or(|kind| kind == Some(Kind::Fork))
            };
            if let Some(end) = all.iter().find(is_end).copied()
                && sample.state != State::Dropped
            {
                kinds[end] = Some(Some(Kind::Fork));
                self.drop_sample(index, Kind::Fork);
            }
        }
        self.count_all(&strays, &kinds);
    }

    fn count_all(&mut self, strays: &[Stray], kinds: &[Option<Option<Kind>>]) {
        for (stray, kind) in strays.iter().zip(kinds) {
            match kind {
                None => self.count_stray(stray, None),
                Some(Some(kind)) => self.count_stray(stray, Some(*kind)),
                Some(None) => {}
            }
        }
    }
}
