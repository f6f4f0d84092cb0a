// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The producer: the guest's side of a ring.
//!
//! The hot path loads private memory only: a load from a BAR that is mapped
//! uncached costs hundreds of nanoseconds. Private state is in atomics with
//! relaxed loads and stores, because a signal handler or an interrupt may emit
//! in the middle of an emit on the same thread.

use super::fence::store_fence;
use super::lease::{Lease, walk};
use super::state::ProducerState;
use super::{BLOCK_HEADER_WORDS, ClientMemory, schema_log};
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, compiler_fence, fence};
use crate::clock::Counter;
use crate::config::RingMode;
use crate::event::{Fields, Site, Text};
use crate::layout::{guest_page, host_page};
use crate::prefetch::prefetch_for_store;
use crate::record::{Flags, HEADER_WORDS, Header, id};

/// Highest plausible head: at a word per nanosecond a ring gets there in 36 years.
const MOST_HEAD: u64 = 1 << 60;

/// Outcome of an emit. Callers need not handle it: each dropped event is counted, and
/// the count reaches the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// The record is published.
    Recorded,
    /// The ring was full: counted in `lost_full`.
    Full,
    /// The emit interrupted another one: counted in `lost_busy`.
    Busy,
    /// This producer has no lease. Not counted: lease and emit again.
    Unleased,
}

/// Description of a record to emit, except for its payload.
#[derive(Clone, Copy)]
struct NewRecord<'a> {
    id: u32,
    flags: Flags,
    /// Schema that the host must know before the record.
    text: Option<&'a dyn Text>,
    /// Number of payload words.
    words: usize,
    /// Whether a full ring is counted as a loss.
    is_counted: bool,
}

impl<'a> NewRecord<'a> {
    #[inline(always)]
    fn of_words(id: u32, flags: Flags, words: usize) -> Self {
        NewRecord { id, flags, text: None, words, is_counted: true }
    }

    #[inline(always)]
    fn event<S: Site + 'a, F: Fields>(site: S, fields: &F) -> Self {
        let text = Some(site.text::<F>());
        NewRecord { text, ..Self::of_words(site.id::<F>(), Flags::empty(), fields.words()) }
    }

    #[inline(always)]
    fn record_words(&self) -> u64 {
        (HEADER_WORDS + self.words) as u64
    }
}

/// Stores a payload that has two parts.
#[inline(always)]
fn put(out: &[AtomicU64], prefix: &[u64], payload: &[u64]) {
    let (first, second) = out.split_at(prefix.len());
    for (to, &from) in first.iter().zip(prefix) {
        to.store(from, Relaxed);
    }
    for (to, &from) in second.iter().zip(payload) {
        to.store(from, Relaxed);
    }
}

/// A way to wake the thread that empties a ring.
pub trait Wake: Sync + core::fmt::Debug {
    /// Wakes it: a block is opened in a ring that is at least a quarter full, or an emit follows
    /// a pause. Called in the middle of an emit, at most once a block or a pause, also if the
    /// event is dropped. It must not block, and must not emit.
    fn wake(&self);
}

/// Pause between two emits of which no producer knows: longer than any.
const ENDLESS: u64 = i64::MAX as u64;

/// The guest's side of one client's ring. It belongs to one thread, like its state, and
/// is the state's only producer.
///
/// ```compile_fail,E0277
/// # use hypertrace_abi::ring::Producer;
/// fn hand_over(producer: Producer<'static>) {
///     std::thread::spawn(move || producer.release());
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use hypertrace_abi::ring::Producer;
/// fn twice<'m>(producer: Producer<'m>) -> [Producer<'m>; 2] {
///     [producer, producer]
/// }
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Producer<'m> {
    // What each emit needs is at the front, in one cache line.
    pub(super) state: &'m ProducerState,
    ring: &'m [AtomicU64],
    /// The word of page G that publishes records.
    published: &'m AtomicU64,
    /// Longest time between two emits, in ticks, after which the reader need not be woken.
    pause: u64,
    pub(super) memory: ClientMemory<'m>,
    lease: Lease,
    /// Whether stores need fences to stay in order: the mapping is not write-back.
    pub(super) fenced: bool,
    wake: Option<&'m dyn Wake>,
    /// Events of threads without a client, in processes that have no other place for their count.
    pub(super) unattached: Option<&'m AtomicU64>,
}

impl<'m> Producer<'m> {
    /// Takes over the client from its last lessee, if there was one. Reads the end of its
    /// ring (no other load from shared memory is outside of a slow path), continues
    /// its sequence and its totals, and announces the lease.
    ///
    /// `fenced`: the mapping is not write-back, or not known to be.
    pub fn lease(
        memory: ClientMemory<'m>,
        state: &'m ProducerState,
        lease: Lease,
        fenced: bool,
    ) -> Self {
        let guest = memory.guest;
        let published = guest[guest_page::HEAD].load(Ordering::Acquire);
        let tail = memory.host[host_page::TAIL].load(Ordering::Acquire);
        // The last lessee may have left nonsense. Then this client starts at zero and
        // publishes that now: the host counts a fault and follows.
        let is_plausible = published <= MOST_HEAD
            && tail <= published
            && (memory.mode() == RingMode::Overwrite || published - tail <= memory.capacity());
        let head = if is_plausible { published } else { 0 };
        let sequence = walk(&memory, head).0;
        if !is_plausible {
            guest[guest_page::HEAD].store(head, Ordering::Release);
        }
        // The host reads it after the head of the first record.
        guest[guest_page::COUNTER].store(Counter::own().to_word(), Relaxed);
        state.head.store(head, Relaxed);
        state.limit.store(0, Relaxed);
        state.room.store(0, Relaxed);
        state.sequence.store(sequence, Relaxed);
        state.fresh.store(1, Relaxed);
        state.lost_full.store(guest[guest_page::LOST_FULL].load(Relaxed), Relaxed);
        state.lost_busy.store(guest[guest_page::LOST_BUSY].load(Relaxed), Relaxed);
        let unattached = guest[guest_page::LOST_UNATTACHED].load(Relaxed);
        state.lost_unattached.store(unattached, Relaxed);
        state.unpublished.store(0, Relaxed);
        state.asked.store(0, Relaxed);
        state.last.store(lease.words[0], Relaxed);
        // A jump may have left it taken.
        state.publishing.store(0, Relaxed);
        state.schema_len.store(guest[guest_page::SCHEMA_LEN].load(Relaxed), Relaxed);
        state.known_len.store(0, Relaxed);
        for slot in &state.known {
            slot.store(0, Relaxed);
        }
        state.token.store(lease.words[HEADER_WORDS], Relaxed);
        compiler_fence(Ordering::SeqCst);
        state.busy.store(0, Relaxed);
        let producer = Producer {
            state,
            ring: memory.ring,
            published: &memory.guest[guest_page::HEAD],
            pause: ENDLESS,
            memory,
            lease,
            fenced,
            wake: None,
            unattached: None,
        };
        producer.refresh(lease.words[0]);
        producer
    }

    /// Returns the producer with a waker for the ring's reader. It wakes the reader before an
    /// emit that is more than `pause` ticks after the last one, and when a ring that discards
    /// is a quarter full.
    pub fn waking(self, wake: &'m dyn Wake, pause: u64) -> Self {
        Producer { wake: Some(wake), pause: pause.min(ENDLESS), ..self }
    }

    /// Returns the client's memory.
    pub fn memory(&self) -> &ClientMemory<'m> {
        &self.memory
    }

    /// Returns the private state.
    pub fn state(&self) -> &'m ProducerState {
        self.state
    }

    /// Emits a typed event with the time of `clock`, nonzero. The clock is read again if a
    /// signal handler has emitted since, so a client's timestamps never go backwards.
    /// Never allocates, blocks or formats.
    #[inline(always)]
    pub fn emit<S: Site, F: Fields>(&self, site: S, clock: impl Fn() -> u64, fields: F) -> Emit {
        let describe = move || NewRecord::event(site, &fields);
        self.emit_with(clock, describe, move |out| fields.put(out))
    }

    /// Tries to emit a typed event with flags, as [`Producer::emit`] does, but does not
    /// count a full ring: the caller tries again, or calls [`Producer::count_full`].
    #[inline(always)]
    pub fn try_emit<S: Site, F: Fields>(
        &self,
        site: &S,
        clock: impl Fn() -> u64,
        flags: Flags,
        fields: F,
    ) -> Emit {
        let describe =
            || NewRecord { flags, is_counted: false, ..NewRecord::event(*site, &fields) };
        self.emit_with(clock, describe, |out| fields.put(out))
    }

    /// Emits a record of given words at `now`, nonzero: a record with a reserved id, or
    /// one that a host thread writes on a guest's behalf. A record that is flagged
    /// as a reference point may use the part of the ring that is reserved for
    /// reference points.
    #[inline]
    pub fn emit_words(
        &self,
        now: u64,
        id: u32,
        flags: Flags,
        prefix: &[u64],
        payload: &[u64],
    ) -> Emit {
        let words = prefix.len() + payload.len();
        let describe = || NewRecord::of_words(id, flags, words);
        self.emit_with(|| now, describe, |out| put(out, prefix, payload))
    }

    /// Tries to emit a record of given words with the time of `clock`, as
    /// [`Producer::emit_words`] does. Does not count a full ring, like
    /// [`Producer::try_emit`].
    #[inline]
    pub fn try_words(
        &self,
        clock: impl Fn() -> u64,
        id: u32,
        flags: Flags,
        prefix: &[u64],
        payload: &[u64],
    ) -> Emit {
        let words = prefix.len() + payload.len();
        let describe = || NewRecord { is_counted: false, ..NewRecord::of_words(id, flags, words) };
        self.emit_with(clock, describe, |out| put(out, prefix, payload))
    }

    /// Counts an event that found no room, outside of any emit.
    pub fn count_full(&self) {
        self.state.count(&self.state.lost_full);
        self.publish_losses();
    }

    /// Emits a record of `words` words that `put` stores, at `now`, which is nonzero and
    /// no earlier than the last record. A full ring is not counted. Only for a thread
    /// where no interruption emits to this ring: it does not detect one.
    #[inline(always)]
    pub fn emit_alone(
        &self,
        now: u64,
        id: u32,
        flags: Flags,
        words: usize,
        put: impl FnOnce(&[AtomicU64]),
    ) -> Emit {
        let new = NewRecord { is_counted: false, ..NewRecord::of_words(id, flags, words) };
        let head = self.state.head.load(Relaxed);
        let head = match head + new.record_words() <= self.state.limit.load(Relaxed) {
            true => head,
            false => match self.make_room(now, new) {
                Ok(head) => head,
                Err(why) => return why,
            },
        };
        self.record(head, now, new, put, self.fenced);
        Emit::Recorded
    }

    /// The body of all emits. `put` stores the payload. `describe` is called again if the ring is not
    /// ready: a value that is passed on from here would be in memory on the hot path too,
    /// and its constants would be loaded from there.
    #[inline(always)]
    fn emit_with<'a>(
        &self,
        clock: impl Fn() -> u64,
        describe: impl Fn() -> NewRecord<'a>,
        put: impl FnOnce(&[AtomicU64]),
    ) -> Emit {
        let state = self.state;
        let now = clock();
        compiler_fence(Ordering::SeqCst);
        if state.busy.load(Relaxed) != 0 {
            return self.interrupted();
        }
        state.busy.store(now, Relaxed);
        compiler_fence(Ordering::SeqCst);
        let head = state.head.load(Relaxed);
        let new = describe();
        if new.text.is_some() && !state.knows(new.id) {
            return self.emit_slowly(now, clock, describe, put);
        }
        if self.is_rare(now) || head + new.record_words() > state.limit.load(Relaxed) {
            return self.emit_slowly(now, clock, describe, put);
        }
        self.record(head, now, new, put, false);
        self.leave(now);
        Emit::Recorded
    }

    /// Finishes an emit that has begun and has something rare to do first. All of these are this one call, the
    /// last thing that the hot path does: it saves no registers.
    #[cold]
    #[inline(never)]
    fn emit_slowly<'a>(
        &self,
        now: u64,
        clock: impl Fn() -> u64,
        describe: impl Fn() -> NewRecord<'a>,
        put: impl FnOnce(&[AtomicU64]),
    ) -> Emit {
        let new = describe();
        let now = self.enter_rarely(now, clock, self.wake);
        match self.make_room(now, new) {
            Ok(head) => self.record(head, now, new, put, self.fenced),
            Err(why) => return why,
        }
        self.leave(now);
        Emit::Recorded
    }

    /// Writes a record and publishes it.
    #[inline(always)]
    fn record(
        &self,
        head: u64,
        now: u64,
        new: NewRecord<'_>,
        put: impl FnOnce(&[AtomicU64]),
        fenced: bool,
    ) {
        let words = new.record_words();
        let start = head as usize & (self.ring.len() - 1);
        let record = &self.ring[start..start + words as usize];
        // The host's CPU has the line, as it has read the record that is overwritten.
        prefetch_for_store(self.ring, start);
        self.order_before();
        record[0].store(now, Relaxed);
        record[1].store(Header::meta(new.id, new.words as u16, new.flags.bits()), Relaxed);
        put(&record[HEADER_WORDS..]);
        self.publish(head + words, fenced);
    }

    /// Begins an emit and returns its timestamp, nonzero. Until [`Producer::leave`], all
    /// other emits of this client fail. Calls `wake` if the emit follows a pause.
    ///
    /// # Errors
    /// [`Emit::Busy`], counted, if this interrupts another emit.
    #[inline(always)]
    pub(super) fn enter(
        &self,
        clock: impl Fn() -> u64,
        wake: Option<&dyn Wake>,
    ) -> Result<u64, Emit> {
        let state = self.state;
        let mut now = clock();
        compiler_fence(Ordering::SeqCst);
        if state.busy.load(Relaxed) != 0 {
            return Err(self.interrupted());
        }
        state.busy.store(now, Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.is_rare(now) {
            now = self.enter_rarely(now, clock, wake);
        }
        Ok(now)
    }

    /// Returns whether an emit at `now` was overtaken by a signal handler's, or follows a pause.
    #[inline(always)]
    fn is_rare(&self, now: u64) -> bool {
        // One comparison for both: below zero, the difference is above any pause.
        now.wrapping_sub(self.state.last.load(Relaxed)) > self.pause
    }

    /// Begins an emit that a signal handler's has overtaken, or that follows a pause. Returns
    /// its timestamp.
    #[cold]
    #[inline(never)]
    fn enter_rarely(&self, mut now: u64, clock: impl Fn() -> u64, wake: Option<&dyn Wake>) -> u64 {
        let state = self.state;
        if now < state.last.load(Relaxed) {
            // The handler has emitted between the clock and `busy`.
            now = clock();
            state.busy.store(now, Relaxed);
        }
        // Still below: the clock was set back, by a restore perhaps, and how long ago is not known.
        if now.wrapping_sub(state.last.load(Relaxed)) > self.pause
            && let Some(wake) = wake
        {
            // The reader may have stopped looking. If this event is dropped, the next one does not
            // follow the same pause.
            state.last.store(now, Relaxed);
            wake.wake();
        }
        now
    }

    /// Ends an emit that published its record at `now`.
    #[inline(always)]
    pub(super) fn leave(&self, now: u64) {
        self.state.last.store(now, Relaxed);
        self.give_up();
    }

    /// Ends an emit without a record.
    #[inline(always)]
    pub(super) fn give_up(&self) {
        compiler_fence(Ordering::SeqCst);
        self.state.busy.store(0, Relaxed);
    }

    /// Orders the published head before the stores to come. In overwrite mode a consumer
    /// may be reading the words that they overwrite.
    #[inline(always)]
    fn order_before(&self) {
        // ORDERING: pairs with the Acquire fence in `Consumer::pull`: a consumer
        // that sees one of the words stored next sees the head published before.
        fence(Ordering::Release);
    }

    /// Publishes the head, behind which all words are stored.
    #[inline(always)]
    fn publish_head(&self, head: u64, fenced: bool) {
        if fenced {
            store_fence();
        }
        // ORDERING: pairs with the Acquire load in the consumer's `load_head`: the
        // record is complete.
        self.published.store(head, Ordering::Release);
        if fenced {
            store_fence();
        }
    }

    #[inline(always)]
    fn publish(&self, head: u64, fenced: bool) {
        let state = self.state;
        self.publish_head(head, fenced);
        compiler_fence(Ordering::SeqCst);
        state.head.store(head, Relaxed);
        state.sequence.store(state.sequence.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts an event that interrupted another emit, which may be at any point.
    #[cold]
    #[inline(never)]
    fn interrupted(&self) -> Emit {
        self.state.count(&self.state.lost_busy);
        // A client that was revoked may be another process's.
        if self.state.is_leased() {
            self.publish_losses();
        }
        Emit::Busy
    }

    /// Prepares the ring on the slow path: announces a schema, opens blocks, reads tail,
    /// publishes losses. Returns the position at which the record of `now` may be written.
    #[cold]
    #[inline(never)]
    fn make_room(&self, now: u64, new: NewRecord<'_>) -> Result<u64, Emit> {
        let state = self.state;
        if !state.is_leased() {
            self.give_up();
            return Err(Emit::Unleased);
        }
        if let Some(text) = new.text {
            schema_log::announce(&self.memory, state, text, self.fenced);
        }
        self.publish_losses();
        let head = state.head.load(Relaxed);
        if head + new.record_words() <= state.room.load(Relaxed) {
            return Ok(head);
        }
        let commit = new.flags.contains(Flags::REFERENCE_POINT);
        let room = self.find_room(now, new.record_words(), commit);
        if room.is_none() {
            // End the emit before the count: an interrupted count must not look like
            // an interrupted emit.
            self.give_up();
            compiler_fence(Ordering::SeqCst);
            if new.is_counted {
                state.count(&state.lost_full);
                // At once: the program may end before the next event.
                self.publish_losses();
            }
        }
        room.ok_or(Emit::Full)
    }

    /// Returns the positions of a record of `words` words if it is the next one: its begin,
    /// or that of the block which it opens, and its end. `None` if it is too long for any
    /// block.
    fn place(&self, words: u64) -> Option<(u64, u64)> {
        let (state, memory) = (self.state, &self.memory);
        if words > memory.max_record_words() {
            return None;
        }
        let head = state.head.load(Relaxed);
        let block = memory.block_words();
        let block_start = memory.block_start(head);
        let fresh = state.fresh.load(Relaxed) == 1;
        if !fresh && head != block_start && head + words <= block_start + block {
            return Some((head, head + words));
        }
        // A block's header and the lease record are written before its first record.
        let start = if head == block_start { head } else { block_start + block };
        let lease = if fresh { self.lease.len } else { 0 };
        let before = match lease + words > memory.max_record_words() {
            // The lease record takes almost a whole block, and gets one of its own.
            true => block + BLOCK_HEADER_WORDS,
            false => BLOCK_HEADER_WORDS + lease,
        };
        Some((start, start + before + words))
    }

    /// Finds the position for a record of `words` words, and writes at `now` what precedes it.
    fn find_room(&self, now: u64, words: u64, commit: bool) -> Option<u64> {
        let (state, memory) = (self.state, &self.memory);
        let (start, end) = self.place(words)?;
        let block = memory.block_words();
        let opens = start == memory.block_start(start);
        let limit = match memory.mode() {
            RingMode::Overwrite => u64::MAX,
            RingMode::Discard => {
                // ORDERING: pairs with the Release in `Consumer::commit`: the
                // host has read the words that are overwritten now.
                let tail = memory.host[host_page::TAIL].load(Ordering::Acquire);
                // A tail beyond the end is the host's mistake: the ring counts as full.
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
            self.order_before();
            self.pad(state.head.load(Relaxed), start);
            at = self.open_block(start);
            if state.fresh.load(Relaxed) == 1 {
                let lease = memory.span(at, self.lease.len);
                for (to, &from) in lease.iter().zip(&self.lease.words) {
                    to.store(from, Relaxed);
                }
                // A lease that found a full ring is announced later, perhaps in another epoch.
                lease[0].store(now, Relaxed);
                at += self.lease.len;
                state.sequence.store(state.sequence.load(Relaxed).wrapping_add(1), Relaxed);
                if end - start > block {
                    self.pad(at, start + block);
                    at = self.open_block(start + block);
                }
                state.fresh.store(0, Relaxed);
            }
            state.head.store(at, Relaxed);
        }
        let limit = (memory.block_start(at) + block).min(limit);
        state.room.store(limit, Relaxed);
        // Each emit to a mapping that needs fences is a slow one.
        state.limit.store(if self.fenced { 0 } else { limit }, Relaxed);
        Some(at)
    }

    /// Returns whether the next `records` records find room if each has at most `words`
    /// words, its header included; in overwrite mode all do. Loads from shared memory, so
    /// not for the hot path.
    pub fn has_room(&self, records: u64, words: u64) -> bool {
        let memory = &self.memory;
        let words = words.max(HEADER_WORDS as u64);
        let Some((_, end)) = self.place(words) else { return false };
        let end = self.end_of(records.saturating_sub(1), words, end);
        // ORDERING: an estimate; `find_room` loads tail again.
        let tail = memory.host[host_page::TAIL].load(Relaxed);
        let most = memory.capacity() - memory.reserve();
        records == 0
            || memory.mode() == RingMode::Overwrite
            || end.checked_sub(tail).is_some_and(|used| used <= most)
    }

    /// Returns an upper bound of the ring's end after `records` more records of at most
    /// `words` words, if the last record before them ends at `end`.
    fn end_of(&self, records: u64, words: u64, end: u64) -> u64 {
        let block = self.memory.block_words();
        let block_end = self.memory.block_start(end - 1) + block;
        // A block that is left for the next one holds no fewer records, whatever their sizes.
        let fit = (block_end - end) / words;
        let Some(last) = records.checked_sub(fit + 1) else { return end + records * words };
        let each = (block - BLOCK_HEADER_WORDS) / words;
        let blocks = (last / each).saturating_mul(block);
        (block_end + BLOCK_HEADER_WORDS + (last % each + 1) * words).saturating_add(blocks)
    }

    /// Fills the words from `from` to the block's end `to`. A single word needs no pad.
    fn pad(&self, from: u64, to: u64) {
        if to - from >= HEADER_WORDS as u64 {
            let words = (to - from) as usize - HEADER_WORDS;
            let pad = self.memory.span(from, HEADER_WORDS as u64);
            pad[0].store(0, Relaxed);
            pad[1].store(Header::meta(id::PAD, words.min(u16::MAX.into()) as u16, 0), Relaxed);
        }
    }

    fn open_block(&self, start: u64) -> u64 {
        let header = self.memory.span(start, BLOCK_HEADER_WORDS);
        header[0].store(self.state.sequence.load(Relaxed), Relaxed);
        header[1].store(self.lease.words[HEADER_WORDS], Relaxed);
        start + BLOCK_HEADER_WORDS
    }

    /// Announces the lease if that has not happened, and publishes losses, at `now`.
    /// Called outside of any emit.
    pub fn refresh(&self, now: u64) {
        let state = self.state;
        if state.busy.load(Relaxed) != 0 || !state.is_leased() || self.enter(|| now, None).is_err()
        {
            return;
        }
        self.publish_losses();
        if state.fresh.load(Relaxed) == 1
            && let Some(head) = self.find_room(now, 0, false)
        {
            self.publish_head(head, self.fenced);
        }
        self.give_up();
    }

    /// Gives up the client: the thread ends. If a jump has left an emit, its event counts
    /// as lost unless it was published or the host has answered it. Publishes the totals.
    pub fn release(&self) {
        let state = self.state;
        if let Some(since) = state.interrupted_since() {
            let published = self.memory.guest[guest_page::HEAD].load(Relaxed);
            let reply = self.memory.host[host_page::REPLY].load(Relaxed);
            let asked = state.asked.load(Relaxed);
            let answered = asked >> 32 == 1 && asked as u32 == reply as u32;
            if !answered && walk(&self.memory, published).1 != Some(since) {
                state.lost_busy.fetch_add(1, Relaxed);
            }
        }
        self.publish_last();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_type;
    use crate::record::ClockKind;
    use crate::ring::LeaseInfo;
    use crate::ring::fence::AT_FENCE;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// What a host may see at least, at a fence.
    #[derive(Clone, PartialEq)]
    struct Seen {
        guest: Vec<u64>,
        schema: Vec<u64>,
        ring: Vec<u64>,
    }

    impl Seen {
        fn in_memory(memory: &ClientMemory<'_>) -> Seen {
            let of = |words: &[AtomicU64]| words.iter().map(|word| word.load(Relaxed)).collect();
            Seen { guest: of(memory.guest), schema: of(memory.schema), ring: of(memory.ring) }
        }
    }

    fn words(count: usize) -> &'static [AtomicU64] {
        (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak()
    }

    #[test]
    fn what_a_mapping_may_reorder_is_fenced_before_it_is_published() {
        let (guest, host, schema, ring) = (words(512), words(512), words(512), words(256));
        let memory = ClientMemory::for_test(guest, host, schema, ring, 16, RingMode::Discard);
        let notes = Rc::new(RefCell::new(vec![Seen::in_memory(&memory)]));
        let noted = notes.clone();
        AT_FENCE.set(Some(Box::new(move || noted.borrow_mut().push(Seen::in_memory(&memory)))));
        let state = Box::leak(Box::new(ProducerState::new()));
        let info = LeaseInfo { pid: 1, tid: 2, clock: ClockKind::Tsc, name: "test" };
        let producer = Producer::lease(memory, state, Lease::new(7, 1, &info), true);
        macro_rules! emit {
            ($($name:literal)*) => {$({
                let (site, fields) = event_type!($name, n = 5u64);
                assert_eq!(producer.emit(site, || 9, fields), Emit::Recorded);
            })*};
        }
        emit!("a" "b" "a" "c" "d" "a" "e");
        let (site, fields) = event_type!("point", n = 5u64);
        let slot = producer.slot(site, || 9, || 1, 0, fields, |_, _| Seen::in_memory(&memory));

        AT_FENCE.set(None);
        let notes = notes.take();
        assert!(notes.last() == slot.ok().as_ref(), "EMIT is stored after all else");
        for (n, pair) in notes.windows(2).enumerate() {
            let (before, after) = (&pair[0], &pair[1]);
            let moved = |word: usize| before.guest[word] != after.guest[word];
            let (texts, records) = (before.schema != after.schema, before.ring != after.ring);
            let (log, head) = (moved(guest_page::SCHEMA_LEN), moved(guest_page::HEAD));
            assert!(!(texts && log), "a text and the log's end between fences {n} and {}", n + 1);
            assert!(
                !(head && (records || log)),
                "a record and head between fences {n} and {}",
                n + 1
            );
        }
    }
}
