// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Places where events were lost or not recorded, and the regions that are not counted because of such
//! places.

use super::super::NotCounted;
use super::super::host::{Client, Host, Side};
use super::super::pairs::Pairs;
use super::super::spans::Place;
use super::super::store::{NO_CLIENT, NO_THREAD, State};
use super::super::summary::Group;
use super::Pass;
use crate::event::Lost;
use hypertrace_format::number::counted;
use std::collections::BTreeSet;
use std::path::Path;

/// The events that a session lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    clients: BTreeSet<u32>,
    /// Events of clients.
    of_clients: u64,
    /// Events of threads of the VMM, and of threads that had no client.
    others: u64,
    /// Spans of the crate `tracing` that were not recorded.
    pub spans: u64,
}

impl Losses {
    fn add(&mut self, lost: &Lost) {
        let events = match lost.source.client {
            Some(client) => {
                // The set is small, because there are at most as many clients as streams.
                self.clients.insert(client);
                &mut self.of_clients
            }
            None => &mut self.others,
        };
        *events = events.saturating_add(lost.events);
    }

    /// Returns a line about lost events of clients, a line about other lost events, and a line about spans.
    pub fn said(&self, dir: &Path) -> impl Iterator<Item = String> {
        let clients = counted(self.clients.len() as u64, "source");
        let others = "threads of the VMM or without a ring".into();
        let all = [(self.of_clients, clients), (self.others, others)];
        let spans = (self.spans > 0).then(|| {
            format!(
                "{}: {} of the crate tracing were not recorded, because too many were open: all numbers \
                 cover the other spans only",
                dir.display(),
                counted(self.spans, "span")
            )
        });
        let events =
            all.into_iter().filter(|(events, _)| *events > 0).map(move |(events, whose)| {
                let (events, were) =
                    (counted(events, "event"), if events == 1 { "was" } else { "were" });
                format!(
                    "{}: {events} of {whose} {were} lost: all numbers cover the remaining regions only",
                    dir.display()
                )
            });
        events.chain(spans)
    }
}

impl Pass<'_> {
    /// Processes a place where events were lost.
    pub fn lost(&mut self, lost: &Lost) {
        if let (None, Some(cpu)) = (lost.source.client, lost.cpu) {
            let trace = lost.trace.checked_sub(self.traced.len()).unwrap_or(lost.trace);
            if let Some(cpus) = self.cpus.get_mut(trace).and_then(Option::as_mut) {
                cpus.lost(cpu);
            }
            for at in 0..self.traced.get(lost.trace).map_or(0, Vec::len) {
                self.lost_of_kernel(self.traced[lost.trace][at], cpu, lost.ts_ns);
            }
            return;
        }
        let session = lost.source.session;
        let Some(host) = self.hosts.get_mut(session) else { return };
        self.losses[session].add(lost);
        let process = |client: u32| host.span(session, client, 0).process;
        match (lost.source.client, lost.thread) {
            (Some(client), _) => self.spans.lose(Place::Client(session, client), process(client)),
            (None, Some(thread)) => self.spans.lose(Place::Thread(session, thread.tid), None),
            (None, None) if !host.is_program => self.spans.lose_of_any(session),
            // Threads of the programs' host lost the events, and such threads have no spans of a program.
            (None, None) => {}
        }
        match lost.source.client {
            Some(client) => {
                if let Some(client) = host.clients.get_mut(client as usize) {
                    client.pairs.spoil(NotCounted::LostEvents);
                    host.of_any.spoil(NotCounted::LostEvents);
                    let from = client.last;
                    // A loss by overwriting is seen only at the next event. So the loss may have happened
                    // right after the client's previous event.
                    if lost.causes.overwritten > 0 {
                        self.drop_parted(session, from);
                    }
                }
            }
            // If the thread is known, only its own regions and clients may miss events, because each thread's
            // ring has its own space.
            None => match lost.thread.and_then(|thread| host.dividing(Side::Host, thread.tid)) {
                Some(thread) => host.spoil_of(thread),
                None => host.spoil(),
            },
        }
    }

    /// Drops all spans that have polls and that ended at `from` or later.
    pub fn drop_parted(&mut self, session: usize, from: i64) {
        if self.spans.has_none_parted() {
            return;
        }
        for index in self.store.since(from) {
            let sample = self.store.get(index);
            let is_of_any = sample.client().is_none() && sample.thread == NO_THREAD;
            let is_span = self.groups.all[usize::from(sample.group)].target_number > 0;
            let is_its = usize::from(sample.session) == session && sample.end_ns() >= from;
            if is_its && is_span && is_of_any && sample.state.is_counted() {
                self.drop_sample(index, NotCounted::LostEvents);
            }
        }
    }

    /// Processes a place where a kernel's recording lost events of a CPU. The recording shows threads of the
    /// session.
    fn lost_of_kernel(
        &mut self,
        (session, recording): (usize, usize),
        cpu: u32,
        time: Option<i64>,
    ) {
        let host = &mut self.hosts[session];
        // The host's kernel also says what happened to guests' threads, so its losses concern all clients. A
        // guest's kernel says nothing about the threads of another machine.
        let side = host.recordings[recording].side;
        let is_its = |client: &&mut Client| side == Side::Host || client.side == Some(side);
        let clients = host.clients.iter_mut().filter(is_its);
        self.spans.lose_of_kernel(session);
        let vmm = host.vmm.values_mut().filter(|_| side == Side::Host);
        clients.map(|client| &mut client.pairs).chain(vmm).for_each(Pairs::spoil_by_kernel);
        let Some(time) = time else { return };
        // The gap began after the last event of the CPU `cpu`.
        let from = host.recordings[recording].last(cpu);
        for thread in host.threads.iter_mut().filter(|t| t.recording == Some(recording)) {
            thread.account.skip(time);
        }
        for thread in 0..host.threads.len() {
            self.release(session, thread);
        }
        for index in self.store.since(from) {
            let (sample, host) = (self.store.get(index), &self.hosts[session]);
            let is_in_gap = sample.end_ns() >= from && sample.state != State::Dropped;
            let is_of_session = usize::from(sample.session) == session;
            if !is_in_gap || !is_of_session || !host.may_divide(side, sample) {
                continue;
            }
            if self.groups.all[usize::from(sample.group)].is_of_polls() {
                let key = host.span(session, sample.client().unwrap_or(NO_CLIENT), sample.id);
                self.spans.drop_poll(key, index, &sample.times);
            }
            if sample.state.is_counted() {
                self.drop_sample(index, NotCounted::LostEvents);
            }
        }
    }

    /// Removes a counted region from its group, and counts the region under `why`.
    fn drop_sample(&mut self, index: u32, why: NotCounted) {
        self.count_out(index).not_counted[why as usize] += 1;
    }

    /// Removes a counted region from its group. Returns the group.
    pub fn count_out(&mut self, index: u32) -> &mut Group {
        let sample = self.store.get_mut(index);
        let state = std::mem::replace(&mut sample.state, State::Dropped);
        let group = &mut self.groups.all[usize::from(sample.group)];
        if let Some(detail) = self.store.detail(index).filter(|_| state == State::Counted) {
            group.sums.remove(detail);
        }
        group
    }

    /// Drops each region whose thread was not recorded when the region began or ended.
    pub fn drop_unrecorded(&mut self) {
        let is_recorded = |host: &Host| host.all_dividing().any(|t| t.recording.is_some());
        let are_recorded: Vec<bool> = self.hosts.iter().map(is_recorded).collect();
        for index in 0..self.store.len() as u32 {
            let sample = self.store.get(index);
            let is_recorded = are_recorded.get(usize::from(sample.session)) == Some(&true);
            if sample.state == State::Unrecorded && is_recorded {
                self.drop_sample(index, NotCounted::KernelNotRecorded);
            }
        }
    }
}
