// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The vfio-user server, with the client that Cloud Hypervisor uses.
#![cfg(feature = "vfio-user")]

use crate::common;
use common::server::{CONFIG_SPACE, Server, bar, legacy_event, reply, version};
use common::{Call, chip, geometry, points};
use hypertrace_abi::layout::{PAGE, PCI_DEVICE, PCI_VENDOR, Region, register};
use hypertrace_device::adapter::vfio_user::{End, serve_counted};
use hypertrace_device::{Counter, PciFunction};
use hypertrace_test_support::{capability, child, this_test};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use vfio_user::Client;

/// Index of a region that the device does not have.
const ROM: u32 = 6;

/// Connects a client of the crate `vfio_user`.
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
    assert_eq!(points(&server.sink).len(), 1);
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
    assert!(server.sink.calls.lock().unwrap().contains(&Call::Generation(1)));
}

#[test]
fn a_reset_while_a_client_is_leased_is_counted() {
    let (server, mut client) = with_client();
    let geometry = server.chip.geometry();
    let lease = geometry.control_pages_offset() + 3 * PAGE + register::LEASE;
    let control = bar(Region::Control);
    client.region_write(control, 8, &7u64.to_le_bytes()).unwrap();
    client.reset().unwrap();
    assert_eq!(server.chip.count(Counter::ResetLeased), 0);

    client.region_write(control, lease, &7u64.to_le_bytes()).unwrap();
    client.reset().unwrap();

    assert_eq!(server.chip.count(Counter::ResetLeased), 1);
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

#[test]
fn each_message_is_counted_before_its_reply() {
    let ((chip, _), messages) = (chip(), AtomicU64::new(0));
    let function = PciFunction::new(chip);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_counted(&function, &theirs, &messages).unwrap());
        ours.write_all(&version()).unwrap();
        reply(&mut ours);
        for n in 1..=3 {
            ours.write_all(&legacy_event(0, n)).unwrap();
            reply(&mut ours);

            assert_eq!(messages.load(Relaxed), 1 + n);
        }
        drop(ours);
    });
}

#[test]
fn a_point_is_one_receive_and_one_send() {
    const POINTS: u64 = 20;
    const TRACED: &str = "HYPERTRACE_TEST_PROGRAM";
    if std::env::var_os(TRACED).is_some() {
        let (server, mut stream) = Server::raw();
        stream.write_all(&version()).unwrap();
        reply(&mut stream);
        for n in 0..POINTS {
            stream.write_all(&legacy_event(0, n)).unwrap();
            reply(&mut stream);
        }
        assert_eq!(points(&server.sink).len(), POINTS as usize);
        drop(stream);
        assert_eq!(server.end(), End::Closed);
        return;
    }
    let Some(strace) = capability::program("strace") else { return };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let ran = Command::new(strace)
        .args(["-f", "-qq", "-o", log.to_str().unwrap(), "-e"])
        .arg("trace=%network,read,write,readv,writev,poll,ppoll,select,pselect6,epoll_wait,epoll_pwait")
        .arg(std::env::current_exe().unwrap())
        .args([&child::full_name(this_test!()), "--exact", "--test-threads=1"])
        .env(TRACED, "1")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");

    let log = std::fs::read_to_string(log).unwrap();
    // strace prints a call as `THREAD CALL(…`. If another thread made a call meanwhile, strace prints the end
    // of the first call as `THREAD <... CALL resumed>…`.
    let lines = log.lines().filter_map(|line| line.split_once(' '));
    let calls = lines.filter_map(|(thread, line)| Some((thread, line.trim().split_once('(')?.0)));
    let calls: Vec<_> = calls.filter(|(_, call)| !call.starts_with('<')).collect();
    let (server, _) = calls.iter().find(|(_, call)| *call == "recvmsg").unwrap();
    let calls: Vec<&str> =
        calls.iter().filter(|(thread, _)| thread == server).map(|(_, call)| *call).collect();
    // The server sets its timeouts for each connection, not for each point.
    let calls: Vec<&str> = calls.into_iter().filter(|call| *call != "setsockopt").collect();
    // The first two calls exchange the versions. The calls for the points follow, and the last call finds
    // that the connection has ended.
    let mut expected = ["recvmsg", "sendmsg"].repeat(POINTS as usize + 1);
    expected.push("recvmsg");
    assert_eq!(calls, expected);
    capability::used("strace");
}
