// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What the tests of several crates share.
//!
//! It depends on few crates, so that a crate's tests are built without waiting for others.
// The modules say what they are for, and are no interface of a library.
#![allow(missing_docs, clippy::new_without_default, clippy::should_implement_trait)]

pub mod babeltrace2;
pub mod boots;
pub mod capability;
pub mod child;
pub mod cpus;
#[cfg(feature = "functions")]
pub mod functions;
#[cfg(feature = "machine")]
pub mod guest_mode;
pub mod initramfs;
#[cfg(feature = "json")]
pub mod json_md;
#[cfg(feature = "events")]
pub mod kept;
pub mod kill;
#[cfg(feature = "machine")]
pub mod machine;
pub mod made;
pub mod namespace;
#[cfg(feature = "compare")]
pub mod simulation;
pub mod sleeps;
pub mod steps;
pub mod trace_dat;
#[cfg(feature = "machine")]
pub mod two_kernels;
pub mod uftrace;
pub mod vcpu;
mod wait;

pub use wait::wait_until;
