// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The server of vfio-user, with the client that Cloud Hypervisor uses.
#![cfg(feature = "vfio-user")]

mod common;

use common::server::{CONFIG_SPACE, Server, bar};
use common::{Call, geometry, points};
use hypertrace_abi::layout::{PCI_DEVICE, PCI_VENDOR, Region};
use hypertrace_device::adapter::vfio_user::End;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use vfio_user::Client;

/// Index of a region that the device does not have.
const ROM: u32 = 6;

/// Connects the client of the crate `vfio_user`.
fn with_client() -> (Server, Client) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::of(move || listener.accept().unwrap().0);
    let client = Client::new(&path).unwrap();
    (server, client)
}

#[test]
fn a_client_finds_the_function_and_makes_points() {
    let (server, mut client) = with_client();
    let mut ids = [0; 4];
    client.region_read(CONFIG_SPACE, 0, &mut ids).unwrap();
    let mut magic = [0; 8];
    client.region_read(bar(Region::Config), 0x28, &mut magic).unwrap();
    client.region_write(bar(Region::Control), 8, &7u64.to_le_bytes()).unwrap();

    assert_eq!(u32::from_le_bytes(ids), u32::from(PCI_VENDOR) | u32::from(PCI_DEVICE) << 16);
    assert_eq!(&magic, b"HYPTRACE");
    assert_eq!(points(&server.chip).len(), 1);
    client.shutdown().unwrap();
    assert_eq!(server.end(), End::Closed);
}

#[test]
fn the_memory_of_a_client_is_the_devices() {
    let (server, client) = with_client();
    for region in [Region::Data, Region::Rings] {
        let found = client.region(bar(region)).unwrap();
        assert_eq!(found.size, geometry().bar_size(region));
        let memory = found.file_offset.as_ref().unwrap();
        memory.file().write_all_at(b"a guest's", memory.start() + 64).unwrap();
        let mut seen = [0; 9];
        server.chip.read(region, 64, &mut seen);
        assert_eq!(&seen, b"a guest's");
    }
    for region in [Region::Config, Region::Control] {
        assert!(client.region(bar(region)).unwrap().file_offset.is_none(), "it traps");
    }
}

#[test]
fn a_reset_begins_a_generation_if_the_device_was_used() {
    let (server, mut client) = with_client();
    let epoch = || server.chip.config_page().epoch;
    client.reset().unwrap();
    assert_eq!(epoch(), 0, "nothing was there to end");

    client.region_write(bar(Region::Control), 8, &7u64.to_le_bytes()).unwrap();
    client.reset().unwrap();
    client.reset().unwrap();

    assert_eq!(epoch(), 1);
    assert!(server.chip.sink().calls.lock().unwrap().contains(&Call::Generation(1)));
}

#[test]
fn a_load_where_nothing_is_ends_with_as_many_bytes_as_the_client_waits_for() {
    let (_server, mut client) = with_client();
    let mut data = [1; 8];
    client.region_read(ROM, 0, &mut data).unwrap();
    assert_eq!(data, [0; 8]);

    let mut magic = [0; 8];
    client.region_read(bar(Region::Config), 0x28, &mut magic).unwrap();

    assert_eq!(&magic, b"HYPTRACE", "the client is in step");
}

#[test]
fn memory_of_the_guest_and_interrupts_are_taken_and_not_used() {
    let (server, mut client) = with_client();
    let memory = File::open("/dev/zero").unwrap();
    for (offset, address, size) in
        [(0, 0, 1 << 30), (0, 0, u64::MAX), (u64::MAX, u64::MAX, u64::MAX), (0, 1, 0)]
    {
        client.dma_map(offset, address, size, memory.as_raw_fd()).unwrap();
        client.dma_unmap(address, size).unwrap();
    }
    assert_eq!(client.get_irq_info(0).unwrap().count, 0);
    client.set_irqs(0, 0x21, 0, 1, &[memory.as_raw_fd()]).unwrap();

    client.shutdown().unwrap();
    assert_eq!(server.end(), End::Closed);
}
