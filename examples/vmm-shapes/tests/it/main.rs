// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate. Each module has one subject.

mod cloud_hypervisor;
mod common;
mod doc;
mod firecracker;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod jail;

mod io_manager;
mod memory;
