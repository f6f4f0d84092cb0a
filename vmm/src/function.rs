// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The device as a PCI function on a VMM's bus.

use crate::saved::SavedFunction;
use crate::vm::{Bars, Device, Vm};
use hypertrace_device::PciFunction as Inner;
use hypertrace_device::{Bar, BarChange, BarForm, GeometryError, Region, RestoreError};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A BAR that the guest has moved to an address where the bus does not have it. The VMM moves it on its bus and
/// calls [`PciFunction::move_bar`], or refuses and calls [`PciFunction::restore_bar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The BAR.
    pub bar: Bar,
    /// Address on the bus.
    pub from: u64,
    /// Address that the guest has chosen: it may be over RAM, or over another device.
    pub to: u64,
}

/// The device as a PCI function: config space, and BARs that are mapped where both the guest and the bus have them.
///
/// Calls for config space take a lock, which is held while the VMM maps a BAR. Loads and stores of BARs take none.
pub struct PciFunction {
    pub(crate) function: Inner,
    form: BarForm,
    device: Device,
    vm: Arc<dyn Vm>,
    bars: Mutex<Bars>,
}

impl fmt::Debug for PciFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PciFunction")
            .field("function", &self.function)
            .field("bars", &self.bars)
            .finish_non_exhaustive()
    }
}

impl PciFunction {
    /// Makes a function as after a reset. It decodes nothing until the guest sets memory space in COMMAND.
    ///
    /// # Errors
    /// If BARs of this form cannot be so large.
    pub fn new(
        device: &Device,
        vm: Arc<dyn Vm>,
        bars: Bars,
        form: BarForm,
    ) -> Result<PciFunction, GeometryError> {
        let function = Inner::with_form(Arc::clone(device.chip()), form)?;
        let bars = Mutex::new(bars);
        let function = PciFunction { function, form, device: device.clone(), vm, bars };
        function.program();
        Ok(function)
    }

    /// Returns the BARs, in the order of [`Region::ALL`].
    pub fn bars(&self) -> [Bar; 4] {
        self.form.bars(self.device.chip().geometry())
    }

    /// Sets where the bus has the BARs, for a bus that allocates the addresses after the function is made. The guest
    /// has not run yet.
    pub fn set_bars(&self, bars: Bars) {
        *self.places() = bars;
        self.program();
    }

    /// Performs a load from config space, of any length. Fills every byte.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    /// Performs a store to config space. Returns the BARs that are not where the bus has them.
    pub fn config_write(&self, offset: u64, data: &[u8]) -> Vec<Move> {
        let mut moves = Vec::new();
        self.function.config_write(offset, data, |change| moves.extend(self.change(change)));
        moves
    }

    /// Returns a dword of config space, for a bus that counts it in dwords.
    pub fn read_register(&self, register: usize) -> u32 {
        let mut data = [0; 4];
        self.config_read(offset_of(register), &mut data);
        u32::from_le_bytes(data)
    }

    /// Performs a store to a dword of config space, `offset` bytes into it, as [`PciFunction::config_write`].
    pub fn write_register(&self, register: usize, offset: u64, data: &[u8]) -> Vec<Move> {
        self.config_write(offset_of(register).saturating_add(offset), data)
    }

    /// Performs a load from a BAR, by address. Fills every byte, with ones if no BAR is there. Takes no lock.
    pub fn read(&self, gpa: u64, data: &mut [u8]) {
        if !self.function.read(gpa, data) {
            data.fill(0xff);
        }
    }

    /// Performs a store to a BAR, by address. Takes no lock.
    pub fn write(&self, gpa: u64, data: &[u8]) {
        self.function.write(gpa, data);
    }

    /// Notes that the bus has moved a BAR, and maps it there.
    ///
    /// # Errors
    /// If the hypervisor refuses: the BAR traps then.
    pub fn move_bar(&self, region: Region, to: u64) -> io::Result<()> {
        // Locked until the BAR is mapped: another vCPU that turns memory space off meanwhile unmaps it afterwards.
        let mut bars = self.places();
        if let Bars::At(bases) = &mut *bars {
            bases[region as usize] = to;
        }
        match self.function.decoded(region) == Some(to) {
            true => self.device.place(&*self.vm, region, to),
            // The guest has turned memory space off.
            false => Ok(()),
        }
    }

    /// Sets a BAR back to where the bus has it, because the bus has refused to move it: the guest reads the old address.
    pub fn restore_bar(&self, region: Region) {
        let Bars::At(bases) = *self.places() else { return };
        self.function.set_bar(region, bases[region as usize], |change| _ = self.change(change));
    }

    /// Returns the BAR that the bus has at an address, for a bus that names its BARs so and has no two at one address.
    pub fn bar_at(&self, base: u64) -> Option<Region> {
        match &*self.places() {
            Bars::At(bases) => {
                Region::ALL.into_iter().find(|region| bases[*region as usize] == base)
            }
            Bars::Within(_) => None,
        }
    }

    /// Resets config space and the device, as a reset of the machine does. No vCPU runs.
    pub fn reset(&self) {
        self.function.reset(|change| _ = self.change(change));
        self.program();
    }

    /// Returns the state, for [`Saved::pci`](crate::Saved::pci).
    pub fn save(&self) -> SavedFunction {
        SavedFunction { config: self.function.state(), bars: self.places().clone() }
    }

    /// Restores config space and the bus's addresses, and maps the BARs that were decoded. No vCPU has run yet.
    ///
    /// # Errors
    /// If the state is of another function, or of another kind of bus: then nothing was done.
    pub fn load(&self, saved: &SavedFunction) -> Result<(), RestoreError> {
        let before = self.places().clone();
        for ((what, expected), (_, found)) in before.fixed().into_iter().zip(saved.bars.fixed()) {
            if expected != found {
                return Err(RestoreError::Differs { what, expected, found });
            }
        }
        *self.places() = saved.bars.clone();
        let restored = self.function.restore(&saved.config, |change| _ = self.change(change));
        restored.inspect_err(|_| *self.places() = before)
    }

    /// Stores the bus's addresses to the BARs.
    fn program(&self) {
        let Bars::At(bases) = *self.places() else { return };
        for (region, base) in Region::ALL.into_iter().zip(bases) {
            self.function.set_bar(region, base, |change| _ = self.change(change));
        }
    }

    /// Maps and unmaps a BAR that the guest has moved. Returns it if the bus has another address.
    fn change(&self, change: BarChange) -> Option<Move> {
        let BarChange { region, from, to } = change;
        let bar = self.bars()[region as usize];
        let size = bar.size;
        let bars = self.places();
        if let Some(from) = from.filter(|from| bars.contain(region, *from, size)) {
            self.device.remove(&*self.vm, region, from);
        }
        let to = to?;
        if bars.contain(region, to, size) {
            // Where it is not mapped, it traps.
            let _ = self.device.place(&*self.vm, region, to);
            return None;
        }
        match &*bars {
            Bars::At(bases) => Some(Move { bar, from: bases[region as usize], to }),
            Bars::Within(_) => None,
        }
    }

    fn places(&self) -> MutexGuard<'_, Bars> {
        // A VMM's call may panic. The addresses are whole by then.
        self.bars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the offset of a dword of config space, whatever a bus takes for its number.
fn offset_of(register: usize) -> u64 {
    (register as u64).saturating_mul(4)
}
