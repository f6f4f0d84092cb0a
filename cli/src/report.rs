//! `hypertrace report`: the timeline, line by line.

use crate::escape::{Escaped, Json, JsonText};
use crate::losses::{causes, grouped};
use crate::output::say;
use crate::stat::unfinished;
use anyhow::Context;
use hypertrace_timeline::{ClockMaps, Domain, Entry, Event, Lost, Session, Timeline, Value};
use hypertrace_trace::pattern::matches;
use serde_json::json;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Show the events of one or several sessions in order of time
///
/// A line is: seconds since the session's start, seconds since the previous
/// line, the source, the event, its fields. The source is guest/CLIENT and the
/// name that the client gave itself, or vmm/THREAD, or host/THREAD where programs
/// ran without a VMM. A reference point ends with the guest's CPU and the point's
/// number: @cpu0#17. Where events were lost, a line of its own says how many,
/// whatever the argument of --event: "... 1,234 events lost here (ring full)".
/// Guests' clocks are mapped to the host's; --json has the error bound. Sessions of
/// one machine and boot are merged exactly. Those of another machine or boot are
/// placed by the system's clocks, and a message says so: their error is unknown.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directories of sessions (those with session.json in them)
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,

    /// One JSON object per line: ts_ns (Unix time), bound_ns (null: unknown),
    /// source, event, fields; reference points also have reference. Where events
    /// were lost: type ("lost"), ts_ns (null: unknown), source, client, events (the
    /// number), why
    #[arg(long)]
    json: bool,

    /// Only events whose name matches this pattern with * (any text) and ? (any
    /// character). May be given several times
    #[arg(long, short, value_name = "GLOB")]
    event: Vec<String>,

    /// Only events of this client of the guest. May be given several times
    #[arg(long, short, value_name = "N")]
    client: Vec<u32>,

    /// Only events from this time on, counted from the start: 1.5ms, 200us, 2s, 2
    #[arg(long, value_name = "T", value_parser = time, allow_hyphen_values = true)]
    from: Option<i64>,

    /// Only events up to this time, counted from the start
    #[arg(long, value_name = "T", value_parser = time, allow_hyphen_values = true)]
    to: Option<i64>,

    /// Stop after this many events
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  hypertrace report S                            everything
  hypertrace report S -e 'disk_*' -e vcpu_exit   disk events and exits
  hypertrace report S -c 0 -c 1                  what guest clients 0 and 1 did
  hypertrace report S --from 1.5ms --to 2ms      half a millisecond of it
  hypertrace report S | less -S                  long lines, to scroll through
  hypertrace report S --json | jq -c 'select(.bound_ns > 10000)'
                                                 events placed worse than 10 us
  hypertrace report S1 S2                        two sessions, merged

Exit code: 0 done, 1 failed, 2 wrong usage, or damaged or foreign input.";

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sessions = open_all(&args.dirs)?;
    let start = sessions.iter().map(|(s, _)| s.json().started_unix_ns).min().unwrap_or(0);
    let mut lines = Lines::new(&sessions);
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut left = limit;

    let mut timeline = Timeline::new(&sessions)?;
    while left > 0
        && let Some(entry) = timeline.next_entry()
    {
        let line = match entry {
            Ok(Entry::Event(event)) => {
                let since = event.ts_ns.saturating_sub(start);
                if args.to.is_some_and(|to| since > to) {
                    break;
                }
                if !args.admits(&event, since) {
                    continue;
                }
                left -= 1;
                if args.json { lines.json(&event) } else { lines.text(&event, since) }
            }
            Ok(Entry::Lost(lost)) => {
                let since = lost.ts_ns.map(|at| at.saturating_sub(start));
                if !args.admits_lost(&lost, since) {
                    continue;
                }
                if args.json { lines.json_lost(&lost) } else { lines.text_lost(&lost, since) }
            }
            Err(error) => {
                // The events before the damage are shown.
                out.flush().context("cannot write")?;
                return Err(error.into());
            }
        };
        out.write_all(line.as_bytes()).context("cannot write")?;
    }
    out.flush().context("cannot write")?;
    if left == limit && limit > 0 && args.is_filtered() {
        say(args.unmatched(&sessions));
    }
    let first = sessions.first().map(|(session, _)| session);
    for (session, _) in sessions.iter().skip(1) {
        if let Some(said) = first.and_then(|first| unplaced(first, session)) {
            say(format_args!("{}: {said}", session.dir().display()));
        }
    }
    for (session, _) in &sessions {
        if let Some(said) = unfinished(session) {
            say(format_args!("{}: {said}", session.dir().display()));
        }
    }
    Ok(())
}

/// Opens sessions with their clocks, on one anchor where they are of one boot.
pub fn open_all(dirs: &[PathBuf]) -> anyhow::Result<Vec<(Session, ClockMaps)>> {
    let with_maps = |session: Session| {
        let maps = ClockMaps::of(&session)?;
        Ok((session, maps))
    };
    Session::open_all(dirs)?.into_iter().map(with_maps).collect()
}

/// Returns a line for a session whose place on the timeline of the first one is unknown.
pub fn unplaced(first: &Session, session: &Session) -> Option<String> {
    let (a, b) = (first.counter().boot_id(), session.counter().boot_id());
    let why = match (a, b) {
        _ if session.is_placed_with(first) => return None,
        (Some(a), Some(b)) if a != b => "recorded on another machine, or after another boot,",
        (Some(_), Some(_)) => "recorded with a counter of another rate",
        _ => "not known to be recorded in the same boot of the same machine",
    };
    let first = first.dir().display();
    Some(format!(
        "{why} as {first}: its events are placed by the system's clocks, with unknown error"
    ))
}

/// Opens a session with its clocks.
pub fn open(dir: &Path) -> anyhow::Result<(Session, ClockMaps)> {
    crate::kernel::complete(dir);
    let session = Session::open(dir)?;
    let maps = ClockMaps::of(&session)?;
    Ok((session, maps))
}

impl Args {
    fn is_filtered(&self) -> bool {
        let has_names = !self.event.is_empty() || !self.client.is_empty();
        has_names || self.from.is_some() || self.to.is_some()
    }

    /// Formats the message that no event matched. For each name it adds whether a session has
    /// an event of that name.
    fn unmatched(&self, sessions: &[(Session, ClockMaps)]) -> String {
        let mut text = "no event matched".to_owned();
        for glob in &self.event {
            let mut classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
            // Writing to a String does not fail.
            let _ = match classes.any(|class| matches(glob, &class.name)) {
                true => write!(text, "; {glob} is a known name, but no recorded event fits"),
                false => write!(text, "; no event is named {glob}"),
            };
        }
        text
    }

    fn admits(&self, event: &Event, since: i64) -> bool {
        self.from.is_none_or(|from| since >= from)
            && (self.event.is_empty() || self.event.iter().any(|g| matches(g, &event.name)))
            && (self.client.is_empty() || event.client.is_some_and(|c| self.client.contains(&c)))
    }

    /// Returns whether a loss is shown. Names do not matter: any event may be among
    /// the lost ones.
    fn admits_lost(&self, lost: &Lost, since: Option<i64>) -> bool {
        since.is_none_or(|since| {
            self.from.is_none_or(|from| since >= from) && self.to.is_none_or(|to| since <= to)
        }) && (self.client.is_empty() || lost.client.is_some_and(|c| self.client.contains(&c)))
    }
}

/// Formatter of lines, with one buffer for all.
pub(crate) struct Lines {
    buffer: String,
    /// Time of the previous line.
    last: Option<i64>,
    /// Escaped sources and their widths, by the timeline's names.
    sources: HashMap<Arc<str>, (String, usize)>,
    source_width: usize,
    event_width: usize,
}

impl Lines {
    /// Largest width of a column.
    const MOST: usize = 32;

    pub(crate) fn new(sessions: &[(Session, ClockMaps)]) -> Lines {
        let classes = sessions.iter().flat_map(|(s, _)| s.classes().iter());
        // A lessee may appear later: a column may still grow.
        let streams = sessions.iter().flat_map(|(s, _)| &s.json().streams);
        let sources = streams.map(|s| {
            let client = if s.domain == Domain::Guest { s.client.to_string().len() + 1 } else { 0 };
            s.domain.name().len() + 1 + client + Escaped(s.name.as_bytes()).to_string().len()
        });
        Lines {
            buffer: String::with_capacity(256),
            last: None,
            sources: HashMap::new(),
            source_width: sources.max().unwrap_or(0).clamp(12, Self::MOST),
            event_width: classes.map(|c| c.name.len()).max().unwrap_or(0).min(Self::MOST),
        }
    }

    pub(crate) fn text(&mut self, event: &Event, since: i64) -> &str {
        self.times(since);
        self.source(&event.source);
        let Lines { buffer, .. } = self;
        buffer.push_str(&event.name);
        if !event.fields.is_empty() || event.reference.is_some() {
            pad(buffer, event.name.len(), self.event_width);
            buffer.push(' ');
        }
        for (name, value) in &event.fields {
            buffer.push(' ');
            buffer.push_str(name);
            buffer.push('=');
            // Writing to a String does not fail.
            let _ = text_value(buffer, value);
        }
        if let Some(reference) = &event.reference {
            let _ = write!(buffer, " @cpu{}#{}", reference.cpu, reference.seq);
        }
        buffer.push('\n');
        buffer
    }

    /// Begins a line with the columns of times.
    fn times(&mut self, since: i64) {
        let Lines { buffer, .. } = self;
        buffer.clear();
        seconds(buffer, since, 3, "");
        buffer.push_str("  ");
        seconds(buffer, since.saturating_sub(self.last.unwrap_or(since)), 2, "+");
        self.last = Some(since);
    }

    /// Appends the column of sources.
    fn source(&mut self, source: &Arc<str>) {
        let Lines { buffer, .. } = self;
        buffer.push_str("  ");
        if !self.sources.contains_key(source) {
            let shown = Escaped(source.as_bytes()).to_string();
            let width = shown.chars().count();
            self.source_width = self.source_width.max(width.min(Self::MOST));
            self.sources.insert(source.clone(), (shown, width));
        }
        if let Some((shown, width)) = self.sources.get(source) {
            buffer.push_str(shown);
            pad(buffer, *width, self.source_width);
        }
        buffer.push_str("  ");
    }

    /// Formats the line above the columns.
    pub(crate) fn header(&mut self) -> &str {
        self.buffer.clear();
        self.buffer.push_str("      seconds    since last");
        self.source(&"source".into());
        self.buffer.push_str("event\n");
        &self.buffer
    }

    fn text_lost(&mut self, lost: &Lost, since: Option<i64>) -> &str {
        let place = match since {
            Some(since) => {
                self.times(since);
                "here"
            }
            None => {
                self.buffer.clear();
                self.buffer.push_str("            -             -");
                "at an unknown time"
            }
        };
        self.source(&lost.source);
        let events = if lost.events == 1 { "event" } else { "events" };
        // Writing to a String does not fail.
        let _ = write!(self.buffer, "... {} {events} lost {place}", grouped(lost.events));
        let causes: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
        if !causes.is_empty() {
            let _ = write!(self.buffer, " ({})", causes.join(", "));
        }
        self.buffer.push('\n');
        &self.buffer
    }

    fn json_lost(&mut self, lost: &Lost) -> &str {
        let why: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
        let line = json!({
            "type": "lost",
            "ts_ns": lost.ts_ns,
            "source": &*lost.source,
            "client": lost.client,
            "events": lost.events,
            "why": why,
        });
        self.buffer = format!("{}\n", JsonText(&line.to_string()));
        &self.buffer
    }

    fn json(&mut self, event: &Event) -> &str {
        self.buffer.clear();
        // Writing to a String does not fail.
        let _ = json_line(&mut self.buffer, event);
        &self.buffer
    }
}

fn pad(out: &mut String, width: usize, to: usize) {
    const BLANKS: &str = "                                ";
    out.push_str(&BLANKS[..to.saturating_sub(width).min(BLANKS.len())]);
}

/// Appends a time as `  0.001234567`: seconds with nine digits after the point.
/// Sign and whole seconds are right-aligned to `width`.
fn seconds(out: &mut String, ns: i64, width: usize, plus: &str) {
    let sign = if ns < 0 { "-" } else { plus };
    let (whole, rest) = (ns.unsigned_abs() / 1_000_000_000, ns.unsigned_abs() % 1_000_000_000);
    let digits = whole.checked_ilog10().unwrap_or(0) as usize + 1;
    pad(out, sign.len() + digits, width);
    out.push_str(sign);
    decimal(out, whole, 1);
    out.push('.');
    decimal(out, rest, 9);
}

/// Appends decimal digits, at least `least` of them. Most of the output is
/// numbers, for which `write!` would cost more than all the rest.
fn decimal(out: &mut String, mut value: u64, least: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    while value > 0 {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    at = at.min(digits.len() - least);
    out.extend(digits[at..].iter().map(|d| char::from(*d)));
}

fn text_value(out: &mut String, value: &Value) -> std::fmt::Result {
    match value {
        Value::Unsigned(v) => decimal(out, *v, 1),
        Value::Signed(v) => write!(out, "{v}")?,
        Value::Float(v) => write!(out, "{v:?}")?,
        Value::Bool(v) => write!(out, "{v}")?,
        Value::Hex(v) => write!(out, "{v:#x}")?,
        Value::Str(bytes) => write!(out, "\"{}\"", Escaped(bytes))?,
        Value::Words(words) => list(out, words),
    }
    Ok(())
}

fn list(out: &mut String, words: &[u64]) {
    out.push('[');
    for (i, word) in words.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        decimal(out, *word, 1);
    }
    out.push(']');
}

fn json_line(out: &mut String, event: &Event) -> std::fmt::Result {
    write!(out, "{{\"ts_ns\":{},\"bound_ns\":", event.ts_ns)?;
    match event.bound_ns {
        Some(bound) => decimal(out, bound, 1),
        None => out.push_str("null"),
    }
    write!(out, ",\"source\":{}", Json(event.source.as_bytes()))?;
    // Names of events and fields are identifiers.
    write!(out, ",\"event\":\"{}\",\"fields\":{{", event.name)?;
    for (i, (name, value)) in event.fields.iter().enumerate() {
        out.push_str(if i > 0 { ",\"" } else { "\"" });
        out.push_str(name);
        out.push_str("\":");
        match value {
            Value::Unsigned(v) | Value::Hex(v) => decimal(out, *v, 1),
            Value::Signed(v) => write!(out, "{v}")?,
            Value::Float(v) if v.is_finite() => write!(out, "{v:?}")?,
            // JSON has no such numbers.
            Value::Float(_) => out.push_str("null"),
            Value::Bool(v) => write!(out, "{v}")?,
            Value::Str(bytes) => write!(out, "{}", Json(bytes))?,
            Value::Words(words) => list(out, words),
        }
    }
    out.push('}');
    if let Some(r) = &event.reference {
        write!(
            out,
            ",\"reference\":{{\"client\":{},\"cpu\":{},\"seq\":{},\"guest_time\":{}}}",
            r.client, r.cpu, r.seq, r.guest_time
        )?;
    }
    out.push_str("}\n");
    Ok(())
}

/// Parses a time such as `1.5ms` to nanoseconds, exactly. Without a unit, it is seconds.
fn time(text: &str) -> Result<i64, String> {
    let number = text.trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    let unit: u64 = match &text[number.len()..] {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" | "" => 1_000_000_000,
        _ => return Err("expected a number with ns, us, ms or s, such as 1.5ms".into()),
    };
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if digits.trim_matches('.').is_empty() || !is_number(whole) || !is_number(fraction) {
        return Err("expected a number such as 1.5 before the unit".into());
    }
    let too_large = || "too large for a time".to_string();
    let parse =
        |s: &str| if s.is_empty() { Ok(0) } else { s.parse::<i64>().map_err(|_| too_large()) };
    let mut ns = parse(whole)?.checked_mul(unit as i64).ok_or_else(too_large)?;
    let mut place = unit as i64;
    for digit in fraction.bytes() {
        place /= 10;
        ns = ns.checked_add(place * i64::from(digit - b'0')).ok_or_else(too_large)?;
    }
    Ok(sign * ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (text, ns) in [
            ("1.5ms", 1_500_000),
            ("200us", 200_000),
            ("2s", 2_000_000_000),
            ("2", 2_000_000_000),
            (".5", 500_000_000),
            ("0.000000001", 1),
            ("0.0000000019", 1),
            ("17ns", 17),
            ("-1.25us", -1_250),
            ("3\u{b5}s", 3_000),
        ] {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for text in ["", "s", "1h", "1.2.3s", "--1s", "1 s", "99999999999999999s", "1e3", ".", "x5"]
        {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, expected) in [
            ("disk_read", "disk_read", true),
            ("disk", "disk_read", false),
            ("disk_*", "disk_read", true),
            ("*read", "disk_read", true),
            ("*_*", "disk_read", true),
            ("d?sk*", "disk_read", true),
            ("*a*d", "disk_read", true),
            ("*x*", "disk_read", false),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbXcd", false),
        ] {
            assert_eq!(matches(glob, name), expected, "{glob} {name}");
        }
    }

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
