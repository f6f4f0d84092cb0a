// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets of a stream file: reading and checking their headers in order.
//!
//! The layout is in `docs/session.md`. The reader has its own copy of
//! it, so that a change of the writer alone fails a test.

use super::file::{Opened, open_stream, read_at};
use crate::error::{Error, Result};
pub(crate) use hypertrace_abi::ring::is_back;
use std::path::{Path, PathBuf};

/// Size of a packet's header and context in bytes. Packet sizes are multiples of it.
pub const HEADER_BYTES: u64 = 128;
const MAGIC: u32 = 0xc1fc_1fc1;

/// Offsets of the fields in the header.
mod at {
    pub const UUID: u64 = 4;
    pub const STREAM_ID: u64 = 20;
    pub const TIMESTAMP_BEGIN: u64 = 24;
    pub const TIMESTAMP_END: u64 = 32;
    pub const CONTENT_SIZE: u64 = 40;
    pub const PACKET_SIZE: u64 = 48;
    pub const EVENTS_DISCARDED: u64 = 56;
    pub const RING_BEGIN: u64 = 64;
    pub const RING_END: u64 = 72;
    pub const LEASE_TOKEN: u64 = 80;
    pub const CLIENT: u64 = 88;
    pub const EPOCH: u64 = 92;
    pub const EVENTS_FILTERED: u64 = 96;
    pub const FAULTS: u64 = 104;
    pub const SEQUENCE: u64 = 112;
    pub const RESERVED: u64 = 120;
    pub const DOMAIN: u64 = 124;
}
pub(crate) use at::{CONTENT_SIZE, EPOCH, RING_BEGIN, STREAM_ID, UUID};

pub use hypertrace_trace::session_json::Domain;

/// A packet's header and context, sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Offset of the packet in the file.
    pub at: u64,
    /// UUID of the session.
    pub uuid: [u8; 16],
    /// Stream class, which is the clock's id.
    pub stream_id: u32,
    /// Lower limit of the timestamps of its events.
    pub begin: u64,
    /// Upper limit of the timestamps of its events.
    pub end: u64,
    /// Size up to the end of the last event.
    pub content: u64,
    /// Size up to the next packet.
    pub size: u64,
    /// Running total of lost events.
    pub discarded: u64,
    /// Ring position of the first word covered.
    pub ring_begin: u64,
    /// Ring position after the last word covered.
    pub ring_end: u64,
    /// Token of the lease.
    pub lease_token: u64,
    /// Client, or number of the host ring.
    pub client: u32,
    /// Clock epoch.
    pub epoch: u32,
    /// Running total of filtered events, which no trace wanted.
    pub filtered: u64,
    /// Running total of guest faults.
    pub faults: u64,
    /// Sequence number of its first ring record.
    pub sequence: u64,
    /// Producer of the stream.
    pub domain: Domain,
}

impl Packet {
    /// Returns whether the packet has no event: a baseline, counters, or the filler.
    pub fn is_empty(&self) -> bool {
        self.content == HEADER_BYTES
    }

    /// Unpacks a header and checks every field by itself.
    fn parse(path: &Path, at: u64, bytes: &[u8; HEADER_BYTES as usize]) -> Result<Packet> {
        let damaged = |field, expected: &str, found: String| {
            Err(Error::damaged(path, at + field, expected, found))
        };
        let word = |field: u64| {
            let mut le = [0; 8];
            le.copy_from_slice(&bytes[field as usize..field as usize + 8]);
            u64::from_le_bytes(le)
        };
        let half = |field: u64| {
            let mut le = [0; 4];
            le.copy_from_slice(&bytes[field as usize..field as usize + 4]);
            u32::from_le_bytes(le)
        };
        if half(0) != MAGIC {
            return damaged(0, "a packet's magic number c1fc1fc1", format!("{:08x}", half(0)));
        }
        let (content_bits, size_bits) = (word(at::CONTENT_SIZE), word(at::PACKET_SIZE));
        if content_bits < HEADER_BYTES * 8 || content_bits % 8 != 0 {
            let expected = "a content size of at least 1024 bits, in whole bytes";
            return damaged(at::CONTENT_SIZE, expected, format!("{content_bits} bits"));
        }
        if content_bits > size_bits {
            let expected = format!("a content size within the packet's {size_bits} bits");
            return damaged(at::CONTENT_SIZE, &expected, format!("{content_bits} bits"));
        }
        if size_bits % (HEADER_BYTES * 8) != 0 {
            let expected = "a packet size that is a multiple of 1024 bits";
            return damaged(at::PACKET_SIZE, expected, format!("{size_bits} bits"));
        }
        let (begin, end) = (word(at::TIMESTAMP_BEGIN), word(at::TIMESTAMP_END));
        if begin > end {
            let expected = format!("an end that is not before the packet's begin {begin}");
            return damaged(at::TIMESTAMP_END, &expected, end.to_string());
        }
        let (ring_begin, ring_end) = (word(at::RING_BEGIN), word(at::RING_END));
        if is_back(ring_begin, ring_end) {
            let expected = format!("a ring end that is not before the ring begin {ring_begin}");
            return damaged(at::RING_END, &expected, ring_end.to_string());
        }
        if half(at::RESERVED) != 0 {
            return damaged(at::RESERVED, "zero", half(at::RESERVED).to_string());
        }
        let domain = match half(at::DOMAIN) {
            0 => Domain::Host,
            1 => Domain::Guest,
            other => return damaged(at::DOMAIN, "domain 0 or 1", other.to_string()),
        };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[at::UUID as usize..at::STREAM_ID as usize]);
        Ok(Packet {
            at,
            uuid,
            stream_id: half(at::STREAM_ID),
            begin,
            end,
            content: content_bits / 8,
            size: size_bits / 8,
            discarded: word(at::EVENTS_DISCARDED),
            ring_begin,
            ring_end,
            lease_token: word(at::LEASE_TOKEN),
            client: half(at::CLIENT),
            epoch: half(at::EPOCH),
            filtered: word(at::EVENTS_FILTERED),
            faults: word(at::FAULTS),
            sequence: word(at::SEQUENCE),
            domain,
        })
    }

    /// Checks the packet against the one before it in the same file.
    fn follows(&self, last: &Packet, path: &Path) -> Result<()> {
        let damaged = |field, expected: &str, found: String| {
            Err(Error::damaged(path, self.at + field, expected, found))
        };
        if self.uuid != last.uuid {
            return damaged(at::UUID, "the UUID of the packets before", "another".into());
        }
        for (field, name, this, before) in [
            (at::STREAM_ID, "stream id", self.stream_id, last.stream_id),
            (at::CLIENT, "client", self.client, last.client),
            (at::DOMAIN, "domain", self.domain as u32, last.domain as u32),
        ] {
            if this != before {
                let expected = format!("{name} {before}, as in the packets before");
                return damaged(field, &expected, this.to_string());
            }
        }
        for (field, name, this, before) in [
            (at::EPOCH, "a clock epoch", self.epoch.into(), last.epoch.into()),
            (at::TIMESTAMP_BEGIN, "a begin", self.begin, last.end),
            (at::EVENTS_DISCARDED, "a count of lost events", self.discarded, last.discarded),
            (at::EVENTS_FILTERED, "a count of filtered events", self.filtered, last.filtered),
            (at::FAULTS, "a count of faults", self.faults, last.faults),
        ] {
            if this < before {
                let expected =
                    format!("{name} of at least {before}, the value of the packet before");
                return damaged(field, &expected, this.to_string());
            }
        }
        // A guest can make its ring jump anywhere. That counts as a fault.
        if self.faults == last.faults {
            for (field, name, this, before) in [
                (at::RING_BEGIN, "a ring begin", self.ring_begin, last.ring_end),
                (at::SEQUENCE, "a sequence number", self.sequence, last.sequence),
            ] {
                if is_back(before, this) {
                    let expected =
                        format!("{name} of at least {before}, the value of the packet before");
                    return damaged(field, &expected, this.to_string());
                }
            }
        }
        Ok(())
    }
}

/// A reader of a file's packets, by their headers only.
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
    /// Opens a file up to its current end.
    pub fn open(path: &Path) -> Result<Packets> {
        let file = open_stream(path)?;
        let end = file.len;
        Ok(Packets { path: path.to_owned(), file, at: 0, end, last: None })
    }

    /// Opens a file up to `end`, the end of a packet: the part that was committed when the
    /// session was opened.
    pub fn open_until(path: &Path, end: u64) -> Result<Packets> {
        let file = open_stream(path)?;
        Ok(Packets { path: path.to_owned(), file, at: 0, end, last: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the end is reached, also for a file without packets to read.
    pub fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// Fills `bytes` from the file. A file that has become shorter is damaged.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        let read = read_at(&self.file.file, bytes, at).map_err(Error::io(&self.path))?;
        if read < bytes.len() {
            let expected = format!("{} bytes of a packet", bytes.len());
            return Err(Error::damaged(&self.path, at, expected, "the end of the file"));
        }
        Ok(())
    }

    /// Returns the next packet. An empty one that extends beyond the file's end is the
    /// filler of a file that was cut: nothing is missing.
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
        let packet = self.check(&bytes, rest).or_else(|damage| {
            // If the session is being written, the kernel may have copied the header while
            // it was replaced. Real damage is the same in the next read.
            let before = bytes;
            self.read_at(&mut bytes, at)?;
            if bytes == before { Err(damage) } else { self.check(&bytes, rest) }
        })?;
        self.at += packet.size.min(rest);
        self.last = Some(packet);
        Ok(Some(packet))
    }

    /// Checks the header of the next packet, with `rest` bytes to the file's end.
    fn check(&self, bytes: &[u8; HEADER_BYTES as usize], rest: u64) -> Result<Packet> {
        let packet = Packet::parse(&self.path, self.at, bytes)?;
        if let Some(last) = &self.last {
            packet.follows(last, &self.path)?;
        }
        if packet.size > rest && !packet.is_empty() {
            let expected = format!("a packet within the file's remaining {rest} bytes");
            let found = format!("a packet of {} bytes", packet.size);
            return Err(Error::damaged(&self.path, self.at + at::PACKET_SIZE, expected, found));
        }
        Ok(packet)
    }
}
