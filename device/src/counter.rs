// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters of a guest's mistakes, of the accesses that trap, and of panics.

use hypertrace_abi::kinds;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

kinds! {
    /// An occurrence that the device counts, with its name in reports.
    #[non_exhaustive]
    pub enum Counter {
        /// A register access that is not 1, 2, 4 or 8 bytes, or not aligned.
        Width => "register_width",
        /// A register access at an address without a register.
        Unassigned => "register_unassigned",
        /// A store to the config page, or any access beyond a region's end.
        Region => "region",
        /// EMIT with a value that is not the slot's `seq`.
        SlotSequence => "slot_sequence",
        /// EMIT with a slot that claims more than 256 words.
        SlotWords => "slot_words",
        /// EMIT with an id that is reserved.
        SlotId => "slot_id",
        /// A reference point that exceeds its client's rate limit.
        RateLimited => "rate_limited",
        /// A reference point for which the sink had no room.
        Failed => "failed",
        /// A store of zero to LEASE.
        LeaseZero => "lease_zero",
        /// A PCI config access that is not 1, 2 or 4 bytes, or not aligned.
        ConfigWidth => "config_width",
        /// A KICK that came by a trap. Not a fault.
        KickTrapped => "kick_trapped",
        /// A pass of the drain loop that waited because a KICK came too soon after the last pass. Not a fault.
        KickLimited => "kick_limited",
        /// An access to the argument slots or the rings that came by a trap: the VMM has not mapped
        /// that memory. Not a fault.
        MemoryTrapped => "memory_trapped",
        /// A client of vfio-user has reset the device while a client was leased: a guest boots again, or a snapshot without
        /// the device has brought it back, and its programs have lost the device.
        ResetLeased => "reset_leased",
        /// A panic of the sink. The drain thread ends by it.
        DrainPanicked => "drain_panicked",
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; Counter::COUNT]);

impl Counts {
    pub(crate) fn add(&self, counter: Counter) {
        self.0[counter as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }
}
