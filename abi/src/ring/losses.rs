// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counting lost events, and publishing the counts as running totals in page G.
//!
//! One thread at a time publishes: the producer in an emit, or another thread for an
//! idle producer. With one writer the published totals never go backwards.

use super::ClientMemory;
use super::state::{BY_OTHER, BY_OWNER, ProducerState};
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, spin_loop};
use crate::layout::guest_page;

impl ProducerState {
    /// Counts an event in one of the totals.
    pub(super) fn count(&self, total: &AtomicU64) {
        // A handler may interrupt this, so a load and a store would lose counts.
        total.fetch_add(1, Relaxed);
        // ORDERING: pairs with the Acquire in `publish_totals`: a thread that takes the
        // flag sees the count above.
        self.unpublished.store(1, Ordering::Release);
    }

    /// Publishes the running totals of dropped events, during an emit.
    #[inline(always)]
    pub(super) fn publish_losses(&self, memory: &ClientMemory<'_>) {
        // If another thread is publishing, later losses remain for the next time.
        if self.unpublished.load(Relaxed) != 0 && self.begin_publishing(BY_OWNER) {
            self.publish_totals(memory);
            self.end_publishing();
        }
    }

    /// Publishes the totals and ends the lease: the thread ends.
    pub(super) fn publish_last(&self, memory: &ClientMemory<'_>) {
        // BY_OWNER remains only if a jump has left our turn.
        self.wait_to_publish(BY_OWNER);
        self.publish_totals(memory);
        self.forget();
        self.end_publishing();
    }

    /// Publishes the totals of a producer that belongs to another thread and may be idle.
    pub fn tell_losses(&self, memory: &ClientMemory<'_>) {
        if self.unpublished.load(Relaxed) == 0 || !self.begin_publishing(BY_OTHER) {
            return;
        }
        // Checked after `publishing` is taken: `release` waits for that before the client
        // can get another lessee.
        if self.token.load(Ordering::Acquire) != 0 {
            self.publish_totals(memory);
        }
        self.end_publishing();
    }

    /// Ends the lease of a producer that belongs to another thread, as the client may be
    /// another process's now. Returns the losses that were not published.
    pub fn revoke_untold(&self, memory: &ClientMemory<'_>) -> u64 {
        let is_ours = self.wait_to_publish(BY_OTHER);
        let untold = |total: &AtomicU64, word: usize| {
            total.load(Relaxed).saturating_sub(memory.guest[word].load(Relaxed))
        };
        let untold = untold(&self.lost_full, guest_page::LOST_FULL)
            .saturating_add(untold(&self.lost_busy, guest_page::LOST_BUSY));
        let revoked = self.revoke(self.token());
        if is_ours {
            self.end_publishing();
        }
        // Otherwise the owner is publishing them now.
        if is_ours && revoked { untold } else { 0 }
    }

    /// Adds `events`, of threads of this process that have no client, to the running
    /// total of this client of another thread, publishes the total, and clears `events`.
    /// Returns `false`, without any effect, if the client is not leased or its totals are
    /// being published. No signal handler may leave the call by a jump.
    pub fn tell_unattached(&self, memory: &ClientMemory<'_>, events: &AtomicU64) -> bool {
        if !self.begin_publishing(BY_OTHER) {
            return false;
        }
        // Checked after `publishing` is taken, as in `tell_losses`. ORDERING: pairs with the
        // Release in `lease`: the total is that lease's.
        let leased = self.token.load(Ordering::Acquire) != 0;
        if leased {
            let more = events.swap(0, Relaxed);
            let total = self.lost_unattached.load(Relaxed).wrapping_add(more);
            self.lost_unattached.store(total, Relaxed);
            memory.guest[guest_page::LOST_UNATTACHED].store(total, Relaxed);
        }
        self.end_publishing();
        leased
    }

    /// Takes the turn to publish. Returns `false` if it is taken.
    fn begin_publishing(&self, by: u64) -> bool {
        // ORDERING: pairs with the Release in `end_publishing`: the last holder's totals.
        self.publishing.compare_exchange(0, by, Ordering::Acquire, Relaxed).is_ok()
    }

    /// Takes the turn to publish after another thread, which is done soon. Returns `false`
    /// if the owner holds it.
    fn wait_to_publish(&self, by: u64) -> bool {
        loop {
            // ORDERING: as in `begin_publishing`.
            match self.publishing.compare_exchange(0, by, Ordering::Acquire, Relaxed) {
                Err(BY_OTHER) => spin_loop(),
                taken => return taken.is_ok(),
            }
        }
    }

    fn end_publishing(&self) {
        // ORDERING: pairs with the Acquire of the next holder.
        self.publishing.store(0, Ordering::Release);
    }

    /// Publishes the running totals. The caller has the turn to publish.
    fn publish_totals(&self, memory: &ClientMemory<'_>) {
        // ORDERING: pairs with the Release in `count`. Cleared before the totals are
        // read: a later count sets it again.
        self.unpublished.swap(0, Ordering::Acquire);
        memory.guest[guest_page::LOST_FULL].store(self.lost_full.load(Relaxed), Relaxed);
        memory.guest[guest_page::LOST_BUSY].store(self.lost_busy.load(Relaxed), Relaxed);
    }
}
