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
pub struct BarMove {
    /// The BAR.
    pub bar: Bar,
    /// Address on the bus.
    pub from: u64,
    /// Address that the guest has chosen: it may be over RAM, or over another device.
    pub to: u64,
}

/// The device as a PCI function: config space, and BARs that are mapped where both the guest and the bus have them.
///
/// Loads and stores of BARs take no lock, and no lock is held while the VMM maps a BAR. A thread that changes
/// the BARs while another one maps them leaves its change to that one; a guest that does so without end has BARs that trap.
pub struct PciFunction {
    // Before the device's memory: a VM that this is the last one to hold ends first.
    vm: Arc<dyn Vm>,
    pub(crate) function: Inner,
    form: BarForm,
    device: Device,
    places: Mutex<Places>,
}

/// Steps of a change of BARs: each is unmapped and mapped, and once more for another vCPU's change meanwhile.
const MAX_STEPS: usize = 16;

/// Where the BARs are.
#[derive(Debug)]
struct Places {
    bus: Bars,
    /// Address at which each BAR is mapped or was tried to.
    mapped: [Option<u64>; 4],
    /// A thread maps or unmaps a BAR, and looks for more to do afterwards.
    is_busy: bool,
}

impl fmt::Debug for PciFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PciFunction")
            .field("function", &self.function)
            .field("places", &self.places)
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
        let places = Mutex::new(Places { bus: bars, mapped: [None; 4], is_busy: false });
        let function = PciFunction { function, form, device: device.clone(), vm, places };
        function.program();
        Ok(function)
    }

    /// Returns the BARs, in the order of [`Region::ALL`].
    pub fn bars(&self) -> [Bar; 4] {
        self.form.bars(self.device.chip().geometry())
    }

    /// Returns the BAR at a register of config space, BAR 0 to 5. `None`: there is none, or the upper half of an address.
    pub fn bar(&self, index: usize) -> Option<Bar> {
        self.bars().into_iter().find(|bar| bar.index == index)
    }

    /// Returns the address at which the guest has a BAR, for a bus that follows the guest. `None`: it decodes none.
    pub fn address(&self, region: Region) -> Option<u64> {
        self.function.decoded(region)
    }

    /// Sets where the bus has the BARs, for a bus that allocates the addresses after the function is made. The guest
    /// has not run yet.
    pub fn set_bars(&self, bars: Bars) {
        self.places().bus = bars;
        self.program();
    }

    /// Performs a load from config space, of any length. Fills every byte.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    /// Performs a store to config space. Returns the BARs that are not where the bus has them.
    pub fn config_write(&self, offset: u64, data: &[u8]) -> Vec<BarMove> {
        let mut changes = Vec::new();
        self.function.config_write(offset, data, |change| changes.push(change));
        // Where a BAR is not mapped, it traps.
        let _ = self.settle();
        let Bars::At(bases) = self.places().bus else { return Vec::new() };
        let moved = |change: BarChange| {
            let (bar, from) = (self.bar(change.region.bar())?, bases[change.region as usize]);
            change.to.filter(|to| *to != from).map(|to| BarMove { bar, from, to })
        };
        changes.into_iter().filter_map(moved).collect()
    }

    /// Returns a dword of config space, for a bus that counts it in dwords.
    pub fn read_register(&self, register: usize) -> u32 {
        let mut data = [0; 4];
        self.config_read(offset_of(register), &mut data);
        u32::from_le_bytes(data)
    }

    /// Performs a store to a dword of config space, `offset` bytes into it, as [`PciFunction::config_write`].
    pub fn write_register(&self, register: usize, offset: u64, data: &[u8]) -> Vec<BarMove> {
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

    /// Notes that the bus has moved a BAR, and maps it there. If another thread maps BARs at this time, it does that soon
    /// after; until then, the old place may still be mapped.
    ///
    /// # Errors
    /// If the hypervisor refuses: the BAR traps then.
    pub fn move_bar(&self, region: Region, to: u64) -> io::Result<()> {
        if let Bars::At(bases) = &mut self.places().bus {
            bases[region as usize] = to;
        }
        self.settle()
    }

    /// Sets a BAR back to where the bus has it, because the bus has refused to move it: the guest reads the old address.
    pub fn restore_bar(&self, region: Region) {
        let Bars::At(bases) = self.places().bus else { return };
        self.function.set_bar(region, bases[region as usize], |_| ());
        let _ = self.settle();
    }

    /// Returns the BAR that the bus has at an address, for a bus that names its BARs so and has no two at one address.
    pub fn bar_at(&self, base: u64) -> Option<Region> {
        match &self.places().bus {
            Bars::At(bases) => {
                Region::ALL.into_iter().find(|region| bases[*region as usize] == base)
            }
            Bars::Within(_) => None,
        }
    }

    /// Resets config space and the device, as a reset of the machine does. No vCPU runs.
    pub fn reset(&self) {
        self.function.reset(|_| ());
        let _ = self.settle();
        self.program();
    }

    /// Returns the state, for [`Saved::pci`](crate::Saved::pci).
    pub fn save(&self) -> SavedFunction {
        SavedFunction { config: self.function.state(), bars: self.places().bus.clone() }
    }

    /// Restores config space and the bus's addresses, and maps the BARs that were decoded. No vCPU has run yet.
    ///
    /// # Errors
    /// If the state is of another function, or of another kind of bus: then nothing was done.
    pub fn load(&self, saved: &SavedFunction) -> Result<(), RestoreError> {
        let before = self.places().bus.clone();
        for ((what, expected), (_, found)) in before.fixed().into_iter().zip(saved.bars.fixed()) {
            if expected != found {
                return Err(RestoreError::Differs { what, expected, found });
            }
        }
        self.function.restore(&saved.config, |_| ())?;
        self.places().bus = saved.bars.clone();
        let _ = self.settle();
        Ok(())
    }

    /// Stores the bus's addresses to the BARs.
    fn program(&self) {
        let Bars::At(bases) = self.places().bus else { return };
        for (region, base) in Region::ALL.into_iter().zip(bases) {
            self.function.set_bar(region, base, |_| ());
        }
        let _ = self.settle();
    }

    /// Maps each BAR where both the guest and the bus have it, and unmaps it elsewhere. If another thread does so already,
    /// that one does the rest. Returns the first error.
    fn settle(&self) -> io::Result<()> {
        if std::mem::replace(&mut self.places().is_busy, true) {
            return Ok(());
        }
        let busy = Busy(&self.places);
        let mut done = Ok(());
        for _ in 0..MAX_STEPS {
            match self.next_step() {
                // It is not busy any more, as of the same look at what there is to do.
                None => {
                    std::mem::forget(busy);
                    return done;
                }
                Some((region, gpa, true)) => {
                    done = done.and(self.device.place(&*self.vm, region, gpa));
                }
                Some((region, gpa, false)) => self.device.remove(&*self.vm, region, gpa),
            }
        }
        // A guest whose other vCPU changes its BARs all the time does not keep this thread: all of them trap, until the next
        // change after this.
        let mapped = std::mem::take(&mut self.places().mapped);
        for (region, gpa) in Region::ALL.into_iter().zip(mapped) {
            if let Some(gpa) = gpa {
                self.device.remove(&*self.vm, region, gpa);
            }
        }
        done
    }

    /// Returns what is to be mapped (true) or unmapped next, and where. `None`: nothing, and it is not busy any more.
    fn next_step(&self) -> Option<(Region, u64, bool)> {
        let places = &mut *self.places();
        let Places { bus, mapped, .. } = &*places;
        let wanted = self.bars().map(|bar| {
            let gpa = self.function.decoded(bar.region)?;
            bus.contain(bar.region, gpa, bar.size).then_some(gpa)
        });
        let differing = Region::ALL.into_iter().zip(mapped.iter().zip(wanted));
        let differing = differing.filter(|(_, (mapped, wanted))| **mapped != *wanted);
        // First all that goes away: a BAR may go where another one was.
        let next = differing.min_by_key(|(_, (mapped, _))| mapped.is_none());
        let step = next.and_then(|(region, (mapped, wanted))| match *mapped {
            Some(from) => Some((region, from, false)),
            None => Some((region, wanted?, true)),
        });
        match step {
            Some((region, gpa, maps)) => places.mapped[region as usize] = maps.then_some(gpa),
            None => places.is_busy = false,
        }
        step
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        lock(&self.places)
    }
}

/// The thread that maps and unmaps BARs. Its drop lets another one do so, also after a panic of the VMM's call.
struct Busy<'a>(&'a Mutex<Places>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(self.0).is_busy = false;
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    // No code of the VMM runs while it is locked.
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the offset of a dword of config space, whatever a bus takes for its number.
fn offset_of(register: usize) -> u64 {
    (register as u64).saturating_mul(4)
}
