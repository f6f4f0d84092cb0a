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

/// Counters of a thread of the host, by their names.
pub(crate) type ThreadCounts = Vec<(&'static str, u64)>;

/// The counter of panics in the sink, which are reported on stderr.
pub(crate) const PANICS: &str = "panics";

/// State that the thread which answers points and the one which drains share.
#[derive(Debug)]
pub(crate) struct HostState {
    pub(crate) segment: Arc<Segment>,
    pub(crate) policy: Policy,
    /// The segment is a VM's: neither side can wake the other.
    pub(crate) is_remote: bool,
    pub(crate) versions: Versions,
    /// The thread that answers points sleeps, or is about to.
    pub(crate) sleeps: AtomicBool,
    pub(crate) is_drain_due: AtomicBool,
    /// Whether each client rang once, has made a point or has written, so that it is or was leased.
    pub(crate) is_used: Box<[AtomicBool]>,
    /// The rings are idle, so the drain thread makes few passes, and looks in each for points that a VM has asked for.
    pub(crate) is_polled: AtomicBool,
    /// The thread that answers points.
    pub(crate) points_thread: OnceLock<Thread>,
    /// A client has asked for a point, maybe without its bell: all slots are to be looked at.
    pub(crate) is_point_due: AtomicBool,
    /// The beat that this host stored last. Another number: a VM's memory is that of another time.
    pub(crate) beat: AtomicU64,
    /// So is a client's tail that this host has not stored.
    pub(crate) is_replaced: AtomicBool,
    /// This host has seen it, and waits until the memory does not change any more.
    pub(crate) is_settling: AtomicBool,
    /// When the last pass ended: the raw counter.
    pub(crate) last_pass: AtomicU64,
    /// Passes that have ended.
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

    /// Requests a pass of the thread that is awake, or of the one that drains.
    pub(crate) fn wake_drain(&self, drain: &Thread) {
        self.is_drain_due.store(true, Ordering::Release);
        // ORDERING: pairs with the fence in `Points::sleep`: its last look at
        // the word above, or this.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Relaxed) {
            drain.unpark();
        }
    }

    /// Returns true if a VM's memory may be that of another time, whose points are of no epoch that has begun.
    pub(crate) fn is_of_another_time(&self) -> bool {
        let is_same = || self.segment.local().beat().load(Relaxed) == self.beat.load(Relaxed);
        self.is_remote && (self.is_settling.load(Relaxed) || !is_same())
    }

    /// Returns true if the thread that answers points sleeps until somebody wakes it: a program, or for a VM this process.
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
