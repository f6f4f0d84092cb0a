// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Values of events' fields.

use hypertrace_abi::schema;
use std::fmt::{self, Write};

/// A value of an event's field.
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
    /// Bytes from the guest or from a program, without changes. The bytes may not be UTF-8, and may contain
    /// terminal control sequences, so escape the bytes.
    Str(&'a [u8]),
    /// An array of numbers.
    Array(Array<'a>),
    /// A text of printable ASCII: the name that the kernel's `__print_symbolic` gives a number, the names
    /// that the kernel's `__print_flags` gives flags, with a delimiter between these names, or the name of a
    /// function.
    Name(Name<'a>),
}

/// Writes values, with a method for each type. If a writer does not define the method for a type, `put`
/// writes values of this type as texts.
pub trait ValueWriter {
    /// Texts that stand before and after the numbers of an array.
    const BRACKETS: [&'static str; 2] = ["[", "]"];

    /// Writes a text of printable ASCII, which needs no escapes.
    fn put(&mut self, text: &str);

    /// Writes a text of any bytes: see [`ValueRef::Str`].
    fn text(&mut self, bytes: &[u8]);

    /// Writes a name.
    fn name(&mut self, name: &Name<'_>) {
        self.text(name.to_string().as_bytes());
    }

    /// Writes a number.
    fn unsigned(&mut self, number: u64) {
        self.put(itoa::Buffer::new().format(number));
    }

    /// Writes a number with a sign.
    fn signed(&mut self, number: i64) {
        self.put(itoa::Buffer::new().format(number));
    }

    /// Writes a number that reports show in hexadecimal.
    fn hex(&mut self, number: u64) {
        self.unsigned(number);
    }

    /// Writes a number with a fraction.
    fn float(&mut self, number: f64) {
        self.put(&format!("{number:?}"));
    }

    /// Writes true or false.
    fn bool(&mut self, is_true: bool) {
        self.put(if is_true { "true" } else { "false" });
    }

    /// Writes an array.
    fn array(&mut self, array: &Array<'_>) {
        let [before, after] = Self::BRACKETS;
        self.put(before);
        for (at, number) in array.iter().enumerate() {
            if at > 0 {
                self.put(",");
            }
            // A number of an array has at most 8 bytes. So a number that does not fit `u64` is negative and
            // fits `i64`.
            match u64::try_from(number) {
                Ok(number) => self.unsigned(number),
                Err(_) => self.signed(number as i64),
            }
        }
        self.put(after);
    }
}

/// Takes any value as a text.
impl ValueWriter for String {
    fn put(&mut self, text: &str) {
        self.push_str(text);
    }

    fn text(&mut self, bytes: &[u8]) {
        self.push_str(&Self::from_utf8_lossy(bytes));
    }
}

impl ValueRef<'_> {
    /// Hands the value to a writer.
    #[inline]
    pub fn write(&self, to: &mut impl ValueWriter) {
        match self {
            ValueRef::Unsigned(v) => to.unsigned(*v),
            ValueRef::Signed(v) => to.signed(*v),
            ValueRef::Float(v) => to.float(*v),
            ValueRef::Bool(v) => to.bool(*v),
            ValueRef::Hex(v) => to.hex(*v),
            ValueRef::Str(bytes) => to.text(bytes),
            ValueRef::Array(array) => to.array(array),
            ValueRef::Name(name) => to.name(name),
        }
    }

    /// Returns the size in bytes of a text, or of an array in a kernel's event. Returns 0 for a number.
    pub(crate) fn array_len(&self) -> usize {
        match self {
            ValueRef::Str(text) => text.len(),
            ValueRef::Array(Array(Numbers::Bytes { bytes, .. })) => bytes.len(),
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
            schema::Value::Words(v) => ValueRef::Array(v.into()),
        }
    }
}

/// An array of numbers.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a>(Numbers<'a>);

#[derive(Clone, Copy, Debug)]
enum Numbers<'a> {
    /// Array of a declared event.
    Words(&'a [u64]),
    /// Array of a kernel's event: little-endian numbers of 1 to 8 bytes.
    Bytes { bytes: &'a [u8], width: usize, signed: bool },
}

impl<'a> Array<'a> {
    /// Makes an array of little-endian numbers. Each number has `width` bytes, from 1 to 8. If `signed` is
    /// true, the numbers have a sign.
    pub fn of_bytes(bytes: &'a [u8], width: usize, signed: bool) -> Array<'a> {
        Array(Numbers::Bytes { bytes, width: width.clamp(1, 8), signed })
    }

    /// Returns whether the elements of the array are signed.
    pub fn is_signed(&self) -> bool {
        matches!(self.0, Numbers::Bytes { signed: true, .. })
    }

    /// Returns the words, if the array is of a declared event.
    pub fn words(&self) -> Option<&'a [u64]> {
        match self.0 {
            Numbers::Words(words) => Some(words),
            Numbers::Bytes { .. } => None,
        }
    }

    /// Returns the length of the array.
    pub fn len(&self) -> usize {
        match self.0 {
            Numbers::Words(words) => words.len(),
            Numbers::Bytes { bytes, width, .. } => bytes.len() / width,
        }
    }

    /// Returns whether the array has no number.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the numbers of the array as `i128`, a type that holds signed and unsigned numbers of 64
    /// bits.
    pub fn iter(&self) -> impl Iterator<Item = i128> + use<'a> {
        let numbers = self.0;
        (0..self.len()).map(move |at| match numbers {
            Numbers::Words(words) => words[at].into(),
            Numbers::Bytes { bytes, width, signed } => {
                let number = number(&bytes[at * width..][..width]);
                if signed { signed_number(number, width).into() } else { number.into() }
            }
        })
    }
}

impl<'a> From<&'a [u64]> for Array<'a> {
    fn from(words: &'a [u64]) -> Array<'a> {
        Array(Numbers::Words(words))
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

/// Returns the signed value of a number of `bytes` bytes.
pub(crate) fn signed_number(number: u64, bytes: usize) -> i64 {
    let unused = 64 - 8 * bytes.clamp(1, 8) as u32;
    (number << unused) as i64 >> unused
}

/// Names of a number in a kernel's event. [`Display`](fmt::Display) joins them.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub(crate) first: Part<'a>,
    /// Second part of the name. A `|` stands between both parts.
    pub(crate) second: Option<Part<'a>>,
}

/// A part of a name. All texts are printable ASCII.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Text(&'a str),
    /// The number, the delimiter between names, and the names of flags.
    Flags(u64, &'a str, &'a [(u64, Box<str>)]),
}

/// Maximum size in bytes of a name, or of the names of a number's flags. The size is limited because the
/// author of the trace chose the names. If the names are longer, the number is shown.
pub(crate) const MAX_NAME: usize = 256;

impl<'a> Name<'a> {
    /// Makes a name from a text of printable ASCII.
    pub(crate) const fn of(text: &'a str) -> Name<'a> {
        Name { first: Part::Text(text), second: None }
    }
}

impl Name<'_> {
    /// Text that is shown instead of a value that is too large.
    pub(crate) const CUT: Name<'static> = Name::of("...");

    /// Returns the length in bytes of the text that [`Display`](fmt::Display) writes.
    pub(crate) fn len(&self) -> usize {
        struct Count(usize);
        impl Write for Count {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0 += text.len();
                Ok(())
            }
        }
        let mut count = Count(0);
        // `Count` never fails.
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
    /// Writes flags in the kernel's form: the names come first, and the flags without a name follow as one
    /// number.
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
        let numbers = |signed| Vec::from_iter(Array::of_bytes(&bytes, 4, signed).iter());

        assert_eq!(numbers(true), [-1, 7]);
        assert_eq!(numbers(false), [0xffff_ffff, 7]);
    }
}
