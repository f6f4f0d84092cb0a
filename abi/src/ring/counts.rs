// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The host's counts for one producer: faults and lost events.

use crate::kinds;
use crate::layout::guest_page;

/// Words of page G that contain the running totals of lost events.
pub(super) const LOSSES: [usize; 3] =
    [guest_page::LOST_FULL, guest_page::LOST_BUSY, guest_page::LOST_UNATTACHED];

kinds! {
    /// A fault of a producer, with its name in reports. Each fault is counted; no fault stops the host.
    #[repr(usize)]
    #[non_exhaustive]
    pub enum Fault {
        /// Head went backwards, or is ahead by more than the size of the ring.
        Head => "head",
        /// A record crosses the end of its block or passes head.
        Length => "length",
        /// A block's sequence number does not follow from the records before it.
        Sequence => "sequence",
        /// A block has no lease token.
        Token => "token",
        /// A running total of lost events went backwards or jumped.
        Losses => "losses",
        /// The schema log's end or the length of an entry is impossible.
        SchemaLog => "schema_log",
        /// A schema text cannot be parsed.
        SchemaText => "schema_text",
        /// The id of a schema text is not the hash of the text, or another text has the same id.
        SchemaHash => "schema_hash",
        /// There are more schemas than the host keeps.
        SchemaTable => "schema_table",
        /// A record has an id without a schema.
        UnknownId => "unknown_id",
        /// A record's length does not match its schema.
        Payload => "payload",
        /// A timestamp went backwards.
        TimeBackwards => "time_backwards",
        /// A timestamp is in the future.
        TimeFuture => "time_future",
    }
}

/// Number of kinds of [`Fault`].
pub const FAULT_KINDS: usize = Fault::COUNT;

/// Running totals of lost events, by cause. A total never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events that the producer dropped because the ring was full.
    pub full: u64,
    /// Events that the producer dropped because they interrupted another emit.
    pub busy: u64,
    /// Events that were dropped by threads without a client in a process that held this client.
    pub unattached: u64,
    /// Events that were written but lost before the host took them: overwritten, skipped after an unreadable
    /// record, or left in the ring at the end because the host could not write them.
    pub overwritten: u64,
}

impl Losses {
    /// Returns the sum over all causes.
    pub fn total(&self) -> u64 {
        let Losses { full, busy, unattached, overwritten } = *self;
        [busy, unattached, overwritten].into_iter().fold(full, u64::saturating_add)
    }

    /// Adds the losses in `other` to these losses, cause by cause. `other` has losses of another ring, or of
    /// an earlier life of this ring.
    pub fn plus(&self, other: &Losses) -> Losses {
        Losses {
            full: self.full.saturating_add(other.full),
            busy: self.busy.saturating_add(other.busy),
            unattached: self.unattached.saturating_add(other.unattached),
            overwritten: self.overwritten.saturating_add(other.overwritten),
        }
    }
}

/// A running total that the guest writes. The host counts by how much the total grows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    last: u64,
    counted: u64,
}

impl Total {
    /// Smallest impossible growth of a total. Each producer drops fewer events than this between two looks of
    /// the host.
    const MAX: u64 = 1 << 48;

    /// Returns a total that counts the growth of the guest's word from the value `last` on.
    pub(super) fn since(last: u64) -> Total {
        Total { last, counted: 0 }
    }

    /// Returns the guest's word at the last look.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Makes `word` the last value of the guest's word. The jump from the old value does not count as growth.
    pub fn replace(&mut self, word: u64) {
        self.last = word;
    }

    /// Returns the sum of all growth so far.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Counts the growth of the guest's word since the last look. Returns `false`, and counts nothing, if the
    /// growth is impossible.
    pub fn look(&mut self, word: u64) -> bool {
        let growth = word.wrapping_sub(self.last);
        self.last = word;
        let is_plausible = growth < Total::MAX;
        if is_plausible {
            self.counted = self.counted.saturating_add(growth);
        }
        is_plausible
    }
}
