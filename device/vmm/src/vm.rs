// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The VMM's calls of its hypervisor, and what the device needs of them.

use hypertrace_device::{Chip, Kick, Mapping, Region, Window};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A virtual machine, as the device needs it: [`kvm::KvmVm`](crate::kvm::KvmVm) is KVM's, by the feature `kvm`. Calls come
/// from the thread that starts, moves or resets the device, one at a time for each function, and no lock of the device is held.
///
/// A region that is not mapped, and a doorbell that is not armed, traps: that is slower, and no error.
pub trait Vm: Send + Sync {
    /// Maps memory of this process into the guest: KVM_SET_USER_MEMORY_REGION, with KVM_MEM_READONLY if
    /// the guest may only read it.
    ///
    /// # Errors
    /// If the hypervisor refuses, or cannot map memory for reading only.
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()>;

    /// Removes a mapping, if it is there: the region's, not another one at this address. Also called after a mapping that
    /// was refused.
    fn unmap(&self, memory: &Mapping<'_>);

    /// Counts stores at `gpa`, of any length, on the eventfd: KVM_IOEVENTFD without a datamatch.
    ///
    /// # Errors
    /// If the hypervisor refuses.
    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()>;

    /// Removes an ioeventfd, if it is there.
    fn disarm(&self, gpa: u64, eventfd: BorrowedFd<'_>);
}

/// The device and its doorbell, for a bus. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    chip: Arc<Chip>,
    kick: Kick,
}

impl Device {
    /// Makes it of a chip with any sink, and of the eventfd of its waker.
    pub fn new(chip: Arc<Chip>, kick: Kick) -> Device {
        Device { chip, kick }
    }

    /// Returns the chip.
    pub fn chip(&self) -> &Arc<Chip> {
        &self.chip
    }

    /// Returns the eventfd of the register KICK, which makes the drain loop drain.
    pub fn kick(&self) -> &Kick {
        &self.kick
    }

    /// Makes a region that is decoded at `gpa` work without exits. Where this fails, its accesses trap.
    ///
    /// # Errors
    /// If the hypervisor refuses.
    pub fn place(&self, vm: &dyn Vm, region: Region, gpa: u64) -> io::Result<()> {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.map(&memory)?;
        }
        self.chip.doorbell(region, gpa).map_or(Ok(()), |gpa| vm.arm(gpa, self.kick.as_fd()))
    }

    /// Undoes [`Device::place`], complete or not.
    pub fn remove(&self, vm: &dyn Vm, region: Region, gpa: u64) {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.unmap(&memory);
        }
        if let Some(gpa) = self.chip.doorbell(region, gpa) {
            vm.disarm(gpa, self.kick.as_fd());
        }
    }

    /// Places all regions in one window at `base`, for a VMM without PCI. `base` is a multiple of 4 KiB, outside
    /// of RAM. The guest's kernel command line gets `hypertrace.mmio=` and the address.
    ///
    /// A region that the hypervisor does not support (`ErrorKind::Unsupported`) traps.
    ///
    /// # Errors
    /// If the hypervisor refuses for another reason: then nothing is placed.
    pub fn place_window(&self, vm: &dyn Vm, base: u64) -> io::Result<Window> {
        self.place_window_with(vm, |_| Ok(base)).map(|(_, window)| window)
    }

    /// Places all regions in one window, as [`Device::place_window`], where `allocate` says. Its argument is the window's
    /// size in bytes. Returns the address, too.
    ///
    /// # Errors
    /// If `allocate` fails, or the hypervisor refuses.
    pub fn place_window_with(
        &self,
        vm: &dyn Vm,
        allocate: impl FnOnce(u64) -> io::Result<u64>,
    ) -> io::Result<(u64, Window)> {
        let window = Window::new(Arc::clone(&self.chip));
        let base = allocate(window.size())?;
        let gpa = |region| base + self.chip.geometry().window_offset(region);
        for region in Region::ALL {
            match self.place(vm, region, gpa(region)) {
                // It traps.
                Err(why) if why.kind() != io::ErrorKind::Unsupported => {
                    Region::ALL.into_iter().for_each(|region| self.remove(vm, region, gpa(region)));
                    return Err(why);
                }
                _ => {}
            }
        }
        Ok((base, window))
    }
}

/// Addresses at which a bus has the BARs of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Bars {
    /// An entry for each BAR, in the order of [`Region::ALL`]. The BARs have these addresses at first, and
    /// after each reset.
    At([u64; 4]),
    /// A range of the host bridge, which is the function's: the guest places the BARs in it.
    Within(Range<u64>),
}

impl Bars {
    /// Returns what is the bus's and in no state another one: a wider range would let the guest place BARs outside of
    /// the bus's.
    pub(crate) fn fixed(&self) -> [(&'static str, u64); 3] {
        let (entries, range) = match self {
            Bars::At(bases) => (bases.len() as u64, 0..0),
            Bars::Within(range) => (0, range.clone()),
        };
        [
            ("number of addresses", entries),
            ("begin of the BARs' range", range.start),
            ("end of the BARs' range", range.end),
        ]
    }

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
