//! Spans that are open, with the words of their entries.

use crate::values::AtomicWords;
use std::sync::atomic::{AtomicU64, Ordering, Ordering::Relaxed};

/// Number of places.
const PLACES: usize = 1024;
/// Places that are looked at for a span.
const PROBES: usize = 8;
/// Words of an entry: the span's number and its fields.
pub const WORDS: usize = 30;
/// The number in a place that is being filled. It is not the number of a span.
const TAKEN: u64 = u64::MAX;

/// A place of a span, which is that span's from its making to its close. Its number is
/// stored last; a thread that asks for the span has its number after that.
#[derive(Debug)]
#[repr(align(64))]
pub struct Open {
    /// 0: free.
    id: AtomicU64,
    /// Number of the place in the code, number of its schema, number of words.
    kind: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Open {
    fn new() -> Open {
        Open {
            id: AtomicU64::new(0),
            kind: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Returns the numbers of the place in the code and of its schema, and the words.
    #[inline]
    pub fn get(&self) -> (u16, u8, AtomicWords<'_>) {
        let kind = self.kind.load(Relaxed);
        let len = (kind >> 24) as usize;
        (kind as u16, (kind >> 16) as u8, AtomicWords(&self.words[..len.min(WORDS)]))
    }
}

/// A place that is being filled. It is free again if that does not end.
#[derive(Debug)]
pub struct Claim<'a>(&'a Open);

impl<'a> Claim<'a> {
    /// Returns the place's words.
    #[inline]
    pub fn words(&self) -> &'a [AtomicU64] {
        &self.0.words
    }

    /// Keeps a span of so many words, with the numbers of its place in the code and of its
    /// schema.
    #[inline]
    pub fn keep(self, id: u64, callsite: u16, schema: u8, words: usize) {
        let kind = u64::from(callsite) | u64::from(schema) << 16;
        self.0.kind.store(kind | (words as u64) << 24, Relaxed);
        // ORDERING: pairs with the Acquire in `get`: the words are the span's.
        self.0.id.store(id, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // ORDERING: as in `remove`.
        self.0.id.store(0, Ordering::Release);
    }
}

/// The spans that are open.
#[derive(Debug)]
pub struct OpenSpans(Box<[Open]>);

impl OpenSpans {
    pub fn new() -> OpenSpans {
        OpenSpans((0..PLACES).map(|_| Open::new()).collect())
    }

    /// Takes a place for a new span. `None`: there is none.
    #[inline]
    pub fn claim(&self, id: u64) -> Option<Claim<'_>> {
        self.probe(id).find_map(|place| {
            // ORDERING: the Acquire pairs with the Release in `remove`: the last span's
            // thread has read its words.
            let is_free = place.id.load(Relaxed) == 0
                && place.id.compare_exchange(0, TAKEN, Ordering::Acquire, Relaxed).is_ok();
            // Not `then_some`: to drop a claim frees its place.
            is_free.then(|| Claim(place))
        })
    }

    /// Returns a span that is kept.
    #[inline]
    pub fn get(&self, id: u64) -> Option<&Open> {
        // ORDERING: pairs with the Release in `keep`.
        self.probe(id).find(|place| place.id.load(Ordering::Acquire) == id)
    }

    /// Gives a span's place up.
    #[inline]
    pub fn remove(&self, id: u64) {
        if let Some(place) = self.get(id) {
            // ORDERING: pairs with the Acquire in `claim`.
            place.id.store(0, Ordering::Release);
        }
    }

    #[inline]
    fn probe(&self, id: u64) -> impl Iterator<Item = &Open> {
        // Numbers of `Registry` have a place in its table in the low bits, the number of a
        // thread in bits 38 to 50, and a generation above. So a new span in the place of an
        // old one is here, too, in the place of the old one, whose lines are in the cache.
        let hash = (id as usize).wrapping_add((id >> 38) as usize % (1 << 13) * 67);
        (0..PROBES).filter_map(move |n| self.0.get((hash + n) % PLACES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_is_closed_makes_room() {
        let open = OpenSpans::new();
        // Far more than there are places, one after the other.
        for id in 1..10_000 {
            open.claim(id).unwrap().keep(id, 1, 2, 2);
            let (callsite, schema, AtomicWords(words)) = open.get(id).unwrap().get();
            assert_eq!((callsite, schema, words.len()), (1, 2, 2));
            open.remove(id);
            assert!(open.get(id).is_none());
        }
    }

    #[test]
    fn a_place_that_is_not_filled_to_the_end_is_free() {
        let open = OpenSpans::new();
        for id in 1..10_000 {
            drop(open.claim(id).unwrap());
        }
    }

    #[test]
    fn too_many_spans_find_no_place_and_harm_no_other() {
        let open = OpenSpans::new();
        let mut kept = Vec::new();
        for id in 1..3000 {
            if let Some(claim) = open.claim(id) {
                claim.words()[0].store(id, Relaxed);
                claim.keep(id, 0, 0, 1);
                kept.push(id);
            }
        }
        assert_eq!(kept.len(), PLACES);
        for id in kept {
            let kept = open.get(id).unwrap();
            assert_eq!(kept.words[0].load(Relaxed), id);
        }
    }
}
