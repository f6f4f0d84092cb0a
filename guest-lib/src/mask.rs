//! The enable mask's private copy: the hot path loads nothing shared.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use hypertrace_abi::ring;

const SLOTS: usize = 4096;

/// 0 is on, 1 is off. One copy for the whole program: a name is on or off for
/// all of its threads.
static MASK: [AtomicU8; SLOTS] = [const { AtomicU8::new(0) }; SLOTS];
/// The version that was copied.
static VERSION: AtomicU64 = AtomicU64::new(0);

/// Whether events whose name hashes to this slot are on.
///
/// # Panics
/// If `slot` is not below 4,096; one of
/// [`mask_slot`](hypertrace_abi::schema::mask_slot) always is, and the check
/// is gone then.
#[inline(always)]
pub fn is_on(slot: usize) -> bool {
    MASK[slot].load(Relaxed) == 0
}

/// Copies the mask if the host says that it has changed.
pub(crate) fn refresh(rings: &[AtomicU64], version: u64) {
    if version == VERSION.load(Relaxed) {
        return;
    }
    // Version first: a change while this copies is copied by the next refresh.
    VERSION.store(version, Relaxed);
    let Some(words) = ring::mask_words(rings) else {
        return;
    };
    for (slots, word) in MASK.chunks_exact(8).zip(words) {
        for (slot, byte) in slots.iter().zip(word.load(Relaxed).to_le_bytes()) {
            slot.store(byte, Relaxed);
        }
    }
}
