// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory to map and doorbells to arm, so that a region works without exits.
//!
//! Mappings and doorbells are plain data, so that a VMM makes the calls with its own types and error
//! handling.

use crate::chip::Chip;
use hypertrace_abi::config::Features;
use hypertrace_abi::layout::Region;
use std::fs::File;
use std::sync::Arc;

/// A region that a VMM maps into the guest's physical memory. Only [`Chip::mapping`] makes a `Mapping`, so
/// the mapped memory is always the device's.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Mapping<'a> {
    /// The region.
    pub region: Region,
    /// Guest-physical address of the region.
    pub gpa: u64,
    /// Size of the region in bytes: whole pages.
    pub size: u64,
    /// Address in this process, valid as long as the chip lives: the `userspace_addr` of
    /// KVM_SET_USER_MEMORY_REGION.
    pub host_address: u64,
    /// The file that contains the region, for another process to map.
    pub file: &'a Arc<File>,
    /// Offset of the region in the file, in bytes.
    pub file_offset: u64,
    /// Whether the guest may not store there: KVM_MEM_READONLY. If the kernel lacks this flag, leave the
    /// region unmapped, so that it traps.
    pub is_read_only: bool,
}

impl Chip {
    /// Returns the memory to map for a region at `gpa`, or `None` for the control region.
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

    /// Returns the guest-physical address of KICK if the control region is at `gpa`. At this address, the VMM
    /// arms one ioeventfd for all clients, without a datamatch. The length of the ioeventfd is 8, or 0 for
    /// stores of any length. Returns `None` for any other region, and if the chip's configuration has no
    /// doorbells.
    pub fn doorbell(&self, region: Region, gpa: u64) -> Option<u64> {
        let works = self.config.features().contains(Features::KICK);
        // The sum wraps only for an address that no BAR can have, and KVM refuses such an address.
        (region == Region::Control && works).then(|| gpa.wrapping_add(self.geometry.kick_offset()))
    }
}
