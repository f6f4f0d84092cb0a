//! Output of the command: text on stdout, messages on stderr.
//!
//! `println!` and `eprintln!` panic if the reader is gone or the disk is full. A message that cannot be
//! written is dropped, because a failed write must not end a program that is being traced.

use crate::message;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Row, Table, presets};
use hypertrace_export::escape::{JsonText, Message};
use hypertrace_export::json::{JSON_VERSION, exact};
use hypertrace_format::error::BadInput;
pub use hypertrace_format::number::{counted, grouped};
use hypertrace_timeline::Warning;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use terminal_size::terminal_size_of;
use textwrap::{Options, WordSplitter};

/// Writes text to stdout.
///
/// # Errors
/// If the text cannot be written. A closed pipe is an error too, but the command then ends with status 0.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}").and_then(|()| out.flush()).context("cannot write")
}

/// Returns whether stdout is a pipe or socket whose reader has closed it.
pub fn reader_has_left() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let found = poll(&mut polled, Some(&Timespec::default()));
    found.is_ok() && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Writes a JSON object to stdout, with its version. Numbers become strings if readers would round the
/// numbers.
///
/// # Errors
/// As [`print`].
pub fn print_json(mut json: Value) -> Result<()> {
    json["version"] = JSON_VERSION.into();
    print(format_args!("{}\n", JsonText(&exact(json).to_string())))
}

/// Lays out rows below a header. The columns in the range `numbers` are aligned to the right.
pub fn table(
    header: impl Into<Row>,
    numbers: Range<usize>,
    rows: impl IntoIterator<Item: Into<Row>>,
) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    if let Some(columns) = terminal() {
        let columns = u16::try_from(columns).unwrap_or(u16::MAX);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    for column in table.column_iter_mut().skip(numbers.start).take(numbers.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Width in columns for which lines are laid out if stdout is no terminal.
const COLUMNS: usize = 80;

/// Returns the number of columns of the terminal, if stdout is a terminal.
pub fn terminal() -> Option<usize> {
    terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0).max(1))
}

/// Divides a line between words into lines that fit the terminal. The first line begins with `indent`, the
/// other lines with two more spaces. Words that are longer than a line, such as paths, are not divided.
pub fn wrapped(line: &str, indent: &str) -> String {
    hanging(line, indent, &format!("{indent}  "))
}

/// Divides a line as [`wrapped`] does. The first line begins with `first`, all other lines with `others`.
pub fn hanging(line: &str, first: &str, others: &str) -> String {
    let options =
        Options::new(terminal().unwrap_or(COLUMNS)).initial_indent(first).subsequent_indent(others);
    let options = options.break_words(false).word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(line, options) + "\n"
}

/// Writes a message to stderr, escaped. A message that cannot be written is dropped. On a terminal, lines are
/// divided between words.
pub fn say(message: impl Display) {
    let message = format!("hypertrace: {}", Message(&message.to_string()));
    match io::stderr().is_terminal() {
        true => prompt(message.lines().map(|line| wrapped(line, "")).collect::<String>()),
        false => prompt(message + "\n"),
    }
}

/// Faults of inputs. A command that finds faults in an input still shows the other parts of the input. The
/// command ends with the last damage as its error, so the exit code tells of the damage.
#[derive(Debug, Default)]
#[must_use]
pub struct Faults(Option<anyhow::Error>);

impl Faults {
    /// Prints warnings. A warning about damaged input goes to [`add`](Faults::add), which keeps the last
    /// damage for the end of the command.
    pub fn say(&mut self, warnings: impl IntoIterator<Item = Warning>) {
        for warning in warnings {
            match warning.is_bad_input() {
                true => self.add(warning),
                false => say(warning),
            }
        }
    }

    /// Keeps damage for the end, and prints the damage that was kept before.
    pub fn add(&mut self, damage: impl Into<anyhow::Error>) {
        if let Some(before) = self.0.replace(damage.into()) {
            say(message(&before));
        }
    }

    /// Ends a command that has shown everything that could be read.
    ///
    /// # Errors
    /// If there was damage.
    pub fn end(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Returns a progress bar for `parts` parts. `template` is a template of the crate `indicatif`. The bar is on
/// stderr, and shown only if stderr is a terminal.
pub fn progress(parts: u64, template: &str) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(template)?;
    Ok(ProgressBar::new(parts).with_style(style))
}

/// Time after which a command shows that it works.
const PATIENCE: Duration = Duration::from_secs(1);

/// The line that [`Busy`] shows.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A line on stderr, if stderr is a terminal: what a command does, and for how long the command has done so.
/// The line appears after a second, and disappears when the value is dropped.
#[derive(Debug)]
pub struct Busy {
    /// The drop of this sender ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    pub fn with(what: &'static str) -> Option<Busy> {
        if !io::stderr().is_terminal() {
            return None;
        }
        let (end, ended) = channel();
        let thread = thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let Ok(bar) = progress(0, "{spinner} {msg}, {elapsed}") else { return };
            let bar = bar.with_message(what).with_elapsed(PATIENCE);
            bar.enable_steady_tick(PATIENCE / 10);
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
            // Waits until the sender is dropped.
            let _ = ended.recv();
            SHOWN.lock().unwrap_or_else(PoisonError::into_inner).take();
            bar.finish_and_clear();
        });
        Some(Busy { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.end.take();
        self.thread.take().map(JoinHandle::join);
    }
}

/// Writes text to stderr. Text that cannot be written is dropped.
pub fn prompt(text: impl Display) {
    // The text is written in one piece, so that lines of several processes do not mix.
    let write = || drop(io::stderr().write_all(text.to_string().as_bytes()));
    match &*SHOWN.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
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
