// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The window on `vm-device` buses, as MMIO. The PCI function is in `hypertrace-vmm`.

use crate::window::Window;
use vm_device::DeviceMmio;
use vm_device::bus::{MmioAddress, MmioAddressOffset};

impl DeviceMmio for Window {
    fn mmio_read(&self, _base: MmioAddress, offset: MmioAddressOffset, data: &mut [u8]) {
        self.read(offset, data);
    }

    fn mmio_write(&self, _base: MmioAddress, offset: MmioAddressOffset, data: &[u8]) {
        self.write(offset, data);
    }
}
