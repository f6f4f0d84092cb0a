// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Places where events were lost or not recorded, and the regions that are not counted for them.

use super::super::NotCounted;
use super::super::host::{Client, Host, Side};
use super::super::pairs::Pairs;
use super::super::store::State;
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
                // As many as there are streams.
                self.clients.insert(client);
                &mut self.of_clients
            }
            None => &mut self.others,
        };
        *events = events.saturating_add(lost.events);
    }

    /// Returns a line about those of clients, and one about the others.
    pub fn said(&self, dir: &Path) -> impl Iterator<Item = String> {
        let clients = counted(self.clients.len() as u64, "client");
        let others = "threads of the VMM or without a client".into();
        let all = [(self.of_clients, clients), (self.others, others)];
        let spans = (self.spans > 0).then(|| {
            format!(
                "{}: {} of the crate tracing were not recorded, as too many were open: all numbers are of the others",
                dir.display(),
                counted(self.spans, "span")
            )
        });
        let events =
            all.into_iter().filter(|(events, _)| *events > 0).map(move |(events, whose)| {
                let (events, were) =
                    (counted(events, "event"), if events == 1 { "was" } else { "were" });
                format!(
                    "{}: {events} of {whose} {were} lost: all numbers are of the regions that \
                 remained",
                    dir.display()
                )
            });
        events.chain(spans)
    }
}

impl Pass<'_> {
    /// Takes a place where events were lost.
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
        let Some(host) = self.hosts.get_mut(lost.source.session) else { return };
        self.losses[lost.source.session].add(lost);
        self.spans.losses += 1;
        match lost.source.client {
            Some(client) => {
                if let Some(client) = host.clients.get_mut(client as usize) {
                    client.pairs.spoil(NotCounted::LostEvents);
                    host.of_any.spoil(NotCounted::LostEvents);
                }
            }
            // Another thread's ring has its own space.
            None => match lost.thread.and_then(|thread| host.dividing(Side::Host, thread.tid)) {
                Some(thread) => host.spoil_of(thread),
                None => host.spoil(),
            },
        }
    }

    /// Takes a place where events of a recording's CPU were lost, for a session's threads.
    fn lost_of_kernel(
        &mut self,
        (session, recording): (usize, usize),
        cpu: u32,
        time: Option<i64>,
    ) {
        let host = &mut self.hosts[session];
        // The host's kernel says what the threads of guests had, too; a guest's kernel nothing of another machine's.
        let side = host.recordings[recording].side;
        let is_its = |client: &&mut Client| side == Side::Host || client.side == Some(side);
        let clients = host.clients.iter_mut().filter(is_its);
        let vmm = host.vmm.values_mut().filter(|_| side == Side::Host);
        clients.map(|client| &mut client.pairs).chain(vmm).for_each(Pairs::spoil_by_kernel);
        let Some(time) = time else { return };
        // The gap began after the last event of that CPU.
        let from = host.recordings[recording].last(cpu);
        for thread in host.threads.iter_mut().filter(|t| t.recording == Some(recording)) {
            thread.account.skip(time);
        }
        for thread in 0..host.threads.len() {
            self.release(session, thread);
        }
        for index in self.store.since(from) {
            let sample = self.store.get(index);
            let is_in_gap = sample.end_ns() >= from;
            let is_of_session = usize::from(sample.session) == session && sample.state.is_counted();
            if is_in_gap && is_of_session && self.hosts[session].may_divide(side, sample) {
                self.drop_sample(index, NotCounted::LostEvents);
            }
        }
    }

    /// Takes a region that was counted out again.
    pub fn drop_sample(&mut self, index: u32, why: NotCounted) {
        let sample = self.store.get_mut(index);
        let state = std::mem::replace(&mut sample.state, State::Dropped);
        let group = &mut self.groups.all[sample.group as usize];
        group.not_counted[why as usize] += 1;
        if let Some(detail) = self.store.detail(index).filter(|_| state == State::Counted) {
            group.sums.remove(detail);
        }
    }

    /// Drops the regions of threads that were not recorded when they began or ended.
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
