// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The `vm-device` adapters: config space by ports, BARs and window as MMIO.
#![cfg(feature = "vm-device")]

use crate::common;
use common::{BARS, Front, chip};
use hypertrace_device::adapter::vm_device::ConfigPorts;
use hypertrace_device::{BarChange, PciFunction, Region, Window};
use std::sync::{Arc, Mutex};
use vm_device::bus::{MmioAddress, PioAddress};
use vm_device::{DeviceMmio, DevicePio};

const BASE: PioAddress = PioAddress(0xcf8);
/// CONFIG_ADDRESS for bus 0, device 3, enabled.
const OURS: u32 = 1 << 31 | 3 << 11;

fn ports(changed: impl Fn(BarChange) + Send + Sync + 'static) -> ConfigPorts {
    ConfigPorts::new(Arc::new(PciFunction::new(chip())), 3, changed)
}

fn read(ports: &impl DevicePio, offset: u16, len: usize) -> Vec<u8> {
    let mut data = vec![0x5a; len];
    ports.pio_read(BASE, offset, &mut data);
    data
}

#[test]
fn ports_reach_the_config_space_of_their_own_device_only() {
    let ports = ports(|_| ());
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
    let (before, after) = (ports(|_| ()), ports(|_| ()));
    before.pio_write(BASE, 0, &OURS.to_le_bytes());

    after.set_address(before.address());

    assert_eq!(read(&after, 4, 4), [0xf4, 0x1a, 0xf0, 0x10]);
}

#[test]
fn every_width_at_every_port_fills_every_byte() {
    let ports = ports(|_| ());
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
fn a_bar_that_is_set_by_ports_is_reported_to_the_vmm() {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let reported = changes.clone();
    let ports = ports(move |change| reported.lock().unwrap().push(change));
    for (register, value) in [(0x10, BARS[0] as u32), (4, 2)] {
        ports.pio_write(BASE, 0, &(OURS | register).to_le_bytes());
        ports.pio_write(BASE, 4, &value.to_le_bytes());
    }
    let changes = changes.lock().unwrap();
    let config = BarChange { region: Region::Config, from: None, to: Some(BARS[0]) };
    assert!(changes.contains(&config), "{changes:?}");
}

#[test]
fn bars_and_window_answer_on_an_mmio_bus() {
    let [_, Front::Window(window), Front::Pci(pci)] = Front::all() else { panic!() };
    let magic = |device: &dyn DeviceMmio, base| {
        let mut data = [0; 8];
        device.mmio_read(MmioAddress(base), 0x28, &mut data);
        data
    };
    assert_eq!(magic(&window, 0x1234_0000), *b"HYPTRACE");
    // The bus passes its range's base; the guest chose the BAR's address.
    let behind = BARS[0] - 0x1000;
    let mut data = [0; 8];
    pci.mmio_read(MmioAddress(behind), 0x1028, &mut data);
    assert_eq!(data, *b"HYPTRACE");
    data = [0x5a; 8];
    pci.mmio_read(MmioAddress(u64::MAX), 8, &mut data);
    assert_eq!(data, [0; 8]);
    pci.mmio_write(MmioAddress(u64::MAX), 8, &data);

    let control = window_offset(&window, Region::Control);
    window.mmio_write(MmioAddress(0), control, &7u64.to_le_bytes());
    pci.mmio_write(MmioAddress(BARS[2]), 0, &8u64.to_le_bytes());
    assert_eq!(common::points(window.chip())[0].words[2], 7);
    assert_eq!(common::points(pci.chip())[0].words[2], 8);
}

fn window_offset(window: &Window, region: Region) -> u64 {
    window.chip().geometry().window_offset(region)
}
