//! Output of the command: text on stdout, messages on stderr.
//!
//! `println!` and `eprintln!` panic where the reader is gone or the disk is full. A message that
//! cannot be written is dropped: it must not end a program that is being traced.

use crate::escape::Message;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;

/// Writes text to stdout.
///
/// # Errors
/// If it cannot be written. A closed pipe is an error too, which ends the command with status 0.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).context("cannot write")
}

/// Lays out rows below a header. The columns `numbers` are aligned to the right.
pub fn table<const N: usize>(
    header: [&str; N],
    numbers: Range<usize>,
    rows: impl IntoIterator<Item = [String; N]>,
) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut().skip(numbers.start).take(numbers.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Columns of a terminal for which lines are laid out.
const COLUMNS: usize = 80;

/// Divides a line between words into lines that fit a terminal: the first begins with `indent`, the
/// others with two more spaces. Longer words, such as paths, are not divided.
pub fn wrapped(line: &str, indent: &str) -> String {
    let mut out = indent.to_owned();
    let mut column = indent.chars().count();
    let mut is_first = true;
    for word in line.split(' ') {
        let len = word.chars().count();
        if is_first {
            is_first = false;
        } else if column + 1 + len > COLUMNS {
            out.push('\n');
            out.push_str(indent);
            out.push_str("  ");
            column = indent.chars().count() + 2;
        } else {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
    }
    out.push('\n');
    out
}

/// Writes a message to stderr, escaped, if it can be written. On a terminal, its lines are divided
/// between words.
pub fn say(message: impl Display) {
    let message = format!("hypertrace: {}", Message(&message.to_string()));
    match io::stderr().is_terminal() {
        true => prompt(message.lines().map(|line| wrapped(line, "")).collect::<String>()),
        false => prompt(message + "\n"),
    }
}

/// Returns a display of the progress of so many parts, by a template of indicatif: on stderr, and only if that is a
/// terminal.
pub fn progress(parts: u64, template: &str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(template)?;
    Ok(ProgressBar::new(parts).with_style(style))
}

/// Writes text to stderr, if it can be written.
pub fn prompt(text: impl Display) {
    // In one piece, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_divided_between_words() {
        let word = "x".repeat(38);
        let line = format!("{word} {word} {word} y");

        assert_eq!(wrapped(&line, " "), format!(" {word} {word}\n   {word} y\n"));
        let path = "/p".repeat(60);
        assert_eq!(wrapped(&format!("in {path} z"), ""), format!("in\n  {path}\n  z\n"));
        assert_eq!(wrapped(&path, ""), format!("{path}\n"));
    }
}
