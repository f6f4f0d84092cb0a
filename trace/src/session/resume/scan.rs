//! One stream file: its packets checked, its records counted by kind.
//!
//! The work is bounded by the file's real contents: each step moves on by a
//! packet that has its magic number, or by an event whose id is known, so a file
//! of holes ends at once.

use super::is_stream;
use crate::ctf::metadata::REFERENCE_FIELDS;
use crate::ctf::{Domain, PacketHeader};
use crate::drain::Recorded;
use hypertrace_abi::record::{Flags, HEADER_WORDS, Header, RESERVED, id};
use hypertrace_format::folder::read_at;
use hypertrace_format::limits::MOST_LOST;
use hypertrace_format::packet::{HEADER_BYTES, MAGIC};
use hypertrace_format::session_json::{EventJson, SessionJson};
use rustix::fs::Stat;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use zerocopy::FromBytes;

const UNIT: u64 = HEADER_BYTES as u64;
/// Bytes of an event before its payload.
const EVENT: u64 = 8 * HEADER_WORDS as u64;
/// Bytes that are read at a time.
const WINDOW: usize = 64 * 1024;

/// Ids that packets may refer to.
pub(super) struct Known {
    uuid: [u8; 16],
    clocks: u32,
    epoch: u32,
    /// By dense id, whether it is a class of reference points; `None`: there is
    /// no such class.
    classes: Vec<Option<bool>>,
}

impl Known {
    pub fn of(json: &SessionJson, events: &[EventJson], uuid: &[u8; 16]) -> Known {
        let mut classes = vec![None; id::FIRST as usize + events.len()];
        let reserved = RESERVED.iter().map(|(id, _)| (*id, false));
        let events = events.iter().map(|event| (event.id, event.reference_point));
        for (id, point) in reserved.chain(events) {
            // An id that is not dense is an error later.
            if let Some(class) = classes.get_mut(id as usize) {
                *class = Some(point);
            }
        }
        Known {
            uuid: *uuid,
            clocks: json.clocks.len() as u32,
            epoch: json.clocks.iter().map(|clock| clock.epoch).max().unwrap_or(0),
            classes,
        }
    }
}

/// The contents of a file.
#[derive(Debug)]
pub(super) struct Scanned {
    /// The last packet: in a file that was being written it is the filler,
    /// which carries all counters.
    pub last: PacketHeader,
    pub counts: Recorded,
    /// In a stream of the host: reference points by client.
    pub points: BTreeMap<u32, u64>,
    /// Event classes of its events.
    pub classes: BTreeSet<u32>,
}

/// Reads a file. `None`: it is empty. The error names the damaged byte.
pub(super) fn scan(
    (file, stat): (OwnedFd, Stat),
    known: &Known,
) -> Result<Option<Scanned>, String> {
    let len = u64::try_from(stat.st_size).unwrap_or(0);
    let mut window = Window { file, bytes: vec![0; WINDOW], at: 0, filled: 0 };
    let mut found: Option<Scanned> = None;
    let mut at = 0;
    while at < len {
        let damaged = |what: String| format!("damaged at byte {at}: {what}");
        let header = window.read::<PacketHeader>(at).map_err(|e| damaged(e.to_string()))?;
        let header = header.ok_or_else(|| damaged("a part of a packet's header".into()))?;
        check(&header, found.as_ref().map(|found| &found.last), len - at, known)
            .map_err(damaged)?;
        let found = found.get_or_insert_with(|| Scanned {
            last: header,
            counts: Recorded::default(),
            points: BTreeMap::new(),
            classes: BTreeSet::new(),
        });
        found.last = header;
        let events = at + UNIT..at + (header.content_size / 8).next_multiple_of(8);
        count(&mut window, events, &header, known, found)?;
        at = at.saturating_add(header.packet_size / 8);
    }
    Ok(found)
}

/// Checks a packet's header against the one before and against the `rest` of
/// the file.
fn check(
    header: &PacketHeader,
    before: Option<&PacketHeader>,
    rest: u64,
    known: &Known,
) -> Result<(), String> {
    let PacketHeader { content_size, packet_size, stream_id, domain, client, epoch, .. } = *header;
    if header.magic != MAGIC {
        return Err("no packet begins here".into());
    }
    if header.uuid != known.uuid {
        return Err("a packet of another session".into());
    }
    let whole = content_size >= UNIT * 8
        && content_size % 8 == 0
        && content_size <= packet_size
        && packet_size % (UNIT * 8) == 0
        && (content_size == UNIT * 8 || packet_size / 8 <= rest);
    if !whole {
        return Err(format!("a packet of {packet_size} bits with {content_size} of content"));
    }
    if !is_stream(domain, client) {
        return Err(format!("a packet of client {client} in domain {domain}"));
    }
    if stream_id >= known.clocks || (domain == Domain::Host as u32 && stream_id != 0) {
        return Err(format!("a packet of clock {stream_id} of {}", known.clocks));
    }
    if epoch > known.epoch {
        return Err(format!("a packet of epoch {epoch}, which no clock has"));
    }
    let same = |b: &PacketHeader| (b.stream_id, b.domain, b.client) == (stream_id, domain, client);
    if before.is_some_and(|before| !same(before)) {
        return Err("a packet of another stream".into());
    }
    for (what, n) in [
        ("lost events", header.events_discarded),
        ("filtered events", header.events_filtered),
        ("faults", header.faults),
    ] {
        if n > MOST_LOST {
            return Err(format!("no stream has {n} {what}"));
        }
    }
    Ok(())
}

/// Counts the events of a packet, as readers do.
fn count(
    window: &mut Window,
    events: std::ops::Range<u64>,
    packet: &PacketHeader,
    known: &Known,
    found: &mut Scanned,
) -> Result<(), String> {
    let mut at = events.start;
    while at < events.end {
        let begin = at;
        let damaged = |what: &str| format!("damaged at byte {begin}: {what}");
        let words = window.read::<[u64; HEADER_WORDS]>(at).map_err(|e| damaged(&e.to_string()))?;
        let [time, meta] = words.ok_or_else(|| damaged("a part of an event"))?;
        let header = Header::from_words(time, meta);
        let class = known.classes.get(header.id as usize).copied().flatten();
        let Some(point) = class else {
            return Err(damaged("an event that classes.jsonl does not describe"));
        };
        let payload = at + EVENT;
        at = payload + 8 * u64::from(header.words);
        if at > events.end {
            return Err(damaged("an event beyond its packet's end"));
        }
        if header.id >= id::FIRST {
            found.classes.insert(header.id);
        }
        let flags = Flags::from_bits_retain(header.flags);
        let counts = &mut found.counts;
        let kind = match header.id {
            _ if point => &mut counts.reference_points,
            id::LEASE => &mut counts.leases,
            id::TIME_FAULT => &mut counts.time_faults,
            _ if flags.contains(Flags::REFERENCE_POINT) => &mut counts.reference_points,
            _ => &mut counts.events,
        };
        *kind += 1;
        let own = usize::from(header.words) >= REFERENCE_FIELDS.len();
        if point && own && packet.domain == Domain::Host as u32 {
            let client = window.read::<u64>(payload).map_err(|e| damaged(&e.to_string()))?;
            let client = client.and_then(|n| u32::try_from(n).ok());
            if let Some(client) = client.filter(|n| is_stream(Domain::Guest as u32, *n)) {
                *found.points.entry(client).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// A part of a file, read at once.
struct Window {
    file: OwnedFd,
    bytes: Vec<u8>,
    /// Where it begins.
    at: u64,
    filled: usize,
}

impl Window {
    /// Reads a value at a place; `None`: the file ends before.
    fn read<T: FromBytes>(&mut self, at: u64) -> io::Result<Option<T>> {
        let inside = |at: u64, window: &Window| {
            let from = usize::try_from(at.checked_sub(window.at)?).ok()?;
            let bytes = window.bytes[..window.filled].get(from..)?;
            T::read_from_prefix(bytes).ok().map(|(value, _)| value)
        };
        if let Some(found) = inside(at, self) {
            return Ok(Some(found));
        }
        self.filled = read_at(&self.file, &mut self.bytes, at)?;
        self.at = at;
        Ok(inside(at, self))
    }
}
