//! Stand-in for the MMIO bus of Cloud Hypervisor, and of Firecracker before 1.17. From 1.17 on, Firecracker's
//! bus has a mutex around each device.

use std::sync::{Arc, Barrier};

/// A device at a range of addresses. The device takes the locks that it needs.
pub trait BusDeviceSync: Send + Sync {
    /// Loads from `offset` in the range at `base`.
    fn read(&self, base: u64, offset: u64, data: &mut [u8]);

    /// Stores to `offset` in the range at `base`. If the result is a barrier, the vCPU waits for the barrier.
    fn write(&self, base: u64, offset: u64, data: &[u8]) -> Option<Arc<Barrier>>;
}

/// A bus: ranges without overlap.
#[derive(Default)]
pub struct Bus {
    devices: Vec<(u64, u64, Arc<dyn BusDeviceSync>)>,
}

impl Bus {
    /// Adds a device at a range.
    pub fn insert(&mut self, device: Arc<dyn BusDeviceSync>, base: u64, len: u64) {
        self.devices.push((base, len, device));
    }

    /// Performs a guest's load that trapped. Returns `false` if no device is there.
    pub fn read(&self, gpa: u64, data: &mut [u8]) -> bool {
        let Some((base, device)) = self.find(gpa) else { return false };
        device.read(base, gpa - base, data);
        true
    }

    /// Performs a guest's store that trapped. Returns `false` if no device is there.
    pub fn write(&self, gpa: u64, data: &[u8]) -> bool {
        let Some((base, device)) = self.find(gpa) else { return false };
        if let Some(barrier) = device.write(base, gpa - base, data) {
            barrier.wait();
        }
        true
    }

    fn find(&self, gpa: u64) -> Option<(u64, &dyn BusDeviceSync)> {
        let mut devices = self.devices.iter();
        let found = devices.find(|(base, len, _)| gpa >= *base && gpa - base < *len)?;
        Some((found.0, &*found.2))
    }
}
