//! Formats of events: the strings and macros of the file.

use crate::error::{Report, quoted};
use crate::lexer::{Lexer, Token};
use std::fmt::Write;

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Consecutive strings, with their escapes resolved.
    Text(String),
    /// The name of a macro that stands for the rest of a conversion.
    Macro(String),
}

/// The format of an event. If the event has no format, the list of pieces is empty. Any other list begins
/// with a text, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    pieces: Vec<Piece>,
}

/// A character of the text that printf gets. This text is the format with its macros expanded.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub c: char,
    pub column: usize,
    /// The macro whose expansion contains the character, or `None` if the character belongs to a string.
    pub origin: Option<String>,
}

/// Expected text in the message about an unknown macro.
const KNOWN: &str =
    "a string, the end of the line or a macro (PRI[diouxX](8|16|32|64|PTR), such as PRIx64)";

impl Format {
    /// Returns an empty format.
    pub(crate) fn new() -> Format {
        Format { pieces: vec![Piece::Text(String::new())] }
    }

    /// Appends a part of a string.
    pub(crate) fn push_text(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    /// Appends a macro.
    pub(crate) fn push_macro(&mut self, name: &str) {
        self.pieces.push(Piece::Macro(name.to_owned()));
    }

    /// Returns the format's strings and macros.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the format in C's syntax: `"addr 0x%" PRIx64 " len %u"`.
    pub fn text(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => format!("\"{}\"", spelled(text)),
            Piece::Macro(name) => name.clone(),
        };
        self.pieces.iter().map(piece).collect::<Vec<_>>().join(" ")
    }
}

/// Parses the rest of a line as a format, and expands the format's macros. As in QEMU's files, the rest may
/// also be empty. The text of a format begins with `before`. If the rest is neither empty nor a format, the
/// function reports an error and returns None.
pub(crate) fn parse(
    before: &str,
    lexer: &mut Lexer<'_>,
    report: &mut Report<'_>,
) -> Option<(Format, Vec<Unit>)> {
    let first = lexer.peek();
    if first.token == Token::End {
        return Some((Format { pieces: Vec::new() }, Vec::new()));
    }
    if first.token != Token::Char('"') {
        let expected = "the format, which begins with '\"', or the end of the line";
        report.add(first.column, expected, first.token.shown());
        return None;
    }
    let mut format = Format::new();
    format.push_text(before);
    let unit = |c| Unit { c, column: first.column, origin: None };
    let mut units: Vec<Unit> = before.chars().map(unit).collect();
    loop {
        let placed = lexer.next();
        match placed.token {
            Token::End => {
                if let Some(last) = units.last().filter(|unit| unit.c == '\n') {
                    let expected = "a format that does not end with a line break, as each event \
                        has a line of its own";
                    report.add(last.column, expected, quoted("\n"));
                }
                return Some((format, units));
            }
            Token::Char('"') => {
                let string = lexer.string(report)?;
                format.push_text(&string.iter().map(|(c, _)| *c).collect::<String>());
                let unit = |(c, column)| Unit { c, column, origin: None };
                units.extend(string.into_iter().map(unit));
            }
            Token::Word(name) => {
                let unit = |c| Unit { c, column: placed.column, origin: Some(name.clone()) };
                match expand(&name) {
                    Some(text) => units.extend(text.chars().map(unit)),
                    None => report.add(placed.column, KNOWN, quoted(&name)),
                }
                format.push_macro(&name);
            }
            other => {
                let expected = match other {
                    Token::Char(',') => {
                        "the end of the line (two formats belong to tcg events, which are not \
                         supported)"
                    }
                    _ => "a string, a macro or the end of the line",
                };
                report.add(placed.column, expected, other.shown());
                return None;
            }
        }
    }
}

/// Returns the expansion of a macro on a 64-bit machine.
fn expand(name: &str) -> Option<String> {
    let (letter, bits) = name.strip_prefix("PRI")?.split_at_checked(1)?;
    let length = match bits {
        "8" | "16" | "32" => "",
        "64" | "PTR" => "l",
        _ => return None,
    };
    "diouxX".contains(letter).then(|| format!("{length}{letter}"))
}

/// Returns a text in the syntax of C source, without hidden characters and quotes.
fn spelled(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut last = ' ';
    while let Some(c) = chars.next() {
        let is_octal = match c {
            // QEMU's reader refuses a file that contains `\n` or `%m`, whatever precedes these two
            // characters.
            '\\' => chars.peek() == Some(&'n'),
            'm' => last == '%',
            '\t' | '\r' => false,
            c => c.is_ascii_control(),
        };
        // Writing to a String does not fail.
        let _ = match c {
            // The escape always has three digits, so that a digit after the escape is not taken for a part of
            // the escape.
            c if is_octal => write!(out, "\\{:03o}", u32::from(c)),
            '"' | '\\' => write!(out, "\\{c}"),
            '\t' => write!(out, "\\t"),
            '\r' => write!(out, "\\r"),
            c if crate::lexer::is_hidden(c) => write!(out, "\\u{:04x}", u32::from(c)),
            c => out.write_char(c),
        };
        last = c;
    }
    out
}
