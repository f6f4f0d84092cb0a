//! The thread that answers reference points: looks at bells, drains now and then, and sleeps until a bell
//! rings.

use crate::drain::Drain;
use crate::state::{HostState, ThreadCounts};
use hypertrace_abi::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::clock::{in_ticks, ticks, ticks_after_loads};
use hypertrace_abi::layout::guest_page::SLEEPS;
use hypertrace_abi::layout::host_page;
use hypertrace_abi::layout::local::watch;
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::sink::{EventSink, Status};
use hypertrace_abi::slot::{self, Emitted};
use hypertrace_segment::futex;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, TryLockError};
use std::thread;
use std::time::Duration;

/// Names of the counters. The names for bad slots are in the order of [`BadSlot`](slot::BadSlot).
const COUNTERS: [&str; 6] = [
    "reference_points",
    "not_recorded",
    "bad_sequence",
    "bad_words",
    "bad_id",
    "rings_without_point",
];
const POINTS: usize = 0;
const NOT_RECORDED: usize = 1;
const BAD: usize = 2;
const RINGS: usize = 5;

/// Number of looks at the bells between two looks at the clock.
const LOOKS: u32 = 16;

/// Number of looks at the watched client's slot that find no point. After this number of looks, the next
/// other client that rings becomes the watched client.
const IN_VAIN: u32 = 64;

/// Shortest and longest nap between two looks at the bells of clients that cannot wake this thread. After a
/// point, the first nap is the shortest, and each further nap is twice as long. So points that follow each
/// other are answered soon, and a client without points costs little CPU time.
const NAPS: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(1);

/// State of the thread that answers points.
struct Points<'s, S> {
    state: &'s HostState,
    /// The word that the thread sleeps on.
    watch: &'s AtomicU32,
    bells: &'s [AtomicU64],
    sink: &'s S,
    /// The memory of each client.
    memories: Vec<ClientMemory<'s>>,
    /// Values of the bells when this thread last looked at the bells.
    seen: Vec<u64>,
    /// Client whose slot this thread also looks at, because most points come from the client that made the
    /// last point.
    watched: Option<u32>,
    /// Number of looks at the watched client's slot that found no point.
    in_vain: u32,
    /// Length of the next nap, if clients cannot wake the thread.
    nap: Duration,
    /// Number of passes that had ended when this thread found the host's ring full. `None` while the ring has
    /// room.
    full: Option<u64>,
    counts: [u64; COUNTERS.len()],
}

/// Marks the thread as asleep when it ends, even by a panic, so that the other thread drains.
struct Gone<'s>(&'s AtomicBool);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Answers points until the thread is stopped.
pub(crate) fn run<S: EventSink>(
    state: &HostState,
    sink: &S,
    drain: &Mutex<Drain<S>>,
) -> ThreadCounts {
    let segment = &*state.segment;
    let (_, all) = segment.clients();
    let bells = segment.local().bells(all);
    let mut points = Points {
        state,
        watch: segment.local().watch(),
        bells,
        sink,
        memories: (0..all).filter_map(|client| segment.client(client)).collect(),
        seen: vec![0; bells.len()],
        watched: None,
        in_vain: 0,
        nap: *NAPS.end(),
        full: None,
        counts: [0; COUNTERS.len()],
    };
    // Only one thread of this host answers points.
    let _ = state.points_thread.set(thread::current());
    let gone = Gone(&state.sleeps);
    points.run(drain);
    points.end();
    drop(gone);
    COUNTERS.into_iter().zip(points.counts).collect()
}

impl<S: EventSink> Points<'_, S> {
    fn run(&mut self, drain: &Mutex<Drain<S>>) {
        // The loop reads the counter, because reading a clock takes longer than serving a point.
        let HostState { policy, segment, .. } = self.state;
        let of = |time| in_ticks(time, segment.page().host_frequency);
        let (period, spin) = (of(policy.drain.period), of(policy.spin));
        let looks = if spin == 0 { 1 } else { LOOKS };
        let mut last_point = ticks();
        while !self.state.stop_points.load(Relaxed) {
            let mut served = false;
            // A reading of the counter takes as long as a look at the bells. So the loop looks several times
            // between two readings.
            for _ in 0..looks {
                served = self.serve();
                if served {
                    break;
                }
                std::hint::spin_loop();
            }
            let now = ticks();
            if served {
                last_point = now;
            }
            let stays = now.saturating_sub(last_point) < spin;
            let since_pass = now.saturating_sub(self.state.last_pass.load(Relaxed));
            // If this thread goes to sleep, this thread leaves the pass to the drain thread.
            if self.state.is_drain_due.load(Relaxed) || stays && since_pass >= period {
                let mut drain = match drain.try_lock() {
                    Ok(drain) => drain,
                    // A panic in a sink may leave counters out of date, but
                    // nothing half-written.
                    Err(TryLockError::Poisoned(drain)) => drain.into_inner(),
                    Err(TryLockError::WouldBlock) => continue,
                };
                drain.pass(&mut || {
                    if self.serve() {
                        last_point = ticks();
                    }
                });
            } else if !stays {
                self.sleep();
            }
        }
    }

    /// Sleeps unless a client has rung.
    fn sleep(&mut self) {
        let watches = self.watch;
        if !self.state.is_remote {
            watches.store(watch::ASLEEP, Relaxed);
        }
        self.state.sleeps.store(true, Relaxed);
        // ORDERING: pairs with a client's fence between its store to a bell or slot and its look at this
        // word: this thread sees the bell or slot, or the client sees the word.
        fence(Ordering::SeqCst);
        let HostState { stop_points, is_drain_due, is_point_due, .. } = self.state;
        let is_needed = stop_points.load(Relaxed) || is_drain_due.load(Relaxed);
        if self.state.is_remote {
            // The drain thread has unparked this thread if there is a point.
            if !is_needed {
                self.nap();
            }
            self.state.sleeps.store(false, Relaxed);
            return;
        }
        let has_rung = self.bells.iter().zip(&self.seen);
        let has_rung = has_rung.into_iter().any(|(bell, seen)| bell.load(Relaxed) != *seen);
        let has_asked = |client: &u32| {
            self.memories.get(*client as usize).is_some_and(|memory| slot::asked(memory).is_some())
        };
        self.watched = self.watched.filter(has_asked);
        let is_needed = is_needed || has_rung || is_point_due.load(Relaxed);
        if self.watched.is_none() && !is_needed {
            futex::wait(watches, watch::ASLEEP, None);
        }
        self.state.sleeps.store(false, Relaxed);
        watches.store(self.watched.map_or(watch::BELLS, |client| watch::CLIENT + client), Relaxed);
    }

    /// If clients cannot wake this thread, sleeps for a moment, or until the drain thread has found
    /// something.
    fn nap(&mut self) {
        if self.state.is_polled.load(Relaxed) {
            thread::park();
        } else {
            thread::park_timeout(self.nap);
            self.nap = (self.nap * 2).min(*NAPS.end());
        }
    }

    /// Serves the points of clients that rang, and of the watched client, unless the host's ring is full.
    /// Returns whether there was a point.
    fn serve(&mut self) -> bool {
        !self.must_drain_first() && self.look()
    }

    /// Returns whether points must wait because the host's ring is full, and then requests a pass of the
    /// drain. Points wait until the pass in progress and then a whole further pass have ended. When the
    /// further pass has ended, points no longer wait. If the host cannot write, the host then answers that
    /// the point failed.
    fn must_drain_first(&mut self) -> bool {
        if self.sink.has_room_for_point() {
            self.full = None;
            return false;
        }
        let passes = self.state.passes.load(Relaxed);
        let waits = passes - *self.full.get_or_insert(passes) < 2;
        if waits {
            self.state.is_drain_due.store(true, Ordering::Release);
        }
        waits
    }

    /// Looks at all clients that rang, and at the watched client. If a pass has found a client that has
    /// asked, looks at every client. While a VM's memory is being replaced, looks at no client. Returns
    /// whether there was a point.
    fn look(&mut self) -> bool {
        let mut served = false;
        if self.state.is_of_another_time() {
            return served;
        }
        if self.state.is_point_due.load(Relaxed) {
            self.state.is_point_due.store(false, Relaxed);
            // There are at most 1,024 clients.
            for client in 0..self.memories.len() as u32 {
                served |= self.answer(client);
            }
        }
        if let Some(client) = self.watched {
            let is_answered = self.answer(client);
            served |= is_answered;
            self.in_vain = if is_answered { 0 } else { self.in_vain.saturating_add(1) };
        }
        for (at, bell) in self.bells.iter().enumerate() {
            // ORDERING: pairs with the Release in `LocalPages::notify`: the client's registers are stored.
            let now = bell.load(Ordering::Acquire);
            let mut changed = now ^ self.seen[at];
            self.seen[at] = now;
            while changed != 0 {
                let byte = changed.trailing_zeros() / 8;
                changed &= !(0xff << (8 * byte));
                let client = at as u32 * 8 + byte;
                if !self.answer(client) {
                    self.counts[RINGS] += 1;
                    self.state.is_drain_due.store(true, Ordering::Release);
                    continue;
                }
                served = true;
                if let Some(before) = self.watch(client) {
                    self.answer(before);
                }
            }
        }
        served
    }

    /// Watches this client's slot from now on, unless the watched client is busy. Returns the client that was
    /// watched before. From now on, the earlier client has to ring. Before the earlier client saw this
    /// change, it may have asked for a point without ringing its bell.
    fn watch(&mut self, client: u32) -> Option<u32> {
        let before = self.watched.filter(|before| *before != client);
        if before.is_some() && self.in_vain < IN_VAIN {
            return None;
        }
        self.watched = Some(client);
        self.in_vain = 0;
        self.watch.store(watch::CLIENT + client, Relaxed);
        // ORDERING: pairs with a client's fence between its store to its slot and its look at this word: this
        // thread sees the slot, or the client sees the word.
        fence(Ordering::SeqCst);
        before
    }

    /// Serves the point that the client asks for. Returns `false` if the client asks for no point.
    fn answer(&mut self, client: u32) -> bool {
        let Some(memory) = self.memories.get(client as usize) else { return false };
        // The client may have rung for another reason, or an emulator's plugin may be about to answer.
        let Some(seq) = slot::asked(memory) else { return false };
        // The client is marked before the point is taken, so that the pass that takes the point reads the
        // client's schemas first.
        if let Some(is_used) = self.state.is_used.get(client as usize) {
            is_used.store(true, Relaxed);
        }
        // The time is read only here. So the point's time is later than all that the client's thread did
        // before the point.
        let host_time = ticks_after_loads();
        let emitted = Emitted { client, seq, host_time };
        let Points { sink, counts, state, .. } = self;
        slot::serve(memory, emitted, &state.versions, |point| match point {
            Ok(point) => {
                let status = sink.reference_point(point);
                counts[POINTS] += 1;
                counts[NOT_RECORDED] += u64::from(status == Status::Failed);
                status
            }
            Err(bad) => {
                counts[BAD + bad as usize] += 1;
                Status::Invalid
            }
        });
        // ORDERING: pairs with a client's fence between its store to its word and its look at the reply: the
        // client sees the reply, or this thread sees that the client sleeps.
        fence(Ordering::SeqCst);
        wake(memory);
        self.nap = *NAPS.start();
        true
    }

    /// Serves the last points, after which the thread answers no more points.
    fn end(&mut self) {
        // ORDERING: pairs with a client's fence between its store to its word and its look at the state: the
        // client sees the end, or this thread sees that the client sleeps.
        fence(Ordering::SeqCst);
        self.state.is_point_due.store(true, Relaxed);
        self.look();
        // A client that waits sees that the host has ended.
        self.memories.iter().for_each(wake);
    }
}

/// Wakes the client if it sleeps on its reply.
fn wake(memory: &ClientMemory<'_>) {
    if memory.guest[SLEEPS].load(Relaxed) != 0 {
        futex::wake_low(&memory.host[host_page::REPLY], u32::MAX >> 1);
    }
}
