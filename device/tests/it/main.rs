// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The tests of this crate, one module for each subject.

mod access;
mod common;
mod drain;
mod drain_thread;
mod event_manager;
mod file_limit;
mod pci;
mod placement;
mod registers;
mod reset;
mod rest;
mod restore;
mod saved_rings;
mod turns;
mod vfio_user;
mod vfio_user_bad_input;
mod vfio_user_cloud_hypervisor;
mod vm_device;
