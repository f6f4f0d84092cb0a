//! `simple`: the file of QEMU's simple backend (simpletrace, version 4). QEMU's reader reads this file with
//! the program's `trace-events-all`.
//!
//! The file has only declared events, and the guests' reference points as events `guest_hypertrace`. The
//! drain takes the events out of the rings of the threads. In the file, the events of one pass of the drain
//! are in the order of their times. Numbers are native endian, without padding:
//!
//! ```text
//! header   u64 ~0, u64 0xf2b177cb0aa429b4, u64 4
//! mapping  u64 0, u64 id, u32 length, name
//! event    u64 1, u64 id, u64 ns, u32 length from id on, u32 pid, arguments
//! dropped  an event of id 0xfffffffffffffffe, one argument: how many
//! ```
//!
//! An argument is a u64, or a string: u32 length, bytes. Events are dropped if a ring is full, if a thread
//! has no ring, or if the file cannot be written fast enough. After the events of a pass, the file has the
//! number of events that were dropped since the last pass.

mod ns;
mod out;

use crate::ctf::{Folder, HostClock, WriteFailed};
use crate::events::own;
use crate::events::{EVENTS, TraceEvent};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::record::{Flags, HEADER_WORDS, Header, REFERENCE_PREFIX_WORDS, RESERVED, id};
use hypertrace_abi::schema::FieldType;
use ns::Ns;
use out::{Out, record_len};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const HEADER: [u64; 3] = [u64::MAX, 0xf2b1_77cb_0aa4_29b4, 4];
const DROPPED: u64 = 0xffff_ffff_ffff_fffe;
const MAPPING: u64 = 0;
const EVENT: u64 = 1;

/// Number of gathered bytes at which a write begins, and maximum number of bytes that wait for a write. If
/// more bytes would wait, events are dropped. A pass over the rings of a default session fits into this size.
const MAX_BYTES: usize = 4 << 20;
/// Time between two checks of a slow reader's progress, while the file is being closed.
const NAP: Duration = Duration::from_millis(1);

/// Facts that the file needs about a declared event.
#[derive(Clone, Copy)]
struct Kind {
    /// The event's index in [`EVENTS`], which is its id in this file.
    id: u64,
    types: &'static [FieldType],
}

impl Kind {
    /// Returns true if a payload has all arguments of the event. Every reader would stop at a record with
    /// fewer arguments.
    fn fits(&self, payload: &[u64]) -> bool {
        let mut words = payload;
        self.types.iter().all(|ty| {
            let Some((word, rest)) = words.split_first() else { return false };
            let bytes = 4 + *word as u32 as usize;
            let fits = *ty != FieldType::Str || bytes <= words.len() * 8;
            words = match ty {
                FieldType::Str => words.get(bytes.div_ceil(8)..).unwrap_or_default(),
                _ => rest,
            };
            fits
        })
    }
}

/// Meaning of one of the session's classes for this file.
#[derive(Clone, Copy)]
enum Class {
    Other,
    Declared(Kind),
    /// Reference points. In a point, the point's own words begin `skip` words after the prefix.
    Point {
        is_2016: bool,
        skip: usize,
    },
}

/// Place of a record in the buffer.
#[derive(Clone, Copy)]
struct RecordRange {
    time: u64,
    start: u32,
    end: u32,
}

/// The file, and the records that wait to be written to it.
pub(crate) struct Simple {
    path: PathBuf,
    out: Out,
    /// Range of raw times in which the file is on. Only records of these times belong into the file.
    window: Range<u64>,
    clock: Ns,
    pid: u32,
    /// Kinds of events, by schema text.
    declared: HashMap<String, Kind>,
    /// Kinds of events, by schema hash. `None` if two events have the same hash.
    hashed: HashMap<u32, Option<Kind>>,
    /// Classes by dense id. `None` if a class was not looked up yet.
    classes: Vec<Option<Class>>,
    point: Option<Kind>,
    /// For each event, true if the event's id and name are in the file or in `names`.
    mapped: Vec<bool>,
    names: Vec<u8>,
    records: Vec<u8>,
    places: Vec<RecordRange>,
    in_order: bool,
    /// Number of dropped events that no record counts yet.
    untold: u64,
    /// True if the file takes no more bytes in this pass.
    stuck: bool,
    pub recorded: u64,
    pub dropped: u64,
}

fn kind(event: &TraceEvent) -> Option<Kind> {
    let index = EVENTS.iter().position(|other| std::ptr::eq(other, event))?;
    Some(Kind { id: index as u64, types: event.types() })
}

impl AsFd for Simple {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }
}

impl Simple {
    /// Begins a file. The new file replaces an existing file. An existing file must be empty or a simpletrace
    /// file.
    ///
    /// # Errors
    /// If the file cannot be made or written, or if an existing file is neither empty nor a simpletrace file.
    pub fn create(
        path: &Path,
        session: &Folder,
        clock: &HostClock,
        now: u64,
    ) -> Result<Simple, WriteFailed> {
        let out = Out::create(path, session).map_err(WriteFailed::on("begin a trace in", path))?;
        let declared = EVENTS.iter().filter_map(|event| Some((event.schema(), kind(event)?)));
        let mut hashed = HashMap::new();
        for event in EVENTS {
            hashed.entry(event.id()).and_modify(|kind| *kind = None).or_insert_with(|| kind(event));
        }
        Ok(Simple {
            path: path.to_owned(),
            out,
            window: 0..u64::MAX,
            clock: Ns::of(clock, now),
            pid: std::process::id(),
            declared: declared.collect(),
            hashed,
            classes: Vec::new(),
            point: EVENTS.iter().find(|event| event.name() == "guest_hypertrace").and_then(kind),
            mapped: vec![false; EVENTS.len()],
            names: Vec::new(),
            records: Vec::new(),
            places: Vec::new(),
            in_order: true,
            untold: 0,
            stuck: false,
            recorded: 0,
            dropped: 0,
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `None` if `path` does not lead to this file. Otherwise returns true if the file is a regular
    /// file.
    pub fn is(&self, path: &Path) -> Option<bool> {
        self.out.is(path).then(|| self.out.is_file())
    }

    /// Returns true if records are written now.
    pub fn is_on(&self) -> bool {
        self.window.end == u64::MAX
    }

    /// Switches the file on or off. Events that occur while the file is off do not count as lost.
    pub fn set(&mut self, on: bool, now: u64) {
        if on != self.is_on() {
            self.window = if on { now..u64::MAX } else { self.window.start..now };
        }
    }

    /// Returns the number of bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.out.unsent().len() + self.records.len()
    }

    /// Counts events that the session has lost, if the file is on.
    pub fn lost(&mut self, lost: u64) {
        if self.is_on() {
            self.dropped = self.dropped.saturating_add(lost);
            self.untold = self.untold.saturating_add(lost);
        }
    }

    fn is_full(&self) -> bool {
        self.records.len() >= MAX_BYTES
    }

    /// Records the declared events of a packet's body. The packet's timestamps count from `base`, and
    /// `schema` returns the text of a dense id.
    pub fn record_packet<'t>(
        &mut self,
        mut body: &[u64],
        base: u64,
        schema: impl Fn(u32) -> Option<&'t str>,
    ) {
        while body.len() >= HEADER_WORDS {
            let header = Header::from_words(body[0], body[1]);
            let words = HEADER_WORDS + usize::from(header.words);
            let Some(payload) = body.get(HEADER_WORDS..words) else { break };
            body = &body[words..];
            let raw = header.timestamp.wrapping_add(base);
            if self.window.contains(&raw) {
                self.record_one(&header, raw, payload, &schema);
            }
        }
    }

    #[inline]
    fn record_one<'t>(
        &mut self,
        header: &Header,
        raw: u64,
        mut payload: &[u64],
        schema: &impl Fn(u32) -> Option<&'t str>,
    ) {
        // The class of a point never has a reserved id. A relay may flag a record as a point although the
        // record fits no class. Such a record has the id of untyped records, and this file does not show the
        // record as a point.
        let point = header.flags & Flags::REFERENCE_POINT.bits() != 0 && header.id >= id::FIRST;
        // The file has only points that were made while `guest_hypertrace` was on.
        let declared = header.flags & Flags::GUEST_HYPERTRACE.bits() != 0;
        if point && (!declared || payload.len() < REFERENCE_PREFIX_WORDS) {
            return;
        }
        let mut class = self.class(header.id, point, schema);
        if header.id == id::UNTYPED
            && let [hash, _count, rest @ ..] = payload
            && let Some(Some(kind)) = self.hashed.get(&(*hash as u32))
            && kind.fits(rest)
        {
            // The session had no room for the event's schema, but the file does not need the session's
            // schema.
            (class, payload) = (Class::Declared(*kind), rest);
        }
        if let Class::Other = class {
            return;
        }
        if self.is_full() {
            // The buffer is full, so its records are written before the pass ends. A file on a disk takes all
            // these records at once. Other threads may add records with earlier times later in this pass.
            self.stuck = self.stuck || self.advance().is_err() || self.is_full();
            if self.stuck {
                self.dropped += 1;
                self.untold += 1;
                return;
            }
        }
        match class {
            Class::Other => {}
            Class::Declared(kind) => self.record_event(kind, raw, payload),
            Class::Point { is_2016, skip } => self.record_point(raw, is_2016, skip, payload),
        }
    }

    #[inline]
    fn class<'t>(
        &mut self,
        dense: u32,
        point: bool,
        schema: &impl Fn(u32) -> Option<&'t str>,
    ) -> Class {
        match self.classes.get(dense as usize) {
            Some(Some(known)) => *known,
            _ => self.look_up(dense, point, schema(dense)),
        }
    }

    /// Looks up a class. A dense id is either an id of reference points or an id of other records.
    #[cold]
    fn look_up(&mut self, dense: u32, point: bool, text: Option<&str>) -> Class {
        let index = dense as usize;
        if self.classes.len() <= index {
            self.classes.resize(index + 1, None);
        }
        let reserved = RESERVED.iter().find(|(_, reserved)| Some(*reserved) == text);
        let class = match (point, reserved.map(|(id, _)| *id)) {
            (true, Some(id::HYPERTRACE)) => Class::Point { is_2016: true, skip: 0 },
            // In an untyped point, the session has put the id and the number of words before the point's own
            // words.
            (true, Some(id::UNTYPED)) => Class::Point { is_2016: false, skip: 2 },
            (true, _) => Class::Point { is_2016: false, skip: 0 },
            (false, _) => {
                let declared = text.and_then(|text| self.declared.get(text));
                declared.map_or(Class::Other, |kind| Class::Declared(*kind))
            }
        };
        self.classes[index] = Some(class);
        class
    }

    fn record_event(&mut self, kind: Kind, raw: u64, payload: &[u64]) {
        let start = self.begin(kind.id, raw);
        let mut words = payload;
        for ty in kind.types {
            let Some((word, rest)) = words.split_first() else { break };
            if *ty == FieldType::Str {
                // In the ring and in the file, a string consists of a u32 length and the string's bytes.
                let bytes = words.as_bytes();
                let len = (4 + *word as u32 as usize).min(bytes.len());
                self.records.extend_from_slice(&bytes[..len]);
                words = &words[len.div_ceil(8)..];
            } else {
                self.records.extend_from_slice(word.as_bytes());
                words = rest;
            }
        }
        self.end(start, raw);
        self.recorded += 1;
    }

    /// Records a reference point, see [`Class::Point`].
    fn record_point(&mut self, raw: u64, is_2016: bool, skip: usize, payload: &[u64]) {
        let Some(kind) = self.point else { return };
        let (prefix, words) = payload.split_at(REFERENCE_PREFIX_WORDS);
        let start = self.begin(kind.id, raw);
        let args = own::shown(is_2016, words.get(skip..).unwrap_or(&[]));
        for word in [prefix[1], prefix[0]].into_iter().chain(args) {
            self.records.extend_from_slice(word.as_bytes());
        }
        self.end(start, raw);
        self.recorded += 1;
    }

    #[inline]
    fn begin(&mut self, id: u64, raw: u64) -> usize {
        if self.mapped.get(id as usize) == Some(&false) {
            self.map(id);
        }
        let start = self.records.len();
        let head = [EVENT, id, self.clock.at(raw)];
        self.records.extend_from_slice(head.as_bytes());
        self.records.extend_from_slice([0, self.pid].as_bytes());
        start
    }

    #[cold]
    fn map(&mut self, id: u64) {
        self.mapped[id as usize] = true;
        let name = EVENTS[id as usize].name().as_bytes();
        self.names.extend_from_slice([MAPPING, id].as_bytes());
        self.names.extend_from_slice((name.len() as u32).as_bytes());
        self.names.extend_from_slice(name);
    }

    #[inline]
    fn end(&mut self, start: usize, raw: u64) {
        let length = (self.records.len() - start - 8) as u32;
        self.records[start + 24..start + 28].copy_from_slice(length.as_bytes());
        let (start, end) = (start as u32, self.records.len() as u32);
        self.in_order &= self.places.last().is_none_or(|last| last.time <= raw);
        self.places.push(RecordRange { time: raw, start, end });
    }

    /// Ends a pass: writes the records of the pass, or at least begins to write the records.
    ///
    /// # Errors
    /// If the file cannot be written. In this case, the records wait, and further events are dropped if the
    /// buffer has no room.
    pub fn pass(&mut self, clock: &HostClock, now: u64) -> Result<(), WriteFailed> {
        let sent = self.advance();
        self.stuck = false;
        self.clock.refresh(clock, now);
        sent.map_err(WriteFailed::on("write", &self.path))
    }

    /// Writes the waiting bytes. If all waiting bytes are written, also writes the records that the file has
    /// taken in the meantime.
    fn advance(&mut self) -> io::Result<()> {
        self.out.send()?;
        if self.out.is_empty() {
            self.gather();
            self.out.send()?;
        }
        Ok(())
    }

    /// Sorts the taken records by time, and appends the records to the bytes that wait for a write.
    fn gather(&mut self) {
        if self.untold > 0 {
            let now = ticks();
            let start = self.begin(DROPPED, now);
            self.records.extend_from_slice(std::mem::take(&mut self.untold).as_bytes());
            self.end(start, now);
        }
        if self.places.is_empty() {
            return;
        }
        let all = self.out.renew();
        if self.in_order && self.names.is_empty() {
            std::mem::swap(all, &mut self.records);
        } else {
            // The names are written before the records, so that each name precedes its first use, whatever
            // the order of the records.
            all.append(&mut self.names);
            // Records with the same tick keep the order in which they were taken.
            self.places.sort_unstable_by_key(|place| (place.time, place.start));
            all.reserve(self.records.len());
            for place in &self.places {
                all.extend_from_slice(&self.records[place.start as usize..place.end as usize]);
            }
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.records.clear();
        self.places.clear();
        self.in_order = true;
    }

    /// Ends the file. Writes the waiting records, but gives up if a slow reader makes no progress for
    /// `patience`, or needs more than ten times `patience`. Returns the number of lost events that the file
    /// does not count.
    pub fn close(&mut self, patience: Duration) -> (u64, Result<(), WriteFailed>) {
        let begun = Instant::now();
        let (mut moved, mut written) = (begun, self.out.written());
        let closed = loop {
            let sent = self.advance();
            if sent.is_err() || self.waiting() == 0 {
                break sent;
            }
            let now = Instant::now();
            if self.out.written() > written {
                (moved, written) = (now, self.out.written());
            }
            if now - moved > patience || now - begun > 10 * patience {
                let why = "its reader does not read";
                break Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            thread::sleep(NAP);
        };
        let left = self.discard_unread();
        (left, closed.map_err(WriteFailed::on("finish", &self.path)))
    }

    /// Drops the waiting records, and counts the events of these records as dropped. Returns the number of
    /// lost events that the file does not count.
    pub fn discard_unread(&mut self) -> u64 {
        let (mut events, mut counted) = (0, std::mem::take(&mut self.untold));
        for mut bytes in [self.out.unsent(), &self.records] {
            while let Some(len) = record_len(bytes).filter(|len| *len <= bytes.len()) {
                match (word(bytes, 0), word(bytes, 1)) {
                    (Some(EVENT), Some(DROPPED)) => {
                        counted = counted.saturating_add(word(bytes, 4).unwrap_or(0));
                    }
                    (Some(EVENT), _) => events += 1,
                    _ => {}
                }
                bytes = &bytes[len..];
            }
        }
        self.clear();
        self.out.renew();
        self.recorded -= events;
        self.dropped = self.dropped.saturating_add(events);
        counted.saturating_add(events)
    }
}

/// Returns a word of a record, or `None` if the record is too short.
fn word(record: &[u8], index: usize) -> Option<u64> {
    let bytes = record.get(index * 8..index * 8 + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}
