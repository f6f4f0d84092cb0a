// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counting lost events, and publishing the counts as running totals in page G.
//!
//! Only the client's owner stores to page G. A signal handler on the owner's thread may interrupt the
//! publication.

use super::producer::Producer;
use super::state::ProducerState;
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};
use crate::layout::guest_page;

impl ProducerState {
    /// Counts an event in one of the totals.
    pub(super) fn count(&self, total: &AtomicU64) {
        // The addition is atomic: if a signal handler interrupted a load and a store, the handler's counts
        // would be lost.
        total.fetch_add(1, Relaxed);
        self.unpublished.store(1, Relaxed);
    }
}

impl<'m> Producer<'m> {
    /// Gives the producer the counter `events`, which counts the events of this process's threads without a
    /// client. When the producer publishes the totals, the producer moves this count to the totals.
    pub fn with_unattached(mut self, events: &'m AtomicU64) -> Self {
        self.unattached = Some(events);
        self
    }

    /// Publishes the running totals of dropped events. A call that interrupts another call on the same thread
    /// leaves the publication to the outer call, so that the published totals never go backwards.
    pub(super) fn publish_losses(&self) {
        let state = self.state;
        if let Some(events) = self.unattached
            && events.load(Relaxed) != 0
        {
            state.lost_unattached.fetch_add(events.swap(0, Relaxed), Relaxed);
            state.unpublished.store(1, Relaxed);
        }
        while state.unpublished.load(Relaxed) != 0 && state.publishing.load(Relaxed) == 0 {
            state.publishing.store(1, Relaxed);
            compiler_fence(Ordering::SeqCst);
            // Clears the flag before the totals are read, so that a later count sets the flag again.
            state.unpublished.store(0, Relaxed);
            compiler_fence(Ordering::SeqCst);
            for (word, total) in [
                (guest_page::LOST_FULL, &state.lost_full),
                (guest_page::LOST_BUSY, &state.lost_busy),
                (guest_page::LOST_UNATTACHED, &state.lost_unattached),
            ] {
                let (published, total) = (&self.memory.guest[word], total.load(Relaxed));
                // A total is stored only if it has changed, because the host's CPU may have the cache line.
                if published.load(Relaxed) != total {
                    published.store(total, Relaxed);
                }
            }
            compiler_fence(Ordering::SeqCst);
            state.publishing.store(0, Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Counts `events` that interrupted the client's owner while the owner was in the library, but not in an
    /// emit. The events count as if they had interrupted an emit.
    pub fn count_busy(&self, events: u64) {
        self.state.lost_busy.fetch_add(events, Relaxed);
        self.state.unpublished.store(1, Relaxed);
        self.publish_losses();
    }

    /// Publishes the totals and ends the lease.
    pub(super) fn publish_last(&self) {
        // A `longjmp` may have left this flag set.
        self.state.publishing.store(0, Relaxed);
        self.state.unpublished.store(1, Relaxed);
        self.publish_losses();
        self.state.forget();
    }
}
