//! Counts of this process, as opposed to the counts of one client.
#![cfg_attr(not(feature = "std"), allow(dead_code))]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

static UNATTACHED: AtomicU64 = AtomicU64::new(0);
/// Part of [`UNATTACHED`] that is not published yet.
pub(crate) static UNPUBLISHED: AtomicU64 = AtomicU64::new(0);
/// Number of threads that are in [`publish`].
static PUBLISHERS: AtomicU64 = AtomicU64::new(0);
pub(crate) static ABANDONED: AtomicU64 = AtomicU64::new(0);
pub(crate) static UNANSWERED: AtomicU64 = AtomicU64::new(0);
pub(crate) static TAKEN: AtomicU64 = AtomicU64::new(0);
static HOST_ENDED: AtomicU64 = AtomicU64::new(0);

/// Counts of this process, as opposed to the counts of one client. Of these counts, the host learns only
/// `unattached`. Running totals; a forked child begins at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessCounts {
    /// Events of threads that had no client. Either no client was free, or the thread was ending, or another
    /// thread took more than a second to open the device, or the program had closed the lock file and the
    /// library could not open it again. The count includes the events that a client recorded in the last 20
    /// ms before a reset of the device took the client. The count excludes events of a process without a
    /// device. The host of a segment learns the count within some 10 ms, and when a thread or the process
    /// ends. A device's host learns the count when a thread with a client begins a block,
    /// [polls](crate::poll) or ends.
    pub unattached: u64,
    /// Clients that threads have abandoned. A thread abandons a client if an emit on the client has not ended
    /// after 10 ms, because a signal handler has then jumped out of the emit. The thread keeps an abandoned
    /// client until the thread ends, and uses another client.
    pub abandoned: u64,
    /// Clients that threads have given up because another holder had taken them.
    pub taken: u64,
    /// Reference points without an answer. The status of such a point is [`Failed`](crate::Status::Failed). A
    /// segment's host did not answer within a second, or was known to be dead. A device's host did not answer
    /// before the store ended, because the device's server has died or hung, or the VMM has dropped the
    /// device. The host may have recorded such a point.
    pub unanswered: u64,
    /// Events since the host of shared memory has ended, or since the device was taken away. The device is
    /// taken away if the guest's kernel module is loaded while the process uses the device through sysfs, or
    /// if the driver is unbound. The count includes up to 10 ms of earlier events. If the process looks for a
    /// device after the host's end, the count stays 0.
    pub host_ended: u64,
}

/// Returns the counts of this process.
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

/// Adds the number of unpublished events to `total`, to which other processes add, too.
pub(crate) fn publish(total: &AtomicU64) {
    if UNPUBLISHED.load(Relaxed) != 0 {
        PUBLISHERS.fetch_add(1, SeqCst);
        total.fetch_add(UNPUBLISHED.swap(0, SeqCst), SeqCst);
        PUBLISHERS.fetch_sub(1, SeqCst);
    }
}

/// Waits at most a second for the threads that are in [`publish`]. These threads have taken events out of one
/// count, and have not yet added the events to another count. If the process ended now, no count would
/// include these events.
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

/// Sets all counts to zero, in a forked child.
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
        // Counts this test as a thread in the middle of `publish`.
        PUBLISHERS.fetch_add(1, SeqCst);
        scope(|scope| {
            scope.spawn(|| {
                // The sleep stands for a busy machine, which gives the thread no CPU for a while.
                sleep(Duration::from_millis(400));
                total.fetch_add(3, SeqCst);
                PUBLISHERS.fetch_sub(1, SeqCst);
            });

            settle();

            assert_eq!(total.load(SeqCst), 3);
        });
    }
}
