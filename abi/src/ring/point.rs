// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reference points on the guest's side: writing the slot.

use super::fence::store_fence;
use super::producer::{Emit, Producer, give_up, leave};
use super::schema_log;
use crate::atomic::{Ordering, Ordering::Relaxed, compiler_fence, fence};
use crate::event::{Fields, Site};
use crate::layout::{SLOT_HEADER_WORDS, SLOT_WORDS, guest_page};

impl Producer<'_> {
    /// Writes the slot for this event, then calls `fire` with the event's timestamp and the slot's number.
    /// `fire` stores the number to EMIT. No other event of this client happens between the timestamp and the
    /// end of `fire`. The event's schema and all earlier records of the client are visible when `fire` is
    /// called.
    ///
    /// # Errors
    /// [`Emit::Busy`] (counted), [`Emit::Unleased`], or [`Emit::Full`] (counted) if the event is larger than
    /// a slot.
    // Inlined, because the caller's closures would otherwise be called through memory.
    #[inline(always)]
    pub fn slot<S: Site, F: Fields, R>(
        &self,
        site: S,
        clock: impl Fn() -> u64,
        seq: impl FnOnce() -> u32,
        cpu: u32,
        fields: F,
        fire: impl FnOnce(u64, u32) -> R,
    ) -> Result<R, Emit> {
        // This emit needs no waker, because the store to EMIT wakes the reader.
        let now = self.enter(clock, None)?;
        if !self.state.is_leased() {
            give_up(self.state);
            return Err(Emit::Unleased);
        }
        let id = site.id::<F>();
        if let Some(text) = site.text::<F>().filter(|_| !self.state.knows(id)) {
            schema_log::announce(&self.memory, self.state, text, self.fenced);
        }
        self.publish_losses();
        let payload = fields.words();
        if payload > SLOT_WORDS {
            give_up(self.state);
            self.count_full();
            return Err(Emit::Full);
        }
        // `seq` is called inside the emit, so that no point of a signal handler can get the same number.
        let seq = seq();
        let slot = &self.memory.guest[guest_page::SLOT..][..SLOT_HEADER_WORDS + SLOT_WORDS];
        // This store comes first, because it clears the request for the previous point, which a host may
        // still poll.
        slot[3].store(payload as u64, Relaxed);
        slot[0].store(u64::from(seq) | u64::from(id) << 32, Relaxed);
        // ORDERING: pairs with the Acquire fence in `slot::serve`: a late host that sees any of the stores
        // below also sees the new number.
        fence(Ordering::Release);
        slot[1].store(u64::from(site.name_hash()) | u64::from(cpu) << 32, Relaxed);
        slot[2].store(now, Relaxed);
        fields.put(&slot[SLOT_HEADER_WORDS..]);
        // ORDERING: the store to EMIT is a volatile access that must come after these stores. x86 orders the
        // stores without a fence; on other CPUs and for write-combining mappings, this fence orders the
        // stores.
        if self.fenced || !cfg!(target_arch = "x86_64") {
            store_fence();
        }
        // If a `longjmp` leaves the emit here, `asked` tells `release` which reply to look for.
        self.state.asked.store(1 << 32 | u64::from(seq), Relaxed);
        compiler_fence(Ordering::SeqCst);
        let fired = fire(now, seq);
        compiler_fence(Ordering::SeqCst);
        self.state.asked.store(0, Relaxed);
        leave(self.state, now);
        Ok(fired)
    }
}
