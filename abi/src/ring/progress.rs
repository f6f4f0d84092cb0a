// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A consumer's progress: its state from one pass to the next, and the position from which another consumer
//! can continue.

use super::counts::{FAULT_KINDS, LOSSES, Total};
use super::{BLOCK_HEADER_WORDS, ClientMemory};
use crate::atomic::Ordering::Relaxed;
use crate::layout::{guest_page, host_page};
use crate::record::HEADER_WORDS;

/// A position in the ring, with the counts so far and the lease at this position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub(super) position: u64,
    /// Sequence number of the next record. `None` after a resynchronisation, until the next block begins.
    pub(super) sequence: Option<u64>,
    /// Lower bound of the sequence number, used while `sequence` is `None`. The bound never decreases.
    pub(super) assumed: u64,
    pub(super) token: u64,
    pub(super) overwritten: u64,
    pub(super) faults: [u64; FAULT_KINDS],
}

/// The host's private state for one client.
#[derive(Clone, Debug)]
pub struct ConsumerState {
    pub(super) committed: Cursor,
    pub(super) cursor: Cursor,
    /// The oldest position that [`Consumer::rewind`](super::Consumer::rewind) returns to.
    pub(super) origin: Cursor,
    /// The running totals of lost events: full, busy, unattached.
    pub(super) lost: [Total; 3],
    pub(super) schema_seen: u64,
    pub(super) schema_cursor: u64,
}

impl Default for ConsumerState {
    fn default() -> Self {
        let start = Cursor { sequence: Some(0), ..Cursor::default() };
        ConsumerState {
            committed: start,
            cursor: start,
            origin: start,
            lost: Default::default(),
            schema_seen: 0,
            schema_cursor: 0,
        }
    }
}

impl ConsumerState {
    /// Returns the committed position, from which another consumer can [continue](Self::continue_at).
    pub fn place(&self) -> RingPosition {
        let Cursor { position, sequence, token, .. } = self.committed;
        // A guest can put any number in a block's header, so an impossible number counts as unknown.
        let sequence =
            sequence.filter(|sequence| *sequence <= RingPosition::most_sequence(position));
        let lost = self.lost.map(|total| total.last());
        RingPosition { position, sequence, token, lost, schemas: self.schema_seen }
    }

    /// Makes the state of a consumer for a ring that another host may have served. The consumer begins at the
    /// tail in page H, and reads the texts that are still in the schema log.
    pub fn found(memory: &ClientMemory<'_>) -> ConsumerState {
        let host = |word: usize| memory.host[word].load(Relaxed);
        let guest = |word: usize| memory.guest[word].load(Relaxed);
        let position = host(host_page::TAIL);
        // Only a block's header names the holder. A consumer that begins within a block therefore loads the
        // token from the block's header.
        let block = memory.block_start(position);
        let token = match position == block {
            true => 0,
            false => memory.span(block, BLOCK_HEADER_WORDS)[1].load(Relaxed),
        };
        let has_all = guest(guest_page::SCHEMA_LEN) <= memory.schema.len() as u64;
        let schemas = if has_all { 0 } else { host(host_page::SCHEMA_SEEN) };
        let lost = LOSSES.map(guest);
        ConsumerState::continue_at(&RingPosition { position, sequence: None, token, lost, schemas })
    }

    /// Makes the state of a consumer that continues at `place` for another sink. The consumer's counts of
    /// lost events and faults begin at 0, and the consumer never [rewinds](super::Consumer::rewind) to a
    /// position before `place`.
    pub fn continue_at(place: &RingPosition) -> ConsumerState {
        let RingPosition { position, sequence, token, lost, schemas } = *place;
        let at = Cursor { position, sequence, token, ..Cursor::default() };
        ConsumerState {
            committed: at,
            cursor: at,
            origin: at,
            lost: lost.map(Total::since),
            schema_seen: schemas,
            schema_cursor: schemas,
        }
    }
}

/// The positions in a ring and its schema log up to which a consumer has taken everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPosition {
    /// Position in the ring, in words.
    pub position: u64,
    /// Sequence number of the next record, if known.
    pub sequence: Option<u64>,
    /// Token of the holder, 0 if there is no holder.
    pub token: u64,
    /// The running totals of lost events: full, busy, unattached.
    pub lost: [u64; 3],
    /// Position in the schema log, in words.
    pub schemas: u64,
}

impl RingPosition {
    /// Returns the greatest possible sequence number of a record at this position: each of the earlier
    /// records has at least two words.
    pub const fn most_sequence(position: u64) -> u64 {
        position / HEADER_WORDS as u64
    }
}
