//! Typed events: from Rust values to a schema and to payload words.
//!
//! The macro [`event_type!`](crate::event_type) gives a call site its name and
//! field names as a [`Site`]; the values' types are inferred as [`Fields`];
//! together they are an [`Event`], whose id is a compile-time constant.

use crate::atomic::{AtomicU64, Ordering::Relaxed};
use crate::schema::{self, FieldType};
use core::marker::PhantomData;

/// Bytes of a string that are kept; the rest is cut off, at a character.
pub const MAX_STR: usize = 1024;
/// Words of a slice that are kept.
pub const MAX_SLICE: usize = 128;

/// A value that can be a field.
pub trait Field: Copy {
    /// How it is written.
    const TYPE: FieldType;
    /// Words that [`Field::put`] writes.
    fn words(self) -> usize;
    /// Writes itself to the start of `out`, which holds enough words.
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

/// A number that people read in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex(pub u64);

fn kept(s: &str) -> &str {
    if s.len() <= MAX_STR {
        return s;
    }
    let mut end = MAX_STR;
    while !s.is_char_boundary(end) {
        end -= 1;
    }
    &s[..end]
}

impl Field for &str {
    const TYPE: FieldType = FieldType::Str;
    #[inline]
    fn words(self) -> usize {
        Bytes(kept(self).as_bytes()).words()
    }
    fn put(self, out: &[AtomicU64]) {
        Bytes(kept(self).as_bytes()).put(out);
    }
}

/// Bytes that are a string, as far as the producer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Field for Bytes<'_> {
    const TYPE: FieldType = FieldType::Str;
    #[inline]
    fn words(self) -> usize {
        (4 + self.0.len().min(MAX_STR)).div_ceil(8)
    }
    fn put(self, out: &[AtomicU64]) {
        let bytes = &self.0[..self.0.len().min(MAX_STR)];
        let mut packer = Packer::new(out);
        packer.bytes(&(bytes.len() as u32).to_le_bytes());
        packer.bytes(bytes);
        packer.finish();
    }
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

/// Packs bytes into words, little-endian, storing each word once.
pub(crate) struct Packer<'a> {
    out: &'a [AtomicU64],
    at: usize,
    word: u64,
    filled: u32,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(out: &'a [AtomicU64]) -> Self {
        Packer { out, at: 0, word: 0, filled: 0 }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.word |= u64::from(byte) << (8 * self.filled);
            self.filled += 1;
            if self.filled == 8 {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        self.out[self.at].store(self.word, Relaxed);
        self.at += 1;
        self.word = 0;
        self.filled = 0;
    }

    pub(crate) fn finish(mut self) {
        if self.filled > 0 {
            self.flush();
        }
    }
}

/// The values of an event: a tuple of up to 16 [`Field`]s.
pub trait Fields: Copy {
    /// Their types.
    const TYPES: &'static [FieldType];
    /// Words that [`Fields::put`] writes.
    fn words(self) -> usize;
    /// Writes them one after the other to the start of `out`.
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

/// A call site's names.
///
/// Those that the compiler knows come from
/// [`event_type!`](crate::event_type) and need the two constants only. A site
/// whose names are known at run time, as those of C programs, has them empty
/// and all methods of its own; it goes with [`Fields`] that know their types
/// as late, such as [`Words`].
pub trait Site: Copy {
    /// The event's name.
    const NAME: &'static str;
    /// Its fields' names.
    const FIELDS: &'static [&'static str];

    /// The id of the event that has these fields.
    #[inline(always)]
    fn id<F: Fields>(self) -> u32 {
        Event::<Self, F>::ID
    }

    /// The hash of the event's name.
    #[inline(always)]
    fn name_hash(self) -> u32 {
        const { schema::name_hash(Self::NAME) }
    }

    /// What a producer needs on the rare path.
    #[inline(always)]
    fn text<'t, F: Fields>(self) -> &'t dyn Text
    where
        Self: 't,
    {
        &Event::<Self, F>::TEXT
    }
}

/// A schema text in pieces, so that nothing needs to be concatenated at
/// compile time or allocated at run time.
pub trait Text {
    /// The event's id: the hash of the pieces.
    fn id(&self) -> u32;
    /// Hands out the pieces of the canonical text in order.
    fn pieces(&self, piece: &mut dyn FnMut(&[u8]));
    /// Bytes of the text.
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
    /// The event's id: the hash of its canonical schema text.
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

    /// The hash of the event's name.
    pub const NAME_HASH: u32 = schema::name_hash(S::NAME);

    /// The event's slot in the enable mask.
    pub const SLOT: usize = schema::mask_slot(S::NAME);

    /// What a producer needs on the rare path: the parts of the schema text.
    pub const TEXT: SchemaText =
        SchemaText { id: Self::ID, name: S::NAME, fields: S::FIELDS, types: F::TYPES };
}

/// The schema text of names and types that the compiler knows.
#[derive(Clone, Copy, Debug)]
pub struct SchemaText {
    /// The event's id.
    pub id: u32,
    name: &'static str,
    fields: &'static [&'static str],
    types: &'static [FieldType],
}

impl SchemaText {
    /// Hands out the pieces of the canonical text in order.
    pub fn pieces(&self, mut piece: impl FnMut(&[u8])) {
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

    /// Bytes of the text.
    pub fn len(&self) -> usize {
        let mut len = 0;
        self.pieces(|piece| len += piece.len());
        len
    }

    /// Never: a text has at least a name.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Text for SchemaText {
    fn id(&self) -> u32 {
        self.id
    }
    fn pieces(&self, piece: &mut dyn FnMut(&[u8])) {
        SchemaText::pieces(self, piece);
    }
}

/// Scalars in their words already, for a [`Site`] whose text, known at run
/// time, has their types.
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
        // Most events are short, and a loop that may be long begins slowly.
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

/// Names a call site and pairs it with its values: expands to
/// `(site, (value, ...))`, for functions generic over [`Site`] and [`Fields`].
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
        (HypertraceSite, ($($crate::event_type!(@value $field $(= $value)?),)*))
    }};
    (@value $field:ident) => { $field };
    (@value $field:ident = $value:expr) => { $value };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<S: Site, F: Fields>(_: S, fields: F) -> (u32, String, Vec<u64>) {
        let mut text = Vec::new();
        Event::<S, F>::TEXT.pieces(|p| text.extend_from_slice(p));
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
    fn long_strings_are_cut_at_a_character() {
        let long = "ä".repeat(1000);
        let (_, text, words) = parts!("s", long = long.as_str());
        let shape = schema::Schema::parse(&text).unwrap().shape();
        let Some(schema::Value::Str(bytes)) = shape.values(&words).next() else { panic!() };
        assert_eq!(bytes.len(), MAX_STR);
        assert!(core::str::from_utf8(bytes).is_ok());
    }
}
