//! Drains rings, on a thread of its own while the points thread sleeps.

use crate::state::{HostState, PANICS, ThreadCounts};
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::clients::{Clients, Rings};
use hypertrace_abi::clock::{in_ticks, ticks};
use hypertrace_abi::drain::{self, IdleDetector, poll_after};
use hypertrace_abi::layout::guest_page::{
    HEAD, LOST_BUSY, LOST_FULL, LOST_UNATTACHED, SCHEMA_LEN, SLOT,
};
use hypertrace_abi::layout::local::State;
use hypertrace_abi::layout::{WORD, host_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Consumer, ConsumerState, Total};
use hypertrace_abi::sink::{DrainSink, EventSink, KnownClient, PassConfig, with_drain};
use hypertrace_abi::slot;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Shortest time between two boots of a guest. Each boot begins a generation, and generations must not fill
/// the session.
const BOOT: Duration = Duration::from_millis(200);

/// Time for which a VM's replaced memory must stay the same: a VMM that restores a VM writes page by page.
const SETTLES: Duration = Duration::from_millis(200);

/// Maximum time that the host waits until the memory has not changed for [`SETTLES`].
const MAX_SETTLING: Duration = Duration::from_secs(5);

/// One pass in this number of passes looks at all clients, even at clients that never rang. This pass drains
/// all clients whatever their heads say, and gives memory back. If another program keeps a client's bell
/// silent, the client's first point waits for such a pass.
const ALL_EVERY: u64 = 16;

/// The host gives a ring's memory back only after the ring's head has moved on by the ring's capacity divided
/// by this number.
const GROWN_PART: u64 = 32;

/// State of the drain: the clients, and whose turn it is.
pub(crate) struct Drain<S> {
    state: Arc<HostState>,
    sink: Arc<S>,
    /// Number of ticks that one client gets in one pass.
    share: u64,
    clients: Clients,
    /// Values of the bells when this thread last looked at the bells.
    bells: Vec<u64>,
    idle: IdleDetector,
    /// Time at which the sink has work of its own to do.
    sink_due: Duration,
    /// Instant from which `idle` and `sink_due` count.
    begun: Instant,
    /// Raw counter when the host saw the guest's last boot.
    booted: Option<u64>,
    /// Events lost in processes that hold no client.
    unattached: Total,
    /// Number of times that this thread found an impossible number as the total of unattached events.
    bad_totals: u64,
    settling: Option<Settling>,
    /// Head of each client when the host last gave the memory of the client's ring back.
    given_back: Box<[u64]>,
    /// Whether a process was seen to lock a client. If no process was seen to lock a client, threads of this
    /// process may use clients without locks, and the host cannot know that a ring is unused.
    has_locks: bool,
    /// Number of times that an earlier state of this session replaced the memory. `taken_over` is the number
    /// of times that the memory of another host replaced the memory.
    rollbacks: u64,
    taken_over: u64,
}

/// State while a VMM replaces the memory, for example when the VMM restores a VM.
#[derive(Default)]
struct Settling {
    /// Raw counter when the change began. `last` is the raw counter when this host saw the last change.
    first: u64,
    last: u64,
    /// Tail of each client. Only the host stores tails.
    tails: Vec<u64>,
}

/// Facts that the sink knows of a client, and that the host tells the sink again for a new generation.
struct Known {
    client: u32,
    clock: ClockKind,
    name: String,
    texts: Vec<String>,
}

impl Known {
    fn of(known: &KnownClient<'_>) -> Known {
        let texts = known.texts.iter().map(|text| (*text).to_owned()).collect();
        Known { client: known.client, clock: known.clock, name: known.name.to_owned(), texts }
    }
}

/// Drains while the points thread sleeps: once a period while there are events, and less often while there
/// are no events. At the end, drains all records that are left.
pub(crate) fn run<S: EventSink>(drain: &Mutex<Drain<S>>) -> ThreadCounts {
    // A panic in a sink may leave counters out of date, but nothing half-written.
    let lock = || drain.lock().unwrap_or_else(PoisonError::into_inner);
    let state = Arc::clone(&lock().state);
    let period = state.policy.drain.period;
    let mut panics = 0;
    while !state.stop_drain.load(Relaxed) {
        let mut wait = period;
        if panics == 0 && state.sleeps.load(Relaxed) {
            let pass = || lock().pass(&mut || {});
            wait = catch_unwind(AssertUnwindSafe(pass)).unwrap_or_else(|_| {
                panics += 1;
                state.is_polled.store(false, Relaxed);
                state.wake_points();
                period
            });
        }
        if !wait.is_zero() {
            thread::park_timeout(wait);
        }
    }
    panics += u64::from(catch_unwind(AssertUnwindSafe(|| lock().end())).is_err());
    let mut counts = vec![("passes", state.passes.load(Relaxed))];
    let Drain { bad_totals, rollbacks, taken_over, .. } = *lock();
    let rare =
        [("bad_totals", bad_totals), ("rollbacks", rollbacks), ("memory_of_others", taken_over)];
    counts.extend(rare.into_iter().filter(|(_, count)| *count > 0));
    if panics > 0 {
        counts.push((PANICS, panics));
    }
    counts
}

impl<S: EventSink> Drain<S> {
    pub(crate) fn new(state: Arc<HostState>, sink: Arc<S>) -> Drain<S> {
        let (relays, all) = state.segment.clients();
        let bells = vec![0; state.segment.local().bells(all).len()];
        let share = in_ticks(state.policy.drain.budget, state.segment.page().host_frequency);
        Drain {
            state,
            sink,
            share,
            clients: Clients::new(relays, all),
            bells,
            idle: IdleDetector::new(all as usize, Duration::ZERO),
            sink_due: Duration::ZERO,
            begun: Instant::now(),
            booted: None,
            unattached: Total::default(),
            bad_totals: 0,
            settling: None,
            given_back: vec![0; all as usize].into(),
            has_locks: false,
            rollbacks: 0,
            taken_over: 0,
        }
    }

    /// Drains all clients, each for its share of time. Calls `between` before each step and at the end. If
    /// nothing has moved since the last pass and nobody has asked for this pass, only looks at the heads and
    /// bells. Returns the time until the next pass: zero if a client has more records.
    pub(crate) fn pass(&mut self, between: &mut dyn FnMut()) -> Duration {
        // ORDERING: pairs with the Release in `wake_drain`. Either this pass sees why a thread requested the
        // pass, or another request follows.
        let is_requested = self.state.is_drain_due.swap(false, Ordering::Acquire);
        let looks_at_all = self.state.passes.load(Relaxed).is_multiple_of(ALL_EVERY);
        let is_settling = self.is_settling();
        if !is_settling {
            self.look_at_boot();
        }
        if looks_at_all {
            self.look_at_all();
        }
        let is_point_due = self.has_asked() || self.looks_for_points() && self.has_rung();
        if is_point_due {
            self.state.is_point_due.store(true, Relaxed);
        }
        // Wakes the points thread in place of a program: the program may have died or misbehaved after
        // ringing its bell and before waking the thread, or another program may silence the program's bell.
        if self.state.sleeps.load(Relaxed) && (is_point_due || !self.state.is_asleep()) {
            self.state.wake_points();
        }
        let has_moved = self.has_moved();
        let is_needed = is_requested || looks_at_all || is_point_due || has_moved;
        let is_needed = is_needed || self.begun.elapsed() >= self.sink_due;
        let share = self.share;
        let more = !is_settling
            && is_needed
            && self.drain_clients(between, |clients, sink, rings| {
                clients.round(sink, rings, share, ticks)
            });
        if more {
            self.state.is_drain_due.store(true, Relaxed);
        }
        if looks_at_all {
            self.give_back();
        }
        self.state.last_pass.store(ticks(), Relaxed);
        self.state.passes.fetch_add(1, Relaxed);
        let now = self.begun.elapsed();
        if is_needed {
            self.sink_due = now.saturating_add(with_drain(&*self.sink, |sink| sink.quiet_for()));
        }
        let is_quiet = !(more || is_settling || is_point_due || has_moved) && self.sink_due > now;
        let wait = self.wait(is_quiet, now);
        if more { Duration::ZERO } else { wait }
    }

    /// Returns whether a client has rung since the previous pass, or the head of a client's ring has moved
    /// since then.
    fn has_moved(&mut self) -> bool {
        let HostState { segment, is_used, .. } = &*self.state;
        let heads = (0..).zip(is_used).map(|(client, is_used)| {
            let memory = segment.client(client).filter(|_| is_used.load(Relaxed));
            memory.map_or(0, |memory| memory.guest[HEAD].load(Relaxed))
        });
        let stayed = self.idle.have_heads_stayed(heads);
        !stayed || self.has_rung()
    }

    /// Returns the time until the next pass, after a pass at `now`. `is_quiet` says that this pass found
    /// nothing.
    fn wait(&mut self, is_quiet: bool, now: Duration) -> Duration {
        let HostState { segment, policy, .. } = &*self.state;
        let idle = self.idle.idle_for(is_quiet, now);
        let period = policy.drain.period;
        let wait = poll_after(idle, period, segment.geometry().ring_bytes);
        let looked_for_points = self.looks_for_points();
        self.state.is_polled.store(wait > period, Relaxed);
        if looked_for_points && wait == period {
            self.state.wake_points();
        }
        wait
    }

    /// Returns whether this thread looks for a VM's points while the points thread sleeps.
    fn looks_for_points(&self) -> bool {
        self.state.is_remote && self.state.is_polled.load(Relaxed)
    }

    /// Increments the beat. Returns whether a VM's memory is being replaced, and cannot be relied on.
    fn is_settling(&mut self) -> bool {
        let state = Arc::clone(&self.state);
        let segment = &state.segment;
        let beat = segment.local().beat();
        let found = beat.load(Relaxed);
        let is_replaced = state.is_remote
            && (found != state.beat.load(Relaxed) || state.is_replaced.swap(false, Relaxed));
        state.beat.store(found.wrapping_add(1), Relaxed);
        beat.store(found.wrapping_add(1), Relaxed);
        if !is_replaced && self.settling.is_none() {
            return false;
        }
        state.is_settling.store(true, Relaxed);
        let now = ticks();
        let (_, all) = segment.clients();
        let tail =
            |client| segment.client(client).map_or(0, |m| m.host[host_page::TAIL].load(Relaxed));
        let tails = Vec::from_iter((0..all).map(tail));
        let settling = self.settling.get_or_insert(Settling { first: now, ..Settling::default() });
        if is_replaced || settling.tails != tails {
            *settling = Settling { first: settling.first, last: now, tails };
        }
        let of = |time| in_ticks(time, segment.page().host_frequency);
        let is_settling = now.saturating_sub(settling.last) < of(SETTLES)
            && now.saturating_sub(settling.first) < of(MAX_SETTLING);
        if !is_settling {
            self.take_over();
        }
        is_settling
    }

    /// Begins anew after restored memory has replaced the VM's memory. Nothing relates the times of the
    /// records in the restored rings to the host's times, so these records make a generation of their own.
    /// Records that the memory's last host took are not taken again.
    fn take_over(&mut self) {
        let state = Arc::clone(&self.state);
        let segment = &state.segment;
        let local = segment.local();
        let since = self.settling.take().map_or_else(ticks, |settling| settling.first);
        let is_rollback = segment.write_page_again();
        *(if is_rollback { &mut self.rollbacks } else { &mut self.taken_over }) += 1;
        local.host_pid().store(std::process::id(), Relaxed);
        local.end().store(0, Relaxed);
        // ORDERING: as in `Host::start`.
        local.state().store(State::Serving as u32, Ordering::Release);
        self.unattached.replace(local.lost_unattached().load(Relaxed));
        // No guest knows this version of the mask, no matter when the guest's snapshot was taken.
        state.versions.mask.store(ticks(), Relaxed);
        // Points that the sink already has belong to the previous epoch.
        drain::pass(&*self.sink, |_, settings| self.set(&settings));
        let mut known = Vec::new();
        if is_rollback {
            with_drain(&*self.sink, |sink| {
                sink.known_clients(&mut |client| known.push(Known::of(client)));
            });
        }
        for (number, client) in (0..).zip(&mut self.clients.states) {
            if let Some(memory) = segment.client(number) {
                *client = ConsumerState::found(&memory);
            }
        }
        self.look_at_all();
        self.begin_generation(&known, Some(since));
        self.drain_all();
        for client in &mut self.clients.states {
            *client = ConsumerState::continue_at(&client.place());
        }
        let mut known = Vec::new();
        with_drain(&*self.sink, |sink| {
            sink.known_clients(&mut |client| known.push(Known::of(client)));
        });
        self.begin_generation(&known, None);
        state.is_settling.store(false, Relaxed);
    }

    /// Begins a generation of records found in the rings, or of records to come. For records found in the
    /// rings, `found` is the raw counter at which the segment got the restored memory.
    fn begin_generation(&mut self, known: &[Known], found: Option<u64>) {
        let texts =
            Vec::from_iter(known.iter().map(|k| Vec::from_iter(k.texts.iter().map(|t| &**t))));
        let known = known.iter().zip(&texts).map(|(known, texts)| KnownClient {
            client: known.client,
            token: self.clients.states.get(known.client as usize).map_or(0, |c| c.place().token),
            clock: known.clock,
            name: &known.name,
            texts,
        });
        let known = Vec::from_iter(known);
        self.state.versions.begin_generation(|epoch| {
            with_drain(&*self.sink, |sink| match found {
                Some(since) => sink.begin_found(epoch, &known, since),
                None => sink.begin_generation(epoch, &known),
            })
        });
    }

    /// Begins a generation if a VM's guest has booted since the last call. The rings still hold records of
    /// the previous boot, and the new guest waits until the rings are empty.
    fn look_at_boot(&mut self) {
        let state = Arc::clone(&self.state);
        let local = state.segment.local();
        // ORDERING: pairs with the guest's Release store.
        let boot = local.boot().load(Ordering::Acquire);
        let seen = local.boot_seen().load(Relaxed);
        if !state.is_remote || boot == 0 || boot == seen {
            return;
        }
        let now = ticks();
        let pause = in_ticks(BOOT, state.segment.page().host_frequency);
        if self.booted.is_some_and(|before| now.saturating_sub(before) < pause) {
            return;
        }
        self.booted = Some(now);
        // The rings of a new segment are empty.
        if seen != 0 {
            self.drain_all();
            self.discard_unread();
            self.begin_generation(&[], None);
            self.empty();
        }
        // ORDERING: pairs with the guest's Acquire load: the guest finds empty rings.
        local.boot_seen().store(boot, Ordering::Release);
    }

    /// Resets the clients' memory to its first state, except for the version of the mask.
    fn empty(&mut self) {
        let state = Arc::clone(&self.state);
        let (relays, all) = state.segment.clients();
        let version = state.versions.mask.load(Relaxed) + 1;
        state.versions.mask.store(version, Relaxed);
        self.clients.states.fill_with(ConsumerState::default);
        for number in 0..all {
            state.is_used[number as usize].store(number < relays, Relaxed);
            let Some(memory) = state.segment.client(number) else { continue };
            let words = [memory.guest, memory.host, memory.schema, memory.ring];
            words.into_iter().flatten().for_each(|word| word.store(0, Relaxed));
            memory.host[host_page::MASK_VERSION].store(version, Relaxed);
        }
    }

    /// Marks clients that were used although they never rang.
    fn look_at_all(&self) {
        let HostState { segment, is_used, .. } = &*self.state;
        for (number, is_used) in (0..).zip(is_used) {
            if let Some(memory) = segment.client(number).filter(|_| !is_used.load(Relaxed)) {
                let is_touched = |word: &usize| memory.guest[*word].load(Relaxed) != 0;
                let words = [HEAD, SCHEMA_LEN, LOST_FULL, LOST_BUSY, LOST_UNATTACHED, SLOT];
                // The other thread may have marked the client meanwhile.
                is_used.fetch_or(words.iter().any(is_touched), Relaxed);
            }
        }
    }

    /// Gives back the memory of rings that no thread has, because threads that come and go use one ring after
    /// another up to the ring's end.
    fn give_back(&mut self) {
        let HostState { segment, is_used, .. } = &*self.state;
        // The relays are skipped, because an emulator's plugin has the relays without a lock.
        let (relays, _) = segment.clients();
        let clients = (0..).zip(&mut self.given_back).zip(is_used).skip(relays as usize);
        for ((client, given_back), _) in clients.filter(|(_, is_used)| is_used.load(Relaxed)) {
            self.has_locks = self.has_locks || segment.is_held(client);
            let Some(memory) = segment.client(client).filter(|_| self.has_locks) else { continue };
            let head = memory.guest[HEAD].load(Relaxed);
            if head.wrapping_sub(*given_back) >= memory.capacity() / GROWN_PART
                && segment.give_back(client)
            {
                *given_back = head;
            }
        }
    }

    /// Returns true if a used client asks for a point. No point may depend on a bell, because every program
    /// can store to all bells.
    fn has_asked(&self) -> bool {
        let HostState { segment, is_used, .. } = &*self.state;
        let used = (0..).zip(is_used).filter(|(_, is_used)| is_used.load(Relaxed));
        used.filter_map(|(number, _)| segment.client(number))
            .any(|memory| slot::asked(&memory).is_some())
    }

    /// Returns whether a client has rung since this thread last looked at the bells.
    fn has_rung(&self) -> bool {
        let (_, all) = self.state.segment.clients();
        let bells = self.state.segment.local().bells(all);
        bells.iter().zip(&self.bells).any(|(bell, seen)| bell.load(Relaxed) != *seen)
    }

    /// Tells the sink how many further events were lost in processes that hold no client.
    fn look_at_total(&mut self, sink: &mut dyn DrainSink) {
        let word = self.state.segment.local().lost_unattached();
        let before = self.unattached.counted();
        if !self.unattached.look(word.load(Relaxed)) {
            self.bad_totals += 1;
        }
        let more = self.unattached.counted() - before;
        if more > 0 {
            sink.unattached(more);
        }
    }

    /// Marks clients that have rung.
    fn look_at_bells(&mut self) {
        let (_, all) = self.state.segment.clients();
        let bells = self.state.segment.local().bells(all).iter().zip(&mut self.bells);
        for ((bell, seen), clients) in bells.zip(self.state.is_used.chunks(WORD as usize)) {
            let now = bell.load(Relaxed);
            if now != *seen {
                let rang = (now ^ *seen).to_le_bytes();
                *seen = now;
                for (is_used, rang) in clients.iter().zip(rang) {
                    is_used.fetch_or(rang != 0, Relaxed);
                }
            }
        }
    }

    /// Begins a pass. Returns the ends of the relays' rings. Points before these ends refer to schemas that
    /// the pass reads before the points.
    fn begin(&mut self, sink: &mut dyn DrainSink, settings: &PassConfig) -> Vec<u64> {
        self.look_at_total(sink);
        self.set(settings);
        let segment = &self.state.segment;
        let (relays, _) = segment.clients();
        // ORDERING: as in the consumer's own load.
        let head = |memory: ClientMemory<'_>| memory.guest[HEAD].load(Ordering::Acquire);
        let heads = (0..relays).map(|relay| segment.client(relay).map_or(0, head)).collect();
        // The bells are read after the heads, because a client whose points are before these heads has
        // already rung.
        self.look_at_bells();
        heads
    }

    /// Makes a pass, in which `drain` drains the clients that are used.
    fn drain_clients<R>(
        &mut self,
        between: &mut dyn FnMut(),
        drain: impl FnOnce(&mut Clients, &mut dyn DrainSink, &mut Used<'_>) -> R,
    ) -> R {
        let sink = Arc::clone(&self.sink);
        drain::pass(&*sink, |sink, settings| {
            let heads = self.begin(sink, &settings);
            let mut rings = Used { host: &self.state, heads, between };
            let drained = drain(&mut self.clients, sink, &mut rings);
            between();
            drained
        })
    }

    /// Drains the rings up to their present ends.
    fn drain_all(&mut self) {
        self.drain_clients(&mut || {}, |clients, sink, rings| clients.drain_rest(sink, rings));
    }

    /// Counts the records that the sink could not take as lost.
    fn discard_unread(&mut self) {
        let Drain { state, sink, clients, .. } = self;
        let mut rings = Used { host: state, heads: Vec::new(), between: &mut || {} };
        with_drain(&**sink, |sink| clients.discard_unread(sink, &mut rings));
    }

    /// Publishes the enable mask, and the names whose points an emulator's plugin must leave to the host.
    pub(crate) fn set(&self, settings: &PassConfig) {
        let HostState { segment, versions, .. } = &*self.state;
        if let Some(mask) = &settings.mask {
            versions.set_mask(segment.rings(), segment.geometry(), segment.mode(), mask);
        }
        for (word, bits) in segment.local().triggers().iter().zip(settings.points.0) {
            if word.load(Relaxed) != bits {
                word.store(bits, Relaxed);
            }
        }
    }

    /// Drains what is left, for the last time.
    fn end(&mut self) {
        if self.is_settling() {
            self.take_over();
        }
        self.look_at_all();
        with_drain(&*self.sink, |sink| sink.last_pass());
        self.drain_all();
        // The second call takes the points that came during the first call, because these points are in the
        // host's own ring.
        self.drain_all();
        // If the segment has a name, then its file stays, and keeps the records that could not be written.
        if self.state.segment.path().is_none() {
            self.discard_unread();
        }
    }
}

/// The rings of the clients that are used.
struct Used<'d> {
    host: &'d HostState,
    /// The ends of the relays' rings.
    heads: Vec<u64>,
    /// Function that is called before each step.
    between: &'d mut dyn FnMut(),
}

impl Rings for Used<'_> {
    fn ring<'c>(&'c mut self, client: u32, state: &'c mut ConsumerState) -> Option<Consumer<'c>> {
        let Used { host, heads, between } = self;
        let index = client as usize;
        let memory = host.segment.client(client).filter(|_| host.is_used[index].load(Relaxed))?;
        between();
        if host.is_remote {
            // This check comes before each step, because a step stores this host's own tail.
            let beat = host.segment.local().beat().load(Relaxed);
            let tail = memory.host[host_page::TAIL].load(Relaxed);
            if beat != host.beat.load(Relaxed) || tail != state.place().position {
                host.is_replaced.store(true, Relaxed);
                return None;
            }
        }
        let mut consumer = Consumer::new(memory, state);
        if let Some(head) = heads.get(index) {
            consumer.up_to(*head);
        }
        Some(consumer)
    }
}
