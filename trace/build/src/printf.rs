//! Conversions of C's printf, and whether they fit their arguments.

use crate::error::{Report, quoted};
use crate::format::{Format, Unit};
use crate::types::{CType, Kind};

/// Upper bound on widths and precisions. A line of text is not much longer.
const MAX_NUMBER: u32 = 999;

/// A part of a format whose macros are expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    Text(String),
    Conversion(Conversion),
}

/// The flags of a conversion, in the order in which they are spelled.
const FLAGS: &str = "-+ #0";

/// `%` and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// Those of [`FLAGS`] that are set, in that order.
    flags: String,
    pub width: Option<u32>,
    pub precision: Option<u32>,
    /// Bits of the integer that the length selects: 8, 16, 32 or 64.
    pub bits: u32,
    /// The last character, which is one of those in [`takes`].
    pub letter: char,
}

impl Conversion {
    /// Returns whether a flag is set.
    pub fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }

    /// Writes the conversion in C's syntax. With `bits_of_double`, writes one for the bits of a
    /// double instead.
    pub fn spell(&self, bits_of_double: bool, out: &mut Format) {
        if bits_of_double {
            out.push_text("0x%016");
            return out.push_macro("PRIx64");
        }
        let Conversion { flags, width, precision, bits, letter } = self;
        let mut text = format!("%{flags}");
        text.extend(width.map(|width| width.to_string()));
        text.extend(precision.map(|precision| format!(".{precision}")));
        match bits {
            8 => out.push_text(&format!("{text}hh{letter}")),
            16 => out.push_text(&format!("{text}h{letter}")),
            32 => out.push_text(&format!("{text}{letter}")),
            _ => {
                out.push_text(&text);
                out.push_macro(&format!("PRI{letter}64"));
            }
        }
    }
}

/// Kinds of values that conversions take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Str,
    Address,
}

fn takes(letter: char) -> Option<Class> {
    Some(match letter {
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' | 'c' => Class::Integer,
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => Class::Float,
        's' => Class::Str,
        'p' => Class::Address,
        _ => return None,
    })
}

/// Splits a format into its parts and checks its conversions against the
/// arguments. An argument of unknown type is None. Reports conversions that do
/// not fit.
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
    fn next_if(&mut self, wanted: impl Fn(char) -> bool) -> Option<char> {
        let c = self.units.get(self.at).map(|unit| unit.c).filter(|c| wanted(*c))?;
        self.at += 1;
        Some(c)
    }

    /// Returns the text that was read, in the file's spelling.
    fn shown(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for unit in self.units.get(self.start..self.at).unwrap_or_default() {
            match &unit.origin {
                None => text.push(unit.c),
                Some(name) if last != Some(unit.column) => text.extend(["\" ", name]),
                Some(_) => {}
            }
            last = unit.origin.as_ref().map(|_| unit.column);
        }
        quoted(&text)
    }

    /// Reads the conversion after its `%`. Returns None, after a report, if it
    /// is invalid. In both cases, all of its characters are taken.
    fn conversion(&mut self, report: &mut Report<'_>) -> Option<Conversion> {
        let column = self.units.get(self.start).map_or(1, |unit| unit.column);
        let flags = self.flags();
        let width = self.number();
        // A dot alone is a precision of 0.
        let dot = self.next_if(|c| c == '.');
        let precision = dot.map(|_| self.number().unwrap_or(0));
        let length = self.length();
        let letter = self.next_if(|_| true);
        let mut wrong = |expected: &str| {
            report.add(column, expected, self.shown());
            None
        };
        let Some(letter) = letter else {
            return wrong("a whole conversion or '%%'");
        };
        let Some(class) = takes(letter) else {
            return wrong(match letter {
                '*' => "a number for the width or precision, as an event has no argument for '*'",
                '$' => "conversions in the order of the arguments",
                'm' => "the error number as an argument of its own",
                '%' => "'%%' with nothing between",
                _ => "a conversion (one of d i u o x X c s p f F e E g G)",
            });
        };
        let Some(length) = length else {
            return wrong("at most one of the lengths hh h l ll z j t");
        };
        let length_fits = match class {
            Class::Integer if letter != 'c' => true,
            Class::Float => length == "l" || length.is_empty(),
            _ => length.is_empty(),
        };
        if !length_fits {
            return wrong(&format!("no length {} before '{letter}'", quoted(length)));
        }
        if let Some(flag) = flags.chars().find(|flag| !has_meaning(*flag, letter)) {
            return wrong(&format!("no flag '{flag}', which means nothing to '%{letter}'"));
        }
        if precision.is_some() && matches!(letter, 'c' | 'p') {
            return wrong(&format!("no precision, which means nothing to '%{letter}'"));
        }
        if width.max(precision) > Some(MAX_NUMBER) {
            return wrong("a width and a precision of at most 999");
        }
        let bits = match length {
            "hh" => 8,
            "h" => 16,
            "" => 32,
            _ => 64,
        };
        Some(Conversion { flags, width, precision, bits, letter })
    }

    fn flags(&mut self) -> String {
        let mut set = String::new();
        while let Some(flag) = self.next_if(|c| FLAGS.contains(c)) {
            set.push(flag);
        }
        FLAGS.chars().filter(|flag| set.contains(*flag)).collect()
    }

    /// Reads a number, if there are digits.
    fn number(&mut self) -> Option<u32> {
        let mut number = None;
        while let Some(digit) = self.next_if(|c| c.is_ascii_digit()).and_then(|c| c.to_digit(10)) {
            number = Some(number.unwrap_or(0_u32).saturating_mul(10).saturating_add(digit));
        }
        number
    }

    /// Reads the length, which may be empty. Returns None if C does not have it.
    fn length(&mut self) -> Option<&'static str> {
        let mut all = String::new();
        while let Some(c) = self.next_if(|c| matches!(c, 'h' | 'l' | 'z' | 'j' | 't' | 'L' | 'q')) {
            all.push(c);
        }
        ["", "hh", "h", "l", "ll", "z", "j", "t"].into_iter().find(|known| *known == all)
    }
}

/// Returns whether C defines a flag for a conversion.
fn has_meaning(flag: char, letter: char) -> bool {
    let float = takes(letter) == Some(Class::Float);
    match flag {
        '+' | ' ' => float || matches!(letter, 'd' | 'i'),
        '#' => float || matches!(letter, 'o' | 'x' | 'X'),
        '0' => float || matches!(letter, 'd' | 'i' | 'u' | 'o' | 'x' | 'X'),
        _ => true,
    }
}

/// Returns the expected text if a conversion does not fit its argument.
fn expected_instead(conversion: &Conversion, name: &str, ty: &CType) -> Option<String> {
    let kind = ty.kind();
    let class = match kind {
        Kind::Str => Class::Str,
        Kind::Address => Class::Address,
        Kind::F64 => Class::Float,
        _ => Class::Integer,
    };
    let of = format!("for {}, which is {}", quoted(name), a(ty.text()));
    if takes(conversion.letter) != Some(class) {
        return Some(format!("{} {of}", fitting(kind)));
    }
    let (bits, signed) = kind.integer()?;
    // A value smaller than an int becomes an int, and no length cuts off a larger one.
    let letter = match conversion.letter {
        'c' if signed => 'd',
        'c' => 'u',
        letter => letter,
    };
    match (bits == 64, conversion.bits == 64) {
        (true, false) => Some(format!("PRI{letter}64 {of}")),
        (false, true) => Some(format!("'%{letter}' {of}")),
        _ => None,
    }
}

/// Returns the conversions for a kind of values.
fn fitting(kind: Kind) -> &'static str {
    match kind {
        Kind::Str => "'%s'",
        Kind::Address => "'%p'",
        Kind::F64 => "'%f', '%e' or '%g'",
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
