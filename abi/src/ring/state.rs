//! The private truth of a producer.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};

/// Slots of the table of known ids. A model checker visits every slot in every
/// execution, so there it has a few.
pub(super) const KNOWN: usize = if cfg!(hypertrace_loom) { 4 } else { 512 };
/// Of the table of known ids, so that a probe for an absent one ends soon.
pub(super) const KNOWN_MOST: u64 = KNOWN as u64 * 3 / 4;

/// `telling` while the producer itself tells its losses; stays when a jump
/// leaves it there.
pub(super) const BY_OWNER: u64 = 1;
/// `telling` while another thread does.
pub(super) const BY_OTHER: u64 = 2;

/// The private truth of a producer. All zeros is "no lease": what a fork with
/// MADV_WIPEONFORK leaves to the child, so that it never writes as its parent.
#[derive(Debug)]
#[repr(C)]
pub struct ProducerState {
    /// Timestamp of the emit under way, 0 if none.
    pub(super) busy: AtomicU64,
    /// Timestamp of the last one.
    pub(super) last: AtomicU64,
    /// Ring position of the next record, in words.
    pub(super) head: AtomicU64,
    /// Up to here records go without a look at anything else.
    pub(super) limit: AtomicU64,
    /// Records written, over all lessees.
    pub(super) sequence: AtomicU64,
    /// Nonzero while leased.
    pub(super) token: AtomicU64,
    /// 1 until the lease record stands in the ring.
    pub(super) fresh: AtomicU64,
    pub(super) lost_full: AtomicU64,
    pub(super) lost_busy: AtomicU64,
    /// Written only in the turn that `telling` gives.
    pub(super) lost_unattached: AtomicU64,
    pub(super) untold: AtomicU64,
    /// Whose turn it is to tell losses: one writer at a time, so that the told
    /// totals never go backwards.
    pub(super) telling: AtomicU64,
    /// 1 << 32 + seq of the reference point under way, 0 if none.
    pub(super) asked: AtomicU64,
    pub(super) schema_len: AtomicU64,
    pub(super) known_len: AtomicU64,
    pub(super) known: [AtomicU32; KNOWN],
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
            sequence: $zero64,
            token: $zero64,
            fresh: $zero64,
            lost_full: $zero64,
            lost_busy: $zero64,
            lost_unattached: $zero64,
            untold: $zero64,
            telling: $zero64,
            asked: $zero64,
            schema_len: $zero64,
            known_len: $zero64,
            known: $zero32,
        }
    };
}

impl ProducerState {
    /// All zeros: no lease.
    #[cfg(not(hypertrace_loom))]
    pub const fn new() -> Self {
        zero_state!(AtomicU64::new(0), [const { AtomicU32::new(0) }; KNOWN])
    }

    /// All zeros: no lease.
    #[cfg(hypertrace_loom)]
    pub fn new() -> Self {
        zero_state!(AtomicU64::new(0), core::array::from_fn(|_| AtomicU32::new(0)))
    }

    /// Whether an emit was interrupted, and at which timestamp it began.
    pub fn interrupted_since(&self) -> Option<u64> {
        match self.busy.load(Relaxed) {
            0 => None,
            since => Some(since),
        }
    }

    /// Another thread has found that the client is another's now: ends the
    /// lease with this token, so that the producer is refused as
    /// [`Emit::Unleased`](super::Emit::Unleased) from its next slow path on, a block away at most.
    /// `false` if the lease is not that one any more.
    pub fn revoke(&self, token: u64) -> bool {
        let revoked = self.token.compare_exchange(token, 0, Relaxed, Relaxed).is_ok();
        if revoked {
            // A hint: the producer may be storing its own here.
            self.limit.store(0, Relaxed);
        }
        revoked
    }

    /// Whether this producer holds a lease.
    pub fn is_leased(&self) -> bool {
        self.token.load(Relaxed) != 0
    }

    /// The lease's token, 0 without one.
    pub fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    /// Gives the lease up: whatever is emitted next is refused as
    /// [`Emit::Unleased`](super::Emit::Unleased).
    pub fn forget(&self) {
        self.limit.store(0, Relaxed);
        self.token.store(0, Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.busy.store(0, Relaxed);
    }
}
