// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A reset of the machine: afterwards, the device is as new, except for its epoch and its mask.

use crate::common;
use common::{BARS, Call, Front, chip, geometry, memory, register, set_mask};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::layout::register::{EMIT, LEASE};
use hypertrace_abi::layout::{MASK_BYTES, Region, host_page};
use hypertrace_abi::ring::ClientMemory;
use hypertrace_device::BarChange;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn registers_and_memory_are_zero_and_the_next_guest_sees_another_epoch() {
    let (chip, sink) = chip();
    let fresh = memory(&chip);
    let mut mask = [0; MASK_BYTES as usize];
    mask[7] = 1;
    set_mask(&chip, &sink, mask);
    chip.write(Region::Data, 40, &[1; 8]);
    for at in (0..geometry().rings_size()).step_by(512) {
        chip.write(Region::Rings, at, &[0xa5; 8]);
    }
    // The first half of a store to EMIT, and a lease.
    chip.write(Region::Control, register(1, EMIT), &[9; 4]);
    chip.write(Region::Control, register(1, LEASE), &[3; 8]);
    assert_eq!(chip.config_page().epoch, 0);

    chip.reset();

    let page = chip.config_page();
    assert_eq!(page.epoch, 1);
    let mut seen = vec![0; size_of_val(&page)];
    chip.read(Region::Config, 0, &mut seen);
    assert_eq!(seen, chip.config_bytes(), "the guest sees that page");
    let mapping = chip.mapping(Region::Config, 0).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&**mapping.file, &mut seen, mapping.file_offset)
        .unwrap();
    assert_eq!(seen, chip.config_bytes(), "mapped, too");
    assert!(memory(&chip) == fresh, "also the mask, until the sink's next pass");
    // The first half of this store came before the reset. The device has forgotten that half.
    chip.write(Region::Control, register(1, EMIT) + 4, &[0; 4]);
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let client = ClientMemory::of_rings(rings, 1, &geometry(), RingMode::Discard).unwrap();
    assert_eq!(client.host[host_page::REPLY].load(Relaxed) as u32, 0);
    assert_eq!(client.host[host_page::REPLY_EPOCH].load(Relaxed), 1);
}

#[test]
fn the_rest_is_drained_before_a_generation_begins() {
    let (chip, sink) = chip();
    chip.reset();
    let calls = sink.calls.lock().unwrap();
    assert_eq!(calls.first(), Some(&Call::Begin));
    assert!(calls.contains(&Call::Drain(3)));
    assert_eq!(calls.last(), Some(&Call::Generation(1)));
}

#[test]
fn bars_are_gone_after_a_reset_of_the_function() {
    let [.., (Front::Pci(pci), _)] = Front::all() else { panic!("no PCI") };
    let mut changes = Vec::new();
    pci.reset(|change| changes.push(change));
    let gone = |(region, bar)| BarChange { region, from: Some(bar), to: None };
    assert_eq!(changes, Region::ALL.into_iter().zip(BARS).map(gone).collect::<Vec<_>>());
    assert_eq!(pci.find(BARS[0]), None);
    let mut header = [0xff; 64];
    pci.config_read(0, &mut header);
    assert_eq!(header[4..6], [0, 0]);
    assert_eq!(header[0x10..0x14], [0; 4]);
    assert_eq!(pci.chip().config_page().epoch, 1);
}
