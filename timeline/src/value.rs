// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Values of events' fields.

use hypertrace_abi::schema;
use std::fmt::{self, Write};

/// A value of an event's field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A value of type u8 to u64.
    Unsigned(u64),
    /// A value of type i8 to i64.
    Signed(i64),
    /// A value of type f64.
    Float(f64),
    /// A value of type bool.
    Bool(bool),
    /// A u64 that reports show in hexadecimal.
    Hex(u64),
    /// Bytes as the guest wrote them. They may not be UTF-8, and may contain terminal
    /// control sequences: escape them.
    Str(Box<[u8]>),
    /// An array of words, or of numbers without a sign in a kernel's event.
    Words(Box<[u64]>),
    /// An array of numbers with a sign in a kernel's event.
    SignedWords(Box<[i64]>),
    /// Name of a number, or names of flags joined by a delimiter, by the kernel's
    /// `__print_symbolic` or `__print_flags`. Printable ASCII.
    Name(Box<str>),
}

/// A value of an event's field, borrowed.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// A value of type u8 to u64.
    Unsigned(u64),
    /// A value of type i8 to i64.
    Signed(i64),
    /// A value of type f64.
    Float(f64),
    /// A value of type bool.
    Bool(bool),
    /// A u64 that reports show in hexadecimal.
    Hex(u64),
    /// Bytes as the guest or a program wrote them: escape them.
    Str(&'a [u8]),
    /// An array of words.
    Words(&'a [u64]),
    /// An array of numbers with a sign, copied from a kernel's event.
    SignedWords(&'a [i64]),
    /// An array of numbers in a kernel's event.
    Array(Array<'a>),
    /// Name of a number or of flags, in a kernel's event.
    Name(Name<'a>),
}

impl Value {
    /// Returns the value without a copy.
    pub(crate) fn borrow(&self) -> ValueRef<'_> {
        match self {
            Value::Unsigned(v) => ValueRef::Unsigned(*v),
            Value::Signed(v) => ValueRef::Signed(*v),
            Value::Float(v) => ValueRef::Float(*v),
            Value::Bool(v) => ValueRef::Bool(*v),
            Value::Hex(v) => ValueRef::Hex(*v),
            Value::Str(v) => ValueRef::Str(v),
            Value::Words(v) => ValueRef::Words(v),
            Value::SignedWords(v) => ValueRef::SignedWords(v),
            Value::Name(v) => ValueRef::Name(Name { first: Part::Text(v), second: None }),
        }
    }
}

impl ValueRef<'_> {
    /// Returns a copy to keep.
    pub fn to_value(&self) -> Value {
        match self {
            ValueRef::Unsigned(v) => Value::Unsigned(*v),
            ValueRef::Signed(v) => Value::Signed(*v),
            ValueRef::Float(v) => Value::Float(*v),
            ValueRef::Bool(v) => Value::Bool(*v),
            ValueRef::Hex(v) => Value::Hex(*v),
            ValueRef::Str(v) => Value::Str((*v).into()),
            ValueRef::Words(v) => Value::Words((*v).into()),
            ValueRef::SignedWords(v) => Value::SignedWords((*v).into()),
            // Numbers of at most 8 bytes fit either.
            ValueRef::Array(array) if array.signed => {
                Value::SignedWords(array.iter().map(|n| n as i64).collect())
            }
            ValueRef::Array(array) => Value::Words(array.iter().map(|n| n as u64).collect()),
            ValueRef::Name(name) => Value::Name(name.to_string().into()),
        }
    }
}

impl ValueRef<'_> {
    /// Returns the bytes of a text or an array in a kernel's event, 0 for a number.
    pub(crate) fn array_len(&self) -> usize {
        match self {
            ValueRef::Str(text) => text.len(),
            ValueRef::Array(array) => array.bytes.len(),
            _ => 0,
        }
    }
}

impl<'a> From<schema::Value<'a>> for ValueRef<'a> {
    fn from(value: schema::Value<'a>) -> ValueRef<'a> {
        match value {
            schema::Value::Unsigned(v) => ValueRef::Unsigned(v),
            schema::Value::Signed(v) => ValueRef::Signed(v),
            schema::Value::Float(v) => ValueRef::Float(v),
            schema::Value::Bool(v) => ValueRef::Bool(v),
            schema::Value::Hex(v) => ValueRef::Hex(v),
            schema::Value::Str(v) => ValueRef::Str(v),
            schema::Value::Words(v) => ValueRef::Words(v),
        }
    }
}

/// An array of little-endian numbers in a kernel's event.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes of a number, 1 to 8.
    pub(crate) width: usize,
    pub(crate) signed: bool,
}

impl<'a> Array<'a> {
    /// Returns whether its numbers have a sign.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// Iterates over the numbers. They fit an `i128` whether they have a sign or not.
    pub fn iter(&self) -> impl Iterator<Item = i128> + use<'a> {
        let Array { bytes, width, signed } = *self;
        bytes.chunks_exact(width.clamp(1, 8)).map(move |chunk| {
            let number = number(chunk);
            if signed { signed_number(number, chunk.len()).into() } else { number.into() }
        })
    }
}

/// Returns the little-endian number of up to 8 bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => bytes.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

/// Returns a number of `bytes` bytes with its sign.
pub(crate) fn signed_number(number: u64, bytes: usize) -> i64 {
    let unused = 64 - 8 * bytes.clamp(1, 8) as u32;
    (number << unused) as i64 >> unused
}

/// Names of a number in a kernel's event. [`Display`](fmt::Display) joins them.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub(crate) first: Part<'a>,
    /// Added to the first after a `|`.
    pub(crate) second: Option<Part<'a>>,
}

/// A part of a name. All texts are printable ASCII.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    /// The names of all flags of a number, with this delimiter.
    Flags(u64, &'a str, &'a [(u64, Box<str>)]),
}

/// Most bytes of a name, or of the names of a number's flags, which whoever made the trace chose. Of longer ones, the number
/// is shown.
pub(crate) const MOST_NAME: usize = 256;

impl Name<'_> {
    /// What stands in the place of a value that is too large.
    pub(crate) const CUT: Name<'static> = Name { first: Part::Text("..."), second: None };

    /// Returns the number of bytes that are shown.
    pub(crate) fn len(&self) -> usize {
        struct Count(usize);
        impl Write for Count {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0 += text.len();
                Ok(())
            }
        }
        let mut count = Count(0);
        // Counting does not fail.
        let _ = write!(count, "{self}");
        count.0
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.write(f)?;
        if let Some(second) = &self.second {
            f.write_str("|")?;
            second.write(f)?;
        }
        Ok(())
    }
}

impl Part<'_> {
    /// Writes flags as the kernel does: those without a name as a number at the end.
    fn write(&self, f: &mut impl Write) -> fmt::Result {
        let (mut left, delimiter, names) = match *self {
            Part::Text(text) => return f.write_str(text),
            Part::Flags(value, delimiter, names) => (value, delimiter, names),
        };
        let mut between = "";
        for (flag, name) in names {
            if *flag != 0 && left & flag == *flag {
                left &= !flag;
                f.write_str(between)?;
                f.write_str(name)?;
                between = delimiter;
            }
        }
        if left != 0 { write!(f, "{between}{left:#x}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_an_array_keep_their_signs() {
        let bytes = [-1i32, 7].map(i32::to_le_bytes).concat();
        let copied = |signed| ValueRef::Array(Array { bytes: &bytes, width: 4, signed }).to_value();

        let signed = copied(true);
        assert_eq!(signed, Value::SignedWords([-1, 7].into()));
        assert_eq!(signed.borrow().to_value(), signed);
        assert_eq!(copied(false), Value::Words([0xffff_ffff, 7].into()));
    }
}
