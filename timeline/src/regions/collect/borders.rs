// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events that begin and end regions.

use super::super::causes::Unknown;
use super::super::choice::LeftOut;
use super::super::cpus::{Cpus, all_threads};
use super::super::groups::{POLLS, cut, unknown};
use super::super::host::{Host, Side, Thread};
use super::super::marks::Kinds;
use super::super::pairs::{Begun, Open, SameId};
use super::super::parts::{Detail, Divided};
use super::super::region_path::Path;
use super::super::roles::{OfSpan, Role};
use super::super::steps::Timed;
use super::super::store::{NO_BOUND, NO_CLIENT, NO_THREAD, Sample, State};
use super::super::walked::Walked;
use super::super::{By, MAX_REGIONS, NotCounted, Select};
use super::Pass;
use crate::clock::{FRACTION, GuestReading};
use crate::event::{EventKind, EventRef};
use crate::filter::{Answers, RegionRef};

/// Maximum number of switches and wake-ups on all paths that are walked for a single region. A region needs
/// such a walk if the region may end on another thread, or if its times come from another clock than the
/// kernel's. If the walks reach this number, further paths are not known.
const MAX_WALKED: u64 = 1 << 26;

impl Pass<'_> {
    pub fn begin(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        name: u32,
        thread: Option<usize>,
        is_unknown: bool,
    ) {
        let (session, time) = (event.source.session, event.ts_ns);
        let value = self.value(event, role, thread);
        let target = match role.span {
            Some(OfSpan::PollBegin) => POLLS,
            _ => role.target(event).map_or(0, |target| self.groups.target(target)),
        };
        if role.is_of_any {
            self.cpus.iter_mut().flatten().for_each(Cpus::keep_turns);
        }
        let host = &mut self.hosts[session];
        let most = host.most_open;
        let begun = thread.map(|at| {
            let thread = &mut host.threads[at];
            let is_known = thread.border(time);
            (at, thread.tally.begin(is_known, time))
        });
        let open = Open {
            name,
            id: role.id(event),
            client: event.source.client.unwrap_or(NO_CLIENT),
            target,
            value,
            answers: self.chooser.answers(event),
            begin: time,
            bound: event.bound_ns(),
            is_point: event.kind == EventKind::ReferencePoint,
            guest_time: event.reading.map(GuestReading::time),
            thread: begun,
            is_unknown,
            wrong: None,
            may_have_ended: false,
        };
        let same_id = match self.options.select {
            Select::Names(_) => SameId::Joins,
            // These regions have no ids.
            Select::Between(..) => SameId::Replaces,
        };
        if let Some((at, number)) = begun.filter(|_| self.options.has_paths && !role.is_of_any)
            && self.hosts[session].is_exact(event)
        {
            let divided = {
                let host = &self.hosts[session];
                host.threads[at].side.guest().filter(|_| host.divides(host.threads[at].side))
            };
            let thread = &mut self.hosts[session].threads[at];
            thread.walked.get_or_insert_with(|| Walked::new(time, divided).into());
            self.walk(session, at, time);
            let walked = &mut self.hosts[session].threads[at].walked;
            walked.iter_mut().for_each(|walked| walked.begin(number));
            self.place_walked(session, at);
        }
        match self.pairs(event, role).map(|pairs| pairs.begin(open, most, same_id)) {
            Some(Begun::Open) => {}
            Some(Begun::Instead(old)) => {
                let key = self.hosts[session].span(session, old.client, old.id);
                // The client has too many open regions, but its span is not lost: `spans` keeps the span.
                if key.id != role.id(event) && self.spans.is_of(key, &old) {
                    self.spans.part(key, old);
                } else {
                    self.never_ended(session, &old);
                }
            }
            Some(Begun::Again { new, is_first }) => {
                // The same end closes the old and the new region, so neither region can be measured.
                self.forget(session, begun);
                if !is_first {
                    self.count(session, &new, None, NotCounted::IdTwice);
                }
            }
            None => self.forget(session, begun),
        }
    }

    pub fn end(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        name: u32,
        (thread, on): (Option<usize>, Option<(Side, u32)>),
        is_unknown: bool,
    ) {
        let id = role.id(event);
        match self.pairs(event, role).and_then(|pairs| pairs.end(name, id)) {
            Some(found) => self.close(event, role, name, found, (thread, on), is_unknown),
            None => self.end_without_begin(event, role, name, thread),
        }
    }

    /// Counts a region that ends although no event began the region.
    pub fn end_without_begin(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        name: u32,
        thread: Option<usize>,
    ) {
        if matches!(self.options.select, Select::Names(_)) {
            let value = self.value(event, role, thread);
            let target = if role.span.is_some() { POLLS } else { 0 };
            let region = self.region(name, None, Some(*event));
            if self.refuses(name, event.ts_ns, &region).is_none()
                && let Some(group) = self.group(event.source.session, name, target, value)
            {
                self.count_in(group, NotCounted::EndWithoutBegin);
            }
        }
    }

    /// If a region that begins at the time `begin` is left out, returns why.
    fn refuses(&self, name: u32, begin: i64, region: &RegionRef<'_>) -> Option<LeftOut> {
        match self.roles.is_hidden(name) {
            true => Some(LeftOut::Name),
            false => self.chooser.refuses(begin, region),
        }
    }

    /// Ends a region that was inside `depth` other regions.
    pub fn close(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        name: u32,
        (mut open, depth): (Open, usize),
        (thread, on): (Option<usize>, Option<(Side, u32)>),
        is_unknown: bool,
    ) {
        let (session, end) = (event.source.session, event.ts_ns);
        // If the event that ends the region can have a value, the region gets the value of this event.
        if role.by.is_some() {
            open.value = self.value(event, role, thread);
        }
        // The time between two readings of one clock has no other error than the error of the clock's rate.
        let reading =
            event.reading.filter(|_| event.source.client.unwrap_or(NO_CLIENT) == open.client);
        let passed = open.guest_time.zip(reading).and_then(|(a, b)| a.until(b.time()));
        let of_rate = passed.map_or(u64::MAX, |(least, most)| {
            let ns = end.abs_diff(open.begin);
            let [least, most] =
                [least, most].map(|units| units.unsigned_abs() / FRACTION.unsigned_abs());
            // The 2 ns are for rounding, because times are in whole nanoseconds.
            ns.abs_diff(least).max(ns.abs_diff(most)) + 2
        });
        let sum = open.bound.zip(event.bound_ns()).map(|(a, b)| a.saturating_add(b));
        open.bound = sum.map(|sum| sum.min(of_rate));
        let client = event.source.client.filter(|_| !role.is_of_any).unwrap_or(NO_CLIENT);
        let host = &self.hosts[session];
        let has_moved =
            host.clients.get(client as usize).is_some_and(|client| client.moved(open.begin, end));
        // A client that shares vCPUs may move, because a guest's kernel can move its threads to any vCPU.
        let is_moved = open.thread.map(|(thread, _)| thread) != thread || has_moved;
        if is_moved && !host.shares_vcpus(client) {
            open.wrong.get_or_insert(NotCounted::Migration);
        }
        let clock_of = |client: u32| host.clients.get(client as usize).and_then(|of| of.clock);
        let begun = (open.client, open.guest_time.map(|time| time.clock));
        let ended = (event.source.client.unwrap_or(NO_CLIENT), event.reading.map(|of| of.clock));
        // A reference point has no reading of the guest's clock, so the clock comes from the client's lease.
        let has_jumped = |(client, clock): (u32, Option<u32>)| {
            let clock = clock.or_else(|| clock_of(client));
            client != NO_CLIENT && host.jumps.has(clock, client, open.begin, end)
        };
        if has_jumped(begun) || has_jumped(ended) {
            open.wrong.get_or_insert(NotCounted::ClockJump);
        }
        if let Some(why) = open.wrong {
            self.forget(session, open.thread);
            self.count(session, &open, Some(event), why);
            return;
        }
        open.is_unknown |= is_unknown;
        let duration = end.saturating_sub(open.begin).max(0) as u64;
        let duration_ns = Some(duration);
        let region = self.region(name, open.answers.as_ref(), Some(*event));
        let refused = self.refuses(name, open.begin, &RegionRef { duration_ns, ..region });
        let is_exact = self.hosts[session].is_exact(event);
        let has_path = refused.is_none() && self.options.has_paths;
        let path = has_path.then(|| match (self.parting, open.thread) {
            (Some(number), _) => self.parted_path(number, duration, end),
            (None, Some((at, number))) if is_exact && self.has_walked(session, at, number) => {
                self.walk(session, at, end);
                Path::walked()
            }
            _ => self.path(session, on, (open.begin, end), (is_exact, role.is_of_any)),
        });
        self.add(open, session, client, (end, depth, path), refused);
    }

    /// Returns whether the path of a thread was walked since the region with this number began.
    fn has_walked(&self, session: usize, at: usize, number: u32) -> bool {
        let walked = self.hosts[session].threads[at].walked.as_ref();
        walked.is_some_and(|walked| walked.has(number))
    }

    /// Continues the path of a thread until a time.
    fn walk(&mut self, session: usize, at: usize, time: i64) {
        let Thread { side, tid, walked, .. } = &mut self.hosts[session].threads[at];
        let (Some(walked), on) = (walked, (*side, *tid)) else { return };
        let (times, has_turns) = (walked.walk(time), walked.divided.is_some());
        let mut found = Vec::new();
        if let Err(why) =
            self.follow(session, Some(on), times, (true, has_turns), |of| found.push(of))
        {
            found.clear();
            found.push(Timed::unknown(why, times));
        }
        let Host { vcpus, threads, .. } = &mut self.hosts[session];
        threads[at]
            .walked
            .iter_mut()
            .for_each(|walked| walked.take(std::mem::take(&mut found), vcpus));
    }

    /// Returns the critical path of a region that ended on a thread. `is_exact`: whether the region's end has
    /// a time of the kernel's clock. `has_waits`: whether the path gets the causes of waits.
    fn path(
        &mut self,
        session: usize,
        on: Option<(Side, u32)>,
        times: (i64, i64),
        (is_exact, has_waits): (bool, bool),
    ) -> Path {
        let host = &self.hosts[session];
        let divided = on.and_then(|(side, _)| side.guest().filter(|_| host.divides(side)));
        let mut path = Path::new(has_waits, divided);
        let kind = (is_exact, has_waits || divided.is_some());
        let ns = times.1.saturating_sub(times.0).max(0) as u64;
        if self.has_walked_enough() {
            return Path::unknown(Unknown::TooMany, ns);
        }
        match self.follow(session, on, times, kind, |of| path.push(of)) {
            Ok(records) => {
                self.walked += records;
                path
            }
            Err(why) => Path::unknown(why, ns),
        }
    }

    /// Returns whether the walks for single regions have reached their limit.
    pub fn has_walked_enough(&self) -> bool {
        self.walked > MAX_WALKED
    }

    /// Hands over the critical path of a time that ended on a thread. Returns the number of switches and
    /// wake-ups on the path, or why the path is not known.
    pub fn follow(
        &mut self,
        session: usize,
        on: Option<(Side, u32)>,
        times: (i64, i64),
        kind: (bool, bool),
        take: impl FnMut(Timed),
    ) -> Result<u64, Unknown> {
        // A machine's kernel may have been recorded several times. Among the recordings that reach the end of
        // the time, the recording that ended first is used.
        let host = &self.hosts[session];
        let all = all_threads(&self.traced, &self.cpus, session);
        let all = all.filter(|cpus| match (self.owners[usize::from(cpus.trace)].0, on) {
            (of, Some((side, _))) => of == side,
            (of, None) => of.guest().is_some() == host.has_guests,
        });
        let cpus = all.min_by_key(|cpus| (cpus.until < times.1, cpus.until));
        let cpus = cpus.ok_or(Unknown::NotRecorded)?;
        let (_, tid) = on.ok_or(Unknown::NoThread)?;
        let records = cpus.path(tid, times, kind, &mut self.causes, take);
        #[cfg(test)]
        {
            self.records += records.unwrap_or(0);
        }
        records.ok_or(Unknown::Missing)
    }

    /// Returns what a filter can know about a region.
    fn region<'r>(
        &'r self,
        name: u32,
        begin: Option<&'r Answers>,
        end: Option<EventRef<'r>>,
    ) -> RegionRef<'r> {
        let name = &self.roles.names()[name as usize];
        RegionRef { name, duration_ns: None, begin, end }
    }

    /// Counts a region whose end the reader no longer waits for.
    pub fn never_ended(&mut self, session: usize, open: &Open) {
        self.spans.give_up(self.hosts[session].span(session, open.client, open.id), open);
        self.forget(session, open.thread);
        self.count(session, open, None, open.wrong.unwrap_or(NotCounted::BeginWithoutEnd));
    }

    /// Closes the regions that the last holder of a client left open.
    pub fn end_holder(&mut self, session: usize, client: u32, lease: &EventRef<'_>) {
        let host = self.hosts.get_mut(session);
        let of = host.and_then(|host| host.clients.get_mut(client as usize));
        let Some(of) = of else { return };
        // A region that a reference point began has an exact host time, but the time of the lease is mapped,
        // with an error up to `bound`. So a region that began at most `bound` before the lease may belong to
        // the new holder.
        let bound = lease.bound_ns().and_then(|ns| i64::try_from(ns).ok()).unwrap_or(i64::MAX);
        for open in of.pairs.take_before(lease.ts_ns.saturating_sub(bound)) {
            self.never_ended(session, &open);
        }
    }

    /// Forgets a region of a thread that will not be counted.
    pub fn forget(&mut self, session: usize, of: Option<(usize, u32)>) {
        let Some((at, number)) = of else { return };
        let thread = &mut self.hosts[session].threads[at];
        thread.tally.forget(number);
        if let Some(walked) = &mut thread.walked {
            walked.end(number, None);
            self.place_walked(session, at);
        }
    }

    /// Counts a region that cannot be measured, unless the choice leaves the region out.
    pub fn count(
        &mut self,
        session: usize,
        open: &Open,
        end: Option<&EventRef<'_>>,
        why: NotCounted,
    ) {
        let region = self.region(open.name, open.answers.as_ref(), end.copied());
        if self.refuses(open.name, open.begin, &region).is_none()
            && let Some(group) = self.group(session, open.name, open.target, open.value.clone())
        {
            self.count_in(group, why);
        }
    }

    fn count_in(&mut self, group: u32, why: NotCounted) {
        self.groups.all[group as usize].not_counted[why as usize] += 1;
    }

    /// Adds a region that has ended, and that was inside `depth` other regions. The parts of the region's
    /// time may become known later.
    fn add(
        &mut self,
        mut open: Open,
        session: usize,
        client: u32,
        (end, depth, path): (i64, usize, Option<Path>),
        refused: Option<LeftOut>,
    ) {
        let mut group = None;
        if refused.is_none() {
            group = self.group(session, open.name, open.target, open.value.take());
            if group.is_none() {
                return self.forget(session, open.thread);
            }
        }
        if let Some(why) = refused.filter(|_| !self.roles.is_hidden(open.name)) {
            self.chooser.left_out[why as usize] += 1;
        }
        // A region that is left out is needed only as a child or as a poll.
        let is_unneeded =
            refused.is_some() && depth == 0 && self.polling.is_none() && self.ending.is_none();
        let most = self.options.most_regions.unwrap_or(MAX_REGIONS).min(MAX_REGIONS);
        if is_unneeded || self.store.len() >= most {
            self.forget(session, open.thread);
            self.is_cut |= !is_unneeded;
            if let Some(group) = group.filter(|_| refused.is_none()) {
                self.count_in(group, NotCounted::TooMany);
            }
            return;
        }
        let group = group.or_else(|| self.group_of_children(session, open.name, open.target));
        let Some(group) = group else { return self.forget(session, open.thread) };
        let host = &mut self.hosts[session];
        let state = match refused {
            Some(_) => State::Inside,
            None if open.is_unknown => State::Unrecorded,
            None => State::Counted,
        };
        let sample = Sample {
            id: open.id,
            begin_ns: open.begin,
            // The whole time is unknown until the region is divided.
            times: unknown(end.saturating_sub(open.begin).max(0) as u64),
            bound: open.bound.and_then(|ns| ns.try_into().ok()).unwrap_or(u32::MAX),
            group: group as u16,
            thread: open.thread.map_or(NO_THREAD, |(thread, _)| thread as u16),
            cpu: None,
            span: 0,
            holder: host.holder(client),
            // `Pass::limit_guests` sets the bound, when all is known about the vCPUs.
            guest_at_most: if host.shares_vcpus(client) { 0 } else { NO_BOUND },
            session: u16::try_from(session).unwrap_or(u16::MAX),
            state,
            depth: u8::try_from(depth).unwrap_or(u8::MAX),
        };
        let index = self.store.push(sample, end);
        if let Some(link) = self.ending.take() {
            self.spans.add_inner(link, index);
        }
        if state.is_counted() {
            let group = &mut self.groups.all[group as usize];
            group.is_point = open.is_point;
            group.is_program |= host.is_program;
            let side = open.thread.map(|(thread, _)| host.threads[thread].side);
            group.is_by_guest_alone |= match side {
                Some(side) => side.guest().is_some() && !host.divides(side),
                None => host.has_guests && host.vcpus.is_none(),
            };
            let is_of_client = client != NO_CLIENT && !host.is_program;
            host.without_thread += u64::from(is_of_client && open.thread.is_none());
            let kinds = open.thread.map_or(Kinds::default(), |(thread, _)| host.kinds(thread));
            group.includes_kvm |= !host.is_program && kinds.includes_kvm();
            group.bound_ns = group.bound_ns.zip(open.bound).map(|(a, b)| a.max(b));
            if self.store.wants(index) {
                self.store.keep(index, Detail::default());
            }
        }
        let is_parted = self.parting.is_some();
        if let Some((key, counts)) = self.polling {
            let span = self.spans.add_poll(key, index, counts);
            self.store.get_mut(index).span = span.unwrap_or(0);
        }
        let own = match open.thread {
            None if self.parting.is_some() => {
                let number = self.parting.take().unwrap_or_default();
                self.store.get_mut(index).span = number as u32;
                if let Some(parted) = self.spans.numbered(number) {
                    parted.end(end, index, sample.duration_ns());
                    let inner = parted.take_inner(&self.store);
                    if state.is_counted() && !inner.is_empty() {
                        self.store.inner.push((index, inner));
                    }
                }
                self.spans.finish(number).map(|(_, divided)| divided)
            }
            Some((thread, number)) => {
                let thread = &mut host.threads[thread];
                let is_known = thread.border(end);
                thread.tally.end(is_known, number, index)
            }
            None => Some(Divided { times: sample.times, ..Divided::default() }),
        };
        let is_walked = path.as_ref().is_some_and(|path| path.is_walked);
        let host = &mut self.hosts[session];
        match (path, own) {
            (Some(mut path), own) => {
                path.is_division = open.thread.is_none() && host.is_program && !is_parted;
                path.own = own.filter(|_| !path.is_division);
                host.vcpus.iter_mut().for_each(|vcpus| path.hold(vcpus));
                self.paths.insert(index, path);
                self.place_path(index);
            }
            (None, Some(own)) => self.divide(index, own),
            (None, None) => {}
        }
        if let Some((at, number)) = open.thread {
            let walked = &mut self.hosts[session].threads[at].walked;
            walked.iter_mut().for_each(|walked| walked.end(number, is_walked.then_some(index)));
            self.place_walked(session, at);
        }
    }

    /// Returns the value of an event that determines the group of the event's region.
    fn value(&self, event: &EventRef<'_>, role: Role, thread: Option<usize>) -> Option<String> {
        let value = match &self.options.by {
            By::Nothing => None,
            By::Thread => Some(event.source.text.to_string()),
            By::Vcpu => {
                let thread = thread.map(|thread| &self.hosts[event.source.session].threads[thread]);
                Some(thread.map_or("unknown".into(), |thread| match &thread.name {
                    Some(name) => name.to_string(),
                    None => format!("thread {}", thread.tid),
                }))
            }
            By::Field(_) => role.value(event),
        };
        value.map(cut)
    }

    /// Returns the group of a region; `None` if there are too many groups.
    fn group(
        &mut self,
        session: usize,
        name: u32,
        target: u32,
        value: Option<String>,
    ) -> Option<u32> {
        let has_values = self.options.by != By::Nothing;
        let value = value.or_else(|| has_values.then(|| "none".into()));
        self.groups.find(session, (name, target, &self.roles.names()[name as usize]), value)
    }

    /// Returns a group for a region that is left out: a group with the region's name, but without its value.
    fn group_of_children(&mut self, session: usize, name: u32, target: u32) -> Option<u32> {
        let has_values = self.options.by != By::Nothing;
        let names = self.roles.names();
        self.groups.without_value(session, (name, target, &names[name as usize]), has_values)
    }
}
