//! The device on a bus of Firecracker's shape: one MMIO window, whose address is on the kernel command line.

use std::io;
use std::sync::{Arc, Barrier};

use hypertrace_vmm::{Device, Vm, Window};

use crate::mmio_bus::{Bus, BusDeviceSync};

impl BusDeviceSync for Window {
    fn read(&self, _base: u64, offset: u64, data: &mut [u8]) {
        Window::read(self, offset, data);
    }

    fn write(&self, _base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>> {
        Window::write(self, offset, data);
        None
    }
}

/// Attaches the device as a window at `base`. Returns what to add to the kernel command line.
///
/// # Errors
/// If KVM refuses.
pub fn attach_window(device: &Device, vm: &dyn Vm, bus: &mut Bus, base: u64) -> io::Result<String> {
    let window = device.place_window(vm, base)?;
    let size = window.size();
    bus.insert(Arc::new(window), base, size);
    Ok(format!("hypertrace.mmio={base:#x}"))
}
