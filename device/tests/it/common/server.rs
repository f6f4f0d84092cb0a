// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A vfio-user server for one client, and messages of a client.

use super::{Recorder, chip};
use hypertrace_device::adapter::vfio_user::{End, serve};
use hypertrace_device::{Chip, PciFunction, Region};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Commands of vfio-user.
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const GET_INFO: u16 = 4;
    pub const GET_REGION_INFO: u16 = 5;
    pub const GET_IRQ_INFO: u16 = 7;
    pub const SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
}

/// Index of config space among a device's regions.
pub const CONFIG_SPACE: u32 = 7;
/// Flag of a message that wants no reply.
pub const NO_REPLY: u32 = 1 << 4;
/// Error in the reply to a refused command: EINVAL.
pub const REFUSED: u32 = 22;

/// Returns the VFIO index of a region.
pub fn bar(region: Region) -> u32 {
    region.bar() as u32
}

/// A server for one client, and its device.
pub struct Server {
    pub chip: Arc<Chip>,
    pub sink: Arc<Recorder>,
    thread: JoinHandle<End>,
}

impl Server {
    pub fn of(stream: impl FnOnce() -> UnixStream + Send + 'static) -> Server {
        let (chip, sink) = chip();
        let function = PciFunction::new(Arc::clone(&chip));
        let thread = thread::spawn(move || serve(&function, &stream()).unwrap());
        Server { chip, sink, thread }
    }

    /// Connects a client that sends raw bytes.
    pub fn raw() -> (Server, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Server::of(move || theirs), ours)
    }

    pub fn end(self) -> End {
        self.thread.join().unwrap()
    }
}

/// Makes a message of a client.
pub fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = 16 + body.len() as u32;
    let mut bytes = vec![1, 0];
    bytes.extend(command.to_le_bytes());
    [size, flags, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(body);
    bytes
}

pub fn version() -> Vec<u8> {
    message(command::VERSION, 0, &[0, 0, 1, 0])
}

/// Makes the body of a load, or of a store of `data`.
pub fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(region.to_le_bytes());
    body.extend(count.to_le_bytes());
    body.extend(data);
    body
}

/// Makes the message of a 2016 event.
pub fn legacy_event(flags: u32, value: u64) -> Vec<u8> {
    let body = access(bar(Region::Control), 8, 8, &value.to_le_bytes());
    message(command::REGION_WRITE, flags, &body)
}

/// Receives a reply. Returns the reply's command, error and body.
pub fn reply(stream: &mut UnixStream) -> (u16, u32, Vec<u8>) {
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut body).unwrap();
    ((word(0) >> 16) as u16, word(12), body)
}
