//! `simple`: the file of QEMU's simple backend (simpletrace, version 4),
//! which its own reader reads with the program's `trace-events-all`.
//!
//! Declared events only, as the drain takes them out of the threads' rings,
//! sorted by time within a pass; and the guests' reference points, as
//! `guest_hypertrace`. Native endian, no padding:
//!
//! ```text
//! header   u64 ~0, u64 0xf2b177cb0aa429b4, u64 4
//! mapping  u64 0, u64 id, u32 length, name
//! event    u64 1, u64 id, u64 ns, u32 length from id on, u32 pid, arguments
//! dropped  an event of id 0xfffffffffffffffe, one argument: how many
//! ```
//!
//! An argument is a u64, or a string: u32 length, bytes. What was dropped, by
//! a full ring or by a file that could not be written, stands where it is
//! missing.

use crate::clock::HostClock;
use crate::event::{EVENTS, TraceEvent};
use crate::stream::WriteFailed;
use hypertrace_abi::record::{Flags, HEADER_WORDS, Header, REFERENCE_PREFIX_WORDS};
use hypertrace_abi::schema::FieldType;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

const HEADER: [u64; 3] = [u64::MAX, 0xf2b1_77cb_0aa4_29b4, 4];
const DROPPED: u64 = 0xffff_ffff_ffff_fffe;
const MAPPING: u64 = 0;
const EVENT: u64 = 1;
/// Bytes from the id to the arguments.
const FIXED: u32 = 24;

/// Bytes that are gathered before they are written: the most of one pass that
/// is sorted by time.
const MOST_BYTES: usize = 1 << 20;

/// What of an event's class the file needs.
#[derive(Clone, Copy)]
struct Kind {
    /// Its index in [`EVENTS`], which is its id here.
    id: u64,
    types: &'static [FieldType],
}

/// A record's place in the buffer.
#[derive(Clone, Copy)]
struct Place {
    time: u64,
    start: u32,
    end: u32,
}

/// The file, and what waits to be written to it.
pub(crate) struct Simple {
    path: PathBuf,
    file: File,
    on: bool,
    clock: Ns,
    pid: u32,
    /// By schema text.
    declared: HashMap<String, Kind>,
    /// By dense id; outer `None`: not looked up yet.
    kinds: Vec<Option<Option<Kind>>>,
    point: Option<Kind>,
    /// Whose name stands in the file.
    mapped: Vec<bool>,
    buffer: Vec<u8>,
    places: Vec<Place>,
    sorted: Vec<u8>,
    /// Records that could not be written, not yet told.
    untold: u64,
    /// Bytes of the file that are whole records.
    len: u64,
    pub records: u64,
    pub dropped: u64,
}

/// Host ticks to Unix nanoseconds, by one multiplication.
struct Ns {
    raw: u64,
    ns: u64,
    /// Nanoseconds per tick, 32 bits behind the point.
    rate: u64,
}

impl Ns {
    fn of(clock: &HostClock, raw: u64) -> Ns {
        let ns = u64::try_from(clock.unix_ns(raw)).unwrap_or(0);
        Ns { raw, ns, rate: Ns::rate(clock) }
    }

    fn rate(clock: &HostClock) -> u64 {
        ((1_000_000_000u128 << 32) / u128::from(clock.frequency)) as u64
    }

    fn at(&self, raw: u64) -> u64 {
        let ticks = raw.wrapping_sub(self.raw) as i64;
        let ns = (i128::from(ticks) * i128::from(self.rate)) >> 32;
        self.ns.wrapping_add(ns as u64)
    }

    /// Goes on from here at the clock's rate as it is known now, without a
    /// step.
    fn refresh(&mut self, clock: &HostClock, raw: u64) {
        *self = Ns { raw, ns: self.at(raw), rate: Ns::rate(clock) };
    }
}

fn kind(event: &TraceEvent) -> Option<Kind> {
    let index = EVENTS.iter().position(|other| std::ptr::eq(other, event))?;
    Some(Kind { id: index as u64, types: event.types() })
}

impl Simple {
    /// Begins a file; one that is there must be empty or a trace of this kind,
    /// which it replaces.
    ///
    /// # Errors
    /// If it cannot be made or written, or is something else.
    pub fn create(path: &Path, clock: &HostClock, now: u64) -> Result<Simple, WriteFailed> {
        let file = begin(path).map_err(WriteFailed::on("begin a trace in", path))?;
        let declared = EVENTS.iter().filter_map(|event| Some((event.schema(), kind(event)?)));
        Ok(Simple {
            path: path.to_owned(),
            file,
            on: true,
            clock: Ns::of(clock, now),
            pid: std::process::id(),
            declared: declared.collect(),
            kinds: Vec::new(),
            point: EVENTS.iter().find(|event| event.name() == "guest_hypertrace").and_then(kind),
            mapped: vec![false; EVENTS.len()],
            buffer: Vec::with_capacity(MOST_BYTES),
            places: Vec::new(),
            sorted: Vec::with_capacity(MOST_BYTES),
            untold: 0,
            len: HEADER.as_bytes().len() as u64,
            records: 0,
            dropped: 0,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether records are written.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Switches it. What comes while it is off is not missing.
    pub fn set(&mut self, on: bool) {
        self.on = on;
    }

    /// Records that a ring had no room for, after the one of this time.
    pub fn lost(&mut self, raw: u64, lost: u64) {
        if self.on && lost > 0 {
            self.dropped = self.dropped.saturating_add(lost);
            self.drop_record(raw, lost);
        }
    }

    fn drop_record(&mut self, raw: u64, lost: u64) {
        let start = self.begin(DROPPED, raw);
        self.buffer.extend_from_slice(lost.as_bytes());
        self.end(start, raw);
    }

    /// Takes the declared events of a packet's body; `base` is what its
    /// timestamps begin at, `schema` gives a dense id's text.
    pub fn take<'t>(
        &mut self,
        mut body: &[u64],
        base: u64,
        schema: impl Fn(u32) -> Option<&'t str>,
    ) -> Result<(), WriteFailed> {
        if !self.on {
            return Ok(());
        }
        while body.len() >= HEADER_WORDS {
            let header = Header::from_words(body[0], body[1]);
            let words = HEADER_WORDS + usize::from(header.words);
            let Some(payload) = body.get(HEADER_WORDS..words) else { break };
            body = &body[words..];
            let raw = header.timestamp.wrapping_add(base);
            if header.flags & Flags::REFERENCE_POINT.bits() != 0 {
                let is_2016 = schema(header.id).is_some_and(|text| text.starts_with("hypertrace("));
                self.take_point(raw, is_2016, payload);
            } else if let Some(kind) = self.kind_of(header.id, &schema) {
                self.take_event(kind, raw, payload);
            }
            if self.buffer.len() > MOST_BYTES / 2 {
                self.write()?;
            }
        }
        Ok(())
    }

    fn kind_of<'t>(&mut self, dense: u32, schema: impl Fn(u32) -> Option<&'t str>) -> Option<Kind> {
        let index = dense as usize;
        if self.kinds.len() <= index {
            self.kinds.resize(index + 1, None);
        }
        if let Some(known) = self.kinds[index] {
            return known;
        }
        let kind = schema(dense).and_then(|text| self.declared.get(text).copied());
        self.kinds[index] = Some(kind);
        kind
    }

    fn take_event(&mut self, kind: Kind, raw: u64, payload: &[u64]) {
        let start = self.begin(kind.id, raw);
        let mut words = payload;
        for ty in kind.types {
            let Some((word, rest)) = words.split_first() else { break };
            words = rest;
            if *ty == FieldType::Str {
                let bytes = payload.as_bytes();
                let at = bytes.len() - rest.as_bytes().len() - 8;
                let len = (*word as u32 as usize).min(bytes.len() - at - 4);
                self.buffer.extend_from_slice(&bytes[at..at + 4 + len]);
                words = &words[(4 + len).div_ceil(8) - 1..];
            } else {
                self.buffer.extend_from_slice(word.as_bytes());
            }
        }
        self.end(start, raw);
        self.records += 1;
    }

    fn take_point(&mut self, raw: u64, is_2016: bool, payload: &[u64]) {
        let (Some(kind), true) = (self.point, payload.len() >= REFERENCE_PREFIX_WORDS) else {
            return;
        };
        if !EVENTS[kind.id as usize].is_wanted() {
            return;
        }
        let (prefix, words) = payload.split_at(REFERENCE_PREFIX_WORDS);
        let start = self.begin(kind.id, raw);
        let args = crate::trace::shown(is_2016, words);
        for word in [prefix[1], prefix[0]].into_iter().chain(args) {
            self.buffer.extend_from_slice(word.as_bytes());
        }
        self.end(start, raw);
        self.records += 1;
    }

    fn begin(&mut self, id: u64, raw: u64) -> usize {
        let start = self.buffer.len();
        let head = [EVENT, id, self.clock.at(raw)];
        self.buffer.extend_from_slice(head.as_bytes());
        self.buffer.extend_from_slice([0, self.pid].as_bytes());
        start
    }

    fn end(&mut self, start: usize, raw: u64) {
        let length = (self.buffer.len() - start - 8) as u32;
        debug_assert!(length >= FIXED);
        self.buffer[start + 24..start + 28].copy_from_slice(length.as_bytes());
        let (start, end) = (start as u32, self.buffer.len() as u32);
        self.places.push(Place { time: raw, start, end });
    }

    /// A pass ends: writes what was taken.
    ///
    /// # Errors
    /// If it cannot be written: it is dropped, and told when it can be.
    pub fn pass(&mut self, clock: &HostClock, now: u64) -> Result<(), WriteFailed> {
        self.write()?;
        self.clock.refresh(clock, now);
        Ok(())
    }

    fn write(&mut self) -> Result<(), WriteFailed> {
        if self.places.is_empty() {
            return Ok(());
        }
        // Each ring's are in order; mostly there is one.
        self.places.sort_by_key(|place| place.time);
        self.sorted.clear();
        if self.untold > 0 {
            let first = self.clock.at(self.places[0].time);
            self.sorted.extend_from_slice([EVENT, DROPPED, first].as_bytes());
            self.sorted.extend_from_slice([FIXED + 8, self.pid].as_bytes());
            self.sorted.extend_from_slice(self.untold.as_bytes());
        }
        for place in &self.places {
            let record = &self.buffer[place.start as usize..place.end as usize];
            let id = word(record, 1);
            if let Some(mapped) = self.mapped.get_mut(id as usize).filter(|mapped| !**mapped) {
                *mapped = true;
                let name = EVENTS[id as usize].name().as_bytes();
                self.sorted.extend_from_slice([MAPPING, id].as_bytes());
                self.sorted.extend_from_slice((name.len() as u32).as_bytes());
                self.sorted.extend_from_slice(name);
            }
            self.sorted.extend_from_slice(record);
        }
        let written = self.file.write_all(&self.sorted);
        match &written {
            Ok(()) => {
                self.len += self.sorted.len() as u64;
                self.untold = 0;
            }
            Err(_) => self.forget(),
        }
        self.places.clear();
        self.buffer.clear();
        written.map_err(WriteFailed::on("write", &self.path))
    }

    /// What is in the buffer could not be written.
    fn forget(&mut self) {
        // A torn record would end every reader's way here.
        let _ = self.file.set_len(self.len);
        let _ = self.file.seek(io::SeekFrom::Start(self.len));
        self.mapped.fill(false);
        for place in &self.places {
            let record = &self.buffer[place.start as usize..place.end as usize];
            if word(record, 1) == DROPPED {
                self.untold = self.untold.saturating_add(word(record, 4));
            } else {
                self.untold = self.untold.saturating_add(1);
                self.dropped = self.dropped.saturating_add(1);
                self.records -= 1;
            }
        }
    }
}

/// A word of a record, 0 behind its end.
fn word(record: &[u8], index: usize) -> u64 {
    let bytes = record.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

/// The file with its header, ready for records.
fn begin(path: &Path) -> io::Result<File> {
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    // A pipe has no begin to look at.
    if file.metadata()?.is_file() {
        let mut head = Vec::new();
        let most = HEADER.as_bytes().len() as u64;
        Read::by_ref(&mut file).take(most).read_to_end(&mut head)?;
        if !head.is_empty() && head != HEADER.as_bytes() {
            let why = "it is there and is no simple trace; nothing was overwritten";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        file.set_len(0)?;
        file.rewind()?;
    }
    file.write_all(HEADER.as_bytes())?;
    Ok(file)
}
