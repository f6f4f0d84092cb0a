// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters of guest mistakes, accesses that trap, and panics.

use hypertrace_abi::kinds;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

kinds! {
    /// An occurrence that the device counts, with the name of the counter in reports.
    #[non_exhaustive]
    pub enum Counter {
        /// A register access that does not have 1, 2, 4 or 8 bytes, or is not aligned.
        Width => "register_width",
        /// A register access at an address without a register.
        Unassigned => "register_unassigned",
        /// A store to the config page, or any access beyond a region's end.
        Region => "region",
        /// A store to EMIT whose value is not the slot's `seq`.
        SlotSequence => "slot_sequence",
        /// A store to EMIT with a slot of more than 256 words.
        SlotWords => "slot_words",
        /// A store to EMIT with a slot whose id is reserved.
        SlotId => "slot_id",
        /// A reference point that exceeds its client's rate limit.
        RateLimited => "rate_limited",
        /// A reference point for which the sink had no room.
        Failed => "failed",
        /// A store of zero to LEASE.
        LeaseZero => "lease_zero",
        /// A store to PCI config space that does not have 1, 2 or 4 bytes, or is not aligned.
        ConfigWidth => "config_width",
        /// A store to KICK that trapped. This is no fault.
        KickTrapped => "kick_trapped",
        /// A pass of the drain loop that was delayed because a KICK came too soon after the last pass. This
        /// is no fault.
        KickLimited => "kick_limited",
        /// An access to the argument slots or the rings that trapped, because the VMM has not mapped this
        /// memory. Not a fault.
        MemoryTrapped => "memory_trapped",
        /// A reset over vfio-user while a client was leased. There are two possible reasons: the guest boots
        /// again, or the guest was restored from a snapshot without the device, and the guest's programs have
        /// lost the device.
        ResetLeased => "reset_leased",
        /// A panic of the sink, which ends a drain thread.
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
