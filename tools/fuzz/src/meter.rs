//! A session that is a device's sink. For each call, the sink checks bounds on steps and words and, as a last
//! resort, a bound on time.

use crate::recorder::Ambush;
use crate::setup::{CLIENTS, HONEST, HOSTILE, MAX_STEPS_EACH};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::sink::{
    DrainSink, Drained, EventSink, KnownClient, PassConfig, ReferencePoint, SessionInfo, Status,
};
use hypertrace_device::Memory;
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::Session;
use hypertrace_trace::trace::guest_hypertrace;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Maximum number of steps of a pass if each step takes one tick. A pass has 16 shares, one more share for
/// the client that began last, and a check of each client.
const MAX_STEPS: u64 = 17 * MAX_STEPS_EACH + CLIENTS as u64 + 1;
/// Time that is far longer than any call takes, even on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(20);

/// A session that counts the work for a device.
pub struct Meter {
    session: Session,
    ring_mode: RingMode,
    ambush: Arc<Ambush>,
    guest: Arc<Memory>,
    /// Number of steps of this pass.
    steps: AtomicU64,
    /// Number of steps that took words.
    taken: AtomicU64,
    /// Number of words that the drain has taken out of rings. If a client's head jumps, the whole ring counts
    /// as taken.
    words: AtomicU64,
    /// Number of words of recorded points, including prefix and header.
    point_words: AtomicU64,
    /// Number of points that the guest made while the declared event `guest_hypertrace` was on.
    declared: AtomicU64,
    /// Number of recorded points of client 1. Points of the 2016 interface are included.
    points: AtomicU64,
}

impl Meter {
    /// Makes a meter with zero counts.
    pub fn new(
        session: Session,
        ring_mode: RingMode,
        guest: Arc<Memory>,
        ambush: Arc<Ambush>,
    ) -> Meter {
        let [steps, taken, words, point_words, declared, points] = Default::default();
        Meter {
            session,
            ring_mode,
            ambush,
            guest,
            steps,
            taken,
            words,
            point_words,
            declared,
            points,
        }
    }

    /// Returns the number of steps that took something.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Returns the number of words taken out of rings, plus the words of points.
    pub fn words(&self) -> u64 {
        self.words.load(Relaxed) + self.point_words.load(Relaxed)
    }

    /// Returns the number of points since the last call that were made while `guest_hypertrace` was on.
    pub fn take_declared(&self) -> u64 {
        self.declared.swap(0, Relaxed)
    }

    /// Returns the number of recorded points of client 1.
    pub fn points(&self) -> u64 {
        self.points.load(Relaxed)
    }

    fn timed<R>(&self, what: &str, call: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let returned = call();
        assert!(begun.elapsed() < MAX_TIME, "{what} took {:?}", begun.elapsed());
        returned
    }
}

impl EventSink for Meter {
    fn session_info(&self) -> SessionInfo {
        self.session.session_info().with(|info| info.ring_mode = self.ring_mode)
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.declared.fetch_add(guest_hypertrace::EVENT.is_wanted().into(), Relaxed);
        self.point_words.fetch_add(6 + point.words.len() as u64, Relaxed);
        let status = self.session.reference_point(point);
        let ours = point.client == HONEST && status == Status::Recorded;
        self.points.fetch_add(ours.into(), Relaxed);
        status
    }

    fn has_room_for_point(&self) -> bool {
        self.session.has_room_for_point()
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Meter {
    fn begin_generation(&mut self, epoch: u32, known: &[KnownClient<'_>]) -> u32 {
        self.session.begin_generation(epoch, known)
    }

    fn known_clients(&mut self, each: &mut dyn FnMut(&KnownClient<'_>)) {
        self.session.known_clients(each);
    }

    fn begin_pass(&mut self) -> PassConfig {
        self.steps.store(0, Relaxed);
        self.timed("begin_pass", || self.session.begin_pass())
    }

    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        assert!(self.steps.fetch_add(1, Relaxed) < MAX_STEPS, "steps of a pass");
        let most = consumer.most_words();
        if client == HOSTILE {
            self.ambush.store(&self.guest);
        }
        let drained = self.timed("a drain", || self.session.drain(client, consumer));
        if client == HOSTILE {
            self.ambush.store(&self.guest);
        }
        self.taken.fetch_add(u64::from(drained.words > 0), Relaxed);
        self.words.fetch_add(drained.words.min(most), Relaxed);
        drained
    }

    fn end_pass(&mut self) {
        self.timed("end_pass", || self.session.end_pass());
    }
}
