// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A record: a timestamp, an id and payload words. Records have the same format in a ring and on disk.

use bitflags::bitflags;

/// Number of words in the header of a record.
pub const HEADER_WORDS: usize = 2;
/// Maximum number of payload words. A small block may allow fewer.
pub const MAX_WORDS: usize = 4096;

/// Reserved ids, below [`id::FIRST`].
pub mod id {
    /// A pad: the rest of the block is empty.
    pub const PAD: u32 = 0;
    /// A lease: the record describes a new holder of this client.
    pub const LEASE: u32 = 1;
    /// An event of the 2016 interface, or `hypertrace()` over shared memory.
    pub const HYPERTRACE: u32 = 2;
    /// Written by the host: the raw value of an impossible guest timestamp.
    pub const TIME_FAULT: u32 = 4;
    /// Written by the host: a record without a matching schema.
    pub const UNTYPED: u32 = 5;
    /// Lowest id that a schema can have.
    pub const FIRST: u32 = 16;
}

/// Schema texts of the reserved ids. No schema log contains these texts.
pub const RESERVED: [(u32, &str); 4] = [
    (id::LEASE, "lease(token:x64,pid:u32,tid:u32,clock:u32,name:str)"),
    (id::HYPERTRACE, "hypertrace(client:u32,args:[u64])"),
    (id::TIME_FAULT, "time_fault(raw:u64)"),
    (id::UNTYPED, "untyped(guest_id:x64,payload:[u64])"),
];

bitflags! {
    /// Flags of a record.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u16 {
        /// A reference point, written by the host thread that served the point, or a commit, written by the
        /// guest.
        const REFERENCE_POINT = 1;
        /// Set by the host: the host served this reference point while the declared event `guest_hypertrace`
        /// was on.
        const GUEST_HYPERTRACE = 4;
    }
}

/// Number of words before a reference point's own payload in a host ring: client, cpu, seq, guest time.
pub const REFERENCE_PREFIX_WORDS: usize = 4;

/// The clock of a producer's timestamps, which its lease record announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockKind {
    /// The CPU's time stamp counter.
    Tsc = 0,
    /// CLOCK_MONOTONIC_RAW, in nanoseconds.
    MonotonicRaw = 1,
}

/// Contents of a record's two header words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Time in raw ticks of the producer's clock.
    pub timestamp: u64,
    /// Id of the event.
    pub id: u32,
    /// Number of payload words.
    pub words: u16,
    /// Bits of [`Flags`]. Unknown bits are preserved.
    pub flags: u16,
}

impl Header {
    /// Returns the second header word.
    #[inline(always)]
    pub const fn meta(id: u32, words: u16, flags: u16) -> u64 {
        id as u64 | (words as u64) << 32 | (flags as u64) << 48
    }

    /// Unpacks the two header words.
    #[inline(always)]
    pub const fn from_words(timestamp: u64, meta: u64) -> Header {
        Header {
            timestamp,
            id: meta as u32,
            words: (meta >> 32) as u16,
            flags: (meta >> 48) as u16,
        }
    }

    /// Packs the two header words.
    #[inline(always)]
    pub const fn to_words(self) -> [u64; 2] {
        [self.timestamp, Header::meta(self.id, self.words, self.flags)]
    }
}
