// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function on `vm-device` buses: BARs as MMIO, config space by ports.

use crate::function::PciFunction;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vm_device::bus::{MmioAddress, MmioAddressOffset, PioAddress, PioAddressOffset};
use vm_device::{DeviceMmio, DevicePio};

/// This device has the whole MMIO range of the host bridge, in which the guest places the BARs.
impl DeviceMmio for PciFunction {
    fn mmio_read(&self, base: MmioAddress, offset: MmioAddressOffset, data: &mut [u8]) {
        data.fill(0);
        if let Some(address) = base.0.checked_add(offset) {
            self.function.read(address, data);
        }
    }

    fn mmio_write(&self, base: MmioAddress, offset: MmioAddressOffset, data: &[u8]) {
        if let Some(address) = base.0.checked_add(offset) {
            self.write(address, data);
        }
    }
}

/// PCI configuration mechanism #1 (ports 0xcf8 to 0xcff), for a VMM that has only this
/// PCI function, with [`Bars::Within`](crate::Bars::Within).
#[derive(Debug)]
pub struct ConfigPorts {
    function: Arc<PciFunction>,
    device: u32,
    address: AtomicU32,
}

/// Bit 31 of CONFIG_ADDRESS, which lets accesses to CONFIG_DATA reach config space.
const ENABLE: u32 = 1 << 31;
const CONFIG_DATA: u16 = 4;

impl ConfigPorts {
    /// Makes ports that have the function at bus 0, device `device` (0 to 31), function 0.
    pub fn new(function: Arc<PciFunction>, device: u8) -> Self {
        let device = u32::from(device & 31) << 11;
        ConfigPorts { function, device, address: AtomicU32::new(0) }
    }

    /// Returns CONFIG_ADDRESS, for a snapshot.
    pub fn address(&self) -> u32 {
        self.address.load(Relaxed)
    }

    /// Sets CONFIG_ADDRESS: to the value of the snapshot at a restore, to 0 at a reset.
    pub fn set_address(&self, address: u32) {
        self.address.store(address, Relaxed);
    }

    /// Returns the config offset of an access at port offset `at`, if the access is for the function.
    fn target(&self, at: u16) -> Option<u64> {
        let address = self.address.load(Relaxed);
        let ours = address & !0xff == ENABLE | self.device;
        ours.then_some(u64::from(address & 0xfc) + u64::from(at - CONFIG_DATA))
    }
}

impl DevicePio for ConfigPorts {
    fn pio_read(&self, _base: PioAddress, offset: PioAddressOffset, data: &mut [u8]) {
        // A load that no function answers returns ones.
        data.fill(0xff);
        if offset == 0 && data.len() == 4 {
            data.copy_from_slice(&self.address.load(Relaxed).to_le_bytes());
        } else if offset >= CONFIG_DATA
            && let Some(target) = self.target(offset)
        {
            self.function.config_read(target, data);
        }
    }

    fn pio_write(&self, _base: PioAddress, offset: PioAddressOffset, data: &[u8]) {
        if offset == 0 {
            if let Ok(bytes) = data.try_into() {
                self.address.store(u32::from_le_bytes(bytes), Relaxed);
            }
        } else if offset >= CONFIG_DATA
            && let Some(target) = self.target(offset)
        {
            // The bus maps the whole range of the bridge, so the bus need not know where the guest moves a
            // BAR.
            self.function.config_write(target, data);
        }
    }
}
