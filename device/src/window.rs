// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The MMIO window, for VMMs without PCI: all regions without gaps.

use crate::chip::Chip;
use hypertrace_abi::layout::Region;
use std::sync::Arc;

/// The device as one range of guest-physical addresses.
#[derive(Debug)]
pub struct Window {
    chip: Arc<Chip>,
}

impl Window {
    /// Makes a window for the chip.
    pub fn new(chip: Arc<Chip>) -> Self {
        Window { chip }
    }

    /// Returns the size of the range in bytes. Config, data and rings can be mapped; control must trap.
    pub fn size(&self) -> u64 {
        self.chip.geometry().window_size()
    }

    /// Returns the region at an offset into the window, and the offset within this region.
    pub fn find(&self, offset: u64) -> Option<(Region, u64)> {
        let geometry = self.chip.geometry();
        Region::ALL.into_iter().find_map(|region| {
            let inside = offset.checked_sub(geometry.window_offset(region))?;
            (inside < geometry.bar_size(region)).then_some((region, inside))
        })
    }

    /// Performs a guest's load. Fills every byte of `data`.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        match self.find(offset) {
            Some((region, offset)) => self.chip.read(region, offset, data),
            None => data.fill(0),
        }
    }

    /// Performs a guest's store.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if let Some((region, offset)) = self.find(offset) {
            self.chip.write(region, offset, data);
        }
    }

    /// Returns the chip.
    pub fn chip(&self) -> &Arc<Chip> {
        &self.chip
    }
}
