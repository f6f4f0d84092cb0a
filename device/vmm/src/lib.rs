// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The hypertrace device in a VMM.
//!
//! [`Hypertrace`] holds what a VMM needs for a guest: the session, the device with its memory and its
//! eventfd, and the thread that drains the rings. The VMM implements its hypervisor's four calls as a [`Vm`],
//! and puts the device on its bus.
//!
//! ```no_run
//! use hypertrace_vmm::{DeviceConfig, Hypertrace, SessionConfig};
//!
//! # fn main() -> Result<(), hypertrace_vmm::Error> {
//! let hypertrace = Hypertrace::start(SessionConfig::new("out"), DeviceConfig::new(2))?;
//! // The guest runs. A store to a register goes to `hypertrace.chip()`.
//! let summary = hypertrace.finish()?;
//! println!("{} events of guests, {} lost", summary.ring_events, summary.lost);
//! # Ok(())
//! # }
//! ```
//!
//! [`Saved`] is the device in a snapshot of the machine. A VMM serializes this value by serde, or writes the
//! value to a stream.
#![warn(missing_debug_implementations)]

mod function;
mod hypertrace;
#[cfg(feature = "kvm")]
pub mod kvm;
mod saved;
#[cfg(target_arch = "x86_64")]
pub mod syscalls;
#[cfg(feature = "test-utils")]
pub mod test_utils;
mod vm;
#[cfg(feature = "vm-device")]
mod vm_device;

pub use function::{BarMove, PciFunction};
pub use hypertrace::{DeviceConfig, Drain, Error, Hypertrace};
pub use saved::{Saved, SavedFunction};
pub use vm::{Bars, Device, Vm};
#[cfg(feature = "vm-device")]
pub use vm_device::ConfigPorts;

pub use hypertrace_device::{
    Bar, BarChange, BarForm, Chip, ChipConfig, Counter, DrainPolicy, Geometry, GeometryError, Kick,
    Mapping, PciState, Region, RestoreError, Window,
};
pub use hypertrace_trace::monitor::{Monitor, MonitorError};
pub use hypertrace_trace::{
    Destination, GuestTsc, Output, Session, SessionConfig, SessionError, Share, Summary, attach,
};

// The example of README.md.
#[cfg(all(doctest, feature = "test-utils"))]
#[doc = include_str!("../README.md")]
struct Readme;
