//! A PCI device of Cloud Hypervisor's shape, with the config space of [`PciFunction`].

use std::io;
use std::sync::{Arc, Barrier};

use hypertrace_device::{BarChange, PciFunction, PciState, Region, RestoreError};
use hypertrace_trace::Session;
use vmm_sys_util::eventfd::EventFd;

use crate::hypertrace::Hypertrace;
use crate::mmio_bus::BusDeviceSync;
use crate::pci_bus::{BarReprogrammingParams, PciDevice};
use crate::vm::Vm;

/// The device, with config space of its own.
pub struct FunctionDevice {
    hypertrace: Hypertrace,
    function: Arc<PciFunction<Session, EventFd>>,
    vm: Arc<dyn Vm>,
    /// Addresses of the BARs on the VMM's bus, in the order of [`Region::ALL`].
    bases: [u64; 4],
}

impl FunctionDevice {
    /// Makes a device whose BARs are at addresses that the VMM has allocated.
    pub fn new(hypertrace: Hypertrace, vm: Arc<dyn Vm>, bases: [u64; 4]) -> FunctionDevice {
        let function = Arc::new(PciFunction::new(Arc::clone(hypertrace.chip())));
        let device = FunctionDevice { hypertrace, function, vm, bases };
        device.program_bars();
        device
    }

    /// Stores the addresses to the BARs. The guest enables memory space.
    fn program_bars(&self) {
        for (region, base) in Region::ALL.into_iter().zip(self.bases) {
            let offset = 0x10 + 4 * region.bar() as u64;
            self.function.config_write(offset, &(base as u32).to_le_bytes(), |_| ());
            if region == Region::Rings {
                let high = ((base >> 32) as u32).to_le_bytes();
                self.function.config_write(offset + 4, &high, |_| ());
            }
        }
    }

    /// Returns the BARs for the VMM's MMIO bus. They need no lock, unlike the device.
    pub fn bars(&self) -> Arc<dyn BusDeviceSync> {
        Arc::new(Bars(Arc::clone(&self.function)))
    }

    /// Applies a change of a BAR. Returns it if the VMM's bus has another address.
    fn change(&self, change: BarChange) -> Option<BarReprogrammingParams> {
        let BarChange { region, from, to } = change;
        let old_base = self.bases[region as usize];
        if from == Some(old_base) {
            self.hypertrace.remove(&*self.vm, region, old_base);
        }
        let new_base = to?;
        if new_base == old_base {
            // Without a mapping the region traps.
            let _ = self.hypertrace.place(&*self.vm, region, new_base);
            return None;
        }
        let len = self.hypertrace.chip().geometry().bar_size(region);
        Some(BarReprogrammingParams { old_base, new_base, len })
    }

    /// Resets the device. No vCPU runs.
    pub fn reset(&self) {
        self.function.reset(|change| _ = self.change(change));
        self.program_bars();
    }

    /// Returns the state of config space, beside [`Hypertrace::save`].
    pub fn state(&self) -> PciState {
        self.function.state()
    }

    /// Restores config space, with BARs at the addresses that [`FunctionDevice::new`] got.
    ///
    /// # Errors
    /// If the state is of another device.
    pub fn restore(&self, state: &PciState) -> Result<(), RestoreError> {
        self.function.restore(state, |change| _ = self.change(change))
    }

    /// Returns the device's core.
    pub fn hypertrace(&self) -> &Hypertrace {
        &self.hypertrace
    }

    /// Ends the device.
    pub fn into_hypertrace(self) -> Hypertrace {
        self.hypertrace
    }
}

impl PciDevice for FunctionDevice {
    fn read_config_register(&mut self, register: usize) -> u32 {
        let mut data = [0; 4];
        self.function.config_read(4 * register as u64, &mut data);
        u32::from_le_bytes(data)
    }

    fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams> {
        let mut moved = Vec::new();
        let at = 4 * register as u64 + offset;
        self.function.config_write(at, data, |change| moved.extend(self.change(change)));
        moved
    }

    fn read_bar(&mut self, base: u64, offset: u64, data: &mut [u8]) {
        if !self.function.read(base + offset, data) {
            data.fill(0xff);
        }
    }

    fn write_bar(&mut self, base: u64, offset: u64, data: &[u8]) {
        self.function.write(base + offset, data);
    }

    fn move_bar(&mut self, old_base: u64, new_base: u64) -> io::Result<()> {
        let region =
            Region::ALL.into_iter().find(|region| self.bases[*region as usize] == old_base);
        let Some(region) = region else { return Err(io::ErrorKind::NotFound.into()) };
        self.bases[region as usize] = new_base;
        self.hypertrace.place(&*self.vm, region, new_base)
    }
}

/// BARs that vCPUs access at the same time, while one of them stores to config space.
struct Bars(Arc<PciFunction<Session, EventFd>>);

impl BusDeviceSync for Bars {
    fn read(&self, base: u64, offset: u64, data: &mut [u8]) {
        if !self.0.read(base + offset, data) {
            data.fill(0xff);
        }
    }

    fn write(&self, base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>> {
        self.0.write(base + offset, data);
        None
    }
}
