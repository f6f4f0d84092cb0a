// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Events as comma-separated values, a row each.

use crate::escape::Csv;
use crate::events::Events;
use crate::json::causes;
use crate::number::{array, decimal, list, signed};
use crate::row::Row;
use crate::{Error, Result};
use hypertrace_format::pattern::matches;
use hypertrace_timeline::{EventRef, Lost, ValueRef};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Most columns of fields.
pub const MOST_FIELDS: usize = 1_000;

/// Columns before those of fields.
const COLUMNS: &str = "t_ns,ts_ns,bound_ns,client,pid,tid,cpu,thread,source,event,function,\
                       reference_cpu,reference_seq,reference_guest_time,lost,why";

/// Writes a header, and a row for each event and each loss. The columns of fields are those of all events whose names
/// are wanted, by name, with `field_` in front. Returns the number of rows.
///
/// # Errors
/// If an input is damaged, has more than [`MOST_FIELDS`] fields, or the output cannot be written.
pub fn write(events: Events<'_>, out: &mut dyn Write) -> Result<u64> {
    let fields = fields(&events);
    if fields.len() > MOST_FIELDS {
        return Err(Error::ManyFields { fields: fields.len(), most: MOST_FIELDS });
    }
    let columns: HashMap<&str, usize> = fields.iter().map(|name| &**name).zip(0..).collect();
    out.write_all(header(&fields).as_bytes()).map_err(Error::Write)?;
    let mut row = RowText { text: String::new(), values: vec![String::new(); fields.len()] };
    let mut count = 0;
    events.each(|entry| {
        count += 1;
        // Writing to a String does not fail.
        let _ = row.format(&entry, &columns);
        out.write_all(row.text.as_bytes())?;
        io::Result::Ok(true)
    })?;
    Ok(count)
}

/// Formats the header. Names of the fields of kernels' events are any text.
fn header(fields: &BTreeSet<String>) -> String {
    let mut header = COLUMNS.to_owned();
    for name in fields {
        // Writing to a String does not fail.
        let _ = write!(header, ",{}", Csv(format!("field_{name}").as_bytes()));
    }
    header + "\n"
}

/// Returns the fields of the events whose names are wanted.
fn fields(events: &Events<'_>) -> BTreeSet<String> {
    let globs = &events.choice.events;
    let is_wanted = |name: &str| globs.is_empty() || globs.iter().any(|glob| matches(glob, name));
    let classes = events.sessions.iter().flat_map(|(session, _)| session.classes().iter());
    let classes = classes.filter(|class| is_wanted(&class.name));
    let mut fields: BTreeSet<String> =
        classes.flat_map(|class| &class.fields).map(|field| field.to_string()).collect();
    for trace in events.traces.iter().filter(|trace| trace.events().any(|name| is_wanted(&name))) {
        fields.extend(trace.fields().map(str::to_owned));
    }
    if !events.functions.is_empty() {
        fields.extend(hypertrace_timeline::FUNCTION_FIELDS.map(str::to_owned));
    }
    fields
}

/// Formatter of a row, with buffers for all.
struct RowText {
    text: String,
    values: Vec<String>,
}

impl RowText {
    fn format(&mut self, row: &Row<'_>, columns: &HashMap<&str, usize>) -> std::fmt::Result {
        self.text.clear();
        self.values.iter_mut().for_each(String::clear);
        match row {
            Row::Event { event, since, function } => {
                self.event(event, *since, function.map_or("", |function| &function.name))?;
                for (name, value) in event.fields.iter() {
                    if let Some(at) = columns.get(&**name) {
                        value_text(&mut self.values[*at], &value)?;
                    }
                }
            }
            Row::Lost { lost, since } => self.lost(lost, *since)?,
        }
        for value in &self.values {
            self.text.push(',');
            self.text.push_str(value);
        }
        self.text.push('\n');
        Ok(())
    }

    fn event(&mut self, event: &EventRef<'_>, since: i64, function: &str) -> std::fmt::Result {
        let EventRef { thread, client, .. } = event;
        let out = &mut self.text;
        signed(out, since);
        out.push(',');
        signed(out, event.ts_ns);
        let mut known = |value: Option<u64>| {
            out.push(',');
            value.into_iter().for_each(|value| decimal(out, value));
        };
        known(event.bound_ns);
        known(client.map(u64::from));
        known(thread.and_then(|thread| thread.pid).map(u64::from));
        known(thread.map(|thread| thread.tid.into()));
        known(thread.and_then(|thread| thread.cpu).map(u64::from));
        let name = event.thread_name().unwrap_or_default();
        write!(out, ",{},{}", Csv(name.as_bytes()), Csv(event.source.as_bytes()))?;
        write!(out, ",{},{}", Csv(event.name.as_bytes()), Csv(function.as_bytes()))?;
        let mut known = |value: Option<u64>| {
            out.push(',');
            value.into_iter().for_each(|value| decimal(out, value));
        };
        known(event.reference.map(|point| point.cpu.into()));
        known(event.reference.map(|point| point.seq.into()));
        known(event.reference.map(|point| point.guest_time));
        out.push_str(",,");
        Ok(())
    }

    fn lost(&mut self, lost: &Lost, since: Option<i64>) -> std::fmt::Result {
        let out = &mut self.text;
        since.into_iter().for_each(|since| signed(out, since));
        out.push(',');
        lost.ts_ns.into_iter().for_each(|at| signed(out, at));
        out.push_str(",,");
        lost.client.into_iter().for_each(|client| decimal(out, client.into()));
        write!(out, ",,,,,{},,,,,,{},", Csv(lost.source.as_bytes()), lost.events)?;
        let why: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
        write!(out, "{}", Csv(why.join("; ").as_bytes()))
    }
}

fn value_text(out: &mut String, value: &ValueRef<'_>) -> std::fmt::Result {
    match value {
        ValueRef::Unsigned(v) | ValueRef::Hex(v) => decimal(out, *v),
        ValueRef::Signed(v) => signed(out, *v),
        ValueRef::Float(v) => write!(out, "{v:?}")?,
        ValueRef::Bool(v) => out.push_str(if *v { "true" } else { "false" }),
        ValueRef::Str(bytes) => write!(out, "{}", Csv(bytes))?,
        ValueRef::Name(name) => write!(out, "{}", Csv(name.to_string().as_bytes()))?,
        // Lists have commas.
        ValueRef::Words(words) => quoted(out, |out| list(out, words, decimal)),
        ValueRef::SignedWords(words) => quoted(out, |out| list(out, words, signed)),
        ValueRef::Array(numbers) => {
            out.push('"');
            array(out, numbers, decimal, signed)?;
            out.push('"');
        }
    }
    Ok(())
}

fn quoted(out: &mut String, write: impl FnOnce(&mut String)) {
    out.push('"');
    write(out);
    out.push('"');
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
