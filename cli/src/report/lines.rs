//! The lines of a report, for people and for scripts.

use crate::output::{grouped, terminal};
use hypertrace_export::escape::Escaped;
use hypertrace_export::json::causes;
use hypertrace_export::number::{decimal, named};
use hypertrace_timeline::{
    Domain, EntryRef, EventKind, EventRef, Lost, Name, Recording, SYMBOL, Source, ValueWriter,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::fmt::Write as _;
use textwrap::core::{Word, display_width};

/// Formatter of lines, with one buffer for all lines.
pub(crate) struct Lines {
    buffer: String,
    /// Time of the previous line.
    last: Option<i64>,
    /// Whether the time since the previous line is shown.
    has_steps: bool,
    /// Sources of the last lines. The slot of a source is the source's serial number modulo the number of
    /// slots.
    sources: Vec<Option<Shown>>,
    source_width: usize,
    event_width: usize,
    /// Whether lines have no columns.
    is_compact: bool,
    /// Unix time from which times count, in nanoseconds.
    start: i64,
    /// The time zone if times are shown as calendar times.
    zone: Option<TimeZone>,
    /// Number of columns of the terminal. Longer lines are cut.
    terminal: Option<usize>,
    /// Maximum width of a column.
    most: usize,
}

/// A source, escaped.
struct Shown {
    number: u64,
    text: String,
    width: usize,
}

impl Lines {
    /// Maximum width of a column, on terminals that are at least five times as wide.
    const MAX: usize = 32;
    /// Maximum width of the names of kernels' events. A file describes thousands of events, so the column is
    /// not as wide as the longest name. `kvm:kvm_userspace_exit` has 22 characters.
    const MAX_KERNEL: usize = 22;
    /// Minimum width of a terminal on which lines have both columns of times.
    const LEAST: usize = 100;
    /// Number of slots for sources.
    const SLOTS: usize = 256;

    /// Makes a formatter for a recording, with times since the recording's start.
    pub(crate) fn new(recording: &Recording) -> Lines {
        let Recording { sessions, traces, .. } = recording;
        let classes = sessions.iter().flat_map(|(s, _)| s.classes().iter());
        // The column of sources may still grow, because a client may get another holder later.
        let streams = sessions.iter().flat_map(|(s, _)| &s.json().streams);
        let sources = streams.map(|s| {
            let client = if s.domain == Domain::Guest { s.client.to_string().len() + 1 } else { 0 };
            s.domain.name().len() + 1 + client + Escaped(s.name.as_bytes()).to_string().len()
        });
        let kernel = traces.iter().flat_map(|trace| trace.events()).map(|name| name.len());
        let kernel = kernel.max().unwrap_or(0).min(Self::MAX_KERNEL);
        let terminal = terminal();
        let most = terminal.map_or(Self::MAX, |columns| (columns / 5).clamp(12, Self::MAX));
        let widest = classes.map(|c| c.name.len()).max().unwrap_or(0);
        Lines {
            buffer: String::with_capacity(256),
            last: None,
            has_steps: terminal.is_none_or(|columns| columns >= Self::LEAST),
            sources: std::iter::repeat_with(|| None).take(Self::SLOTS).collect(),
            source_width: sources.max().unwrap_or(0).clamp(12, most),
            event_width: widest.max(kernel).min(most),
            is_compact: false,
            start: recording.start_unix_ns(),
            zone: None,
            terminal,
            most,
        }
    }

    /// Returns a formatter of lines without columns.
    pub(crate) fn compact() -> Lines {
        let lines = Lines::new(&Recording::default());
        Lines { is_compact: true, terminal: None, source_width: 0, event_width: 0, ..lines }
    }

    /// Shows calendar times in this zone, instead of times since the start.
    pub(crate) fn in_zone(self, zone: Option<TimeZone>) -> Lines {
        Lines { zone, ..self }
    }

    /// Makes the lines show times since `start`. `start` is a Unix time in nanoseconds.
    pub(crate) fn since(self, start: i64) -> Lines {
        Lines { start, ..self }
    }

    /// Formats an event or a loss.
    pub(crate) fn text(&mut self, entry: &EntryRef<'_>) -> &str {
        match entry {
            EntryRef::Event(EventRef { ticks: Some(ticks), .. }) => self.ticks(*ticks),
            _ => self.times(entry.ts_ns()),
        }
        self.columns(entry);
        self.cut()
    }

    /// Formats a line without the columns of times.
    pub(crate) fn untimed(&mut self, entry: &EntryRef<'_>) -> &str {
        self.buffer.clear();
        self.columns(entry);
        &self.buffer
    }

    /// Appends all columns but the columns of times.
    fn columns(&mut self, entry: &EntryRef<'_>) {
        match entry {
            EntryRef::Event(event) => self.event(event),
            EntryRef::Lost(lost) => self.lost(lost),
        }
    }

    /// Formats the columns of times, followed by a line that lacks these columns.
    pub(crate) fn timed(&mut self, ts_ns: Option<i64>, line: &str) -> &str {
        self.times(ts_ns);
        self.buffer.push_str(line);
        self.cut()
    }

    /// Cuts the line at the terminal's width.
    fn cut(&mut self) -> &str {
        if let Some(columns) = self.terminal
            && display_width(self.buffer.trim_end()) > columns
        {
            let kept = Word::from(&self.buffer).break_apart(columns.saturating_sub(3)).next();
            self.buffer.truncate(kept.map_or(0, |kept| kept.len()));
            self.buffer.push_str("...\n");
        }
        &self.buffer
    }

    /// Appends all columns of an event but the columns of times.
    fn event(&mut self, event: &EventRef<'_>) {
        self.source(event.source);
        let Lines { buffer, .. } = self;
        buffer.push_str(event.name);
        if !event.fields.is_empty() || event.reference.is_some() {
            pad(buffer, event.name.len(), self.event_width);
            buffer.push(' ');
        }
        // The line has the function's name instead of this field.
        let is_hidden = |name: &str| event.kind == EventKind::Function && name == SYMBOL;
        event.fields.iter().filter(|(name, _)| !is_hidden(name)).for_each(|(name, value)| {
            buffer.push(' ');
            buffer.push_str(name);
            buffer.push('=');
            value.write(&mut TextValue(buffer));
        });
        if let Some(function) = event.function {
            buffer.push_str(" name=");
            function.value().write(&mut TextValue(buffer));
        }
        if let Some(reference) = &event.reference {
            // Writing to a String does not fail.
            let _ = write!(buffer, " @cpu{}#{}", reference.cpu, reference.seq);
        }
        if let Some(cpu) = event.thread.and_then(|thread| thread.cpu) {
            buffer.push_str(" @cpu");
            decimal(buffer, cpu.into());
        }
        buffer.push('\n');
    }

    /// Begins a line with the columns of times. `ts_ns` is a Unix time in nanoseconds, or `None` if the time
    /// is unknown.
    fn times(&mut self, ts_ns: Option<i64>) {
        let Some(ts_ns) = ts_ns else { return self.no_times() };
        let Lines { buffer, .. } = self;
        buffer.clear();
        let since = ts_ns.saturating_sub(self.start);
        match &self.zone {
            None => seconds(buffer, since, 3, ""),
            Some(zone) => calendar(buffer, ts_ns, zone),
        }
        let step = since.saturating_sub(self.last.unwrap_or(since));
        if self.has_steps {
            buffer.push_str("  ");
            seconds(buffer, step, 2, "+");
        }
        self.last = Some(since);
    }

    /// Begins a line with a time in ticks, because the length of a tick is unknown. Such a line has no time
    /// since the previous line.
    fn ticks(&mut self, ticks: u64) {
        self.buffer.clear();
        let width = self.times_width().saturating_sub(" ticks".len());
        // Writing to a String does not fail.
        let _ = write!(self.buffer, "{ticks:>width$} ticks");
        self.buffer.push_str(if self.has_steps { "             -" } else { "" });
    }

    /// Returns the width of the column of a time.
    fn times_width(&self) -> usize {
        self.zone.as_ref().map_or(13, calendar_width)
    }

    /// Appends the column of sources.
    fn source(&mut self, source: &Source) {
        let slot = &mut self.sources[source.number as usize % Self::SLOTS];
        if slot.as_ref().is_none_or(|known| known.number != source.number) {
            let text = Escaped(source.text.as_bytes()).to_string();
            let width = text.chars().count();
            self.source_width = self.source_width.max(width.min(self.most));
            *slot = Some(Shown { number: source.number, text, width });
        }
        let Lines { buffer, is_compact, source_width, .. } = self;
        if let Some(Shown { text, width, .. }) = slot {
            column(buffer, text, *width, if *is_compact { 0 } else { *source_width });
        }
    }

    /// Formats the line above the columns.
    pub(crate) fn header(&mut self) -> &str {
        self.buffer.clear();
        self.buffer.push_str("      seconds");
        self.buffer.push_str(if self.has_steps { "    since last" } else { "" });
        column(&mut self.buffer, "source", "source".len(), self.source_width);
        self.buffer.push_str("event\n");
        &self.buffer
    }

    /// Begins a line with columns of unknown times.
    fn no_times(&mut self) {
        self.buffer.clear();
        let width = self.times_width();
        // Writing to a String does not fail.
        let _ = write!(self.buffer, "{:>width$}", "-");
        self.buffer.push_str(if self.has_steps { "             -" } else { "" });
    }

    /// Appends all columns of a loss but the columns of times.
    fn lost(&mut self, lost: &Lost) {
        let place = if lost.ts_ns.is_some() { "here" } else { "at an unknown time" };
        self.source(&lost.source);
        let events = if lost.events == 1 { "event" } else { "events" };
        // Writing to a String does not fail.
        let _ = match lost.events {
            0 => write!(self.buffer, "... an unknown number of events lost {place}"),
            n => write!(self.buffer, "... {} {events} lost {place}", grouped(n)),
        };
        let causes: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
        if !causes.is_empty() {
            let _ = write!(self.buffer, " ({})", causes.join(", "));
        }
        self.buffer.push('\n');
    }
}

/// Appends a text of `width` columns, in a column that is `to` columns wide.
fn column(out: &mut String, text: &str, width: usize, to: usize) {
    out.push_str("  ");
    out.push_str(text);
    pad(out, width, to);
    out.push_str("  ");
}

fn pad(out: &mut String, width: usize, to: usize) {
    const BLANKS: &str = "                                ";
    out.push_str(&BLANKS[..to.saturating_sub(width).min(BLANKS.len())]);
}

/// Appends a time as `  0.001234567`: seconds with nine digits after the point.
/// Sign and whole seconds are right-aligned to `width`.
fn seconds(out: &mut String, ns: i64, width: usize, plus: &str) {
    const SECOND: u64 = 1_000_000_000;
    let (sign, ns) = (if ns < 0 { "-" } else { plus }, ns.unsigned_abs());
    // If the time is shorter than a second, a second is added, because `digits` needs ten digits or more.
    let (mut digits, is_less) = (itoa::Buffer::new(), ns < SECOND);
    let digits = digits.format(if is_less { ns + SECOND } else { ns });
    let (whole, rest) = digits.split_at(digits.len() - 9);
    let whole = if is_less { "0" } else { whole };
    pad(out, sign.len() + whole.len(), width);
    [sign, whole, ".", rest].into_iter().for_each(|part| out.push_str(part));
}

/// Appends a calendar time: `2026-11-27T15:48:15.123456789Z`, or with the offset in other zones.
fn calendar(out: &mut String, unix_ns: i64, zone: &TimeZone) {
    // The calendar can show every time that 64 bits of nanoseconds can hold.
    let Ok(time) = Timestamp::from_nanosecond(unix_ns.into()) else { return };
    // Writing to a String does not fail.
    let _ = match *zone == TimeZone::UTC {
        true => write!(out, "{time:.9}"),
        false => write!(out, "{:.9}", time.display_with_offset(zone.to_offset(time))),
    };
}

/// Returns the width of a calendar time.
fn calendar_width(zone: &TimeZone) -> usize {
    if *zone == TimeZone::UTC { 30 } else { 35 }
}

/// Appends `0x` and the digits of a number.
fn hexadecimal(out: &mut String, mut value: u64) {
    let mut digits = [b'0'; 16];
    let mut at = digits.len();
    // A number has at most 16 digits, so there are at most 16 turns.
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
        if value == 0 {
            break;
        }
    }
    out.push_str("0x");
    out.push_str(std::str::from_utf8(&digits[at..]).unwrap_or_default());
}

/// Appends a text if the text is printable ASCII without quotes. Returns false for any other text.
fn plain(out: &mut String, bytes: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.iter().all(is_plain) => out.push_str(text),
        _ => return false,
    }
    true
}

/// Writer of a field's value as text.
pub struct TextValue<'o>(pub &'o mut String);

impl ValueWriter for TextValue<'_> {
    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn text(&mut self, bytes: &[u8]) {
        self.0.push('"');
        if !plain(self.0, bytes) {
            // Writing to a String does not fail.
            let _ = write!(self.0, "{}", Escaped(bytes));
        }
        self.0.push('"');
    }

    fn name(&mut self, name: &Name<'_>) {
        let _ = named(self.0, name, false);
    }

    fn hex(&mut self, number: u64) {
        hexadecimal(self.0, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_aligned_and_signed() {
        let shown = |ns, width, plus| {
            let mut out = String::new();
            seconds(&mut out, ns, width, plus);
            out
        };
        assert_eq!(shown(1_234_567, 3, ""), "  0.001234567");
        assert_eq!(shown(12_000_000_000, 3, ""), " 12.000000000");
        assert_eq!(shown(-5, 3, ""), " -0.000000005");
        assert_eq!(shown(-1_000_000_005, 2, "+"), "-1.000000005");
        assert_eq!(shown(250, 2, "+"), "+0.000000250");
        assert_eq!(shown(123_456_000_000_000, 3, ""), "123456.000000000");
    }
}
