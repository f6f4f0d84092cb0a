//! Guest programs of the hypertrace examples and tests, and their contract with `kvm-vmm`.
//!
//! The same code runs in two places. `examples/kvm-vmm/build.rs` builds the code as a freestanding image
//! (feature `image`) that the VMM loads into guest memory. The code is also an ordinary library, so that the
//! programs can run on threads of the VMM where there is no `/dev/kvm`. A program therefore uses only its
//! [`Args`], its [`Board`] and the hypertrace channel that it gets.
//!
//! - [`layout`]: the guest's memory map, a constant of both sides;
//! - [`Args`]: the VMM's arguments to the program; [`Board`]: the program's results for the VMM;
//! - [`Program`]: the programs by number; [`run`] runs a program.

#![no_std]

mod args;
mod console;
mod mmio;

/// The guest's memory map.
pub mod layout;
/// Setup of a PCI function, as firmware does it.
pub mod pci;
/// The programs.
pub mod programs;
/// Registers of the device that [`Program::Spend`] uses.
pub mod spend;

// This code needs the profile of the image, because only this profile has `panic = "abort"`. A `cargo build
// --all-features` of the workspace leaves the code out. In such a build, std has a panic handler, and a
// second handler would not link.
#[cfg(all(feature = "image", panic = "abort"))]
mod device;
#[cfg(all(feature = "image", panic = "abort"))]
mod image;

pub use args::{Args, BOARD_RESULTS, Board, MAX_VCPUS, Program};
pub use console::Console;
pub use mmio::{load, store};
pub use programs::{run, run_hosted};
