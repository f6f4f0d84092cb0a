// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Typed events: conversion from Rust values to a schema and payload words.
//!
//! [`event_type!`](crate::event_type) makes a [`Site`] from a call site's event name and field names. The
//! compiler infers the types of the values, a tuple that implements [`Fields`]. A site with its fields is an
//! [`Event`], whose id is a compile-time constant.

use crate::atomic::{AtomicU64, Ordering::Relaxed};
use crate::schema::{self, FieldType};
use core::marker::PhantomData;

/// Maximum length of a string field in bytes. Longer strings are cut at a character boundary.
pub const MAX_STR: usize = 1024;
/// Maximum length of a slice field in words. Longer slices are cut.
pub const MAX_SLICE: usize = 128;

/// A value that can be a field.
pub trait Field: Copy {
    /// Type in the schema.
    const TYPE: FieldType;
    /// Returns the number of words that [`Field::put`] writes.
    fn words(self) -> usize;
    /// Writes the value to the start of `out`, which is long enough.
    fn put(self, out: &[AtomicU64]);
}

macro_rules! scalar {
    ($($ty:ty => $kind:ident, $v:ident => $word:expr;)*) => {$(
        impl Field for $ty {
            const TYPE: FieldType = FieldType::$kind;
            #[inline(always)]
            fn words(self) -> usize { 1 }
            #[inline(always)]
            fn put(self, out: &[AtomicU64]) {
                let $v = self;
                out[0].store($word, Relaxed);
            }
        }
    )*};
}

scalar! {
    u8 => U8, v => v.into();
    u16 => U16, v => v.into();
    u32 => U32, v => v.into();
    u64 => U64, v => v;
    usize => U64, v => v as u64;
    i8 => I8, v => i64::from(v) as u64;
    i16 => I16, v => i64::from(v) as u64;
    i32 => I32, v => i64::from(v) as u64;
    i64 => I64, v => v as u64;
    isize => I64, v => v as u64;
    f32 => F64, v => f64::from(v).to_bits();
    f64 => F64, v => v.to_bits();
    bool => Bool, v => v.into();
    Hex => X64, v => v.0;
}

impl<T> Field for *const T {
    const TYPE: FieldType = FieldType::X64;
    #[inline(always)]
    fn words(self) -> usize {
        1
    }
    #[inline(always)]
    fn put(self, out: &[AtomicU64]) {
        out[0].store(self as usize as u64, Relaxed);
    }
}

/// A number that reports show in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub u64);

/// Cuts a string to at most `most` bytes, at a character boundary.
pub fn cut(s: &str, most: usize) -> &str {
    if s.len() <= most {
        return s;
    }
    let mut end = most;
    while !s.is_char_boundary(end) {
        end -= 1;
    }
    &s[..end]
}

impl Field for &str {
    const TYPE: FieldType = FieldType::Str;
    #[inline]
    fn words(self) -> usize {
        Bytes(cut(self, MAX_STR).as_bytes()).words()
    }
    fn put(self, out: &[AtomicU64]) {
        Bytes(cut(self, MAX_STR).as_bytes()).put(out);
    }
}

/// A string that may not be UTF-8. The producer does not check the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Field for Bytes<'_> {
    const TYPE: FieldType = FieldType::Str;
    #[inline]
    fn words(self) -> usize {
        (4 + self.0.len().min(MAX_STR)).div_ceil(8)
    }
    #[inline]
    fn put(self, out: &[AtomicU64]) {
        let bytes = &self.0[..self.0.len().min(MAX_STR)];
        let (first, rest) = bytes.split_at(bytes.len().min(4));
        out[0].store(bytes.len() as u64 | word(first) << 32, Relaxed);
        let (words, last) = rest.as_chunks();
        for (to, from) in out[1..].iter().zip(words) {
            to.store(u64::from_le_bytes(*from), Relaxed);
        }
        if !last.is_empty() {
            out[1 + words.len()].store(word(last), Relaxed);
        }
    }
}

/// Returns a little-endian word of at most eight bytes.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

impl Field for &[u64] {
    const TYPE: FieldType = FieldType::Words;
    #[inline]
    fn words(self) -> usize {
        1 + self.len().min(MAX_SLICE)
    }
    fn put(self, out: &[AtomicU64]) {
        let len = self.len().min(MAX_SLICE);
        out[0].store(len as u64, Relaxed);
        for (to, &from) in out[1..=len].iter().zip(self) {
            to.store(from, Relaxed);
        }
    }
}

/// The values of an event: a tuple of up to 16 [`Field`]s.
pub trait Fields: Copy {
    /// Types of the fields, in order.
    const TYPES: &'static [FieldType];
    /// Returns the number of words that [`Fields::put`] writes.
    fn words(self) -> usize;
    /// Writes the values one after the other to the start of `out`.
    fn put(self, out: &[AtomicU64]);
}

macro_rules! tuples {
    () => { tuples!(@impl); };
    ($head:ident $($rest:ident)*) => { tuples!(@impl $head $($rest)*); tuples!($($rest)*); };
    (@impl $($name:ident)*) => {
        impl<$($name: Field),*> Fields for ($($name,)*) {
            const TYPES: &'static [FieldType] = &[$($name::TYPE),*];
            #[inline(always)]
            #[allow(non_snake_case)]
            fn words(self) -> usize {
                let ($($name,)*) = self;
                0 $(+ $name.words())*
            }
            #[inline(always)]
            #[allow(non_snake_case, unused_variables, unused_mut, unused_assignments)]
            fn put(self, out: &[AtomicU64]) {
                let ($($name,)*) = self;
                let mut out = out;
                $( $name.put(out); out = &out[$name.words()..]; )*
            }
        }
    };
}

tuples!(A B C D E F G H I J K L M N O P);

/// The names at a call site.
///
/// [`event_type!`](crate::event_type) makes a site from names that the compiler knows. Such a site needs only
/// the two constants. A site whose names are known only at run time, as in a C program, leaves the constants
/// empty and implements all methods. The [`Fields`] of such a site, for example [`Words`], also know their
/// types only at run time.
pub trait Site: Copy {
    /// Name of the event.
    const NAME: &'static str;
    /// Names of the fields.
    const FIELDS: &'static [&'static str];

    /// Returns the id of the event with fields of these types.
    #[inline(always)]
    fn id<F: Fields>(self) -> u32 {
        Event::<Self, F>::ID
    }

    /// Returns the hash of the event's name.
    #[inline(always)]
    fn name_hash(self) -> u32 {
        const { schema::name_hash(Self::NAME) }
    }

    /// Returns the schema text, or `None` if the host needs no text for this event. A producer needs the text
    /// only on its slow path.
    #[inline(always)]
    fn text<'t, F: Fields>(self) -> Option<&'t dyn Text>
    where
        Self: 't,
    {
        Some(&Event::<Self, F>::TEXT)
    }
}

/// A schema text in pieces, so that nothing is concatenated at compile time or allocated at run time.
pub trait Text {
    /// Returns the event's id, the hash of the whole text.
    fn id(&self) -> u32;
    /// Calls `piece` with the pieces of the canonical text, in order.
    fn pieces(&self, piece: &mut dyn FnMut(&[u8]));
    /// Returns the length of the text in bytes.
    fn size(&self) -> usize {
        let mut size = 0;
        self.pieces(&mut |piece| size += piece.len());
        size
    }
}

/// An event: a site's names with its values' types.
#[derive(Debug)]
pub struct Event<S, F>(PhantomData<(S, F)>);

impl<S: Site, F: Fields> Event<S, F> {
    /// Id of the event: the hash of its canonical schema text.
    pub const ID: u32 = {
        assert!(
            schema::is_name(S::NAME),
            "an event's name is [A-Za-z_][A-Za-z0-9_]*, at most 64 bytes"
        );
        assert!(S::FIELDS.len() == F::TYPES.len());
        let mut hash = schema::fnv1a(schema::FNV_START, S::NAME.as_bytes());
        hash = schema::fnv1a(hash, b"(");
        let mut i = 0;
        while i < F::TYPES.len() {
            assert!(
                schema::is_name(S::FIELDS[i]),
                "a field's name is an ASCII identifier of at most 64 bytes"
            );
            if i > 0 {
                hash = schema::fnv1a(hash, b",");
            }
            hash = schema::fnv1a(hash, S::FIELDS[i].as_bytes());
            hash = schema::fnv1a(hash, b":");
            hash = schema::fnv1a(hash, F::TYPES[i].name().as_bytes());
            i += 1;
        }
        schema::id_of_hash(schema::fnv1a(hash, b")"))
    };

    /// Schema text, which a producer needs only on its slow path.
    pub const TEXT: SchemaText =
        SchemaText { id: Self::ID, name: S::NAME, fields: S::FIELDS, types: F::TYPES };
}

/// A schema text whose names and types are known at compile time.
#[derive(Clone, Copy, Debug)]
pub struct SchemaText {
    /// Id of the event.
    pub id: u32,
    name: &'static str,
    fields: &'static [&'static str],
    types: &'static [FieldType],
}

impl Text for SchemaText {
    fn id(&self) -> u32 {
        self.id
    }

    fn pieces(&self, piece: &mut dyn FnMut(&[u8])) {
        piece(self.name.as_bytes());
        piece(b"(");
        for (i, (name, ty)) in self.fields.iter().zip(self.types).enumerate() {
            if i > 0 {
                piece(b",");
            }
            piece(name.as_bytes());
            piece(b":");
            piece(ty.name().as_bytes());
        }
        piece(b")");
    }
}

/// An event whose names and types are known only at run time, from a schema text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicEvent<T> {
    id: u32,
    name_hash: u32,
    text: T,
}

impl<T: AsRef<str>> DynamicEvent<T> {
    /// Takes a canonical schema text: `NAME(FIELD:TYPE,..)`.
    pub fn new(text: T) -> DynamicEvent<T> {
        let whole = text.as_ref();
        let name = whole.split_once('(').map_or(whole, |(name, _)| name);
        DynamicEvent { id: schema::id_of(whole), name_hash: schema::name_hash(name), text }
    }

    /// Returns the schema text.
    pub fn as_str(&self) -> &str {
        self.text.as_ref()
    }
}

impl<T: AsRef<str>> Text for DynamicEvent<T> {
    fn id(&self) -> u32 {
        self.id
    }

    fn pieces(&self, piece: &mut dyn FnMut(&[u8])) {
        piece(self.as_str().as_bytes());
    }
}

impl<T: AsRef<str>> Site for &DynamicEvent<T> {
    // The names are known at run time only.
    const NAME: &'static str = "";
    const FIELDS: &'static [&'static str] = &[];

    #[inline(always)]
    fn id<F: Fields>(self) -> u32 {
        self.id
    }

    #[inline(always)]
    fn name_hash(self) -> u32 {
        self.name_hash
    }

    #[inline(always)]
    fn text<'t, F: Fields>(self) -> Option<&'t dyn Text>
    where
        Self: 't,
    {
        Some(self)
    }
}

/// Id of a record that is sent without a schema text: a reserved id, or an id whose text the host has
/// already.
#[derive(Clone, Copy, Debug)]
pub struct Id(pub u32);

impl Site for Id {
    const NAME: &'static str = "";
    const FIELDS: &'static [&'static str] = &[];

    #[inline(always)]
    fn id<F: Fields>(self) -> u32 {
        self.0
    }

    #[inline(always)]
    fn name_hash(self) -> u32 {
        0
    }

    #[inline(always)]
    fn text<'t, F: Fields>(self) -> Option<&'t dyn Text> {
        None
    }
}

/// Scalar fields that are words already. Only at run time, the [`Site`] tells the types of these fields.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a>(pub &'a [u64]);

impl Fields for Words<'_> {
    const TYPES: &'static [FieldType] = &[];
    #[inline(always)]
    fn words(self) -> usize {
        self.0.len()
    }
    #[inline(always)]
    fn put(self, out: &[AtomicU64]) {
        // Most events are short, and the setup of a loop of unknown length is slow.
        match (out, self.0) {
            ([p], &[a]) => p.store(a, Relaxed),
            ([p, q], &[a, b]) => {
                p.store(a, Relaxed);
                q.store(b, Relaxed);
            }
            ([p, q, r], &[a, b, c]) => {
                p.store(a, Relaxed);
                q.store(b, Relaxed);
                r.store(c, Relaxed);
            }
            _ => {
                for (to, &from) in out.iter().zip(self.0) {
                    to.store(from, Relaxed);
                }
            }
        }
    }
}

/// Words in two places, one after the other.
impl Fields for [Words<'_>; 2] {
    const TYPES: &'static [FieldType] = &[];
    #[inline(always)]
    fn words(self) -> usize {
        self[0].words() + self[1].words()
    }
    #[inline(always)]
    fn put(self, out: &[AtomicU64]) {
        let (first, second) = out.split_at(self[0].words());
        self[0].put(first);
        self[1].put(second);
    }
}

/// The names at a call site, as an ELF note in the program's file. Commands list these notes without running
/// the program. Linkers that remove unreferenced sections keep notes. `strip` keeps notes, too.
#[doc(hidden)]
#[derive(Debug)]
#[repr(C, align(4))]
pub struct Note<const N: usize> {
    /// Sizes of the owner and the text in bytes, and the note's type.
    head: [u32; 3],
    owner: [u8; 12],
    /// `NAME(FIELD,..)`, padded with zeros.
    text: [u8; N],
}

impl<const N: usize> Note<N> {
    /// Makes a note. `N` is the result of [`note_size`] for this note.
    pub const fn new(name: &str, fields: &[&str]) -> Note<N> {
        let mut text = [0; N];
        let mut at = copied(&mut text, 0, name);
        text[at] = b'(';
        at += 1;
        let mut i = 0;
        while i < fields.len() {
            at = copied(&mut text, at, fields[i]);
            text[at] = if i + 1 < fields.len() { b',' } else { b')' };
            at += 1;
            i += 1;
        }
        if fields.is_empty() {
            text[at] = b')';
        }
        // The owner's 11 bytes are `hypertrace` and one zero. The second zero is padding.
        Note { head: [11, N as u32, 1], owner: *b"hypertrace\0\0", text }
    }
}

/// Returns the size of a note's text in bytes, a multiple of 4.
#[doc(hidden)]
pub const fn note_size(name: &str, fields: &[&str]) -> usize {
    let mut size = name.len() + 2;
    let mut i = 0;
    while i < fields.len() {
        size += fields[i].len() + 1;
        i += 1;
    }
    size.next_multiple_of(4)
}

/// Copies a text into an array at `at`. Returns the index after the text.
const fn copied<const N: usize>(to: &mut [u8; N], at: usize, text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        to[at + i] = bytes[i];
        i += 1;
    }
    at + i
}

/// Names a call site and pairs it with its values. Expands to `(site, (value, ...))`, for functions that are
/// generic over [`Site`] and [`Fields`]. `name = value` is a field; `name` alone is a variable of that name.
///
/// `event_type!("disk_read", lba, len = sectors * 512)`.
#[macro_export]
macro_rules! event_type {
    ($name:expr $(, $field:ident $(= $value:expr)?)* $(,)?) => {{
        #[derive(Clone, Copy)]
        struct HypertraceSite;
        impl $crate::event::Site for HypertraceSite {
            const NAME: &'static str = $name;
            const FIELDS: &'static [&'static str] = &[$(stringify!($field)),*];
        }
        // The note exists only on Linux, because programs for other systems have linker scripts of their own.
        #[cfg(target_os = "linux")]
        const _: () = {
            use $crate::event::{Note, Site, note_size};
            type This = HypertraceSite;
            #[used]
            #[unsafe(link_section = ".note.hypertrace")]
            static NOTE: Note<{ note_size(This::NAME, This::FIELDS) }> =
                Note::new(This::NAME, This::FIELDS);
        };
        (HypertraceSite, ($($crate::event_type!(@value $field $(= $value)?),)*))
    }};
    (@value $field:ident) => { $field };
    (@value $field:ident = $value:expr) => { $value };
}

#[cfg(test)]
#[allow(unsafe_code)] // the macro's section, which is not checked in other crates
mod tests {
    use super::*;

    fn parts<S: Site, F: Fields>(_: S, fields: F) -> (u32, String, Vec<u64>) {
        let mut text = Vec::new();
        Event::<S, F>::TEXT.pieces(&mut |p| text.extend_from_slice(p));
        let out: Vec<AtomicU64> = (0..fields.words()).map(|_| AtomicU64::new(!0)).collect();
        fields.put(&out);
        let words = out.iter().map(|w| w.load(Relaxed)).collect();
        (Event::<S, F>::ID, String::from_utf8(text).unwrap(), words)
    }

    macro_rules! parts {
        ($($t:tt)*) => {{ let (site, fields) = event_type!($($t)*); parts(site, fields) }};
    }

    #[test]
    fn the_id_is_the_hash_of_the_text() {
        let lba = 7u64;
        let (id, text, words) = parts!("disk_read", lba, len = 512u32);
        assert_eq!(text, "disk_read(lba:u64,len:u32)");
        assert_eq!(id, schema::id_of(&text));
        assert_eq!(words, [7, 512]);
    }

    #[test]
    fn every_type_of_field_round_trips() {
        let (_, text, words) = parts!(
            "all",
            a = 1u8,
            b = -2i16,
            c = 1.5f32,
            d = true,
            e = Hex(0xff),
            f = "hällo wörld",
            g = &[3u64, 4][..]
        );
        let parsed = schema::Schema::parse(&text).unwrap();
        let shape = parsed.shape();
        assert!(shape.check(&words).is_some());
        let values: Vec<_> = shape.values(&words).collect();
        use schema::Value as V;
        assert_eq!(
            values,
            [
                V::Unsigned(1),
                V::Signed(-2),
                V::Float(1.5),
                V::Bool(true),
                V::Hex(0xff),
                V::Str("hällo wörld".as_bytes()),
                V::Words(&[3, 4])
            ]
        );
    }

    #[test]
    fn strings_of_all_lengths_are_padded_with_zeros() {
        for len in 0..24 {
            let string: String = ('a'..='z').take(len).collect();
            let (_, _, words) = parts!("s", string = string.as_str());
            let mut bytes = (len as u32).to_le_bytes().to_vec();
            bytes.extend(string.bytes());
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            assert_eq!(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>(), bytes);
        }
    }

    #[test]
    fn long_strings_are_cut_at_a_character() {
        let long = "ä".repeat(1000);
        let (_, text, words) = parts!("s", long = long.as_str());
        let shape = schema::Schema::parse(&text).unwrap().shape();
        let Some(schema::Value::Str(bytes)) = shape.values(&words).next() else { panic!() };
        assert_eq!(bytes.len(), MAX_STR);
        assert!(core::str::from_utf8(bytes).is_ok());
    }
}
