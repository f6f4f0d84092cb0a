//! One packet of a stream file: its header and context, 128 bytes together.
//!
//! `docs/session.md` describes the layout. Numbers are little endian, like the numbers of the machines that
//! record.

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// CTF's magic number for a packet.
pub const MAGIC: u32 = 0xc1fc_1fc1;
/// Size of a packet's header and context in bytes. The size of each packet is a multiple of this size, so no
/// header crosses a page, and no kill leaves half a header.
pub const HEADER_BYTES: usize = 128;
/// The producer of a stream.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u32)]
pub enum Domain {
    /// A thread of the VMM.
    #[default]
    Host = 0,
    /// A client of the guest, or a thread of a program in user mode.
    Guest = 1,
}

impl Domain {
    /// Returns the domain's name in `session.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Domain::Host => "host",
            Domain::Guest => "guest",
        }
    }
}

/// Packet header and packet context, in the layout of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PacketHeader {
    /// [`MAGIC`].
    pub magic: u32,
    /// UUID of the session.
    pub uuid: [u8; 16],
    /// Id of the stream class. The stream class's clock has the same id.
    pub stream_id: u32,
    /// Time of the first event, in ticks of the class's clock. In a packet without events, the time of the
    /// last event before the packet.
    pub timestamp_begin: u64,
    /// Time of the last event, in the same ticks.
    pub timestamp_end: u64,
    /// Size in bits, up to the last byte of the last event.
    pub content_size: u64,
    /// Size in bits, up to the next packet.
    pub packet_size: u64,
    /// Number of events that were lost until the end of this packet. A written packet counts the losses of
    /// its file, and a packet that is not yet written counts the losses of the whole stream.
    pub events_discarded: u64,
    /// Ring position of the first word that the packet covers.
    pub ring_begin: u64,
    /// Ring position after the last word that the packet covers.
    pub ring_end: u64,
    /// Token of the holder, or 0 if there is no holder.
    pub lease_token: u64,
    /// Id of the client, or of the host ring.
    pub client: u32,
    /// Clock epoch.
    pub epoch: u32,
    /// Number of this stream's events until the end of this packet that passed the mask but were wanted by no
    /// trace.
    pub events_filtered: u64,
    /// Number of this stream's guest faults until the end of this packet.
    pub faults: u64,
    /// Sequence number of the packet's first ring record or, in an empty packet, of the next record.
    pub sequence: u64,
    /// Zero.
    pub reserved: u32,
    /// A [`Domain`].
    pub domain: u32,
}

const _: () = assert!(size_of::<PacketHeader>() == HEADER_BYTES);

impl PacketHeader {
    /// Returns the header of an empty packet, whose counts are all zero.
    pub fn new(uuid: [u8; 16], stream_id: u32, domain: Domain, client: u32, epoch: u32) -> Self {
        PacketHeader {
            magic: MAGIC,
            uuid,
            stream_id,
            content_size: HEADER_BYTES as u64 * 8,
            packet_size: HEADER_BYTES as u64 * 8,
            client,
            epoch,
            domain: domain as u32,
            ..PacketHeader::new_zeroed()
        }
    }

    /// Returns the header of an empty packet that follows this packet. The empty packet has the same counts,
    /// and covers no time and no word of the ring.
    pub fn following(&self, next_sequence: u64, bytes: u64) -> Self {
        PacketHeader {
            timestamp_begin: self.timestamp_end,
            content_size: HEADER_BYTES as u64 * 8,
            packet_size: bytes * 8,
            ring_begin: self.ring_end,
            sequence: next_sequence,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_the_offsets_of_the_layout() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(PacketHeader, uuid), 4);
        assert_eq!(offset_of!(PacketHeader, stream_id), 20);
        assert_eq!(offset_of!(PacketHeader, timestamp_begin), 24);
        assert_eq!(offset_of!(PacketHeader, content_size), 40);
        assert_eq!(offset_of!(PacketHeader, packet_size), 48);
        assert_eq!(offset_of!(PacketHeader, events_discarded), 56);
        assert_eq!(offset_of!(PacketHeader, ring_begin), 64);
        assert_eq!(offset_of!(PacketHeader, lease_token), 80);
        assert_eq!(offset_of!(PacketHeader, client), 88);
        assert_eq!(offset_of!(PacketHeader, epoch), 92);
        assert_eq!(offset_of!(PacketHeader, events_filtered), 96);
        assert_eq!(offset_of!(PacketHeader, faults), 104);
        assert_eq!(offset_of!(PacketHeader, sequence), 112);
        assert_eq!(offset_of!(PacketHeader, domain), 124);
    }
}
