//! Completing a session that a killed process left: reads its files.
//!
//! The packets on disk are the truth about how far each ring was committed, and
//! about what was recorded; `classes.jsonl` and the metadata have all that
//! they need, and the counts in `session.json` may be a second old. New packets
//! go to new files after the old ones, which are whole.
//!
//! The files may come from anywhere: each number is checked before it is used, and
//! an impossible one is an error with file and byte.

mod scan;

use super::error::SessionError;
use crate::ctf::files::CTF;
use crate::ctf::{Clocks, Domain, Folder, PacketHeader, Share, Uuid};
use crate::drain::classes::{Earlier as EarlierTexts, Table};
use crate::drain::source::{Earlier, Next};
use crate::drain::{Classes, Recorded, Source, Stats};
use hypertrace_abi::ring::{FAULT_KINDS, Fault, Losses};
use hypertrace_format::classes::{self, Line};
use hypertrace_format::clock::FREQUENCIES;
use hypertrace_format::error::DirectoryError;
use hypertrace_format::folder::read_at;
use hypertrace_format::limits::{
    MAX_CLASSES, MAX_CLASSES_BYTES, MAX_CLIENTS, MAX_GUEST_TSCS, MAX_HOST_STREAMS,
    MAX_SESSION_CLOCKS, MAX_SESSION_JSON, MOST_LOST,
};
use hypertrace_format::session_json::{EventJson, FILE, FORMAT, SessionJson, StreamJson, VERSION};
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Where a client's ring was committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Ring position after the last committed word.
    pub position: u64,
    /// Number of the next record.
    pub sequence: u64,
    /// The token of the last holder, 0 if there was none.
    pub token: u64,
    /// Faults so far, by kind.
    pub faults: [u64; FAULT_KINDS],
}

/// One stream, as its files have it.
#[derive(Debug)]
struct FoundStream {
    /// The last packet of its last file.
    last: PacketHeader,
    /// Lost events in all of its files.
    lost: u64,
    /// Records in all of its files.
    counts: Recorded,
}

/// A session as it was left.
#[derive(Debug)]
pub(crate) struct Found {
    pub json: SessionJson,
    events: Vec<EventJson>,
    /// Classes of the events in the packets, by clock.
    declared: BTreeMap<u32, BTreeSet<u32>>,
    streams: BTreeMap<(u32, u32), FoundStream>,
    /// Reference points in streams of the host, by the client that made them.
    points: BTreeMap<u32, u64>,
    /// Number after that of every file.
    files: u32,
}

/// Opens the directory, which must be this user's.
pub(crate) fn open(dir: &Path, share: Share) -> Result<Folder, SessionError> {
    let not_found = || DirectoryError::unusable(dir)(io::ErrorKind::NotFound.into()).into();
    Folder::open_own(dir, share)?.ok_or_else(not_found)
}

/// Looks at a directory with a session of this UUID that was not ended.
pub(crate) fn look(dir: &Folder, uuid: &[u8; 16]) -> Result<Found, SessionError> {
    let path = dir.path();
    let wrong = |why: &str| SessionError::not_resumable(path, why);
    let failed = DirectoryError::unusable(path);
    let mut json: SessionJson = serde_json::from_slice(&read(dir, FILE, MAX_SESSION_JSON)?)
        .map_err(|e| wrong(&format!("its {FILE}: {e}")))?;
    if json.format != FORMAT || json.version != VERSION {
        return Err(wrong("its session.json is of another format"));
    }
    if json.uuid != Uuid(uuid).to_string() {
        return Err(wrong("its UUID is another's: it is not the session of these programs"));
    }
    if json.finished {
        return Err(wrong("its session was ended: there is nothing to complete"));
    }
    let text = read(dir, classes::FILE, MAX_CLASSES_BYTES)?;
    let mut events = Vec::new();
    for (at, line) in classes::lines(&text) {
        match line {
            Ok(Line::Event(event)) => events.push(event),
            Ok(Line::Clock(clock)) if clock.id as usize == json.clocks.len() => {
                json.clocks.push(clock)
            }
            Ok(Line::Clock(_)) => {}
            Err(e) => return Err(wrong(&format!("its classes.jsonl at byte {at}: {e}"))),
        }
    }
    check(&json, &events).map_err(|why| wrong(&format!("its description is damaged: {why}")))?;

    let known = scan::Known::of(&json, &events, uuid);
    let ctf = dir.folder(CTF).map_err(&failed)?;
    let mut found = Found {
        json,
        events,
        declared: BTreeMap::new(),
        streams: BTreeMap::new(),
        points: BTreeMap::new(),
        files: 0,
    };
    for name in ctf.all_names().map_err(&failed)? {
        let Some(number) = name.to_str().and_then(number) else { continue };
        // The next number must be one, too.
        if number >= u32::MAX / 2 {
            return Err(wrong(&format!("no file is so late in a stream: {}", name.display())));
        }
        found.files = found.files.max(number + 1);
        let damaged = |why| SessionError::not_resumable(&path.join(CTF).join(&name), why);
        let file = ctf.file(&name, OFlags::RDONLY).map_err(|why| damaged(why.to_string()))?;
        let Some(scanned) = scan::scan(file, &known).map_err(damaged)? else { continue };
        found.add(scanned);
    }
    Ok(found)
}

/// Returns the number in a stream file's name; `None`: it is another file.
fn number(name: &str) -> Option<u32> {
    let (prefix, number) = name.rsplit_once('-')?;
    number.parse().ok().filter(|_| !prefix.starts_with('.'))
}

/// Reads a description, of so many bytes at most.
fn read(dir: &Folder, name: &str, most: u64) -> Result<Vec<u8>, SessionError> {
    let wrong = |why: String| SessionError::not_resumable(dir.path(), why);
    let (file, stat) = match dir.file(name, OFlags::RDONLY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(wrong(format!("it holds something else than a session: it has no {name}")));
        }
        opened => opened.map_err(|e| wrong(format!("its {name}: {e}")))?,
    };
    let len = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if len > most {
        return Err(wrong(format!(
            "its {name} has {len} bytes, and no session has one of more than {most}"
        )));
    }
    let mut text = vec![0; len as usize];
    let read = read_at(&file, &mut text, 0).map_err(|e| wrong(format!("its {name}: {e}")))?;
    text.truncate(read);
    Ok(text)
}

/// Checks the numbers that are used of it.
fn check(json: &SessionJson, events: &[EventJson]) -> Result<(), String> {
    for (clock, id) in json.clocks.iter().zip(0..) {
        let domain = if id == 0 { Domain::Host } else { Domain::Guest };
        if clock.id != id || clock.domain != domain {
            return Err(format!("clock {id} is not where it belongs"));
        }
        if !FREQUENCIES.contains(&clock.frequency) {
            return Err(format!("clock {id} has a frequency of {}", clock.frequency));
        }
    }
    if let Some(boot) = &json.boot_id
        && boot.len() != 36
    {
        return Err(format!("it has a boot_id of {} bytes, and none has but 36", boot.len()));
    }
    for (what, count, most) in [
        ("clocks", json.clocks.len(), MAX_SESSION_CLOCKS),
        ("events", events.len(), MAX_CLASSES),
        ("TSCs of guests", json.guest_tscs.len(), MAX_GUEST_TSCS),
    ] {
        if count > most {
            return Err(format!("it has {count} {what}, and a session has at most {most}"));
        }
    }
    let most = json.streams.iter().flat_map(|stream| stream.faults.values()).max();
    match most {
        Some(most) if *most > MOST_LOST => Err(format!("no stream has {most} faults of a kind")),
        _ => Ok(()),
    }
}

impl Found {
    fn add(&mut self, scanned: scan::Scanned) {
        let scan::Scanned { last, counts, points, classes } = scanned;
        self.declared.entry(last.stream_id).or_default().extend(classes);
        for (client, more) in points {
            *self.points.entry(client).or_default() += more;
        }
        let found = self.streams.entry((last.domain, last.client));
        let found = found.or_insert(FoundStream { last, lost: 0, counts: Recorded::default() });
        found.lost = found.lost.saturating_add(last.events_discarded).min(MOST_LOST);
        found.counts.add(&counts);
        // As readers order them.
        let place = |p: &PacketHeader| (p.epoch, p.faults, p.ring_end, p.sequence);
        if place(&last) >= place(&found.last) {
            found.last = last;
        }
    }

    /// Returns the event classes, with the ids that they had, declared for the clocks of their events.
    pub fn classes(&self, dir: &Path) -> Result<Classes, SessionError> {
        let mut classes = Classes::new();
        let mut restore = |event: &EventJson| {
            let clocks = self.declared.iter().filter(|(_, all)| all.contains(&event.id));
            classes.restore(event, clocks.map(|(clock, _)| *clock))
        };
        if !self.events.iter().all(&mut restore) {
            let why = "the event classes in its classes.jsonl are damaged";
            return Err(SessionError::not_resumable(dir, why));
        }
        Ok(classes)
    }

    /// Returns the clients that have streams, or points in others'.
    pub fn guests(&self) -> impl Iterator<Item = u32> {
        let guest = Domain::Guest as u32;
        let own = self.streams.keys().filter(move |(domain, _)| *domain == guest);
        own.map(|(_, client)| *client).chain(self.points.keys().copied())
    }

    /// Restores a source to where its stream ended.
    pub fn resume(
        &self,
        source: &mut Source,
        stats: &mut Stats,
        texts: &Arc<EarlierTexts>,
        clocks: &Clocks,
    ) {
        source.texts.table = Table::of_earlier(Arc::clone(texts));
        source.earlier.files = self.files;
        if source.domain == Domain::Guest {
            stats.reference_points = self.points.get(&source.number).copied().unwrap_or(0);
        }
        let Some(found) = self.streams.get(&(source.domain as u32, source.number)) else { return };
        let last = &found.last;
        source.clock = Some(last.stream_id);
        source.next = Next {
            timestamp: clocks.base(last.stream_id).saturating_add(last.timestamp_end),
            sequence: last.sequence,
            position: last.ring_end,
        };
        source.earlier = Earlier {
            files: self.files,
            token: last.lease_token,
            lost: found.lost,
            faults: last.faults,
            ring_end: last.ring_end,
            sequence: last.sequence,
        };
        self.restore(found, stats);
    }

    /// Returns the streams of the host that no source continues.
    pub fn others<'f>(&'f self, stats: &'f [Stats]) -> impl Iterator<Item = Stats> + 'f {
        let others = self.streams.iter().filter(move |((domain, number), _)| {
            *domain == Domain::Host as u32
                && !stats.iter().any(|s| s.domain == Domain::Host && s.number == *number)
        });
        others.map(|((_, number), found)| {
            let mut stats = Stats::new(Domain::Host, *number);
            self.restore(found, &mut stats);
            stats
        })
    }

    fn restore(&self, found: &FoundStream, stats: &mut Stats) {
        let last = &found.last;
        stats.counts = found.counts;
        stats.clock = last.stream_id;
        stats.filtered = last.events_filtered;
        let is_its = |s: &&StreamJson| (s.domain, s.client) == (stats.domain, stats.number);
        stats.lost.full = found.lost;
        if let Some(said) = self.json.streams.iter().find(is_its) {
            stats.name.clone_from(&said.name);
            let Losses { full, busy, overwritten, unattached } = &mut stats.lost;
            (*busy, *overwritten) = (said.lost_busy, said.lost_overwritten);
            *unattached = said.lost_unattached;
            let others = [*busy, *overwritten, *unattached];
            *full = others.into_iter().fold(*full, u64::saturating_sub);
            for kind in Fault::ALL {
                stats.faults[kind as usize] = said.faults.get(kind.name()).copied().unwrap_or(0);
            }
        }
        // The file may be newer than session.json.
        let known = stats.faults();
        stats.faults[Fault::Sequence as usize] += last.faults.saturating_sub(known);
    }
}

/// Returns whether there can be such a stream.
pub(crate) fn is_stream(domain: u32, number: u32) -> bool {
    let guest = domain == Domain::Guest as u32 && number < MAX_CLIENTS;
    guest || domain == Domain::Host as u32 && number < MAX_HOST_STREAMS
}
