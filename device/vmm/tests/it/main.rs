// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, one module for each subject. The tests with the buses of VMMs are in
//! `examples/vmm-shapes`.

mod common;
mod function;
mod saved;
#[cfg(feature = "test-utils")]
mod test_utils;
mod threads;
#[cfg(feature = "vm-device")]
mod vm_device;
