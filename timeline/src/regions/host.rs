// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host of a session: its threads with their accounts, and the clients that they run.

use super::marks::Kinds;
use super::pairs::{Cut, Open, Pairs};
use super::parts::{Account, Mark};
use super::{Kind, unix_ns};
use crate::event::EventRef;
use crate::inputs::ctf::{ClockMaps, Domain, Session};
use crate::value::ValueRef;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most threads of a session that have an account.
const MOST_THREADS: usize = 1 << 15;
/// Slots for the numbers of threads.
const TID_SLOTS: usize = 4096;
/// Most clients, more than any session has.
const MOST_CLIENTS: usize = 4096;
/// A session while it is read.
#[derive(Debug)]
pub(super) struct Host {
    pub is_program: bool,
    pub kinds: Kinds,
    /// Whether a thread of the VMM had an event before it entered the guest.
    pub runs: bool,
    /// Time of the kernel's last event; `None` without a kernel's trace.
    pub end: Option<i64>,
    pub threads: Vec<Thread>,
    pub by_tid: HashMap<u32, usize>,
    /// Indices of threads counted from 1, by bits of their numbers: they find most threads, and
    /// rule out most others.
    pub slots: Box<[u32; TID_SLOTS]>,
    /// By number.
    pub clients: Vec<Client>,
    /// Regions between two events of the VMM, by thread.
    pub vmm: HashMap<u32, Pairs>,
    /// Time of the last event of each CPU.
    pub cpus: Vec<i64>,
    /// Jumps of clocks: of one client, or of all.
    pub jumps: Vec<(Option<u32>, i64, i64)>,
}

/// A thread of the host.
#[derive(Debug)]
pub(super) struct Thread {
    pub tid: u32,
    pub name: Option<Arc<str>>,
    pub account: Account,
    /// Its regions whose end waits for the account.
    pub closing: Vec<Closing>,
    /// Whether the kernel's trace has an event of it already: before that, it may not have been traced.
    pub is_covered: bool,
}

/// A client of the guest.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub pairs: Pairs,
    /// The threads that served it, each from a time on, and the last time of the one before.
    pub seats: Vec<(i64, i64, usize)>,
    pub seat: usize,
    /// Thread of a program.
    pub thread: Option<usize>,
    /// Process of a program, 0 if unknown.
    pub pid: u32,
}

/// A region whose end waits for the account.
#[derive(Debug)]
pub(super) struct Closing {
    pub open: Open,
    pub session: usize,
    pub client: u32,
    pub end: i64,
    pub cut: Cut,
}

impl Host {
    pub fn new(session: &Session, maps: &ClockMaps) -> Host {
        let json = session.json();
        let jumps = maps.iter().flat_map(|(_, client, map)| {
            map.jumps().iter().map(move |jump| {
                let (a, b) = (unix_ns(session, jump.before.y), unix_ns(session, jump.after.y));
                (client, a.min(b), a.max(b))
            })
        });
        let mut host = Host {
            is_program: json.programs,
            kinds: Kinds::default(),
            runs: false,
            end: None,
            threads: Vec::new(),
            by_tid: HashMap::new(),
            slots: Box::new([0; TID_SLOTS]),
            clients: Vec::new(),
            vmm: HashMap::new(),
            cpus: Vec::new(),
            jumps: jumps.collect(),
        };
        let streams = session.streams().iter().filter(|s| s.domain == Domain::Guest);
        let clients = streams.map(|s| s.client).chain(maps.served());
        for number in clients.collect::<BTreeSet<u32>>() {
            let mut client = Client::default();
            // The threads of a program's host serve it and do not run it.
            let seats = if json.programs { &[] } else { maps.seats(number) };
            let mut before = i64::MIN;
            for seat in seats {
                let Some(thread) = host.thread(seat.tid) else { break };
                client.seats.push((unix_ns(session, seat.first), before, thread));
                before = unix_ns(session, seat.last);
            }
            if let Some(place) = host.client(number) {
                *place = client;
            }
        }
        host
    }

    /// Returns a client; `None` if its number is too large.
    pub fn client(&mut self, number: u32) -> Option<&mut Client> {
        let number = number as usize;
        if number >= self.clients.len() && number < MOST_CLIENTS {
            self.clients.resize_with(number + 1, Client::default);
        }
        self.clients.get_mut(number)
    }

    /// Returns the process of a client, 0 if it is unknown.
    pub fn pid(&self, client: u32) -> u32 {
        self.clients.get(client as usize).map_or(0, |client| client.pid)
    }

    /// Returns a thread, which gets an account if it has none.
    pub fn thread(&mut self, tid: u32) -> Option<usize> {
        if let Some(thread) = self.by_tid.get(&tid) {
            return Some(*thread);
        }
        if self.threads.len() == MOST_THREADS || tid == 0 {
            return None;
        }
        let account = Account::new(self.kinds.exactness(self.runs));
        self.threads.push(Thread {
            tid,
            name: None,
            account,
            closing: Vec::new(),
            is_covered: false,
        });
        self.by_tid.insert(tid, self.threads.len() - 1);
        self.slots[tid as usize % TID_SLOTS] = self.threads.len() as u32;
        Some(self.threads.len() - 1)
    }

    /// Returns a thread that has an account; in a session of programs, any thread.
    pub fn traced(&mut self, tid: i64) -> Option<usize> {
        let tid = u32::try_from(tid).ok()?;
        let slot = self.slots[tid as usize % TID_SLOTS] as usize;
        if self.threads.get(slot.wrapping_sub(1)).is_some_and(|thread| thread.tid == tid) {
            return Some(slot - 1);
        }
        match self.is_program {
            true => self.thread(tid),
            // Another thread has its slot.
            false => self.by_tid.get(&tid).copied().filter(|_| slot > 0),
        }
    }

    pub fn set_exactness(&mut self) {
        let exactness = self.kinds.exactness(self.runs);
        self.threads.iter_mut().for_each(|t| t.account.set_exactness(exactness));
    }

    /// Returns whether nothing is known of a thread now. If so, its time so far is unattributed.
    pub fn is_unknown(&mut self, thread: usize, time: i64) -> bool {
        let thread = &mut self.threads[thread];
        let is_unknown = !thread.is_covered || self.end.is_none_or(|end| time > end);
        if is_unknown {
            thread.account.skip(time);
        }
        is_unknown
    }

    /// Counts no region that is open now: events of all clients may be lost.
    pub fn spoil(&mut self) {
        self.clients.iter_mut().for_each(|client| client.pairs.spoil(Kind::LostEvents));
        self.vmm.values_mut().for_each(|pairs| pairs.spoil(Kind::LostEvents));
    }

    /// Passes a kernel's mark to a thread's account.
    pub fn mark(&mut self, thread: Option<usize>, time: i64, mark: Mark) {
        let Some(thread) = thread.and_then(|thread| self.threads.get_mut(thread)) else { return };
        if !std::mem::replace(&mut thread.is_covered, true) {
            thread.account.skip(time);
        }
        thread.account.mark(time, mark);
    }
}

impl Client {
    /// Returns the thread that runs the client at a time.
    pub fn thread(&mut self, time: i64) -> Option<usize> {
        if self.seats.is_empty() {
            return self.thread;
        }
        while self.seats.get(self.seat + 1).is_some_and(|(from, ..)| time >= *from) {
            self.seat += 1;
        }
        Some(self.seats[self.seat].2)
    }

    /// Returns whether the thread changed in a time, as far as its reference points show.
    pub fn moved(&self, from: i64, to: i64) -> bool {
        // Few; those before the time are skipped.
        let changes = self.seats.get(1..).unwrap_or_default();
        let first = changes.partition_point(|(first, ..)| *first < from);
        changes.get(first).is_some_and(|(_, before, _)| *before <= to)
    }
}

/// Takes a lease record: who holds a ring of the VMM, or a client of a program.
///
/// For lanes, all threads of the VMM that have a ring get an account.
pub(super) fn lease(host: &mut Host, event: &EventRef<'_>, for_lanes: bool) {
    let thread = event.thread.and_then(|thread| match (event.client, host.is_program) {
        (Some(_), true) => host.thread(thread.tid),
        (None, _) if for_lanes => host.thread(thread.tid),
        _ => host.traced(thread.tid.into()),
    });
    if let Some(thread) = thread {
        host.threads[thread].name = Some(event.source.clone());
    }
    let Some(number) = event.client.filter(|_| host.is_program) else { return };
    let mut fields = event.fields.iter();
    let pid = fields.find_map(|(name, value)| match value {
        ValueRef::Unsigned(pid) if &**name == "pid" => u32::try_from(pid).ok(),
        _ => None,
    });
    if let Some(client) = host.client(number) {
        (client.thread, client.pid) = (thread, pid.unwrap_or(0));
    }
}
