//! Conversions of C's printf, and whether they fit their arguments.

use crate::error::{Report, quoted};
use crate::format::{Format, Unit};
use crate::types::{CType, Kind};

/// Maximum width of a conversion. A whole line of text has at most 1,000 bytes.
pub(crate) const MAX_WIDTH: u32 = 999;

/// A part of a format whose macros are expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Text(String),
    Conversion(Conversion),
}

/// A conversion: `%` with its flag, width, length and letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// True if zeros, not spaces, fill the width.
    pub zero: bool,
    /// True if the width is `*`: then the argument before the shown argument gives the width.
    pub has_star: bool,
    /// The width, or 0 if the conversion has no width or a star.
    pub width: u32,
    /// True if the length selects 64 bits, not 32.
    pub is_long: bool,
    /// The last character. [`takes`] knows this character.
    pub letter: char,
}

impl Conversion {
    /// Writes the conversion in C's syntax.
    pub fn spell(&self, out: &mut Format) {
        let Conversion { is_long, letter, .. } = self;
        out.push_text(&format!("%{}", self.padding()));
        match is_long {
            true => out.push_macro(&format!("PRI{letter}64")),
            false => out.push_text(&letter.to_string()),
        }
    }

    /// Returns the text between `%` and the letter. C and Rust write the flag `0` and the width in the same
    /// way. A width that is an argument is written as C's star.
    pub fn padding(&self) -> String {
        match (self.zero, self.width) {
            (zero, _) if self.has_star => format!("{}*", if zero { "0" } else { "" }),
            (_, 0) => String::new(),
            (true, width) => format!("0{width}"),
            (false, width) => width.to_string(),
        }
    }
}

/// Kinds of values that conversions take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Integer,
    Str,
    Address,
}

fn takes(letter: char) -> Option<Class> {
    Some(match letter {
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'c' => Class::Integer,
        's' => Class::Str,
        'p' => Class::Address,
        _ => return None,
    })
}

/// Splits a format into its parts, and checks its conversions against the arguments. The type of an argument
/// is None if it is unknown. Reports conversions that do not fit.
pub(crate) fn parse(
    units: &[Unit],
    arguments: &[(&str, Option<&CType>)],
    end: usize,
    report: &mut Report<'_>,
) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut text = String::new();
    let mut given = 0;
    let mut at = 0;
    while let Some(unit) = units.get(at) {
        at += 1;
        if unit.c != '%' {
            text.push(unit.c);
            continue;
        }
        if units.get(at).is_some_and(|next| next.c == '%') {
            text.push('%');
            at += 1;
            continue;
        }
        let mut cursor = Cursor { units, start: at - 1, at };
        let conversion = cursor.conversion(report);
        at = cursor.at;
        if conversion.as_ref().is_some_and(|conversion| conversion.has_star) {
            // If the argument of the star is missing, the argument of the conversion is missing, too, and is
            // reported below.
            if let Some((name, Some(ty))) = arguments.get(given)
                && ty.kind().integer().is_none_or(|(bits, _)| bits > 32)
            {
                let of = a(ty.text());
                let expected = format!("a number instead of '*', as {} is {of}", quoted(name));
                report.add(unit.column, expected, cursor.shown());
            }
            given += 1;
        }
        match arguments.get(given) {
            None if conversion.is_none() => {}
            None => {
                let (n, s) = (arguments.len(), if arguments.len() == 1 { "" } else { "s" });
                let expected = format!("at most {n} conversion{s}, one for each argument");
                report.add(unit.column, expected, cursor.shown());
            }
            Some((name, Some(ty))) => {
                if let Some(conversion) = &conversion
                    && let Some(expected) = expected_instead(conversion, name, ty)
                {
                    report.add(unit.column, expected, cursor.shown());
                }
            }
            Some((_, None)) => {}
        }
        given += 1;
        if let Some(conversion) = conversion {
            if !text.is_empty() {
                segments.push(Segment::Text(std::mem::take(&mut text)));
            }
            segments.push(Segment::Conversion(conversion));
        }
    }
    if let Some((name, _)) = arguments.get(given).filter(|(name, _)| !name.is_empty()) {
        report.add(end, format!("a conversion for {}", quoted(name)), "the end of the format");
    }
    if !text.is_empty() {
        segments.push(Segment::Text(text));
    }
    segments
}

/// Reader of one conversion of a format.
struct Cursor<'a> {
    units: &'a [Unit],
    start: usize,
    at: usize,
}

impl Cursor<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.units.get(self.at)?.c;
        self.at += 1;
        Some(c)
    }

    /// Reads characters until `wanted` returns false.
    fn all(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let rest = self.units.get(self.at..).unwrap_or_default();
        let read: String = rest.iter().map(|unit| unit.c).take_while(|c| wanted(*c)).collect();
        self.at += read.chars().count();
        read
    }

    /// Reads a number. Returns 0 if there are no digits.
    fn number(&mut self) -> u32 {
        let digits = self.all(|c| c.is_ascii_digit());
        if digits.is_empty() { 0 } else { digits.parse().unwrap_or(u32::MAX) }
    }

    /// Returns the text that was read, in the file's spelling.
    fn shown(&self) -> String {
        let mut text = String::new();
        for unit in self.units.get(self.start..self.at).unwrap_or_default() {
            match &unit.origin {
                None => text.push(unit.c),
                // A macro ends the conversion.
                Some(name) => {
                    text.extend(["\" ", name]);
                    break;
                }
            }
        }
        quoted(&text)
    }

    /// Reads the conversion after its `%`, in one of the forms that QEMU's own files use. Returns None, after
    /// a report, for any other form. Even then, the function takes all characters of the conversion.
    fn conversion(&mut self, report: &mut Report<'_>) -> Option<Conversion> {
        let column = self.units.get(self.start).map_or(1, |unit| unit.column);
        let flags = self.all(|c| "-+ #0".contains(c));
        let has_star = self.units.get(self.at).is_some_and(|unit| unit.c == '*');
        self.at += usize::from(has_star);
        let width = if has_star { 0 } else { self.number() };
        let has_precision = self.units.get(self.at).is_some_and(|unit| unit.c == '.');
        self.at += usize::from(has_precision);
        let digits = if has_precision { self.number() } else { 0 };
        let length = self.all(|c| "hlzjtLq".contains(c));
        let letter = self.next().unwrap_or('\0');
        let expected = match letter {
            '\0' => "a whole conversion or '%%'",
            '*' => "a number for the precision, as an argument can only be a width",
            '$' => "conversions in the order of the arguments",
            'm' => "the error number as an argument of its own",
            '%' => "'%%' with nothing between",
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' => "an integer of a smaller unit and '%d' or '%u'",
            _ if takes(letter).is_none() => "a conversion (one of d i u o x X c s p)",
            _ if flags.contains('#') => "'0x%x' or '0%o' instead of the flag '#'",
            _ if flags.contains(['-', '+', ' ']) => "no flag but '0'",
            's' if has_precision => "'%s' without a precision, and a string that the caller cuts",
            's' if !flags.is_empty() || !length.is_empty() => "'%s' with at most a width",
            'c' | 'p' if self.at - self.start > 2 => "'%c' and '%p' with nothing between",
            _ if !["", "l", "ll", "z"].contains(&&*length) => {
                "the length l, ll or z for 64 bits, or none"
            }
            _ if has_precision && (letter != 'x' || digits < width.max(1) || has_star) => {
                "a width with a zero, such as '%08x', instead of a precision"
            }
            _ if width.max(digits) > MAX_WIDTH => "a width of at most 999",
            _ => {
                // If a conversion has a width and a precision, the precision is at least the width, so the
                // precision alone gives the number of digits.
                return Some(Conversion {
                    zero: has_precision || !flags.is_empty(),
                    has_star,
                    width: width.max(digits),
                    is_long: !length.is_empty(),
                    letter,
                });
            }
        };
        report.add(column, expected, self.shown());
        None
    }
}

/// Returns the expected text if a conversion does not fit its argument.
fn expected_instead(conversion: &Conversion, name: &str, ty: &CType) -> Option<String> {
    let kind = ty.kind();
    let class = match kind {
        Kind::Str => Class::Str,
        Kind::Address => Class::Address,
        _ => Class::Integer,
    };
    let of = format!("for {}, which is {}", quoted(name), a(ty.text()));
    if takes(conversion.letter) != Some(class) {
        return Some(format!("{} {of}", fitting(kind)));
    }
    let (bits, signed) = kind.integer()?;
    // C turns a value smaller than an int into an int, so every 32-bit conversion fits the value. But a
    // 32-bit conversion would cut off a 64-bit value.
    let letter = match conversion.letter {
        'c' if signed => 'd',
        'c' => 'u',
        letter => letter,
    };
    match (bits == 64, conversion.is_long) {
        (true, false) => Some(format!("PRI{letter}64 {of}")),
        (false, true) => Some(format!("'%{letter}' {of}")),
        _ => None,
    }
}

/// Returns the conversions for a kind of value.
fn fitting(kind: Kind) -> &'static str {
    match kind {
        Kind::Str => "'%s'",
        Kind::Address => "'%p'",
        Kind::I64 => "PRId64 or PRIx64",
        Kind::U64 => "PRIu64 or PRIx64",
        Kind::I8 | Kind::I16 | Kind::I32 => "'%d' or '%x'",
        Kind::U8 | Kind::U16 | Kind::U32 | Kind::Bool => "'%u' or '%x'",
    }
}

/// Returns a type with its article.
fn a(text: &str) -> String {
    let vowel = text.starts_with(['a', 'e', 'i', 'o']);
    format!("{} {text}", if vowel { "an" } else { "a" })
}
