//! A PCI function on the buses of the crate `vm-device`.

use crate::common;
use std::sync::Arc;

use common::{POINT, kick, start};
use hypertrace_vmm::test_utils::FakeVm;
use hypertrace_vmm::{BarForm, Bars, PciFunction};
use vm_device::bus::{MmioAddress, MmioRange, PioAddress};
use vm_device::device_manager::{IoManager, MmioManager, PioManager};
use vmm_shapes::add_function;

/// Range of the host bridge.
const BRIDGE: u64 = 0xe000_0000;
const SIZE: u64 = 0x1000_0000;

/// Address at which the guest puts BAR 2, in the range of the bridge.
const CONTROL: u64 = 0xe020_0000;

fn select(io: &IoManager, register: u32) {
    let address = 1 << 31 | 3 << 11 | register;
    io.pio_write(PioAddress(0xcf8), &u32::to_le_bytes(address)).unwrap();
}

#[test]
fn a_guest_places_a_bar_by_ports_and_makes_points_there() {
    let (_dir, hypertrace) = start(None);
    let machine = Arc::new(FakeVm::default());
    let (bars, form) = (Bars::Within(BRIDGE..BRIDGE + SIZE), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), machine.clone(), bars, form).unwrap();
    let mut io = IoManager::new();
    let bridge = MmioRange::new(MmioAddress(BRIDGE), SIZE).unwrap();
    let ports = add_function(&mut io, Arc::new(function), 3, bridge).unwrap();

    for (register, value) in [(0x18, CONTROL as u32), (4, 2)] {
        select(&io, register);
        io.pio_write(PioAddress(0xcfc), &value.to_le_bytes()).unwrap();
    }
    io.mmio_write(MmioAddress(CONTROL + POINT), &7u64.to_le_bytes()).unwrap();

    assert!(machine.armed().contains(&(CONTROL + kick())));
    assert_eq!(ports.address() & 0xff, 4);
    drop((io, ports));
    assert_eq!(hypertrace.finish().unwrap().reference_points, 1);
}
