// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Events and losses as records.

use super::Counts;
use super::class::{CONTEXT, Classes};
use super::packets::Packets;
use super::values;
use crate::json::causes;
use crate::{Error, Result};
use hypertrace_timeline::{EventRef, Lost, SYMBOL, ValueRef};
use std::io::{self, Write};
use std::sync::Arc;

/// Earliest Unix time of a trace in nanoseconds. Readers compute Unix times as signed 64-bit nanoseconds, and
/// an earlier time could overflow.
const FIRST: i64 = -9_000_000_000_000_000_000;

/// Writer of records.
pub(super) struct Writer<'o> {
    packets: Packets<'o>,
    classes: Classes,
    counts: Counts,
    /// Unix time of the first session's start in nanoseconds.
    start: i64,
    /// Unix time at the clock's 0 in nanoseconds: the start, or the time of the first event if the first
    /// event is earlier.
    base: Option<i64>,
    /// Names of the two fields that hold the name and the symbol of a compiled-in function.
    function: [Arc<str>; 2],
    /// Event name of losses, and names of the two fields of a loss. No real event has this event name.
    lost: [Arc<str>; 3],
}

/// Values of [`CONTEXT`].
type Context = [Option<u64>; CONTEXT.len()];

impl<'o> Writer<'o> {
    /// Makes a writer for a session that started at this Unix time, in nanoseconds.
    pub fn new(out: &'o mut dyn Write, start: i64) -> Result<Writer<'o>> {
        Ok(Writer {
            packets: Packets::new(out).map_err(Error::Write)?,
            classes: Classes::default(),
            counts: Counts::default(),
            start,
            base: None,
            function: ["name".into(), SYMBOL.into()],
            lost: ["hypertrace:lost".into(), "lost".into(), "why".into()],
        })
    }

    /// Writes the last packet. Returns counts, the Unix time of the clock's 0, and the classes.
    pub fn finish(mut self) -> Result<(Counts, i64, Classes)> {
        self.packets.flush().map_err(Error::Write)?;
        Ok((self.counts, self.base.unwrap_or(self.start.max(FIRST)), self.classes))
    }

    /// Writes an event. If the event enters or leaves a function, writes the function's name too.
    pub fn event(&mut self, event: &EventRef<'_>) -> io::Result<()> {
        self.counts.events += 1;
        let (thread, point) = (event.thread, event.reference);
        let context = [
            event.source.client.map(u64::from),
            thread.and_then(|thread| thread.pid).map(u64::from),
            thread.map(|thread| thread.tid.into()),
            thread.and_then(|thread| thread.cpu).map(u64::from),
            event.bound_ns(),
            point.map(|point| point.client.into()),
            point.map(|point| point.cpu.into()),
            point.map(|point| point.seq.into()),
            point.map(|point| point.guest_time),
        ];
        let names = event.function.map(|function| (function, self.function.clone()));
        let of_function = names.iter().flat_map(|(function, [name, symbol])| {
            let other = function.symbol.iter().map(move |text| (symbol, text));
            std::iter::once((name, &function.name)).chain(other)
        });
        let of_function = of_function.map(|(name, text)| (name, ValueRef::Str(text.as_bytes())));
        let at = self.at(event.ts_ns);
        let fields = || event.fields.iter().chain(of_function.clone());
        self.record(at, event.name, &event.source.text, context, fields)
    }

    /// Writes a place where events were lost. The place gets a packet of its own, so that readers can tell
    /// where the events were lost. A loss without a time gets the time of the last record.
    pub fn lost(&mut self, lost: &Lost) -> io::Result<()> {
        self.counts.losses += 1;
        self.counts.lost = self.counts.lost.saturating_add(lost.events);
        self.packets.lost(lost.events)?;
        let thread = lost.thread;
        let mut context: Context = [None; CONTEXT.len()];
        context[0] = lost.source.client.map(u64::from);
        context[1] = thread.and_then(|thread| thread.pid).map(u64::from);
        context[2] = thread.map(|thread| thread.tid.into());
        context[3] = lost.cpu.map(u64::from);
        let why: Vec<&str> = causes(lost.causes).map(|(cause, _)| cause).collect();
        let why = why.join("; ");
        let [name, count, reason] = self.lost.clone();
        let fields = || {
            let fields = [
                (&count, ValueRef::Unsigned(lost.events)),
                (&reason, ValueRef::Str(why.as_bytes())),
            ];
            fields.into_iter()
        };
        let at = lost.ts_ns.map(|ts_ns| self.at(ts_ns));
        let at = at.unwrap_or(self.packets.last());
        self.record(at, &name, &lost.source.text, context, fields)?;
        self.packets.flush()
    }

    /// Returns a time on the trace's clock. The time is at least the time of the last record, because readers
    /// accept no decreasing times.
    fn at(&mut self, ts_ns: i64) -> u64 {
        let base = *self.base.get_or_insert(self.start.min(ts_ns).max(FIRST));
        let at = i128::from(ts_ns) - i128::from(base);
        // Readers also compute with signed numbers.
        let allowed = at.clamp(self.packets.last().into(), (i64::MAX - 1).into());
        self.counts.moved += u64::from(allowed != at);
        allowed as u64
    }

    fn record<'f, F: Iterator<Item = (&'f Arc<str>, ValueRef<'f>)>>(
        &mut self,
        at: u64,
        name: &Arc<str>,
        source: &str,
        context: Context,
        fields: impl Fn() -> F,
    ) -> io::Result<()> {
        let record = self.packets.record(at)?;
        record.extend_from_slice(&at.to_le_bytes());
        // The class depends on the fields, so the id of the class is filled in after the fields.
        let number_at = record.len();
        record.extend_from_slice(&[0; 4]);
        let mut cut = u64::from(values::text(record, source.as_bytes()));
        let mut has = 0;
        for (bit, ((_, is_wide), value)) in CONTEXT.iter().zip(context).enumerate() {
            let Some(value) = value else { continue };
            has |= 1 << bit;
            let bytes = value.to_le_bytes();
            record.extend_from_slice(if *is_wide { &bytes } else { &bytes[..4] });
        }
        let fields_at = record.len();
        let mut known = self.classes.of(name, has);
        let fitting = known.find_map(|(number, class)| {
            record.truncate(fields_at);
            Some((number, values::append(record, &class.fields, fields())?))
        });
        drop(known);
        let (number, fields_cut) = match fitting {
            Some(fitting) => fitting,
            None => {
                record.truncate(fields_at);
                let number = self.classes.add(name, has, fields());
                let added = self.classes.of(name, has).next();
                let added = added.and_then(|(_, c)| values::append(record, &c.fields, fields()));
                (number, added.unwrap_or(0))
            }
        };
        cut += fields_cut;
        record[number_at..number_at + 4].copy_from_slice(&number.to_le_bytes());
        self.counts.cut += cut;
        Ok(())
    }
}
