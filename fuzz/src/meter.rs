//! A session as a device's sink, with bounds on what each call may take: steps and
//! words, and as a last resort time.

use crate::recorder::Ambush;
use crate::rig::{CLIENTS, HONEST, HOSTILE, MOST_STEPS_EACH};
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::sink::{Drained, EventSink, NameSet, ReferencePoint, Status};
use hypertrace_device::Memory;
use hypertrace_trace::Session;
use hypertrace_trace::trace::guest_hypertrace;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Steps of a pass at most, where each takes one tick: 16 shares, one more for the
/// client that was last to begin, and a look at each.
const MOST_STEPS: u64 = 17 * MOST_STEPS_EACH + CLIENTS as u64 + 1;
/// Far more than any call takes, also where the machine does something else.
const MOST_TIME: Duration = Duration::from_secs(20);

/// Counts of what was done for a device.
pub struct Meter {
    session: Session,
    ambush: Arc<Ambush>,
    guest: Arc<Memory>,
    /// Of this pass.
    steps: AtomicU64,
    /// Steps that took something.
    taken: AtomicU64,
    /// Words that were taken out of rings, jumps counted as one ring.
    words: AtomicU64,
    /// Words of points that were recorded, prefix and header included.
    point_words: AtomicU64,
    /// Points that came while the declared event `guest_hypertrace` was on.
    declared: AtomicU64,
    /// Points in client 1's name that were recorded, those of 2016 among them.
    points: AtomicU64,
}

impl Meter {
    /// Nothing was done yet.
    pub fn new(session: Session, guest: Arc<Memory>, ambush: Arc<Ambush>) -> Meter {
        let [steps, taken, words, point_words, declared, points] = Default::default();
        Meter { session, ambush, guest, steps, taken, words, point_words, declared, points }
    }

    /// Steps that took something.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Words that were taken, and those of points.
    pub fn words(&self) -> u64 {
        self.words.load(Relaxed) + self.point_words.load(Relaxed)
    }

    /// Points since the last call that came while `guest_hypertrace` was on.
    pub fn take_declared(&self) -> u64 {
        self.declared.swap(0, Relaxed)
    }

    /// Points in client 1's name that were recorded.
    pub fn points(&self) -> u64 {
        self.points.load(Relaxed)
    }

    fn timed<R>(&self, what: &str, call: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let returned = call();
        assert!(begun.elapsed() < MOST_TIME, "{what} took {:?}", begun.elapsed());
        returned
    }
}

impl EventSink for Meter {
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.declared.fetch_add(guest_hypertrace::EVENT.is_wanted().into(), Relaxed);
        self.point_words.fetch_add(6 + point.words.len() as u64, Relaxed);
        let status = self.session.reference_point(point);
        let ours = point.client == HONEST && status == Status::Recorded;
        self.points.fetch_add(ours.into(), Relaxed);
        status
    }

    fn points_to_handle(&self, names: &mut NameSet) {
        self.session.points_to_handle(names);
    }

    fn begin_pass(&self) {
        self.steps.store(0, Relaxed);
        self.timed("the begin of a pass", || self.session.begin_pass());
    }

    fn update_mask(&self, set: &mut dyn FnMut(&[u8; 4096])) {
        self.session.update_mask(set);
    }

    fn drain(&self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        assert!(self.steps.fetch_add(1, Relaxed) < MOST_STEPS, "steps of a pass");
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

    fn end_pass(&self) {
        self.timed("the end of a pass", || self.session.end_pass());
    }
}
