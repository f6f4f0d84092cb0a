// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Copies of a recording's events and losses, which a test can keep. The reader lends its consumer each entry
//! for one call only.

use hypertrace_timeline::{
    EntryRef, Error, EventKind, EventRef, Lost, Needs, Recording, Reference, Thread, ValueRef,
    Warning,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    Event(Event),
    Lost(Lost),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub ts_ns: i64,
    pub ticks: Option<u64>,
    pub bound_ns: Option<u64>,
    pub session: usize,
    pub source: Arc<str>,
    pub thread_name: Option<String>,
    pub name: Arc<str>,
    pub fields: Vec<(Arc<str>, Value)>,
    pub flags: u16,
    pub client: Option<u32>,
    pub kind: EventKind,
    pub reference: Option<Reference>,
    pub thread: Option<Thread>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Hex(u64),
    Str(Box<[u8]>),
    Words(Box<[u64]>),
    SignedWords(Box<[i64]>),
    Name(Box<str>),
}

impl From<&EventRef<'_>> for Event {
    fn from(event: &EventRef<'_>) -> Event {
        Event {
            ts_ns: event.ts_ns,
            ticks: event.ticks,
            bound_ns: event.bound_ns(),
            session: event.source.session,
            source: event.source.text.clone(),
            thread_name: event.source.name.as_deref().map(Into::into),
            name: event.name.clone(),
            fields: event.fields.iter().map(|(name, value)| (name.clone(), value.into())).collect(),
            flags: event.flags,
            client: event.source.client,
            kind: event.kind,
            reference: event.reference,
            thread: event.thread,
        }
    }
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Value {
        match value {
            ValueRef::Unsigned(v) => Value::Unsigned(v),
            ValueRef::Signed(v) => Value::Signed(v),
            ValueRef::Float(v) => Value::Float(v),
            ValueRef::Bool(v) => Value::Bool(v),
            ValueRef::Hex(v) => Value::Hex(v),
            ValueRef::Str(v) => Value::Str(v.into()),
            // The numbers in an array have at most 8 bytes, so each number fits in an `i64` or a `u64`.
            ValueRef::Array(array) if array.is_signed() => {
                Value::SignedWords(array.iter().map(|n| n as i64).collect())
            }
            ValueRef::Array(array) => Value::Words(array.iter().map(|n| n as u64).collect()),
            ValueRef::Name(name) => Value::Name(name.to_string().into()),
        }
    }
}

impl From<&EntryRef<'_>> for Entry {
    fn from(entry: &EntryRef<'_>) -> Entry {
        match entry {
            EntryRef::Event(event) => Entry::Event(event.into()),
            EntryRef::Lost(lost) => {
                let mut lost = lost.clone();
                // Two readings of the same recording may number the sources in different ways.
                Arc::make_mut(&mut lost.source).number = 0;
                Entry::Lost(lost)
            }
        }
    }
}

/// Returns all entries, and the reader's warnings. Asserts that the reader gives the same entries with one
/// CPU and with several CPUs, where it reads ahead.
pub fn entries(recording: &Recording, needs: &Needs) -> Result<(Vec<Entry>, Vec<Warning>), Error> {
    let read = || {
        let mut all = Vec::new();
        let warnings = recording.read(needs, &mut |entry: &EntryRef<'_>| {
            all.push(entry.into());
            Ok::<_, Error>(true)
        })?;
        Ok((all, warnings))
    };
    let ahead: Result<_, Error> = read();
    let on_one_cpu = || {
        let mut cpus = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap();
        cpus.clear();
        cpus.set(first);
        sched_setaffinity(None, &cpus).unwrap();
        read()
    };
    let alone = std::thread::scope(|scope| scope.spawn(on_one_cpu).join().unwrap());
    let shown = |why: &Error| why.to_string();
    assert_eq!(ahead.as_ref().map_err(shown), alone.as_ref().map_err(shown));
    ahead
}

/// Returns all events.
pub fn events(recording: &Recording) -> Result<Vec<Event>, Error> {
    let mut all = Vec::new();
    each_event(recording, |event| all.push(event.into())).map(|_| all)
}

/// Passes all events to `each`.
pub fn each_event(
    recording: &Recording,
    mut each: impl FnMut(&EventRef<'_>),
) -> Result<Vec<Warning>, Error> {
    recording.read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
        if let EntryRef::Event(event) = entry {
            each(event);
        }
        Ok::<_, Error>(true)
    })
}
