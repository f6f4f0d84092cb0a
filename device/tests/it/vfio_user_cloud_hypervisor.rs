// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The messages of Cloud Hypervisor's `--user-device`, byte for byte, and the replies that it reads.
//!
//! The messages are derived from its source (pci/src/vfio_user.rs and pci/src/vfio.rs of August 2026, with
//! the crate `vfio_user` 0.1.5), not recorded. Particulars of Cloud Hypervisor:
//! - Cloud Hypervisor reads as many bytes of a reply as it expects, whatever the header says. If a reply has
//!   a byte too few, Cloud Hypervisor waits; if a reply has a byte too many, Cloud Hypervisor is out of step.
//! - Cloud Hypervisor receives a region's reply and the region's descriptor in one call.
//! - Cloud Hypervisor resets a device only if the device says that it *cannot* be reset.
//! - Cloud Hypervisor leaves all bits of the device's BARs set, and does not send the guest's addresses to
//!   the device.
//! - Cloud Hypervisor makes a new connection when the guest reboots.
#![cfg(feature = "vfio-user")]

use crate::common;
use common::points;
use common::server::Server;
use hypertrace_abi::layout::Region;
use hypertrace_device::adapter::vfio_user::End;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// The number of a command, the body of the command, and the body of the reply.
type Exchange = (u16, &'static str, &'static str);

/// Exchanges of `Client::new` after the version: the client asks what the device has. The length at the
/// beginning of GET_INFO includes the header.
const FIND: &[Exchange] = &[
    (4, "20000000 00000000 00000000 00000000", "10000000 03000000 09000000 05000000"),
    (
        5,
        "20000000 00000000 00000000 00000000 0000000000000000 0000000000000000",
        "20000000 03000000 00000000 00000000 0000010000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 01000000 00000000 0000000000000000 0000000000000000",
        "20000000 07000000 01000000 00000000 0000010000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 02000000 00000000 0000000000000000 0000000000000000",
        "20000000 03000000 02000000 00000000 0000010000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 03000000 00000000 0000000000000000 0000000000000000",
        "20000000 00000000 03000000 00000000 0000000000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 04000000 00000000 0000000000000000 0000000000000000",
        "20000000 07000000 04000000 00000000 0000020000000000 0000010000000000",
    ),
    (
        5,
        "20000000 00000000 05000000 00000000 0000000000000000 0000000000000000",
        "20000000 00000000 05000000 00000000 0000000000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 06000000 00000000 0000000000000000 0000000000000000",
        "20000000 00000000 06000000 00000000 0000000000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 07000000 00000000 0000000000000000 0000000000000000",
        "20000000 03000000 07000000 00000000 0001000000000000 0000000000000000",
    ),
    (
        5,
        "20000000 00000000 08000000 00000000 0000000000000000 0000000000000000",
        "20000000 00000000 08000000 00000000 0000000000000000 0000000000000000",
    ),
];

/// `VfioCommon::new` loads the status, and the status says that there is no list of capabilities. Then `new`
/// asks for INTx, which the device does not have.
const INTERRUPTS: &[Exchange] = &[
    (9, "0600000000000000 07000000 02000000", "0600000000000000 07000000 02000000 0000"),
    (7, "10000000 00000000 00000000 00000000", "10000000 00000000 00000000 00000000"),
];

/// `dma_map` of 1 GiB with a descriptor, and `dma_unmap`. The reply to `dma_unmap` repeats the command's
/// body.
const DMA_MAP: Exchange =
    (2, "20000000 03000000 0000000000000000 0000000000000000 0000004000000000", "");
const DMA_UNMAP: Exchange = (
    3,
    "18000000 00000000 0000000000000000 0000004000000000",
    "18000000 00000000 0000000000000000 0000004000000000",
);

/// `allocate_bars` loads each BAR, sets all bits of the BAR, and loads the BAR again. The same happens to
/// both halves of BAR 4 and, at last, to the ROM.
const SIZES: &[Exchange] = &[
    (9, "1000000000000000 07000000 04000000", "1000000000000000 07000000 04000000 00000000"),
    (10, "1000000000000000 07000000 04000000 ffffffff", "1000000000000000 07000000 04000000"),
    (9, "1000000000000000 07000000 04000000", "1000000000000000 07000000 04000000 0000ffff"),
    (9, "1400000000000000 07000000 04000000", "1400000000000000 07000000 04000000 08000000"),
    (10, "1400000000000000 07000000 04000000 ffffffff", "1400000000000000 07000000 04000000"),
    (9, "1400000000000000 07000000 04000000", "1400000000000000 07000000 04000000 0800ffff"),
    (9, "1800000000000000 07000000 04000000", "1800000000000000 07000000 04000000 00000000"),
    (10, "1800000000000000 07000000 04000000 ffffffff", "1800000000000000 07000000 04000000"),
    (9, "1800000000000000 07000000 04000000", "1800000000000000 07000000 04000000 0000ffff"),
    (9, "1c00000000000000 07000000 04000000", "1c00000000000000 07000000 04000000 00000000"),
    (10, "1c00000000000000 07000000 04000000 ffffffff", "1c00000000000000 07000000 04000000"),
    (9, "1c00000000000000 07000000 04000000", "1c00000000000000 07000000 04000000 00000000"),
    (9, "2000000000000000 07000000 04000000", "2000000000000000 07000000 04000000 0c000000"),
    (10, "2000000000000000 07000000 04000000 ffffffff", "2000000000000000 07000000 04000000"),
    (9, "2000000000000000 07000000 04000000", "2000000000000000 07000000 04000000 0c00feff"),
    (10, "2400000000000000 07000000 04000000 ffffffff", "2400000000000000 07000000 04000000"),
    (9, "2400000000000000 07000000 04000000", "2400000000000000 07000000 04000000 ffffffff"),
    (9, "3000000000000000 07000000 04000000", "3000000000000000 07000000 04000000 00000000"),
    (10, "3000000000000000 07000000 04000000 ffffffff", "3000000000000000 07000000 04000000"),
    (9, "3000000000000000 07000000 04000000", "3000000000000000 07000000 04000000 00000000"),
];

/// A guest that boots: Cloud Hypervisor loads the status before each load from config space. The guest loads
/// the identity and the class, and enables memory. Then Cloud Hypervisor loads the command register, in order
/// to learn whether the guest has moved BARs.
const BOOT: &[Exchange] = &[
    (9, "0600000000000000 07000000 02000000", "0600000000000000 07000000 02000000 0000"),
    (9, "0000000000000000 07000000 04000000", "0000000000000000 07000000 04000000 f41af010"),
    (9, "0600000000000000 07000000 02000000", "0600000000000000 07000000 02000000 0000"),
    (9, "0800000000000000 07000000 04000000", "0800000000000000 07000000 04000000 03000005"),
    (9, "0600000000000000 07000000 02000000", "0600000000000000 07000000 02000000 0000"),
    (9, "2c00000000000000 07000000 04000000", "2c00000000000000 07000000 04000000 f41a7468"),
    (10, "0400000000000000 07000000 02000000 0200", "0400000000000000 07000000 02000000"),
    (9, "0600000000000000 07000000 02000000", "0600000000000000 07000000 02000000 0000"),
    (9, "0400000000000000 07000000 04000000", "0400000000000000 07000000 04000000 02000000"),
];

/// The guest's library: loads the magic from the config page, and makes an event of client 1 through the 2016
/// interface.
const TRACE: &[Exchange] = &[
    (
        9,
        "2800000000000000 00000000 08000000",
        "2800000000000000 00000000 08000000 4859505452414345",
    ),
    (
        10,
        "0800000000000000 02000000 08000000 0700000000000000",
        "0800000000000000 02000000 08000000",
    ),
];

/// `reset` by a version of Cloud Hypervisor that interprets the flag correctly.
const RESET: Exchange = (13, "", "");

/// Returns the bytes that the hexadecimal digits represent.
fn bytes(digits: &str) -> Vec<u8> {
    let digits: Vec<_> = digits.chars().filter(|c| *c != ' ').collect();
    let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Cloud Hypervisor's side of a connection.
struct Vmm {
    stream: UnixStream,
    /// Sequence number of the next command.
    next: u16,
}

impl Vmm {
    /// Connects and agrees on the version.
    fn connect() -> (Server, Vmm) {
        let (server, mut stream) = Server::raw();
        let text = b"{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":1048576,\
                     \"migration\":{\"pgsize\":4096}}}\0";
        let size = 20 + text.len() as u8;
        let header = [0, 0, 1, 0, size, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        stream.write_all(&[&header[..], &[0, 0, 1, 0], text].concat()).unwrap();
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(head[..4], [0, 0, 1, 0]);
        assert_eq!(head[8..], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        let size = u32::from_le_bytes(head[4..8].try_into().unwrap());
        let mut text = vec![0; size as usize - 20];
        stream.read_exact(&mut text).unwrap();
        // Cloud Hypervisor removes the last byte of the text, and parses the rest as JSON with these names.
        let text = text.strip_suffix(&[0]).unwrap();
        let json: serde_json::Value = serde_json::from_slice(text).unwrap();
        let named = &json["capabilities"];
        assert!(named["max_msg_fds"].is_u64() && named["max_data_xfer_size"].is_u64(), "{json}");
        assert!(named["migration"]["pgsize"].is_u64(), "{json}");
        (server, Vmm { stream, next: 1 })
    }

    /// Returns the command message of an exchange.
    fn command(&mut self, (command, body, _): Exchange) -> Vec<u8> {
        let body = bytes(body);
        let mut message = self.next.to_le_bytes().to_vec();
        message.extend(command.to_le_bytes());
        message.extend((16 + body.len() as u32).to_le_bytes());
        message.extend([0; 8]);
        message.extend(body);
        message
    }

    /// Returns the reply message of an exchange.
    fn reply(&mut self, (command, _, body): Exchange) -> Vec<u8> {
        let body = bytes(body);
        let mut message = self.next.to_le_bytes().to_vec();
        message.extend(command.to_le_bytes());
        message.extend((16 + body.len() as u32).to_le_bytes());
        message.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(body);
        self.next += 1;
        message
    }

    /// Sends a command, with the descriptor of `sent` if there is one. Returns the descriptor in the reply.
    fn exchange_with(&mut self, exchange: Exchange, sent: Option<&File>) -> Option<File> {
        let command = self.command(exchange);
        match sent {
            Some(file) => drop(self.stream.send_with_fd(&command[..], file.as_raw_fd()).unwrap()),
            None => self.stream.write_all(&command).unwrap(),
        }
        let expected = self.reply(exchange);
        let mut reply = vec![0xaa; expected.len()];
        let mut file = None;
        // A region's reply must be in one piece, because one call receives it.
        match exchange.0 {
            5 => {
                let (n, received) = self.stream.recv_with_fd(&mut reply).unwrap();
                assert_eq!(n, expected.len());
                file = received;
            }
            _ => self.stream.read_exact(&mut reply).unwrap(),
        }
        assert_eq!(reply, expected, "{exchange:?}");
        file
    }

    fn exchange(&mut self, exchanges: &[Exchange]) {
        for exchange in exchanges {
            assert!(self.exchange_with(*exchange, None).is_none());
        }
    }

    /// Attaches the device. Returns the memory of BARs 1 and 4.
    fn attach(&mut self, guest: &File) -> [File; 2] {
        let files = FIND.iter().filter_map(|exchange| self.exchange_with(*exchange, None));
        let files: Vec<File> = files.collect();
        self.exchange(INTERRUPTS);
        assert!(self.exchange_with(DMA_MAP, Some(guest)).is_none());
        self.exchange(SIZES);
        files.try_into().unwrap()
    }
}

#[test]
fn cloud_hypervisor_attaches_the_device_boots_its_guest_and_detaches_it() {
    let guest = tempfile::tempfile().unwrap();
    let (server, mut vmm) = Vmm::connect();
    let [data, rings] = vmm.attach(&guest);
    vmm.exchange(BOOT);
    // The guest's stores to mapped memory cause no messages.
    data.write_all_at(b"an argument", 64 * 4).unwrap();
    rings.write_all_at(b"an event", 0x1_0000 + 64).unwrap();
    vmm.exchange(TRACE);

    let mut seen = [0; 11];
    server.chip.read(Region::Data, 64 * 4, &mut seen);
    assert_eq!(&seen, b"an argument");
    server.chip.read(Region::Rings, 64, &mut seen[..8]);
    assert_eq!(&seen[..8], b"an event");
    assert_eq!(points(&server.sink).len(), 1);
    vmm.exchange(&[DMA_UNMAP]);
    vmm.stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(server.end(), End::Closed);
}

#[test]
fn cloud_hypervisor_that_resets_a_device_when_it_attaches_it_stays_in_step() {
    let guest = tempfile::tempfile().unwrap();
    let (server, mut vmm) = Vmm::connect();
    FIND.iter().for_each(|exchange| drop(vmm.exchange_with(*exchange, None)));
    vmm.exchange(&[RESET]);
    vmm.exchange(INTERRUPTS);
    vmm.exchange_with(DMA_MAP, Some(&guest));
    vmm.exchange(SIZES);
    vmm.exchange(BOOT);
    vmm.exchange(TRACE);

    assert_eq!(points(&server.sink).len(), 1);
    drop(vmm);
    assert_eq!(server.end(), End::Closed);
}
