// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The schema log: a ring of schema texts, and a producer's table of the texts
//! that it has written.
//!
//! An entry is a word (u32 id, u32 length of the text in bytes), then the text, zero-padded to words.
//! Positions are in words. A producer never overwrites an entry that the host has not read: a producer that
//! finds no room writes no entry.

use super::ClientMemory;
use super::fence::store_fence;
use super::state::{MAX_KNOWN, ProducerState};
use crate::atomic::Ordering;
use crate::event::Text;
use crate::layout::{guest_page, host_page};
use crate::schema::MAX_TEXT;
use core::fmt;

/// A text copied out of a schema log, unchecked: the caller parses the text, and compares its hash with `id`.
#[derive(Clone, Copy)]
pub struct SchemaText {
    /// Id of the text, as the producer claims.
    pub id: u32,
    bytes: [u8; MAX_WORDS * 8],
    len: usize,
}

const MAX_WORDS: usize = MAX_TEXT.div_ceil(8);

impl fmt::Debug for SchemaText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} {:?}", self.id, self.bytes().escape_ascii())
    }
}

impl SchemaText {
    /// Returns the text's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Appends a text to the log, once per lease. If the log is full, or the host has the maximum number of this
/// client's texts, the event is recorded without its text. The host then reports the event as untyped.
pub(super) fn announce(
    memory: &ClientMemory<'_>,
    state: &ProducerState,
    text: &dyn Text,
    fenced: bool,
) {
    let Some(slot) = state.free_slot(text.id()) else { return };
    let known = state.known_len.load(Ordering::Relaxed);
    let written = state.schema_len.load(Ordering::Relaxed);
    if known < MAX_KNOWN
        && let Some(written) = append(memory, written, text, fenced)
    {
        state.schema_len.store(written, Ordering::Relaxed);
        slot.store(text.id(), Ordering::Relaxed);
        state.known_len.store(known + 1, Ordering::Relaxed);
    }
}

/// Appends a text. Returns the log's new end, or `None` if there is no room now.
fn append(memory: &ClientMemory<'_>, written: u64, text: &dyn Text, fenced: bool) -> Option<u64> {
    let capacity = memory.schema.len() as u64;
    let len = text.size();
    let words = 1 + len.div_ceil(8) as u64;
    // ORDERING: pairs with the Release in `Consumer::commit_schemas`: the host
    // has read the words that are overwritten now.
    let seen = memory.host[host_page::SCHEMA_SEEN].load(Ordering::Acquire);
    if words > capacity.saturating_sub(written.saturating_sub(seen)) {
        return None;
    }
    let at = |i: u64| &memory.schema[(written.wrapping_add(i) & (capacity - 1)) as usize];
    at(0).store(u64::from(text.id()) | (len as u64) << 32, Ordering::Relaxed);
    // Joins the pieces of the text first, because the text may wrap around the log's end, and a piece may
    // begin in the middle of a word.
    let mut bytes = [0; MAX_WORDS * 8];
    let mut end = 0;
    text.pieces(&mut |piece| {
        bytes[end..end + piece.len()].copy_from_slice(piece);
        end += piece.len();
    });
    for (i, word) in (1..words).zip(bytes.as_chunks().0) {
        at(i).store(u64::from_le_bytes(*word), Ordering::Relaxed);
    }
    if fenced {
        store_fence();
    }
    // ORDERING: pairs with the Acquire in `written`: the text is complete.
    memory.guest[guest_page::SCHEMA_LEN].store(written.wrapping_add(words), Ordering::Release);
    Some(written.wrapping_add(words))
}

/// An entry of the schema log.
#[allow(clippy::large_enum_variant, reason = "no heap here; it lives for one call")]
#[derive(Debug)]
pub enum Logged {
    /// A text that the caller knows already.
    Known,
    /// Another text.
    Text(SchemaText),
}

/// Returns the end of the log.
pub(super) fn written(memory: &ClientMemory<'_>) -> u64 {
    // ORDERING: pairs with the Release in `append`.
    memory.guest[guest_page::SCHEMA_LEN].load(Ordering::Acquire)
}

/// Reads the entry at `seen` of a log that ends at `written`, which is after `seen`. Copies the text once,
/// unless the text equals the text that is known under its id. Returns the entry and the position after it,
/// or `None` if the log's end or the entry's length is impossible.
pub(super) fn read<'k>(
    memory: &ClientMemory<'_>,
    seen: u64,
    written: u64,
    known: impl FnOnce(u32) -> Option<&'k str>,
) -> Option<(Logged, u64)> {
    let capacity = memory.schema.len() as u64;
    let there = written.wrapping_sub(seen);
    if there > capacity {
        return None;
    }
    let at = |i: u64| {
        memory.schema[(seen.wrapping_add(i) & (capacity - 1)) as usize].load(Ordering::Relaxed)
    };
    let head = at(0);
    let len = (head >> 32) as usize;
    let words = len.div_ceil(8);
    if len == 0 || len > MAX_TEXT || 1 + words as u64 > there {
        return None;
    }
    let next = seen.wrapping_add(1 + words as u64);
    // A guest can change the text during the comparison. In this case, the function copies the changed text,
    // or returns that the text is known. The guest has written the known text before.
    if let Some(text) = known(head as u32)
        && text.len() == len
        && text.as_bytes().chunks(8).zip(1..).all(|(bytes, i)| {
            // The comparison ignores the padding of the last word.
            at(i).to_le_bytes()[..bytes.len()] == *bytes
        })
    {
        return Some((Logged::Known, next));
    }
    let mut text = SchemaText { id: head as u32, bytes: [0; MAX_WORDS * 8], len };
    for (i, bytes) in text.bytes.chunks_exact_mut(8).take(words).enumerate() {
        bytes.copy_from_slice(&at(1 + i as u64).to_le_bytes());
    }
    Some((Logged::Text(text), next))
}
