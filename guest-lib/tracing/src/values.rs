//! Values of fields as the words of a record.

use crate::counts::{CUT, FIELDS, add};
use crate::names::Shape;
use hypertrace_abi::atomic::AtomicU64 as Word;
use hypertrace_abi::event::{Bytes, Field as _, Fields, cut};
use hypertrace_abi::schema::FieldType;
use hypertrace_log::parts::Message;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tracing_core::field::{Field, Visit};

/// The words of a record, in a borrowed buffer.
pub struct Values<'w> {
    words: &'w [AtomicU64],
    len: usize,
    shape: Shape,
    /// Least index of the next field.
    next: usize,
    limits: Limits,
    /// Number of bytes of texts that did not fit.
    cut: u32,
}

/// Limits of a record, besides its words.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Maximum number of fields of the metadata.
    pub fields: usize,
    /// Maximum number of bytes of a text.
    pub text: usize,
    /// Number of words that are kept free at the end.
    pub spare: usize,
}

impl<'w> Values<'w> {
    #[inline]
    pub fn new(words: &'w [AtomicU64], limits: Limits) -> Self {
        Values { words, len: 0, shape: Shape::default(), next: 0, limits, cut: 0 }
    }

    /// Returns the types of the visited fields.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn kept(&self) -> AtomicWords<'w> {
        AtomicWords(&self.words[..self.len])
    }

    /// Adds a word that is no field of the metadata.
    #[inline]
    pub fn word(&mut self, word: u64) {
        if let Some(to) = self.words.get(self.len) {
            to.store(word, Relaxed);
            self.len += 1;
        }
    }

    /// Adds the number of bytes that did not fit.
    #[inline]
    pub fn add_cut(&mut self) {
        self.word(self.cut.into());
    }

    /// Adds a text, cut to the room that is left. If there is no room for a byte, adds an empty text.
    #[inline]
    pub fn text(&mut self, text: &str) {
        let end = self.words.len() - self.limits.spare;
        let room = end.saturating_sub(self.len) * 8;
        let fits = cut(text, room.saturating_sub(4).min(self.limits.text));
        if fits.len() < text.len() {
            add(&CUT);
            let rest = u32::try_from(text.len() - fits.len()).unwrap_or(u32::MAX);
            self.cut = self.cut.saturating_add(rest);
        }
        let (bytes, room) = (Bytes(fits.as_bytes()), &self.words[self.len..]);
        if let Some(out) = room.get(..bytes.words()) {
            bytes.put(out);
            self.len += bytes.words();
        }
    }

    /// Takes in a field of the metadata. If there is no room, counts the field and returns `false`.
    #[inline]
    fn take(&mut self, field: &Field, ty: FieldType) -> bool {
        let index = field.index();
        let has_room = self.len + self.limits.spare < self.words.len();
        if index < self.next || index >= self.limits.fields || !has_room {
            add(&FIELDS);
            return false;
        }
        self.next = index + 1;
        self.shape.add(index, ty);
        true
    }

    #[inline]
    fn scalar(&mut self, field: &Field, ty: FieldType, word: u64) {
        if self.take(field, ty) {
            self.word(word);
        }
    }
}

/// The words of a record that are emitted.
#[derive(Clone, Copy, Debug)]
pub struct AtomicWords<'a>(pub &'a [AtomicU64]);

impl Fields for AtomicWords<'_> {
    // The event's schema has the field types, so this list is empty.
    const TYPES: &'static [FieldType] = &[];

    #[inline(always)]
    fn words(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn put(self, out: &[Word]) {
        // Most spans have few fields, and the setup of a loop of unknown length is slow.
        match (out, self.0) {
            ([p], [a]) => p.store(a.load(Relaxed), Relaxed),
            ([p, q], [a, b]) => {
                p.store(a.load(Relaxed), Relaxed);
                q.store(b.load(Relaxed), Relaxed);
            }
            _ => {
                for (to, from) in out.iter().zip(self.0) {
                    to.store(from.load(Relaxed), Relaxed);
                }
            }
        }
    }
}

/// The words of a span, and the words of its target.
#[derive(Clone, Copy, Debug)]
pub struct BeginWords<'a>(pub AtomicWords<'a>, pub &'a [AtomicU64]);

impl Fields for BeginWords<'_> {
    const TYPES: &'static [FieldType] = &[];

    #[inline(always)]
    fn words(self) -> usize {
        self.0.words() + self.1.len()
    }

    #[inline(always)]
    fn put(self, out: &[Word]) {
        let (first, second) = out.split_at(self.0.words());
        self.0.put(first);
        AtomicWords(self.1).put(second);
    }
}

impl Visit for Values<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.scalar(field, FieldType::U64, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.scalar(field, FieldType::I64, value as u64);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.scalar(field, FieldType::F64, value.to_bits());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.scalar(field, FieldType::Bool, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if self.take(field, FieldType::Str) {
            self.text(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.take(field, FieldType::Str) {
            let message = Message::of(format_args!("{value:?}"));
            self.cut = self.cut.saturating_add(message.cut());
            if message.cut() > 0 {
                add(&CUT);
            }
            self.text(message.text());
        }
    }
}
