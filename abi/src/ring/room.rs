// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Room for the producer's next record: opening blocks, and writing pads and the lease record.

use super::producer::Producer;
use super::{BLOCK_HEADER_WORDS, host_page};
use crate::atomic::{Ordering, Ordering::Relaxed, fence};
use crate::config::RingMode;
use crate::record::{HEADER_WORDS, Header, id};

impl Producer<'_> {
    /// Writes the lease record at `now` unless it is in the ring already. Returns `None` if there is no room.
    pub(super) fn announce(&self, now: u64, commit: bool) -> Option<()> {
        let (state, lease) = (self.state, &self.lease);
        if state.fresh.load(Relaxed) == 0 {
            return Some(());
        }
        // Opens a block, because a block belongs to one lease.
        let at = self.find_room(lease.len, true, commit)?;
        let record = self.memory.span(at, lease.len);
        for (to, &from) in record.iter().zip(&lease.words) {
            to.store(from, Relaxed);
        }
        // The record's time is `now`, because a lease that found a full ring is announced later, perhaps in
        // another clock epoch.
        record[0].store(now, Relaxed);
        state.fresh.store(0, Relaxed);
        self.publish(state, at + lease.len, self.fenced);
        Some(())
    }

    /// Returns the position for a record of `words` words. Opens a block if `opens` is set or the record does
    /// not fit the current block.
    pub(super) fn find_room(&self, words: u64, opens: bool, commit: bool) -> Option<u64> {
        let (state, memory) = (self.state, &self.memory);
        let head = state.head.load(Relaxed);
        let (start, end) = self.place(head, words, opens)?;
        let opens = start == memory.block_start(start);
        let limit = match memory.mode() {
            RingMode::Overwrite => u64::MAX,
            RingMode::Discard => {
                // ORDERING: pairs with the Release in `Consumer::commit`: the
                // host has read the words that are overwritten now.
                let tail = memory.host[host_page::TAIL].load(Ordering::Acquire);
                // A tail beyond the end is the host's mistake, and the ring counts as full.
                let used = end.checked_sub(tail)?;
                if used > memory.capacity() - if commit { 0 } else { memory.reserve() } {
                    return None;
                }
                if let Some(wake) = self.wake
                    && opens
                    && used >= memory.capacity() / 4
                {
                    wake.wake();
                }
                tail + memory.capacity() - memory.reserve()
            }
        };
        let mut at = start;
        if opens {
            // ORDERING: pairs with the Acquire fence in `Consumer::pull`. In overwrite mode, a consumer may
            // be reading the words that are overwritten from here on. After its fence, the consumer loads the
            // head again. If the consumer has read a word of the new block, the loaded head is at least the
            // head that was published before the block was opened.
            fence(Ordering::Release);
            self.pad(head, start);
            let header = memory.span(start, BLOCK_HEADER_WORDS);
            header[0].store(state.sequence.load(Relaxed), Relaxed);
            header[1].store(self.lease.words[HEADER_WORDS], Relaxed);
            at += BLOCK_HEADER_WORDS;
            state.head.store(at, Relaxed);
        }
        let limit = (memory.block_start(at) + memory.block_words()).min(limit);
        state.room.store(limit, Relaxed);
        // An emit that needs fences or a system clock always takes the slow path.
        let is_slow = self.fenced || self.system_clock.is_some();
        state.limit.store(if is_slow { 0 } else { limit }, Relaxed);
        Some(at)
    }

    /// Returns the beginning and end of a record of `words` words after `head`. If the record opens a block,
    /// the beginning is the beginning of this block. Returns `None` if the record is too long for any block.
    fn place(&self, head: u64, words: u64, opens: bool) -> Option<(u64, u64)> {
        let memory = &self.memory;
        if words > memory.max_record_words() {
            return None;
        }
        let block_start = memory.block_start(head);
        let block_end = block_start + memory.block_words();
        if !opens && head != block_start && head + words <= block_end {
            return Some((head, head + words));
        }
        let start = if head == block_start { head } else { block_end };
        Some((start, start + BLOCK_HEADER_WORDS + words))
    }

    /// Fills the words from `from` to the end of the block at `to`. A single word needs no pad.
    fn pad(&self, from: u64, to: u64) {
        if to - from >= HEADER_WORDS as u64 {
            let words = (to - from) as usize - HEADER_WORDS;
            let pad = self.memory.span(from, HEADER_WORDS as u64);
            pad[0].store(0, Relaxed);
            pad[1].store(Header::meta(id::PAD, words.min(u16::MAX.into()) as u16, 0), Relaxed);
        }
    }

    /// Returns whether there is room for the next `records` records if each record has at most `words` words,
    /// header included. In overwrite mode, there is always room. The hot path must not call this function,
    /// because it loads from shared memory.
    pub fn has_room(&self, records: u64, words: u64) -> bool {
        let memory = &self.memory;
        let words = words.max(HEADER_WORDS as u64);
        let mut head = self.state.head.load(Relaxed);
        if self.state.fresh.load(Relaxed) == 1
            && let Some((_, end)) = self.place(head, self.lease.len, true)
        {
            head = end;
        }
        let Some((_, end)) = self.place(head, words, false) else { return false };
        let end = self.end_of(records.saturating_sub(1), words, end);
        // ORDERING: an estimate; `find_room` loads tail again.
        let tail = memory.host[host_page::TAIL].load(Relaxed);
        let most = memory.capacity() - memory.reserve();
        records == 0
            || memory.mode() == RingMode::Overwrite
            || end.checked_sub(tail).is_some_and(|used| used <= most)
    }

    /// Returns an upper bound of the position after the next `records` records of at most `words` words each.
    /// The last record before these records ends at `end`.
    fn end_of(&self, records: u64, words: u64, end: u64) -> u64 {
        let block = self.memory.block_words();
        let block_end = self.memory.block_start(end - 1) + block;
        // Shorter records only increase the number of records in a block, so the bound assumes `words` words
        // for each record.
        let fit = (block_end - end) / words;
        let Some(last) = records.checked_sub(fit + 1) else { return end + records * words };
        let each = (block - BLOCK_HEADER_WORDS) / words;
        let blocks = (last / each).saturating_mul(block);
        (block_end + BLOCK_HEADER_WORDS + (last % each + 1) * words).saturating_add(blocks)
    }
}
