//! The producer: what an emit is.
//!
//! The hot path loads private memory only; a load from a BAR that is mapped
//! uncached costs hundreds of nanoseconds. State is kept in atomics with
//! relaxed loads and stores, because a signal handler or an interrupt may emit
//! in the middle of an emit on the same thread.

use super::lease::{Lease, walk};
use super::state::{BY_OTHER, BY_OWNER, KNOWN, ProducerState};
use super::{BLOCK_HEADER_WORDS, ClientMemory, schema_log};
use crate::atomic::{AtomicU64, Ordering, Ordering::Relaxed, compiler_fence, fence, spin_loop};
use crate::config::RingMode;
use crate::event::{Fields, Site, Text};
use crate::layout::{SLOT_HEADER_WORDS, SLOT_WORDS, guest_page, host_page};
use crate::prefetch::prefetch_for_store;
use crate::record::{Flags, HEADER_WORDS, Header, id};

/// No ring gets this far: at a word a nanosecond it takes 36 years.
const SANE: u64 = 1 << 60;

/// Words ahead of a record whose cache line is fetched: at the pace of an emit
/// it comes before it is needed; a quarter of it is too little.
const AHEAD: usize = 128;

/// What became of an emit. Nothing that a caller has to handle: every drop is
/// counted and told to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emit {
    /// The record is published.
    Recorded,
    /// No room: counted in `lost_full`.
    Full,
    /// In the middle of another emit: counted in `lost_busy`.
    Busy,
    /// This producer has no lease; not counted, lease and emit again.
    Unleased,
}

/// What an emit is about, beside its payload's words.
#[derive(Clone, Copy)]
struct What<'a> {
    id: u32,
    flags: Flags,
    /// Must be known to the host first.
    text: Option<&'a dyn Text>,
    /// Of the payload.
    words: usize,
    /// A full ring is counted.
    last_try: bool,
}

impl<'a> What<'a> {
    #[inline(always)]
    fn event<S: Site + 'a, F: Fields>(site: S, fields: &F) -> Self {
        What {
            id: site.id::<F>(),
            flags: Flags::empty(),
            text: Some(site.text::<F>()),
            words: fields.words(),
            last_try: true,
        }
    }
}

impl What<'_> {
    #[inline(always)]
    fn record_words(&self) -> u64 {
        (HEADER_WORDS + self.words) as u64
    }
}

/// Stores a payload that comes in two parts.
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

/// Who empties a ring, for a producer that fills it fast.
pub trait Wake: Sync + core::fmt::Debug {
    /// The ring is at least a quarter full. Called in the middle of an emit,
    /// at most once a block: it must not block, and emit nothing.
    fn wake(&self);
}

/// The guest's side of one client's ring: one thread's, as its state is, and the
/// only one of that state.
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
pub struct Producer<'m> {
    memory: ClientMemory<'m>,
    state: &'m ProducerState,
    lease: Lease,
    /// The mapping is not write-back: stores need fences to stay in order.
    fenced: bool,
    wake: Option<&'m dyn Wake>,
}

impl<'m> Producer<'m> {
    /// Takes the client over from whoever had it: reads where its ring stands
    /// (the only loads from shared memory that are not on a slow path), goes
    /// on with its sequence and totals, and announces the lease.
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
        // A predecessor may have left nonsense. Then this client begins anew,
        // and says so at once: the host counts the jump and follows.
        let sane = published <= SANE
            && tail <= published
            && (memory.mode() == RingMode::Overwrite || published - tail <= memory.capacity());
        let head = if sane { published } else { 0 };
        let sequence = walk(&memory, head).0;
        if !sane {
            guest[guest_page::HEAD].store(head, Ordering::Release);
        }
        state.head.store(head, Relaxed);
        state.limit.store(0, Relaxed);
        state.sequence.store(sequence, Relaxed);
        state.fresh.store(1, Relaxed);
        state.lost_full.store(guest[guest_page::LOST_FULL].load(Relaxed), Relaxed);
        state.lost_busy.store(guest[guest_page::LOST_BUSY].load(Relaxed), Relaxed);
        let unattached = guest[guest_page::LOST_UNATTACHED].load(Relaxed);
        state.lost_unattached.store(unattached, Relaxed);
        state.untold.store(0, Relaxed);
        state.asked.store(0, Relaxed);
        state.last.store(lease.words[0], Relaxed);
        // A jump may have left it so; another thread's turn ends by itself.
        let _ = state.telling.compare_exchange(BY_OWNER, 0, Relaxed, Relaxed);
        state.schema_len.store(guest[guest_page::SCHEMA_LEN].load(Relaxed), Relaxed);
        state.known_len.store(0, Relaxed);
        for slot in &state.known {
            slot.store(0, Relaxed);
        }
        // ORDERING: pairs with the Acquire in `tell_losses_of`: the totals are
        // this lease's.
        state.token.store(lease.words[HEADER_WORDS], Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        state.busy.store(0, Relaxed);
        let producer = Producer { memory, state, lease, fenced, wake: None };
        producer.refresh(lease.words[0]);
        producer
    }

    /// The same, waking somebody when the ring fills. For rings that discard.
    pub fn waking(self, wake: &'m dyn Wake) -> Self {
        Producer { wake: Some(wake), ..self }
    }

    /// The client's memory.
    pub fn memory(&self) -> &ClientMemory<'m> {
        &self.memory
    }

    /// The private state.
    pub fn state(&self) -> &'m ProducerState {
        self.state
    }

    /// Emits a typed event with the timestamp `now`, nonzero. Never fails, allocates,
    /// blocks or formats.
    #[inline(always)]
    pub fn emit<S: Site, F: Fields>(&self, site: S, now: u64, fields: F) -> Emit {
        self.emit_by(site, || now, fields)
    }

    /// As [`Producer::emit`], with a clock: it is read again where a signal
    /// handler has emitted since, so that a client's timestamps never go
    /// backwards.
    #[inline(always)]
    pub fn emit_by<S: Site, F: Fields>(&self, site: S, clock: impl Fn() -> u64, fields: F) -> Emit {
        let what = move || What::event(site, &fields);
        self.emit_with(clock, what, move |out| fields.put(out), |_| {})
    }

    /// As [`Producer::emit_by`], with flags. `patient`: a full ring is not counted.
    #[inline(always)]
    pub fn emit_flagged<S: Site, F: Fields>(
        &self,
        site: &S,
        clock: impl Fn() -> u64,
        flags: Flags,
        fields: F,
        patient: bool,
    ) -> Emit {
        let what = || What { flags, last_try: !patient, ..What::event(*site, &fields) };
        self.emit_with(clock, what, |out| fields.put(out), |_| {})
    }

    /// Emits a record whose words are at hand, at `now`, nonzero: reserved
    /// ids, and what a host thread writes on a guest's behalf. A record flagged
    /// as a reference point may use the part of the ring that is reserved for
    /// those.
    #[inline]
    pub fn emit_words(
        &self,
        now: u64,
        id: u32,
        flags: Flags,
        prefix: &[u64],
        payload: &[u64],
    ) -> Emit {
        self.emit_words_patiently(|| now, id, flags, prefix, payload, false)
    }

    /// As [`Producer::emit_words`], with a clock as in [`Producer::emit_by`]
    /// and `patient` as in [`Producer::emit_flagged`].
    #[inline]
    pub fn emit_words_patiently(
        &self,
        clock: impl Fn() -> u64,
        id: u32,
        flags: Flags,
        prefix: &[u64],
        payload: &[u64],
        patient: bool,
    ) -> Emit {
        let words = prefix.len() + payload.len();
        let what = || What { id, flags, text: None, words, last_try: !patient };
        self.emit_with(clock, what, |out| put(out, prefix, payload), |_| {})
    }

    /// Emits a record of `words` words that `put` stores, at `now`, nonzero and
    /// no earlier than the last; a full ring is not counted. Only for a thread
    /// on which nothing that emits to this ring can interrupt it: it keeps no
    /// account for that.
    #[inline(always)]
    pub fn emit_alone(
        &self,
        now: u64,
        id: u32,
        flags: Flags,
        words: usize,
        put: impl FnOnce(&[AtomicU64]),
    ) -> Emit {
        let what = What { id, flags, text: None, words, last_try: false };
        let head = self.state.head.load(Relaxed);
        let head = match head + what.record_words() <= self.state.limit.load(Relaxed) {
            true => head,
            false => match self.make_room(what) {
                Ok(head) => head,
                Err(why) => return why,
            },
        };
        self.record(head, now, what, put);
        Emit::Recorded
    }

    /// Emits a kernel-stamped point, then calls `fire`, which stores the
    /// record's timestamp to STAMP: nothing else of this client comes between.
    pub fn stamp(&self, clock: impl Fn() -> u64, fire: impl FnOnce(u64)) -> Emit {
        let what =
            || What { id: id::STAMP, flags: Flags::STAMP, text: None, words: 0, last_try: true };
        self.emit_with(clock, what, |_| {}, fire)
    }

    /// What every emit is. `put` stores the payload, `fire` comes after the
    /// record is published and before the emit's end. `what` is asked once
    /// more where the ring is not ready: a value handed on from here would be
    /// in memory all the way, and its constants loaded from there.
    #[inline(always)]
    fn emit_with<'a>(
        &self,
        clock: impl Fn() -> u64,
        what: impl Fn() -> What<'a>,
        put: impl FnOnce(&[AtomicU64]),
        fire: impl FnOnce(u64),
    ) -> Emit {
        let now = match self.enter(clock) {
            Ok(now) => now,
            Err(busy) => return busy,
        };
        let state = self.state;
        let head = state.head.load(Relaxed);
        let this = what();
        let known =
            this.text.is_none() || state.known[this.id as usize % KNOWN].load(Relaxed) == this.id;
        if !known || head + this.record_words() > state.limit.load(Relaxed) {
            return self.emit_slowly(now, what(), put, fire);
        }
        self.write(head, now, this, put, fire)
    }

    /// The rest of an emit that needs room made first. A function of its own,
    /// so that nothing has to be kept across a call on the hot path.
    #[cold]
    #[inline(never)]
    fn emit_slowly(
        &self,
        now: u64,
        what: What<'_>,
        put: impl FnOnce(&[AtomicU64]),
        fire: impl FnOnce(u64),
    ) -> Emit {
        match self.make_room(what) {
            Ok(head) => self.write(head, now, what, put, fire),
            Err(why) => why,
        }
    }

    #[inline(always)]
    fn write(
        &self,
        head: u64,
        now: u64,
        what: What<'_>,
        put: impl FnOnce(&[AtomicU64]),
        fire: impl FnOnce(u64),
    ) -> Emit {
        self.record(head, now, what, put);
        fire(now);
        self.leave(now);
        Emit::Recorded
    }

    /// Writes the record and publishes it.
    #[inline(always)]
    fn record(&self, head: u64, now: u64, what: What<'_>, put: impl FnOnce(&[AtomicU64])) {
        let words = what.record_words();
        let record = self.memory.span(head, words);
        // The host's CPU has read what is overwritten there.
        prefetch_for_store(record.as_ptr().wrapping_add(AHEAD));
        self.order_before();
        record[0].store(now, Relaxed);
        record[1].store(Header::meta(what.id, what.words as u16, what.flags.bits()), Relaxed);
        put(&record[HEADER_WORDS..]);
        self.publish(head + words);
    }

    /// Enters an emit and gives its timestamp, nonzero; nothing else of this
    /// client goes on until [`Producer::leave`].
    ///
    /// # Errors
    /// In the middle of another one: counted.
    #[inline(always)]
    fn enter(&self, clock: impl Fn() -> u64) -> Result<u64, Emit> {
        let state = self.state;
        let mut now = clock();
        compiler_fence(Ordering::SeqCst);
        if state.busy.load(Relaxed) != 0 {
            return Err(self.interrupted());
        }
        state.busy.store(now, Relaxed);
        compiler_fence(Ordering::SeqCst);
        if now < state.last.load(Relaxed) {
            // A handler came between the clock and `busy`.
            now = clock();
            state.busy.store(now, Relaxed);
        }
        Ok(now)
    }

    /// Ends an emit that did what it was for at `now`.
    #[inline(always)]
    fn leave(&self, now: u64) {
        self.state.last.store(now, Relaxed);
        self.give_up();
    }

    /// Ends an emit.
    #[inline(always)]
    fn give_up(&self) {
        compiler_fence(Ordering::SeqCst);
        self.state.busy.store(0, Relaxed);
    }

    /// Writes the v2 slot for this event and calls `fire` with its timestamp,
    /// and the slot's number, which stores that to EMIT: nothing else of this
    /// client comes between the timestamp and `fire`'s end. The event's schema
    /// and every earlier record of the client are visible then.
    ///
    /// # Errors
    /// [`Emit::Busy`] (counted), [`Emit::Unleased`], or [`Emit::Full`]
    /// (counted) if the event is larger than a slot.
    pub fn slot<S: Site, F: Fields, R>(
        &self,
        site: S,
        clock: impl Fn() -> u64,
        seq: impl FnOnce() -> u32,
        cpu: u32,
        fields: F,
        fire: impl FnOnce(u64, u32) -> R,
    ) -> Result<R, Emit> {
        let now = self.enter(clock)?;
        if !self.state.is_leased() {
            self.give_up();
            return Err(Emit::Unleased);
        }
        let id = site.id::<F>();
        if self.state.known[id as usize % KNOWN].load(Relaxed) != id {
            schema_log::announce(&self.memory, self.state, site.text::<F>());
        }
        self.tell_losses();
        let payload = fields.words();
        if payload > SLOT_WORDS {
            self.give_up();
            self.count(&self.state.lost_full);
            return Err(Emit::Full);
        }
        // In here: no handler's point can take the same number.
        let seq = seq();
        let slot = &self.memory.guest[guest_page::SLOT..][..SLOT_HEADER_WORDS + SLOT_WORDS];
        // First the word that a host may be looking at for the point before.
        slot[3].store(payload as u64, Relaxed);
        slot[0].store(u64::from(seq) | u64::from(id) << 32, Relaxed);
        // ORDERING: pairs with the Acquire fence in `slot::serve`: a host that
        // is late and finds any of what follows, finds the number too.
        fence(Ordering::Release);
        slot[1].store(u64::from(site.name_hash()) | u64::from(cpu) << 32, Relaxed);
        slot[2].store(now, Relaxed);
        fields.put(&slot[SLOT_HEADER_WORDS..]);
        // ORDERING: the store to EMIT is a volatile access that the CPU orders
        // after these: x86 by itself, others and write-combining mappings by
        // this fence.
        if self.fenced || !cfg!(target_arch = "x86_64") {
            store_fence();
        }
        // Whether the host had it, should a jump leave it here.
        self.state.asked.store(1 << 32 | u64::from(seq), Relaxed);
        compiler_fence(Ordering::SeqCst);
        let fired = fire(now, seq);
        compiler_fence(Ordering::SeqCst);
        self.state.asked.store(0, Relaxed);
        self.leave(now);
        Ok(fired)
    }

    /// In overwrite mode a consumer may be reading what is overwritten next.
    #[inline(always)]
    fn order_before(&self) {
        // ORDERING: pairs with the Acquire fence in `Consumer::pull`: whoever
        // sees one of the words stored next sees the head published before.
        fence(Ordering::Release);
    }

    #[inline(always)]
    fn publish(&self, head: u64) {
        let state = self.state;
        if self.fenced {
            store_fence();
        }
        // ORDERING: pairs with the Acquire load of head in `load_head` of the
        // consumer: the record is there.
        self.memory.guest[guest_page::HEAD].store(head, Ordering::Release);
        if self.fenced {
            store_fence();
        }
        compiler_fence(Ordering::SeqCst);
        state.head.store(head, Relaxed);
        state.sequence.store(state.sequence.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts an event that came in the middle of another. Only private
    /// memory: the interrupted emit may be anywhere.
    #[cold]
    #[inline(never)]
    fn interrupted(&self) -> Emit {
        self.count(&self.state.lost_busy);
        Emit::Busy
    }

    fn count(&self, total: &AtomicU64) {
        // A handler may interrupt this, so not load and store.
        total.fetch_add(1, Relaxed);
        // ORDERING: pairs with the Acquire in `tell`: who takes it sees the
        // count above.
        self.state.untold.store(1, Ordering::Release);
    }

    /// The slow path: announces a schema, opens blocks, looks at tail, tells
    /// losses. Gives the position where `words` words may be written.
    #[cold]
    #[inline(never)]
    fn make_room(&self, what: What<'_>) -> Result<u64, Emit> {
        let state = self.state;
        if !state.is_leased() {
            self.give_up();
            return Err(Emit::Unleased);
        }
        if let Some(text) = what.text {
            schema_log::announce(&self.memory, state, text);
        }
        self.tell_losses();
        let commit = what.flags.contains(Flags::REFERENCE_POINT);
        let room = self.find_room(what.record_words(), commit);
        if room.is_none() {
            // First out of the emit, then count: an interrupted count must
            // not look like an interrupted emit.
            self.give_up();
            compiler_fence(Ordering::SeqCst);
            if what.last_try {
                self.count(&state.lost_full);
            }
        }
        room.ok_or(Emit::Full)
    }

    fn find_room(&self, words: u64, commit: bool) -> Option<u64> {
        let (state, memory) = (self.state, &self.memory);
        if words > memory.max_record_words() {
            return None;
        }
        let head = state.head.load(Relaxed);
        let block = memory.block_words();
        let fresh = state.fresh.load(Relaxed) == 1;
        let block_end = memory.block_start(head) + block;
        // A block's header and the lease record come with its first record.
        let opens = fresh || head == memory.block_start(head) || head + words > block_end;
        let lease = if fresh { self.lease.len } else { 0 };
        let lease_alone = lease + words > memory.max_record_words();
        let (start, end) = if !opens {
            (head, head + words)
        } else {
            let start = if head == memory.block_start(head) { head } else { block_end };
            if lease_alone {
                // The lease record fills a block of its own, all but.
                (start, start + block + BLOCK_HEADER_WORDS + words)
            } else {
                (start, start + BLOCK_HEADER_WORDS + lease + words)
            }
        };
        let limit = match memory.mode() {
            RingMode::Overwrite => u64::MAX,
            RingMode::Discard => {
                // ORDERING: pairs with the Release in `Consumer::commit`: the
                // host has read the words that are overwritten now.
                let tail = memory.host[host_page::TAIL].load(Ordering::Acquire);
                // The host could be wrong too; then the ring counts as full.
                let used = end.checked_sub(tail)?;
                if let Some(wake) = self.wake
                    && used >= memory.capacity() / 4
                {
                    wake.wake();
                }
                if used > memory.capacity() - if commit { 0 } else { memory.reserve() } {
                    return None;
                }
                tail + memory.capacity() - memory.reserve()
            }
        };
        if !opens {
            state.limit.store(block_end.min(limit), Relaxed);
            return Some(head);
        }
        self.order_before();
        self.pad(head, start);
        let mut at = self.open_block(start);
        if fresh {
            for (to, &from) in memory.span(at, lease).iter().zip(&self.lease.words) {
                to.store(from, Relaxed);
            }
            at += lease;
            state.sequence.store(state.sequence.load(Relaxed).wrapping_add(1), Relaxed);
            if lease_alone {
                self.pad(at, start + block);
                at = self.open_block(start + block);
            }
            state.fresh.store(0, Relaxed);
        }
        state.head.store(at, Relaxed);
        state.limit.store((memory.block_start(at) + block).min(limit), Relaxed);
        Some(at)
    }

    /// Whether this many words would find room now; in overwrite mode they
    /// always do. Loads from shared memory: not for the hot path.
    pub fn has_room(&self, words: u64) -> bool {
        let memory = &self.memory;
        // ORDERING: only a question; `find_room` looks again.
        let tail = memory.host[host_page::TAIL].load(Relaxed);
        let used = self.state.head.load(Relaxed).saturating_sub(tail);
        let most = memory.capacity() - memory.reserve();
        memory.mode() == RingMode::Overwrite || used.saturating_add(words) <= most
    }

    /// Fills from `from` to the block's end `to`; a single word is its own pad.
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

    /// Publishes the running totals of dropped events, inside of an emit.
    fn tell_losses(&self) {
        let state = self.state;
        // If another thread is at it, what it misses stays untold.
        if state.untold.load(Relaxed) != 0
            && state.telling.compare_exchange(0, BY_OWNER, Ordering::Acquire, Relaxed).is_ok()
        {
            tell(&self.memory, state);
            state.telling.store(0, Ordering::Release);
        }
    }

    /// Publishes the totals of a producer that another thread has, and that
    /// may be idle.
    pub fn tell_losses_of(memory: &ClientMemory<'_>, state: &ProducerState) {
        if state.untold.load(Relaxed) == 0
            || state.telling.compare_exchange(0, BY_OTHER, Ordering::Acquire, Relaxed).is_err()
        {
            return;
        }
        // Looked at in our turn: `release` waits for it, and only then gives
        // the client to others.
        if state.token.load(Ordering::Acquire) != 0 {
            tell(memory, state);
        }
        state.telling.store(0, Ordering::Release);
    }

    /// Moves `untold`, events of threads of this process without a client, to the
    /// running total of a client that any of its threads has, and publishes it.
    /// `false`, and nothing moved, if the client is not leased, or just now
    /// publishes other totals. No signal handler may leave the call by a jump.
    pub fn tell_unattached(
        memory: &ClientMemory<'_>,
        state: &ProducerState,
        untold: &AtomicU64,
    ) -> bool {
        // ORDERING: pairs with the Release below and in `release`: the last turn's total.
        if state.telling.compare_exchange(0, BY_OTHER, Ordering::Acquire, Relaxed).is_err() {
            return false;
        }
        // Looked at in our turn, as in `tell_losses_of`. ORDERING: pairs with the Release in
        // `lease`: the total is that lease's.
        let leased = state.token.load(Ordering::Acquire) != 0;
        if leased {
            let more = untold.swap(0, Relaxed);
            let total = state.lost_unattached.load(Relaxed).wrapping_add(more);
            state.lost_unattached.store(total, Relaxed);
            memory.guest[guest_page::LOST_UNATTACHED].store(total, Relaxed);
        }
        // ORDERING: pairs with the Acquire of the next turn.
        state.telling.store(0, Ordering::Release);
        leased
    }

    /// Outside of any emit, at `now`: announces the lease if it is not yet,
    /// tells losses.
    pub fn refresh(&self, now: u64) {
        let state = self.state;
        if state.busy.load(Relaxed) != 0 || !state.is_leased() || self.enter(|| now).is_err() {
            return;
        }
        self.tell_losses();
        if state.fresh.load(Relaxed) == 1
            && let Some(head) = self.find_room(0, false)
        {
            if self.fenced {
                store_fence();
            }
            // ORDERING: as in `publish`.
            self.memory.guest[guest_page::HEAD].store(head, Ordering::Release);
        }
        self.give_up();
    }

    /// The thread ends: gives the client up. If an emit was left by a jump,
    /// its event is counted as lost unless it was published, or the host has
    /// answered it. Tells the totals.
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
        // Another thread is done soon; our own turn was left by a jump.
        while state.telling.compare_exchange(0, BY_OWNER, Ordering::Acquire, Relaxed)
            == Err(BY_OTHER)
        {
            spin_loop();
        }
        tell(&self.memory, state);
        state.forget();
        state.telling.store(0, Ordering::Release);
    }
}

/// Publishes the running totals; in the caller's turn.
fn tell(memory: &ClientMemory<'_>, state: &ProducerState) {
    // ORDERING: pairs with the Release in `count`. Taken before the totals are
    // read: what is counted later is told later.
    state.untold.swap(0, Ordering::Acquire);
    memory.guest[guest_page::LOST_FULL].store(state.lost_full.load(Relaxed), Relaxed);
    memory.guest[guest_page::LOST_BUSY].store(state.lost_busy.load(Relaxed), Relaxed);
}

/// Orders all earlier stores, write-combining ones too, before later ones.
#[inline(always)]
fn store_fence() {
    // ORDERING: SeqCst is the one portable fence that also drains
    // write-combining buffers (mfence on x86, dmb ish on Arm).
    fence(Ordering::SeqCst);
}
