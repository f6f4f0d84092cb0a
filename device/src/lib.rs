// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The hypertrace device, which turns guest stores into host trace events.
//!
//! [`Chip`] is the device itself: registers, shared memory, and the host's state for each client. The chip
//! knows no bus and no file. Guests reach the chip through a [`PciFunction`] or a [`Window`], and it passes
//! reference points and rings to an [`EventSink`](hypertrace_abi::sink::EventSink), usually
//! `hypertrace_trace::Session`:
//!
//! ```text
//! vCPU threads --write--> PciFunction | Window --> Chip --reference_point--> sink
//! drain loop  ----------------drain--------------> Chip ------drain--------> sink
//! ```
//!
//! All calls that a guest causes take `&self` and may come from any thread at any time. A guest's mistakes
//! are counted ([`Counter`]), and are never errors or log lines. The path of a reference point has no lock,
//! no allocation and no system call.
//!
//! The device raises no interrupt, performs no DMA, and accesses no guest RAM other
//! than its own two shared regions ([`Memory`]).
#![warn(missing_debug_implementations)]

pub mod adapter;
mod chip;
mod counter;
mod drain_thread;
mod kick;
mod legacy;
mod memory;
mod pci;
mod placement;
mod rest;
mod restore;
mod state;
mod window;

pub use chip::{Chip, ChipConfig, DrainWaker};
pub use counter::Counter;
pub use drain_thread::DrainThread;
pub use kick::Kick;
pub use memory::{Memory, MemoryError, Pages, SharedRegion};
pub use pci::{Bar, BarChange, BarForm, PciFunction};
pub use placement::Mapping;
pub use state::{ChipState, ClientState, PciState, RestoreError};
pub use window::Window;

pub use hypertrace_abi::config::RingMode;
pub use hypertrace_abi::drain::DrainPolicy;
pub use hypertrace_abi::layout::{
    Geometry, GeometryError, PCI_CLASS, PCI_DEVICE, PCI_REVISION, PCI_SUBSYSTEM, PCI_VENDOR, Region,
};

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
