//! Spans that are open, with the words of their entries.

use hypertrace_abi::atomic::AtomicU64 as Word;
use hypertrace_abi::event::Fields;
use hypertrace_abi::schema::FieldType;
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
    pub fn get(&self) -> (u16, u8, Kept<'_>) {
        let kind = self.kind.load(Relaxed);
        let len = (kind >> 24) as usize;
        (kind as u16, (kind >> 16) as u8, Kept(&self.words[..len.min(WORDS)]))
    }
}

/// The words of a span's entry.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a>(&'a [AtomicU64]);

impl Fields for Kept<'_> {
    // The schema has them.
    const TYPES: &'static [FieldType] = &[];

    #[inline(always)]
    fn words(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn put(self, out: &[Word]) {
        for (to, from) in out.iter().zip(self.0) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}

/// The spans that are open.
#[derive(Debug)]
pub struct OpenSpans(Box<[Open]>);

impl OpenSpans {
    pub fn new() -> OpenSpans {
        OpenSpans((0..PLACES).map(|_| Open::new()).collect())
    }

    /// Keeps a span. `words` are at most [`WORDS`]. `false`: there is no place.
    #[inline]
    pub fn put(&self, id: u64, callsite: u16, schema: u8, words: &[u64]) -> bool {
        for place in self.probe(id) {
            let is_free = place.id.load(Relaxed) == 0;
            // ORDERING: the Acquire pairs with the Release in `remove`: the last span's
            // thread has read its words.
            if is_free && place.id.compare_exchange(0, TAKEN, Ordering::Acquire, Relaxed).is_ok() {
                let kind = u64::from(callsite) | u64::from(schema) << 16;
                place.kind.store(kind | (words.len() as u64) << 24, Relaxed);
                for (to, &from) in place.words.iter().zip(words) {
                    to.store(from, Relaxed);
                }
                // ORDERING: pairs with the Acquire in `get`: the words are the span's.
                place.id.store(id, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Returns a span that is kept.
    #[inline]
    pub fn get(&self, id: u64) -> Option<&Open> {
        // ORDERING: pairs with the Release in `put`.
        self.probe(id).find(|place| place.id.load(Ordering::Acquire) == id)
    }

    /// Gives a span's place up.
    #[inline]
    pub fn remove(&self, id: u64) {
        if let Some(place) = self.get(id) {
            // ORDERING: pairs with the Acquire in `put`.
            place.id.store(0, Ordering::Release);
        }
    }

    #[inline]
    fn probe(&self, id: u64) -> impl Iterator<Item = &Open> {
        let hash = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
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
            assert!(open.put(id, 1, 2, &[id, 7]));
            let (callsite, schema, kept) = open.get(id).unwrap().get();
            assert_eq!((callsite, schema, kept.words()), (1, 2, 2));
            open.remove(id);
            assert!(open.get(id).is_none());
        }
    }

    #[test]
    fn too_many_spans_find_no_place_and_harm_no_other() {
        let open = OpenSpans::new();
        let kept: Vec<u64> = (1..3000).filter(|id| open.put(*id, 0, 0, &[*id])).collect();
        assert!((PLACES / 2..=PLACES).contains(&kept.len()), "{}", kept.len());
        for id in kept {
            let kept = open.get(id).unwrap();
            assert_eq!(kept.words[0].load(Relaxed), id);
        }
    }
}
