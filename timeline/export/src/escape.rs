// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Escaping of guest strings for terminals, and for readers of JSON, HTML and CSV.
//!
//! A guest's strings are arbitrary. Unescaped strings could move the cursor, rename the window, hide text or
//! reverse a line's reading order. So a character that is not plainly visible is shown as the number of the
//! character.

use std::fmt::{self, Write};

/// Returns whether a character could have another effect than being shown.
fn is_dangerous(c: char) -> bool {
    c.is_control() // C0, DEL, C1
        || matches!(c,
            '\u{ad}' // soft hyphen: may be invisible
            | '\u{61c}' | '\u{200e}' | '\u{200f}' // direction marks
            | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' // embeddings, overrides, isolates
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{feff}' // no width
            | '\u{2028}' | '\u{2029}' // line and paragraph ends
            | '\u{206a}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' // deprecated format characters
            | '\u{180e}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' // blank letters
            | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}' // private use: unknown glyphs
            | '\u{e0000}'..='\u{e0fff}' // tags and selectors: invisible
            | '\u{fe00}'..='\u{fe0f}' // variation selectors
        )
}

/// Returns bytes as a text if no byte needs an escape in any of the formats. Most texts need no escape.
fn plain(bytes: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    std::str::from_utf8(bytes).ok().filter(|_| bytes.iter().all(is_plain))
}

/// Writes a text. `escape` writes each character for which `is_special` is true.
fn escaped(
    f: &mut fmt::Formatter<'_>,
    text: &str,
    is_special: impl Fn(char) -> bool,
    escape: impl Fn(&mut fmt::Formatter<'_>, char) -> fmt::Result,
) -> fmt::Result {
    let mut plain = 0;
    for (at, c) in text.char_indices().filter(|(_, c)| is_special(*c)) {
        f.write_str(&text[plain..at])?;
        plain = at + c.len_utf8();
        escape(f, c)?;
    }
    f.write_str(&text[plain..])
}

/// Writes a dangerous character as an escape of JSON.
fn json_number(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}"))
}

fn is_quoted(c: char) -> bool {
    matches!(c, '"' | '\\') || is_dangerous(c)
}

fn is_dangerous_in_lines(c: char) -> bool {
    c != '\n' && is_dangerous(c)
}

/// Bytes for a person to read. Dangerous characters become `\n`, `\x1b` or `\u{202e}`; invalid UTF-8 is shown
/// byte by byte. Quotes and backslashes are escaped, so that no character within a quoted string looks like
/// the end of the string.
#[derive(Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = plain(self.0) {
            return f.write_str(text);
        }
        for chunk in self.0.utf8_chunks() {
            escaped(f, chunk.valid(), is_quoted, |f, c| match c {
                '"' | '\\' => write!(f, "\\{c}"),
                '\n' => f.write_str("\\n"),
                '\r' => f.write_str("\\r"),
                '\t' => f.write_str("\\t"),
                c if c.is_ascii() => write!(f, "\\x{:02x}", c as u32),
                c => write!(f, "\\u{{{:x}}}", c as u32),
            })?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Message of this program that may quote foreign text: only dangerous characters
/// are escaped, not line ends and quotes.
#[derive(Debug)]
pub struct Message<'a>(pub &'a str);

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, self.0, is_dangerous_in_lines, |f, c| write!(f, "\\u{{{:x}}}", c as u32))
    }
}

/// Bytes as a JSON string with its quotes. Invalid UTF-8 becomes U+FFFD. Dangerous
/// characters are escaped, so that a terminal may show the line.
#[derive(Debug)]
pub struct Json<'a>(pub &'a [u8]);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        if let Some(text) = plain(self.0) {
            f.write_str(text)?;
            return f.write_char('"');
        }
        for chunk in self.0.utf8_chunks() {
            escaped(f, chunk.valid(), is_quoted, |f, c| match c {
                '"' | '\\' => write!(f, "\\{c}"),
                c => json_number(f, c),
            })?;
            if !chunk.invalid().is_empty() {
                f.write_char('\u{fffd}')?;
            }
        }
        f.write_char('"')
    }
}

/// JSON document that a terminal may show. Dangerous characters can occur only in the document's strings,
/// where they are escaped.
#[derive(Debug)]
pub struct JsonText<'a>(pub &'a str);

impl fmt::Display for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, self.0, is_dangerous_in_lines, json_number)
    }
}

/// Text in an HTML page, also in a quoted attribute. Dangerous characters are shown by number.
#[derive(Debug)]
pub struct Html<'a>(pub &'a str);

impl fmt::Display for Html<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_special = |c| matches!(c, '&' | '<' | '>' | '"' | '\'') || is_dangerous(c);
        escaped(f, self.0, is_special, |f, c| match c {
            '&' | '<' | '>' | '"' | '\'' => write!(f, "&#{};", c as u32),
            c => write!(f, "\\u{{{:x}}}", c as u32),
        })
    }
}

/// JSON document in a `script` element of an HTML page. Nothing in the document ends the element.
#[derive(Debug)]
pub struct JsonInHtml<'a>(pub &'a str);

impl fmt::Display for JsonInHtml<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In a JSON document, the characters `&`, `<` and `>` can occur only in strings, so JSON's own
        // escapes can replace them.
        let is_special = |c| matches!(c, '&' | '<' | '>') || is_dangerous_in_lines(c);
        escaped(f, self.0, is_special, json_number)
    }
}

/// Text as a value of CSV. The text gets quotes if they are needed. Dangerous characters are escaped,
/// including line ends and tabs. A text that a spreadsheet would run as a formula gets a `'` in front, also
/// if the formula's sign is a full-width character. A number gets no `'`. A text that begins with `'` gets a
/// second `'` in front, because readers remove the first `'`.
#[derive(Debug)]
pub struct Csv<'a>(pub &'a [u8]);

impl fmt::Display for Csv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./ ".contains(&byte);
        let is_marked = text.starts_with([
            '=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}', '\'',
        ]);
        let is_number = || text.parse::<f64>().is_ok_and(f64::is_finite);
        let mark = if is_marked && !is_number() { "'" } else { "" };
        match self.0.iter().copied().all(is_plain) && mark.is_empty() {
            true => f.write_str(&text),
            false => {
                let text = Escaped(self.0).to_string().replace("\\\"", "\"\"");
                write!(f, "\"{mark}{text}\"")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn characters_that_control_a_terminal_are_shown_by_number() {
        for (from, to) in [
            (&b"plain text"[..], "plain text"),
            ("\u{e4}\u{6587}".as_bytes(), "\u{e4}\u{6587}"),
            (b"\x1b[2J\x07", "\\x1b[2J\\x07"),
            (b"a\r\nb\t", "a\\r\\nb\\t"),
            (b"\x7f", "\\x7f"),
            (b"\xc2\x9b31m", "\\u{9b}31m"),
            (b"\xff\xfe ok", "\\xff\\xfe ok"),
            (b"\"\\", "\\\"\\\\"),
            ("\u{202e}gnp.exe\u{2066}".as_bytes(), "\\u{202e}gnp.exe\\u{2066}"),
            ("\u{200b}\u{feff}".as_bytes(), "\\u{200b}\\u{feff}"),
            ("\u{e0041}".as_bytes(), "\\u{e0041}"),
        ] {
            assert_eq!(Escaped(from).to_string(), to);
        }
    }

    #[test]
    fn values_of_csv_with_commas_are_quoted() {
        assert_eq!(Csv(b"vmm/vcpu 0").to_string(), "vmm/vcpu 0");
        assert_eq!(Csv(b"a,\"b\"\n").to_string(), "\"a,\"\"b\"\"\\n\"");
    }

    #[test]
    fn a_spreadsheet_runs_no_text() {
        for text in ["=1+1", "+a", "-a", "@SUM(A1)", "-1+1", "+1-1", "-inf", "\u{ff1d}1+1"] {
            assert_eq!(Csv(text.as_bytes()).to_string(), format!("\"'{text}\""));
        }
        assert_eq!(Csv(b"'=1").to_string(), "\"''=1\"", "it is not the text =1");
        assert_eq!(Csv(b"\t=1").to_string(), "\"\\t=1\"");
        for number in ["-1", "-1.5", "+2", "17", "-1e3"] {
            assert_eq!(Csv(number.as_bytes()).to_string().trim_matches('"'), number);
        }
    }

    proptest! {
        #[test]
        fn dangerous_characters_are_never_printed(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let shown = Escaped(&bytes).to_string();
            prop_assert!(!shown.chars().any(is_dangerous));
            let message = Message(&String::from_utf8_lossy(&bytes)).to_string();
            prop_assert!(!message.chars().any(|c| c != '\n' && is_dangerous(c)));
            let html = Html(&String::from_utf8_lossy(&bytes)).to_string();
            prop_assert!(!html.chars().any(|c| is_dangerous(c) || "<>\"'".contains(c)));
        }

        #[test]
        fn escaped_json_reads_back_unchanged(bytes in prop::collection::vec(any::<u8>(), 0..200), text in ".*") {
            for bytes in [&bytes[..], text.as_bytes()] {
                let shown = Json(bytes).to_string();
                prop_assert!(!shown.chars().any(is_dangerous));
                let back: String = serde_json::from_str(&shown).unwrap();
                prop_assert_eq!(&back, &String::from_utf8_lossy(bytes));
                let shown = JsonText(&serde_json::json!([back]).to_string()).to_string();
                prop_assert!(!shown.chars().any(is_dangerous));
                prop_assert_eq!(&serde_json::from_str::<[String; 1]>(&shown).unwrap()[0], &back);
                let shown = JsonInHtml(&serde_json::json!([back]).to_string()).to_string();
                prop_assert!(!shown.contains(['<', '>', '&']));
                prop_assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [back]);
            }
        }
    }
}
