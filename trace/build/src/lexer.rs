//! The lexer: cuts one line of a `trace-events` file into tokens.

use crate::error::{Report, quoted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// An identifier of C.
    Word(String),
    /// Any other character. A quote opens a string, which [`Lexer::string`] reads.
    Char(char),
    End,
}

impl Token {
    /// Returns the token for a message.
    pub fn shown(&self) -> String {
        match self {
            Token::Word(word) => quoted(word),
            Token::Char(c) => quoted(c.encode_utf8(&mut [0; 4])),
            Token::End => "the end of the line".to_owned(),
        }
    }
}

/// A token and its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub token: Token,
    pub column: usize,
}

pub(crate) struct Lexer<'a> {
    chars: &'a [char],
    at: usize,
}

impl<'a> Lexer<'a> {
    pub fn new(chars: &'a [char]) -> Lexer<'a> {
        Lexer { chars, at: 0 }
    }

    /// Returns the next token without taking it.
    pub fn peek(&mut self) -> Placed {
        while self.chars.get(self.at).is_some_and(char::is_ascii_whitespace) {
            self.at += 1;
        }
        let column = self.at + 1;
        let token = match self.chars.get(self.at) {
            None => Token::End,
            Some(c) if is_first(*c) => Token::Word(self.word().collect()),
            Some(c) => Token::Char(*c),
        };
        Placed { token, column }
    }

    pub fn next(&mut self) -> Placed {
        let placed = self.peek();
        self.at += match &placed.token {
            Token::Word(word) => word.len(),
            Token::Char(_) => 1,
            Token::End => 0,
        };
        placed
    }

    fn word(&self) -> impl Iterator<Item = char> {
        let rest = self.chars.get(self.at..).unwrap_or_default();
        rest.iter().copied().take_while(|c| is_first(*c) || c.is_ascii_digit())
    }

    /// Reads the rest of a string after its opening quote. Returns the characters of the string, with escapes
    /// resolved, and the column of each character. If the string has no end, the function reports an error
    /// and returns None.
    pub fn string(&mut self, report: &mut Report<'_>) -> Option<Vec<(char, usize)>> {
        let mut units = Vec::new();
        loop {
            let column = self.at + 1;
            let Some(&c) = self.chars.get(self.at) else {
                report.add(column, "'\"' at the end of the string", Token::End.shown());
                return None;
            };
            self.at += 1;
            match c {
                '"' => return Some(units),
                '\\' => units.extend(self.escape(column, report).map(|c| (c, column))),
                c if is_hidden(c) => {
                    report.add(column, "a visible character or an escape", quoted(&c.to_string()));
                }
                c => units.push((c, column)),
            }
        }
    }

    /// Reads an escape whose backslash was taken, and returns the escape's character.
    fn escape(&mut self, column: usize, report: &mut Report<'_>) -> Option<char> {
        let Some(&c) = self.chars.get(self.at) else {
            return None; // The string's missing end is the error.
        };
        self.at += 1;
        let value = match c {
            '"' | '\\' | '\'' | '?' => return Some(c),
            't' => return Some('\t'),
            'r' => return Some('\r'),
            'a' => 7,
            'b' => 8,
            'v' => 11,
            'f' => 12,
            'e' => 27,
            'n' => 10,
            '0'..='7' => {
                self.at -= 1;
                self.number(8, 3)
            }
            'x' => self.number(16, usize::MAX),
            'u' => self.number(16, 4),
            'U' => self.number(16, 8),
            _ => {
                let known = "one of the escapes \\\" \\\\ \\' \\? \\a \\b \\e \\f \\r \\t \\v, \
                    \\x.., \\u.... or an octal one";
                report.add(column, known, quoted(&format!("\\{c}")));
                return None;
            }
        };
        // A byte above 0x7f is only a part of a character.
        let whole = matches!(c, 'u' | 'U') || value < 0x80;
        let decoded = char::from_u32(value).filter(|c| whole && *c != '\0');
        if decoded.is_none() {
            let text: String =
                self.chars.get(column - 1..self.at).unwrap_or_default().iter().collect();
            let expected =
                "an escape of a character other than NUL (\\x and octal ones end at 0x7f)";
            report.add(column, expected, quoted(&text));
        }
        decoded
    }

    /// Reads the digits of an escape. If there are no digits, returns a value that is no character.
    fn number(&mut self, base: u32, most: usize) -> u32 {
        let mut value = None::<u32>;
        for _ in 0..most {
            let Some(digit) = self.chars.get(self.at).and_then(|c| c.to_digit(base)) else {
                break;
            };
            value = Some(value.unwrap_or(0).saturating_mul(base).saturating_add(digit));
            self.at += 1;
        }
        value.unwrap_or(u32::MAX)
    }
}

fn is_first(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// Returns true for control characters, and for characters that change the direction of the text around them.
/// A compiler refuses such characters in source code, and a reader sees a different text.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\t'
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
