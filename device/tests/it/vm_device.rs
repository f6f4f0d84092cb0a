// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The `vm-device` adapter: the window as MMIO.
#![cfg(feature = "vm-device")]

use crate::common;
use common::Front;
use hypertrace_device::{Region, Window};
use vm_device::DeviceMmio;
use vm_device::bus::MmioAddress;

#[test]
fn a_window_answers_on_an_mmio_bus() {
    let [_, (Front::Window(window), sink), _] = Front::all() else { panic!() };
    let magic = |device: &dyn DeviceMmio, base| {
        let mut data = [0; 8];
        device.mmio_read(MmioAddress(base), 0x28, &mut data);
        data
    };
    assert_eq!(magic(&window, 0x1234_0000), *b"HYPTRACE");

    let control = window_offset(&window, Region::Control);
    window.mmio_write(MmioAddress(0), control, &7u64.to_le_bytes());
    assert_eq!(common::points(&sink)[0].words[2], 7);
}

fn window_offset(window: &Window, region: Region) -> u64 {
    window.chip().geometry().window_offset(region)
}
