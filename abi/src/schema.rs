// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Schemas: descriptions of events, and checks of payloads against them.
//!
//! The canonical text is `name(field:type,field:type)`, without spaces. The text's hash is the event's id, so
//! an id means the same in every thread, process and boot.

use crate::kinds;
use crate::record::id;

/// Maximum length in bytes of the name of an event or a field.
pub const MAX_NAME: usize = 64;
/// Maximum number of fields of an event.
pub const MAX_FIELDS: usize = 16;
/// Maximum length of a schema text, in bytes.
pub const MAX_TEXT: usize = MAX_NAME + 2 + MAX_FIELDS * (MAX_NAME + 1 + 5 + 1);
/// Maximum number of schemas of a client, which both the host and the producer respect.
pub const MAX_SCHEMAS: usize = 1024;

/// Continues a 32-bit FNV-1a hash. The algorithm is small enough for const evaluation, C macros and firmware.
pub(crate) const fn fnv1a(mut hash: u32, bytes: &[u8]) -> u32 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u32).wrapping_mul(FNV_PRIME);
        i += 1;
    }
    hash
}

/// Start value of FNV-1a.
#[doc(hidden)]
pub const FNV_START: u32 = 0x811c_9dc5;

/// Factor of FNV-1a.
#[doc(hidden)]
pub const FNV_PRIME: u32 = 0x0100_0193;

/// Converts a hash to an id. Ids below [`id::FIRST`] are reserved.
pub(crate) const fn id_of_hash(hash: u32) -> u32 {
    if hash < id::FIRST { hash | 0x8000_0000 } else { hash }
}

/// Returns the id of a schema text.
pub const fn id_of(text: &str) -> u32 {
    id_of_hash(fnv1a(FNV_START, text.as_bytes()))
}

/// Returns the hash of an event's name, whose low 12 bits are the slot in the enable mask.
pub const fn name_hash(name: &str) -> u32 {
    fnv1a(FNV_START, name.as_bytes())
}

/// Returns the slot of a name in the enable mask.
pub const fn mask_slot(name: &str) -> usize {
    mask_slot_of(name_hash(name))
}

/// Returns the slot in the enable mask for a name with this hash.
pub const fn mask_slot_of(name_hash: u32) -> usize {
    (name_hash & 0xfff) as usize
}

kinds! {
    /// Encoding of a field, with the name of the encoding in a schema text, in the order of `docs/abi.md`. A
    /// scalar takes one 64-bit word and is sign-extended or zero-extended.
    #[allow(missing_docs)]
    pub enum FieldType {
        U8 => "u8",
        U16 => "u16",
        U32 => "u32",
        U64 => "u64",
        I8 => "i8",
        I16 => "i16",
        I32 => "i32",
        I64 => "i64",
        /// The bits of an IEEE 754 double.
        F64 => "f64",
        /// 0 or 1.
        Bool => "bool",
        /// A u64 that reports show in hexadecimal: addresses, masks.
        X64 => "x64",
        /// u32 length, then as many bytes of UTF-8, zero-padded to a word.
        Str => "str",
        /// A word with the count, then as many words.
        Words => "[u64]",
    }
}

impl FieldType {
    /// Returns whether every value takes exactly one word.
    pub(crate) const fn is_scalar(self) -> bool {
        !matches!(self, FieldType::Str | FieldType::Words)
    }

    fn from_name(name: &str) -> Option<FieldType> {
        FieldType::ALL.into_iter().find(|t| t.name() == name)
    }
}

/// Returns whether a schema can contain a name: `[A-Za-z_][A-Za-z0-9_]*`, 1 to [`MAX_NAME`] bytes.
pub const fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_NAME || bytes[0].is_ascii_digit() {
        return false;
    }
    let mut i = 0;
    while i < bytes.len() {
        if !bytes[i].is_ascii_alphanumeric() && bytes[i] != b'_' {
            return false;
        }
        i += 1;
    }
    true
}

/// A field of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldDesc<'a> {
    /// Name of the field, unique in the schema.
    pub name: &'a str,
    /// Encoding of the field.
    pub ty: FieldType,
}

/// The types of a schema's fields. To check a payload, no other part of the schema is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    types: [FieldType; MAX_FIELDS],
    len: u8,
}

impl Shape {
    /// Returns the fields' types in order.
    pub fn types(&self) -> &[FieldType] {
        &self.types[..usize::from(self.len)]
    }

    /// Returns the length in words of a payload of this schema, or `None` if a field is not scalar, because
    /// the length then varies.
    pub fn fixed_words(&self) -> Option<u16> {
        self.types().iter().all(|t| t.is_scalar()).then_some(self.len.into())
    }

    /// Checks that the payload is exactly as long as its fields require. If the last field is a string,
    /// returns the number of padding bytes after the string (0 to 7), and otherwise 0. Returns `None` if the
    /// check fails.
    pub fn check(&self, payload: &[u64]) -> Option<usize> {
        let mut fields = Values { types: self.types(), rest: payload };
        let mut pad = 0;
        while !fields.types.is_empty() {
            pad = match fields.next()? {
                Value::Str(bytes) => (4 + bytes.len()).next_multiple_of(8) - 4 - bytes.len(),
                _ => 0,
            };
        }
        fields.rest.is_empty().then_some(pad)
    }

    /// Iterates over the values of a payload, in order. Call [`Shape::check`] first: the iterator ends early
    /// if the payload is too short.
    pub fn values<'a>(&'a self, payload: &'a [u64]) -> Values<'a> {
        Values { types: self.types(), rest: payload }
    }
}

/// A value of a payload.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Hex(u64),
    /// Bytes as the producer wrote them, not necessarily UTF-8.
    Str(&'a [u8]),
    Words(&'a [u64]),
}

/// Iterator over the values of a payload. [`Shape::values`] makes this iterator.
#[derive(Clone, Debug)]
pub struct Values<'a> {
    types: &'a [FieldType],
    rest: &'a [u64],
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let (&ty, types) = self.types.split_first()?;
        let (&word, rest) = self.rest.split_first()?;
        let (value, rest) = match ty {
            FieldType::U8 | FieldType::U16 | FieldType::U32 | FieldType::U64 => {
                (Value::Unsigned(word), rest)
            }
            FieldType::I8 | FieldType::I16 | FieldType::I32 | FieldType::I64 => {
                (Value::Signed(word as i64), rest)
            }
            FieldType::F64 => (Value::Float(f64::from_bits(word)), rest),
            FieldType::Bool => (Value::Bool(word != 0), rest),
            FieldType::X64 => (Value::Hex(word), rest),
            FieldType::Str => {
                let len = word as u32 as usize;
                let words = len.checked_add(4)?.div_ceil(8);
                let whole = self.rest.get(..words)?;
                let bytes = &zerocopy::IntoBytes::as_bytes(whole)[4..4 + len];
                (Value::Str(bytes), &self.rest[words..])
            }
            FieldType::Words => {
                let len = usize::try_from(word).ok()?;
                (Value::Words(rest.get(..len)?), &rest[len..])
            }
        };
        self.types = types;
        self.rest = rest;
        Some(value)
    }
}

/// The rule that a schema text breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaError {
    /// The text is longer than [`MAX_TEXT`].
    TooLong,
    /// The text is not `name(...)`.
    Form,
    /// The name of the event or of a field is not valid: see [`is_name`].
    Name,
    /// The type of a field does not exist.
    Type,
    /// There are more than [`MAX_FIELDS`] fields.
    TooManyFields,
    /// Two fields have the same name.
    Duplicate,
}

impl core::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            SchemaError::TooLong => "schema text is too long",
            SchemaError::Form => "schema text is not name(field:type,...)",
            SchemaError::Name => "schema has a name that is not an identifier",
            SchemaError::Type => "schema has an unknown field type",
            SchemaError::TooManyFields => "schema has more than 16 fields",
            SchemaError::Duplicate => "schema names a field twice",
        })
    }
}

impl core::error::Error for SchemaError {}

/// A parsed schema text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema<'a> {
    text: &'a str,
    name: &'a str,
    names: [&'a str; MAX_FIELDS],
    shape: Shape,
}

impl<'a> Schema<'a> {
    /// Parses a canonical text. Refuses any other text.
    ///
    /// # Errors
    /// Returns the rule that the text breaks.
    pub fn parse(text: &'a str) -> Result<Schema<'a>, SchemaError> {
        if text.len() > MAX_TEXT {
            return Err(SchemaError::TooLong);
        }
        let (name, rest) = text.split_once('(').ok_or(SchemaError::Form)?;
        let fields = rest.strip_suffix(')').ok_or(SchemaError::Form)?;
        if !is_name(name) {
            return Err(SchemaError::Name);
        }
        let mut names = [""; MAX_FIELDS];
        let mut types = [FieldType::U64; MAX_FIELDS];
        let mut len = 0;
        if !fields.is_empty() {
            for field in fields.split(',') {
                let (name, ty) = field.split_once(':').ok_or(SchemaError::Form)?;
                if len == MAX_FIELDS {
                    return Err(SchemaError::TooManyFields);
                }
                if !is_name(name) {
                    return Err(SchemaError::Name);
                }
                if names[..len].contains(&name) {
                    return Err(SchemaError::Duplicate);
                }
                types[len] = FieldType::from_name(ty).ok_or(SchemaError::Type)?;
                names[len] = name;
                len += 1;
            }
        }
        Ok(Schema { text, name, names, shape: Shape { types, len: len as u8 } })
    }

    /// Returns the canonical text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the event's name.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Returns the event's id.
    pub fn id(&self) -> u32 {
        id_of(self.text)
    }

    /// Iterates over the fields in order.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = FieldDesc<'a>> + '_ {
        let shape = self.shape.types();
        self.names[..shape.len()].iter().zip(shape).map(|(&name, &ty)| FieldDesc { name, ty })
    }

    /// Returns the fields' types.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_parses_into_its_parts() {
        let s = Schema::parse("disk_read(lba:u64,name:str)").unwrap();
        assert_eq!(s.name(), "disk_read");
        let fields: Vec<_> = s.fields().map(|f| (f.name, f.ty)).collect();
        assert_eq!(fields, [("lba", FieldType::U64), ("name", FieldType::Str)]);
        assert_eq!(s.shape().fixed_words(), None);
        assert_eq!(Schema::parse("tick()").unwrap().shape().fixed_words(), Some(0));
    }

    #[test]
    fn a_text_that_is_not_canonical_is_refused() {
        for (text, why) in [
            ("a", SchemaError::Form),
            ("a(", SchemaError::Form),
            ("a(x)", SchemaError::Form),
            ("a (x:u64)", SchemaError::Name),
            ("a(x: u64)", SchemaError::Type),
            ("1a()", SchemaError::Name),
            ("a(x:u64,)", SchemaError::Form),
            ("a(x:u64,x:u64)", SchemaError::Duplicate),
            ("a(x:u63)", SchemaError::Type),
            ("a\n()", SchemaError::Name),
        ] {
            assert_eq!(Schema::parse(text), Err(why), "{text}");
        }
    }

    #[test]
    fn reserved_schemas_parse() {
        for (_, text) in crate::record::RESERVED {
            Schema::parse(text).unwrap();
        }
    }

    #[test]
    fn a_payload_is_checked_to_the_word() {
        let shape = Schema::parse("e(a:u64,s:str,b:u8)").unwrap().shape();
        let s = u64::from_le_bytes([5, 0, 0, 0, b'h', b'e', b'l', b'l']);
        let payload = [1, s, u64::from(b'o'), 2];
        assert_eq!(shape.check(&payload), Some(0));
        assert_eq!(shape.check(&payload[..3]), None);
        assert_eq!(shape.check(&[1, s, 0, 2, 0]), None);
        let values: Vec<_> = shape.values(&payload).collect();
        assert_eq!(values, [Value::Unsigned(1), Value::Str(b"hello"), Value::Unsigned(2)]);
    }

    #[test]
    fn the_padding_of_a_last_string_is_returned() {
        let shape = Schema::parse("e(s:str)").unwrap().shape();
        assert_eq!(shape.check(&[4 | 0x6161_6161 << 32]), Some(0));
        assert_eq!(shape.check(&[3]), Some(1));
        assert_eq!(shape.check(&[0]), Some(4));
        assert_eq!(shape.check(&[u64::MAX]), None);
    }

    #[test]
    fn an_array_cannot_claim_more_words_than_the_payload_has() {
        let shape = Schema::parse("e(a:[u64])").unwrap().shape();
        assert_eq!(shape.check(&[2, 7, 8]), Some(0));
        assert_eq!(shape.check(&[u64::MAX, 7, 8]), None);
        assert_eq!(shape.check(&[1, 7, 8]), None);
    }
}
