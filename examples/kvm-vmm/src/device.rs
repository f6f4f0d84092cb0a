//! The hypertrace device in this VMM: in an MMIO window, or as a PCI function.
//!
//! Most accesses do not exit to the VMM: the two shared regions are memory slots, the config page
//! is a read-only slot, and the registers that need no immediate answer are doorbells. The other
//! registers trap, as reference points should.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use hypertrace_abi::layout::PAGE;
use hypertrace_device::{BarChange, Chip, Mapping, PciFunction, Region, Window};
use hypertrace_guest::layout;
use hypertrace_vmm::Doorbells;
use vm_memory::{FileOffset, MmapRegion};

use crate::error::Error;
use crate::ioevent::IoEvent;
use crate::machine::Machine;
use crate::observe::{Observer, VmmEvent};
use crate::vm::{Access, Memslot, Vm};

/// Device that answers the stores that trap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The hypertrace device.
    Device,
    /// A device with the same address map that does nothing, for comparison.
    Null,
}

/// Attaches the device as one MMIO window at `base`, within the window at [`layout::DEVICE`].
pub fn attach_window(
    machine: &mut Machine,
    chip: &Arc<Chip>,
    doorbells: &Doorbells,
    base: u64,
    answer: Answer,
) -> Result<(), Error> {
    let window = Arc::new(Window::new(Arc::clone(chip)));
    let size = window.size();
    if base < WINDOW.start || base.checked_add(size).is_none_or(|end| end > WINDOW.end) {
        return Err(Error::Window { base, size });
    }
    for region in Region::ALL {
        let gpa = base + chip.geometry().window_offset(region);
        let placed = place(machine.vm(), chip, doorbells, region, gpa)?;
        machine.keep(placed);
        machine.observer()(VmmEvent::BarMapped { region, gpa, direct: true });
    }
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
pub fn attach_pci(
    machine: &mut Machine,
    chip: &Arc<Chip>,
    doorbells: &Doorbells,
) -> Result<(), Error> {
    let function = Arc::new(PciFunction::new(Arc::clone(chip)));
    let bars = Bars {
        vm: Arc::clone(machine.vm()),
        chip: Arc::clone(chip),
        doorbells: doorbells.try_clone().map_err(Error::EventFd)?,
        placed: Mutex::default(),
        observer: machine.observer(),
    };
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
                writer.config_write(offset, data, |change| bars.change(change));
            }
        },
    );
    let reader = Arc::clone(&function);
    bus.add(
        WINDOW,
        move |offset, data| {
            if !reader.read(WINDOW.start + offset, data) {
                data.fill(0xff);
            }
        },
        move |offset, data| {
            function.write(WINDOW.start + offset, data);
        },
    );
    Ok(())
}

/// Addresses that the host bridge decodes. A BAR outside of them is not accessible.
const WINDOW: Range<u64> = layout::DEVICE..layout::DEVICE + layout::DEVICE_SIZE;

/// Converts an ECAM offset to an offset in the function's configuration space. Returns `None` for
/// other functions.
fn config_offset(offset: u64) -> Option<u64> {
    /// Bus 0, device 1, function 0.
    const FUNCTION: u64 = 1 << 3;
    (offset / PAGE == FUNCTION).then_some(offset % PAGE)
}

/// Places of the PCI function's BARs.
struct Bars {
    vm: Arc<Vm>,
    chip: Arc<Chip>,
    doorbells: Doorbells,
    placed: Mutex<Vec<(Region, Placed)>>,
    observer: Observer,
}

impl Bars {
    /// Applies one change, on the thread of the vCPU that made it.
    fn change(&self, change: BarChange) {
        let region = change.region;
        let mut placed = self.placed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpa) = change.from {
            placed.retain(|(other, _)| *other != region);
            (self.observer)(VmmEvent::BarUnmapped { region, gpa });
        }
        let Some(gpa) = change.to else { return };
        let end = gpa.checked_add(self.chip.geometry().bar_size(region));
        if gpa < WINDOW.start || end.is_none_or(|end| end > WINDOW.end) {
            return;
        }
        // The guest may place one BAR over another. Then the second one traps, which is slower, and
        // as undefined as on a real bus.
        let new = place(&self.vm, &self.chip, &self.doorbells, region, gpa);
        (self.observer)(VmmEvent::BarMapped { region, gpa, direct: new.is_ok() });
        placed.extend(new.ok().map(|new| (region, new)));
    }
}

/// A memory slot and a doorbell that make a region work without exits. When dropped, it traps.
#[derive(Default)]
struct Placed {
    _memory: Option<Memslot>,
    _bell: Option<IoEvent>,
}

fn place(
    vm: &Arc<Vm>,
    chip: &Chip,
    doorbells: &Doorbells,
    region: Region,
    gpa: u64,
) -> Result<Placed, Error> {
    let mut placed = Placed::default();
    let can_map = |mapping: &Mapping<'_>| !mapping.is_read_only || vm.has_readonly_memory();
    if let Some(mapping) = chip.mapping(region, gpa).filter(can_map) {
        let file = FileOffset::from_arc(Arc::clone(mapping.file), mapping.file_offset);
        let memory = MmapRegion::from_file(file, mapping.size as usize)?;
        let access = if mapping.is_read_only { Access::ReadOnly } else { Access::ReadWrite };
        placed._memory = Some(vm.map(gpa, memory, access)?);
    }
    if let Some(gpa) = chip.doorbell(region, gpa) {
        placed._bell = Some(vm.doorbell(gpa, 8, &doorbells.kick)?);
    }
    Ok(placed)
}
