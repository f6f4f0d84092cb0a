// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ring: one producer, one consumer, and 64-bit positions in words.
//!
//! A ring has a power-of-two size and at least 16 blocks. A record never crosses the end of a block: a pad
//! record (id 0) fills the rest, except for a single word, which both sides skip. A block begins with two
//! words: the sequence number of its first record, and the lease token of its writer.
//!
//! ```text
//! block | seq | token | record | record | ... | pad ~~~~~ | block | seq | ...
//! ```
//!
//! *discard*: a producer that finds no room drops the event and counts the loss. *overwrite*: a producer
//! overwrites the oldest records. The consumer loads head again after a copy, and drops records that may have
//! been overwritten meanwhile.
//!
//! Neither side trusts the other. A producer that reads a wrong tail harms only its own events. A consumer
//! bounds everything that it reads, and counts impossible values ([`Fault`]).

mod consumer;
mod counts;
mod fence;
mod lease;
mod losses;
mod point;
mod producer;
mod progress;
mod room;
mod schema_log;
mod state;

pub use consumer::{Consumer, Flow, Payload, Pulled, Record};
pub use counts::{FAULT_KINDS, Fault, Losses, Total};
pub use lease::{Lease, LeaseInfo, MAX_NAME_BYTES};
pub use producer::{Emit, NewRecord, Producer, Wake};
pub use progress::{ConsumerState, RingPosition};
pub use schema_log::{Logged, SchemaText as LoggedSchema};
pub use state::ProducerState;

use crate::atomic::{AtomicU64, Ordering::Relaxed};
use crate::config::RingMode;
use crate::layout::{Geometry, MASK_BYTES, PAGE, RESERVED_PART, WORD, guest_page, host_page};

/// Number of words in the header of a block.
pub(crate) const BLOCK_HEADER_WORDS: u64 = 2;

/// Returns whether a running counter has gone backwards. A guest can make the counter wrap. Therefore, a
/// difference of up to half of all values counts as forwards, and a larger difference as backwards.
#[doc(hidden)]
pub fn is_back(from: u64, to: u64) -> bool {
    to.wrapping_sub(from) > u64::MAX / 2
}

/// One client's memory in BAR 4.
#[derive(Clone, Copy, Debug)]
pub struct ClientMemory<'m> {
    /// Page G: written by the guest.
    pub guest: &'m [AtomicU64],
    /// Page H: written by the host.
    pub host: &'m [AtomicU64],
    /// The schema log, whose length in words is a power of two.
    pub schema: &'m [AtomicU64],
    /// The ring's data, whose length in words is a power of two.
    pub ring: &'m [AtomicU64],
    block_words: u64,
    mode: RingMode,
}

impl<'m> ClientMemory<'m> {
    /// Makes a client's memory from its area, which has `Geometry::client_stride` bytes. Returns `None` if
    /// the area has another size. The geometry must have passed [`Geometry::check`], which is not repeated
    /// here, because a device calls this for every reference point.
    #[inline]
    pub fn new(area: &'m [AtomicU64], geometry: &Geometry, mode: RingMode) -> Option<Self> {
        debug_assert_eq!(geometry.check(), Ok(()));
        if area.len() as u64 * WORD != geometry.client_stride() {
            return None;
        }
        let page = (PAGE / WORD) as usize;
        let (guest, rest) = area.split_at(page);
        let (host, rest) = rest.split_at(page);
        let (schema, ring) = rest.split_at((geometry.schema_bytes / WORD) as usize);
        Some(ClientMemory {
            guest,
            host,
            schema,
            ring,
            block_words: geometry.block_bytes / WORD,
            mode,
        })
    }

    /// Returns the memory of a client, given all of BAR 4.
    // The function is inlined, because a device calls the function for each reference point and uses only a
    // small part of the result.
    #[inline]
    pub fn of_rings(
        rings: &'m [AtomicU64],
        client: u32,
        geometry: &Geometry,
        mode: RingMode,
    ) -> Option<Self> {
        if client >= geometry.clients {
            return None;
        }
        let start = (geometry.client_offset(client) / WORD) as usize;
        let end = start + (geometry.client_stride() / WORD) as usize;
        ClientMemory::new(rings.get(start..end)?, geometry, mode)
    }

    /// Makes a client's memory whose sizes are smaller than the wire allows, so that a model checker or a
    /// property test soon reaches every edge case.
    #[doc(hidden)]
    pub fn for_test(
        guest: &'m [AtomicU64],
        host: &'m [AtomicU64],
        schema: &'m [AtomicU64],
        ring: &'m [AtomicU64],
        block_words: u64,
        mode: RingMode,
    ) -> Self {
        assert!(ring.len().is_power_of_two() && block_words.is_power_of_two());
        ClientMemory { guest, host, schema, ring, block_words, mode }
    }

    /// Returns whether the positions and totals in both pages are zero, as at reset.
    pub fn is_fresh(&self) -> bool {
        use {guest_page as g, host_page as h};
        let guest = [g::HEAD, g::LOST_FULL, g::LOST_BUSY, g::LOST_UNATTACHED, g::SCHEMA_LEN];
        guest.iter().all(|word| self.guest[*word].load(Relaxed) == 0)
            && [h::TAIL, h::SCHEMA_SEEN].iter().all(|word| self.host[*word].load(Relaxed) == 0)
    }

    /// Returns the part of the ring that a snapshot of the machine needs: the index of the part's first word,
    /// and its number of words, at most the capacity. All other words may be zero in the restored machine.
    ///
    /// A snapshot needs the whole of a ring in overwrite mode. In discard mode, the part contains
    ///
    /// - the records between tail and head, which the host has not taken;
    /// - the block that contains head - 1, whose records the next holder counts;
    /// - the room of the next record, in head's block or at the beginning of the next block. A vCPU that was
    ///   stopped in an emit has stored a part of this record already.
    ///
    /// If tail is not plausible, all records count as taken, so that a guest cannot make a snapshot of empty
    /// rings large.
    pub fn live(&self) -> (u64, u64) {
        let capacity = self.capacity();
        if self.mode == RingMode::Overwrite {
            return (0, capacity);
        }
        let head = self.guest[guest_page::HEAD].load(Relaxed);
        let tail = self.host[host_page::TAIL].load(Relaxed);
        let unread = Some(head.wrapping_sub(tail)).filter(|words| *words <= capacity).unwrap_or(0);
        let last_block = head.wrapping_sub(self.block_start(head.saturating_sub(1)));
        let before = unread.max(last_block);
        let left = head.wrapping_neg() & (self.block_words - 1);
        let after = left + BLOCK_HEADER_WORDS + self.max_record_words();
        (head.wrapping_sub(before) & (capacity - 1), capacity.min(before + after))
    }

    /// Returns the ring's capacity in words.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Returns the size of a block in words.
    pub fn block_words(&self) -> u64 {
        self.block_words
    }

    /// Returns the behaviour of a full ring.
    pub fn mode(&self) -> RingMode {
        self.mode
    }

    /// Returns the maximum size of a record in words, header included.
    pub fn max_record_words(&self) -> u64 {
        let block = self.block_words - BLOCK_HEADER_WORDS;
        block.min((crate::record::HEADER_WORDS + crate::record::MAX_WORDS) as u64)
    }

    /// Returns the number of words that only reference points may use.
    fn reserve(&self) -> u64 {
        self.capacity() / RESERVED_PART
    }

    #[inline(always)]
    fn block_start(&self, position: u64) -> u64 {
        position & !(self.block_words - 1)
    }

    #[inline(always)]
    fn word(&self, position: u64) -> &'m AtomicU64 {
        &self.ring[(position & (self.capacity() - 1)) as usize]
    }

    /// Returns `words` words from `position` on. A span within a block does not cross the ring's end.
    #[inline(always)]
    fn span(&self, position: u64, words: u64) -> &'m [AtomicU64] {
        let start = (position & (self.capacity() - 1)) as usize;
        &self.ring[start..start + words as usize]
    }
}

/// Returns the words of the enable mask in BAR 4.
#[doc(hidden)]
pub fn mask_words(rings: &[AtomicU64]) -> Option<&[AtomicU64]> {
    rings.get(..(MASK_BYTES / WORD) as usize)
}
