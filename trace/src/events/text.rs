//! Strings of any origin as escaped and bounded text.

use std::ascii;
use std::fmt::{self, Write};

/// Maximum number of a string's bytes that are shown. The rest is `...`.
pub const MAX_SHOWN: usize = 256;

/// A string of any origin that is made safe for a line. Control characters, bytes that are not UTF-8, and the
/// backslash become escapes, and the string is cut after 256 bytes. A format can give a width and an
/// alignment, as for any string.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl Escaped<'_> {
    fn pieces(&self, piece: &mut dyn FnMut(&str) -> fmt::Result) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(MAX_SHOWN)];
        let mut small = [0; 4];
        for chunk in shown.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\0' => piece("\\0")?,
                    c if c == '\\' || is_unsafe(c) => match u8::try_from(c) {
                        Ok(byte) => escape(byte, piece)?,
                        Err(_) => {
                            c.escape_unicode().try_for_each(|c| piece(c.encode_utf8(&mut small)))?
                        }
                    },
                    c => piece(c.encode_utf8(&mut small))?,
                }
            }
            let cut = self.0.len() > shown.len() && ends_with(shown, chunk.invalid());
            if !cut {
                chunk.invalid().iter().try_for_each(|byte| escape(*byte, piece))?;
            }
        }
        if self.0.len() > shown.len() {
            piece("...")?;
        }
        Ok(())
    }
}

/// Returns true if a character could steer a terminal or hide the text after it.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns true if `part` is the end of `whole`, so that `part` is a character whose rest was cut off.
fn ends_with(whole: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && part.as_ptr_range().end == whole.as_ptr_range().end
}

/// Calls `piece` for each character of a byte's escape, such as `\n` or `\x1b`.
fn escape(byte: u8, piece: &mut dyn FnMut(&str) -> fmt::Result) -> fmt::Result {
    ascii::escape_default(byte).try_for_each(|c| piece(char::from(c).encode_utf8(&mut [0; 4])))
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pad = 0;
        if let Some(width) = f.width() {
            let mut len = 0;
            self.pieces(&mut |piece| {
                len += piece.chars().count();
                Ok(())
            })?;
            pad = width.saturating_sub(len);
        }
        let left = matches!(f.align(), None | Some(fmt::Alignment::Left));
        let before = if left { 0 } else { pad };
        (0..before).try_for_each(|_| f.write_char(' '))?;
        self.pieces(&mut |piece| f.write_str(piece))?;
        (before..pad).try_for_each(|_| f.write_char(' '))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_string_holds_is_one_line_of_text() {
        let shown = |bytes: &[u8]| Escaped(bytes).to_string();
        assert_eq!(shown(b"a\nb\tc\0d\x1b[2J\\"), "a\\nb\\tc\\0d\\x1b[2J\\\\");
        assert_eq!(shown(b"h\xc3\xa4\xff!"), "hä\\xff!");
        assert_eq!(shown("\u{202e}x".as_bytes()), "\\u{202e}x");
        let long = "ä".repeat(40_000);
        let text = shown(long.as_bytes());
        assert_eq!(text.len(), MAX_SHOWN + 3);
        assert_eq!(shown(&long.as_bytes()[1..]).matches("\\x").count(), 1, "only the first");
    }

    #[test]
    fn a_width_counts_what_is_shown() {
        assert_eq!(
            format!("[{:>5}|{:<4}|{:2}]", Escaped(b"a\n"), Escaped(b"b"), Escaped(b"ccc")),
            "[  a\\n|b   |ccc]"
        );
    }
}
