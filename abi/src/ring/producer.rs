// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The producer: the guest's side of a ring.
//!
//! The hot path loads private memory only: a load from a BAR that is mapped uncached costs hundreds of
//! nanoseconds. Private state is in relaxed atomics, because a signal handler or an interrupt may emit in the
//! middle of an emit on the same thread.

use super::fence::store_fence;
use super::lease::{Lease, walk};
use super::state::ProducerState;
use super::{ClientMemory, schema_log};
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, compiler_fence};
use crate::clock::Counter;
use crate::config::RingMode;
use crate::event::{Fields, Id, Site, Text};
use crate::layout::{guest_page, host_page};
use crate::prefetch::prefetch_for_store;
use crate::record::{Flags, HEADER_WORDS, Header};

/// Highest plausible head in words. A producer that writes one word per nanosecond reaches this head after 36
/// years.
const MAX_HEAD: u64 = 1 << 60;

/// Outcome of an emit. Callers need not handle the outcome: each dropped event is counted, and the count
/// reaches the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// The record is published.
    Recorded,
    /// The ring was full: the event is counted in `lost_full`.
    Full,
    /// The emit interrupted another emit: the event is counted in `lost_busy`.
    Busy,
    /// This producer has no lease. The event is not counted: the caller leases a client and emits the event
    /// again.
    Unleased,
}

/// A record to emit: an event from `(site, fields)`, or a record with a given id from [`NewRecord::of_id`].
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<S, F> {
    site: S,
    fields: F,
    flags: Flags,
    /// Whether a full ring is counted as a loss.
    is_counted: bool,
}

impl<F: Fields> NewRecord<Id, F> {
    /// Makes a record with an id that has no schema text, or whose text the host knows already.
    #[inline(always)]
    pub fn of_id(id: u32, fields: F) -> Self {
        (Id(id), fields).into()
    }
}

impl<S: Site, F: Fields> NewRecord<S, F> {
    /// Returns this record with `flags`. A reference point may use the part of the ring that is reserved for
    /// reference points.
    #[inline(always)]
    #[must_use]
    pub fn with_flags(self, flags: Flags) -> Self {
        NewRecord { flags, ..self }
    }
}

#[inline(always)]
fn record_words(fields: impl Fields) -> u64 {
    (HEADER_WORDS + fields.words()) as u64
}

impl<S: Site, F: Fields> From<(S, F)> for NewRecord<S, F> {
    #[inline(always)]
    fn from((site, fields): (S, F)) -> Self {
        NewRecord { site, fields, flags: Flags::empty(), is_counted: true }
    }
}

/// Writes a record.
#[inline(always)]
fn write<S: Site, F: Fields>(record: &[AtomicU64], now: u64, new: NewRecord<S, F>) {
    let NewRecord { site, fields, flags, .. } = new;
    record[0].store(now, Relaxed);
    let words = fields.words() as u16;
    record[1].store(Header::meta(site.id::<F>(), words, flags.bits()), Relaxed);
    fields.put(&record[HEADER_WORDS..]);
}

/// Ends an emit that published its record at `now`.
#[inline(always)]
pub(super) fn leave(state: &ProducerState, now: u64) {
    state.last.store(now, Relaxed);
    give_up(state);
}

/// Ends an emit without a record.
#[inline(always)]
pub(super) fn give_up(state: &ProducerState) {
    compiler_fence(Ordering::SeqCst);
    state.busy.store(0, Relaxed);
}

/// A way to wake the ring's reader, the thread that drains it.
pub trait Wake: Sync + core::fmt::Debug {
    /// Wakes the reader. The producer calls this function in the middle of an emit. There are two occasions:
    /// the emit opens a block in a ring that is at least a quarter full, or the emit follows a pause. The
    /// producer makes at most one call for each block and for each pause. The event of this emit may still be
    /// dropped. This function must not block, and must not emit.
    fn wake(&self);
}

/// Value of `pause` for producers without a waker: no time between two emits is longer.
const ENDLESS: u64 = i64::MAX as u64;

/// The guest's side of one client's ring. A producer and its state belong to one thread, and a state has only
/// one producer.
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
    // The fields that each emit needs are at the front, in one cache line.
    pub(super) state: &'m ProducerState,
    ring: &'m [AtomicU64],
    /// Mask that converts a position to an index in the ring.
    mask: u32,
    /// Head in page G: the word that publishes records.
    published: &'m AtomicU64,
    /// Maximum time between two emits, in ticks. After a longer time, the producer wakes the reader.
    pause: u64,
    pub(super) memory: ClientMemory<'m>,
    pub(super) lease: Lease,
    /// Whether stores need fences to stay in order, because the mapping is not write-back.
    pub(super) fenced: bool,
    /// Clock that replaces the `clock` argument of each emit.
    pub(super) system_clock: Option<fn() -> u64>,
    pub(super) wake: Option<&'m dyn Wake>,
    /// Number of events of the process's threads without a client, which the producer moves to its own
    /// totals.
    pub(super) unattached: Option<&'m AtomicU64>,
}

impl<'m> Producer<'m> {
    /// Takes over the client from its last holder, if there was one. Reads the end of the client's ring,
    /// continues its sequence numbers and totals, and announces the lease. Apart from this function, only
    /// slow paths load from shared memory.
    ///
    /// `fenced`: the mapping is not write-back, or is not known to be write-back.
    pub fn lease(
        memory: ClientMemory<'m>,
        state: &'m ProducerState,
        lease: Lease,
        fenced: bool,
    ) -> Self {
        let guest = memory.guest;
        let published = guest[guest_page::HEAD].load(Ordering::Acquire);
        let tail = memory.host[host_page::TAIL].load(Ordering::Acquire);
        // If the last holder has left an impossible head, this client starts at zero and publishes the new
        // head now: the host counts a fault and follows.
        let is_plausible = published <= MAX_HEAD
            && tail <= published
            && (memory.mode() == RingMode::Overwrite || published - tail <= memory.capacity());
        let head = if is_plausible { published } else { 0 };
        let sequence = walk(&memory, head).0;
        if !is_plausible {
            guest[guest_page::HEAD].store(head, Ordering::Release);
        }
        // The store is relaxed, because the host reads this word after the head of the first record.
        let counter = Counter { reason: lease.reason, ..Counter::own() };
        guest[guest_page::COUNTER].store(counter.to_word(), Relaxed);
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
        // A `longjmp` may have left this flag set.
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
            mask: (memory.capacity() - 1) as u32,
            published: &memory.guest[guest_page::HEAD],
            pause: ENDLESS,
            memory,
            lease,
            fenced,
            system_clock: None,
            wake: None,
            unattached: None,
        };
        producer.refresh(lease.words[0]);
        producer
    }

    /// Gives the producer a waker for the ring's reader. The producer wakes the reader in an emit more than
    /// `pause` ticks after the last emit, and when a ring in discard mode is a quarter full.
    pub fn waking(self, wake: &'m dyn Wake, pause: u64) -> Self {
        Producer { wake: Some(wake), pause: pause.min(ENDLESS), ..self }
    }

    /// Gives the producer a clock that only a function call can read. Each emit then takes the slow path and
    /// reads this clock there, because a call would slow down the whole hot path.
    pub fn with_system_clock(self, clock: fn() -> u64) -> Self {
        self.state.limit.store(0, Relaxed);
        Producer { system_clock: Some(clock), ..self }
    }

    /// Returns the client's memory.
    pub fn memory(&self) -> &ClientMemory<'m> {
        &self.memory
    }

    /// Returns the private state.
    pub fn state(&self) -> &'m ProducerState {
        self.state
    }

    /// Emits a record with the time of `clock`, nonzero. Reads the clock again if a signal handler has
    /// emitted after the first reading, so a client's timestamps never go backwards. An emit never allocates,
    /// blocks or formats.
    #[inline(always)]
    pub fn emit<S: Site, F: Fields>(
        &self,
        record: impl Into<NewRecord<S, F>>,
        clock: impl Fn() -> u64,
    ) -> Emit {
        self.emit_new(record.into(), clock)
    }

    /// Emits a record like [`Producer::emit`], but does not count a full ring: the caller tries again, or
    /// calls [`Producer::count_full`].
    #[inline(always)]
    pub fn try_emit<S: Site, F: Fields>(
        &self,
        record: impl Into<NewRecord<S, F>>,
        clock: impl Fn() -> u64,
    ) -> Emit {
        self.emit_new(NewRecord { is_counted: false, ..record.into() }, clock)
    }

    /// Counts an event that found no room. Call this function only while no emit is in progress.
    pub fn count_full(&self) {
        self.state.count(&self.state.lost_full);
        self.publish_losses();
    }

    #[inline(always)]
    fn emit_new<S: Site, F: Fields>(&self, new: NewRecord<S, F>, clock: impl Fn() -> u64) -> Emit {
        let NewRecord { site, fields, flags, is_counted } = new;
        let state = self.state;
        let now = clock();
        compiler_fence(Ordering::SeqCst);
        if state.busy.load(Relaxed) != 0 {
            return self.interrupted();
        }
        state.busy.store(now, Relaxed);
        compiler_fence(Ordering::SeqCst);
        'rare: {
            if site.text::<F>().is_some() && !state.knows(site.id::<F>()) {
                break 'rare;
            }
            let head = state.head.load(Relaxed);
            let words = record_words(fields);
            if self.is_rare(now) || head + words > state.limit.load(Relaxed) {
                break 'rare;
            }
            // `start` has 32 bits, so the sum below cannot wrap, and only one bound is checked.
            let start = (head as u32 & self.mask) as usize;
            let Some(record) = self.ring.get(start..start + words as usize) else {
                break 'rare;
            };
            // The line ahead may be in the cache of the host's CPU, which has read the old records there.
            prefetch_for_store(self.ring, start);
            write(record, now, new);
            self.publish(state, head + words, false);
            leave(state, now);
            return Emit::Recorded;
        }
        // A tail call, so that the hot path saves no registers. The record is passed in parts, because a
        // whole record would be kept in memory, on the hot path too.
        self.emit_slowly(fields, now, site, flags, is_counted, clock)
    }

    /// Finishes an emit that has something rare to do first.
    #[cold]
    #[inline(never)]
    fn emit_slowly<S: Site, F: Fields>(
        &self,
        fields: F,
        now: u64,
        site: S,
        flags: Flags,
        is_counted: bool,
        clock: impl Fn() -> u64,
    ) -> Emit {
        let now = self.enter_rarely(now, clock, self.wake);
        let (words, text) = (record_words(fields), site.text::<F>());
        let head = match self.make_room(now, words, text, flags, is_counted) {
            Ok(head) => head,
            Err(why) => return why,
        };
        let new = NewRecord { site, fields, flags, is_counted };
        write(self.memory.span(head, words), now, new);
        self.publish(self.state, head + words, self.fenced);
        leave(self.state, now);
        Emit::Recorded
    }

    /// Begins an emit and returns its timestamp, nonzero. Until [`leave`] or [`give_up`], all other emits of
    /// this client fail. Calls `wake` if the emit follows a pause.
    ///
    /// # Errors
    /// [`Emit::Busy`], counted, if this emit interrupts another emit.
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

    /// Returns whether a signal handler's emit has overtaken the emit at `now`, or whether the emit at `now`
    /// follows a pause.
    #[inline(always)]
    fn is_rare(&self, now: u64) -> bool {
        // One comparison covers both cases: a negative difference wraps to more than any pause.
        now.wrapping_sub(self.state.last.load(Relaxed)) > self.pause
    }

    /// Begins an emit that a signal handler's emit has overtaken, or that follows a pause. Returns its
    /// timestamp.
    #[cold]
    #[inline(never)]
    fn enter_rarely(&self, mut now: u64, clock: impl Fn() -> u64, wake: Option<&dyn Wake>) -> u64 {
        let state = self.state;
        if self.system_clock.is_some() || now < state.last.load(Relaxed) {
            // A signal handler may have emitted after the clock was read and before `busy` was set.
            now = self.system_clock.map_or_else(clock, |clock| clock());
            state.busy.store(now, Relaxed);
        }
        // If `now` is still below `last`, the clock was set back, perhaps by a restore, and the pause is
        // unknown.
        if now.wrapping_sub(state.last.load(Relaxed)) > self.pause
            && let Some(wake) = wake
        {
            // The reader may rest. The store to `last` comes first: if this event is dropped, the next emit
            // does not count the same pause again.
            state.last.store(now, Relaxed);
            wake.wake();
        }
        now
    }

    /// Publishes the head, after all words below it were stored.
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
    pub(super) fn publish(&self, state: &ProducerState, head: u64, fenced: bool) {
        self.publish_head(head, fenced);
        compiler_fence(Ordering::SeqCst);
        state.head.store(head, Relaxed);
        state.sequence.store(state.sequence.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts an event that is emitted in the middle of another emit of this producer, as by a signal handler.
    #[cold]
    #[inline(never)]
    fn interrupted(&self) -> Emit {
        self.state.count(&self.state.lost_busy);
        // After a revocation, the client may belong to another process.
        if self.state.is_leased() {
            self.publish_losses();
        }
        Emit::Busy
    }

    /// Prepares the ring on the slow path: announces a schema, publishes losses, reads tail and opens blocks.
    /// Returns the position at which the caller may write the record.
    #[cold]
    #[inline(never)]
    fn make_room(
        &self,
        now: u64,
        words: u64,
        text: Option<&dyn Text>,
        flags: Flags,
        is_counted: bool,
    ) -> Result<u64, Emit> {
        let state = self.state;
        if !state.is_leased() {
            give_up(state);
            return Err(Emit::Unleased);
        }
        if let Some(text) = text {
            schema_log::announce(&self.memory, state, text, self.fenced);
        }
        self.publish_losses();
        let head = state.head.load(Relaxed);
        if head + words <= state.room.load(Relaxed) {
            return Ok(head);
        }
        let commit = flags.contains(Flags::REFERENCE_POINT);
        let room = self.announce(now, commit).and_then(|()| self.find_room(words, false, commit));
        if room.is_none() {
            // The emit ends before the event is counted, because an interruption of the counting must not
            // count as an interruption of the emit.
            give_up(state);
            compiler_fence(Ordering::SeqCst);
            if is_counted {
                // Publishes the totals at once, because the program may end before the next event.
                self.count_full();
            }
        }
        room.ok_or(Emit::Full)
    }

    /// Announces the lease at `now` unless the lease record is in the ring already, and publishes losses. If
    /// an emit of this producer is in progress, the function does nothing.
    pub fn refresh(&self, now: u64) {
        let state = self.state;
        if state.busy.load(Relaxed) != 0 || !state.is_leased() || self.enter(|| now, None).is_err()
        {
            return;
        }
        self.publish_losses();
        // If the ring is full, the next emit or refresh tries again.
        let _ = self.announce(now, false);
        give_up(state);
    }

    /// Gives up the client when the thread ends, and publishes the totals. If a `longjmp` has left an emit,
    /// the event counts as lost unless it was published or the host has answered it.
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
#[allow(unsafe_code)] // the macro's section, which is not checked in other crates
mod tests {
    use super::*;
    use crate::event_type;
    use crate::record::ClockKind;
    use crate::ring::LeaseInfo;
    use crate::ring::fence::AT_FENCE;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// The part of memory that a host may already see when the producer reaches a fence.
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
        let info = LeaseInfo { pid: 1, tid: 2, name: "test" };
        let producer =
            Producer::lease(memory, state, Lease::new(7, ClockKind::Tsc, 1, &info), true);
        macro_rules! emit {
            ($($name:literal)*) => {$({
                let (site, fields) = event_type!($name, n = 5u64);
                assert_eq!(producer.emit((site, fields), || 9), Emit::Recorded);
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
