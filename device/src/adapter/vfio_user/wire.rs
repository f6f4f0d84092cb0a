// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of vfio-user: decoded from a client's bytes, and replies.
//!
//! Layouts of libvfio-user's specification, version 0.1, and of `linux/vfio.h`. All numbers are
//! little-endian. Every decoder is bounded by the message, and every message by [`MOST_BYTES`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes of a message, and of the data of one access.
pub(super) const MOST_BYTES: usize = 16 << 10;
/// Most bytes of an access to a region.
pub(super) const MOST_DATA: usize = 4096;

/// Version that this server speaks: 0.1.
pub(super) const VERSION: Version = Version { major: 0, minor: 1 };

pub(super) mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
}

const TYPE_MASK: u32 = 0xf;
const COMMAND: u32 = 0;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub id: u16,
    pub command: u16,
    /// Bytes of the whole message.
    pub size: u32,
    pub flags: u32,
    pub error: u32,
}

/// Version that a side proposes or takes; JSON text with its capabilities may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Version {
    pub major: u16,
    pub minor: u16,
}

/// `vfio_device_info`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub argsz: u32,
    pub flags: u32,
    pub regions: u32,
    pub irqs: u32,
}

/// `vfio_region_info`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RegionInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub cap_offset: u32,
    pub size: u64,
    pub offset: u64,
}

/// `vfio_irq_info`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IrqInfo {
    pub argsz: u32,
    pub flags: u32,
    pub index: u32,
    pub count: u32,
}

/// A load or store; a store's data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Access {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

/// Fault of a client's bytes that ends the connection: the next message cannot be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A message that is shorter than its header, or longer than the most.
    Size(u32),
    /// A message that is no command.
    Type(u32),
}

/// A whole message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'b> {
    pub header: Header,
    pub body: &'b [u8],
}

impl Message<'_> {
    /// Finds the first message in these bytes. `None`: it is not all there.
    pub fn first(bytes: &[u8]) -> Result<Option<Message<'_>>, Broken> {
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Ok(None) };
        let size = header.size as usize;
        if !(size_of::<Header>()..=MOST_BYTES).contains(&size) {
            return Err(Broken::Size(header.size));
        }
        if header.flags & TYPE_MASK != COMMAND {
            return Err(Broken::Type(header.flags));
        }
        let body = bytes.get(size_of::<Header>()..size);
        Ok(body.map(|body| Message { header, body }))
    }

    /// Returns the structure that the body begins with, and the bytes after it.
    pub fn body<T: FromBytes>(&self) -> Option<(T, &[u8])> {
        T::read_from_prefix(self.body).ok()
    }

    pub fn wants_reply(&self) -> bool {
        self.header.flags & NO_REPLY == 0
    }

    /// Appends a reply with these parts as its body.
    pub fn reply(&self, parts: &[&[u8]], out: &mut Vec<u8>) {
        self.answer(REPLY, 0, parts, out);
    }

    /// Appends a reply that the command failed. It has a body as long as the command's: some clients
    /// wait for as much as of a reply that succeeded.
    pub fn refuse(&self, errno: i32, out: &mut Vec<u8>) {
        self.answer(REPLY | ERROR, errno as u32, &[self.body], out);
    }

    fn answer(&self, flags: u32, error: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let size = (size_of::<Header>() + bytes) as u32;
        let Header { id, command, .. } = self.header;
        out.extend_from_slice(Header { id, command, size, flags, error }.as_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }
}
