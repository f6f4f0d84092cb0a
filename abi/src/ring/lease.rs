// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The lease record of a new holder, and the position at which the holder continues the ring.

use super::{BLOCK_HEADER_WORDS, ClientMemory};
use crate::atomic::{AtomicU64, Ordering::Relaxed};
use crate::clock::Reason;
use crate::event::{Fields, Hex, cut};
use crate::record::{ClockKind, HEADER_WORDS, Header, id};

/// Description of a new holder. The holder's lease record contains this description.
#[derive(Clone, Copy, Debug)]
pub struct LeaseInfo<'a> {
    /// Process id, 0 for firmware.
    pub pid: u32,
    /// Thread id, or vCPU index.
    pub tid: u32,
    /// Name for reports, cut to [`MAX_NAME_BYTES`] bytes.
    pub name: &'a str,
}

/// Maximum length of a holder's name, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
const LEASE_WORDS: usize = HEADER_WORDS + 4 + (4 + MAX_NAME_BYTES).div_ceil(8);

/// A lease record that is ready to be written to the ring.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub(super) words: [u64; LEASE_WORDS],
    pub(super) len: u64,
    pub(super) reason: Reason,
}

impl Lease {
    /// Makes a lease record. `token` is nonzero and random, `clock` is the clock of the records' timestamps,
    /// and `now` is the time of the lease.
    pub fn new(token: u64, clock: ClockKind, now: u64, info: &LeaseInfo<'_>) -> Lease {
        let name = cut(info.name, MAX_NAME_BYTES);
        let fields = (Hex(token), info.pid, info.tid, clock as u32, name);
        let side: [AtomicU64; LEASE_WORDS] = core::array::from_fn(|_| AtomicU64::new(0));
        fields.put(&side[HEADER_WORDS..]);
        let payload = fields.words();
        let mut words = side.map(|w| w.load(Relaxed));
        words[0] = now;
        words[1] = Header::meta(id::LEASE, payload as u16, 0);
        Lease { words, len: (HEADER_WORDS + payload) as u64, reason: Reason::Unknown }
    }

    /// Adds to the lease the reason why the holder uses the holder's clock.
    #[must_use]
    pub fn because(self, reason: Reason) -> Lease {
        Lease { reason, ..self }
    }
}

/// Reads the block that ends at or contains `head`. Returns the next record's sequence number and the last
/// record's timestamp. Both results are hints, because others can write to the block.
pub(super) fn walk(memory: &ClientMemory<'_>, head: u64) -> (u64, Option<u64>) {
    if head == 0 {
        return (0, None);
    }
    // If a block starts at `head`, then the block before `head` contains the last record.
    let start = memory.block_start(head - 1);
    let len = head - start;
    let load = |at| memory.word(start + at).load(Relaxed);
    let mut sequence = load(0);
    let mut at = BLOCK_HEADER_WORDS;
    let mut last = None;
    // Bound: `len` is at most a block, and each turn increases `at`. Positions here are offsets from the
    // block's start, because an addition to a head near 2^64 would overflow.
    while at + HEADER_WORDS as u64 <= len {
        let header = Header::from_words(load(at), load(at + 1));
        if header.id == id::PAD {
            break;
        }
        last = Some(header.timestamp);
        sequence = sequence.wrapping_add(1);
        at += HEADER_WORDS as u64 + u64::from(header.words);
    }
    (sequence, last)
}
