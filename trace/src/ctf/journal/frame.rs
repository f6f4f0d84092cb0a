//! A frame of a journal: a header of 72 bytes, then its payload. Version 2. Numbers are little endian, as on
//! the machine.
//!
//! ```text
//!  0  u8[4]   magic        htjl
//!  4  u16     version      2
//!  6  u16     kind         the operation
//!  8  u64     sequence     0, 1, 2 ..
//! 16  u64     at           see below
//! 24  u32     length       bytes of the payload
//! 28  u32     0
//! 32  u8[24]  name         of a file, then zeros
//! 56  u64     payload_sum  sum of the payload
//! 64  u64     header_sum   sum of the 64 bytes before
//! ```
//!
//! A sum is FNV-1a of 64 bits over words of 8 bytes. Zeros fill the last word. The sum shows damage, but does
//! not protect against an attacker.
//!
//! | kind | name | at | payload | operation |
//! |---|---|---|---|---|
//! | 1 replace | `session.json`, `classes.jsonl` or `metadata` | 0 | all of it | replaces the file by rename. These are the first frames; `ctf/` appears once all three files exist |
//! | 2 create | a new one | bytes of the file | its first packet, and its filler's header | creates a stream file |
//! | 3 write | an open file | where its filler begins | a packet and the next filler's header, or that alone | replaces the filler; the first 128 bytes are written last: the commit |
//! | 4 close | an open file | where its filler begins, or all ones | - | cuts the file there, or keeps its length; nothing more is written to it |
//! | 5 end | - | 0 | - | the session has ended |
//! | 6 append | `classes.jsonl` or `metadata` | bytes of the file | a piece | appends to the file |
//!
//! A frame is damage if
//!
//! - a sum, magic, version, sequence or kind is wrong, or the journal ends within the frame;
//! - a description becomes larger than its limit, or a packet is larger than 16 MiB;
//! - the name is neither the name of a description nor the name of a stream (client below 1,024, host ring
//!   below 2,049), or an earlier frame created a file of this name;
//! - the session would have more than 65,536 files, or a file of more than 1 TiB;
//! - a packet does not begin at the beginning of the file's filler, or the packet and the filler after the
//!   packet do not fill the file exactly.

use hypertrace_format::limits::MAX_METADATA;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a frame: `htjl`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"htjl");
/// Version of the journal.
pub const VERSION: u16 = 2;
/// Size of a frame's header in bytes.
pub const HEADER_BYTES: usize = 72;
/// Maximum size of a payload in bytes: the size of the largest description.
pub const LARGEST: usize = MAX_METADATA as usize;
/// Maximum size of a packet in bytes.
pub const MAX_PACKET_BYTES: usize = 16 << 20;
/// Maximum size of a stream file in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 40;
/// Value of `at` of a [`Kind::Close`] that does not cut the file.
pub const KEEP: u64 = u64::MAX;
/// Maximum size of a name in bytes.
const NAME_BYTES: usize = 24;

/// The operation of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Replaces a description.
    Replace = 1,
    /// Creates a stream file.
    Create = 2,
    /// Writes a packet.
    Write = 3,
    /// Cuts and closes a stream file.
    Close = 4,
    /// Ends the session.
    End = 5,
    /// Appends to a description.
    Append = 6,
}

impl Kind {
    /// Returns the kind of this number.
    pub fn of(number: u16) -> Option<Kind> {
        use Kind::{Append, Close, Create, End, Replace, Write};
        [Replace, Create, Write, Close, End, Append].into_iter().find(|kind| *kind as u16 == number)
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHeader {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// A [`Kind`].
    pub kind: u16,
    /// Sequence number of the frame, from 0.
    pub sequence: u64,
    /// Offset or length, depending on the kind.
    pub at: u64,
    /// Size of the payload in bytes.
    pub length: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of the file, then zeros.
    pub name: [u8; NAME_BYTES],
    /// [`sum`] of the payload.
    pub payload_sum: u64,
    /// [`sum`] of the header's bytes before this field.
    pub header_sum: u64,
}

const _: () = assert!(size_of::<FrameHeader>() == HEADER_BYTES);

impl FrameHeader {
    /// Returns the header of a frame, without its sums.
    pub fn new(kind: Kind, name: [u8; NAME_BYTES], sequence: u64, at: u64, length: u32) -> Self {
        FrameHeader {
            magic: MAGIC,
            version: VERSION,
            kind: kind as u16,
            sequence,
            at,
            length,
            reserved: 0,
            name,
            payload_sum: 0,
            header_sum: 0,
        }
    }

    /// Fills in both sums.
    pub fn seal(&mut self, payload: &[u8]) {
        self.payload_sum = sum(payload);
        self.header_sum = self.own_sum();
    }

    /// Returns the sum that the header should have.
    pub fn own_sum(&self) -> u64 {
        sum(&self.as_bytes()[..HEADER_BYTES - size_of::<u64>()])
    }

    /// Returns the name, up to the first zero.
    pub fn name(&self) -> Option<&str> {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        let (name, rest) = self.name.split_at(end);
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        str::from_utf8(name).ok()
    }
}

/// Returns the bytes of a name in a frame, or `None` if the name is too long.
pub fn name_bytes(name: &str) -> Option<[u8; NAME_BYTES]> {
    let mut bytes = [0; NAME_BYTES];
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    Some(bytes)
}

/// Returns the sum of bytes: FNV-1a of 64 bits over words of 8 bytes. Zeros fill the last word. A change of
/// one word always changes the sum. The sum guards against damage, and not against intent.
pub fn sum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, word| (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = words.iter().copied().fold(0xcbf2_9ce4_8422_2325, add);
    if rest.is_empty() { sum } else { add(sum, last) }
}
