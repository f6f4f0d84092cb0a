//! Counts of this process, apart from those of its clients' rings.
#![cfg_attr(not(feature = "std"), allow(dead_code))]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

static UNATTACHED: AtomicU64 = AtomicU64::new(0);
/// Those of [`UNATTACHED`] that are not published yet.
pub(crate) static UNPUBLISHED: AtomicU64 = AtomicU64::new(0);
/// Threads that have taken those and not added them yet.
static PUBLISHERS: AtomicU64 = AtomicU64::new(0);
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
    /// without a device. Over a segment the host learns the count within some 10 ms, and when a thread
    /// or the process ends; on a device by a thread of the process that has a client, when that begins a block,
    /// [polls](crate::poll) or ends.
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
    /// Events since the host has ended, over shared memory. Also those since the device was taken away: a guest's kernel module was loaded
    /// while the process had it by sysfs, or the driver was unbound. Up to 10 ms of earlier ones are in it. A process that finds such a host when it opens has none, and counts nothing.
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
    UNPUBLISHED.fetch_add(events, Relaxed);
}

pub(crate) fn host_ended(events: u64) {
    HOST_ENDED.fetch_add(events, Relaxed);
}

/// Adds the events that are not published to a total that other processes add to, too.
pub(crate) fn publish(total: &AtomicU64) {
    if UNPUBLISHED.load(Relaxed) != 0 {
        PUBLISHERS.fetch_add(1, SeqCst);
        total.fetch_add(UNPUBLISHED.swap(0, SeqCst), SeqCst);
        PUBLISHERS.fetch_sub(1, SeqCst);
    }
}

/// Waits for the threads that are publishing, a second at most: if the process ended before, what they have
/// taken would be in no count.
#[cfg(feature = "std")]
pub(crate) fn settle() {
    for _ in 0..1000 {
        if PUBLISHERS.load(SeqCst) == 0 {
            break;
        }
        crate::os::nap_or_yield();
    }
}

/// Adds 1 to one of the counts.
pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

/// In a forked child.
pub(crate) fn forget() {
    for count in
        [&UNATTACHED, &UNPUBLISHED, &PUBLISHERS, &ABANDONED, &TAKEN, &UNANSWERED, &HOST_ENDED]
    {
        count.store(0, Relaxed);
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use std::thread::{scope, sleep};
    use std::time::Duration;

    #[test]
    fn the_end_of_a_process_waits_for_a_thread_that_publishes() {
        let total = AtomicU64::new(0);
        // In the middle of `publish`.
        PUBLISHERS.fetch_add(1, SeqCst);
        scope(|scope| {
            scope.spawn(|| {
                // A busy machine has given its CPU to others.
                sleep(Duration::from_millis(400));
                total.fetch_add(3, SeqCst);
                PUBLISHERS.fetch_sub(1, SeqCst);
            });

            settle();

            assert_eq!(total.load(SeqCst), 3);
        });
    }
}
