//! A PCI device of Cloud Hypervisor's shape, with the VMM's own config space.

use std::io;
use std::sync::Arc;

use hypertrace_device::{PCI_CLASS, PCI_DEVICE, PCI_REVISION, PCI_SUBSYSTEM, PCI_VENDOR, Region};
use hypertrace_vmm::{BarForm, Device, Vm};

use crate::pci_bus::{BarReprogrammingParams, PciBarConfiguration, PciConfiguration, PciDevice};

/// The device, with the VMM's own config space.
pub struct ChipDevice {
    device: Device,
    config: PciConfiguration,
    vm: Arc<dyn Vm>,
    /// Addresses of the BARs, in the order of [`Region::ALL`].
    bases: [u64; 4],
}

impl ChipDevice {
    /// Makes a device whose BARs are at addresses that the VMM has allocated, and maps them.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn new(device: Device, vm: Arc<dyn Vm>, bases: [u64; 4]) -> io::Result<ChipDevice> {
        let subsystem = [PCI_VENDOR, PCI_SUBSYSTEM];
        let mut config =
            PciConfiguration::new(PCI_VENDOR, PCI_DEVICE, PCI_CLASS, PCI_REVISION, subsystem);
        let bars = BarForm::default().bars(device.chip().geometry());
        for (bar, address) in bars.into_iter().zip(bases) {
            config.add_pci_bar(PciBarConfiguration {
                index: bar.index,
                address,
                size: bar.size,
                is_64_bit: bar.is_64_bit,
                is_prefetchable: bar.is_prefetchable,
            });
            device.place(&*vm, bar.region, address)?;
        }
        Ok(ChipDevice { device, config, vm, bases })
    }

    /// Returns the region whose BAR is at an address.
    fn region(&self, base: u64) -> Option<Region> {
        Region::ALL.into_iter().find(|region| self.bases[*region as usize] == base)
    }
}

impl PciDevice for ChipDevice {
    fn read_config_register(&mut self, register: usize) -> u32 {
        self.config.read_reg(register)
    }

    fn write_config_register(
        &mut self,
        register: usize,
        offset: u64,
        data: &[u8],
    ) -> Vec<BarReprogrammingParams> {
        self.config.write_config_register(register, offset, data)
    }

    fn read_bar(&mut self, base: u64, offset: u64, data: &mut [u8]) {
        match self.region(base) {
            Some(region) => self.device.chip().read(region, offset, data),
            None => data.fill(0xff),
        }
    }

    fn write_bar(&mut self, base: u64, offset: u64, data: &[u8]) {
        if let Some(region) = self.region(base) {
            self.device.chip().write(region, offset, data);
        }
    }

    fn move_bar(&mut self, old_base: u64, new_base: u64) -> io::Result<()> {
        let Some(region) = self.region(old_base) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        self.device.remove(&*self.vm, region, old_base);
        self.bases[region as usize] = new_base;
        self.device.place(&*self.vm, region, new_base)
    }

    fn restore_bar_addr(&mut self, params: &BarReprogrammingParams) {
        self.config.restore_bar_addr(params);
    }
}
