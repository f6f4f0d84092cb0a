// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The device as a PCI function on a VMM's bus.

use crate::saved::SavedFunction;
use crate::vm::{Bars, Device, Vm};
use hypertrace_device::PciFunction as Inner;
use hypertrace_device::{Bar, BarChange, BarForm, GeometryError, Region, RestoreError};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A BAR that the guest has moved away from its address on the bus. The VMM moves the BAR on its bus and
/// calls [`PciFunction::move_bar`], or refuses and calls [`PciFunction::restore_bar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarMove {
    /// The BAR.
    pub bar: Bar,
    /// Address on the bus.
    pub from: u64,
    /// Address that the guest has chosen, which may be over RAM, or over another device.
    pub to: u64,
}

/// The device as a PCI function: config space and BARs. A BAR is mapped while the guest and the bus have the
/// BAR at the same address.
///
/// Loads and stores of BARs take no lock, and no thread holds a lock while the VMM maps a BAR. If a thread
/// changes BARs while another thread maps BARs, the mapping thread also carries out this change. If a guest
/// changes its BARs without end, the BARs trap.
pub struct PciFunction {
    // `vm` is dropped before the device. Therefore, if `vm` is the last reference to the VM, the VM ends
    // before the device's memory.
    vm: Arc<dyn Vm>,
    pub(crate) function: Inner,
    form: BarForm,
    device: Device,
    places: Mutex<Places>,
}

/// Maximum number of steps of a change of BARs. A change unmaps and maps each of the four BARs. If another
/// vCPU changes the BARs meanwhile, each BAR is unmapped and mapped once more.
const MAX_STEPS: usize = 16;

/// Addresses of the BARs.
#[derive(Debug)]
struct Places {
    bus: Bars,
    /// Address at which each BAR is mapped, or at which a mapping was tried.
    mapped: [Option<u64>; 4],
    /// Whether a thread is mapping or unmapping BARs; this thread looks for further changes before it ends.
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
    /// Makes a function as after a reset, which decodes nothing until the guest sets memory space in COMMAND.
    ///
    /// # Errors
    /// If a BAR is too large for this form.
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

    /// Returns BAR `index` (0 to 5). Returns `None` if there is no such BAR, or if `index` stands for the
    /// upper half of an address.
    pub fn bar(&self, index: usize) -> Option<Bar> {
        self.bars().into_iter().find(|bar| bar.index == index)
    }

    /// Returns the address at which a BAR is decoded, or `None` if it is not decoded. A bus that moves a BAR
    /// whenever the guest moves the BAR calls this function.
    pub fn address(&self, region: Region) -> Option<u64> {
        self.function.decoded(region)
    }

    /// Sets the addresses of the BARs on the bus, for a bus that allocates the addresses after the function
    /// is made. Call this before the guest runs.
    pub fn set_bars(&self, bars: Bars) {
        self.places().bus = bars;
        self.program();
    }

    /// Performs a load from config space, of any length. Fills every byte.
    pub fn config_read(&self, offset: u64, data: &mut [u8]) {
        self.function.config_read(offset, data);
    }

    /// Performs a store to config space. Returns the BARs that this store has moved away from their addresses
    /// on the bus.
    pub fn config_write(&self, offset: u64, data: &[u8]) -> Vec<BarMove> {
        let mut changes = Vec::new();
        self.function.config_write(offset, data, |change| changes.push(change));
        // A BAR that is not mapped traps.
        let _ = self.settle();
        let Bars::At(bases) = self.places().bus else { return Vec::new() };
        let moved = |change: BarChange| {
            let (bar, from) = (self.bar(change.region.bar())?, bases[change.region as usize]);
            change.to.filter(|to| *to != from).map(|to| BarMove { bar, from, to })
        };
        changes.into_iter().filter_map(moved).collect()
    }

    /// Returns a dword of config space, for a bus that addresses config space in dwords.
    pub fn read_register(&self, register: usize) -> u32 {
        let mut data = [0; 4];
        self.config_read(offset_of(register), &mut data);
        u32::from_le_bytes(data)
    }

    /// Performs a store to config space, `offset` bytes into a dword, like [`PciFunction::config_write`].
    pub fn write_register(&self, register: usize, offset: u64, data: &[u8]) -> Vec<BarMove> {
        self.config_write(offset_of(register).saturating_add(offset), data)
    }

    /// Performs a load at an address in a BAR. Fills every byte, with ones if no BAR is there. Takes no lock.
    pub fn read(&self, gpa: u64, data: &mut [u8]) {
        if !self.function.read(gpa, data) {
            data.fill(0xff);
        }
    }

    /// Performs a store at an address in a BAR. Takes no lock.
    pub fn write(&self, gpa: u64, data: &[u8]) {
        self.function.write(gpa, data);
    }

    /// Notes that the bus has moved a BAR, and maps the BAR at its new address. If another thread is mapping
    /// BARs at this time, the other thread maps this BAR soon; until then, the old address may still be
    /// mapped.
    ///
    /// # Errors
    /// If the hypervisor does not map the BAR. The BAR traps then.
    pub fn move_bar(&self, region: Region, to: u64) -> io::Result<()> {
        if let Bars::At(bases) = &mut self.places().bus {
            bases[region as usize] = to;
        }
        self.settle()
    }

    /// Sets a BAR back to its address on the bus, because the bus has refused to move the BAR. The guest then
    /// reads the old address.
    pub fn restore_bar(&self, region: Region) {
        let Bars::At(bases) = self.places().bus else { return };
        self.function.set_bar(region, bases[region as usize], |_| ());
        let _ = self.settle();
    }

    /// Returns the BAR at an address of the bus. This function is for a bus that identifies a BAR by its
    /// address and never has two BARs at one address.
    pub fn bar_at(&self, base: u64) -> Option<Region> {
        match &self.places().bus {
            Bars::At(bases) => {
                Region::ALL.into_iter().find(|region| bases[*region as usize] == base)
            }
            Bars::Within(_) => None,
        }
    }

    /// Resets config space and the device, as a reset of the machine does, while no vCPU runs.
    pub fn reset(&self) {
        self.function.reset(|_| ());
        let _ = self.settle();
        self.program();
    }

    /// Returns the state, for [`Saved::pci`](crate::Saved::pci).
    pub fn save(&self) -> SavedFunction {
        SavedFunction { config: self.function.state(), bars: self.places().bus.clone() }
    }

    /// Restores config space and the addresses on the bus, and maps the BARs that were decoded. Call this
    /// before any vCPU runs.
    ///
    /// # Errors
    /// If the state belongs to another function or to another kind of bus. Nothing has changed then.
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

    /// Stores the addresses on the bus to the BARs.
    fn program(&self) {
        let Bars::At(bases) = self.places().bus else { return };
        for (region, base) in Region::ALL.into_iter().zip(bases) {
            self.function.set_bar(region, base, |_| ());
        }
        let _ = self.settle();
    }

    /// Maps each BAR that guest and bus have at the same address, and unmaps the other BARs. If another
    /// thread is already mapping BARs, leaves the rest to the other thread. Returns the first error.
    fn settle(&self) -> io::Result<()> {
        if std::mem::replace(&mut self.places().is_busy, true) {
            return Ok(());
        }
        let busy = Busy(&self.places);
        let mut done = Ok(());
        for _ in 0..MAX_STEPS {
            match self.next_step() {
                // `next_step` found nothing to do and cleared `is_busy` under one lock. The drop of the guard
                // must not clear `is_busy` again.
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
        // All BARs trap until the next change. Otherwise, a guest could keep this thread busy by changing
        // BARs on another vCPU all the time.
        let mapped = std::mem::take(&mut self.places().mapped);
        for (region, gpa) in Region::ALL.into_iter().zip(mapped) {
            if let Some(gpa) = gpa {
                self.device.remove(&*self.vm, region, gpa);
            }
        }
        done
    }

    /// Returns the BAR to map (true) or unmap (false) next, and the address. If there is nothing to do,
    /// clears `is_busy` and returns `None`.
    fn next_step(&self) -> Option<(Region, u64, bool)> {
        let places = &mut *self.places();
        let Places { bus, mapped, .. } = &*places;
        let wanted = self.bars().map(|bar| {
            let gpa = self.function.decoded(bar.region)?;
            bus.contain(bar.region, gpa, bar.size).then_some(gpa)
        });
        let differing = Region::ALL.into_iter().zip(mapped.iter().zip(wanted));
        let differing = differing.filter(|(_, (mapped, wanted))| **mapped != *wanted);
        // BARs are unmapped first, because a BAR may move to the old address of another BAR.
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

/// Guard of the thread that maps and unmaps BARs. The drop of the guard lets another thread map BARs, even if
/// the VMM's call has panicked.
struct Busy<'a>(&'a Mutex<Places>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        lock(self.0).is_busy = false;
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    // The mutex is used even if it is poisoned, because no code of the VMM runs while the mutex is locked.
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the offset of a dword of config space. The result saturates, because a bus may pass any number.
fn offset_of(register: usize) -> u64 {
    (register as u64).saturating_mul(4)
}
