//! A PCI function on the buses of the crate `vm-device`.

use std::sync::Arc;

use hypertrace_device::adapter::vm_device::ConfigPorts;
use hypertrace_device::{BarChange, PciFunction};
use hypertrace_trace::Session;
use vm_device::bus::{self, MmioRange, PioAddress, PioRange};
use vm_device::device_manager::{IoManager, MmioManager, PioManager};
use vmm_sys_util::eventfd::EventFd;

/// Ports of CONFIG_ADDRESS and CONFIG_DATA.
const CONFIG_PORTS: PioAddress = PioAddress(0xcf8);

/// Adds the function as device `number` of a PCI bus that has no other. `changed` maps and unmaps BARs.
/// Returns the ports, whose address belongs to a snapshot.
///
/// # Errors
/// If something has these ports or this range already.
pub fn add_function<C: Fn(BarChange) + Send + Sync + 'static>(
    io: &mut IoManager,
    function: Arc<PciFunction<Session, EventFd>>,
    number: u8,
    bridge: MmioRange,
    changed: C,
) -> Result<Arc<ConfigPorts<Session, EventFd, C>>, bus::Error> {
    let ports = Arc::new(ConfigPorts::new(Arc::clone(&function), number, changed));
    io.register_pio(PioRange::new(CONFIG_PORTS, 8)?, ports.clone())?;
    // The whole range of the host bridge: the guest chooses where in it the BARs are.
    io.register_mmio(bridge, function)?;
    Ok(ports)
}
