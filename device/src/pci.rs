// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function: 64 bytes of config space in front of the chip.
//!
//! Type 0 header of the PCI Local Bus Specification 3.0, section 6.1. Each dword has a value and a mask of
//! the bits that a guest can change. A guest finds the size of a BAR through this mask, too.

use crate::chip::Chip;
use crate::counter::Counter;
use crate::state::{HEADER, PciState, RestoreError, STATE_VERSION};
use hypertrace_abi::layout::{
    Geometry, GeometryError, PCI_CLASS, PCI_DEVICE, PCI_REVISION, PCI_SUBSYSTEM, PCI_VENDOR, Region,
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Memory space enable, the bit with which the guest turns decoding of all BARs on and off.
const COMMAND_MEMORY: u32 = 1 << 1;
/// BAR bits 2:1: the address has 64 bits, and the next BAR contains the upper half.
const BAR_64: u32 = 0b10 << 1;
/// BAR bit 3: loads have no side effects, and stores may be combined.
const BAR_PREFETCHABLE: u32 = 1 << 3;

const COMMAND: usize = 1;
const BAR0: usize = 4;
const SUBSYSTEM: usize = 11;
const INTERRUPT_LINE: usize = 15;

/// Value in place of an address while decoding is off. No BAR fits at this address.
const NOWHERE: u64 = u64::MAX;

/// A BAR that appeared, moved or went away. The VMM unmaps memory and ioeventfds at the old address, and then
/// maps them at the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarChange {
    /// The region.
    pub region: Region,
    /// Guest-physical address before the change, if the BAR was decoded then.
    pub from: Option<u64>,
    /// Guest-physical address after the change, if the BAR is decoded then. The guest may have chosen an
    /// address over RAM, over another device, or where nothing can be mapped.
    pub to: Option<u64>,
}

/// Form of the BARs, for VMMs that place BARs of one form only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BarForm {
    /// BARs 1 and 4 are prefetchable, so guests may map them write-combining. BAR 4 has 64 address bits.
    #[default]
    Prefetchable64,
    /// All BARs have 32 address bits, and no BAR is prefetchable.
    Plain32,
}

impl BarForm {
    /// Returns the BARs of a function of this form, in the order of [`Region::ALL`].
    pub fn bars(self, geometry: &Geometry) -> [Bar; 4] {
        Region::ALL.map(|region| Bar {
            region,
            index: region.bar(),
            size: geometry.bar_size(region),
            is_64_bit: self == BarForm::Prefetchable64 && region == Region::Rings,
            is_prefetchable: self == BarForm::Prefetchable64
                && matches!(region, Region::Data | Region::Rings),
        })
    }
}

/// Properties of a memory BAR, for a bus that allocates the BAR's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bar {
    /// The region.
    pub region: Region,
    /// Index of the BAR.
    pub index: usize,
    /// Size in bytes, a power of two, which divides the address.
    pub size: u64,
    /// Whether the address has 64 bits, with the upper half in the next BAR.
    pub is_64_bit: bool,
    /// Whether loads have no side effects.
    pub is_prefetchable: bool,
}

#[derive(Debug)]
struct Header {
    value: [u32; HEADER],
    mask: [u32; HEADER],
    form: BarForm,
}

impl Header {
    fn new(geometry: &Geometry, form: BarForm) -> Header {
        let mut value = [0; HEADER];
        let mut mask = [0; HEADER];
        value[0] = u32::from(PCI_VENDOR) | u32::from(PCI_DEVICE) << 16;
        value[2] = u32::from(PCI_REVISION) | u32::from(PCI_CLASS) << 16;
        value[SUBSYSTEM] = u32::from(PCI_VENDOR) | u32::from(PCI_SUBSYSTEM) << 16;
        mask[COMMAND] = COMMAND_MEMORY;
        mask[INTERRUPT_LINE] = 0xff;
        for bar in form.bars(geometry) {
            let low = BAR0 + bar.index;
            mask[low] = !((bar.size - 1) as u32) & !0xf;
            if bar.is_prefetchable {
                value[low] |= BAR_PREFETCHABLE;
            }
            if bar.is_64_bit {
                value[low] |= BAR_64;
                mask[low + 1] = !((bar.size - 1) >> 32) as u32;
            }
        }
        Header { value, mask, form }
    }

    fn decodes(&self) -> bool {
        self.value[COMMAND] & COMMAND_MEMORY != 0
    }

    fn address(&self, region: Region) -> u64 {
        if !self.decodes() {
            return NOWHERE;
        }
        let bar = BAR0 + region.bar();
        let low = u64::from(self.value[bar] & !0xf);
        match self.value[bar] & BAR_64 {
            0 => low,
            _ => low | u64::from(self.value[bar + 1]) << 32,
        }
    }
}

/// The device as a PCI function.
#[derive(Debug)]
pub struct PciFunction {
    chip: Arc<Chip>,
    header: Mutex<Header>,
    /// Addresses at which the BARs are decoded, in the order of [`Region::ALL`]. vCPUs read these addresses
    /// without a lock while another vCPU writes the header.
    decoded: [AtomicU64; 4],
}

impl PciFunction {
    /// Makes a function for the chip, as after a reset: no BAR is decoded.
    pub fn new(chip: Arc<Chip>) -> Self {
        PciFunction::with(chip, BarForm::default())
    }

    /// Makes a function whose BARs are of this form.
    ///
    /// # Errors
    /// If a BAR would be too large for this form: with 32 address bits, larger than 2 GiB.
    pub fn with_form(chip: Arc<Chip>, form: BarForm) -> Result<Self, GeometryError> {
        if form == BarForm::Plain32 && chip.geometry().bar_size(Region::Rings) > 1 << 31 {
            return Err(GeometryError("a BAR with 32 address bits has at most 2 GiB"));
        }
        Ok(PciFunction::with(chip, form))
    }

    fn with(chip: Arc<Chip>, form: BarForm) -> Self {
        PciFunction {
            header: Mutex::new(Header::new(chip.geometry(), form)),
            decoded: std::array::from_fn(|_| AtomicU64::new(NOWHERE)),
            chip,
        }
    }

    /// Returns the chip.
    pub fn chip(&self) -> &Arc<Chip> {
        &self.chip
    }

    /// Performs a load from config space, of any length. Fills every byte of `data`, with zeros after the
    /// header.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        let header = self.lock().value.map(u32::to_le_bytes);
        let rest = usize::try_from(offset).ok().and_then(|at| header.as_flattened().get(at..));
        let bytes = rest.unwrap_or_default().iter().chain(std::iter::repeat(&0));
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// Performs a store to config space. Calls `changed` for each BAR whose decoded address changes; no other
    /// config store runs meanwhile. One store moves one BAR, or makes all BARs appear or go away.
    pub fn config_write(&self, offset: u64, data: &[u8], mut changed: impl FnMut(BarChange)) {
        if !is_config_access(offset, data.len()) {
            return self.chip.counts().add(Counter::ConfigWidth);
        }
        let mut header = self.lock();
        let dword = (offset / 4) as usize;
        let (Some(&old), Some(&mask)) = (header.value.get(dword), header.mask.get(dword)) else {
            return;
        };
        let at = (offset % 4) as usize;
        let mut bytes = old.to_le_bytes();
        bytes[at..at + data.len()].copy_from_slice(data);
        header.value[dword] = old & !mask | u32::from_le_bytes(bytes) & mask;

        self.decode(&header, &mut changed);
    }

    /// Sets the address of a BAR. A VMM calls this function if the machine has no firmware, or if the bus
    /// does not have the BAR at the address that the guest has set. Calls `changed` if the BAR's decoded
    /// address changes.
    pub fn set_bar(&self, region: Region, address: u64, mut changed: impl FnMut(BarChange)) {
        let mut header = self.lock();
        let bar = BAR0 + region.bar();
        let (low, high) = (address as u32, (address >> 32) as u32);
        header.value[bar] = header.value[bar] & !header.mask[bar] | low & header.mask[bar];
        if header.value[bar] & BAR_64 != 0 {
            header.value[bar + 1] = high & header.mask[bar + 1];
        }
        self.decode(&header, &mut changed);
    }

    /// Resets config space and the [chip](Chip::reset), as a reset of the machine does. Calls `changed`
    /// for each BAR that goes away.
    pub fn reset(&self, mut changed: impl FnMut(BarChange)) {
        let mut header = self.lock();
        *header = Header::new(self.chip.geometry(), header.form);
        self.decode(&header, &mut changed);
        self.chip.reset();
    }

    /// Returns the state of config space, for a snapshot that also contains [`Chip::state`].
    pub fn state(&self) -> PciState {
        PciState { version: STATE_VERSION, header: self.lock().value }
    }

    /// Restores config space. Calls `changed` for each BAR whose decoded address changes. If the function is
    /// new, `changed` is called for each BAR that was decoded in the snapshot. Call this before any vCPU
    /// runs.
    ///
    /// # Errors
    /// If the state belongs to another function, for example with BARs of other sizes or another form.
    pub fn restore(
        &self,
        state: &PciState,
        mut changed: impl FnMut(BarChange),
    ) -> Result<(), RestoreError> {
        if state.version != STATE_VERSION {
            let (expected, found) = (STATE_VERSION, state.version);
            return Err(RestoreError::Version { expected, found });
        }
        let mut header = self.lock();
        let own = Header::new(self.chip.geometry(), header.form);
        for (dword, (value, mask)) in own.value.into_iter().zip(own.mask).enumerate() {
            let (expected, found) = (value & !mask, state.header[dword] & !mask);
            if expected != found {
                return Err(RestoreError::Fixed { offset: 4 * dword as u64, expected, found });
            }
        }
        header.value = state.header;
        self.decode(&header, &mut changed);
        Ok(())
    }

    /// Decodes the BARs at the addresses in the header.
    fn decode(&self, header: &Header, changed: &mut dyn FnMut(BarChange)) {
        for region in Region::ALL {
            let (decoded, to) = (&self.decoded[region as usize], header.address(region));
            let from = decoded.load(Relaxed);
            if from != to {
                decoded.store(to, Relaxed);
                changed(BarChange { region, from: known(from), to: known(to) });
            }
        }
    }

    /// Returns the guest-physical address at which a BAR is decoded. Takes no lock.
    pub fn decoded(&self, region: Region) -> Option<u64> {
        known(self.decoded[region as usize].load(Relaxed))
    }

    /// Returns the region that is decoded at a guest-physical address, and the offset within this region.
    /// Takes no lock.
    pub fn find(&self, address: u64) -> Option<(Region, u64)> {
        Region::ALL.into_iter().find_map(|region| {
            let inside = address.checked_sub(self.decoded(region)?)?;
            (inside < self.chip.geometry().bar_size(region)).then_some((region, inside))
        })
    }

    /// Performs a guest's load at an address in a BAR. Returns `false` if no BAR is there.
    pub fn read(&self, address: u64, data: &mut [u8]) -> bool {
        let Some((region, offset)) = self.find(address) else { return false };
        self.chip.read(region, offset, data);
        true
    }

    /// Performs a guest's store at an address in a BAR. Returns `false` if no BAR is there.
    pub fn write(&self, address: u64, data: &[u8]) -> bool {
        let Some((region, offset)) = self.find(address) else { return false };
        self.chip.write(region, offset, data);
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Header> {
        // The callback of a config store may panic while the header is locked, but the header is complete by
        // then.
        self.header.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn known(address: u64) -> Option<u64> {
    (address != NOWHERE).then_some(address)
}

fn is_config_access(offset: u64, len: usize) -> bool {
    matches!(len, 1 | 2 | 4) && offset.is_multiple_of(len as u64)
}
