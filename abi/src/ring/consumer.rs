// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The consumer: the host's access to a ring that the guest may change at any time.
//!
//! The consumer loads every word once, and checks it before use. The cursor runs ahead of the committed
//! position: tail advances only when the records are safe ([`Consumer::commit`]), and a failed write leaves
//! the records in the ring ([`Consumer::rollback`]).

use super::counts::{FAULT_KINDS, Fault, LOSSES, Losses};
use super::progress::{ConsumerState, Cursor};
use super::schema_log::{self, Logged};
use super::{BLOCK_HEADER_WORDS, ClientMemory};
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, fence};
use crate::clock::Counter;
use crate::config::RingMode;
use crate::layout::{guest_page, host_page};
use crate::record::{HEADER_WORDS, Header, id};

/// A visitor's answer to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The record is taken; the pull continues.
    Taken,
    /// The record is not taken; the pull ends before it.
    Stop,
}

/// A record whose header was checked against its block.
#[derive(Debug)]
pub struct Record<'a> {
    /// Timestamp, id, payload length and flags, as the producer wrote them.
    pub header: Header,
    /// The payload, not yet copied.
    pub payload: Payload<'a>,
}

/// Words of a ring that can be copied once: a record's payload, or a part of a block.
#[derive(Debug)]
pub enum Payload<'a> {
    #[doc(hidden)]
    Ring(&'a [AtomicU64]),
    #[doc(hidden)]
    Staged(&'a [u64]),
}

impl<'a> Payload<'a> {
    #[inline(always)]
    fn load(&self, at: usize) -> u64 {
        match self {
            Payload::Ring(words) => words[at].load(Relaxed),
            Payload::Staged(words) => words[at],
        }
    }

    #[inline(always)]
    fn part(&self, at: usize, words: usize) -> Payload<'a> {
        match self {
            Payload::Ring(all) => Payload::Ring(&all[at..at + words]),
            Payload::Staged(all) => Payload::Staged(&all[at..at + words]),
        }
    }

    /// Returns the length of the payload in words.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Payload::Ring(words) => words.len(),
            Payload::Staged(words) => words.len(),
        }
    }

    /// Returns whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the payload to the start of `out`; loads each word once.
    ///
    /// # Panics
    /// If `out` is shorter than the payload.
    #[inline(always)]
    pub fn copy_to(self, out: &mut [u64]) {
        match self {
            Payload::Ring(words) => {
                for (to, from) in out[..words.len()].iter_mut().zip(words) {
                    *to = from.load(Relaxed);
                }
            }
            Payload::Staged(words) => out[..words.len()].copy_from_slice(words),
        }
    }
}

/// Result of one [`Consumer::pull`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// Ring position at which the pull began, in words. If the producer has overwritten records before the
    /// pull, the position is after these records.
    pub begin: u64,
    /// Ring position after the last record taken.
    pub end: u64,
    /// Number of records taken.
    pub records: u64,
    /// Sequence number of the first record taken. If no record was taken, the sequence number of the next
    /// record. If this number is unknown before the next block, the value is a lower bound.
    pub sequence: u64,
    /// Lease token of all records taken.
    pub token: u64,
    /// Whether there may be more records now: the visitor stopped, another holder's records follow, the
    /// producer has overwritten the next records, or the pull reached its limit of words. The caller then
    /// reads schemas and pulls again.
    pub more: bool,
}

/// Number of words after which one [`Consumer::pull`] ends, at the next block. Without this limit, a pull
/// could take any amount of time: the visitor may drop records, and blocks may contain no records.
const PULL_WORDS: u64 = 1 << 15;

/// The host's side of one client.
#[derive(Debug)]
pub struct Consumer<'a> {
    memory: ClientMemory<'a>,
    state: &'a mut ConsumerState,
    /// Position at which [`Consumer::pull`] ends.
    head: u64,
    /// End of the schema log in words, after the texts of all records below `head`.
    schemas: u64,
    /// Upper limit of `head`.
    limit: Option<u64>,
    /// Whether the ring counts as empty. This flag is set while other clients have their turn.
    is_paused: bool,
}

impl<'a> Consumer<'a> {
    /// Combines private state and shared memory, and loads the ends of the ring and of the schema log.
    pub fn new(memory: ClientMemory<'a>, state: &'a mut ConsumerState) -> Self {
        // Loads the head first, so that the schema log contains the texts of all records below the head.
        let head = load_head(&memory);
        let schemas = schema_log::written(&memory);
        Consumer { memory, state, head, schemas, limit: None, is_paused: false }
    }

    /// Makes the ring end at `limit`, an earlier head, from now on.
    pub fn up_to(&mut self, limit: u64) {
        self.limit = Some(limit);
        self.head = self.limited(self.head);
    }

    /// Makes the ring count as empty from now on. [`Consumer::losses`] and the schema log still work, because
    /// the records of other rings may need this client's texts.
    pub fn pause(&mut self) {
        self.is_paused = true;
    }

    /// Returns whether the consumer was [paused](Consumer::pause).
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns whether the schema log has unread texts.
    pub fn has_schemas(&self) -> bool {
        let written = self.memory.guest[guest_page::SCHEMA_LEN].load(Relaxed);
        written != self.state.schema_cursor
    }

    /// Returns whether the client has something to take: records up to the limit, or texts.
    pub fn has_more(&self) -> bool {
        let head = self.limited(self.memory.guest[guest_page::HEAD].load(Relaxed));
        head != self.state.cursor.position || self.has_schemas()
    }

    /// Returns the guest's counter, as the last holder describes it.
    pub fn counter(&self) -> Counter {
        Counter::from_word(self.memory.guest[guest_page::COUNTER].load(Relaxed))
    }

    /// Returns the position at which [`Consumer::pull`] ends.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Starts again at the consumer's first place. If a ring in overwrite mode no longer contains this place,
    /// the consumer starts at the oldest record that the ring still contains. All records that are skipped in
    /// this way count as overwritten once more.
    pub fn rewind(&mut self) {
        let faults = self.state.committed.faults;
        let start = Cursor { faults, ..self.state.origin };
        (self.state.committed, self.state.cursor) = (start, start);
    }

    fn limited(&self, head: u64) -> u64 {
        self.limit.filter(|limit| is_ahead(head, *limit)).unwrap_or(head)
    }

    /// Returns the number of words that the `stage` of [`Consumer::pull`] needs.
    pub fn stage_words(&self) -> usize {
        match self.memory.mode() {
            RingMode::Discard => 0,
            RingMode::Overwrite => self.memory.block_words() as usize,
        }
    }

    /// Returns the maximum length of a payload in words.
    pub fn max_payload_words(&self) -> usize {
        self.memory.max_record_words() as usize - HEADER_WORDS
    }

    /// Counts a fault that the caller found in a schema. The visitor of [`Consumer::pull`] counts faults in
    /// records. [`Consumer::rollback`] subtracts the faults in uncommitted records from the count, because
    /// the next pull finds these faults again.
    pub fn fault(&mut self, fault: Fault) {
        count(&mut self.state.cursor, fault);
        count(&mut self.state.committed, fault);
    }

    /// Returns the number of faults so far, by kind, in the order of [`Fault::ALL`].
    pub fn faults(&self) -> [u64; FAULT_KINDS] {
        self.state.cursor.faults
    }

    /// Looks at the producer's running totals. Returns the host's totals.
    pub fn losses(&mut self) -> Losses {
        let mut is_plausible = true;
        for (total, word) in self.state.lost.iter_mut().zip(LOSSES) {
            is_plausible &= total.look(self.memory.guest[word].load(Relaxed));
        }
        if !is_plausible {
            self.fault(Fault::Losses);
        }
        let [full, busy, unattached] = self.state.lost.map(|total| total.counted());
        Losses { full, busy, unattached, overwritten: self.state.cursor.overwritten }
    }

    /// Takes records, in order, up to the end that [`Consumer::new`] found. The consumer does not look for a
    /// later end, so a producer cannot keep the consumer busy. After [`Consumer::next_schema`] has returned
    /// `None`, the caller has read the schema of every record below the end. The pull ends earlier if `visit`
    /// stops, if another holder's records follow, or at a limit of words. `stage` needs
    /// [`Consumer::stage_words`] words.
    ///
    /// Only [`Consumer::commit`] gives room back to the producer.
    ///
    /// # Panics
    /// If `stage` is too short.
    #[inline]
    pub fn pull(
        &mut self,
        stage: &mut [u64],
        mut visit: impl FnMut(&mut [u64; FAULT_KINDS], Record<'_>) -> Flow,
    ) -> Pulled {
        let memory = self.memory;
        let cursor = &mut self.state.cursor;
        let head = if self.is_paused { cursor.position } else { self.head };
        let mut pulled = Pulled {
            begin: cursor.position,
            sequence: cursor.sequence.unwrap_or(cursor.assumed),
            token: cursor.token,
            ..Pulled::default()
        };
        let ahead = head.wrapping_sub(cursor.position);
        let possible = match memory.mode() {
            RingMode::Discard => ahead <= memory.capacity(),
            RingMode::Overwrite => ahead <= u64::MAX / 2,
        };
        if !possible {
            count(cursor, Fault::Head);
            cursor.position = memory.block_start(head);
            cursor.assumed = pulled.sequence;
            cursor.sequence = None;
            pulled.begin = cursor.position;
        }
        if memory.mode() == RingMode::Overwrite {
            skip_overwritten(&memory, cursor, head, head);
            pulled.begin = cursor.position;
        }
        let begin = cursor.position;
        // Bound: from here on, at most the capacity of the ring lies between the cursor and `head`, whatever
        // head the guest has stored. Each turn but the last moves the cursor by at least a word, and nothing
        // moves the cursor past `head`.
        while is_ahead(head, cursor.position) && !pulled.more {
            if cursor.position.wrapping_sub(begin) >= PULL_WORDS {
                pulled.more = true;
                break;
            }
            if memory.mode() == RingMode::Overwrite
                && !skip_overwritten(&memory, cursor, head, load_head(&memory))
            {
                break;
            }
            let end = block_part(&memory, cursor.position, head);
            let len = end.wrapping_sub(cursor.position);
            let words = memory.span(cursor.position, len);
            let source = match memory.mode() {
                RingMode::Discard => Payload::Ring(words),
                RingMode::Overwrite => {
                    let stage = &mut stage[..len as usize];
                    Payload::Ring(words).copy_to(stage);
                    // ORDERING: pairs with the Release fence in the producer's `find_room`. The copy may
                    // contain a word of a block that the producer opened during the copy. The head that is
                    // loaded below is then at most one block before the opened block.
                    fence(Ordering::Acquire);
                    let now = memory.guest[guest_page::HEAD].load(Relaxed);
                    if is_ahead(oldest(&memory, now), cursor.position) {
                        // This part was overwritten while it was copied. The cursor moves past this part, so
                        // that every pull makes progress.
                        pulled.more = skip_overwritten(&memory, cursor, head, now);
                        break;
                    }
                    Payload::Staged(stage)
                }
            };
            // The compiler inlines `visit`, because this is the only call of `walk`.
            walk(&memory, cursor, &mut pulled, source, end, &mut visit);
        }
        pulled.end = cursor.position;
        pulled
    }

    /// Commits the pulled records, which gives their room back to the producer.
    pub fn commit(&mut self) {
        self.state.committed = self.state.cursor;
        self.publish_tail();
    }

    /// Returns to the last commit, so that the next pull takes the same records again.
    pub fn rollback(&mut self) {
        self.state.cursor = self.state.committed;
    }

    /// Counts all remaining events as lost and gives their room back. A host that cannot write the events
    /// calls this function at its end. A lease record is no event. `stage` is as for [`Consumer::pull`].
    ///
    /// # Panics
    /// If `stage` is too short.
    pub fn discard_unread(&mut self, stage: &mut [u64]) {
        for _ in 0..self.most_leases() {
            let mut events = 0;
            let pulled = self.pull(stage, |_, record| {
                events += u64::from(record.header.id != id::LEASE);
                Flow::Taken
            });
            let overwritten = &mut self.state.cursor.overwritten;
            *overwritten = overwritten.saturating_add(events);
            if !pulled.more {
                break;
            }
        }
        self.commit();
    }

    /// Writes tail to page H if the page has another value. A guest can overwrite the page, and a later
    /// holder would then wait for room in vain.
    pub fn publish_tail(&mut self) {
        let tail = &self.memory.host[host_page::TAIL];
        if tail.load(Relaxed) != self.state.committed.position {
            // ORDERING: pairs with the Acquire in `Producer::find_room`: the host has read everything below
            // tail.
            tail.store(self.state.committed.position, Ordering::Release);
        }
    }

    /// Tells the producer whether the host fails to write the producer's records. While the host fails to
    /// write records, the producer does not wait for room.
    pub fn set_write_failed(&mut self, failed: bool) {
        let word = &self.memory.host[host_page::WRITE_FAILED];
        if word.load(Relaxed) != u64::from(failed) {
            word.store(failed.into(), Relaxed);
        }
    }

    /// Returns the maximum number of calls of [`Consumer::pull`] that the caller needs to empty the ring:
    /// each change of the holder ends a call and begins a block.
    pub fn most_leases(&self) -> u64 {
        self.memory.capacity() / self.memory.block_words() + 1
    }

    /// Returns the number of words that the ring and the schema log hold together. An honest client never has
    /// more unread words.
    pub fn most_words(&self) -> u64 {
        self.memory.capacity() + self.memory.schema.len() as u64
    }

    /// Copies the next text of the schema log, once. [`Consumer::commit_schemas`] gives the text's room back
    /// to the producer. The caller must not pull before this function returns `None`: only then has the
    /// caller read the text of every record that [`Consumer::pull`] takes. Texts that the producer adds
    /// meanwhile are for the next consumer. Several consumers, one after the other, may read the texts.
    pub fn next_schema(&mut self) -> Option<super::LoggedSchema> {
        match self.next_schema_beside(|_| None)? {
            Logged::Text(text) => Some(text),
            Logged::Known => None,
        }
    }

    /// Reads the next text like [`Consumer::next_schema`], but does not copy the text if `known` returns the
    /// same text for the id.
    pub fn next_schema_beside<'k>(
        &mut self,
        known: impl FnOnce(u32) -> Option<&'k str>,
    ) -> Option<Logged> {
        let cursor = self.state.schema_cursor;
        if cursor == self.schemas {
            return None;
        }
        if let Some((logged, next)) = schema_log::read(&self.memory, cursor, self.schemas, known) {
            self.state.schema_cursor = next;
            return Some(logged);
        }
        self.state.schema_cursor = self.schemas;
        self.fault(Fault::SchemaLog);
        None
    }

    /// Returns the number of words of the schema log that were read or skipped since the last
    /// [`Consumer::commit_schemas`].
    pub fn taken_schema_words(&self) -> u64 {
        self.state.schema_cursor.wrapping_sub(self.state.schema_seen)
    }

    /// Gives the room of all texts that were read back to the producer. The texts must be on disk.
    pub fn commit_schemas(&mut self) {
        self.state.schema_seen = self.state.schema_cursor;
        let seen = &self.memory.host[host_page::SCHEMA_SEEN];
        if seen.load(Relaxed) != self.state.schema_seen {
            // ORDERING: pairs with the Acquire in `schema_log::append`.
            seen.store(self.state.schema_seen, Ordering::Release);
        }
    }
}

fn load_head(memory: &ClientMemory<'_>) -> u64 {
    // ORDERING: pairs with the Release in `Producer::publish`: all records
    // below head are complete, and their texts are in the schema log.
    memory.guest[guest_page::HEAD].load(Ordering::Acquire)
}

/// Returns whether position `a` is after position `b`.
fn is_ahead(a: u64, b: u64) -> bool {
    a.wrapping_sub(b) as i64 > 0
}

fn count(cursor: &mut Cursor, fault: Fault) {
    cursor.faults[fault as usize] += 1;
}

/// Returns the end of the readable part of the block at `position`.
fn block_part(memory: &ClientMemory<'_>, position: u64, head: u64) -> u64 {
    let to_head = head.wrapping_sub(position);
    let to_end = memory.block_words() - (position & (memory.block_words() - 1));
    position.wrapping_add(to_head.min(to_end))
}

/// Returns the oldest position that a producer at `head` cannot be overwriting. The producer may be writing
/// to head's block or, after a pad, to the next block.
fn oldest(memory: &ClientMemory<'_>, head: u64) -> u64 {
    memory.block_start(head).wrapping_add(2 * memory.block_words()).wrapping_sub(memory.capacity())
}

/// Moves the cursor to the oldest position that the producer has not begun to overwrite. `now` is the
/// producer's head. If there is no such position before `head`, moves the cursor to the beginning of `head`'s
/// block, where a later pull counts the losses, and returns `false`. Never moves the cursor past `head`,
/// whatever `now` is.
fn skip_overwritten(memory: &ClientMemory<'_>, cursor: &mut Cursor, head: u64, now: u64) -> bool {
    let oldest = oldest(memory, now);
    let is_there = is_ahead(head, oldest);
    let to = if is_there { oldest } else { memory.block_start(head) };
    // Until the ring is full for the first time, the oldest position is below zero.
    if is_ahead(to, cursor.position) {
        cursor.position = to;
    }
    is_there
}

/// Enters the block at `cursor`, whose header is `sequence` and `token`. Returns `false` if the block belongs
/// to another holder than the records taken so far: the pull ends before this block.
#[inline(never)]
fn enter_block(cursor: &mut Cursor, pulled: &mut Pulled, sequence: u64, token: u64) -> bool {
    if token != cursor.token && pulled.records > 0 {
        pulled.more = true;
        return false;
    }
    if token == 0 {
        count(cursor, Fault::Token);
    }
    if let Some(expected) = cursor.sequence {
        let gone = sequence.wrapping_sub(expected);
        // The missing records had at least two words each.
        if gone <= cursor.position / HEADER_WORDS as u64 {
            cursor.overwritten = cursor.overwritten.saturating_add(gone);
        } else {
            count(cursor, Fault::Sequence);
        }
    }
    cursor.token = token;
    cursor.sequence = Some(sequence);
    cursor.position = cursor.position.wrapping_add(BLOCK_HEADER_WORDS);
    pulled.token = token;
    if pulled.records == 0 {
        pulled.sequence = sequence;
    }
    true
}

/// Visits the records in a part of a block. The part ends at `end`.
#[inline(always)]
fn walk(
    memory: &ClientMemory<'_>,
    cursor: &mut Cursor,
    pulled: &mut Pulled,
    source: Payload<'_>,
    end: u64,
    visit: &mut impl FnMut(&mut [u64; FAULT_KINDS], Record<'_>) -> Flow,
) {
    let base = cursor.position;
    let len = source.len();
    // An earlier head may have been within the block's header. The loop below then begins after the rest of
    // the header, because no record begins in a header.
    let header = BLOCK_HEADER_WORDS.saturating_sub(base - memory.block_start(base));
    let mut at = header as usize;
    if header == BLOCK_HEADER_WORDS {
        if len < BLOCK_HEADER_WORDS as usize {
            count(cursor, Fault::Length);
            cursor.position = end;
            return;
        }
        let (sequence, token) = (source.load(0), source.load(1));
        if !enter_block(cursor, pulled, sequence, token) {
            return;
        }
    }
    let mut records = 0;
    let mut stopped = false;
    // Bound: `len` is at most a block, and each turn increases `at`.
    while at < len {
        if at + HEADER_WORDS > len {
            // A single word is a pad at the end of a block, and a fault elsewhere.
            if end != memory.block_start(end) {
                count(cursor, Fault::Length);
            }
            at = len;
            break;
        }
        let header = Header::from_words(source.load(at), source.load(at + 1));
        if header.id == id::PAD {
            // A pad fills the rest of the block, so head must be after the block.
            if end != memory.block_start(end) {
                count(cursor, Fault::Length);
            }
            at = len;
            break;
        }
        let words = usize::from(header.words);
        let next = at + HEADER_WORDS + words;
        if next > len {
            // The sequence number of the next block tells how many records are skipped here.
            count(cursor, Fault::Length);
            at = len;
            break;
        }
        let payload = source.part(at + HEADER_WORDS, words);
        if visit(&mut cursor.faults, Record { header, payload }) == Flow::Stop {
            stopped = true;
            break;
        }
        records += 1;
        at = next;
    }
    cursor.position = base.wrapping_add(at as u64);
    match &mut cursor.sequence {
        Some(sequence) => *sequence = sequence.wrapping_add(records),
        None => cursor.assumed = cursor.assumed.wrapping_add(records),
    }
    pulled.records += records;
    pulled.more |= stopped;
}
