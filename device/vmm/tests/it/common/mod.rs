// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A machine without a hypervisor, and a small device.

use hypertrace_vmm::{DeviceConfig, Drain, Geometry, Hypertrace, Mapping, SessionConfig, Vm};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// A machine without a hypervisor, in which every access traps.
pub struct Traps;

impl Vm for Traps {
    fn map(&self, _: &Mapping<'_>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn unmap(&self, _: &Mapping<'_>) {}

    fn arm(&self, _: u64, _: BorrowedFd<'_>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn disarm(&self, _: u64, _: BorrowedFd<'_>) {}
}

/// Returns the sizes of the device that [`start`] starts.
pub fn geometry() -> Geometry {
    Geometry { ring_bytes: 4096, block_bytes: 256, ..Geometry::default() }
}

/// Starts a device with small rings.
pub fn start(dir: &Path) -> Hypertrace {
    let config = DeviceConfig::new(1).with(|config| {
        config.geometry = geometry();
        config.drain = Drain::Later;
    });
    Hypertrace::start(SessionConfig::new(dir), config).unwrap()
}
