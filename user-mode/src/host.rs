//! The host: a thread that answers reference points, and drains rings while it
//! is awake; and one that drains them while the other sleeps.
//!
//! Two, because who sleeps until a program rings needs no timer then: to disarm
//! one takes longer than to answer. The one that is awake drains by itself, as the
//! other gets no CPU where there are two: the program that asks has the first, and
//! who looks for its next point the second.

use crate::drain::{self, Drain, PANICS};
use crate::futex;
use crate::points;
use crate::segment::Segment;
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::WORD;
use hypertrace_abi::layout::local::{BEAT_MS, BEGAN, HOST_PID, STATE, State, WATCH, watch};
use hypertrace_abi::sink::EventSink;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// When and how much to drain, and how long to stay awake.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Time between passes that nobody asked for; at most 50 ms.
    pub period: Duration,
    /// Drain time of one client in one pass, while others have something as well:
    /// see [`hypertrace_abi::turns`].
    pub budget: Duration,
    /// How long to look for the next point before sleeping, from the last one
    /// on. A point that finds the host awake costs a fraction of one that has
    /// to wake it.
    pub spin: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            period: Duration::from_millis(1),
            budget: Duration::from_micros(250),
            spin: Duration::from_micros(50),
        }
    }
}

/// What a thread of the host has counted.
pub(crate) type Counts = Vec<(&'static str, u64)>;

/// What the host's threads tell each other.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) segment: Arc<Segment>,
    /// Version of the enable mask.
    pub(crate) mask_version: AtomicU64,
    /// The thread that answers points sleeps, or is about to.
    pub(crate) sleeps: AtomicBool,
    pub(crate) is_drain_due: AtomicBool,
    /// When the last pass ended: the raw counter.
    pub(crate) last_pass: AtomicU64,
    pub(crate) stop_points: AtomicBool,
    pub(crate) stop_drain: AtomicBool,
}

impl Shared {
    /// Has the thread that is awake, or the one that drains, do a pass.
    fn wake_drain(&self, drain: &Thread) {
        self.is_drain_due.store(true, Ordering::Release);
        // ORDERING: pairs with the fence in `Points::sleep`: its last look at
        // the word above, or this.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Relaxed) {
            drain.unpark();
        }
    }

    /// A program would wake the thread that answers points.
    pub(crate) fn is_asleep(&self) -> bool {
        self.segment.word32(WATCH).load(Relaxed) == watch::ASLEEP
    }

    /// Wakes the thread that answers points, if it sleeps.
    pub(crate) fn wake_points(&self) {
        // ORDERING: pairs with the fence in `Points::sleep`.
        fence(Ordering::SeqCst);
        let watches = self.segment.word32(WATCH);
        let _ = watches.compare_exchange(watch::ASLEEP, watch::BELLS, Relaxed, Relaxed);
        futex::wake(watches);
    }
}

/// A segment's host: the threads that serve it. Dropped, it drains what is left
/// and ends.
#[derive(Debug)]
pub struct Host {
    shared: Arc<Shared>,
    points: Option<JoinHandle<Counts>>,
    drain: Option<JoinHandle<Counts>>,
    drain_thread: Thread,
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
        let shared = Arc::new(Shared {
            segment: Arc::clone(segment),
            mask_version: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            is_drain_due: AtomicBool::new(false),
            last_pass: AtomicU64::new(ticks()),
            stop_points: AtomicBool::new(false),
            stop_drain: AtomicBool::new(false),
        });
        let policy = Policy { period: policy.period.min(Duration::from_millis(BEAT_MS)), ..policy };
        segment.word32(HOST_PID).store(std::process::id(), Relaxed);
        segment.page_l(BEGAN, WORD)[0].store(ticks(), Relaxed);
        let sink = Arc::new(sink);
        let mut drain = Drain::new(Arc::clone(&shared), Arc::clone(&sink), policy.budget);
        drain.publish_triggers();
        // ORDERING: whoever sees this sees the rest of the page.
        segment.word32(STATE).store(State::Serving as u32, Ordering::Release);
        let drain = Arc::new(Mutex::new(drain));
        let (for_points, of_points) = (Arc::clone(&drain), Arc::clone(&shared));
        let drain = thread::Builder::new()
            .name("drain".into())
            .spawn(move || drain::run(&drain, policy.period))?;
        let mut host =
            Host { shared, points: None, drain_thread: drain.thread().clone(), drain: Some(drain) };
        let points = thread::Builder::new()
            .name("segment".into())
            .spawn(move || points::run(&of_points, &*sink, &for_points, policy))?;
        host.points = Some(points);
        Ok(host)
    }

    /// Who calls what it gives has it drain soon.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let (shared, drain) = (Arc::clone(&self.shared), self.drain_thread.clone());
        move || shared.wake_drain(&drain)
    }

    /// Drains what is left and ends: gives what it has counted.
    pub fn finish(mut self) -> BTreeMap<String, u64> {
        let counts = self.end();
        let mut sums = BTreeMap::new();
        for (name, count) in counts {
            *sums.entry(name.to_owned()).or_default() += count;
        }
        sums
    }

    fn end(&mut self) -> Counts {
        // The last point before the last pass.
        self.shared.segment.word32(STATE).store(State::Ended as u32, Relaxed);
        // ORDERING: pairs with the fence in `Points::end`: the state comes first.
        self.shared.stop_points.store(true, Ordering::Release);
        let mut counts = self.end_points();
        self.shared.stop_drain.store(true, Relaxed);
        self.drain_thread.unpark();
        counts.extend(join(&mut self.drain));
        counts
    }

    /// Has the thread that answers points end. It sleeps on a word that programs
    /// can get at: one that does its worst can keep it from being woken. Then it
    /// is left to sleep, which is counted; it holds nothing that is needed.
    fn end_points(&mut self) -> Counts {
        let begin = Instant::now();
        while let Some(points) = &self.points
            && !points.is_finished()
        {
            self.shared.wake_points();
            // One that does not sleep has a pass to end.
            if self.shared.sleeps.load(Relaxed) && begin.elapsed() > MOST_WAKING {
                self.points = None;
                return vec![("not_woken", 1)];
            }
            thread::sleep(begin.elapsed().min(Duration::from_millis(1)));
        }
        join(&mut self.points)
    }
}

/// How long to try to wake a thread that does not wake.
const MOST_WAKING: Duration = Duration::from_secs(1);

/// What such a thread has counted; a panic, if that was its end.
fn join(thread: &mut Option<JoinHandle<Counts>>) -> Counts {
    match thread.take().map(JoinHandle::join) {
        Some(Ok(counts)) => counts,
        Some(Err(_)) => vec![(PANICS, 1)],
        None => Counts::new(),
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}
