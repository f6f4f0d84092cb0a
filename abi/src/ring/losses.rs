// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counting lost events, and publishing the counts as running totals in page G.
//!
//! The client's owner alone stores there. A signal handler on its thread may interrupt it in the middle of that.

use super::producer::Producer;
use super::state::ProducerState;
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};
use crate::layout::guest_page;

impl ProducerState {
    /// Counts an event in one of the totals.
    pub(super) fn count(&self, total: &AtomicU64) {
        // A handler may interrupt this, so a load and a store would lose counts.
        total.fetch_add(1, Relaxed);
        self.unpublished.store(1, Relaxed);
    }
}

impl<'m> Producer<'m> {
    /// Returns the producer of a process that counts there the events of its threads without a client. The
    /// producer takes them into its own totals when it publishes these.
    pub fn with_unattached(mut self, events: &'m AtomicU64) -> Self {
        self.unattached = Some(events);
        self
    }

    /// Publishes the running totals of dropped events. In the middle of another such call on the same thread it
    /// leaves that to the outer one, so that the published totals never go backwards.
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
            // Before the totals are read: a later count sets it again.
            state.unpublished.store(0, Relaxed);
            compiler_fence(Ordering::SeqCst);
            for (word, total) in [
                (guest_page::LOST_FULL, &state.lost_full),
                (guest_page::LOST_BUSY, &state.lost_busy),
                (guest_page::LOST_UNATTACHED, &state.lost_unattached),
            ] {
                let (published, total) = (&self.memory.guest[word], total.load(Relaxed));
                // The host's CPU may have the line.
                if published.load(Relaxed) != total {
                    published.store(total, Relaxed);
                }
            }
            compiler_fence(Ordering::SeqCst);
            state.publishing.store(0, Relaxed);
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Counts events that interrupted what this client's owner did in the library outside of any emit, as those that
    /// interrupt an emit.
    pub fn count_busy(&self, events: u64) {
        self.state.lost_busy.fetch_add(events, Relaxed);
        self.state.unpublished.store(1, Relaxed);
        self.publish_losses();
    }

    /// Publishes the totals and ends the lease.
    pub(super) fn publish_last(&self) {
        // A jump may have left it taken.
        self.state.publishing.store(0, Relaxed);
        self.state.unpublished.store(1, Relaxed);
        self.publish_losses();
        self.state.forget();
    }
}
