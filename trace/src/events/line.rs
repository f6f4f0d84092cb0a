//! Text of an event for text backends. The text is on the stack, and has a maximum size.

use super::text::MAX_SHOWN;
use arrayvec::ArrayVec;
use std::fmt::{self, Write};

/// Maximum size of a line in bytes. A longer line is cut and ends in `...`.
pub const MAX_LINE: usize = 1000;

const MORE: &[u8] = b"...";
/// Maximum size of the text before [`MORE`], in bytes.
const MAX_WHOLE: usize = MAX_LINE - MORE.len();

/// A line of text in its own buffer. A write to a line never fails: text for which the buffer has no room is
/// cut off.
#[derive(Default)]
pub struct Line {
    // The buffer is no plain array: an array would have to be filled with zeros, which takes as long as
    // writing a line.
    bytes: ArrayVec<u8, MAX_LINE>,
    cut: bool,
}

impl Line {
    /// Returns an empty line.
    #[inline]
    pub fn new() -> Line {
        Line::default()
    }

    /// Returns the written bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds raw bytes, which should be valid text.
    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) {
        if self.cut || self.bytes.len() + bytes.len() > MAX_WHOLE {
            self.push_cut(bytes);
        } else {
            // The buffer has room for the bytes, so this call cannot fail.
            let _ = self.bytes.try_extend_from_slice(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_cut(&mut self, bytes: &[u8]) {
        if self.cut {
            return;
        }
        self.cut = true;
        // The cut is never in the middle of a character.
        let mut end = MAX_WHOLE - self.bytes.len();
        while end > 0 && bytes[end] & 0xc0 == 0x80 {
            end -= 1;
        }
        for part in [&bytes[..end], MORE] {
            // The buffer has room for both parts, so this call cannot fail.
            let _ = self.bytes.try_extend_from_slice(part);
        }
    }

    /// Adds a number in decimal, in a third of the time that `core::fmt` takes.
    #[doc(hidden)]
    #[inline]
    pub fn decimal(&mut self, n: impl itoa::Integer) {
        self.push(itoa::Buffer::new().format(n).as_bytes());
    }

    /// Adds a number in hexadecimal.
    #[doc(hidden)]
    #[inline]
    pub fn hex(&mut self, n: impl Into<u64>) {
        let (mut n, mut digits, mut at) = (n.into(), [0; 16], 16);
        while at == 16 || n != 0 {
            at -= 1;
            digits[at] = b"0123456789abcdef"[(n & 15) as usize];
            n >>= 4;
        }
        self.push(&digits[at..]);
    }
}

impl Write for Line {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// A string as a C program reads it: NUL-terminated, and cut at the first NUL or after [`MAX_SHOWN`] bytes.
pub struct CText([u8; MAX_SHOWN + 1]);

impl CText {
    /// Returns a pointer to the string.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

/// Copies a string to a C string, because the tools that read probes expect C strings.
pub fn c_string(bytes: &[u8]) -> CText {
    let mut text = CText([0; MAX_SHOWN + 1]);
    for (to, from) in text.0[..MAX_SHOWN].iter_mut().zip(bytes.iter().take_while(|b| **b != 0)) {
        *to = *from;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_a_character() {
        let mut line = Line::new();
        for _ in 0..1000 {
            line.write_str("ä€").unwrap();
        }
        let text = std::str::from_utf8(line.as_bytes()).unwrap();
        assert!(text.len() <= MAX_LINE && text.len() > MAX_LINE - 8 && text.ends_with("..."));
    }

    #[test]
    fn numbers_are_what_core_fmt_makes_of_them() {
        for n in [0, 1, 9, 10, 255, 1 << 32, i64::MIN as u64, u64::MAX] {
            let mut line = Line::new();
            line.decimal(n);
            line.push(b" ");
            line.decimal(n as i64);
            line.push(b" ");
            line.hex(n);
            let expected = format!("{n} {} {n:x}", n as i64);
            assert_eq!(std::str::from_utf8(line.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn a_c_string_ends() {
        let ends = |bytes: &[u8]| c_string(bytes).0.iter().position(|b| *b == 0);
        assert_eq!(ends(b"ab\0cd"), Some(2));
        assert_eq!(ends(&[b'x'; 5000]), Some(MAX_SHOWN));
    }
}
