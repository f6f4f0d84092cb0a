//! The device on the buses and loops of the rust-vmm crates. Each adapter is
//! behind the feature of its crate.

#[cfg(feature = "event-manager")]
pub mod event_manager;
#[cfg(feature = "vm-device")]
pub mod vm_device;
