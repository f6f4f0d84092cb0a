// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Adapters to buses and event loops of rust-vmm crates, and to vfio-user, each under a feature of its own.

#[cfg(feature = "event-manager")]
pub mod event_manager;
#[cfg(feature = "vfio-user")]
pub mod vfio_user;
#[cfg(feature = "vm-device")]
pub mod vm_device;
