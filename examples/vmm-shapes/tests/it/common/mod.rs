//! A machine without KVM, and a guest that makes single accesses.
#![allow(dead_code)] // each test file uses a part

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use hypertrace_vmm::{DeviceConfig, Geometry, Hypertrace, Mapping, Saved, SessionConfig, Vm};

/// Mappings (size, read-only) by address, and addresses of ioeventfds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    pub memory: BTreeMap<u64, (u64, bool)>,
    pub doorbells: BTreeSet<u64>,
}

/// Keeps what a VMM would ask KVM for.
#[derive(Default)]
pub struct Machine(Mutex<Placed>);

impl Machine {
    pub fn placed(&self) -> Placed {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Vm for Machine {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        let mapped = (memory.size, memory.is_read_only);
        self.0.lock().unwrap().memory.insert(memory.gpa, mapped);
        Ok(())
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        self.0.lock().unwrap().memory.remove(&memory.gpa);
    }

    fn arm(&self, gpa: u64, _eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.lock().unwrap().doorbells.insert(gpa);
        Ok(())
    }

    fn disarm(&self, gpa: u64, _eventfd: BorrowedFd<'_>) {
        self.0.lock().unwrap().doorbells.remove(&gpa);
    }
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
    DeviceConfig { geometry: geometry(), ..DeviceConfig::new(VCPUS) }
}

/// Starts a device with a session in a new directory.
pub fn start(saved: Option<&Saved>) -> (tempfile::TempDir, Hypertrace) {
    let dir = tempfile::tempdir().unwrap();
    let session = SessionConfig { file_bytes: 1 << 20, ..SessionConfig::new(dir.path()) };
    let hypertrace = Hypertrace::start(session, config()).unwrap();
    if let Some(saved) = saved {
        hypertrace.load(saved).unwrap();
    }
    (dir, hypertrace)
}

/// Offset in the control region of the register of 2016 of client 1: a store there is a reference point.
pub const POINT: u64 = 8;

/// Offset of KICK in the control region.
pub fn kick() -> u64 {
    geometry().kick_offset()
}

/// `HYPTRACE`, at this offset of the config page.
pub const MAGIC: (u64, [u8; 8]) = (0x28, *b"HYPTRACE");
