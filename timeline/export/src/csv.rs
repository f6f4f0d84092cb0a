// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes events, groups of regions and single regions as comma-separated values. Each event, group or region
//! is a row.

use crate::by_name::ByName;
use crate::choice::Choice;
use crate::escape::Csv;
use crate::json::causes;
use crate::number::{decimal, signed};
use crate::sources::Sources;
use crate::{Error, Result};
use hypertrace_format::pattern::matches;
use hypertrace_format::uuid;
use hypertrace_timeline::regions::{EMPTY, Group, NotCounted, Part, Regions, Times};
use hypertrace_timeline::{
    ClockMaps, EntryRef, EventRef, Lost, Recording, Session, ValueWriter, Warning,
};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write;
use std::ops::Range;

/// Maximum number of columns of fields.
pub const MAX_FIELDS: usize = 1_000;

/// Maximum number of names of events and of fields that are known at once.
const MAX_NAMES: usize = 1 << 14;

/// Columns before the columns of fields.
const COLUMNS: &str = "t_ns,ts_ns,bound_ns,client,pid,tid,cpu,thread,source,event,function,\
                       reference_cpu,reference_seq,reference_guest_time,lost,why,ticks";

/// Writes a header, and a row for each event and each loss. Each field of a wanted event has a column. The
/// column's name is `field_` and the field's name. The columns stand in the order of these names. A field of
/// a kernel's event has a column only if the event occurs. Returns the number of rows, and the faults of the
/// inputs.
///
/// # Errors
/// If an input is damaged or has more than [`MAX_FIELDS`] fields, or if the output cannot be written.
pub fn write(
    recording: &Recording,
    choice: &Choice,
    out: &mut dyn Write,
) -> Result<(u64, Vec<Warning>)> {
    let fields = fields(recording, choice)?;
    if fields.len() > MAX_FIELDS {
        return Err(Error::ManyFields { fields: fields.len(), most: MAX_FIELDS });
    }
    out.write_all(header(&fields).as_bytes()).map_err(Error::Write)?;
    let mut rows = Rows::new(recording.start_unix_ns(), fields);
    let mut count = 0;
    let warnings = choice.read(recording, &mut |entry: &EntryRef<'_>| {
        count += 1;
        out.write_all(rows.row(entry).as_bytes()).map_err(Error::Write)?;
        Result::Ok(true)
    })?;
    Ok((count, warnings))
}

/// Formats a header, and a row for each group of regions.
pub fn groups<'a>(groups: impl IntoIterator<Item = &'a Group>) -> String {
    let mut out =
        "name,by,session,count,min_ns,p50_ns,p90_ns,p99_ns,max_ns,bound_ns,empty_ns".to_owned();
    NotCounted::ALL.iter().for_each(|(_, name)| out.extend([",", name]));
    part_columns(&mut out);
    out.push('\n');
    for group in groups {
        let value = group.value().unwrap_or_default();
        // Writing to a String does not fail.
        let _ = write!(out, "{},{}", Csv(group.name.as_bytes()), Csv(value.as_bytes()));
        let _ = write!(out, ",{},{}", group.session, group.count);
        let Group { min_ns, p50_ns, p90_ns, p99_ns, max_ns, bound_ns, empty_ns, .. } = *group;
        for ns in [min_ns, p50_ns, p90_ns, p99_ns, max_ns, bound_ns, empty_ns] {
            known(&mut out, ns);
        }
        group.not_counted.iter().for_each(|count| known(&mut out, Some(*count)));
        part_values(&mut out, &group.total.times);
        out.push('\n');
    }
    out
}

/// Writes a header, and a row for each region. Regions named `empty` get no row, unless `groups` has a group
/// of this name.
///
/// # Errors
/// If the output cannot be written.
pub fn regions(
    recording: &Recording,
    regions: &Regions,
    groups: &[&Group],
    out: &mut dyn Write,
) -> Result<()> {
    let start = recording.start_unix_ns();
    let uuid =
        |(session, _): &(Session, ClockMaps)| uuid::text(u128::from_be_bytes(session.json().uuid));
    let uuids = Vec::from_iter(recording.sessions.iter().map(uuid));
    let mut row = "name,by,session,client,id,t_ns,begin_ns,duration_ns".to_owned();
    part_columns(&mut row);
    row.push_str(",session_uuid\n");
    out.write_all(row.as_bytes()).map_err(Error::Write)?;
    let hides_empty = groups.iter().all(|group| group.name != EMPTY);
    for sample in regions.samples() {
        let Some(group) = regions.groups.get(usize::from(sample.group)) else { continue };
        if hides_empty && group.name == EMPTY {
            continue;
        }
        row.clear();
        let value = group.value().unwrap_or_default();
        let ns = sample.duration_ns();
        // Writing to a String does not fail.
        let _ = write!(row, "{},{}", Csv(group.name.as_bytes()), Csv(value.as_bytes()));
        let _ = write!(row, ",{}", sample.session);
        known(&mut row, sample.client().map(u64::from));
        let since = sample.begin_ns.saturating_sub(start);
        let _ = write!(row, ",{},{since},{},{ns}", sample.id, sample.begin_ns);
        part_values(&mut row, &sample.times);
        let uuid = uuids.get(usize::from(sample.session)).map_or("", |uuid| uuid);
        let _ = writeln!(row, ",{uuid}");
        out.write_all(row.as_bytes()).map_err(Error::Write)?;
    }
    Ok(())
}

fn part_columns(out: &mut String) {
    Part::ALL.iter().for_each(|part| out.extend([",", part.key_ns()]));
}

fn part_values(out: &mut String, times: &Times) {
    times.iter().for_each(|(_, ns)| known(out, Some(ns)));
}

/// Formats the header. The names are escaped, because a field of a kernel's event can have any name.
fn header(fields: &BTreeSet<String>) -> String {
    let mut header = COLUMNS.to_owned();
    for name in fields {
        // Writing to a String does not fail.
        let _ = write!(header, ",{}", Csv(format!("field_{name}").as_bytes()));
    }
    header + "\n"
}

/// Returns the fields of the events whose names are wanted.
fn fields(recording: &Recording, choice: &Choice) -> Result<BTreeSet<String>> {
    let globs = &choice.events;
    let is_wanted = |name: &str| globs.is_empty() || globs.iter().any(|glob| matches(glob, name));
    let classes = recording.sessions.iter().flat_map(|(session, _)| session.classes().iter());
    let classes = classes.filter(|class| is_wanted(&class.name));
    let mut fields: BTreeSet<String> =
        classes.flat_map(|class| &class.fields).map(|field| field.to_string()).collect();
    // Only events that occur count, because a kernel's trace describes many events that do not occur in the
    // trace.
    for trace in &recording.traces {
        let (stats, _) = trace.event_stats()?;
        let stats = stats.into_iter().filter(|stat| is_wanted(&stat.name));
        fields.extend(stats.flat_map(|stat| stat.fields).map(|field| field.to_string()));
    }
    if !recording.functions.is_empty() {
        fields.extend(hypertrace_timeline::FUNCTION_FIELDS.map(str::to_owned));
    }
    Ok(fields)
}

/// Formatter of rows, which uses the same buffers for all rows.
#[derive(Debug)]
struct Rows {
    /// Unix time in nanoseconds from which the column of relative times counts.
    start: i64,
    text: String,
    sources: Sources,
    /// Names of events, escaped for CSV.
    names: ByName<String>,
    /// Index of the column of each field, by the field's name. `seen` has the numbers for the fields of
    /// earlier events, by the address of the field's name.
    columns: HashMap<String, usize>,
    seen: ByName<Option<usize>>,
    /// The values of a row, one after the other. `cells` has the column of each value, and the value's place
    /// in this text.
    values: String,
    cells: Vec<(usize, Range<usize>)>,
    /// Text of the columns of fields in a row without fields: one comma for each column.
    commas: String,
}

impl Rows {
    fn new(start: i64, fields: BTreeSet<String>) -> Rows {
        Rows {
            start,
            text: String::new(),
            sources: Sources::default(),
            names: ByName::default(),
            seen: ByName::default(),
            values: String::new(),
            cells: Vec::new(),
            commas: ",".repeat(fields.len()),
            columns: fields.into_iter().zip(0..).collect(),
        }
    }

    /// Formats a row.
    fn row(&mut self, entry: &EntryRef<'_>) -> &str {
        self.text.clear();
        self.values.clear();
        self.cells.clear();
        // Writing to a String does not fail.
        let _ = match entry {
            EntryRef::Event(event) => self.event(event),
            EntryRef::Lost(lost) => self.lost(lost),
        };
        // The stable sort puts the values of fields with the same name side by side.
        self.cells.sort_by_key(|(column, _)| *column);
        let mut begun = 0;
        for (column, place) in self.cells.drain(..) {
            self.text.push_str(&self.commas[begun..=column]);
            self.text.push_str(&self.values[place]);
            begun = column + 1;
        }
        self.text.push_str(&self.commas[begun..]);
        self.text.push('\n');
        &self.text
    }

    fn event(&mut self, event: &EventRef<'_>) -> std::fmt::Result {
        let out = &mut self.text;
        match event.ticks {
            None => {
                signed(out, event.ts_ns.saturating_sub(self.start));
                out.push(',');
                signed(out, event.ts_ns);
            }
            Some(_) => out.push(','),
        }
        known(out, event.bound_ns());
        out.push_str(self.sources.text(event, source)?);
        out.push(',');
        match self.names.get(event.name) {
            Some(name) => out.push_str(name),
            None => {
                let name = Csv(event.name.as_bytes()).to_string();
                out.push_str(&name);
                bounded(&mut self.names).insert(event.name, name);
            }
        }
        out.push(',');
        if let Some(function) = event.function {
            write!(out, "{}", Csv(function.name.as_bytes()))?;
        }
        known(out, event.reference.map(|point| point.cpu.into()));
        known(out, event.reference.map(|point| point.seq.into()));
        known(out, event.reference.map(|point| point.guest_time));
        out.push_str(",,");
        known(out, event.ticks);
        for (name, value) in event.fields.iter() {
            let column = self.seen.get(name).copied().unwrap_or_else(|| {
                let column = self.columns.get(&**name).copied();
                bounded(&mut self.seen).insert(name, column);
                column
            });
            if let Some(column) = column {
                let begin = self.values.len();
                value.write(&mut CsvValue(&mut self.values));
                self.cells.push((column, begin..self.values.len()));
            }
        }
        Ok(())
    }

    fn lost(&mut self, lost: &Lost) -> std::fmt::Result {
        let (out, start) = (&mut self.text, self.start);
        lost.ts_ns.into_iter().for_each(|at| signed(out, at.saturating_sub(start)));
        out.push(',');
        lost.ts_ns.into_iter().for_each(|at| signed(out, at));
        out.push_str(",,");
        lost.source.client.into_iter().for_each(|client| decimal(out, client.into()));
        write!(out, ",,,,,{},,,,,,{},", Csv(lost.source.text.as_bytes()), lost.events)?;
        let why: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
        write!(out, "{},", Csv(why.join("; ").as_bytes()))
    }
}

/// Appends a number as a value, if the number is known.
fn known(out: &mut String, value: Option<u64>) {
    out.push(',');
    value.into_iter().for_each(|value| decimal(out, value));
}

/// Appends the values of an event's source.
fn source(out: &mut String, event: &EventRef<'_>) -> std::fmt::Result {
    let thread = event.thread;
    known(out, event.source.client.map(u64::from));
    known(out, thread.and_then(|thread| thread.pid).map(u64::from));
    known(out, thread.map(|thread| thread.tid.into()));
    known(out, thread.and_then(|thread| thread.cpu).map(u64::from));
    let name = event.source.name.as_deref().unwrap_or_default();
    write!(out, ",{},{}", Csv(name.as_bytes()), Csv(event.source.text.as_bytes()))
}

/// Forgets all values, if there are too many.
fn bounded<V>(values: &mut ByName<V>) -> &mut ByName<V> {
    if values.len() == MAX_NAMES {
        values.clear();
    }
    values
}

/// A value of a field.
struct CsvValue<'o>(&'o mut String);

impl ValueWriter for CsvValue<'_> {
    // Lists have commas.
    const BRACKETS: [&'static str; 2] = ["\"[", "]\""];

    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    fn text(&mut self, bytes: &[u8]) {
        // Writing to a String does not fail.
        let _ = write!(self.0, "{}", Csv(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields_are_values() {
        let fields = ["lba", "=1,\"\n\x1b["].map(str::to_owned).into();
        let expected = format!("{COLUMNS},\"field_=1,\"\"\\n\\x1b[\",field_lba\n");
        assert_eq!(header(&fields), expected);
    }
}
