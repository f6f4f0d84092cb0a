// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory to map and doorbells to arm, so that a region works without exits.
//!
//! Plain data, so that a VMM makes the calls with its own types and error handling.

use crate::chip::{Chip, DrainWaker};
use hypertrace_abi::config::Features;
use hypertrace_abi::layout::{Region, register};
use hypertrace_abi::sink::EventSink;
use std::fs::File;
use std::sync::Arc;

/// A region that a VMM maps into the guest's physical memory.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
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

/// A guest's store that the host's kernel completes, by an ioeventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Guest-physical address of the register.
    pub gpa: u64,
    /// Bytes of the store: 8.
    pub length: u32,
    /// Effect of the store.
    pub bell: Bell,
}

/// Register of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bell {
    /// KICK: makes the drain loop drain. A VMM whose ioeventfds have no length (0 means any) can
    /// use them for it.
    Kick,
    /// STAMP: counted on an eventfd that nobody reads. KVM's trace has the value only of stores that
    /// match a length of 8 bytes, without a datamatch.
    Stamp,
}

impl<S: EventSink, T: DrainWaker> Chip<S, T> {
    /// Returns the memory to map where a region is at `gpa`; `None` for the control region.
    pub fn mapping(&self, region: Region, gpa: u64) -> Option<Mapping<'_>> {
        let shared = self.memory().region(region)?;
        Some(Mapping {
            gpa,
            size: shared.size(),
            host_address: shared.host_address() as u64,
            file: shared.file().arc(),
            file_offset: shared.file().start(),
            is_read_only: region == Region::Config,
        })
    }

    /// Iterates over the doorbells to arm where a region is at `gpa`: two for the control region of a
    /// chip whose configuration says that both work, whatever its number of clients; none for others.
    pub fn doorbells(
        &self,
        region: Region,
        gpa: u64,
    ) -> impl Iterator<Item = Doorbell> + use<S, T> {
        let features = match region {
            Region::Control => self.config_page().features(),
            _ => Features::empty(),
        };
        // A guest-physical address that no BAR can have wraps, and is refused by KVM.
        let base = gpa.wrapping_add(self.geometry().shared_registers_offset());
        let bells = [
            (Features::KICK, register::KICK, Bell::Kick),
            (Features::STAMP, register::STAMP, Bell::Stamp),
        ];
        let works = move |(feature, _, _): &(Features, u64, Bell)| features.contains(*feature);
        let doorbell = move |(_, register, bell)| Doorbell {
            gpa: base.wrapping_add(register),
            length: 8,
            bell,
        };
        bells.into_iter().filter(works).map(doorbell)
    }
}
