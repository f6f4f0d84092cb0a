// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Texts to which events refer by address. The event `bprint` holds the address of a format of `trace_printk`
//! and the arguments for the format. The event `bputs` holds the address of a whole text.
//!
//! The kernel's `vbin_printf` writes the arguments one after the other: numbers of 1, 2 and 4 bytes at
//! multiples of their size, numbers of 8 bytes at multiples of 4, and texts with a NUL. An extended pointer
//! such as `%pI4` is a text.

use super::bytes::Bytes;
use crate::error::Result;
use crate::value::{number, signed_number};
use hypertrace_abi::event::cut;
use std::fmt::Write as _;

/// Maximum number of texts. A kernel has a few texts for each module that is debugged.
const MAX_TEXTS: usize = 1 << 16;
/// Maximum size in bytes of a format, and of a text that is made from a format. The size is limited because
/// the author of the trace chose the format.
const MAX_BYTES: usize = 4096;
/// Maximum number of columns of a number or a text.
const MAX_COLUMNS: usize = 256;

/// Texts with their addresses, in the order of the addresses.
#[derive(Debug, Default)]
pub(crate) struct Printk(Vec<(u64, Box<str>)>);

impl Printk {
    /// Reads lines such as `0xffffffff82000000 : "queue %d\n"`.
    pub fn of(bytes: &mut Bytes<'_>) -> Result<Printk> {
        let len = bytes.u32("the formats of printk")?;
        let text = String::from_utf8_lossy(bytes.take(len.into(), "the formats of printk")?);
        let line = |line: &str| {
            let (address, text) = line.split_once(" : ")?;
            let address = u64::from_str_radix(address.trim().strip_prefix("0x")?, 16).ok()?;
            Some((address, cut(&unquoted(text.trim()), MAX_BYTES).into()))
        };
        let mut texts: Vec<_> = text.lines().filter_map(line).take(MAX_TEXTS + 1).collect();
        if texts.len() > MAX_TEXTS {
            return Err(bytes.damaged(&format!("at most {MAX_TEXTS} formats of printk"), "more"));
        }
        texts.sort_by_key(|(address, _)| *address);
        Ok(Printk(texts))
    }

    /// Returns the text at an address.
    pub fn get(&self, address: u64) -> Option<&str> {
        let at = self.0.binary_search_by_key(&address, |(address, _)| *address).ok()?;
        Some(&self.0[at].1)
    }
}

/// Returns a text without its quotes and escapes.
fn unquoted(text: &str) -> String {
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let (mut out, mut chars) = (String::with_capacity(text.len()), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                other => out.extend(other),
            },
            _ => out.push(c),
        }
    }
    out
}

/// A conversion of a format, such as `%-5lld`.
#[derive(Debug, Default)]
struct Conversion {
    is_left: bool,
    has_zeros: bool,
    has_plus: bool,
    has_blank: bool,
    has_prefix: bool,
    columns: usize,
    precision: Option<usize>,
}

/// The arguments of an event.
struct Arguments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Arguments<'a> {
    fn number(&mut self, len: usize) -> Option<u64> {
        let at = self.at.next_multiple_of(len.min(4));
        self.at = at + len;
        Some(number(self.bytes.get(at..self.at)?))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().position(|byte| *byte == 0)?;
        self.at += len + 1;
        Some(&rest[..len])
    }
}

/// Formats the arguments of an event into `out`, up to the first argument that is missing.
pub(crate) fn print(out: &mut Vec<u8>, format: &str, arguments: &[u8]) {
    let mut arguments = Arguments { bytes: arguments, at: 0 };
    let mut rest = format;
    // The loop ends, because each turn takes at least one byte of the format.
    while let Some((before, after)) = rest.split_once('%') {
        out.extend(before.as_bytes());
        match conversion(out, after, &mut arguments) {
            Some(left) if out.len() <= MAX_BYTES => rest = left,
            _ => {
                rest = "...";
                break;
            }
        }
    }
    out.truncate(MAX_BYTES);
    out.extend(rest.as_bytes());
}

/// Formats an argument. Returns the rest of the format, or `None` if the argument is missing or its kind is
/// not known.
fn conversion<'a>(
    out: &mut Vec<u8>,
    format: &'a str,
    arguments: &mut Arguments<'_>,
) -> Option<&'a str> {
    let mut to = Conversion::default();
    let mut rest = format;
    let flags = rest.trim_start_matches(['-', '0', '+', ' ', '#']);
    for flag in rest[..rest.len() - flags.len()].bytes() {
        match flag {
            b'-' => to.is_left = true,
            b'0' => to.has_zeros = true,
            b'+' => to.has_plus = true,
            b' ' => to.has_blank = true,
            _ => to.has_prefix = true,
        }
    }
    rest = flags;
    let columns;
    (columns, rest) = count(rest, arguments)?;
    to.is_left |= columns < 0;
    to.columns = (columns.unsigned_abs() as usize).min(MAX_COLUMNS);
    if let Some(after) = rest.strip_prefix('.') {
        let precision;
        (precision, rest) = count(after, arguments)?;
        to.precision = usize::try_from(precision).ok();
    }
    let sizes = [("hh", 1), ("h", 2), ("ll", 8), ("l", 8), ("z", 8), ("t", 8), ("j", 8), ("L", 8)];
    let size = sizes.iter().find(|(letters, _)| rest.starts_with(letters));
    let (letters, size) = size.copied().unwrap_or(("", 4));
    rest = &rest[letters.len()..];
    let kind = rest.chars().next()?;
    rest = &rest[kind.len_utf8()..];
    match kind {
        '%' => out.push(b'%'),
        'c' => {
            let byte = arguments.number(1)? as u8;
            to.padded(out, "", &[byte], false);
        }
        's' => {
            let text = arguments.text()?;
            to.padded(out, "", &text[..text.len().min(to.precision.unwrap_or(usize::MAX))], false);
        }
        'd' | 'i' => {
            let value = signed_number(arguments.number(size)?, size);
            let sign = match value {
                ..0 => "-",
                _ if to.has_plus => "+",
                _ if to.has_blank => " ",
                _ => "",
            };
            to.digits(out, sign, value.unsigned_abs().to_string());
        }
        'u' => to.digits(out, "", arguments.number(size)?.to_string()),
        'x' => to.digits(out, to.prefix("0x"), format!("{:x}", arguments.number(size)?)),
        'X' => to.digits(out, to.prefix("0X"), format!("{:X}", arguments.number(size)?)),
        'o' => to.digits(out, to.prefix("0"), format!("{:o}", arguments.number(size)?)),
        'p' => {
            let extension = rest.len() - rest.trim_start_matches(char::is_alphanumeric).len();
            let (extension, after) = rest.split_at(extension);
            rest = after;
            match extension.bytes().next() {
                // For pointers of these kinds, the record holds the address itself and no text.
                None | Some(b'S' | b's' | b'f' | b'F' | b'x' | b'K' | b'e') => {
                    let mut text = String::new();
                    // Writing to a String does not fail.
                    let _ = write!(text, "{:#x}", arguments.number(8)?);
                    to.padded(out, "", text.as_bytes(), false);
                }
                Some(_) => to.padded(out, "", arguments.text()?, false),
            }
        }
        _ => return None,
    }
    Some(rest)
}

/// Reads the number of columns of a conversion: digits, `*` for an argument, or nothing.
fn count<'a>(format: &'a str, arguments: &mut Arguments<'_>) -> Option<(i64, &'a str)> {
    if let Some(rest) = format.strip_prefix('*') {
        return Some((signed_number(arguments.number(4)?, 4), rest));
    }
    let rest = format.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &format[..format.len() - rest.len()];
    Some((digits.parse().unwrap_or(0), rest))
}

impl Conversion {
    fn prefix(&self, prefix: &'static str) -> &'static str {
        if self.has_prefix { prefix } else { "" }
    }

    /// Appends a sign or prefix and the digits of a number.
    fn digits(&self, out: &mut Vec<u8>, sign: &str, digits: String) {
        let zeros = self.precision.unwrap_or(0).min(MAX_COLUMNS).saturating_sub(digits.len());
        let digits = "0".repeat(zeros) + &digits;
        self.padded(out, sign, digits.as_bytes(), self.has_zeros && self.precision.is_none());
    }

    /// Appends a text with the blanks or zeros that fill its columns.
    fn padded(&self, out: &mut Vec<u8>, sign: &str, text: &[u8], has_zeros: bool) {
        let fill = self.columns.saturating_sub(sign.len() + text.len());
        let fill = |byte: u8| std::iter::repeat_n(byte, fill);
        match (self.is_left, has_zeros) {
            (true, _) => {
                out.extend([sign.as_bytes(), text].concat());
                out.extend(fill(b' '));
            }
            (false, true) => {
                out.extend(sign.as_bytes());
                out.extend(fill(b'0'));
                out.extend(text);
            }
            (false, false) => {
                out.extend(fill(b' '));
                out.extend([sign.as_bytes(), text].concat());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(format: &str, arguments: &[u8]) -> String {
        let mut out = Vec::new();
        print(&mut out, format, arguments);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn arguments_stand_where_the_kernel_puts_them() {
        // The arguments are a byte, a number of 2 bytes after a gap, a text, a number of 4 bytes after a gap,
        // and a number of 8 bytes at a multiple of 4.
        let arguments = [
            &b"x\0"[..],
            &(-2i16).to_le_bytes(),
            b"sda1\0\0\0\0",
            &7u32.to_le_bytes(),
            &u64::MAX.to_le_bytes(),
        ];
        let arguments = arguments.concat();
        assert_eq!(printed("%c %hd %s %u %llx", &arguments), "x -2 sda1 7 ffffffffffffffff");
        assert_eq!(printed("%c %hd %s %u %p %d", &arguments), {
            "x -2 sda1 7 0xffffffffffffffff ..."
        });
    }

    #[test]
    fn flags_columns_and_precisions_are_those_of_c() {
        let n = 255u32.to_le_bytes();
        for (format, expected) in [
            ("%5d|", "  255|"),
            ("%-5d|", "255  |"),
            ("%05d|", "00255|"),
            ("%+.4d|", "+0255|"),
            ("%#06x|", "0x00ff|"),
            ("%#X %%|", "0XFF %|"),
            ("%o|", "377|"),
            ("%q|", "..."),
        ] {
            assert_eq!(printed(format, &n), expected, "{format}");
        }
        let text = [&3u32.to_le_bytes()[..], b"abcdef\0"].concat();
        assert_eq!(printed("%.*s|", &text), "abc|");
        assert_eq!(printed("%pI4c %d", b"10.0.0.1\0\0\0\0\x05\0\0\0"), "10.0.0.1 5");
    }

    fn printk(lines: &str) -> Result<Printk> {
        let bytes = [&(lines.len() as u32).to_le_bytes()[..], lines.as_bytes()].concat();
        Printk::of(&mut Bytes::new("t".as_ref(), &bytes, 0, true))
    }

    #[test]
    fn texts_without_end_are_refused_or_cut() {
        let lines =
            |count: u32| (0..count).map(|n| format!("{n:#x} : \"a\"\n")).collect::<String>();
        assert!(printk(&lines(65_536)).is_ok());
        let said = printk(&lines(65_537)).unwrap_err().to_string();
        assert!(said.contains("at most 65536 formats of printk"), "{said}");

        let long = printk(&format!("0x1 : \"{}\"\n", "a".repeat(5_000))).unwrap();
        assert_eq!(long.get(1).map(str::len), Some(4_096));
        let wide = [&i32::MAX.to_le_bytes()[..], b"abc\0"].concat();
        assert_eq!(printed("%*s", &wide).len(), 256);
        let many = printed(&"%*s".repeat(100), &wide.repeat(100));
        assert_eq!(many.strip_suffix("...").map(str::len), Some(4_096));
    }

    #[test]
    fn texts_are_found_by_their_addresses() {
        let printk = printk("0x20 : \"b\\\\\\\"\\n\"\n0x10 : \"a %d\\t\"\nnonsense\n").unwrap();
        assert_eq!(printk.get(0x10), Some("a %d\t"));
        assert_eq!(printk.get(0x20), Some("b\\\"\n"));
        assert_eq!(printk.get(0x11), None);
    }
}
