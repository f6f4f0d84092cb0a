// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of vfio-user: decoding of a client's bytes, and encoding of replies.
//!
//! The layouts are those of libvfio-user's specification, version 0.1, and of `linux/vfio.h`. All numbers are
//! little-endian. Every decoder reads only its message, and every message has at most [`MAX_BYTES`] bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum size of a message in bytes.
pub(super) const MAX_BYTES: usize = 16 << 10;
/// Maximum size of the data of one access to a region, in bytes.
pub(super) const MAX_DATA: usize = 4096;

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
    /// Size of the whole message in bytes.
    pub size: u32,
    pub flags: u32,
    pub error: u32,
}

/// Version that one side proposes or accepts. JSON text with the side's capabilities may follow.
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

/// A load or a store. The data of a store follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Access {
    pub offset: u64,
    pub region: u32,
    pub count: u32,
}

/// Fault in a client's bytes. The fault ends the connection, because the server cannot find the beginning of
/// the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A message of this size, which is below the size of the header or above [`MAX_BYTES`].
    Size(u32),
    /// A message with these flags, which is no command.
    Type(u32),
}

/// A whole message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'b> {
    pub header: Header,
    pub body: &'b [u8],
}

impl Message<'_> {
    /// Returns the first message in these bytes, or `None` if it is not complete.
    pub fn first(bytes: &[u8]) -> Result<Option<Message<'_>>, Broken> {
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Ok(None) };
        let size = header.size as usize;
        if !(size_of::<Header>()..=MAX_BYTES).contains(&size) {
            return Err(Broken::Size(header.size));
        }
        if header.flags & TYPE_MASK != COMMAND {
            return Err(Broken::Type(header.flags));
        }
        let body = bytes.get(size_of::<Header>()..size);
        Ok(body.map(|body| Message { header, body }))
    }

    /// Returns the structure at the beginning of the body, and the bytes after this structure.
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

    /// Appends a reply that says that the command failed. The reply's body is the command's body, followed by
    /// `more`. The error reply is thus as long as a reply without an error, because some clients wait for
    /// this number of bytes.
    pub fn refuse(&self, errno: i32, more: &[u8], out: &mut Vec<u8>) {
        self.answer(REPLY | ERROR, errno as u32, &[self.body, more], out);
    }

    fn answer(&self, flags: u32, error: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let size = (size_of::<Header>() + bytes) as u32;
        let Header { id, command, .. } = self.header;
        out.extend_from_slice(Header { id, command, size, flags, error }.as_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a message of this size, type and body.
    fn bytes_of(size: u32, flags: u32, body: &[u8]) -> Vec<u8> {
        let header = Header { id: 1, command: command::DMA_MAP, size, flags, error: 0 };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_message_is_found_when_its_last_byte_is_there() {
        let bytes = bytes_of(20, NO_REPLY, &[1, 2, 3, 4, 5]);
        for cut in 0..20 {
            assert!(Message::first(&bytes[..cut]).unwrap().is_none(), "{cut}");
        }

        let found = Message::first(&bytes).unwrap().unwrap();

        assert_eq!((found.body, found.wants_reply()), (&[1, 2, 3, 4][..], false));
    }

    #[test]
    fn sizes_that_no_message_has_are_faults_before_the_body_is_there() {
        let most = MAX_BYTES as u32;
        for size in [0, 15, most + 1, u32::MAX] {
            let found = Message::first(&bytes_of(size, 0, &[])).unwrap_err();
            assert_eq!(found, Broken::Size(size));
        }
        for size in [16, most] {
            assert!(Message::first(&bytes_of(size, 0, &[])).is_ok(), "{size}");
        }
    }

    #[test]
    fn a_refusal_is_as_long_as_a_reply_that_succeeded() {
        let bytes = bytes_of(20, 0, &[1, 2, 3, 4]);
        let message = Message::first(&bytes).unwrap().unwrap();
        let mut out = Vec::new();
        message.refuse(22, &[0; 3], &mut out);

        let (header, body) = Header::read_from_prefix(&out).unwrap();

        assert_eq!((header.size, header.flags, header.error), (23, REPLY | ERROR, 22));
        assert_eq!(body, [1, 2, 3, 4, 0, 0, 0]);
    }

    proptest! {
        /// If `first` finds a message, the message lies within the given bytes. If a part of the bytes is
        /// enough to find a message or a fault, all bytes give the same result.
        #[test]
        fn any_bytes_have_a_first_message_or_none(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100),
            size in prop::option::of(0u32..120),
            cut in 0usize..100,
        ) {
            if let (Some(size), Some(field)) = (size, bytes.get_mut(4..8)) {
                field.copy_from_slice(&size.to_le_bytes());
            }
            let found = Message::first(&bytes);
            let part = Message::first(&bytes[..cut.min(bytes.len())]);

            if let Ok(Some(message)) = found {
                let size = message.header.size as usize;
                prop_assert_eq!(message.body, &bytes[16..size]);
                let _ = message.body::<RegionInfo>();
            }
            match (found, part) {
                (Ok(whole), Ok(Some(part))) => prop_assert_eq!(whole.unwrap().body, part.body),
                (Ok(_), Err(why)) => prop_assert!(false, "{:?} of a part only", why),
                (Err(whole), Err(part)) => prop_assert_eq!(whole, part),
                (Err(why), Ok(Some(_))) => prop_assert!(false, "{:?} of the whole only", why),
                (_, Ok(None)) => {}
            }
        }
    }
}
