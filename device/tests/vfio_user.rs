// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The server of vfio-user: with the client that Cloud Hypervisor uses, and with bytes that are no
//! messages.
#![cfg(feature = "vfio-user")]

#[path = "../../tests/src/capability.rs"]
mod capability;
mod common;

use common::{Call, Recorder, chip, geometry, points};
use hypertrace_abi::layout::{PCI_DEVICE, PCI_VENDOR, Region};
use hypertrace_device::adapter::vfio_user::{End, serve, serve_counted};
use hypertrace_device::{Chip, PciFunction};
use proptest::prelude::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use vfio_user::Client;

const CONFIG_SPACE: u32 = 7;

fn bar(region: Region) -> u32 {
    region.bar() as u32
}

/// A server for one client, and its device.
struct Server {
    chip: Arc<Chip<Recorder>>,
    thread: JoinHandle<End>,
}

impl Server {
    fn of(stream: impl FnOnce() -> UnixStream + Send + 'static) -> Server {
        let chip = chip();
        let function = PciFunction::new(Arc::clone(&chip));
        let thread = thread::spawn(move || serve(&function, &stream()).unwrap());
        Server { chip, thread }
    }

    /// Connects the client of the crate `vfio_user`.
    fn with_client() -> (Server, Client) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = Server::of(move || listener.accept().unwrap().0);
        let client = Client::new(&path).unwrap();
        (server, client)
    }

    /// Connects a client that sends bytes.
    fn raw() -> (Server, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Server::of(move || theirs), ours)
    }

    fn end(self) -> End {
        self.thread.join().unwrap()
    }
}

#[test]
fn a_client_finds_the_function_and_makes_points() {
    let (server, mut client) = Server::with_client();
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
    let (server, client) = Server::with_client();
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
    let (server, mut client) = Server::with_client();
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
fn memory_of_the_guest_and_interrupts_are_taken_and_not_used() {
    let (server, mut client) = Server::with_client();
    let memory = File::open("/dev/zero").unwrap();
    let before = fs_descriptors();
    for at in 0..40u64 {
        client.dma_map(0, at << 30, 1 << 30, memory.as_raw_fd()).unwrap();
    }
    client.dma_unmap(0, 1 << 30).unwrap();
    assert_eq!(client.get_irq_info(0).unwrap().count, 0);
    client.set_irqs(0, 0x21, 0, 1, &[memory.as_raw_fd()]).unwrap();

    assert!(fs_descriptors() <= before, "each descriptor is closed");
    client.shutdown().unwrap();
    assert_eq!(server.end(), End::Closed);
}

/// Returns the number of this process's descriptors of /dev/zero.
fn fs_descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_zero = |path: &std::fs::DirEntry| {
        std::fs::read_link(path.path()).is_ok_and(|to| to.as_os_str() == "/dev/zero")
    };
    all.filter(is_zero).count()
}

/// Makes a message of a client.
fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = 16 + body.len() as u32;
    let mut bytes = vec![1, 0];
    bytes.extend(command.to_le_bytes());
    [size, flags, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(body);
    bytes
}

fn version() -> Vec<u8> {
    message(1, 0, &[0, 0, 1, 0])
}

/// Receives a reply: its command, error and body.
fn reply(stream: &mut UnixStream) -> (u16, u32, Vec<u8>) {
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut body).unwrap();
    (word(0).to_le_bytes()[2].into(), word(12), body)
}

#[test]
fn bytes_that_come_one_by_one_are_a_message_like_others() {
    let (server, mut stream) = Server::raw();
    for byte in version() {
        stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(reply(&mut stream).0, 1);

    // Two in one piece; the first wants no reply.
    let both = [message(10, 1 << 4, &point(1)), message(10, 0, &point(2))].concat();
    stream.write_all(&both).unwrap();
    let (command, error, body) = reply(&mut stream);

    assert_eq!((command, error, body), (10, 0, point(2)[..16].to_vec()));
    assert_eq!(points(&server.chip).len(), 2);
    drop(stream);
    assert_eq!(server.end(), End::Closed);
}

/// Makes the body of a store that is a point of the interface of 2016.
fn point(value: u64) -> Vec<u8> {
    [8, u64::from(bar(Region::Control)) | 8 << 32, value].map(u64::to_le_bytes).concat()
}

#[test]
fn each_message_is_counted_before_its_reply() {
    let (chip, messages) = (chip(), AtomicU64::new(0));
    let function = PciFunction::new(chip);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_counted(&function, &theirs, &messages).unwrap());
        ours.write_all(&version()).unwrap();
        reply(&mut ours);
        for n in 1..=3 {
            ours.write_all(&message(10, 0, &point(n))).unwrap();
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
            stream.write_all(&message(10, 0, &point(n))).unwrap();
            reply(&mut stream);
        }
        assert_eq!(points(&server.chip).len(), POINTS as usize);
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
        .args(["a_point_is_one_receive_and_one_send", "--exact", "--test-threads=1"])
        .env(TRACED, "1")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");

    let log = std::fs::read_to_string(log).unwrap();
    // `THREAD CALL(…`; the end of a call is on a line `THREAD <... CALL resumed>…` if another thread's intervened.
    let lines = log.lines().filter_map(|line| line.split_once(' '));
    let calls = lines.filter_map(|(thread, line)| Some((thread, line.trim().split_once('(')?.0)));
    let calls: Vec<_> = calls.filter(|(_, call)| !call.starts_with('<')).collect();
    let (server, _) = calls.iter().find(|(_, call)| *call == "recvmsg").unwrap();
    let calls: Vec<&str> =
        calls.iter().filter(|(thread, _)| thread == server).map(|(_, call)| *call).collect();
    // The version before the points, and the end after them.
    let mut expected = ["recvmsg", "sendmsg"].repeat(POINTS as usize + 1);
    expected.push("recvmsg");
    assert_eq!(calls, expected);
    capability::used("strace");
}

#[test]
fn a_command_that_cannot_be_is_refused_and_the_next_one_is_served() {
    let (server, mut stream) = Server::raw();
    stream.write_all(&version()).unwrap();
    reply(&mut stream);
    let far = [u64::MAX, 9 | 8 << 32].map(u64::to_le_bytes).concat();
    let long = [0, 7 | (1 << 20) << 32].map(u64::to_le_bytes).concat();
    let index = [0, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0];
    for (command, body) in [
        (9, &far[..]),
        (9, &long),
        (9, &long[..7]),
        (10, &far),
        (10, &long),
        (5, &index),
        (5, &[]),
        (7, &index),
        (6, &index),
        (99, &[]),
        (0, &[1]),
    ] {
        stream.write_all(&message(command, 0, body)).unwrap();
        let (answered, error, echo) = reply(&mut stream);
        assert_eq!((answered, error, &echo[..]), (command, libc_einval(), body), "{command}");
    }
    stream.write_all(&message(4, 0, &[0; 16])).unwrap();
    assert_eq!(reply(&mut stream).1, 0);
    drop(stream);
    assert_eq!(server.end(), End::Closed);
}

fn libc_einval() -> u32 {
    22
}

#[test]
fn bytes_after_which_nothing_can_be_found_end_the_connection() {
    for bytes in [
        message(4, 0, &[0; 16]),
        message(1, 0, &[]),
        message(1, 0, &[1, 0, 0, 0]),
        message(1, 1, &[0, 0, 1, 0]),
        [version(), vec![0; 16]].concat(),
        [version(), vec![0xff; 16]].concat(),
    ] {
        let (server, mut stream) = Server::raw();
        stream.write_all(&bytes).unwrap();
        assert!(matches!(server.end(), End::Protocol(_)), "{bytes:?}");
        drop(stream);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a client sends, the server ends when the client does.
    #[test]
    fn any_bytes_are_served_or_refused(
        begins in any::<bool>(),
        messages in prop::collection::vec(
            (0u16..20, prop::sample::select(vec![0u32, 16, 1]), prop::collection::vec(any::<u8>(), 0..80)),
            0..12,
        ),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = if begins { version() } else { Vec::new() };
        for (command, flags, body) in &messages {
            bytes.extend(message(*command, *flags, body));
        }
        bytes.extend(tail);
        let (server, mut stream) = Server::raw();
        let mut reader = stream.try_clone().unwrap();
        let replies = thread::spawn(move || {
            // Until the server has ended.
            let _ = reader.read_to_end(&mut Vec::new());
        });
        // The server may have ended already.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        server.end();
        drop(stream);
        replies.join().unwrap();
    }
}
