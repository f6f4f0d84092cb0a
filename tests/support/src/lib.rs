// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Code that the tests of several crates share.
//!
//! This crate has few dependencies, because a crate's tests are built only after all of them.
// Items need no comments, because this crate is no library for users. Each module's comment says what the
// module is for.
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
