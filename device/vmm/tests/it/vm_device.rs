// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function on buses of the crate `vm-device`.

use crate::common::{Traps, start};
use hypertrace_vmm::{BarForm, Bars, ConfigPorts, Hypertrace, PciFunction};
use std::ops::Range;
use std::sync::Arc;
use vm_device::bus::{MmioAddress, PioAddress};
use vm_device::{DeviceMmio, DevicePio};

/// Range of the host bridge, and address of a BAR in this range.
const BRIDGE: Range<u64> = 0xe000_0000..0xf000_0000;
const BAR: u64 = 0xe001_0000;

const BASE: PioAddress = PioAddress(0xcf8);
/// CONFIG_ADDRESS for bus 0, device 3, enabled.
const OURS: u32 = 1 << 31 | 3 << 11;

fn ports() -> (Hypertrace, Arc<PciFunction>, ConfigPorts) {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(dir.path());
    let (vm, form) = (Arc::new(Traps), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), vm, Bars::Within(BRIDGE), form).unwrap();
    let function = Arc::new(function);
    (hypertrace, Arc::clone(&function), ConfigPorts::new(function, 3))
}

fn read(ports: &impl DevicePio, offset: u16, len: usize) -> Vec<u8> {
    let mut data = vec![0x5a; len];
    ports.pio_read(BASE, offset, &mut data);
    data
}

#[test]
fn ports_reach_the_config_space_of_their_own_device_only() {
    let (_hypertrace, _, ports) = ports();
    let identity = [0xf4, 0x1a, 0xf0, 0x10];
    let nobody = [0xff; 4];
    for (address, expected) in [
        (OURS, identity),
        (OURS & !(1 << 31), nobody),
        (OURS | 1 << 8, nobody),
        (1 << 31 | 4 << 11, nobody),
        (OURS | 1 << 16, nobody),
    ] {
        ports.pio_write(BASE, 0, &address.to_le_bytes());
        assert_eq!(read(&ports, 0, 4), address.to_le_bytes());
        assert_eq!(read(&ports, 4, 4), expected, "{address:#x}");
    }
}

#[test]
fn an_access_that_a_snapshot_divides_is_continued() {
    let ((_one, _, before), (_other, _, after)) = (ports(), ports());
    before.pio_write(BASE, 0, &OURS.to_le_bytes());

    after.set_address(before.address());

    assert_eq!(read(&after, 4, 4), [0xf4, 0x1a, 0xf0, 0x10]);
}

#[test]
fn every_width_at_every_port_fills_every_byte() {
    let (_hypertrace, _, ports) = ports();
    ports.pio_write(BASE, 0, &OURS.to_le_bytes());
    for offset in (0..12).chain([u16::MAX - 1, u16::MAX]) {
        for len in 0..=16 {
            let data = read(&ports, offset, len);
            ports.pio_write(BASE, offset, &[0x5a; 16][..len]);
            if offset == 0 {
                ports.pio_write(BASE, 0, &OURS.to_le_bytes());
            }
            assert!(data.iter().all(|byte| *byte != 0x5a), "{offset} {len}: {data:?}");
        }
    }
    assert_eq!(read(&ports, 6, 2), [0xf0, 0x10]);
    assert_eq!(read(&ports, 5, 1), [0x1a]);
}

#[test]
fn a_bar_that_is_set_by_ports_answers_on_an_mmio_bus() {
    let (_hypertrace, function, ports) = ports();
    for (register, value) in [(0x10, BAR as u32), (4, 2)] {
        ports.pio_write(BASE, 0, &(OURS | register).to_le_bytes());
        ports.pio_write(BASE, 4, &value.to_le_bytes());
    }

    // The address is the sum of a base and an offset. The bus passes the base of its range, and the guest has
    // put the BAR elsewhere in this range.
    let mut data = [0; 8];
    function.mmio_read(MmioAddress(BAR - 0x1000), 0x1028, &mut data);
    assert_eq!(data, *b"HYPTRACE");
    data = [0x5a; 8];
    function.mmio_read(MmioAddress(u64::MAX), 8, &mut data);
    assert_eq!(data, [0; 8]);
    function.mmio_write(MmioAddress(u64::MAX), 8, &data);
}
