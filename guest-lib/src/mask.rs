//! The program's private copy of the enable mask, so that the hot path loads nothing shared.
//!
//! The code is unsafe because C programs know the copy by a symbol name that nothing else may have.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace_abi::ring;

const SLOTS: usize = 4096;

/// A byte per slot: 0 is on, 1 is off. The program has one copy, so a name is on or off for all threads. All
/// names are on at first, so that the first event looks for a device.
// SAFETY: no other symbol of any library has this name.
#[cfg_attr(feature = "c", unsafe(export_name = "hypertrace_off_"))]
static MASK: [AtomicU8; SLOTS] = [const { AtomicU8::new(0) }; SLOTS];
/// Version of the mask that was copied last, or `NEVER` or `NOBODY`.
static VERSION: AtomicU64 = AtomicU64::new(NEVER);
/// No mask was copied yet.
const NEVER: u64 = u64::MAX;
/// There is no device, so all names are off.
#[cfg(feature = "std")]
const NOBODY: u64 = u64::MAX - 1;
/// Maximum number of tries to copy the mask. A try fails only if another thread copies meanwhile.
const TRIES: usize = 8;

/// Returns true if events whose name hashes to this slot are on.
///
/// # Panics
/// If `slot` is not below 4,096. Slots of [`mask_slot`](hypertrace_abi::schema::mask_slot) are always below
/// 4,096, so the compiler removes the check.
#[inline(always)]
pub fn is_on(slot: usize) -> bool {
    MASK[slot].load(Relaxed) == 0
}

/// Copies the mask if the host's `version` differs from the copy's version.
#[inline]
pub(crate) fn refresh(rings: &[hypertrace_abi::atomic::AtomicU64], version: u64) {
    if VERSION.load(Ordering::Acquire) != version {
        copy(rings, version);
    }
}

#[cold]
fn copy(rings: &[hypertrace_abi::atomic::AtomicU64], version: u64) {
    let Some(words) = ring::mask_words(rings) else {
        return;
    };
    for _ in 0..TRIES {
        let before = VERSION.load(Ordering::Acquire);
        if before == version {
            return;
        }
        for (slots, word) in MASK.chunks_exact(8).zip(words) {
            for (slot, byte) in slots.iter().zip(word.load(Relaxed).to_le_bytes()) {
                slot.store(byte, Relaxed);
            }
        }
        // Stores the version last. If a signal handler jumps out of the copying, the version is still the old
        // version, and the next call copies again. The exchange fails if another thread has copied the mask
        // meanwhile. In this case this thread may have overwritten newer slots with older ones, and copies
        // again.
        if VERSION.compare_exchange(before, version, Ordering::AcqRel, Relaxed).is_ok() {
            return;
        }
    }
}

/// Switches all events off because there is no device, unless a channel is in use.
#[cfg(feature = "std")]
pub(crate) fn nobody_listens() {
    if VERSION.compare_exchange(NEVER, NOBODY, Ordering::AcqRel, Relaxed).is_err() {
        return;
    }
    fill(1);
    if VERSION.load(Ordering::Acquire) != NOBODY {
        // Another thread has opened a channel meanwhile. It is always right to switch too many names on,
        // because the host filters exactly.
        fill(0);
    }
}

/// Switches all events on in a forked child. The next event then gives the child a client of its own, and
/// this client copies the mask.
#[cfg(feature = "std")]
pub(crate) fn forget() {
    if VERSION.load(Relaxed) != NOBODY {
        VERSION.store(NEVER, Relaxed);
        fill(0);
    }
}

#[cfg(feature = "std")]
fn fill(value: u8) {
    for slot in &MASK {
        slot.store(value, Relaxed);
    }
}
