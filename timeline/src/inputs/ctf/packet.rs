// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reads the packets of a stream file, and checks the packets' headers in order.
//!
//! The writer defines the layout, which `docs/session.md` describes.

use crate::error::{Error, Result};
use crate::inputs::regular::{Opened, open_stream, read_at};
pub(crate) use hypertrace_abi::ring::is_back;
use std::fmt::Display;
use std::mem::offset_of;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// Size of a packet's header and context in bytes. Packet sizes are multiples of this size.
pub const HEADER_BYTES: u64 = size_of::<PacketHeader>() as u64;
/// Upper limit of clients' ids: the id of each client of a session is below this limit.
pub(crate) const MAX_CLIENTS: u32 = 1 << 12;
pub use hypertrace_format::packet::{Domain, MAGIC, PacketHeader};

/// A packet whose header was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Offset of the packet in the file.
    pub at: u64,
    /// Producer of the stream.
    pub domain: Domain,
    header: PacketHeader,
}

impl Deref for Packet {
    type Target = PacketHeader;

    fn deref(&self) -> &PacketHeader {
        &self.header
    }
}

impl Packet {
    /// Returns the size in bytes from the packet's beginning to the end of the packet's last event.
    pub fn content(&self) -> u64 {
        self.content_size / 8
    }

    /// Returns the size in bytes from the packet's beginning to the next packet.
    pub fn size(&self) -> u64 {
        self.packet_size / 8
    }

    /// Returns whether the packet has no event. Such a packet is a baseline, holds counters, or is the
    /// filler.
    pub fn is_empty(&self) -> bool {
        self.content() == HEADER_BYTES
    }

    /// Returns the packet with a count of at least `lost` lost events.
    pub(super) fn with_lost(mut self, lost: u64) -> Packet {
        self.header.events_discarded = lost.max(self.header.events_discarded);
        self
    }

    /// Returns the error for a wrong field of the header. `field` is the offset of the field in the header.
    pub(super) fn damaged(
        &self,
        path: &Path,
        field: usize,
        expected: impl Display,
        found: impl Display,
    ) -> Error {
        Error::damaged(path, self.at + field as u64, expected, found)
    }

    /// Unpacks a header, and checks each field without regard to other packets.
    fn parse(path: &Path, at: u64, bytes: [u8; HEADER_BYTES as usize]) -> Result<Packet> {
        let header: PacketHeader = zerocopy::transmute!(bytes);
        let PacketHeader { magic, content_size: content, packet_size: size, .. } = header;
        let PacketHeader {
            timestamp_begin: begin, timestamp_end: end, ring_begin, ring_end, ..
        } = header;
        let PacketHeader { reserved, domain, .. } = header;
        let damaged = |field: usize, expected: &str, found: &dyn Display| {
            Err(Error::damaged(path, at + field as u64, expected, found))
        };
        if magic != MAGIC {
            let expected = "a packet's magic number c1fc1fc1";
            return damaged(
                offset_of!(PacketHeader, magic),
                expected,
                &format_args!("{magic:08x}"),
            );
        }
        let bits = format_args!("{content} bits");
        if content < HEADER_BYTES * 8 || content % 8 != 0 {
            let expected = "a content size of at least 1024 bits, in whole bytes";
            return damaged(offset_of!(PacketHeader, content_size), expected, &bits);
        }
        if content > size {
            let expected = format!("a content size within the packet's {size} bits");
            return damaged(offset_of!(PacketHeader, content_size), &expected, &bits);
        }
        if size % (HEADER_BYTES * 8) != 0 {
            let expected = "a packet size that is a multiple of 1024 bits";
            return damaged(
                offset_of!(PacketHeader, packet_size),
                expected,
                &format_args!("{size} bits"),
            );
        }
        if begin > end {
            let expected = format!("an end that is not before the packet's begin {begin}");
            return damaged(offset_of!(PacketHeader, timestamp_end), &expected, &end);
        }
        if is_back(ring_begin, ring_end) {
            let expected = format!("a ring end that is not before the ring begin {ring_begin}");
            return damaged(offset_of!(PacketHeader, ring_end), &expected, &ring_end);
        }
        if reserved != 0 {
            return damaged(offset_of!(PacketHeader, reserved), "zero", &reserved);
        }
        let domain = match domain {
            0 => Domain::Host,
            1 => Domain::Guest,
            other => return damaged(offset_of!(PacketHeader, domain), "domain 0 or 1", &other),
        };
        Ok(Packet { at, domain, header })
    }

    /// Checks the packet against the packet before it in the same file.
    fn follows(&self, last: &Packet, path: &Path) -> Result<()> {
        if self.uuid != last.uuid {
            let (field, expected) =
                (offset_of!(PacketHeader, uuid), "the UUID of the packets before");
            return Err(self.damaged(path, field, expected, "another"));
        }
        for (field, name, this, before) in [
            (offset_of!(PacketHeader, stream_id), "stream id", self.stream_id, last.stream_id),
            (offset_of!(PacketHeader, client), "client", self.client, last.client),
            (offset_of!(PacketHeader, domain), "domain", self.header.domain, last.header.domain),
        ] {
            if this != before {
                let expected = format!("{name} {before}, as in the packets before");
                return Err(self.damaged(path, field, expected, this));
            }
        }
        let damaged = |field, name, this: u64, before: u64| {
            let expected = format!("{name} of at least {before}, the value of the packet before");
            Err(self.damaged(path, field, expected, this))
        };
        for (field, name, this, before) in [
            (
                offset_of!(PacketHeader, epoch),
                "a clock epoch",
                self.epoch.into(),
                last.epoch.into(),
            ),
            (
                offset_of!(PacketHeader, timestamp_begin),
                "a begin",
                self.timestamp_begin,
                last.timestamp_end,
            ),
            (
                offset_of!(PacketHeader, events_discarded),
                "a count of lost events",
                self.events_discarded,
                last.events_discarded,
            ),
            (
                offset_of!(PacketHeader, events_filtered),
                "a count of filtered events",
                self.events_filtered,
                last.events_filtered,
            ),
            (offset_of!(PacketHeader, faults), "a count of faults", self.faults, last.faults),
        ] {
            if this < before {
                return damaged(field, name, this, before);
            }
        }
        // The positions of both packets are compared only if both packets have the same number of faults and
        // the same epoch. A guest can make its ring's position jump anywhere, and each jump counts as a
        // fault. After a reset, the guest's ring begins anew with another epoch.
        if (self.epoch, self.faults) == (last.epoch, last.faults) {
            for (field, name, this, before) in [
                (
                    offset_of!(PacketHeader, ring_begin),
                    "a ring begin",
                    self.ring_begin,
                    last.ring_end,
                ),
                (
                    offset_of!(PacketHeader, sequence),
                    "a sequence number",
                    self.sequence,
                    last.sequence,
                ),
            ] {
                if is_back(before, this) {
                    return damaged(field, name, this, before);
                }
            }
        }
        Ok(())
    }
}

/// A reader of the headers of a file's packets.
#[derive(Debug)]
pub(crate) struct Packets {
    path: PathBuf,
    file: Opened,
    /// Offset of the next packet.
    at: u64,
    /// Offset at which to stop.
    end: u64,
    last: Option<Packet>,
}

impl Packets {
    /// Opens a file for reading up to the offset `end`, which must be the end of a packet. If `end` is
    /// `None`, the reader stops at the file's current end.
    pub fn open(path: &Path, end: Option<u64>) -> Result<Packets> {
        let file = open_stream(path)?;
        let end = end.unwrap_or(file.len);
        Ok(Packets { path: path.to_owned(), file, at: 0, end, last: None })
    }

    /// Continues at this offset, after the packet `last`.
    pub fn skip_to(&mut self, at: u64, last: Packet) {
        (self.at, self.last) = (at, Some(last));
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the reader has reached the offset at which it stops.
    pub fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// Returns the offset at which the reader stops.
    pub fn len(&self) -> u64 {
        self.end
    }

    /// Fills `bytes` from the file. The file counts as damaged if it has become shorter.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        let read = read_at(&self.file.file, bytes, at).map_err(Error::io(&self.path))?;
        if read < bytes.len() {
            let expected = format!("{} bytes of a packet", bytes.len());
            return Err(Error::damaged(&self.path, at, expected, "the end of the file"));
        }
        Ok(())
    }

    /// Returns the next packet. If an empty packet extends beyond the file's end, the packet is the filler of
    /// a file that was cut, so no event is missing.
    pub fn next(&mut self) -> Result<Option<Packet>> {
        let at = self.at;
        let rest = self.end.saturating_sub(at);
        if rest == 0 && at > 0 {
            return Ok(None);
        }
        if rest < HEADER_BYTES {
            let found = format!("the end of the file after {rest} bytes");
            let expected = "a packet header of 128 bytes";
            return Err(Error::damaged(&self.path, at + rest, expected, found));
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        self.read_at(&mut bytes, at)?;
        let packet = self.check(bytes, rest).or_else(|damage| {
            // If the session is being written, the kernel may have copied the header while the writer
            // replaced the header. So the header is read again. If the second read gives the same bytes, the
            // header is damaged.
            let before = bytes;
            self.read_at(&mut bytes, at)?;
            if bytes == before { Err(damage) } else { self.check(bytes, rest) }
        })?;
        self.at += packet.size().min(rest);
        self.last = Some(packet);
        Ok(Some(packet))
    }

    /// Checks the header of the next packet, with `rest` bytes to the file's end.
    fn check(&self, bytes: [u8; HEADER_BYTES as usize], rest: u64) -> Result<Packet> {
        let packet = Packet::parse(&self.path, self.at, bytes)?;
        if let Some(last) = &self.last {
            packet.follows(last, &self.path)?;
        }
        if packet.size() > rest && !packet.is_empty() {
            let expected = format!("a packet within the file's remaining {rest} bytes");
            let found = format!("a packet of {} bytes", packet.size());
            let field = offset_of!(PacketHeader, packet_size);
            return Err(packet.damaged(&self.path, field, expected, found));
        }
        Ok(packet)
    }
}
