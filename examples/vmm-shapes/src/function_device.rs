//! A PCI device of Cloud Hypervisor's shape, with the config space of [`PciFunction`].

use std::io;
use std::sync::{Arc, Barrier};

use hypertrace_vmm::{Bar, BarForm, BarMove, Bars, Device, GeometryError, PciFunction, Vm};

use crate::mmio_bus::BusDeviceSync;
use crate::pci_bus::{BarReprogrammingParams, PciDevice};

/// The device, with config space of its own.
pub struct FunctionDevice {
    function: Arc<PciFunction>,
}

impl FunctionDevice {
    /// Makes a device whose bus allocates its BARs' addresses later.
    ///
    /// # Errors
    /// If the BARs are too large.
    pub fn new(device: &Device, vm: Arc<dyn Vm>) -> Result<FunctionDevice, GeometryError> {
        let function = PciFunction::new(device, vm, Bars::At([0; 4]), BarForm::default())?;
        Ok(FunctionDevice { function: Arc::new(function) })
    }

    /// Allocates the BARs' addresses.
    pub fn allocate_bars(&mut self, allocate: impl FnMut(Bar) -> u64) {
        let bases = self.function.bars().map(allocate);
        self.function.set_bars(Bars::At(bases));
    }

    /// Returns the PCI function. With this function, the caller can reset, save and restore the device.
    pub fn function(&self) -> &PciFunction {
        &self.function
    }

    /// Returns the BARs for the VMM's MMIO bus. Unlike the device, the BARs need no lock.
    pub fn bars(&self) -> Arc<dyn BusDeviceSync> {
        Arc::new(FunctionBars(Arc::clone(&self.function)))
    }
}

impl PciDevice for FunctionDevice {
    fn read_config_register(&mut self, register: usize) -> u32 {
        self.function.read_register(register)
    }

    fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams> {
        let moves = self.function.write_register(register, offset, data);
        let params = |BarMove { bar, from, to }| BarReprogrammingParams {
            old_base: from,
            new_base: to,
            len: bar.size,
            is_64_bit: bar.is_64_bit,
        };
        moves.into_iter().map(params).collect()
    }

    fn read_bar(&mut self, base: u64, offset: u64, data: &mut [u8]) {
        self.function.read(base + offset, data);
    }

    fn write_bar(&mut self, base: u64, offset: u64, data: &[u8]) {
        self.function.write(base + offset, data);
    }

    fn move_bar(&mut self, old_base: u64, new_base: u64) -> io::Result<()> {
        let bar = self.function.bar_at(old_base).ok_or(io::ErrorKind::NotFound)?;
        self.function.move_bar(bar, new_base)
    }

    fn restore_bar_addr(&mut self, params: &BarReprogrammingParams) {
        if let Some(bar) = self.function.bar_at(params.old_base) {
            self.function.restore_bar(bar);
        }
    }
}

/// BARs that vCPUs access at the same time, while one of them stores to config space.
struct FunctionBars(Arc<PciFunction>);

impl BusDeviceSync for FunctionBars {
    fn read(&self, base: u64, offset: u64, data: &mut [u8]) {
        self.0.read(base + offset, data);
    }

    fn write(&self, base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>> {
        self.0.write(base + offset, data);
        None
    }
}
