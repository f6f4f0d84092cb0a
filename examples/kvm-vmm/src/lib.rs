//! A minimal VMM on KVM: just enough to run a guest with the hypertrace device.
//!
//! ```no_run
//! use std::time::Duration;
//! use hypertrace_guest::{Args, Program};
//! use kvm_vmm::Machine;
//!
//! # fn main() -> Result<(), kvm_vmm::Error> {
//! let machine = Machine::new(2)?;
//! let outcome = machine.run(&Args::new(Program::Hello), Duration::from_secs(5))?;
//! print!("{}", String::from_utf8_lossy(&outcome.console));
//! # Ok(())
//! # }
//! ```
//!
//! - [`Vm`] is the virtual machine and its RAM; the crate `hypertrace-vmm` makes the calls for the device;
//! - [`Bus`] passes MMIO exits to devices;
//! - [`Machine`] loads the guest image into RAM, and runs a program on vCPUs until it ends, fails or
//!   takes too long;
//! - [`attach_window`] and [`attach_pci`] add the hypertrace device, [`record_in`] traces the
//!   VMM itself;
//! - [`Snapshot`] is a paused machine with its device in files, for a restore in another process.
//!
//! Without a usable KVM, [`Machine::new`] fails with [`Error::Unusable`], and [`run_on_threads`]
//! runs the same programs on threads of this process.
//!
//! The guest starts in 64-bit *user* mode, or on AArch64 at EL1, with an identity mapping of the first 4 GiB.
//! An exception ends the guest. There are no interrupts, no firmware and no disks, and the VMM does not boot
//! an operating system.
//!
//! The guest's code is x86-64 or AArch64 code, whichever the host executes.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("kvm-vmm runs guests of x86-64 and AArch64");

#[cfg_attr(target_arch = "aarch64", path = "boot/aarch64.rs")]
mod boot;
mod bus;
mod control;
mod device;
mod error;
mod image;
mod machine;
mod observe;
mod segment;
mod session;
mod snapshot;
mod threads;
#[cfg_attr(target_arch = "aarch64", path = "tsc/aarch64.rs")]
mod tsc;
mod vcpu;
mod vm;

/// The VMM's events, declared in its `trace-events` file.
pub mod trace {
    hypertrace_trace::include_events!();
}

pub use bus::Bus;
pub use device::{Answer, attach_pci, attach_window};
pub use error::{Error, Unusable, VcpuError};
pub use machine::{Machine, Outcome, Progress};
pub use observe::{Observer, VmmEvent, record_in};
pub use segment::segment_channel;
pub use snapshot::{Snapshot, SnapshotError};
pub use threads::run_on_threads;
pub use vm::Vm;
