// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory to map and doorbells to arm, so that a region works without exits.
//!
//! Plain data, so that a VMM makes the calls with its own types and error handling.

use crate::chip::Chip;
use hypertrace_abi::config::Features;
use hypertrace_abi::layout::Region;
use std::fs::File;
use std::sync::Arc;

/// A region that a VMM maps into the guest's physical memory. [`Chip::mapping`] makes it, so it is the device's memory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Mapping<'a> {
    /// The region.
    pub region: Region,
    /// Guest-physical address of the region.
    pub gpa: u64,
    /// Bytes, whole pages.
    pub size: u64,
    /// Its address in this process, as long as the chip lives: `userspace_addr` of
    /// KVM_SET_USER_MEMORY_REGION.
    pub host_address: u64,
    /// The file that it is in, for another process to map.
    pub file: &'a Arc<File>,
    /// Offset in the file.
    pub file_offset: u64,
    /// The guest may not store there: KVM_MEM_READONLY. Without it in the kernel, leave the region
    /// unmapped: it then traps.
    pub is_read_only: bool,
}

impl Chip {
    /// Returns the memory to map where a region is at `gpa`; `None` for the control region.
    pub fn mapping(&self, region: Region, gpa: u64) -> Option<Mapping<'_>> {
        let shared = self.memory().region(region)?;
        Some(Mapping {
            region,
            gpa,
            size: shared.size(),
            host_address: shared.host_address() as u64,
            file: shared.file(),
            file_offset: shared.file_offset(),
            is_read_only: region == Region::Config,
        })
    }

    /// Returns the guest-physical address of KICK where a region is at `gpa`, for an ioeventfd of any
    /// length (8, or 0 for any) without a datamatch: one for all clients. `None` for a region without
    /// it, and if the chip's configuration says that KICK is not cheap.
    pub fn doorbell(&self, region: Region, gpa: u64) -> Option<u64> {
        let works = self.config.features().contains(Features::KICK);
        // An address that no BAR can have wraps, and is refused by KVM.
        (region == Region::Control && works).then(|| gpa.wrapping_add(self.geometry.kick_offset()))
    }
}
