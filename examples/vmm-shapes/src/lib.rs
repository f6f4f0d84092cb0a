//! The hypertrace device on the buses of other VMMs. The document `docs/vmm.md` takes its code from this
//! crate.
//!
//! [`FunctionDevice`] and [`ChipDevice`] are PCI devices of the shape that Cloud Hypervisor has:
//! [`FunctionDevice`] uses the library's config space, and [`ChipDevice`] uses the VMM's. [`attach_window`]
//! puts the device on a bus of Firecracker's shape, [`add_function`] on rust-vmm's own bus. `JailedDevice` is
//! in a process of its own, as crosvm's devices are. The modules [`pci_bus`] and [`mmio_bus`] take the place
//! of a VMM's buses; a real VMM has such buses already.

mod chip_device;
mod function_device;
mod io_manager;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod jail;
pub mod mmio_bus;
mod mmio_device;
pub mod pci_bus;

pub use chip_device::ChipDevice;
pub use function_device::FunctionDevice;
pub use io_manager::add_function;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub use jail::JailedDevice;
pub use mmio_device::attach_window;
