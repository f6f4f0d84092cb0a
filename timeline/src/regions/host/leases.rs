// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Leases of programs' clients, and the threads that these leases name.

use super::super::unix_ns;
use super::{Host, MAX_LEASES, Side};
use crate::event::EventRef;
use crate::inputs::ctf::{ClockMaps, Domain, Session};
use crate::value::ValueRef;
use std::collections::HashMap;

/// How many threads there are, and the id of the first of these threads.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Counted {
    pub count: u64,
    pub first: u32,
}

impl Counted {
    fn add(&mut self, tid: u32) {
        if self.count == 0 {
            self.first = tid;
        }
        self.count += 1;
    }
}

impl Host {
    /// Gives a thread to a client of a program, as the client's lease says. The first client keeps the thread
    /// until the last event of the client's lease. If a second lease names the thread before this event, the
    /// second lease's client gets no thread, and the time of this second client is unknown, even if the
    /// second lease is right. After the last event of the first lease, the thread can be given to another
    /// client, because the program may have begun another lease, or the kernel may have used the thread's
    /// number again.
    fn claim(&mut self, number: u32, thread: Option<usize>, time: i64) {
        let Some(client) = self.client(number) else { return };
        if let Some(old) = client.thread.take() {
            (self.threads[old].owner, self.threads[old].is_claimed) = (None, false);
        }
        let Some(at) = thread else { return };
        let thread = &mut self.threads[at];
        if time < thread.disputed_until {
            return;
        }
        if let Some(other) = thread.owner {
            if self.clients[other as usize].until > time {
                thread.is_claimed = true;
                self.claimed.add(thread.tid);
                return self.check(at);
            }
            self.clients[other as usize].thread = None;
        }
        thread.owner = Some(number);
        (thread.is_claimed, thread.account.is_contradicted) = (false, false);
        self.clients[number as usize].thread = Some(at);
    }

    /// Takes a thread away from its client if another lease has named the thread and the events of the client
    /// contradict the kernel's events. Such a thread may belong to the other client.
    pub(super) fn check(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        if thread.is_claimed
            && thread.account.is_contradicted
            && let Some(owner) = thread.owner.take()
        {
            let owner = &mut self.clients[owner as usize];
            owner.thread = None;
            thread.disputed_until = owner.until;
            self.disputed.add(thread.tid);
        }
    }
}

/// Processes a lease record. The record says who holds a ring of the VMM, or a client of a program.
///
/// Each thread of the VMM that has a ring gets an account. If intervals are kept, each thread of a programs'
/// host gets an account for its lane. If only a guest's kernel was recorded, the host's threads get no
/// account, because a guest's kernel does not show the host's threads.
pub(in super::super) fn lease(host: &mut Host, event: &EventRef<'_>) {
    let numbered = |wanted: &str| {
        let mut fields = event.fields.iter();
        fields.find_map(|(name, value)| match value {
            ValueRef::Unsigned(value) if **name == *wanted => u32::try_from(value).ok(),
            _ => None,
        })
    };
    // Without a process, the field `tid` holds the number of the guest's CPU.
    let of_process = || {
        let is_thread =
            event.source.client.is_some() && numbered("pid").is_some_and(|pid| pid != 0);
        numbered("tid").filter(|tid| is_thread && *tid != 0)
    };
    let of_guest = !host.is_program && of_process().is_some();
    // The thread of a guest's program is a thread of the guest.
    let own = || of_process().filter(|_| host.is_program);
    let tid = event.thread.map(|thread| thread.tid).or_else(own);
    let clock = event.reading.map(|reading| reading.clock);
    let side = host.side(clock);
    let thread = tid.and_then(|tid| match (event.source.client, host.is_program) {
        (Some(_), true) => host.thread(side?, tid),
        (None, _) if host.has_vmm => host.thread(Side::Host, tid),
        (None, true) if host.has_guests => None,
        (None, true) if host.has_log => host.thread_for_lanes(tid),
        _ => host.known(Side::Host, tid),
    });
    let name = |host: &mut Host, thread: Option<usize>| {
        if let Some(thread) = thread.and_then(|thread| host.threads.get_mut(thread)) {
            thread.name = Some(event.source.text.clone());
        }
    };
    if !host.is_program || event.source.client.is_none() {
        name(host, thread);
    }
    let Some(number) = event.source.client else {
        if let (None, false, Some(tid)) = (thread, host.is_program, tid.filter(|tid| *tid != 0)) {
            host.without_account.add(tid);
        }
        return;
    };
    let token = event.fields.iter().find_map(|(name, value)| match value {
        ValueRef::Hex(token) if &**name == "token" => Some(token),
        _ => None,
    });
    let is_program = host.is_program;
    let until = token.and_then(|token| host.lease_ends.get(&(number, token)).copied());
    if of_guest && !host.is_served {
        host.modes.get_or_insert_default();
    }
    let Some(client) = host.client(number) else { return };
    (client.side, client.clock) = (side, clock);
    client.process = numbered("pid").unwrap_or_default();
    client.names_thread = is_program && tid.is_some();
    client.shares_vcpus = of_guest;
    // If nothing says when the lease ends, the lease lasts to the end of the recording.
    client.until = until.unwrap_or(i64::MAX);
    // A lease record with the same token belongs to the same lease, and does not count again.
    if client.leases == 0 || client.token != token {
        client.leases = client.leases.saturating_add(1);
        client.token = token;
    }
    if is_program {
        match (thread, tid.filter(|tid| *tid != 0)) {
            (None, Some(tid)) if side.is_none() => host.without_guest.add(tid),
            (None, Some(tid)) => host.without_account.add(tid),
            _ => {}
        }
        host.claim(number, thread, event.ts_ns);
        let own = host.clients[number as usize].thread;
        name(host, own);
    }
}

/// Returns the times of the last events of programs' leases.
pub(super) fn lease_ends(session: &Session, maps: &ClockMaps) -> HashMap<(u32, u64), i64> {
    let mut ends = HashMap::new();
    let streams = session.streams().iter().filter(|s| s.domain == Domain::Guest);
    for stream in streams {
        for (token, clock, end) in stream.segments.iter().flat_map(|segment| &segment.leases) {
            let Some(clock) = session.json().clock(*clock) else { continue };
            let end = match clock.domain {
                Domain::Host => session.host_time(clock, *end),
                Domain::Guest => match maps.get(clock.id, stream.client) {
                    Some(mut map) => map.at(*end).0,
                    None => continue,
                },
            };
            let end = unix_ns(session, end);
            if ends.len() < MAX_LEASES || ends.contains_key(&(stream.client, *token)) {
                let last = ends.entry((stream.client, *token)).or_insert(end);
                *last = end.max(*last);
            }
        }
    }
    ends
}
