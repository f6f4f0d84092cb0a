//! Formats of events: strings and macros of the file.

use crate::error::{Report, quoted};
use crate::lexer::{Lexer, Token};
use std::fmt::Write;

/// A part of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Strings that follow each other, their escapes resolved.
    Text(String),
    /// The name of a macro that stands for the rest of a conversion.
    Macro(String),
}

/// The format of an event. It begins with a text, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format {
    pieces: Vec<Piece>,
}

/// A character of a format whose macros are expanded, as printf gets it.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub c: char,
    pub column: usize,
    /// The macro whose expansion contains the character; none if it is a string's.
    pub origin: Option<String>,
}

/// Expected text in the message about an unknown macro.
const KNOWN: &str = "a string, the end of the line or a macro \
    (PRI[diouxX](8|16|32|64|PTR|MAX), HWADDR_PRI[diouxX], HWADDR_FMT_plx, VADDR_PRI[diouxX], \
    TARGET_PRI[diouxX], RAM_ADDR_FMT, TARGET_FMT_(lx|ld|lu|plx))";

impl Format {
    /// Returns the format's strings and macros.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the format in C's syntax: `"addr 0x%" PRIx64 " len %u"`.
    pub fn text(&self) -> String {
        let mut all = Speller::default();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => all.text(text),
                Piece::Macro(name) => all.name(name),
            }
        }
        all.finish()
    }
}

/// Parses the rest of a line, which must be a format, and expands its macros.
/// Returns None, after a report, if it is no format.
pub(crate) fn parse(lexer: &mut Lexer<'_>, report: &mut Report<'_>) -> Option<(Format, Vec<Unit>)> {
    let first = lexer.peek();
    if first.token != Token::Quote {
        report.add(first.column, "the format, which begins with '\"'", first.token.shown());
        return None;
    }
    let (mut pieces, mut units) = (Vec::new(), Vec::new());
    loop {
        let placed = lexer.next();
        match placed.token {
            Token::End => return Some((Format { pieces }, units)),
            Token::Quote => {
                let string = lexer.string(report)?;
                let text = string.iter().map(|(c, _)| *c);
                match pieces.last_mut() {
                    Some(Piece::Text(before)) => before.extend(text),
                    Some(_) if string.is_empty() => {}
                    _ => pieces.push(Piece::Text(text.collect())),
                }
                units.extend(string.into_iter().map(|(c, column)| Unit {
                    c,
                    column,
                    origin: None,
                }));
            }
            Token::Word(name) => {
                let column = placed.column;
                match expand(&name) {
                    Some(text) => units.extend(text.chars().map(|c| Unit {
                        c,
                        column,
                        origin: Some(name.clone()),
                    })),
                    None => report.add(column, KNOWN, quoted(&name)),
                }
                pieces.push(Piece::Macro(name));
            }
            Token::Comma => {
                let expected = "the end of the line (two formats belong to tcg events, \
                    which are not supported)";
                report.add(placed.column, expected, placed.token.shown());
                return None;
            }
            other => {
                report.add(
                    placed.column,
                    "a string, a macro or the end of the line",
                    other.shown(),
                );
                return None;
            }
        }
    }
}

/// Returns the expansion of a macro on a 64-bit machine.
fn expand(name: &str) -> Option<String> {
    let simple = match name {
        "RAM_ADDR_FMT" => "%lx",
        "TARGET_FMT_lx" | "TARGET_FMT_plx" | "HWADDR_FMT_plx" => "%016lx",
        "TARGET_FMT_ld" => "%ld",
        "TARGET_FMT_lu" => "%lu",
        _ => "",
    };
    if !simple.is_empty() {
        return Some(simple.to_owned());
    }
    let word = ["HWADDR_PRI", "VADDR_PRI", "TARGET_PRI"].iter().find_map(|p| name.strip_prefix(p));
    let (conversion, length) = match word {
        Some(conversion) => (conversion, "l"),
        None => {
            let rest = name.strip_prefix("PRI")?;
            let (conversion, bits) = rest.split_at_checked(1)?;
            let length = match bits {
                "8" | "16" | "32" => "",
                "64" | "PTR" | "MAX" => "l",
                _ => return None,
            };
            (conversion, length)
        }
    };
    let known = ["d", "i", "o", "u", "x", "X"].contains(&conversion);
    known.then(|| format!("{length}{conversion}"))
}

/// Writer of a format in the syntax of C source, without hidden characters.
#[derive(Default)]
pub(crate) struct Speller {
    out: String,
    in_string: bool,
}

impl Speller {
    /// Appends a part of a string.
    pub fn text(&mut self, text: &str) {
        self.open();
        let mut chars = text.chars().peekable();
        let mut last = ' ';
        while let Some(c) = chars.next() {
            match c {
                // QEMU's reader searches for these two characters, whatever is
                // before them, and refuses the file.
                '\\' if chars.peek() == Some(&'n') => self.octal(c),
                'm' if last == '%' => self.octal(c),
                '"' | '\\' => self.out.extend(['\\', c]),
                '\t' => self.out.push_str("\\t"),
                '\r' => self.out.push_str("\\r"),
                c if c.is_ascii_control() => self.octal(c),
                c if crate::lexer::is_hidden(c) => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(c));
                }
                c => self.out.push(c),
            }
            last = c;
        }
    }

    /// Appends a macro.
    pub fn name(&mut self, name: &str) {
        if self.out.is_empty() {
            self.open();
        }
        self.close();
        self.out.push(' ');
        self.out.push_str(name);
    }

    /// Returns the format.
    pub fn finish(mut self) -> String {
        if self.out.is_empty() {
            self.open();
        }
        self.close();
        self.out
    }

    /// Appends an octal escape of three digits, so that a digit after it is not part of it.
    fn octal(&mut self, c: char) {
        let _ = write!(self.out, "\\{:03o}", u32::from(c));
    }

    fn open(&mut self) {
        if !self.in_string {
            if !self.out.is_empty() {
                self.out.push(' ');
            }
            self.out.push('"');
        }
        self.in_string = true;
    }

    fn close(&mut self) {
        if self.in_string {
            self.out.push('"');
        }
        self.in_string = false;
    }
}
