//! A device on a machine without KVM.
#![allow(dead_code)] // each test file uses a part

use hypertrace_vmm::test_utils::FakeVm;
use hypertrace_vmm::{DeviceConfig, Geometry, Hypertrace, Region, Saved, SessionConfig};

/// Regions that are mapped, and addresses that are armed.
pub type Placed = (Vec<(Region, u64)>, Vec<u64>);

pub fn placed(machine: &FakeVm) -> Placed {
    (machine.mapped(), machine.armed())
}

pub const VCPUS: u32 = 2;

/// Small rings.
pub fn geometry() -> Geometry {
    let sizes =
        Geometry { legacy_args: 4, ring_bytes: 4096, block_bytes: 256, ..Geometry::default() };
    Geometry { schema_bytes: 4096, ..sizes }.for_vcpus(VCPUS)
}

/// Returns a configuration with small rings.
pub fn config() -> DeviceConfig {
    DeviceConfig::new(VCPUS).with(|config| config.geometry = geometry())
}

/// Starts a device with a session in a new directory.
pub fn start(saved: Option<&Saved>) -> (tempfile::TempDir, Hypertrace) {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionConfig::new(dir.path()).with(|config| config.file_bytes = 1 << 20);
    let hypertrace = Hypertrace::start(session, config()).unwrap();
    if let Some(saved) = saved {
        hypertrace.load(saved).unwrap();
    }
    (dir, hypertrace)
}

/// Offset of client 1's 2016 register in the control region. A store to this register is a reference point.
pub const POINT: u64 = 8;

/// Offset of KICK in the control region.
pub fn kick() -> u64 {
    geometry().kick_offset()
}

/// `HYPTRACE`, at this offset of the config page.
pub const MAGIC: (u64, [u8; 8]) = (0x28, *b"HYPTRACE");
