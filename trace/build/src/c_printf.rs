//! Conversions of C's printf that `core::fmt` does not have. Numbers take the
//! width, the precision and the flags `-`, `+`, `0` and `#` of a Rust format,
//! and are shown as C shows them.

use core::fmt::{self, Write};

/// An integer that is shown with a precision, a space for a sign, or `#`.
pub struct Integer {
    negative: bool,
    magnitude: u64,
    letter: char,
    space: bool,
}

/// Returns a value for `%d` with `space` or a precision.
pub fn signed(value: i64, space: bool) -> Integer {
    Integer { negative: value < 0, magnitude: value.unsigned_abs(), letter: 'd', space }
}

/// Returns a value for `%u`, `%o`, `%x` and `%X` with `#` or a precision.
pub fn unsigned(value: u64, letter: char) -> Integer {
    Integer { negative: false, magnitude: value, letter, space: false }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.magnitude;
        let (base, prefix) = match self.letter {
            'o' => (8, ""),
            'x' => (16, "0x"),
            'X' => (16, "0X"),
            _ => (10, ""),
        };
        let sign = sign(f, self.negative, self.space);
        let prefix = if f.alternate() && value != 0 { prefix } else { "" };
        let natural = value.checked_ilog(base).map_or(1, |log| log as usize + 1);
        let mut count = match f.precision() {
            Some(0) if value == 0 => 0,
            Some(precision) => natural.max(precision),
            None => natural,
        };
        let begins_with_zero = count > natural || (value == 0 && count > 0);
        if f.alternate() && self.letter == 'o' && !begins_with_zero {
            count += 1;
        }
        let before = sign.len() + prefix.len();
        if f.sign_aware_zero_pad() && f.precision().is_none() {
            count = count.max(f.width().unwrap_or(0).saturating_sub(before));
        }
        padded(f, before + count, |f| {
            f.write_str(sign)?;
            f.write_str(prefix)?;
            match self.letter {
                _ if count == 0 => Ok(()),
                'o' => write!(f, "{value:0count$o}"),
                'x' => write!(f, "{value:0count$x}"),
                'X' => write!(f, "{value:0count$X}"),
                _ => write!(f, "{value:0count$}"),
            }
        })
    }
}

/// A double that is shown as by C.
pub struct Float {
    value: f64,
    letter: char,
    space: bool,
}

/// Returns a value for `%f`, `%F`, `%e`, `%E`, `%g` and `%G`.
pub fn float(value: f64, letter: char, space: bool) -> Float {
    Float { value, letter, space }
}

impl fmt::Display for Float {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = sign(f, self.value.is_sign_negative(), self.space);
        let mut text = Text { bytes: [0; TEXT], len: 0 };
        let value = self.value.abs();
        if value.is_finite() {
            let precision = f.precision().unwrap_or(6);
            match self.letter.to_ascii_lowercase() {
                'e' => exponential(&mut text, value, precision, f.alternate())?,
                'g' => general(&mut text, value, precision.max(1), f.alternate())?,
                _ => fixed(&mut text, value, precision, f.alternate())?,
            }
        } else {
            text.write_str(if value.is_nan() { "nan" } else { "inf" })?;
        }
        if self.letter.is_ascii_uppercase() {
            text.bytes.make_ascii_uppercase();
        }
        let mut zeros = 0;
        if f.sign_aware_zero_pad() && value.is_finite() {
            zeros = f.width().unwrap_or(0).saturating_sub(sign.len() + text.len);
        }
        padded(f, sign.len() + zeros + text.len, |f| {
            f.write_str(sign)?;
            (0..zeros).try_for_each(|_| f.write_char('0'))?;
            f.write_str(text.as_str())
        })
    }
}

fn fixed(out: &mut Text, value: f64, precision: usize, alternate: bool) -> fmt::Result {
    write!(out, "{value:.precision$}")?;
    if alternate && precision == 0 { out.write_char('.') } else { Ok(()) }
}

fn exponential(out: &mut Text, value: f64, precision: usize, alternate: bool) -> fmt::Result {
    let (text, exponent) = scientific(value, precision)?;
    out.write_str(text.as_str())?;
    if alternate && precision == 0 {
        out.write_char('.')?;
    }
    put_exponent(out, exponent)
}

fn general(out: &mut Text, value: f64, precision: usize, alternate: bool) -> fmt::Result {
    let (mut text, exponent) = scientific(value, precision - 1)?;
    let small = usize::try_from(exponent).map_or(exponent >= -4, |exponent| exponent < precision);
    if small {
        text.len = 0;
        let after = i64::try_from(precision - 1).map_or(0, |most| most - i64::from(exponent));
        write!(text, "{value:.*}", usize::try_from(after).unwrap_or(0))?;
    }
    let has_point = text.as_str().contains('.');
    if has_point && !alternate {
        let kept = text.as_str().trim_end_matches('0').trim_end_matches('.').len();
        text.len = kept;
    }
    out.write_str(text.as_str())?;
    if alternate && !has_point {
        out.write_char('.')?;
    }
    if small { Ok(()) } else { put_exponent(out, exponent) }
}

/// Returns the text `d.ddd` and its exponent.
fn scientific(value: f64, precision: usize) -> Result<(Text, i32), fmt::Error> {
    let mut text = Text { bytes: [0; TEXT], len: 0 };
    write!(text, "{value:.precision$e}")?;
    let (mantissa, exponent) = text.as_str().split_once('e').ok_or(fmt::Error)?;
    let exponent = exponent.parse().map_err(|_| fmt::Error)?;
    let len = mantissa.len();
    text.len = len;
    Ok((text, exponent))
}

fn put_exponent(out: &mut Text, exponent: i32) -> fmt::Result {
    let sign = if exponent < 0 { '-' } else { '+' };
    write!(out, "e{sign}{:02}", exponent.unsigned_abs())
}

/// Room for all digits of the largest double and the largest precision after them.
const TEXT: usize = 1400;

struct Text {
    bytes: [u8; TEXT],
    len: usize,
}

impl Text {
    fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

fn sign(f: &fmt::Formatter<'_>, negative: bool, space: bool) -> &'static str {
    match (negative, f.sign_plus(), space) {
        (true, _, _) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        (false, false, false) => "",
    }
}

/// Writes spaces around the `len` characters that `show` writes.
fn padded(
    f: &mut fmt::Formatter<'_>,
    len: usize,
    show: impl FnOnce(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    let pad = f.width().unwrap_or(0).saturating_sub(len);
    let left = f.align() == Some(fmt::Alignment::Left);
    let (before, after) = if left { (0, pad) } else { (pad, 0) };
    (0..before).try_for_each(|_| f.write_char(' '))?;
    show(f)?;
    (0..after).try_for_each(|_| f.write_char(' '))
}
