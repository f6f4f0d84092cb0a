// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One pass over the timeline: it keeps the accounts of threads, and the open regions of
//! clients.

mod strays;

use super::host::{Client, Closing, Host, lease};
use super::lanes::{Lanes, Window, Windows};
use super::marks::{Kernel, Kinds, Reasons, of_kvm};
use super::pairs::{Cut, Open, Pairs};
use super::parts::{Mark, Part, Sums, Times, Why};
use super::roles::{Role, Roles};
use super::store::{Detail, NO_CLIENT, Sample, Store};
use super::summary::Group;
use super::{By, Kind, MOST_GROUPS, MOST_REGIONS, Options, Regions, Select};
use crate::clock::{FRACTION, GuestReading};
use crate::error::Result;
use crate::event::{EntryRef, EventRef, Kind as EventKind, Lost};
use crate::inputs::ctf::{ClockMaps, Session};
use crate::inputs::kernel::KernelTrace;
use crate::merge::Timeline;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use strays::Stray;

/// Name of the region whose duration is the cost of a region.
const EMPTY: &str = "empty";
/// Events of each CPU that are read before the merge, to see which kinds there are.
const FIRST_EVENTS: usize = 1 << 12;
/// Hash of our own numbers, which are dense.
#[derive(Debug, Default)]
struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        // The table takes the upper bits, too.
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The pass.
struct Pass<'a> {
    options: &'a Options,
    hosts: Vec<Host>,
    /// See [`traced`].
    traced: Vec<Vec<usize>>,
    roles: Roles,
    reasons: Reasons,
    groups: Vec<Group>,
    /// Groups by name and value.
    by_value: HashMap<(u32, String), u32>,
    store: Store,
    windows: Windows,
    cuts: u64,
    known: HashMap<u64, Box<Sums>, BuildHasherDefault<Number>>,
    strays: Vec<Stray>,
    is_cut: bool,
}

/// Reads everything. See [`Regions::of`].
pub(super) fn collect(
    sessions: &[(Session, ClockMaps)],
    traces: &[KernelTrace],
    options: &Options,
) -> Result<Regions> {
    let (pass, warnings) = read(sessions, traces, options, &[])?;
    Ok(pass.finish(warnings))
}

/// Reads everything up to the end of some windows. See [`super::lanes`].
pub(super) fn lanes(
    sessions: &[(Session, ClockMaps)],
    traces: &[KernelTrace],
    windows: &[Window],
) -> Result<(Vec<Lanes>, Vec<String>)> {
    // No event has an empty name.
    let select = Select::Names(vec![String::new()]);
    let options = Options { select, by: By::Nothing };
    let (mut pass, _) = read(sessions, traces, &options, windows)?;
    pass.end_windows(i64::MAX);
    pass.end_accounts();
    Ok((pass.windows.into_lanes(), pass.reasons.names().to_vec()))
}

/// Reads everything; if there are windows, only until all are known.
fn read<'a>(
    sessions: &[(Session, ClockMaps)],
    traces: &[KernelTrace],
    options: &'a Options,
    windows: &[Window],
) -> Result<(Pass<'a>, Vec<String>)> {
    let mut warnings = Vec::new();
    let mut hosts: Vec<Host> = sessions.iter().map(|(s, maps)| Host::new(s, maps)).collect();
    let traced = traced(sessions, traces);
    for trace in traces {
        let Some(own) = session_of(trace, sessions.len()) else {
            warnings.push(format!(
                "{}: of which session it is, is not known: it is left out",
                trace.path().display()
            ));
            continue;
        };
        let (kinds, end) = (Kinds::of(&trace.first_names(FIRST_EVENTS)?), trace.end()?);
        for session in &traced[own] {
            let host = &mut hosts[*session];
            host.kinds = kinds;
            host.end = host.end.max(end);
            host.set_exactness();
        }
    }
    let mut pass = Pass::new(sessions, options, hosts);
    pass.traced = traced;
    pass.windows = Windows::new(windows);
    let mut timeline = Timeline::with_kernel(sessions, traces)?;
    loop {
        // By reference: a copy of each event would cost as much as its account.
        match timeline.read() {
            Some(Ok(EntryRef::Event(ref event))) if event.kind == EventKind::Kernel => {
                pass.kernel(event);
            }
            Some(Ok(EntryRef::Event(ref event))) => pass.event(event),
            Some(Ok(EntryRef::Lost(ref lost))) => pass.lost(lost),
            Some(Err(error)) => return Err(error),
            None => break,
        }
        if !windows.is_empty() && pass.windows.is_done() {
            break;
        }
    }
    warnings.extend(timeline.warnings());
    Ok((pass, warnings))
}

/// Returns the session of a trace: that of its directory, or the only one.
fn session_of(trace: &KernelTrace, sessions: usize) -> Option<usize> {
    trace.session().or((sessions == 1).then_some(0))
}

/// Returns for each session the sessions whose threads its kernel's trace may show: itself, and those
/// of the same boot without a trace of their own.
fn traced(sessions: &[(Session, ClockMaps)], traces: &[KernelTrace]) -> Vec<Vec<usize>> {
    let numbers = 0..sessions.len();
    let has_own = |number: &usize| {
        traces.iter().any(|trace| session_of(trace, sessions.len()) == Some(*number))
    };
    let without: Vec<usize> = numbers.clone().filter(|number| !has_own(number)).collect();
    let of = |own: usize| {
        let placed =
            |other: &&usize| **other != own && sessions[**other].0.is_placed_with(&sessions[own].0);
        [own].into_iter().chain(without.iter().filter(placed).copied()).collect()
    };
    numbers.map(of).collect()
}

impl<'a> Pass<'a> {
    fn new(sessions: &[(Session, ClockMaps)], options: &'a Options, hosts: Vec<Host>) -> Pass<'a> {
        Pass {
            options,
            hosts,
            traced: Vec::new(),
            roles: Roles::of(sessions, options),
            reasons: Reasons::new(),
            groups: Vec::new(),
            by_value: HashMap::new(),
            store: Store::new(),
            windows: Windows::new(&[]),
            cuts: 0,
            known: HashMap::default(),
            strays: Vec::new(),
            is_cut: false,
        }
    }

    /// Takes an event of a kernel.
    fn kernel(&mut self, event: &EventRef<'_>) {
        if self.windows.has_ended(event.ts_ns) {
            self.end_windows(event.ts_ns);
        }
        let own = if self.hosts.len() == 1 { 0 } else { event.session };
        for at in 0..self.traced.get(own).map_or(0, Vec::len) {
            self.kernel_of(self.traced[own][at], event);
        }
    }

    /// Takes an event of a kernel for a session's threads.
    fn kernel_of(&mut self, session: usize, event: &EventRef<'_>) {
        let host = &mut self.hosts[session];
        let kernel = self.roles.kernel(event);
        let (Some(fields), Some(running)) = (event.fields.kernel(), event.thread) else { return };
        let time = event.ts_ns;
        if let Some(cpu) = running.cpu.map(|cpu| cpu as usize).filter(|cpu| *cpu < 1 << 13) {
            if host.cpus.len() <= cpu {
                host.cpus.resize(cpu + 1, i64::MIN);
            }
            host.cpus[cpu] = time;
        }
        if kernel == Kernel::Other {
            return;
        }
        if host.kinds.add(kernel) {
            host.set_exactness();
        }
        let tid = |field| fields.number(field).unwrap_or(-1);
        let (first, second) = match kernel {
            Kernel::Switch { prev, state, next } => {
                let out = Mark::Out(host.kinds.why(tid(state)));
                let prev = host.traced(tid(prev));
                host.mark(prev, time, out);
                let next = host.traced(tid(next));
                host.mark(next, time, Mark::In);
                (prev, next)
            }
            Kernel::Wakeup { tid: field } => {
                let thread = host.traced(tid(field));
                host.mark(thread, time, Mark::Wakeup);
                (thread, None)
            }
            Kernel::SwitchIn { tid: field } => {
                let thread = host.traced(tid(field));
                host.mark(thread, time, Mark::In);
                (thread, None)
            }
            Kernel::SwitchOut { tid: field, preempted } => {
                let why = if tid(preempted) == 1 { Why::Preempted } else { Why::Unknown };
                let thread = host.traced(tid(field));
                host.mark(thread, time, Mark::Out(why));
                (thread, None)
            }
            _ => {
                let thread = host.traced(running.tid.into());
                if let Some(thread) = thread {
                    let last = host.threads[thread].account.reason();
                    let mark = of_kvm(kernel, host.kinds, fields, &mut self.reasons, last);
                    if let Some((mark, reason)) = mark {
                        let thread = &mut host.threads[thread];
                        if !std::mem::replace(&mut thread.is_covered, true) {
                            thread.account.skip(time);
                        }
                        thread.account.exit(time, mark, reason);
                    }
                }
                (thread, None)
            }
        };
        for thread in [first, second].into_iter().flatten() {
            self.release(session, thread);
        }
    }

    /// Takes an event of a session.
    fn event(&mut self, event: &EventRef<'_>) {
        if self.windows.has_ended(event.ts_ns) {
            self.end_windows(event.ts_ns);
        }
        let role = self.roles.get(event);
        let session = event.session;
        let Some(host) = self.hosts.get_mut(session) else { return };
        let time = event.ts_ns;
        if event.kind == EventKind::Lease {
            lease(host, event, !self.windows.is_empty());
        }
        // The thread of a VMM, with its own event or as it serves a point.
        let of_vmm = event.thread.filter(|_| !host.is_program);
        let served = of_vmm.and_then(|thread| host.traced(thread.tid.into()));
        let mut thread = served;
        // A guest may have events of this name, too.
        let is_run = role.is_run && event.client.is_none();
        if is_run && served.is_some() && !std::mem::replace(&mut host.runs, true) {
            host.set_exactness();
        }
        if let Some(thread) = served
            && !host.is_unknown(thread, time)
        {
            let mark = if is_run { Mark::Run } else { Mark::Vmm };
            host.threads[thread].account.mark(time, mark);
        }
        if let (Some(client), None) = (event.client, of_vmm) {
            thread = host.client(client).and_then(|client| client.thread(time));
            if let Some(thread) = thread
                && !host.is_unknown(thread, time)
            {
                host.threads[thread].account.guest(time, event.bound_ns);
            }
        }
        if let Some(thread) = thread {
            self.release(session, thread);
        }
        if let Some(name) = role.ends {
            self.end(event, role, name, thread);
        }
        if let Some(name) = role.begins {
            self.begin(event, role, name, thread);
        }
    }

    fn pairs(&mut self, event: &EventRef<'_>) -> Option<&mut Pairs> {
        let host = &mut self.hosts[event.session];
        match (event.client, event.thread) {
            (Some(client), _) => host.client(client).map(|client| &mut client.pairs),
            (None, Some(thread)) => Some(host.vmm.entry(thread.tid).or_default()),
            (None, None) => None,
        }
    }

    fn begin(&mut self, event: &EventRef<'_>, role: Role, name: u32, thread: Option<usize>) {
        let Some(group) = self.group(event, role, name, thread) else { return };
        let cut = thread.map(|thread| (thread, self.cut(event.session, thread, event.ts_ns)));
        let open = Open {
            name,
            id: role.id(event),
            group,
            begin: event.ts_ns,
            bound: event.bound_ns,
            is_point: event.kind == EventKind::ReferencePoint,
            guest_time: event.reading.map(GuestReading::time),
            thread: cut,
            wrong: None,
        };
        let old = self.pairs(event).and_then(|pairs| pairs.begin(open));
        if let Some(old) = old {
            self.stray_begin(event.session, event.client.unwrap_or(NO_CLIENT), &old);
        }
    }

    fn end(&mut self, event: &EventRef<'_>, role: Role, name: u32, thread: Option<usize>) {
        let (session, end, id) = (event.session, event.ts_ns, role.id(event));
        let client = event.client.unwrap_or(NO_CLIENT);
        let Some(mut open) = self.pairs(event).and_then(|pairs| pairs.end(name, id)) else {
            if matches!(self.options.select, Select::Names(_)) {
                let Some(group) = self.group(event, role, name, thread) else { return };
                let pid = self.hosts[session].pid(client);
                let stray =
                    Stray { session, client, pid, name, id, time: end, group, is_begin: false };
                self.stray(stray);
            }
            return;
        };
        // Between two readings of one clock, its rate alone limits the time.
        let passed = open.guest_time.zip(event.reading).and_then(|(a, b)| a.until(b.time()));
        let of_rate = passed.map_or(u64::MAX, |(least, most)| {
            let ns = end.abs_diff(open.begin);
            let [least, most] =
                [least, most].map(|units| units.unsigned_abs() / FRACTION.unsigned_abs());
            // Times are in whole nanoseconds.
            ns.abs_diff(least).max(ns.abs_diff(most)) + 2
        });
        let sum = open.bound.zip(event.bound_ns).map(|(a, b)| a.saturating_add(b));
        open.bound = sum.map(|sum| sum.min(of_rate));
        let host = &self.hosts[session];
        let moved = |client: &Client| client.moved(open.begin, end);
        let has_moved = host.clients.get(client as usize).is_some_and(moved);
        if open.thread.as_ref().map(|(thread, _)| *thread) != thread || has_moved {
            open.wrong.get_or_insert(Kind::Migration);
        }
        let jumped = |(of, from, to): &(Option<u32>, i64, i64)| {
            of.is_none_or(|of| of == client) && *from <= end && *to >= open.begin
        };
        if client != NO_CLIENT && host.jumps.iter().any(jumped) {
            open.wrong.get_or_insert(Kind::ClockJump);
        }
        let cut = match thread {
            Some(thread) if open.wrong.is_none() => self.cut(session, thread, end),
            _ => Cut::Known(Box::default()),
        };
        let closing = Closing { open, session, client, end, cut };
        self.close(closing);
    }

    /// Notes the sums of a thread.
    fn cut(&mut self, session: usize, thread: usize, time: i64) -> Cut {
        self.cuts += 1;
        let known = self.hosts[session].threads[thread].account.cut(time, self.cuts);
        known.map_or(Cut::Waiting(self.cuts), Cut::Known)
    }

    /// Takes the sums that a thread's account knows now.
    fn release(&mut self, session: usize, thread: usize) {
        let account = &mut self.hosts[session].threads[thread].account;
        if !account.has_known() {
            return;
        }
        if self.windows.is_empty() {
            self.known.extend(account.known());
        } else {
            let known: Vec<_> = account.known().collect();
            for (number, _) in known {
                self.windows.settle(number, account);
            }
        }
        for closing in std::mem::take(&mut self.hosts[session].threads[thread].closing) {
            self.close(closing);
        }
    }

    /// Begins the lanes of the windows that end at this time or earlier.
    fn end_windows(&mut self, time: i64) {
        while let Some((index, window)) = self.windows.ended(time) {
            let Some(host) = self.hosts.get_mut(window.session) else { continue };
            let client = window.client.and_then(|client| host.clients.get_mut(client as usize));
            let own = client.and_then(|client| client.thread(window.end));
            let others = (0..host.threads.len()).filter(|thread| Some(*thread) != own);
            for at in own.into_iter().chain(others) {
                let thread = &mut host.threads[at];
                let is_own = Some(at) == own;
                if !thread.is_covered || thread.name.is_none() && !is_own {
                    continue;
                }
                self.cuts += 1;
                let name = thread.name.as_deref().unwrap_or("thread").to_owned();
                if !self.windows.owe(index, name, thread.tid, self.cuts) {
                    continue;
                }
                if is_own {
                    self.windows.set_own(index);
                }
                if thread.account.cut(window.to(), self.cuts).is_some() {
                    self.windows.settle(self.cuts, &thread.account);
                }
            }
        }
    }

    /// Counts a region that has ended, or keeps it until its parts are known.
    fn close(&mut self, mut closing: Closing) {
        let Closing { open, session, client, end, .. } = &closing;
        if let Some(why) = open.wrong {
            self.groups[open.group as usize].not_counted[why as usize] += 1;
            if let Some((_, Cut::Waiting(number))) = open.thread {
                self.known.remove(&number);
            }
            return;
        }
        let (sums, details) = match &open.thread {
            Some((thread, begin)) => {
                let (Some(before), Some(after)) = (self.known(begin), self.known(&closing.cut))
                else {
                    let thread = *thread;
                    self.hosts[*session].threads[thread].closing.push(closing);
                    return;
                };
                let account = &self.hosts[*session].threads[*thread].account;
                (after.since(before), Some(account))
            }
            None => {
                let mut times = Times::default();
                times.0[Part::Unattributed as usize] = end.abs_diff(open.begin);
                (Sums { times, ..Sums::default() }, None)
            }
        };
        if self.store.len() == MOST_REGIONS {
            self.is_cut = true;
            return;
        }
        let index = self.store.push(Sample {
            id: open.id,
            begin_ns: open.begin,
            times: sums.times,
            bound: open.bound.and_then(|ns| ns.try_into().ok()).unwrap_or(u32::MAX),
            group: open.group,
            client: *client,
            session: u16::try_from(*session).unwrap_or(u16::MAX),
            is_dropped: false,
        });
        let group = &mut self.groups[open.group as usize];
        group.is_point = open.is_point;
        let host = &self.hosts[*session];
        group.is_program |= host.is_program;
        group.includes_kvm |= !host.is_program && host.kinds.includes_kvm();
        group.bound_ns = group.bound_ns.zip(open.bound).map(|(a, b)| a.max(b));
        group.exits.iter_mut().zip(sums.exits).for_each(|(sum, exits)| {
            sum.count += exits.count;
            sum.time += exits.time;
        });
        let duration = sums.times.total();
        let is_longest = group.longest.as_ref().is_none_or(|(longest, _)| duration >= *longest);
        let is_kept = self.store.wants(index);
        if is_longest || is_kept {
            let all = details.map(|account| account.intervals(open.begin, *end));
            let detail = Detail::new(index, &sums, all.unwrap_or_default());
            if is_longest {
                group.longest = Some((duration, detail.clone()));
            }
            if is_kept {
                self.store.keep(detail);
            }
        }
        for cut in [closing.open.thread.take().map(|(_, cut)| cut), Some(closing.cut)] {
            if let Some(Cut::Waiting(number)) = cut {
                self.known.remove(&number);
            }
        }
    }

    /// Returns the sums of a thread, if they are known.
    fn known<'s>(&'s self, cut: &'s Cut) -> Option<&'s Sums> {
        match cut {
            Cut::Known(sums) => Some(sums),
            Cut::Waiting(number) => self.known.get(number).map(|sums| &**sums),
        }
    }

    /// Returns the group of an event's region; `None` if there are too many.
    fn group(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        name: u32,
        thread: Option<usize>,
    ) -> Option<u32> {
        let value = match &self.options.by {
            By::Nothing => None,
            By::Client => Some(event.client.map_or("none".into(), |client| client.to_string())),
            By::Vcpu => {
                let thread = thread.map(|thread| &self.hosts[event.session].threads[thread]);
                Some(thread.map_or("unknown".into(), |thread| match &thread.name {
                    Some(name) => name.to_string(),
                    None => format!("thread {}", thread.tid),
                }))
            }
            By::Field(_) => Some(role.value(event).unwrap_or_else(|| "none".into())),
        };
        let key = (name, value.unwrap_or_default());
        if let Some(group) = self.by_value.get(&key) {
            return Some(*group);
        }
        if self.groups.len() == MOST_GROUPS {
            self.is_cut = true;
            return None;
        }
        let value = (self.options.by != By::Nothing).then(|| key.1.clone());
        let name = self.roles.name(name).to_owned();
        self.groups.push(Group { name, value, bound_ns: Some(0), ..Group::default() });
        let group = (self.groups.len() - 1) as u32;
        self.by_value.insert(key, group);
        Some(group)
    }

    /// Takes a place where events were lost.
    fn lost(&mut self, lost: &Lost) {
        let own = if self.hosts.len() == 1 { 0 } else { lost.session };
        let Some(host) = self.hosts.get_mut(own) else { return };
        match (lost.client, lost.cpu) {
            (Some(client), _) => {
                if let Some(client) = host.clients.get_mut(client as usize) {
                    client.pairs.spoil(Kind::LostEvents);
                }
            }
            (None, None) => host.spoil(),
            (None, Some(cpu)) => {
                for at in 0..self.traced[own].len() {
                    self.lost_of_kernel(self.traced[own][at], cpu, lost.ts_ns);
                }
            }
        }
    }

    /// Takes a place where events of a kernel's CPU were lost, for a session's threads.
    fn lost_of_kernel(&mut self, session: usize, cpu: u32, time: Option<i64>) {
        let host = &mut self.hosts[session];
        host.spoil();
        let Some(time) = time else { return };
        // The gap began after the last event of that CPU.
        let from = host.cpus.get(cpu as usize).copied().unwrap_or(i64::MIN);
        let waiting = host.threads.iter_mut().flat_map(|thread| &mut thread.closing);
        for closing in waiting.filter(|closing| closing.end >= from) {
            closing.open.wrong = Some(Kind::LostEvents);
        }
        for thread in host.threads.iter_mut().filter(|thread| thread.is_covered) {
            thread.account.skip(time);
        }
        for thread in 0..host.threads.len() {
            self.release(session, thread);
        }
        for index in self.store.since(from) {
            let sample = self.store.get(index);
            let is_in_gap = sample.end_ns() >= from;
            if is_in_gap && usize::from(sample.session) == session && !sample.is_dropped {
                self.drop_sample(index, Kind::LostEvents);
            }
        }
    }

    /// Takes a region that was counted out again.
    fn drop_sample(&mut self, index: u32, why: Kind) {
        let sample = self.store.get_mut(index);
        sample.is_dropped = true;
        let group = &mut self.groups[sample.group as usize];
        group.not_counted[why as usize] += 1;
        if let Some(detail) = self.store.detail(index) {
            for (reason, exits) in &detail.exits {
                let sum = &mut group.exits[usize::from(*reason)];
                sum.count = sum.count.saturating_sub(exits.count);
                sum.time = sum.time.saturating_sub(exits.time);
            }
        }
    }

    /// Ends the accounts: what is not known until now never will be.
    fn end_accounts(&mut self) {
        for session in 0..self.hosts.len() {
            for thread in 0..self.hosts[session].threads.len() {
                self.hosts[session].threads[thread].account.end();
                self.release(session, thread);
            }
        }
    }

    /// Ends all that is open, and sums up.
    fn finish(mut self, warnings: Vec<String>) -> Regions {
        self.end_accounts();
        for session in 0..self.hosts.len() {
            let clients = (0..).zip(&mut self.hosts[session].clients);
            let mut open: Vec<(u32, Open)> = clients
                .flat_map(|(number, client)| client.pairs.take().map(move |open| (number, open)))
                .collect();
            let vmm = self.hosts[session].vmm.values_mut();
            open.extend(vmm.flat_map(|pairs| pairs.take().map(|open| (NO_CLIENT, open))));
            for (client, open) in open {
                self.stray_begin(session, client, &open);
            }
        }
        self.match_strays();
        let mut orders = vec![Vec::new(); self.groups.len()];
        for index in 0..self.store.len() as u32 {
            let sample = self.store.get(index);
            if !sample.is_dropped {
                orders[sample.group as usize].push(index);
            }
        }
        for (group, order) in self.groups.iter_mut().zip(orders) {
            group.finish(&self.store, order);
            if group.count() == 0 {
                group.bound_ns = None;
            }
        }
        let is_empty = |group: &&Group| group.name == EMPTY && group.count() > 0;
        let empty: Vec<(bool, u64)> = self
            .groups
            .iter()
            .filter(is_empty)
            .map(|group| (group.is_point, group.quantile_ns(0.5)))
            .collect();
        for group in &mut self.groups {
            // With --by, there are several.
            let own = empty.iter().filter(|(is_point, _)| *is_point == group.is_point);
            group.empty_ns = own.map(|(_, ns)| *ns).min();
        }
        // Sorted by an index, as the samples have the groups' numbers.
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by(|a, b| key(&self.groups[*a]).cmp(&key(&self.groups[*b])));
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, group)| places[*group] = place as u32);
        for index in 0..self.store.len() as u32 {
            let sample = self.store.get_mut(index);
            sample.group = places[sample.group as usize];
        }
        let mut groups: Vec<Option<Group>> = self.groups.into_iter().map(Some).collect();
        Regions {
            groups: order.into_iter().filter_map(|at| groups[at].take()).collect(),
            reasons: self.reasons.names().to_vec(),
            warnings,
            is_cut: self.is_cut,
            has_kernel: self.hosts.iter().any(|host| host.end.is_some()),
            store: self.store,
        }
    }
}

fn key(group: &Group) -> (&str, Option<u64>, Option<&str>) {
    // Numbers by their size.
    let value = group.value.as_deref();
    (&group.name, value.and_then(|value| value.parse().ok()), value)
}
