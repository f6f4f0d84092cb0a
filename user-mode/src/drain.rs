//! Draining rings, and the thread that does it while nobody else does.

use crate::host::{Counts, Shared};
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::clock::{in_ticks, ticks};
use hypertrace_abi::layout::WORD;
use hypertrace_abi::layout::guest_page::{HEAD, LOST_BUSY, LOST_FULL, SCHEMA_LEN};
use hypertrace_abi::layout::local::{BEAT, TRIGGERS, TRIGGERS_BYTES};
use hypertrace_abi::ring::{self, ClientMemory, Consumer, ConsumerState};
use hypertrace_abi::sink::{Drained, EventSink, NameSet};
use hypertrace_abi::turns::{Account, Turn, Turns, drain_rest};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Every so many passes look at all clients, also at those that never rang.
const ALL_EVERY: u64 = 256;

/// What it takes to drain.
pub(crate) struct Drain<S> {
    shared: Arc<Shared>,
    sink: Arc<S>,
    /// Ticks of one client in one pass.
    share: u64,
    clients: Vec<Client>,
    /// Whose turn it is: the clients that relay others' points, and the rest.
    relays: (Turns, Vec<Account>),
    others: (Turns, Vec<Account>),
    /// The bells, as they were seen last.
    bells: Vec<u64>,
    /// The names that page L says.
    handled: Option<NameSet>,
    passes: u64,
}

/// One client, as the host knows it.
struct Client {
    state: ConsumerState,
    /// It rang once, or has written, so it is or was leased.
    is_used: bool,
}

/// A sink's, which are told on stderr.
pub(crate) const PANICS: &str = "panics";

/// Drains once in a period while the thread that answers points sleeps; all
/// that is left, at the end.
pub(crate) fn run<S: EventSink>(drain: &Mutex<Drain<S>>, period: Duration) -> Counts {
    // A panic in a sink leaves counters behind, nothing half-written.
    let lock = || drain.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = Arc::clone(&lock().shared);
    let mut panics = 0;
    while !shared.stop_drain.load(Relaxed) {
        let mut pass = || lock().pass(&mut || {});
        let more = panics == 0
            && shared.sleeps.load(Relaxed)
            && catch_unwind(AssertUnwindSafe(&mut pass)).unwrap_or_else(|_| {
                panics += 1;
                false
            });
        if !more {
            thread::park_timeout(period);
        }
    }
    panics += u64::from(catch_unwind(AssertUnwindSafe(|| lock().end())).is_err());
    let mut counts = vec![("passes", lock().passes)];
    if panics > 0 {
        counts.push((PANICS, panics));
    }
    counts
}

impl<S: EventSink> Drain<S> {
    pub(crate) fn new(shared: Arc<Shared>, sink: Arc<S>, budget: Duration) -> Drain<S> {
        let (relays, all) = shared.segment.clients();
        let client = |n| Client { state: ConsumerState::default(), is_used: n < relays };
        let clients = (0..all).map(client).collect();
        let bells = vec![0; shared.segment.bells().len()];
        let share = in_ticks(budget, shared.segment.page().host_frequency);
        let accounts = |of: Range<u32>| (Turns::default(), of.map(Account::new).collect());
        let (relays, others) = (accounts(0..relays), accounts(relays..all));
        Drain { shared, sink, share, clients, relays, others, bells, handled: None, passes: 0 }
    }

    /// Drains every client for a share of time, with a call of `between` after
    /// each step. Returns whether some client has more.
    pub(crate) fn pass(&mut self, between: &mut dyn FnMut()) -> bool {
        // ORDERING: pairs with the Release of who asks: what it asks for is seen
        // by this pass, or it asks again.
        self.shared.is_drain_due.swap(false, Ordering::Acquire);
        let Shared { segment, mask_version, sleeps, .. } = &*self.shared;
        let beat = &segment.page_l(BEAT, WORD)[0];
        beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
        self.passes += 1;
        self.sink.update_mask(&mut |mask| {
            let version = mask_version.load(Relaxed) + 1;
            mask_version.store(version, Relaxed);
            ring::set_mask(segment.rings(), segment.geometry(), segment.mode(), mask, version);
        });
        // A program that dies, or lies, between its bell and the wake.
        if sleeps.load(Relaxed) && !self.shared.is_asleep() {
            self.shared.wake_points();
        }
        if self.passes.is_multiple_of(ALL_EVERY) {
            self.look_at_all();
        }
        let more = self.take(between);
        if more {
            self.shared.is_drain_due.store(true, Relaxed);
        }
        self.shared.last_pass.store(ticks(), Relaxed);
        more
    }

    /// Finds clients that were used though they never rang.
    fn look_at_all(&mut self) {
        let segment = &self.shared.segment;
        for (number, client) in (0..).zip(&mut self.clients) {
            if let Some(memory) = segment.client(number).filter(|_| !client.is_used) {
                let is_touched = |word: &usize| memory.guest[*word].load(Relaxed) != 0;
                let words = [HEAD, SCHEMA_LEN, LOST_FULL, LOST_BUSY];
                client.is_used = words.iter().any(is_touched);
            }
        }
    }

    /// Finds clients that rang.
    fn look_at_bells(&mut self) {
        let bells = self.shared.segment.bells().iter().zip(&mut self.bells);
        for ((bell, seen), clients) in bells.zip(self.clients.chunks_mut(WORD as usize)) {
            let now = bell.load(Relaxed);
            if now != *seen {
                let rang = (now ^ *seen).to_le_bytes();
                *seen = now;
                for (client, rang) in clients.iter_mut().zip(rang) {
                    client.is_used |= rang != 0;
                }
            }
        }
    }

    /// Begins a pass. Returns how far the relays' rings go: the points there refer
    /// to schemas that the pass reads before it takes them.
    fn begin(&mut self) -> Vec<u64> {
        self.sink.begin_pass();
        // After that: who adds a trigger later has a pass of its own begin.
        self.publish_triggers();
        let segment = &self.shared.segment;
        let (relays, _) = segment.clients();
        // ORDERING: as in the consumer's own load.
        let head = |memory: ClientMemory<'_>| memory.guest[HEAD].load(Ordering::Acquire);
        let heads = (0..relays).map(|relay| segment.client(relay).map_or(0, head)).collect();
        // After that: whose points were noted has rung before.
        self.look_at_bells();
        heads
    }

    /// Drains the clients that are used, as far as their turns go: their schema
    /// logs before the relays' points that may need them.
    fn take(&mut self, between: &mut dyn FnMut()) -> bool {
        let heads = self.begin();
        let Drain { shared, sink, clients, relays, others, share, .. } = self;
        let mut step = |client: u32, turn: Turn| {
            let index = client as usize;
            let Some(memory) = shared.segment.client(client).filter(|_| clients[index].is_used)
            else {
                return Drained::default();
            };
            let mut consumer = Consumer::new(memory, &mut clients[index].state);
            if let Some(head) = heads.get(index) {
                consumer.up_to(*head);
            }
            let drained = turn.drain(&**sink, client, &mut consumer);
            between();
            drained
        };
        let mut round = |(turns, accounts): &mut (Turns, Vec<Account>)| {
            turns.round(accounts, *share, ticks, &mut step)
        };
        let more = round(others) | round(relays);
        sink.end_pass();
        more
    }

    /// Drains the rings as far as they go now.
    fn take_all(&mut self) {
        let heads = self.begin();
        let Drain { shared, sink, clients, .. } = self;
        let (relays, all) = shared.segment.clients();
        for client in (relays..all).chain(0..relays) {
            let index = client as usize;
            let memory = shared.segment.client(client).filter(|_| clients[index].is_used);
            let Some(memory) = memory else { continue };
            let mut consumer = Consumer::new(memory, &mut clients[index].state);
            if let Some(head) = heads.get(index) {
                consumer.up_to(*head);
            }
            drain_rest(&**sink, client, &mut consumer);
        }
        sink.end_pass();
    }

    /// What is still in the rings, because the sink could not take it, is
    /// counted as lost.
    fn forsake(&mut self) {
        let Drain { shared, sink, clients, .. } = self;
        for (number, client) in (0..).zip(clients).filter(|(_, client)| client.is_used) {
            let Some(memory) = shared.segment.client(number) else { continue };
            let mut consumer = Consumer::new(memory, &mut client.state);
            consumer.forsake(&mut vec![0; consumer.stage_words()]);
            // Nothing to take: the sink looks at the losses.
            sink.drain(number, &mut consumer);
        }
    }

    /// Tells who records points for the host which ones it must not.
    pub(crate) fn publish_triggers(&mut self) {
        let mut names = NameSet::EMPTY;
        self.sink.points_to_handle(&mut names);
        if self.handled != Some(names) {
            let words = self.shared.segment.page_l(TRIGGERS, TRIGGERS_BYTES);
            for (word, bits) in words.iter().zip(names.0) {
                word.store(bits, Relaxed);
            }
            self.handled = Some(names);
        }
    }

    /// The rings as far as they go now.
    fn end(&mut self) {
        self.look_at_all();
        self.sink.last_pass();
        self.take_all();
        // A point that came meanwhile is in the host's own ring.
        self.take_all();
        // A segment with a name is kept for what could not be written.
        if self.shared.segment.path().is_none() {
            self.forsake();
        }
    }
}
