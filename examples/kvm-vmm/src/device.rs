//! The hypertrace device in this VMM: in an MMIO window, or as a PCI function.
//!
//! Most accesses do not exit to the VMM: the two shared regions are memory slots, the config page
//! is a read-only slot, and the registers that need no immediate answer are doorbells. The other
//! registers trap, as reference points should.
#![allow(unsafe_code)] // the device's memory as the guest's

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hypertrace_abi::layout::PAGE;
use hypertrace_guest::layout;
use hypertrace_vmm::kvm::KvmVm;
use hypertrace_vmm::{BarForm, Bars, Device, Mapping, PciFunction, Region, Vm};

use crate::error::Error;
use crate::machine::Machine;
use crate::observe::{Observer, VmmEvent};

/// Device that answers the stores that trap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The hypertrace device.
    Device,
    /// A device with the same address map that does nothing, for comparison.
    Null,
}

/// Attaches the device as one MMIO window at `base`. The window must lie in the address range that the memory
/// map has for devices, at [`layout::DEVICE`].
pub fn attach_window(
    machine: &mut Machine,
    device: &Device,
    base: u64,
    answer: Answer,
) -> Result<(), Error> {
    let size = device.chip().geometry().window_size();
    if base < WINDOW.start || base.checked_add(size).is_none_or(|end| end > WINDOW.end) {
        return Err(Error::Window { base, size });
    }
    let slots = Slots::new(machine, device)?;
    let window = Arc::new(device.place_window(&slots, base).map_err(Error::Device)?);
    let reader = Arc::clone(&window);
    machine.bus_mut().add(
        base..base + size,
        move |offset, data| reader.read(offset, data),
        move |offset, data| {
            if answer == Answer::Device {
                window.write(offset, data);
            }
        },
    );
    Ok(())
}

/// Attaches the device to PCI bus 0 as function 00:01.0, with its configuration space in the ECAM
/// window. The guest places its BARs in the window at [`layout::DEVICE`].
pub fn attach_pci(machine: &mut Machine, device: &Device) -> Result<(), Error> {
    let slots = Arc::new(Slots::new(machine, device)?);
    // The guest may place one BAR over another. The second BAR then traps: accesses are slower, and their
    // effect is as undefined as on a real bus.
    let function = PciFunction::new(device, slots, Bars::Within(WINDOW), BarForm::default());
    let function = Arc::new(function.map_err(|why| Error::Device(io::Error::other(why)))?);
    let bus = machine.bus_mut();
    let (reader, writer) = (Arc::clone(&function), Arc::clone(&function));
    bus.add(
        layout::ECAM..layout::ECAM + layout::ECAM_SIZE,
        move |offset, data| match config_offset(offset) {
            Some(offset) => reader.config_read(offset, data),
            None => data.fill(0xff),
        },
        move |offset, data| {
            if let Some(offset) = config_offset(offset) {
                // The changes are not used, because the bus passes all accesses in the whole window to the
                // function.
                writer.config_write(offset, data);
            }
        },
    );
    let reader = Arc::clone(&function);
    bus.add(
        WINDOW,
        move |offset, data| reader.read(WINDOW.start + offset, data),
        move |offset, data| function.write(WINDOW.start + offset, data),
    );
    Ok(())
}

/// Addresses that the host bridge decodes. A BAR outside of this range is not accessible.
const WINDOW: Range<u64> = layout::DEVICE..layout::DEVICE + layout::DEVICE_SIZE;

/// Converts an ECAM offset to an offset in the function's configuration space. Returns `None` for
/// other functions.
fn config_offset(offset: u64) -> Option<u64> {
    /// Bus 0, device 1, function 0.
    const FUNCTION: u64 = 1 << 3;
    (offset / PAGE == FUNCTION).then_some(offset % PAGE)
}

/// KVM's calls, which are reported to an observer.
struct Slots {
    kvm: KvmVm,
    /// Offset of the doorbell in its region.
    kick_offset: u64,
    observer: Observer,
}

impl Slots {
    fn new(machine: &Machine, device: &Device) -> Result<Slots, Error> {
        // SAFETY: the machine's bus keeps the device's memory, and the machine stops its vCPUs before it
        // drops its bus.
        let kvm = unsafe { machine.vm().calls() }.map_err(Error::Device)?;
        let kick_offset = device.chip().geometry().kick_offset();
        Ok(Slots { kvm, kick_offset, observer: machine.observer() })
    }
}

impl Vm for Slots {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        let mapped = self.kvm.map(memory);
        let Mapping { region, gpa, .. } = *memory;
        (self.observer)(VmmEvent::BarMapped { region, gpa, direct: mapped.is_ok() });
        mapped
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        self.kvm.unmap(memory);
        (self.observer)(VmmEvent::BarUnmapped { region: memory.region, gpa: memory.gpa });
    }

    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let armed = self.kvm.arm(gpa, eventfd);
        let (region, gpa) = (Region::Control, gpa.wrapping_sub(self.kick_offset));
        (self.observer)(VmmEvent::BarMapped { region, gpa, direct: armed.is_ok() });
        armed
    }

    fn disarm(&self, gpa: u64, eventfd: BorrowedFd<'_>) {
        self.kvm.disarm(gpa, eventfd);
        let (region, gpa) = (Region::Control, gpa.wrapping_sub(self.kick_offset));
        (self.observer)(VmmEvent::BarUnmapped { region, gpa });
    }
}
