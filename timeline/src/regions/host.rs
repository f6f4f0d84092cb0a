// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host of a session: its threads with their accounts, and the clients that they run.

use super::followed::{Followed, Tids};
use super::marks::Kinds;
use super::pairs::{Pairs, most_open};
use super::parts::{Account, MOST_INTERVALS};
use super::{Kind, unix_ns};
use crate::event::EventRef;
use crate::inputs::ctf::{ClockMaps, Domain, Session};
use crate::value::ValueRef;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most threads of a session that have an account, of some 600 bytes.
const MOST_THREADS: usize = 1 << 14;
/// Most intervals of all threads together, of 24 bytes each, and those of a thread in any case.
const INTERVALS: (usize, usize) = (1 << 17, 8);
/// Slots for the numbers of threads.
const TID_SLOTS: usize = 4096;
/// Most clients, more than any session has.
const MOST_CLIENTS: usize = 4096;
/// Most CPUs, more than any kernel has.
const MOST_CPUS: usize = 1 << 13;

/// A session while it is read.
#[derive(Debug)]
pub(super) struct Host {
    pub is_program: bool,
    /// Events, reference points and stamps so far.
    pub events: u64,
    /// Whether a thread of the VMM had an event before it entered the guest.
    pub runs: bool,
    /// The traces of the kernel that may show its threads.
    pub recordings: Vec<Recording>,
    pub threads: Vec<Thread>,
    pub by_tid: HashMap<u32, usize>,
    /// Indices of threads counted from 1, by bits of their numbers: they find most threads, and
    /// rule out most others.
    pub slots: Box<[u32; TID_SLOTS]>,
    /// By number.
    pub clients: Vec<Client>,
    /// Regions between two events of the VMM, by thread.
    pub vmm: HashMap<u32, Pairs>,
    /// Most open regions of a client.
    pub most_open: usize,
    pub jumps: Jumps,
}

/// The jumps of clocks.
#[derive(Debug)]
pub(super) struct Jumps {
    /// The client, `None` if it is the clock of all, and the times between which it jumped. Sorted.
    all: Vec<(Option<u32>, i64, i64)>,
}

/// A trace of the kernel, for a session.
#[derive(Debug)]
pub(super) struct Recording {
    pub kinds: Kinds,
    /// Time of the last event.
    end: i64,
    /// Time of the last event of each CPU so far.
    cpus: Vec<i64>,
    /// The threads without an account that it had an event of.
    seen: Tids,
    pub followed: Followed,
}

/// A thread of the host.
#[derive(Debug)]
pub(super) struct Thread {
    pub tid: u32,
    pub name: Option<Arc<str>>,
    pub account: Account,
    /// The client of a program that it is, and its process.
    owner: Option<(u32, u32)>,
    /// Whether programs of two processes say that it is theirs: it is nobody's then.
    pub is_disputed: bool,
    /// The recording that shows it, from its first event on: before that, it may not have been
    /// recorded.
    pub recording: Option<usize>,
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

impl Jumps {
    fn new(mut all: Vec<(Option<u32>, i64, i64)>) -> Jumps {
        all.sort_unstable();
        // Those of one clock can overlap: each then also has the time of those before it.
        for at in 1..all.len() {
            if all[at].0 == all[at - 1].0 {
                all[at].2 = all[at].2.max(all[at - 1].2);
            }
        }
        Jumps { all }
    }

    /// Returns whether the clock of a client jumped, or may have, in a time.
    pub fn has(&self, client: u32, from: i64, to: i64) -> bool {
        [None, Some(client)].iter().any(|of| {
            let after = self.all.partition_point(|(whose, begin, _)| (whose, begin) <= (of, &to));
            let last = after.checked_sub(1).map(|last| self.all[last]);
            last.is_some_and(|(whose, _, end)| whose == *of && end >= from)
        })
    }
}

impl Recording {
    /// Makes one with these kinds of events, of a trace with this last event and this filter.
    pub fn new(kinds: Kinds, end: i64, followed: Followed) -> Recording {
        Recording { kinds, end, cpus: Vec::new(), seen: Tids::default(), followed }
    }

    /// Notes the time of an event of a CPU.
    pub fn note(&mut self, cpu: usize, time: i64) {
        if cpu >= self.cpus.len() {
            if cpu >= MOST_CPUS {
                return;
            }
            self.cpus.resize(cpu + 1, i64::MIN);
        }
        self.cpus[cpu] = time;
    }

    /// Returns the time of a CPU's last event so far.
    pub fn last(&self, cpu: u32) -> i64 {
        self.cpus.get(cpu as usize).copied().unwrap_or(i64::MIN)
    }
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
            events: 0,
            runs: false,
            recordings: Vec::new(),
            threads: Vec::new(),
            by_tid: HashMap::new(),
            slots: Box::new([0; TID_SLOTS]),
            clients: Vec::new(),
            vmm: HashMap::new(),
            most_open: most_open(0),
            jumps: Jumps::new(jumps.collect()),
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
            self.most_open = most_open(self.clients.len() + self.vmm.len());
        }
        self.clients.get_mut(number)
    }

    /// Returns the open regions between events of a thread of the VMM; `None` if there are too many
    /// threads.
    pub fn vmm(&mut self, tid: u32) -> Option<&mut Pairs> {
        if self.vmm.len() == MOST_CLIENTS {
            return self.vmm.get_mut(&tid);
        }
        let pairs = self.vmm.entry(tid).or_default();
        Some(pairs)
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
        let account = Account::new(Kinds::default().exactness(self.runs));
        // The kernel's events may be of a time before its lease.
        let recording = self.recordings.iter().position(|recording| recording.seen.contains(tid));
        let (name, owner, is_disputed) = (None, None, false);
        self.threads.push(Thread { tid, name, account, owner, is_disputed, recording });
        let new = self.threads.len() - 1;
        self.set_exactness(new);
        self.by_tid.insert(tid, new);
        self.slots[tid as usize % TID_SLOTS] = self.threads.len() as u32;
        self.share_intervals();
        Some(new)
    }

    /// Divides the memory for intervals among the threads.
    fn share_intervals(&mut self) {
        let count = self.threads.len();
        let share = |count: usize| (INTERVALS.0 / count).clamp(INTERVALS.1, MOST_INTERVALS);
        // Each time their number doubles.
        let most = share(count.next_power_of_two());
        if count.is_power_of_two() && most < MOST_INTERVALS {
            self.threads.iter_mut().for_each(|thread| thread.account.keep_intervals(most / 2));
        }
        self.threads[count - 1].account.keep_intervals(most);
    }

    /// Returns a thread that has an account, if the recording has all of its events. In a session of
    /// programs, any thread may get one later: notes that the recording shows it.
    pub fn traced(&mut self, tid: i64, recording: usize) -> Option<usize> {
        let tid = u32::try_from(tid).ok()?;
        let thread = self.known(tid);
        let recording = &mut self.recordings[recording];
        if !recording.followed.has(tid) {
            return None;
        }
        if self.is_program && thread.is_none() {
            recording.seen.insert(tid);
        }
        thread
    }

    /// Iterates over the threads that no recording has all events of.
    pub fn unfollowed(&self) -> impl Iterator<Item = &Thread> {
        let is_followed = |tid| self.recordings.iter().any(|recording| recording.followed.has(tid));
        let unshown = self.threads.iter().filter(|thread| thread.recording.is_none());
        unshown.filter(move |thread| !self.recordings.is_empty() && !is_followed(thread.tid))
    }

    /// Returns a thread that has an account.
    pub fn known(&self, tid: u32) -> Option<usize> {
        let slot = self.slots[tid as usize % TID_SLOTS] as usize;
        if self.threads.get(slot.wrapping_sub(1)).is_some_and(|thread| thread.tid == tid) {
            return Some(slot - 1);
        }
        // Another thread has its slot.
        self.by_tid.get(&tid).copied().filter(|_| slot > 0)
    }

    /// Sets the kinds of events that the trace of a thread has in its account.
    fn set_exactness(&mut self, thread: usize) {
        let runs = self.runs;
        let thread = &mut self.threads[thread];
        let kinds = thread.recording.map_or(Kinds::default(), |at| self.recordings[at].kinds);
        thread.account.set_exactness(kinds.exactness(runs));
    }

    /// The same for all threads.
    pub fn set_all_exactness(&mut self) {
        (0..self.threads.len()).for_each(|thread| self.set_exactness(thread));
    }

    /// Returns whether nothing is known of a thread now. If so, its time so far is unattributed.
    pub fn is_unknown(&mut self, thread: usize, time: i64) -> bool {
        let thread = &mut self.threads[thread];
        let recording = thread.recording.and_then(|at| self.recordings.get(at));
        let is_unknown = recording.is_none_or(|recording| time > recording.end);
        if is_unknown {
            thread.account.skip(time);
        }
        is_unknown
    }

    /// Returns the kinds of events of a thread's recording.
    pub fn kinds(&self, thread: usize) -> Kinds {
        let recording = self.threads[thread].recording;
        recording.map_or(Kinds::default(), |at| self.recordings[at].kinds)
    }

    /// Counts no region that is open now: events of all clients may be lost.
    pub fn spoil(&mut self) {
        self.clients.iter_mut().for_each(|client| client.pairs.spoil(Kind::LostEvents));
        self.vmm.values_mut().for_each(|pairs| pairs.spoil(Kind::LostEvents));
    }

    /// Counts no region that is open now on a thread of the VMM: its own events are lost, and those of the
    /// clients that it serves.
    pub fn spoil_of(&mut self, thread: usize) {
        let pairs = self.clients.iter_mut().map(|client| &mut client.pairs);
        let own = self.vmm.get_mut(&self.threads[thread].tid);
        pairs.chain(own).for_each(|pairs| pairs.spoil_of(thread, Kind::LostEvents));
    }

    /// Gives a thread to a client of a program, by the client's own words. A thread that clients of two
    /// processes claim is nobody's from then on. In one process, a program has begun another one.
    fn claim(&mut self, number: u32, thread: Option<usize>, pid: u32) {
        let Some(client) = self.client(number) else { return };
        client.pid = pid;
        let old = client.thread.take();
        if let Some(old) = old.and_then(|old| self.threads.get_mut(old)) {
            old.owner = None;
        }
        let Some(at) = thread else { return };
        let thread = &mut self.threads[at];
        if let Some((other, of)) = thread.owner {
            self.clients[other as usize].thread = None;
            thread.is_disputed |= of != pid || pid == 0;
        }
        if !thread.is_disputed {
            thread.owner = Some((number, pid));
            self.clients[number as usize].thread = Some(at);
        }
    }

    /// Returns a thread's account for an event of a recording; `None` if another recording shows the
    /// thread: events that are in both count once.
    pub fn account(
        &mut self,
        thread: Option<usize>,
        recording: usize,
        time: i64,
    ) -> Option<&mut Account> {
        let at = thread?;
        let thread = self.threads.get_mut(at)?;
        if thread.recording != Some(recording) {
            if thread.recording.is_some_and(|other| time <= self.recordings[other].end) {
                return None;
            }
            thread.recording = Some(recording);
            thread.account.skip(time);
            self.set_exactness(at);
        }
        Some(&mut self.threads[at].account)
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
        _ => host.known(thread.tid),
    });
    if let Some(thread) = thread {
        host.threads[thread].name = Some(event.source.clone());
    }
    if let Some(number) = event.client.filter(|_| host.is_program) {
        let mut fields = event.fields.iter();
        let pid = fields.find_map(|(name, value)| match value {
            ValueRef::Unsigned(pid) if &**name == "pid" => u32::try_from(pid).ok(),
            _ => None,
        });
        host.claim(number, thread, pid.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::Jumps;

    #[test]
    fn a_jump_is_found_by_its_client_and_any_time_that_it_has() {
        let all = vec![(Some(2), 10, 90), (Some(2), 20, 30), (Some(7), 5, 6), (None, 200, 201)];
        let jumps = Jumps::new(all.clone());
        for client in [1, 2, 3, 7, 9] {
            for from in (0..250).step_by(5) {
                for to in (from..250).step_by(5) {
                    let expected = all.iter().any(|(of, begin, end)| {
                        of.is_none_or(|of| of == client) && *begin <= to && *end >= from
                    });
                    assert_eq!(jumps.has(client, from, to), expected, "{client} {from} {to}");
                }
            }
        }
    }
}
