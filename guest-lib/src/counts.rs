//! Counts of this process, apart from those of its clients' rings.
#![cfg_attr(not(feature = "std"), allow(dead_code))]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};

static UNATTACHED: AtomicU64 = AtomicU64::new(0);
/// Those of [`UNATTACHED`] that are not published yet.
static UNTOLD: AtomicU64 = AtomicU64::new(0);
/// Whether a thread is publishing those.
static TELLING: AtomicBool = AtomicBool::new(false);
pub(crate) static ABANDONED: AtomicU64 = AtomicU64::new(0);
pub(crate) static UNANSWERED: AtomicU64 = AtomicU64::new(0);
pub(crate) static TAKEN: AtomicU64 = AtomicU64::new(0);
static HOST_ENDED: AtomicU64 = AtomicU64::new(0);

/// Counts of this process's clients and events that the host does not show. Running
/// totals; a forked child begins at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessCounts {
    /// Events of threads that had no client: no client was free, the thread
    /// was ending, another took more than a second to open the device, or the program
    /// has closed the lock file and it cannot be opened again. Also the events of the last 20 ms of a client that a reset
    /// of the device has taken. Not those of a process
    /// without a device. The host learns the count within some 10 ms, and when a thread
    /// or the process ends, from a client that the
    /// process has; over a segment also without one.
    pub unattached: u64,
    /// Clients that a thread abandoned because it found an emit on them under way
    /// for 10 ms: a signal handler has jumped out of it. The thread keeps them
    /// until it ends, and uses another.
    pub abandoned: u64,
    /// Clients that were left because another had taken them.
    pub taken: u64,
    /// Reference points that a segment's host did not answer within a second,
    /// or that no thread waited for because it was dead already; and those that a device's host did
    /// not answer before the store had ended: its server has died or hung, or the VMM has dropped the
    /// device. It may have recorded them. Their status is [`Failed`](crate::Status::Failed).
    pub unanswered: u64,
    /// Events that no host took, as it had ended: over shared memory those that were in the rings after its
    /// last look, and all later ones. Also the events since the device was taken away: a guest's kernel module was loaded
    /// while the process had it by sysfs, or the driver was unbound. Then up to 10 ms of earlier ones are in it. A process that finds such a host when it opens has none, and counts nothing.
    pub host_ended: u64,
}

/// Returns the counts of this process's clients and events that the host does not
/// show.
pub fn counts() -> ProcessCounts {
    ProcessCounts {
        unattached: UNATTACHED.load(Relaxed),
        abandoned: ABANDONED.load(Relaxed),
        taken: TAKEN.load(Relaxed),
        unanswered: UNANSWERED.load(Relaxed),
        host_ended: HOST_ENDED.load(Relaxed),
    }
}

pub(crate) fn unattached(events: u64) {
    UNATTACHED.fetch_add(events, Relaxed);
    UNTOLD.fetch_add(events, Relaxed);
}

pub(crate) fn host_ended(events: u64) {
    HOST_ENDED.fetch_add(events, Relaxed);
}

/// Returns true if all events of threads without a client are published.
pub(crate) fn is_told() -> bool {
    UNTOLD.load(Relaxed) == 0 && !TELLING.load(Relaxed)
}

/// Begins to publish the events of threads without a client. Returns their count, for
/// the caller to set to 0. `None` if another thread is publishing. One at a time, so
/// that a process which ends can wait until a count that was taken is published.
pub(crate) fn begin_telling() -> Option<&'static AtomicU64> {
    // ORDERING: pairs with the Release in `end_telling`.
    (!TELLING.swap(true, Ordering::Acquire)).then_some(&UNTOLD)
}

/// Ends the turn that [`begin_telling`] gave.
pub(crate) fn end_telling() {
    // ORDERING: pairs with the Acquire in `begin_telling`: what was taken is published.
    TELLING.store(false, Ordering::Release);
}

/// Adds 1 to one of the counts.
pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

/// In a forked child.
pub(crate) fn forget() {
    for count in [&UNATTACHED, &UNTOLD, &ABANDONED, &TAKEN, &UNANSWERED, &HOST_ENDED] {
        count.store(0, Relaxed);
    }
    TELLING.store(false, Relaxed);
}
