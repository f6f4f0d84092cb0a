//! A PCI function on the buses of the crate `vm-device`.

use std::sync::Arc;

use hypertrace_vmm::{ConfigPorts, PciFunction};
use vm_device::bus::{self, MmioRange, PioAddress, PioRange};
use vm_device::device_manager::{IoManager, MmioManager, PioManager};

/// Ports of CONFIG_ADDRESS and CONFIG_DATA.
const CONFIG_PORTS: PioAddress = PioAddress(0xcf8);

/// Adds the function as device `number` of a PCI bus that has no other function. Returns the ports. A
/// snapshot of the machine must contain the address in CONFIG_ADDRESS.
///
/// # Errors
/// If another device has these ports or this range already.
pub fn add_function(
    io: &mut IoManager,
    function: Arc<PciFunction>,
    number: u8,
    bridge: MmioRange,
) -> Result<Arc<ConfigPorts>, bus::Error> {
    let ports = Arc::new(ConfigPorts::new(Arc::clone(&function), number));
    io.register_pio(PioRange::new(CONFIG_PORTS, 8)?, ports.clone())?;
    // The whole range of the host bridge: the guest chooses where in it the BARs are.
    io.register_mmio(bridge, function)?;
    Ok(ports)
}
