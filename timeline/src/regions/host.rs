// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host of a session: its threads with their accounts, and the clients that they run.

mod jumps;
mod leases;

pub(super) use leases::{Counted, lease};

use super::account::{Account, MAX_WAITING, Switches};
use super::cpus::MAX_CPUS;
use super::followed::{Followed, Tids};
use super::marks::Kinds;
use super::modes::GuestModes;
use super::pairs::{Open, Pairs, most_open};
use super::parts::Part;
use super::spans::Key;
use super::store::{Holder, Sample};
use super::tally::Tally;
use super::vcpus::{Unplaced, Vcpus};
use super::walked::Walked;
use super::{NotCounted, unix_ns};
use crate::event::EventRef;
use crate::inputs::ctf::{ClockMaps, Domain, MAX_CLIENTS, Session, SessionJson};
use crate::inputs::kernel::KernelTrace;
use jumps::Jumps;
use leases::lease_ends;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most threads of a session that have an account, of some 600 bytes.
const MAX_THREADS: usize = 1 << 14;
/// Threads that are looked at to find one whose account is free.
const MAX_TRIED: usize = 64;
/// Most intervals of all threads together that wait, of some 60 bytes each, and those of a thread in any case.
const WAITING: (usize, usize) = (1 << 19, 32);
/// Slots for the numbers of threads.
const TID_SLOTS: usize = 4096;
/// Most leases whose ends are kept, of some 20 bytes.
const MAX_LEASES: usize = 1 << 17;

/// The machine whose kernel schedules a thread: each has threads with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Host,
    /// The guest whose threads read this clock. Each guest has a clock of its own, and gets another one at a reset.
    Guest(u32),
}

impl Side {
    /// Returns the machine that a kernel's trace shows.
    pub fn of(trace: &KernelTrace) -> Side {
        match trace.is_of_guest() {
            true => Side::Guest(trace.guest_clock().unwrap_or_default()),
            false => Side::Host,
        }
    }

    /// Returns the clock of a guest.
    pub fn guest(self) -> Option<u32> {
        match self {
            Side::Guest(clock) => Some(clock),
            Side::Host => None,
        }
    }
}

/// A session while it is read.
#[derive(Debug)]
pub(super) struct Host {
    /// Whether its clients are threads that the kernel's events show: of programs of the host, or of a guest
    /// whose own kernel was recorded.
    pub is_program: bool,
    /// Whether these are of guests, and the host's kernel shows none of them.
    pub has_guests: bool,
    /// The guests whose threads are the clients that read a clock, by clock.
    guests: HashMap<u32, Side>,
    /// When vCPUs were out of guest mode, if its clients are threads of a guest whose kernel was not recorded.
    pub modes: Option<GuestModes>,
    /// What the host's kernel proves of the CPUs that these have, if it shows which of its threads run them.
    pub vcpus: Option<Vcpus>,
    /// Whether the recording of the host's kernel may show these.
    pub has_hosts: bool,
    /// Whether threads of the VMM have accounts.
    pub has_vmm: bool,
    /// Whether a process beside the VMM answered the reference points: the threads that did so run no client.
    pub is_served: bool,
    /// Regions of clients whose host thread is not known.
    pub without_thread: u64,
    /// Events and reference points so far.
    pub events: u64,
    /// Whether a thread of the VMM had an event before it entered the guest.
    pub runs: bool,
    /// Whether all intervals of its threads are kept, also of those that have a lane only.
    pub has_log: bool,
    /// The traces of the kernel that may show its threads.
    pub recordings: Vec<Recording>,
    pub threads: Vec<Thread>,
    pub by_tid: HashMap<(Side, u32), usize>,
    /// Indices of threads counted from 1, by bits of their numbers: they find most threads, and
    /// rule out most others.
    pub slots: Box<[u32; TID_SLOTS]>,
    /// By number.
    pub clients: Vec<Client>,
    /// Regions between two events of the VMM, by thread.
    pub vmm: HashMap<u32, Pairs>,
    /// Regions that begin and end on any clients.
    pub of_any: Pairs,
    /// Most open regions of a client.
    pub most_open: usize,
    pub jumps: Jumps,
    /// Times of the last events of programs' leases, by client and token.
    lease_ends: HashMap<(u32, u64), i64>,
    /// Leases that named a thread which another program held.
    pub claimed: Counted,
    /// Threads that were taken away from a program for that.
    pub disputed: Counted,
    /// Leases whose threads have no account, as there are too many.
    pub without_account: Counted,
    /// Leases of clients that may be of any of several guests.
    pub without_guest: Counted,
    /// Switches of the threads whose accounts are others' now.
    switches: Switches,
    /// The thread at which the next search for an account that is free begins.
    next_free: usize,
}

/// A trace of the kernel, for a session.
#[derive(Debug)]
pub(super) struct Recording {
    pub side: Side,
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
    pub side: Side,
    pub tid: u32,
    pub name: Option<Arc<str>>,
    pub account: Account,
    pub tally: Tally,
    /// Of the thread of a guest that the host's kernel divides: its proven intervals that wait for that.
    pub unplaced: Option<Unplaced>,
    /// Its critical path, while it has regions whose paths are wanted.
    pub walked: Option<Box<Walked>>,
    /// Whether it has an account for its lane only: no region's time is divided by it.
    pub for_lanes: bool,
    /// The client of a program that it is.
    owner: Option<u32>,
    /// Whether another lease named it while its client held it.
    is_claimed: bool,
    /// Time until which it is nobody's, as this client's events contradicted the kernel's, too.
    disputed_until: i64,
    /// The recording that shows it, from its first event on: before that, it may not have been
    /// recorded.
    pub recording: Option<usize>,
}

/// A client of the guest.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub pairs: Pairs,
    /// The threads that served it, each from a time on, and the last time of the one before. `None` of several
    /// in turns, and of one that has no account.
    pub seats: Vec<(i64, i64, Option<usize>)>,
    pub seat: usize,
    /// Thread of a program, and whether the client's lease names one.
    pub thread: Option<usize>,
    names_thread: bool,
    /// The guest whose thread it is by its last lease, and the clock that it read.
    pub side: Option<Side>,
    pub clock: Option<u32>,
    /// Whether it is a thread of a guest's kernel, which has vCPUs in turns with others.
    pub shares_vcpus: bool,
    /// Number of the process of the last lease; 0 without one.
    process: u32,
    /// Token of the last lease.
    token: Option<u64>,
    /// Time of the last event of its lease.
    until: i64,
    /// Time of its last event so far.
    pub last: i64,
    /// Number of leases.
    leases: u32,
}

impl Recording {
    /// Makes one with these kinds of events, of a trace with this last event and this filter.
    pub fn new(side: Side, kinds: Kinds, end: i64, followed: Followed) -> Recording {
        let (cpus, seen) = (Vec::new(), Tids::default());
        Recording { side, kinds, end, cpus, seen, followed }
    }

    /// Notes the time of an event of a CPU.
    pub fn note(&mut self, cpu: usize, time: i64) {
        if cpu >= self.cpus.len() {
            if cpu >= MAX_CPUS {
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
    /// `kernels`: the guests that divide its clients by recordings of their kernels. `has_hosts`: the recording of the host's
    /// kernel may show their CPUs.
    pub fn new(
        session: &Session,
        maps: &ClockMaps,
        kernels: &BTreeSet<u32>,
        has_hosts: bool,
        has_log: bool,
    ) -> Host {
        let json = session.json();
        let has_guests = !kernels.is_empty();
        let is_program = json.programs || has_guests;
        let jumps = maps.iter().flat_map(|(clock, client, map)| {
            map.jumps().iter().map(move |jump| {
                let (a, b) = (unix_ns(session, jump.before.y), unix_ns(session, jump.after.y));
                ((clock, client), a.min(b), a.max(b))
            })
        });
        let vcpus = if has_guests && has_hosts { Vcpus::of(maps) } else { None };
        let has_vmm = !is_program || vcpus.is_some() || has_guests && has_hosts && !json.served;
        let mut host = Host {
            is_program,
            has_guests,
            guests: guests(json, kernels),
            modes: None,
            vcpus,
            has_hosts,
            has_vmm,
            is_served: json.served,
            without_thread: 0,
            events: 0,
            runs: false,
            has_log,
            recordings: Vec::new(),
            threads: Vec::new(),
            by_tid: HashMap::new(),
            slots: Box::new([0; TID_SLOTS]),
            clients: Vec::new(),
            vmm: HashMap::new(),
            of_any: Pairs::default(),
            most_open: most_open(0),
            jumps: Jumps::new(jumps.collect()),
            lease_ends: if is_program { lease_ends(session, maps) } else { HashMap::new() },
            claimed: Counted::default(),
            disputed: Counted::default(),
            without_account: Counted::default(),
            without_guest: Counted::default(),
            switches: Switches::default(),
            next_free: 0,
        };
        for tid in host.vcpus.iter().flat_map(Vcpus::threads).collect::<Vec<u32>>() {
            host.thread(Side::Host, tid);
        }
        let streams = session.streams().iter().filter(|s| s.domain == Domain::Guest);
        let clients = streams.map(|s| s.client).chain(maps.served());
        for number in clients.collect::<BTreeSet<u32>>() {
            let mut client = Client::default();
            // The threads of a program's host, and of a server, serve it and do not run it.
            let seats = if !has_vmm || json.served { &[] } else { maps.seats(number) };
            let mut before = i64::MIN;
            for seat in seats {
                let thread = seat.tid.and_then(|tid| host.thread(Side::Host, tid));
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
        if number >= self.clients.len() && number < MAX_CLIENTS as usize {
            self.clients.resize_with(number + 1, Client::default);
            self.most_open = most_open(self.clients.len() + self.vmm.len());
        }
        self.clients.get_mut(number)
    }

    /// Returns the open regions between events of a thread of the VMM; `None` if there are too many
    /// threads.
    pub fn vmm(&mut self, tid: u32) -> Option<&mut Pairs> {
        if self.vmm.len() == MAX_CLIENTS as usize {
            return self.vmm.get_mut(&tid);
        }
        let pairs = self.vmm.entry(tid).or_default();
        Some(pairs)
    }

    /// Returns the holder of a client.
    pub fn holder(&self, client: u32) -> Holder {
        let leases = self.clients.get(client as usize).map_or(0, |client| client.leases);
        Holder::new(client, leases)
    }

    /// Takes all open regions.
    pub fn take_open(&mut self) -> Vec<Open> {
        let clients = self.clients.iter_mut().map(|client| &mut client.pairs);
        let all = clients.chain(self.vmm.values_mut()).chain([&mut self.of_any]);
        all.flat_map(Pairs::take).collect()
    }

    /// Returns the span with a number that an event of a client means. An event of the VMM has a number that no client has.
    pub fn span(&self, session: usize, client: u32, id: u64) -> Key {
        let process = self.clients.get(client as usize).map(|client| client.process);
        Key { session, process, id }
    }

    /// Returns the machine whose threads the clients are that read a clock, if they are threads; `None` if it may be any of
    /// several guests.
    pub fn side(&self, clock: Option<u32>) -> Option<Side> {
        match self.has_guests {
            true => self.guests.get(&clock.unwrap_or_default()).copied(),
            false => Some(Side::Host),
        }
    }

    /// Returns whether a client is a thread of a guest that the host's kernel alone says something of.
    pub fn shares_vcpus(&self, client: u32) -> bool {
        let client = self.clients.get(client as usize);
        self.modes.is_some() && client.is_some_and(|client| client.shares_vcpus)
    }

    /// Returns whether a machine's kernel says something of a region's time.
    pub fn may_divide(&self, side: Side, sample: &Sample) -> bool {
        if side == Side::Host {
            return true;
        }
        let thread = self.threads.get(usize::from(sample.thread)).map(|thread| Some(thread.side));
        let client = || self.clients.get(sample.client()? as usize).map(|client| client.side);
        // One of any clients may be on each.
        thread.or_else(client).is_none_or(|of| of == Some(side))
    }

    /// Returns whether the host's kernel divides the time of a machine's threads.
    pub fn divides(&self, side: Side) -> bool {
        self.vcpus.as_ref().zip(side.guest()).is_some_and(|(vcpus, clock)| vcpus.has_guest(clock))
    }

    /// Returns a thread, which gets an account if it has none.
    pub fn thread(&mut self, side: Side, tid: u32) -> Option<usize> {
        if let Some(thread) = self.by_tid.get(&(side, tid)) {
            self.threads[*thread].for_lanes = false;
            return Some(*thread);
        }
        if tid == 0 {
            return None;
        }
        let is_vmm = side == Side::Host && self.has_vmm;
        let own = if is_vmm { Part::Guest } else { Part::OnCpu };
        let account = Account::new(own, Kinds::default().exactness(self.runs));
        // The kernel's events may be of a time before its lease.
        let has_seen = |of: &Recording| of.side == side && of.seen.contains(tid);
        let recording = self.recordings.iter().position(has_seen);
        let thread = Thread {
            side,
            tid,
            name: None,
            account,
            tally: Tally::new(self.has_log),
            unplaced: side.guest().filter(|_| self.divides(side)).map(Unplaced::of),
            walked: None,
            for_lanes: false,
            owner: None,
            is_claimed: false,
            disputed_until: i64::MIN,
            recording,
        };
        let new = if self.threads.len() < MAX_THREADS {
            self.threads.push(thread);
            self.share_waiting();
            self.threads.len() - 1
        } else {
            let at = self.free_thread()?;
            let old = &mut self.threads[at];
            self.by_tid.remove(&(old.side, old.tid));
            if let (Some(vcpus), Some(unplaced)) = (&mut self.vcpus, &mut old.unplaced) {
                unplaced.clear(vcpus);
            }
            self.switches += self.threads[at].account.switches;
            self.threads[at] = thread;
            self.threads[at].account.set_most(WAITING.1);
            at
        };
        self.set_exactness(new);
        self.by_tid.insert((side, tid), new);
        self.slots[slot(side, tid)] = new as u32 + 1;
        Some(new)
    }

    /// Returns a thread of the host, which gets an account for its lane if it has none.
    pub fn thread_for_lanes(&mut self, tid: u32) -> Option<usize> {
        self.known(Side::Host, tid).or_else(|| {
            let thread = self.thread(Side::Host, tid)?;
            self.threads[thread].for_lanes = true;
            Some(thread)
        })
    }

    /// Gives a thread of the host an account for its lane, before all events.
    pub fn add_lane(&mut self, tid: u32, is_vcpu: bool) {
        if let Some(at) = self.thread_for_lanes(tid)
            && self.threads[at].for_lanes
        {
            let own = if is_vcpu { Part::Guest } else { Part::OnCpu };
            self.threads[at].account = Account::new(own, Kinds::default().exactness(self.runs));
        }
    }

    /// Returns a thread by which regions are divided.
    pub fn dividing(&self, side: Side, tid: u32) -> Option<usize> {
        self.known(side, tid).filter(|thread| !self.threads[*thread].for_lanes)
    }

    /// Iterates over the threads by which regions are divided.
    pub fn all_dividing(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(|thread| !thread.for_lanes)
    }

    /// Returns a thread of a program that ended, whose account nothing needs any more.
    fn free_thread(&mut self) -> Option<usize> {
        if !self.is_program {
            return None;
        }
        // A few at a time, so that each lease costs little.
        (0..MAX_TRIED).find_map(|_| {
            let at = self.next_free % self.threads.len();
            self.next_free = at + 1;
            let thread = &self.threads[at];
            let is_client = self.has_guests == thread.side.guest().is_some();
            let is_used = thread.walked.is_some() || !thread.tally.is_unused();
            let is_free = is_client && thread.owner.is_none() && !is_used;
            is_free.then_some(at)
        })
    }

    /// Divides the memory for intervals that wait among the threads.
    fn share_waiting(&mut self) {
        let count = self.threads.len();
        let most = (WAITING.0 / count.next_power_of_two()).clamp(WAITING.1, MAX_WAITING);
        // Each time their number doubles.
        let first = if count.is_power_of_two() { 0 } else { count - 1 };
        self.threads[first..].iter_mut().for_each(|thread| thread.account.set_most(most));
    }

    /// Returns a thread that has an account, if the recording has all of its events. Any thread may get one
    /// later, with its lease: notes that the recording shows it.
    pub fn traced(&mut self, tid: i64, recording: usize) -> Option<usize> {
        let tid = u32::try_from(tid).ok()?;
        let thread = self.known(self.recordings[recording].side, tid);
        let recording = &mut self.recordings[recording];
        if !recording.followed.has(tid) {
            return None;
        }
        if thread.is_none() {
            recording.seen.insert(tid);
        }
        thread
    }

    /// Returns a thread that this recording shows now.
    pub fn shown(&self, tid: u32, recording: usize) -> Option<usize> {
        let thread = self.known(self.recordings.get(recording)?.side, tid);
        thread.filter(|thread| self.threads[*thread].recording == Some(recording))
    }

    /// Returns the numbers of all threads' switches.
    pub fn switches(&self) -> Switches {
        let mut all = self.switches;
        self.all_dividing().for_each(|thread| all += thread.account.switches);
        all
    }

    /// Returns how often intervals that waited were too many.
    pub fn given_up(&self) -> u64 {
        let unplaced = self.threads.iter().filter_map(|thread| thread.unplaced.as_ref());
        let cut = unplaced.filter(|unplaced| unplaced.is_cut).count() as u64;
        self.switches().given_up + cut
    }

    /// Iterates over the threads that no recording has all events of.
    pub fn unfollowed(&self) -> impl Iterator<Item = &Thread> {
        let is_followed = |thread: &Thread| {
            let mut of_side = self.recordings.iter().filter(|of| of.side == thread.side);
            of_side.any(|recording| recording.followed.has(thread.tid))
        };
        let unshown = self.all_dividing().filter(|thread| thread.recording.is_none());
        unshown.filter(move |thread| !self.recordings.is_empty() && !is_followed(thread))
    }

    /// Returns a thread that has an account.
    pub fn known(&self, side: Side, tid: u32) -> Option<usize> {
        let slot = self.slots[slot(side, tid)] as usize;
        let is_it = |thread: &Thread| (thread.side, thread.tid) == (side, tid);
        if self.threads.get(slot.wrapping_sub(1)).is_some_and(is_it) {
            return Some(slot - 1);
        }
        // Another thread has its slot.
        self.by_tid.get(&(side, tid)).copied().filter(|_| slot > 0)
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

    /// Returns whether nothing is known of a thread now. If so, its time so far is unknown.
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
        self.clients.iter_mut().for_each(|client| client.pairs.spoil(NotCounted::LostEvents));
        self.vmm.values_mut().for_each(|pairs| pairs.spoil(NotCounted::LostEvents));
        self.of_any.spoil(NotCounted::LostEvents);
    }

    /// Counts no region that is open now on a thread of the VMM: its own events are lost, and those of the
    /// clients that it serves.
    pub fn spoil_of(&mut self, thread: usize) {
        let pairs = self.clients.iter_mut().map(|client| &mut client.pairs);
        let own = self.vmm.get_mut(&self.threads[thread].tid);
        pairs.chain(own).for_each(|pairs| pairs.spoil_of(thread, NotCounted::LostEvents));
        self.of_any.spoil(NotCounted::LostEvents);
    }

    /// Returns whether an event has the time of the clock that its threads' recordings have.
    pub fn is_exact(&self, event: &EventRef<'_>) -> bool {
        let clock = event.reading.map(|reading| reading.clock);
        let mut clocks = self.recordings.iter().filter_map(|recording| recording.side.guest());
        event.bound_ns() == Some(0) || clocks.any(|of_kernel| Some(of_kernel) == clock)
    }

    /// Takes a client's own event for the account of its thread. `clock` is the guest's clock that stamps it.
    pub fn guest(&mut self, at: usize, time: i64, bound: Option<u64>, clock: Option<u32>) {
        let thread = &mut self.threads[at];
        // Their order is that of the clock, whatever its error against the host's is.
        let is_one = thread.recording.is_some() && clock.is_some() && clock == thread.side.guest();
        thread.account.guest(time, if is_one { Some(0) } else { bound });
        self.check(at);
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

/// Returns the guests whose threads are the clients that read a clock, by clock. A program can read another clock than the
/// recording of its kernel has: it is of the only guest in that epoch.
fn guests(json: &SessionJson, kernels: &BTreeSet<u32>) -> HashMap<u32, Side> {
    let epoch = |id: u32| json.clock(id).map(|clock| clock.epoch);
    let clocks = json.clocks.iter().map(|clock| clock.id).chain(kernels.iter().copied());
    let guest = |clock: u32| {
        let mut of_epoch = kernels.iter().filter(|kernel| epoch(**kernel) == epoch(clock));
        match kernels.contains(&clock) {
            true => Some(clock),
            false => of_epoch.next().copied().filter(|_| of_epoch.next().is_none()),
        }
    };
    clocks.filter_map(|clock| Some((clock, Side::Guest(guest(clock)?)))).collect()
}

/// Returns the slot of a thread. Most numbers of a guest's threads are small, as are those of the host's.
fn slot(side: Side, tid: u32) -> usize {
    let of_guest = side.guest().map_or(0, |clock| TID_SLOTS / 2 + clock as usize * 61);
    (tid as usize + of_guest) % TID_SLOTS
}

impl Thread {
    /// Notes that a region begins or ends now. Returns whether all intervals before it are in the tally.
    pub fn border(&mut self, time: i64) -> bool {
        self.account.border(time) && self.unplaced.as_ref().is_none_or(Unplaced::is_empty)
    }
}

impl Client {
    /// Returns the thread that runs the client at a time.
    pub fn thread(&mut self, time: i64) -> Option<usize> {
        if self.names_thread || self.seats.is_empty() {
            return self.thread;
        }
        while self.seats.get(self.seat + 1).is_some_and(|(from, ..)| time >= *from) {
            self.seat += 1;
        }
        self.seats[self.seat].2
    }

    /// Returns whether the thread changed in a time, as far as its reference points show.
    pub fn moved(&self, from: i64, to: i64) -> bool {
        // Few; those before the time are skipped.
        let seats = if self.names_thread { &[] } else { &*self.seats };
        let changes = seats.get(1..).unwrap_or_default();
        let first = changes.partition_point(|(first, ..)| *first < from);
        changes.get(first).is_some_and(|(_, before, _)| *before <= to)
    }
}
