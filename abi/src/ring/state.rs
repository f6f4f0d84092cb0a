// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The private state of a producer.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};
use crate::schema::MAX_SCHEMAS;
use core::cell::Cell;
use core::marker::PhantomData;

/// Maximum number of known ids. The table is small for the model checker, which visits every slot in every
/// execution.
pub(super) const MAX_KNOWN: u64 = if cfg!(hypertrace_loom) { 4 } else { MAX_SCHEMAS as u64 };
/// Number of slots in the table of known ids. At most half of the slots are used, so a search ends soon.
const KNOWN: usize = 2 * MAX_KNOWN as usize;

/// The private state of a producer. All zeros mean "no lease". A fork with MADV_WIPEONFORK zeroes the state
/// in the child, so the child never writes as its parent.
///
/// A state and the producer that refers to it belong to one thread, because producers on two threads would
/// overwrite each other's records.
///
/// ```compile_fail,E0277
/// # use hypertrace_abi::ring::ProducerState;
/// fn share(state: &ProducerState) {
///     std::thread::scope(|threads| {
///         threads.spawn(|| state.is_leased());
///     });
/// }
/// ```
///
/// If other threads of a program [revoke](ProducerState::revoke) leases or read
/// [counts](ProducerState::attempted), the program has to wrap the state in a `Sync` type, and to argue in a
/// comment why this is sound.
#[derive(Debug)]
#[repr(C)]
pub struct ProducerState {
    /// Timestamp of the emit in progress, 0 if there is none.
    pub(super) busy: AtomicU64,
    /// Timestamp of the last emit.
    pub(super) last: AtomicU64,
    /// Ring position of the next record, in words.
    pub(super) head: AtomicU64,
    /// Ring position up to which an emit writes its record on the fast path, without any other check of the
    /// room.
    pub(super) limit: AtomicU64,
    /// Ring position up to which there is room in the current block.
    pub(super) room: AtomicU64,
    /// Number of records written, over all holders.
    pub(super) sequence: AtomicU64,
    /// Token of the lease, 0 without a lease.
    pub(super) token: AtomicU64,
    /// 1 until the lease record is in the ring.
    pub(super) fresh: AtomicU64,
    pub(super) lost_full: AtomicU64,
    pub(super) lost_busy: AtomicU64,
    pub(super) lost_unattached: AtomicU64,
    /// 1 if a total has changed since it was published.
    pub(super) unpublished: AtomicU64,
    /// 1 while the owner publishes the totals, and after a `longjmp` out of the publication.
    pub(super) publishing: AtomicU64,
    /// `1 << 32 | seq` of the reference point in progress, 0 if there is none.
    pub(super) asked: AtomicU64,
    pub(super) schema_len: AtomicU64,
    pub(super) known_len: AtomicU64,
    pub(super) known: [AtomicU32; KNOWN],
    /// This member makes the state not `Sync`.
    pub(super) one_thread: PhantomData<Cell<()>>,
}

impl Default for ProducerState {
    fn default() -> Self {
        ProducerState::new()
    }
}

macro_rules! zero_state {
    ($zero64:expr, $zero32:expr) => {
        ProducerState {
            busy: $zero64,
            last: $zero64,
            head: $zero64,
            limit: $zero64,
            room: $zero64,
            sequence: $zero64,
            token: $zero64,
            fresh: $zero64,
            lost_full: $zero64,
            lost_busy: $zero64,
            lost_unattached: $zero64,
            unpublished: $zero64,
            publishing: $zero64,
            asked: $zero64,
            schema_len: $zero64,
            known_len: $zero64,
            known: $zero32,
            one_thread: PhantomData,
        }
    };
}

impl ProducerState {
    /// Makes a state without a lease: all zeros.
    #[cfg(not(hypertrace_loom))]
    pub const fn new() -> Self {
        zero_state!(AtomicU64::new(0), [const { AtomicU32::new(0) }; KNOWN])
    }

    /// Makes a state without a lease: all zeros.
    #[cfg(hypertrace_loom)]
    pub fn new() -> Self {
        zero_state!(AtomicU64::new(0), core::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Returns the slot in the table of known ids that a search for `id` visits after `number` other slots.
    /// Ids with the same first slot seldom have the same second slot.
    #[inline(always)]
    fn slot(&self, id: u32, number: u32) -> &AtomicU32 {
        // The step is odd and the number of slots is a power of two, so the steps reach every slot.
        let at = id.wrapping_add(number * (id >> 16 | 1));
        &self.known[at as usize % KNOWN]
    }

    /// Returns whether `id` is in the first or the second slot of the search for `id`. These two slots
    /// contain almost all known ids.
    #[inline(always)]
    pub(super) fn knows(&self, id: u32) -> bool {
        self.slot(id, 0).load(Relaxed) == id || self.slot(id, 1).load(Relaxed) == id
    }

    /// Returns the slot for an unknown id, or `None` if the id is known.
    pub(super) fn free_slot(&self, id: u32) -> Option<&AtomicU32> {
        let slots = (0..KNOWN as u32).map(|number| self.slot(id, number));
        let mut taken = slots.skip_while(|slot| ![0, id].contains(&slot.load(Relaxed)));
        taken.next().filter(|slot| slot.load(Relaxed) == 0)
    }

    /// Returns the timestamp of an emit that has begun and not ended, if there is one.
    pub fn interrupted_since(&self) -> Option<u64> {
        Some(self.busy.load(Relaxed)).filter(|since| *since != 0)
    }

    /// Ends the lease with this token. The caller is another thread, which has found that the client belongs
    /// to somebody else now. The producer's next slow path, at most a block later, returns
    /// [`Emit::Unleased`](super::Emit::Unleased). Returns `false` if the producer holds another lease by now.
    pub fn revoke(&self, token: u64) -> bool {
        let revoked = self.token.compare_exchange(token, 0, Relaxed, Relaxed).is_ok();
        if revoked {
            // This store is only a hint, because the producer may overwrite this limit with its own limit.
            self.limit.store(0, Relaxed);
        }
        revoked
    }

    /// Returns whether this producer holds a lease.
    pub fn is_leased(&self) -> bool {
        self.token.load(Relaxed) != 0
    }

    /// Returns the lease's token, 0 without a lease.
    pub fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    /// Returns the number of records written plus events dropped, over all holders of the client. Any thread
    /// may call this.
    pub fn attempted(&self) -> u64 {
        let counts = [&self.sequence, &self.lost_full, &self.lost_busy];
        counts.iter().fold(0, |sum, count| sum.wrapping_add(count.load(Relaxed)))
    }

    /// Gives up the lease: later emits return
    /// [`Emit::Unleased`](super::Emit::Unleased).
    pub fn forget(&self) {
        self.limit.store(0, Relaxed);
        self.token.store(0, Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.busy.store(0, Relaxed);
    }
}
