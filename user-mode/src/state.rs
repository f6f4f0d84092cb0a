//! State that the two threads of a host share.

use crate::policy::Policy;
use hypertrace_abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed, fence};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::Features;
use hypertrace_abi::layout::local::watch;
use hypertrace_abi::slot::Versions;
use hypertrace_segment::{Segment, futex};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// Counters of a thread of the host. The key is the counter's name.
pub(crate) type ThreadCounts = Vec<(&'static str, u64)>;

/// The counter of panics in the sink, which are reported on stderr.
pub(crate) const PANICS: &str = "panics";

/// State that the points thread and the drain thread share.
#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) segment: Arc<Segment>,
    pub(crate) policy: Policy,
    /// True if the segment is a VM's, so that neither side can wake the other.
    pub(crate) is_remote: bool,
    pub(crate) versions: Versions,
    /// True if the thread that answers points sleeps, or is about to.
    pub(crate) sleeps: AtomicBool,
    pub(crate) is_drain_due: AtomicBool,
    /// For each client, true if the client has rung, made a point or written a record. Such a client is or
    /// was leased.
    pub(crate) is_used: Box<[AtomicBool]>,
    /// True if the rings are idle. The drain thread then makes few passes. In each pass, the drain thread
    /// looks for points that a VM asks for.
    pub(crate) is_polled: AtomicBool,
    /// The thread that answers points.
    pub(crate) points_thread: OnceLock<Thread>,
    /// True if a client has asked for a point, maybe without ringing its bell: the points thread has to look
    /// at all slots.
    pub(crate) is_point_due: AtomicBool,
    /// The beat that this host stored last. If page L has another beat, restored memory has replaced a VM's
    /// memory.
    pub(crate) beat: AtomicU64,
    /// True if a pass has found a beat or a tail that this host has not stored, because the memory was
    /// replaced.
    pub(crate) is_replaced: AtomicBool,
    /// True if this host has seen that the memory was replaced, and waits until the memory no longer changes.
    pub(crate) is_settling: AtomicBool,
    /// Raw counter when the last pass ended.
    pub(crate) last_pass: AtomicU64,
    /// Number of passes that have ended.
    pub(crate) passes: AtomicU64,
    pub(crate) stop_points: AtomicBool,
    pub(crate) stop_drain: AtomicBool,
}

impl HostState {
    pub(crate) fn new(segment: Arc<Segment>, policy: Policy) -> HostState {
        let page = segment.page();
        let (relays, all) = segment.clients();
        HostState {
            is_remote: page.features().contains(Features::REMOTE),
            versions: Versions { epoch: page.epoch.into(), ..Versions::default() },
            segment,
            policy,
            sleeps: AtomicBool::new(false),
            is_drain_due: AtomicBool::new(false),
            is_used: (0..all).map(|client| AtomicBool::new(client < relays)).collect(),
            is_polled: AtomicBool::new(false),
            points_thread: OnceLock::new(),
            is_point_due: AtomicBool::new(false),
            beat: AtomicU64::new(0),
            is_replaced: AtomicBool::new(false),
            is_settling: AtomicBool::new(false),
            last_pass: AtomicU64::new(ticks()),
            passes: AtomicU64::new(0),
            stop_points: AtomicBool::new(false),
            stop_drain: AtomicBool::new(false),
        }
    }

    /// Requests a pass of the points thread if the points thread is awake, and otherwise a pass of the drain
    /// thread.
    pub(crate) fn wake_drain(&self, drain: &Thread) {
        self.is_drain_due.store(true, Ordering::Release);
        // ORDERING: pairs with the fence in `Points::sleep`: the last look of the points thread sees the
        // store above, or this load sees that the points thread sleeps.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Relaxed) {
            drain.unpark();
        }
    }

    /// Returns true if restored memory may have replaced a VM's memory. The points in the restored memory
    /// belong to no epoch that has begun.
    pub(crate) fn is_of_another_time(&self) -> bool {
        let is_same = || self.segment.local().beat().load(Relaxed) == self.beat.load(Relaxed);
        self.is_remote && (self.is_settling.load(Relaxed) || !is_same())
    }

    /// Returns true if the thread that answers points sleeps until another thread wakes it. This other thread
    /// belongs to a program or, for a VM, to this process.
    pub(crate) fn is_asleep(&self) -> bool {
        self.is_remote || self.segment.local().watch().load(Relaxed) == watch::ASLEEP
    }

    /// Wakes the thread that answers points, if it sleeps.
    pub(crate) fn wake_points(&self) {
        if self.is_remote {
            self.points_thread.get().map(Thread::unpark);
            return;
        }
        // ORDERING: pairs with the fence in `Points::sleep`.
        fence(Ordering::SeqCst);
        let watches = self.segment.local().watch();
        let _ = watches.compare_exchange(watch::ASLEEP, watch::BELLS, Relaxed, Relaxed);
        futex::wake(watches, u32::MAX >> 1);
    }
}
