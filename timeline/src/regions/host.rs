// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host of a session: the host's threads with their accounts, and the clients that these threads run.

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
use super::spans::{Key, Process};
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

/// Maximum number of threads of a session that have an account, of some 600 bytes each.
const MAX_THREADS: usize = 1 << 14;
/// Number of threads that a search for a free account looks at.
const MAX_TRIED: usize = 64;
/// Maximum number of waiting intervals of all threads together, and the number of waiting intervals that each
/// thread may keep in any case. Each interval takes some 60 bytes.
const WAITING: (usize, usize) = (1 << 19, 32);
/// Number of slots for thread ids.
const TID_SLOTS: usize = 4096;
/// Maximum number of leases whose ends are kept, of some 20 bytes each.
const MAX_LEASES: usize = 1 << 17;

/// The machine whose kernel schedules a thread. Threads of different machines can have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Host,
    /// The guest whose threads read this clock. Each guest has its own clock, and gets a new clock at a
    /// reset.
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

    /// Returns the clock, if the machine is a guest.
    pub fn guest(self) -> Option<u32> {
        match self {
            Side::Guest(clock) => Some(clock),
            Side::Host => None,
        }
    }
}

/// What is known of a session while it is read.
#[derive(Debug)]
pub(super) struct Host {
    /// Whether the kernel's events show the session's clients as threads. Such clients are threads of the
    /// host's programs, or of a guest whose own kernel was recorded.
    pub is_program: bool,
    /// Whether the clients are threads of guests. If true, the host's kernel shows no client.
    pub has_guests: bool,
    /// The guest for each clock. The clients that read the clock are threads of this guest.
    guests: HashMap<u32, Side>,
    /// Times in which vCPUs were out of guest mode, if the clients are threads of a guest whose kernel was
    /// not recorded.
    pub modes: Option<GuestModes>,
    /// What the host's kernel proves about the guests' CPUs, if it is known which threads of the host run
    /// these CPUs.
    pub vcpus: Option<Vcpus>,
    /// Whether the recording of the host's kernel may show the threads that run guests' CPUs.
    pub has_hosts: bool,
    /// Whether threads of the VMM have accounts.
    pub has_vmm: bool,
    /// Whether a process beside the VMM answered the reference points. If true, the threads that answered run
    /// no client.
    pub is_served: bool,
    /// Number of regions of clients whose thread of the host is not known.
    pub without_thread: u64,
    /// Number of events and reference points so far.
    pub events: u64,
    /// Whether a thread of the VMM had the event that comes right before the thread enters the guest.
    pub runs: bool,
    /// Whether all intervals of the threads are kept, including threads that have only a lane.
    pub has_log: bool,
    /// Traces of kernels that may show the session's threads.
    pub recordings: Vec<Recording>,
    pub threads: Vec<Thread>,
    pub by_tid: HashMap<(Side, u32), usize>,
    /// Indices of threads, counted from 1. The bits of a thread id choose the slot. With the slots, most
    /// lookups need no search in `by_tid`: an empty slot means that the thread is not known.
    pub slots: Box<[u32; TID_SLOTS]>,
    /// Clients, by id.
    pub clients: Vec<Client>,
    /// For each thread, the open regions between two events of the VMM.
    pub vmm: HashMap<u32, Pairs>,
    /// Open regions that may begin on one client and end on another client.
    pub of_any: Pairs,
    /// Maximum number of open regions of a client.
    pub most_open: usize,
    pub jumps: Jumps,
    /// For each client and token, the time of the last event of a program's lease.
    lease_ends: HashMap<(u32, u64), i64>,
    /// Number of leases that named a thread although another program's lease held the thread.
    pub claimed: Counted,
    /// Number of threads that a program lost because another lease named them.
    pub disputed: Counted,
    /// Number of leases whose threads have no account, because there are too many accounts.
    pub without_account: Counted,
    /// Number of leases of clients that may belong to any of several guests.
    pub without_guest: Counted,
    /// Sums over threads that lost their accounts to other threads.
    switches: Switches,
    /// Index of the thread at which the next search for a free account begins.
    next_free: usize,
}

/// What a session keeps of a kernel's trace.
#[derive(Debug)]
pub(super) struct Recording {
    pub side: Side,
    pub kinds: Kinds,
    /// Time of the trace's last event.
    end: i64,
    /// Time of each CPU's last event so far.
    cpus: Vec<i64>,
    /// Threads without an account that had an event in the trace.
    seen: Tids,
    pub followed: Followed,
}

/// What is known of a thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub side: Side,
    pub tid: u32,
    pub name: Option<Arc<str>>,
    pub account: Account,
    pub tally: Tally,
    /// Proven intervals that wait until the host's kernel divides them. `None` unless the host's kernel
    /// divides the time of the thread's guest.
    pub unplaced: Option<Unplaced>,
    /// Critical path of the thread, while it has regions whose paths are wanted.
    pub walked: Option<Box<Walked>>,
    /// Whether the thread's account serves only the thread's lane, and divides no region's time.
    pub for_lanes: bool,
    /// Id of the client, if the thread is a client of a program.
    owner: Option<u32>,
    /// Whether another lease named the thread while the thread's client held the thread.
    is_claimed: bool,
    /// Time until which the thread belongs to no client. The thread was taken away from its client, because
    /// two leases named the thread and the client's events contradicted the kernel's events.
    disputed_until: i64,
    /// Index of the recording that shows the thread, from the thread's first event on. Before that event, the
    /// thread may not have been recorded.
    pub recording: Option<usize>,
}

/// What is known of a client of the guest.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub pairs: Pairs,
    /// Threads that served the client, in order. Each entry has the first time at which the thread served,
    /// the last time at which the previous thread served, and the thread's index. The index is `None` if
    /// several threads served in turns, or if the thread has no account.
    pub seats: Vec<(i64, i64, Option<usize>)>,
    pub seat: usize,
    /// Thread of a program's client. `names_thread` says whether the client's lease names a thread.
    pub thread: Option<usize>,
    names_thread: bool,
    /// Machine of the client, as the client's last lease says. `clock` is the clock that the client read in
    /// this lease.
    pub side: Option<Side>,
    pub clock: Option<u32>,
    /// Whether the client is a thread that shares the guest's vCPUs with the guest's other threads.
    pub shares_vcpus: bool,
    /// Id of the process of the last lease; 0 without a lease.
    process: u32,
    /// Token of the last lease.
    token: Option<u64>,
    /// Time of the last event of the client's lease.
    until: i64,
    /// Time of the client's last event so far.
    pub last: i64,
    /// Number of leases.
    leases: u32,
}

impl Recording {
    /// Makes the recording of a trace. `kinds`: the kinds of events in the trace. `end`: the time of the
    /// trace's last event. `followed`: the trace's filter.
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
    /// Makes the host of a session. `kernels`: clocks of the guests whose own kernels were recorded.
    /// `has_hosts`: whether the recording of the host's kernel may show the threads that run these guests'
    /// CPUs.
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
            // The threads of a program's host, and the threads of a server, do not run the clients that they
            // serve, so such clients have no seats.
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

    /// Returns a client; `None` if the client's id is too large.
    pub fn client(&mut self, number: u32) -> Option<&mut Client> {
        let number = number as usize;
        if number >= self.clients.len() && number < MAX_CLIENTS as usize {
            self.clients.resize_with(number + 1, Client::default);
            self.most_open = most_open(self.clients.len() + self.vmm.len());
        }
        self.clients.get_mut(number)
    }

    /// Returns the open regions of a thread of the VMM; `None` if there are too many threads.
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

    /// Removes and returns all open regions.
    pub fn take_open(&mut self) -> Vec<Open> {
        let clients = self.clients.iter_mut().map(|client| &mut client.pairs);
        let all = clients.chain(self.vmm.values_mut()).chain([&mut self.of_any]);
        all.flat_map(Pairs::take).collect()
    }

    /// Returns the key of the span with the id `id` to which an event of a client refers. For an event of the
    /// VMM, `client` is an id that no client has.
    pub fn span(&self, session: usize, client: u32, id: u64) -> Key {
        let process = self.clients.get(client as usize).map(|client| client.process);
        Key { session, process, id }
    }

    /// Returns how many clients have a last lease that names `process`.
    pub fn clients_of(&self, process: Process) -> usize {
        self.clients.iter().filter(|client| Some(client.process) == process).count()
    }

    /// If the clients are threads, returns the machine of the clients that read a clock; `None` if several
    /// guests are possible.
    pub fn side(&self, clock: Option<u32>) -> Option<Side> {
        match self.has_guests {
            true => self.guests.get(&clock.unwrap_or_default()).copied(),
            false => Some(Side::Host),
        }
    }

    /// Returns whether a client is a thread of a guest whose own kernel was not recorded.
    pub fn shares_vcpus(&self, client: u32) -> bool {
        let client = self.clients.get(client as usize);
        self.modes.is_some() && client.is_some_and(|client| client.shares_vcpus)
    }

    /// Returns whether a machine's kernel can say something about a region's time.
    pub fn may_divide(&self, side: Side, sample: &Sample) -> bool {
        if side == Side::Host {
            return true;
        }
        let thread = self.threads.get(usize::from(sample.thread)).map(|thread| Some(thread.side));
        let client = || self.clients.get(sample.client()? as usize).map(|client| client.side);
        // A region that has no thread and no client may be on any machine.
        thread.or_else(client).is_none_or(|of| of == Some(side))
    }

    /// Returns whether the host's kernel divides the time of a machine's threads.
    pub fn divides(&self, side: Side) -> bool {
        self.vcpus.as_ref().zip(side.guest()).is_some_and(|(vcpus, clock)| vcpus.has_guest(clock))
    }

    /// Returns the index of a thread. A thread without an account gets an account.
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
        // A recording may already have shown the thread, because the kernel's events may come before the
        // thread's lease.
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

    /// Returns the index of a host's thread. A thread without an account gets an account for its lane.
    pub fn thread_for_lanes(&mut self, tid: u32) -> Option<usize> {
        self.known(Side::Host, tid).or_else(|| {
            let thread = self.thread(Side::Host, tid)?;
            self.threads[thread].for_lanes = true;
            Some(thread)
        })
    }

    /// Before all events, gives a thread of the host an account for the thread's lane.
    pub fn add_lane(&mut self, tid: u32, is_vcpu: bool) {
        if let Some(at) = self.thread_for_lanes(tid)
            && self.threads[at].for_lanes
        {
            let own = if is_vcpu { Part::Guest } else { Part::OnCpu };
            self.threads[at].account = Account::new(own, Kinds::default().exactness(self.runs));
        }
    }

    /// Returns a thread, if it has an account that divides regions.
    pub fn dividing(&self, side: Side, tid: u32) -> Option<usize> {
        self.known(side, tid).filter(|thread| !self.threads[*thread].for_lanes)
    }

    /// Iterates over the threads whose accounts divide regions.
    pub fn all_dividing(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(|thread| !thread.for_lanes)
    }

    /// Finds a program's thread that is no client any more. No region needs the account of this thread.
    fn free_thread(&mut self) -> Option<usize> {
        if !self.is_program {
            return None;
        }
        // Each call looks at a few threads only, so that each lease costs little.
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

    /// Divides the number of intervals that may wait among the threads.
    fn share_waiting(&mut self) {
        let count = self.threads.len();
        let most = (WAITING.0 / count.next_power_of_two()).clamp(WAITING.1, MAX_WAITING);
        // The shares of all threads change only when the number of threads reaches a power of two.
        let first = if count.is_power_of_two() { 0 } else { count - 1 };
        self.threads[first..].iter_mut().for_each(|thread| thread.account.set_most(most));
    }

    /// If the recording has all events of a thread, returns the thread's index. Returns `None` if the
    /// recording may lack events of the thread, or if the thread has no account. A thread without an account
    /// is noted as seen, because the thread may get an account later with its lease.
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

    /// Returns the index of a thread if `recording` is the recording that shows the thread now.
    pub fn shown(&self, tid: u32, recording: usize) -> Option<usize> {
        let thread = self.known(self.recordings.get(recording)?.side, tid);
        thread.filter(|thread| self.threads[*thread].recording == Some(recording))
    }

    /// Returns the switches of all threads, added up.
    pub fn switches(&self) -> Switches {
        let mut all = self.switches;
        self.all_dividing().for_each(|thread| all += thread.account.switches);
        all
    }

    /// Returns how often too many intervals waited.
    pub fn given_up(&self) -> u64 {
        let unplaced = self.threads.iter().filter_map(|thread| thread.unplaced.as_ref());
        let cut = unplaced.filter(|unplaced| unplaced.is_cut).count() as u64;
        self.switches().given_up + cut
    }

    /// Iterates over the threads for which no recording has all events.
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
        // Another thread has the slot. If the slot is empty, the thread is not known.
        self.by_tid.get(&(side, tid)).copied().filter(|_| slot > 0)
    }

    /// Tells the account of a thread which kinds of events the thread's trace has.
    fn set_exactness(&mut self, thread: usize) {
        let runs = self.runs;
        let thread = &mut self.threads[thread];
        let kinds = thread.recording.map_or(Kinds::default(), |at| self.recordings[at].kinds);
        thread.account.set_exactness(kinds.exactness(runs));
    }

    /// Tells the account of each thread which kinds of events the thread's trace has.
    pub fn set_all_exactness(&mut self) {
        (0..self.threads.len()).for_each(|thread| self.set_exactness(thread));
    }

    /// Returns whether no recording says anything about a thread at `time`. If true, the thread's time up to
    /// `time` becomes unknown.
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

    /// Notes that no open region will be counted, because events of all clients may be lost.
    pub fn spoil(&mut self) {
        self.clients.iter_mut().for_each(|client| client.pairs.spoil(NotCounted::LostEvents));
        self.vmm.values_mut().for_each(|pairs| pairs.spoil(NotCounted::LostEvents));
        self.of_any.spoil(NotCounted::LostEvents);
    }

    /// Notes that events of a VMM's thread are lost. The open regions of this thread, and of the clients that
    /// this thread serves, will not be counted.
    pub fn spoil_of(&mut self, thread: usize) {
        let pairs = self.clients.iter_mut().map(|client| &mut client.pairs);
        let own = self.vmm.get_mut(&self.threads[thread].tid);
        pairs.chain(own).for_each(|pairs| pairs.spoil_of(thread, NotCounted::LostEvents));
        self.of_any.spoil(NotCounted::LostEvents);
    }

    /// Returns whether an event's time is exact: either the time has no error, or a recording of a guest's
    /// kernel has the same clock.
    pub fn is_exact(&self, event: &EventRef<'_>) -> bool {
        let clock = event.reading.map(|reading| reading.clock);
        let mut clocks = self.recordings.iter().filter_map(|recording| recording.side.guest());
        event.is_exact() || clocks.any(|of_kernel| Some(of_kernel) == clock)
    }

    /// Adds a client's own event to the account of the client's thread.
    pub fn guest(&mut self, at: usize, event: &EventRef<'_>) {
        let thread = &mut self.threads[at];
        let clock = event.reading.map(|reading| reading.clock);
        // If the event and the kernel's events have the same clock, their order is right, even if this clock
        // has an error against the host's clock.
        let is_one = thread.recording.is_some() && clock.is_some() && clock == thread.side.guest();
        thread.account.guest(event.ts_ns, is_one || event.is_exact(), || event.bound_ns());
        self.check(at);
    }

    /// Returns a thread's account for an event of a recording; `None` if another recording shows the thread,
    /// because events that are in both recordings count once.
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

/// Returns the guest for each clock. The clients that read the clock are threads of this guest. A program can
/// read a clock that no recording of a kernel has. Such a program belongs to the guest whose clock has the
/// same epoch, if there is exactly one such guest.
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

/// Returns the slot of a thread. Guests' threads begin at another slot than the host's threads, because most
/// thread ids are small on each machine.
fn slot(side: Side, tid: u32) -> usize {
    let of_guest = side.guest().map_or(0, |clock| TID_SLOTS / 2 + clock as usize * 61);
    (tid as usize + of_guest) % TID_SLOTS
}

impl Thread {
    /// Notes that a region begins or ends at `time`. Returns whether all earlier intervals are in the tally.
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

    /// Returns whether the client's thread changed between two times, as far as reference points show.
    pub fn moved(&self, from: i64, to: i64) -> bool {
        // The list is short, and a binary search skips all changes before `from`.
        let seats = if self.names_thread { &[] } else { &*self.seats };
        let changes = seats.get(1..).unwrap_or_default();
        let first = changes.partition_point(|(first, ..)| *first < from);
        changes.get(first).is_some_and(|(_, before, _)| *before <= to)
    }
}
