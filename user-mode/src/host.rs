//! The host, which has two threads. The points thread answers reference points and, while it is awake, drains
//! rings. The drain thread drains the rings while the points thread sleeps.
//!
//! There are two threads, because a thread that sleeps until a program rings must not need a timer: disarming
//! a timer takes longer than answering. The points thread drains while it is awake, because on a machine with
//! two CPUs the drain thread gets no CPU. One CPU runs the program that asks, and the other CPU runs the
//! points thread.

use crate::drain::{self, Drain};
use crate::points;
use crate::policy::Policy;
use crate::state::{HostState, PANICS, ThreadCounts};
use hypertrace_abi::atomic::{Ordering, Ordering::Relaxed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::local::{BEAT_MS, State};
use hypertrace_abi::sink::{EventSink, PassConfig};
use hypertrace_segment::Segment;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// A segment's host: the threads that serve the segment. On its drop, the host drains what is left and ends.
#[derive(Debug)]
pub struct Host {
    state: Arc<HostState>,
    points: Option<JoinHandle<ThreadCounts>>,
    drain: Option<JoinHandle<ThreadCounts>>,
    drain_thread: Thread,
}

impl Host {
    /// Starts the host.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start<S: EventSink + 'static>(
        segment: &Arc<Segment>,
        sink: S,
        policy: Policy,
    ) -> io::Result<Host> {
        let mut policy = policy;
        policy.drain.period = policy.drain.period.min(Duration::from_millis(BEAT_MS));
        let state = Arc::new(HostState::new(Arc::clone(segment), policy));
        let local = segment.local();
        local.host_pid().store(std::process::id(), Relaxed);
        local.began().store(ticks(), Relaxed);
        let sink = Arc::new(sink);
        let drain = Drain::new(Arc::clone(&state), Arc::clone(&sink));
        // Switches all events on, until the first pass says which events are on.
        drain.set(&PassConfig::default());
        // ORDERING: a program that sees this state sees the rest of the page.
        local.state().store(State::Serving as u32, Ordering::Release);
        let drain = Arc::new(Mutex::new(drain));
        let (for_points, of_points) = (Arc::clone(&drain), Arc::clone(&state));
        let drain =
            thread::Builder::new().name("ht-drain".into()).spawn(move || drain::run(&drain))?;
        let mut host =
            Host { state, points: None, drain_thread: drain.thread().clone(), drain: Some(drain) };
        let points = thread::Builder::new()
            .name("ht-points".into())
            .spawn(move || points::run(&of_points, &*sink, &for_points))?;
        host.points = Some(points);
        Ok(host)
    }

    /// Returns a callback that requests a drain.
    pub fn waker(&self) -> impl Fn() + Send + Sync + 'static {
        let (state, drain) = (Arc::clone(&self.state), self.drain_thread.clone());
        move || state.wake_drain(&drain)
    }

    /// Drains what is left and ends the host. Returns the host's counters.
    pub fn finish(mut self) -> BTreeMap<String, u64> {
        let counts = self.end();
        let mut sums = BTreeMap::new();
        for (name, count) in counts {
            *sums.entry(name.to_owned()).or_default() += count;
        }
        sums
    }

    fn end(&mut self) -> ThreadCounts {
        // The points are stopped before the last pass, because the last pass takes the last point.
        self.state.segment.local().state().store(State::Ended as u32, Relaxed);
        // ORDERING: pairs with the fence in `Points::end`: the state is stored first.
        self.state.stop_points.store(true, Ordering::Release);
        let mut counts = self.end_points();
        self.state.stop_drain.store(true, Relaxed);
        self.drain_thread.unpark();
        counts.extend(join(&mut self.drain));
        let segment = &self.state.segment;
        // ORDERING: a program that sees the end sees the last positions in page H.
        segment.local().end().store(segment.page().end_mark(), Ordering::Release);
        counts
    }

    /// Ends the points thread. The thread sleeps on a word that programs can write. So a hostile program can
    /// prevent the host from waking the thread. In this case, the host counts the thread and leaves it
    /// asleep, because the thread holds nothing that the host needs.
    fn end_points(&mut self) -> ThreadCounts {
        let begin = Instant::now();
        while let Some(points) = &self.points
            && !points.is_finished()
        {
            self.state.wake_points();
            // The host gives up only a sleeping thread, because a thread that is awake may have a pass to
            // end.
            if self.state.sleeps.load(Relaxed) && begin.elapsed() > MAX_WAKING {
                self.points = None;
                return vec![("not_woken", 1)];
            }
            thread::sleep(begin.elapsed().min(Duration::from_millis(1)));
        }
        join(&mut self.points)
    }
}

/// Maximum time for which the host tries to wake the points thread.
const MAX_WAKING: Duration = Duration::from_secs(1);

/// Waits for a thread's end. Returns the thread's counters. If the thread ended by a panic, the only counter
/// is this panic.
fn join(thread: &mut Option<JoinHandle<ThreadCounts>>) -> ThreadCounts {
    match thread.take().map(JoinHandle::join) {
        Some(Ok(counts)) => counts,
        Some(Err(_)) => vec![(PANICS, 1)],
        None => ThreadCounts::new(),
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}
