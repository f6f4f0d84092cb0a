// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Events as JSON, one object per line, and regions as one object, according to the schema of docs/json.md.

use crate::choice::Choice;
use crate::escape::{Json, JsonText};
use crate::number::{decimal, named, signed};
use crate::sources::Sources;
use crate::{Error, Result};
use hypertrace_abi::ring::Losses;
use hypertrace_timeline::regions::{Group, IntervalLine, Summary, ThreadInterval};
use hypertrace_timeline::{
    EntryRef, EventRef, FunctionName, Lost, Name, Recording, SYMBOL, ValueWriter, Warning,
};
use serde::Serialize;
use serde_json::{Number, Value, json};
use std::fmt::{self, Write as _};
use std::io::Write;

/// Version of the JSON of each command, which docs/json.md describes.
pub const JSON_VERSION: u32 = 2;

/// Largest number that every reader of JSON keeps exact, because some readers keep numbers as doubles.
const MAX_EXACT: u64 = 1 << 53;

/// Writes the wanted events and losses, one line each. Returns the number of lines, and the faults of the
/// inputs.
///
/// # Errors
/// If an input is damaged, or the output cannot be written.
pub fn write(
    recording: &Recording,
    choice: &Choice,
    out: &mut dyn Write,
) -> Result<(u64, Vec<Warning>)> {
    let mut lines = JsonLines::new(recording.start_unix_ns());
    let mut count = 0;
    let warnings = choice.read(recording, &mut |entry: &EntryRef<'_>| {
        count += 1;
        out.write_all(lines.line(entry).as_bytes()).map_err(Error::Write)?;
        Result::Ok(true)
    })?;
    Ok((count, warnings))
}

/// Formatter of lines, with one buffer for all lines.
#[derive(Debug)]
pub struct JsonLines {
    line: String,
    sources: Sources,
    /// Unix time in nanoseconds from which relative times count.
    start: i64,
}

impl JsonLines {
    /// Makes a formatter. Relative times count from this Unix time in nanoseconds.
    pub fn new(start_unix_ns: i64) -> JsonLines {
        JsonLines { line: String::new(), sources: Sources::default(), start: start_unix_ns }
    }

    /// Formats an event or a loss.
    pub fn line(&mut self, entry: &EntryRef<'_>) -> &str {
        let JsonLines { line, sources, start } = self;
        line.clear();
        let since = entry.ts_ns().map(|ts_ns| ts_ns.saturating_sub(*start));
        match entry {
            // Writing to a String does not fail.
            EntryRef::Event(event) => _ = self::line(line, sources, event, since.unwrap_or(0)),
            EntryRef::Lost(lost) => {
                let _ = writeln!(line, "{}", JsonText(&exact(loss(lost, since)).to_string()));
            }
        }
        line
    }
}

/// Returns a value in which numbers that readers would round are strings.
pub fn exact(json: Value) -> Value {
    let is_rounded = |number: &Number| {
        let size = number.as_u64().or(number.as_i64().map(i64::unsigned_abs));
        size.is_some_and(|size| size > MAX_EXACT)
    };
    match json {
        Value::Number(number) if is_rounded(&number) => Value::String(number.to_string()),
        Value::Array(values) => values.into_iter().map(exact).collect(),
        Value::Object(values) => {
            values.into_iter().map(|(name, value)| (name, exact(value))).collect()
        }
        other => other,
    }
}

/// Returns an object as one line. Numbers that readers would round become strings.
pub fn object(object: &impl Serialize) -> String {
    serde_json::to_value(object)
        .map_or_else(|why| why.to_string(), |value| exact(value).to_string())
}

/// Regions as one JSON object with a line end. The object has the groups, and the values that belong to no
/// single group.
#[derive(Clone, Copy, Debug)]
pub struct RegionsJson<'a>(pub &'a [&'a Group], pub &'a Summary);

impl fmt::Display for RegionsJson<'_> {
    /// Writes the object group by group, because there may be many groups.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegionsJson(groups, summary) = self;
        write!(f, "{{\"version\":{JSON_VERSION},\"regions\":[")?;
        for (number, group) in groups.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{}", JsonText(&object(group)))?;
        }
        let summary = object(summary);
        writeln!(f, "],{}", JsonText(summary.strip_prefix('{').unwrap_or_default()))
    }
}

/// Formats an interval of a thread as one line, without a line end. `start_unix_ns` is the Unix time in
/// nanoseconds that relative times count from.
pub fn interval(of: &ThreadInterval<'_>, start_unix_ns: i64) -> String {
    let line = serde_json::to_value(IntervalLine::of(of, start_unix_ns));
    let line = line.map(|mut line| {
        line["version"] = JSON_VERSION.into();
        exact(line).to_string()
    });
    JsonText(&line.unwrap_or_else(|why| why.to_string())).to_string()
}

/// Returns the name and count of each cause of losses that occurred.
pub fn causes(losses: Losses) -> impl Iterator<Item = (&'static str, u64)> {
    let Losses { full, busy, unattached, overwritten } = losses;
    let causes = [
        ("ring full", full),
        ("emit interrupted", busy),
        ("no free client", unattached),
        ("overwritten", overwritten),
    ];
    causes.into_iter().filter(|(_, n)| *n > 0)
}

fn loss(lost: &Lost, since: Option<i64>) -> Value {
    let why: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
    json!({
        "version": JSON_VERSION,
        "type": "lost",
        "t_ns": since,
        "ts_ns": lost.ts_ns,
        "source": &*lost.source.text,
        "client": lost.source.client,
        "events": Some(lost.events).filter(|n| *n > 0),
        "why": why,
    })
}

/// Appends a number, in quotes if readers would round it.
fn number(out: &mut String, value: u64) {
    quoted_if(out, value > MAX_EXACT, |out| decimal(out, value));
}

/// Appends a number with its sign, in quotes if readers would round it.
fn signed_number(out: &mut String, value: i64) {
    quoted_if(out, value.unsigned_abs() > MAX_EXACT, |out| signed(out, value));
}

fn quoted_if(out: &mut String, is_quoted: bool, write: impl FnOnce(&mut String)) {
    let quote = if is_quoted { "\"" } else { "" };
    out.push_str(quote);
    write(out);
    out.push_str(quote);
}

/// Appends a number, if the number is known.
fn known(out: &mut String, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.push_str("null"),
    }
}

/// Appends the members that describe the source of an event.
fn source(out: &mut String, event: &EventRef<'_>) -> std::fmt::Result {
    let thread = event.thread;
    for (name, value) in [
        (",\"client\":", event.source.client),
        (",\"pid\":", thread.and_then(|thread| thread.pid)),
        (",\"tid\":", thread.map(|thread| thread.tid)),
        (",\"cpu\":", thread.and_then(|thread| thread.cpu)),
    ] {
        out.push_str(name);
        known(out, value.map(u64::from));
    }
    match event.source.name.as_deref() {
        Some(name) => write!(out, ",\"thread\":{}", Json(name.as_bytes()))?,
        None => out.push_str(",\"thread\":null"),
    }
    write!(out, ",\"source\":{}", Json(event.source.text.as_bytes()))
}

/// A writer of a field's value.
struct JsonValue<'o>(&'o mut String);

impl ValueWriter for JsonValue<'_> {
    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn text(&mut self, bytes: &[u8]) {
        // Writing to a String does not fail.
        let _ = write!(self.0, "{}", Json(bytes));
    }

    fn name(&mut self, name: &Name<'_>) {
        let _ = named(self.0, name, true);
    }

    fn unsigned(&mut self, value: u64) {
        number(self.0, value);
    }

    fn signed(&mut self, value: i64) {
        signed_number(self.0, value);
    }

    fn float(&mut self, value: f64) {
        // JSON has no infinite numbers and no NaN.
        let _ =
            if value.is_finite() { write!(self.0, "{value:?}") } else { self.0.write_str("null") };
    }
}

fn line(
    out: &mut String,
    sources: &mut Sources,
    event: &EventRef<'_>,
    since: i64,
) -> std::fmt::Result {
    out.push_str("{\"version\":");
    decimal(out, JSON_VERSION.into());
    match event.ticks {
        None => {
            out.push_str(",\"t_ns\":");
            signed_number(out, since);
            out.push_str(",\"ts_ns\":");
            signed_number(out, event.ts_ns);
        }
        Some(ticks) => {
            out.push_str(",\"t_ns\":null,\"ts_ns\":null,\"ticks\":");
            number(out, ticks);
        }
    }
    out.push_str(",\"bound_ns\":");
    known(out, event.bound_ns());
    out.push_str(sources.text(event, source)?);
    // Names of events and fields are identifiers.
    out.push_str(",\"event\":\"");
    out.push_str(event.name);
    out.push_str("\",\"fields\":{");
    for (i, (name, value)) in event.fields.iter().enumerate() {
        out.push_str(if i > 0 { ",\"" } else { "\"" });
        out.push_str(name);
        out.push_str("\":");
        value.write(&mut JsonValue(out));
    }
    if let Some(FunctionName { name, symbol }) = event.function {
        // The comma is always right, because the field with the function's address stands before the name.
        write!(out, ",\"name\":{}", Json(name.as_bytes()))?;
        if let Some(symbol) = symbol {
            write!(out, ",\"{SYMBOL}\":{}", Json(symbol.as_bytes()))?;
        }
    }
    out.push('}');
    if let Some(r) = &event.reference {
        write!(
            out,
            ",\"reference\":{{\"client\":{},\"cpu\":{},\"seq\":{},\"guest_time\":",
            r.client, r.cpu, r.seq
        )?;
        number(out, r.guest_time);
        out.push('}');
    }
    out.push_str("}\n");
    Ok(())
}
