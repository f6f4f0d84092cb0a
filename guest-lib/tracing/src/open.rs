//! Spans that are open, with the words of their begin.

use crate::values::AtomicWords;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed};

/// Number of spans in a block. A block takes 1 MiB.
const PLACES: usize = 4096;
/// Maximum number of blocks. The blocks have room for as many spans as a reader keeps open.
const BLOCKS: usize = 4;
/// Number of places in a block where a span may be. Even if a quarter of a block's places are taken, almost
/// every span finds a free place among 64 places.
const PROBES: usize = 64;
/// Maximum number of words of a begin: the span's id, its parent's id, and its fields.
pub const WORDS: usize = 28;
/// Span id that a place holds while a thread fills the place. No span has this id.
const TAKEN: u64 = u64::MAX;

/// A span, from its making to its close.
#[derive(Debug)]
#[repr(align(64))]
pub struct Open {
    /// Index of the span's place in the code, index of this place's schema, and number of words of the begin.
    kind: AtomicU64,
    /// Upper 32 bits: id of the thread inside the span. Lower 32 bits: number of nested entries of this
    /// thread. 0 if no thread is inside the span.
    inside: AtomicU64,
    /// Thread of the first entry. 0 if the span was not entered.
    first: AtomicU32,
    /// Whether the span was entered again after its first entry.
    is_again: AtomicU32,
    /// Whether the span's begin was recorded. If the begin was not recorded, no other event of the span is
    /// recorded.
    pub is_recorded: AtomicBool,
    words: [AtomicU64; WORDS],
}

/// Effect of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    First,
    Later,
    /// The thread is in the span already.
    Nested,
}

/// Effect of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    NeverEntered,
    /// The span was entered once, on the thread that closes it.
    Plain,
    /// The span was entered several times, or on another thread.
    Parted,
}

impl Open {
    fn new() -> Open {
        Open {
            kind: AtomicU64::new(0),
            inside: AtomicU64::new(0),
            first: AtomicU32::new(0),
            is_again: AtomicU32::new(0),
            is_recorded: AtomicBool::new(false),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Returns the index of the place in the code, the index of the place's schema, and the words of the
    /// begin.
    #[inline]
    pub fn get(&self) -> (u16, u8, AtomicWords<'_>) {
        let kind = self.kind.load(Relaxed);
        let len = (kind >> 24) as usize;
        (kind as u16, (kind >> 16) as u8, AtomicWords(&self.words[..len.min(WORDS)]))
    }

    /// Returns the id that the layer gave the span.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.words[0].load(Relaxed)
    }

    /// Takes an entry of this thread.
    #[inline]
    pub fn enter(&self) -> Entry {
        let thread = thread();
        let inside = self.inside.load(Relaxed);
        if inside == 0 {
            // If two threads enter at once, only the thread that stores last is noted. Every exit of the
            // other thread then looks as if this thread had left the span.
            self.inside.store(u64::from(thread) << 32 | 1, Relaxed);
        } else if inside >> 32 == u64::from(thread) {
            self.inside.store(inside + 1, Relaxed);
            return Entry::Nested;
        }
        if self.first.load(Relaxed) == 0
            && self.first.compare_exchange(0, thread, Relaxed, Relaxed).is_ok()
        {
            return Entry::First;
        }
        if self.is_again.load(Relaxed) == 0 {
            self.is_again.store(1, Relaxed);
        }
        Entry::Later
    }

    /// Takes an exit of this thread. Returns whether the thread has left the span.
    #[inline]
    pub fn exit(&self) -> bool {
        let inside = self.inside.load(Relaxed);
        if inside >> 32 != u64::from(thread()) {
            return true;
        }
        let has_left = inside as u32 <= 1;
        self.inside.store(if has_left { 0 } else { inside - 1 }, Relaxed);
        has_left
    }

    /// Returns which kind of close occurs if this thread closes the span.
    #[inline]
    pub fn close(&self) -> Close {
        match self.first.load(Relaxed) {
            0 => Close::NeverEntered,
            first if first == thread() && self.is_again.load(Relaxed) == 0 => Close::Plain,
            _ => Close::Parted,
        }
    }
}

/// Returns the calling thread's number. Threads are numbered from 1, in the order of their first entries into
/// spans.
#[inline]
fn thread() -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        static THREAD: Cell<u32> = const { Cell::new(0) };
    }
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(THREADS.fetch_add(1, Relaxed) + 1);
        }
        thread.get()
    })
}

/// A place that is being filled. The place is free again if the claim is dropped.
#[derive(Debug)]
pub struct Claim<'a> {
    id: &'a AtomicU64,
    open: &'a Open,
}

impl<'a> Claim<'a> {
    /// Returns the place's words.
    #[inline]
    pub fn words(&self) -> &'a [AtomicU64] {
        &self.open.words
    }

    /// Keeps a span of `words` words. `callsite` is the index of the span's place in the code, and `schema`
    /// is the index of the span's schema.
    #[inline]
    pub fn keep(self, id: u64, callsite: u16, schema: u8, words: usize) {
        let kind = u64::from(callsite) | u64::from(schema) << 16;
        self.open.kind.store(kind | (words as u64) << 24, Relaxed);
        self.open.inside.store(0, Relaxed);
        self.open.first.store(0, Relaxed);
        self.open.is_again.store(0, Relaxed);
        self.open.is_recorded.store(false, Relaxed);
        // ORDERING: pairs with the Acquire in `get`: the words are the span's.
        self.id.store(id, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // ORDERING: as in `remove`.
        self.id.store(0, Ordering::Release);
    }
}

/// Places of spans. A span's number in `Registry` is stored last, so a thread that finds the number finds the
/// span.
#[derive(Debug)]
struct Block {
    /// Id of the span in each place; 0 if the place is free.
    ids: Box<[AtomicU64]>,
    places: Box<[Open]>,
}

impl Block {
    fn new() -> Block {
        Block {
            ids: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            places: (0..PLACES).map(|_| Open::new()).collect(),
        }
    }

    fn claim(&self, id: u64) -> Option<Claim<'_>> {
        probes(id).find_map(|at| {
            // ORDERING: the Acquire pairs with the Release in `remove`. The thread that removed the last span
            // had read that span's words before.
            let is_free = self.ids[at].load(Relaxed) == 0
                && self.ids[at].compare_exchange(0, TAKEN, Ordering::Acquire, Relaxed).is_ok();
            // `then_some` would make a claim in any case. The drop of this claim would free another span's
            // place.
            is_free.then(|| Claim { id: &self.ids[at], open: &self.places[at] })
        })
    }

    #[inline(always)]
    fn find(&self, id: u64) -> Option<usize> {
        // ORDERING: pairs with the Release in `keep`.
        probes(id).find(|at| self.ids[*at].load(Ordering::Acquire) == id)
    }
}

/// The spans that are open. The first block is made at once, and each further block when the blocks before it
/// are full.
#[derive(Debug)]
pub struct OpenSpans {
    first: Block,
    others: [OnceLock<Block>; BLOCKS - 1],
}

impl OpenSpans {
    pub fn new() -> OpenSpans {
        OpenSpans { first: Block::new(), others: [const { OnceLock::new() }; BLOCKS - 1] }
    }

    /// Takes a place for a new span. Returns `None` if no place is free.
    #[inline]
    pub fn claim(&self, id: u64) -> Option<Claim<'_>> {
        self.first.claim(id).or_else(|| self.claim_in_others(id))
    }

    #[cold]
    fn claim_in_others(&self, id: u64) -> Option<Claim<'_>> {
        self.others.iter().find_map(|block| block.get_or_init(Block::new).claim(id))
    }

    /// Returns a span that is kept.
    #[inline]
    pub fn get(&self, id: u64) -> Option<&Open> {
        self.find(id).map(|(block, at)| &block.places[at])
    }

    /// Gives a span's place up, after `close` has seen the span.
    #[inline]
    pub fn remove(&self, id: u64, close: impl FnOnce(&Open)) {
        if let Some((block, at)) = self.find(id) {
            close(&block.places[at]);
            // ORDERING: pairs with the Acquire in `claim`.
            block.ids[at].store(0, Ordering::Release);
        }
    }

    #[inline]
    fn find(&self, id: u64) -> Option<(&Block, usize)> {
        match self.first.find(id) {
            Some(at) => Some((&self.first, at)),
            None => self.find_in_others(id),
        }
    }

    #[cold]
    fn find_in_others(&self, id: u64) -> Option<(&Block, usize)> {
        let mut others = self.others.iter().map_while(OnceLock::get);
        others.find_map(|block| Some((block, block.find(id)?)))
    }
}

/// Returns the places of a block where a span may be.
#[inline]
fn probes(id: u64) -> impl Iterator<Item = usize> {
    // A span's id in `Registry` has three parts: a place in the table of `Registry` in the low bits, a
    // thread's id in bits 38 to 50, and a generation in the bits above. The hash leaves out the generation.
    // So a new span in an old span's place in `Registry` also gets the old span's place in this table. The
    // lines of this place are in the cache.
    let hash = (id % (1 << 51)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (0..PROBES).map(move |n| (hash as usize + n) % PLACES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the id that `Registry` gives the span in a place of a thread's table.
    fn number(thread: u64, place: u64) -> u64 {
        thread << 38 | (place + 1)
    }

    fn keep(open: &OpenSpans, id: u64) -> bool {
        let Some(claim) = open.claim(id) else { return false };
        claim.words()[0].store(id, Relaxed);
        claim.keep(id, 1, 2, 1);
        true
    }

    #[test]
    fn a_span_that_is_closed_makes_room() {
        let open = OpenSpans::new();
        // Opens far more spans than there are places, one after the other.
        for id in 1..100_000 {
            assert!(keep(&open, id));
            let (callsite, schema, AtomicWords(words)) = open.get(id).unwrap().get();
            assert_eq!((callsite, schema, words.len()), (1, 2, 1));
            open.remove(id, |_| ());
            assert!(open.get(id).is_none());
        }
    }

    #[test]
    fn a_place_that_is_not_filled_to_the_end_is_free() {
        let open = OpenSpans::new();
        for id in 1..100_000 {
            drop(open.claim(id).unwrap());
        }
    }

    #[test]
    fn the_spans_of_any_threads_find_places_in_the_first_block() {
        for threads in [1, 2, 3, 8, 64, 1024] {
            let open = OpenSpans::new();
            let each = 1024 / threads;
            for id in (0..threads).flat_map(|of| (0..each).map(move |n| number(of, n))) {
                assert!(keep(&open, id), "{threads} threads");
            }
            assert!(open.others.iter().all(|block| block.get().is_none()), "{threads} threads");
        }
    }

    #[test]
    fn ten_thousand_spans_are_kept_and_too_many_harm_no_other() {
        let open = OpenSpans::new();
        let kept = Vec::from_iter((1..40_000).filter(|id| keep(&open, *id)));
        assert!((10_000..=BLOCKS * PLACES).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[..10_000], Vec::from_iter(1..=10_000));
        for id in kept {
            assert_eq!(open.get(id).unwrap().serial(), id);
        }
    }

    #[test]
    fn a_span_is_plain_until_it_is_entered_again() {
        let open = Open::new();
        assert_eq!(open.close(), Close::NeverEntered);
        assert_eq!((open.enter(), open.enter()), (Entry::First, Entry::Nested));
        assert_eq!((open.exit(), open.exit(), open.close()), (false, true, Close::Plain));
        assert_eq!((open.enter(), open.exit(), open.close()), (Entry::Later, true, Close::Parted));
    }

    #[test]
    fn a_span_that_another_thread_closes_is_parted() {
        let open = Open::new();
        std::thread::scope(|scope| {
            scope.spawn(|| (open.enter(), open.exit()));
        });
        assert_eq!(open.close(), Close::Parted);
    }

    #[test]
    fn two_threads_in_one_span_both_leave_it() {
        let open = Open::new();
        open.enter();
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!((open.enter(), open.exit()), (Entry::Later, true)));
        });
        assert!(open.exit());
    }
}
