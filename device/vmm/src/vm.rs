// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The calls that the device needs and that the VMM makes to its hypervisor.

use hypertrace_device::{Chip, Kick, Mapping, Region, Window};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A virtual machine, as the device needs it. [`kvm::KvmVm`](crate::kvm::KvmVm) (feature `kvm`) is the
/// implementation for KVM. The thread that starts, moves or resets the device makes these calls and holds no
/// lock of the device. The calls for one PCI function are made one after another.
///
/// If a region is not mapped or a doorbell is not armed, the guest's accesses trap. Accesses that trap are
/// slower, but they still work.
pub trait Vm: Send + Sync {
    /// Maps memory of this process into the guest: KVM_SET_USER_MEMORY_REGION, with KVM_MEM_READONLY if the
    /// guest may only read the memory.
    ///
    /// # Errors
    /// If the hypervisor does not map the memory, or cannot map memory read-only.
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()>;

    /// Removes the region's mapping, if there is one. Other mappings at this address stay. The device also
    /// calls this function after the hypervisor has refused the mapping.
    fn unmap(&self, memory: &Mapping<'_>);

    /// Makes stores of any length at `gpa` signal the eventfd: KVM_IOEVENTFD without a datamatch.
    ///
    /// # Errors
    /// If the hypervisor does not arm the eventfd.
    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()>;

    /// Removes the ioeventfd at `gpa`, if an ioeventfd is there.
    fn disarm(&self, gpa: u64, eventfd: BorrowedFd<'_>);
}

/// The device and its doorbell, for a bus. All clones refer to the same device.
#[derive(Clone, Debug)]
pub struct Device {
    chip: Arc<Chip>,
    kick: Kick,
}

impl Device {
    /// Makes a device from a chip with any sink, and the eventfd of the chip's waker.
    pub fn new(chip: Arc<Chip>, kick: Kick) -> Device {
        Device { chip, kick }
    }

    /// Returns the chip.
    pub fn chip(&self) -> &Arc<Chip> {
        &self.chip
    }

    /// Returns the eventfd of the register KICK, which wakes the drain loop.
    pub fn kick(&self) -> &Kick {
        &self.kick
    }

    /// Makes a region that is decoded at `gpa` work without exits. If this fails, accesses to the region
    /// trap.
    ///
    /// # Errors
    /// If the hypervisor does not map the region or does not arm the doorbell.
    pub fn place(&self, vm: &dyn Vm, region: Region, gpa: u64) -> io::Result<()> {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.map(&memory)?;
        }
        self.chip.doorbell(region, gpa).map_or(Ok(()), |gpa| vm.arm(gpa, self.kick.as_fd()))
    }

    /// Undoes [`Device::place`], even if only a part of the placement has succeeded.
    pub fn remove(&self, vm: &dyn Vm, region: Region, gpa: u64) {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.unmap(&memory);
        }
        if let Some(gpa) = self.chip.doorbell(region, gpa) {
            vm.disarm(gpa, self.kick.as_fd());
        }
    }

    /// Places all regions in one window at `base`, for a VMM without PCI. `base` is a multiple of 4 KiB
    /// outside of RAM. The guest's kernel command line gets `hypertrace.mmio=` and the address.
    ///
    /// A region that the hypervisor cannot map (`ErrorKind::Unsupported`) traps.
    ///
    /// # Errors
    /// If the hypervisor does not map a region for any other reason, or does not arm the doorbell. No region
    /// is placed then.
    pub fn place_window(&self, vm: &dyn Vm, base: u64) -> io::Result<Window> {
        self.place_window_with(vm, |_| Ok(base)).map(|(_, window)| window)
    }

    /// Places all regions in one window like [`Device::place_window`], at the address that `allocate` returns
    /// for a size in bytes. Returns the address, too.
    ///
    /// # Errors
    /// If `allocate` fails, or for the same reasons as [`Device::place_window`].
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
                // An unsupported region traps.
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

/// The addresses of a function's BARs on a bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Bars {
    /// The address of each BAR at first and after each reset, in the order of [`Region::ALL`].
    At([u64; 4]),
    /// The range of the host bridge that belongs to the function, in which the guest places the BARs.
    Within(Range<u64>),
}

impl Bars {
    /// Returns the values that a restored state must not change. With a wider range, for example, the guest
    /// could place BARs outside of the bus's range.
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

    /// Returns whether the bus has this BAR of `size` bytes at `gpa`.
    pub(crate) fn contain(&self, region: Region, gpa: u64, size: u64) -> bool {
        match self {
            Bars::At(bases) => bases[region as usize] == gpa,
            Bars::Within(range) => {
                gpa >= range.start && gpa.checked_add(size).is_some_and(|end| end <= range.end)
            }
        }
    }
}
