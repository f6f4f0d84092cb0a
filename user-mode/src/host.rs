//! The host: one thread that serves reference points, drains rings, and beats.

use crate::futex;
use crate::segment::Segment;
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::clock::{ticks, ticks_after_loads};
use hypertrace_abi::layout::guest_page::{ASKED, HEAD, LOST_BUSY, LOST_FULL, SCHEMA_LEN, SLEEPS};
use hypertrace_abi::layout::local::{
    ASLEEP, BEAT, BEAT_MS, BEGAN, HOST_PID, STATE, State, TRIGGERS, TRIGGERS_BYTES,
};
use hypertrace_abi::layout::{WORD, host_page};
use hypertrace_abi::ring::{self, Consumer, ConsumerState};
use hypertrace_abi::sink::{EventSink, NameSet, Status};
use hypertrace_abi::slot::{self, BadSlot, Emitted};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// When and how much to drain, and how long to stay awake.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Time between passes that nobody asked for; at most 50 ms.
    pub period: Duration,
    /// Packets of one client in one pass.
    pub packets_per_client: usize,
    /// How long to look for the next point before sleeping, from the last one
    /// on. A point that finds the host awake costs a fraction of one that has
    /// to wake it.
    pub spin: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            period: Duration::from_millis(1),
            packets_per_client: 8,
            spin: Duration::from_micros(50),
        }
    }
}

const NS: u128 = 1_000_000_000;

/// What the host has counted, in the order of [`COUNTERS`].
type Counts = [u64; COUNTERS.len()];

const COUNTERS: [&str; 7] = [
    "reference_points",
    "not_recorded",
    "bad_sequence",
    "bad_words",
    "bad_id",
    "rings_without_point",
    "passes",
];
const POINTS: usize = 0;
const NOT_RECORDED: usize = 1;
const BAD: usize = 2;
const RINGS: usize = 5;
const PASSES: usize = 6;

/// Looks at the bells between two at the clock.
const LOOKS: u32 = 16;

/// Every so many passes look at all clients, also at those that never rang.
const ALL_EVERY: u64 = 256;

#[derive(Debug)]
struct Doorbell {
    segment: Arc<Segment>,
    due: AtomicBool,
    stop: AtomicBool,
}

impl Doorbell {
    fn wake(&self) {
        self.due.store(true, Relaxed);
        // ORDERING: pairs with the fence in `Server::sleep`.
        fence(Ordering::SeqCst);
        let asleep = self.segment.word32(ASLEEP);
        if asleep.load(Relaxed) != 0 {
            asleep.store(0, Relaxed);
            futex::wake(asleep);
        }
    }
}

/// A segment's host: the thread that serves it. Dropped, it drains what is left
/// and ends.
#[derive(Debug)]
pub struct Host {
    doorbell: Arc<Doorbell>,
    thread: Option<JoinHandle<Counts>>,
}

impl Host {
    /// Starts it.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start<S: EventSink + 'static>(
        segment: &Arc<Segment>,
        sink: S,
        policy: Policy,
    ) -> io::Result<Host> {
        let doorbell = Arc::new(Doorbell {
            segment: Arc::clone(segment),
            due: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let shared = Arc::clone(&doorbell);
        segment.word32(HOST_PID).store(std::process::id(), Relaxed);
        segment.page_l(BEGAN, WORD)[0].store(ticks(), Relaxed);
        let mut server = Server::new(shared, sink, policy);
        server.publish_triggers();
        // ORDERING: whoever sees this sees the rest of the page.
        segment.word32(STATE).store(State::Serving as u32, Ordering::Release);
        let thread = thread::Builder::new().name("host".into()).spawn(move || server.run())?;
        Ok(Host { doorbell, thread: Some(thread) })
    }

    /// Who calls what it gives has it drain soon.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let doorbell = Arc::clone(&self.doorbell);
        move || doorbell.wake()
    }

    /// Drains what is left and ends: gives what it has counted.
    pub fn finish(mut self) -> BTreeMap<String, u64> {
        let counts = self.end().unwrap_or_default();
        COUNTERS.iter().map(|name| (*name).to_owned()).zip(counts).collect()
    }

    fn end(&mut self) -> Option<Counts> {
        self.doorbell.stop.store(true, Relaxed);
        self.doorbell.wake();
        // It panics only if the sink does, and that has been reported on
        // stderr.
        self.thread.take()?.join().ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}

/// One client, as the host knows it.
struct Client {
    state: ConsumerState,
    /// It rang once, so it is or was leased.
    is_used: bool,
}

struct Server<S> {
    doorbell: Arc<Doorbell>,
    sink: S,
    policy: Policy,
    clients: Vec<Client>,
    bells: Bells,
    mask_version: u64,
    /// The names that page L says, once this host has stored them there.
    handled: Option<NameSet>,
    counts: Counts,
}

/// What was seen of the bells.
struct Bells {
    seen: Vec<u64>,
    /// A client rang for something else than a point.
    is_drain_due: bool,
}

impl<S: EventSink> Server<S> {
    fn new(doorbell: Arc<Doorbell>, sink: S, policy: Policy) -> Server<S> {
        let segment = &doorbell.segment;
        let (relays, all) = segment.clients();
        let client = |n| Client { state: ConsumerState::default(), is_used: n < relays };
        let clients = (0..all).map(client).collect();
        let seen = vec![0; segment.bells().len()];
        let policy = Policy { period: policy.period.min(Duration::from_millis(BEAT_MS)), ..policy };
        let bells = Bells { seen, is_drain_due: false };
        let counts = Counts::default();
        Server { doorbell, sink, policy, clients, bells, mask_version: 0, handled: None, counts }
    }

    fn run(mut self) -> Counts {
        // The counter: a point is served in less time than a clock takes.
        let frequency = match self.doorbell.segment.page().host_frequency {
            0 => 1_000_000_000,
            told => told,
        };
        let in_ticks = |time: Duration| (time.as_nanos() * u128::from(frequency) / NS) as u64;
        let (period, spin) = (in_ticks(self.policy.period), in_ticks(self.policy.spin));
        let mut last_point = ticks();
        let mut last_pass = last_point.wrapping_sub(period);
        while !self.doorbell.stop.load(Relaxed) {
            let mut served = self.serve();
            let mut now = ticks();
            if now.saturating_sub(last_point) < spin {
                // To read the counter takes as long as to look.
                for _ in 0..LOOKS {
                    if served {
                        break;
                    }
                    std::hint::spin_loop();
                    served = self.serve();
                }
                now = ticks();
            }
            if served {
                last_point = now;
            }
            let due = &self.doorbell.due;
            let is_asked = due.load(Relaxed) && due.swap(false, Relaxed);
            let since_pass = now.saturating_sub(last_pass);
            if is_asked || self.bells.is_drain_due || since_pass >= period {
                self.bells.is_drain_due = self.pass();
                last_pass = ticks();
            } else if now.saturating_sub(last_point) >= spin {
                let left = u128::from(period - since_pass) * NS / u128::from(frequency);
                self.sleep(Duration::from_nanos(left as u64));
            }
        }
        self.end();
        self.counts
    }

    /// Sleeps unless somebody has rung.
    fn sleep(&mut self, most: Duration) {
        let doorbell = Arc::clone(&self.doorbell);
        let asleep = doorbell.segment.word32(ASLEEP);
        asleep.store(1, Relaxed);
        // ORDERING: pairs with the fence between a bell and the ringer's look
        // at this word: one of the two sees what the other did.
        fence(Ordering::SeqCst);
        let has_rung = doorbell.segment.bells().iter().zip(&self.bells.seen);
        let has_rung = has_rung.into_iter().any(|(bell, seen)| bell.load(Relaxed) != *seen);
        if !has_rung && !doorbell.due.load(Relaxed) {
            futex::sleep(asleep, 1, most);
        }
        asleep.store(0, Relaxed);
    }

    /// Looks at the registers of all who rang. Whether there was a point.
    fn serve(&mut self) -> bool {
        let Server { doorbell, sink, clients, bells, mask_version, counts, .. } = self;
        bells.serve(&doorbell.segment, sink, clients, *mask_version, counts)
    }

    /// Takes up to some packets of every client. Whether some has more.
    fn pass(&mut self) -> bool {
        let segment = Arc::clone(&self.doorbell.segment);
        let beat = &segment.page_l(BEAT, WORD)[0];
        beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
        self.counts[PASSES] += 1;
        self.publish_triggers();
        let version = &mut self.mask_version;
        self.sink.update_mask(&mut |mask| {
            *version += 1;
            ring::set_mask(segment.rings(), segment.geometry(), segment.mode(), mask, *version);
        });
        if self.counts[PASSES].is_multiple_of(ALL_EVERY) {
            self.look_at_all();
        }
        self.take(self.policy.packets_per_client, false)
    }

    /// Finds clients that were used though they never rang.
    fn look_at_all(&mut self) {
        let segment = &self.doorbell.segment;
        for (number, client) in (0..).zip(&mut self.clients) {
            if let Some(memory) = segment.client(number).filter(|_| !client.is_used) {
                let is_touched = |word: &usize| memory.guest[*word].load(Relaxed) != 0;
                let words = [HEAD, SCHEMA_LEN, LOST_FULL, LOST_BUSY];
                client.is_used = words.iter().any(is_touched);
            }
        }
    }

    /// Drains the clients that are used: their schema logs before the relays'
    /// points that may need them. `only`: as far as their rings go now.
    fn take(&mut self, packets: usize, only: bool) -> bool {
        let segment = Arc::clone(&self.doorbell.segment);
        let (relays, all) = segment.clients();
        let head = |client| {
            let memory = segment.client(client);
            // ORDERING: as in the consumer's own load.
            memory.map_or(0, |memory| memory.guest[HEAD].load(Ordering::Acquire))
        };
        self.sink.begin_pass();
        let noted: Vec<u64> = (0..if only { all } else { relays }).map(head).collect();
        let mut more = false;
        for client in (relays..all).chain(0..relays) {
            let index = client as usize;
            if !self.clients[index].is_used {
                continue;
            }
            for turn in 0..packets.max(1) {
                let Some(memory) = segment.client(client) else { break };
                let mut consumer = Consumer::new(memory, &mut self.clients[index].state);
                if let Some(head) = noted.get(index) {
                    consumer.up_to(*head);
                }
                let is_more = self.sink.drain(client, &mut consumer).more;
                // A point does not wait for a whole pass.
                self.serve();
                if !is_more {
                    break;
                }
                more |= turn + 1 == packets;
            }
        }
        self.sink.end_pass();
        more
    }

    /// What is still in the rings, because the sink could not take it, is
    /// counted as lost.
    fn forsake(&mut self) {
        let segment = Arc::clone(&self.doorbell.segment);
        for (number, client) in (0..).zip(&mut self.clients).filter(|(_, client)| client.is_used) {
            let Some(memory) = segment.client(number) else { continue };
            let mut consumer = Consumer::new(memory, &mut client.state);
            consumer.forsake(&mut vec![0; consumer.stage_words()]);
            // Nothing to take: the sink looks at the losses.
            self.sink.drain(number, &mut consumer);
        }
    }

    /// Tells who records points for the host which ones it must not.
    fn publish_triggers(&mut self) {
        let mut names = NameSet::EMPTY;
        self.sink.points_to_handle(&mut names);
        if self.handled != Some(names) {
            for (word, bits) in
                self.doorbell.segment.page_l(TRIGGERS, TRIGGERS_BYTES).iter().zip(names.0)
            {
                word.store(bits, Relaxed);
            }
            self.handled = Some(names);
        }
    }

    /// No more points; the rings as far as they go now.
    fn end(&mut self) {
        let segment = Arc::clone(&self.doorbell.segment);
        segment.word32(STATE).store(State::Ended as u32, Ordering::SeqCst);
        self.serve();
        let (_, all) = segment.clients();
        for client in 0..all {
            // Who waits finds that it is over.
            if let Some(memory) = segment.client(client)
                && memory.guest[SLEEPS].load(Relaxed) != 0
            {
                futex::wake_low(&memory.host[host_page::REPLY]);
            }
        }
        // More than any ring has packets.
        self.look_at_all();
        self.take(usize::MAX, true);
        // A point that came meanwhile stands in the host's own ring.
        self.take(1, true);
        // A segment with a name is kept for what could not be written.
        if segment.path().is_none() {
            self.forsake();
        }
    }
}

impl Bells {
    fn serve<S: EventSink>(
        &mut self,
        segment: &Segment,
        sink: &S,
        clients: &mut [Client],
        mask_version: u64,
        counts: &mut Counts,
    ) -> bool {
        let mut served = false;
        for (at, bell) in segment.bells().iter().enumerate() {
            // ORDERING: pairs with the Release of who rings: its registers are
            // stored.
            let now = bell.load(Ordering::Acquire);
            let mut changed = now ^ self.seen[at];
            self.seen[at] = now;
            while changed != 0 {
                let byte = changed.trailing_zeros() / 8;
                changed &= !(0xff << (8 * byte));
                let client = at as u32 * 8 + byte;
                let Some(known) = clients.get_mut(client as usize) else { continue };
                known.is_used = true;
                if !answer(segment, sink, client, mask_version, counts) {
                    counts[RINGS] += 1;
                    self.is_drain_due = true;
                } else {
                    served = true;
                }
            }
        }
        served
    }
}

/// Serves the point that the client has stored to EMIT. `false`: there is none.
fn answer<S: EventSink>(
    segment: &Segment,
    sink: &S,
    client: u32,
    mask_version: u64,
    counts: &mut Counts,
) -> bool {
    let Some(memory) = segment.client(client) else { return false };
    let seq = segment.emit(client).load(Relaxed) as u32;
    let reply = &memory.host[host_page::REPLY];
    // It rang for something else; what an emulator's plugin is just about to
    // answer must not be answered twice.
    // ORDERING: pairs with the Release of who asks, which may have rung for
    // something else and ask only now: the slot is there.
    let asked = memory.guest[ASKED].load(Ordering::Acquire);
    if asked != 1 << 32 | u64::from(seq) || reply.load(Relaxed) as u32 == seq {
        return false;
    }
    // Not before this: the point was made after all that its thread did before.
    let host_time = ticks_after_loads();
    let emitted = Emitted { client, seq, host_time, epoch: segment.page().epoch, mask_version };
    slot::serve(&memory, emitted, |point| {
        Some(match point {
            Ok(point) => {
                let status = sink.reference_point(point);
                counts[POINTS] += 1;
                counts[NOT_RECORDED] += u64::from(status == Status::Failed);
                status
            }
            Err(bad) => {
                counts[BAD
                    + match bad {
                        BadSlot::Sequence => 0,
                        BadSlot::Words => 1,
                        BadSlot::Id => 2,
                    }] += 1;
                Status::Invalid
            }
        })
    });
    // ORDERING: pairs with the fence between the sleeper's word and its look at
    // the reply: one of the two sees what the other did.
    fence(Ordering::SeqCst);
    if memory.guest[SLEEPS].load(Relaxed) != 0 {
        futex::wake_low(reply);
    }
    true
}
