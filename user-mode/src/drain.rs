//! Draining rings, and the thread that does it while nobody else does.

use crate::host::{Counts, Shared};
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::WORD;
use hypertrace_abi::layout::guest_page::{HEAD, LOST_BUSY, LOST_FULL, LOST_UNATTACHED, SCHEMA_LEN};
use hypertrace_abi::layout::local::{self, BEAT, TRIGGERS, TRIGGERS_BYTES};
use hypertrace_abi::ring::{self, Consumer, ConsumerState, Total};
use hypertrace_abi::sink::{EventSink, NameSet};
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
    packets: usize,
    clients: Vec<Client>,
    /// The bells, as they were seen last.
    bells: Vec<u64>,
    /// The names that page L says.
    handled: Option<NameSet>,
    passes: u64,
    /// Events lost in processes that hold no client.
    unattached: Total,
    /// Looks at that total that found a number which cannot be.
    bad_totals: u64,
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
    if lock().bad_totals > 0 {
        counts.push(("bad_totals", lock().bad_totals));
    }
    if panics > 0 {
        counts.push((PANICS, panics));
    }
    counts
}

impl<S: EventSink> Drain<S> {
    pub(crate) fn new(shared: Arc<Shared>, sink: Arc<S>, packets: usize) -> Drain<S> {
        let (relays, all) = shared.segment.clients();
        let client = |n| Client { state: ConsumerState::default(), is_used: n < relays };
        let clients = (0..all).map(client).collect();
        let bells = vec![0; shared.segment.bells().len()];
        Drain {
            shared,
            sink,
            packets,
            clients,
            bells,
            handled: None,
            passes: 0,
            unattached: Total::default(),
            bad_totals: 0,
        }
    }

    /// Takes up to some packets of every client, with a call of `between` after
    /// each. Whether some has more.
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
        let more = self.take(self.packets, false, between);
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
                let words = [HEAD, SCHEMA_LEN, LOST_FULL, LOST_BUSY, LOST_UNATTACHED];
                client.is_used = words.iter().any(is_touched);
            }
        }
    }

    /// Tells the sink of events that were lost in processes which hold no client.
    fn look_at_total(&mut self) {
        let word = &self.shared.segment.page_l(local::LOST_UNATTACHED, WORD)[0];
        let before = self.unattached.counted();
        if !self.unattached.look(word.load(Relaxed)) {
            self.bad_totals += 1;
        }
        if self.unattached.counted() != before {
            self.sink.unattached(self.unattached.counted());
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

    /// Drains the clients that are used: their schema logs before the relays'
    /// points that may need them. `only`: as far as their rings go now.
    fn take(&mut self, packets: usize, only: bool, between: &mut dyn FnMut()) -> bool {
        let segment = Arc::clone(&self.shared.segment);
        let (relays, all) = segment.clients();
        let head = |client| {
            let memory = segment.client(client);
            // ORDERING: as in the consumer's own load.
            memory.map_or(0, |memory| memory.guest[HEAD].load(Ordering::Acquire))
        };
        self.sink.begin_pass();
        self.look_at_total();
        // After that: who adds a trigger later has a pass of its own begin.
        self.publish_triggers();
        let noted: Vec<u64> = (0..if only { all } else { relays }).map(head).collect();
        // After that: whose points were noted has rung before.
        self.look_at_bells();
        let Drain { sink, clients, .. } = self;
        let mut more = false;
        for client in (relays..all).chain(0..relays) {
            let index = client as usize;
            if !clients[index].is_used {
                continue;
            }
            // No ring has more than that, whatever a program says of it.
            let mut room = if only { segment.geometry().ring_bytes / WORD } else { u64::MAX };
            for turn in 1.. {
                let Some(memory) = segment.client(client) else { break };
                let mut consumer = Consumer::new(memory, &mut clients[index].state);
                if let Some(head) = noted.get(index) {
                    consumer.up_to(*head);
                }
                let drained = sink.drain(client, &mut consumer);
                between();
                room = room.saturating_sub(drained.words.max(1));
                if !drained.more || room == 0 {
                    break;
                }
                if turn >= packets {
                    more = true;
                    break;
                }
            }
        }
        sink.end_pass();
        more
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
        self.take(usize::MAX, true, &mut || {});
        // A point that came meanwhile stands in the host's own ring.
        self.take(1, true, &mut || {});
        // A segment with a name is kept for what could not be written.
        if self.shared.segment.path().is_none() {
            self.forsake();
        }
    }
}
