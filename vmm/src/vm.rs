// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The VMM's calls of its hypervisor, and the eventfds that they use.

use hypertrace_device::{Chip, Mapping, Region};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// A virtual machine, as the device needs it. Calls come from the thread that starts, moves or resets the
/// device.
///
/// A region that is not mapped, and a doorbell that is not armed, traps: that is slower, and no error.
pub trait Vm: Send + Sync {
    /// Maps memory of this process into the guest: KVM_SET_USER_MEMORY_REGION, with KVM_MEM_READONLY if
    /// the guest may only read it.
    ///
    /// # Errors
    /// If the hypervisor refuses, or cannot map memory for reading only.
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()>;

    /// Removes a mapping, if it is there.
    fn unmap(&self, memory: &Mapping<'_>);

    /// Counts stores at `gpa`, of any length, on the eventfd: KVM_IOEVENTFD without a datamatch.
    ///
    /// # Errors
    /// If the hypervisor refuses.
    fn arm(&self, gpa: u64, eventfd: &EventFd) -> io::Result<()>;

    /// Removes an ioeventfd, if it is there.
    fn disarm(&self, gpa: u64, eventfd: &EventFd);
}

/// The eventfd of the register KICK.
#[derive(Debug)]
pub struct Doorbells {
    /// Eventfd that makes the drain loop drain soon.
    pub kick: EventFd,
}

impl Doorbells {
    /// Makes a non-blocking eventfd.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Doorbells> {
        Ok(Doorbells { kick: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)? })
    }

    /// Returns the same eventfd again.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn try_clone(&self) -> io::Result<Doorbells> {
        Ok(Doorbells { kick: self.kick.try_clone()? })
    }
}

/// What a VMM maps and arms for the device.
#[derive(Debug)]
pub(crate) struct Placement {
    pub chip: Arc<Chip>,
    pub doorbells: Doorbells,
}

impl Placement {
    pub fn try_clone(&self) -> io::Result<Placement> {
        Ok(Placement { chip: Arc::clone(&self.chip), doorbells: self.doorbells.try_clone()? })
    }

    pub fn place(&self, vm: &dyn Vm, region: Region, gpa: u64) -> io::Result<()> {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.map(&memory)?;
        }
        let doorbell = self.chip.doorbell(region, gpa);
        doorbell.map_or(Ok(()), |gpa| vm.arm(gpa, &self.doorbells.kick))
    }

    pub fn remove(&self, vm: &dyn Vm, region: Region, gpa: u64) {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.unmap(&memory);
        }
        if let Some(gpa) = self.chip.doorbell(region, gpa) {
            vm.disarm(gpa, &self.doorbells.kick);
        }
    }
}

/// Addresses at which a bus has the BARs of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bars {
    /// An entry for each BAR, in the order of [`Region::ALL`]. The BARs have these addresses at first, and
    /// after each reset.
    At([u64; 4]),
    /// A range of the host bridge, which is the function's: the guest places the BARs in it.
    Within(Range<u64>),
}

impl Bars {
    /// Returns whether the bus has a BAR of `size` bytes at this address.
    pub(crate) fn contain(&self, region: Region, gpa: u64, size: u64) -> bool {
        match self {
            Bars::At(bases) => bases[region as usize] == gpa,
            Bars::Within(range) => {
                gpa >= range.start && gpa.checked_add(size).is_some_and(|end| end <= range.end)
            }
        }
    }
}
