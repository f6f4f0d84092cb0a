//! Output of the command: text on stdout, messages on stderr.
//!
//! `println!` and `eprintln!` panic where the reader is gone or the disk is full. A message that
//! cannot be written is dropped: it must not end a program that is being traced.

use crate::escape::Message;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Display;
use std::io::{self, Write};
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

/// Writes a message to stderr, escaped, if it can be written.
pub fn say(message: impl Display) {
    prompt(format_args!("hypertrace: {}\n", Message(&message.to_string())));
}

/// Writes text to stderr, if it can be written.
pub fn prompt(text: impl Display) {
    // In one piece, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}
