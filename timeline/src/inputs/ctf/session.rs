// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An open session.

use super::class::Classes;
use super::packet::{Domain, PacketHeader};
use super::session_json::{Clock, SessionJson};
use super::stream::{Segment, Stream};
use crate::clock::FRACTION;
use crate::clock::host::{HostCounter, share};
use crate::error::{Error, Result};
use crate::inputs::input::Time;
use crate::inputs::regular::open_stream;
use hypertrace_format::classes;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

/// A session, with the data that the writer had committed when the session was opened.
///
/// If the session is still being written, the value lacks later data.
#[derive(Clone, Debug)]
pub struct Session {
    dir: PathBuf,
    json: SessionJson,
    classes: Classes,
    streams: Vec<Stream>,
    /// Number of events in `session.json` before the streams were scanned. The streams hold at least this
    /// number of events.
    counted: u64,
    /// Counter of the host, which may have the anchor of another recording.
    counter: HostCounter,
    /// Unix time of tick 0 of the host's clock, in host units. Host times of clock maps count from this time.
    origin: i128,
    offset: Option<Offset>,
}

/// A time that a user has added to all events of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offset {
    /// Nanoseconds that are added to each time.
    pub ns: i64,
    /// Bound on the error of `ns` in nanoseconds. `None` if the bound is unknown.
    pub bound_ns: Option<u64>,
}

impl Offset {
    /// Makes an offset, with the bound on its error if the bound is known.
    pub fn new(ns: i64, bound_ns: Option<u64>) -> Offset {
        Offset { ns, bound_ns }
    }

    /// Returns the sum of both offsets, with the sum of both bounds.
    pub fn and(self, other: Offset) -> Offset {
        let bounds = self.bound_ns.zip(other.bound_ns);
        Offset {
            ns: self.ns.saturating_add(other.ns),
            bound_ns: bounds.map(|(a, b)| a.saturating_add(b)),
        }
    }
}

impl Session {
    /// Reads `session.json` and the headers of all packets.
    ///
    /// # Errors
    /// If `dir` is not a session's directory, or a file in the directory is damaged.
    pub fn open(dir: &Path) -> Result<Session> {
        let mut json = SessionJson::read(dir)?;
        let counted = json.events();
        let segments = stream_files(dir, &json)?.into_iter().map(Segment::scan);
        let segments = segments.collect::<Result<Vec<Segment>>>()?;
        // The classes are read after the scan, so that they include the classes of all packets of the scan
        // even while a VMM writes the session.
        json.read_classes(dir)?;
        Session::of(dir, json, segments, counted)
    }

    /// Makes a session from some of the session's packets.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub(crate) fn of(
        dir: &Path,
        json: SessionJson,
        segments: Vec<Segment>,
        counted: u64,
    ) -> Result<Session> {
        let classes =
            Classes::new(&json.events).map_err(Error::description(&dir.join(classes::FILE)))?;
        for segment in &segments {
            check(segment, &json)?;
        }
        let counter = host(&json).map_or(HostCounter::new(None, 0, 0, 1_000_000_000), |host| {
            HostCounter::new(json.boot_id, host.base, host.offset_ns, host.frequency)
        });
        Ok(Session {
            dir: dir.to_owned(),
            classes,
            streams: Stream::group(segments, &json.uuid)?,
            counted,
            counter,
            origin: origin(&counter, &json),
            offset: None,
            json,
        })
    }

    /// Opens several sessions. Sessions of one boot of a machine get one common anchor, so that their events
    /// are merged by the host's raw counter.
    ///
    /// # Errors
    /// The error of [`Session::open`] for the first session that cannot be opened.
    pub fn open_all<P: AsRef<Path>>(dirs: &[P]) -> Result<Vec<Session>> {
        let opened = dirs.iter().map(|dir| Session::open(dir.as_ref()));
        let mut sessions = opened.collect::<Result<Vec<Session>>>()?;
        let mut counters: Vec<HostCounter> = sessions.iter().map(Session::counter).collect();
        share(&mut counters);
        for (session, counter) in sessions.iter_mut().zip(counters) {
            session.set_counter(counter);
        }
        Ok(sessions)
    }

    /// Returns the session's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the contents of `session.json`.
    pub fn json(&self) -> &SessionJson {
        &self.json
    }

    /// Returns the event classes.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Returns the streams: first the host's streams, then the guest's streams. The streams of each side are
    /// in the order of their clients.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Returns a stream, if it has files.
    pub(crate) fn stream(&self, domain: Domain, client: u32) -> Option<&Stream> {
        self.streams.iter().find(|s| (s.domain, s.client) == (domain, client))
    }

    /// Returns whether a stream has files with packets of this UUID.
    pub(crate) fn has_files(&self, uuid: &[u8; 16], domain: Domain, client: u32) -> bool {
        let stream = self.stream(domain, client);
        stream.is_some_and(|s| s.segments.iter().any(|segment| segment.first.uuid == *uuid))
    }

    /// Returns whether the session lost events outside of the streams that have files.
    pub(crate) fn has_lost_elsewhere(&self) -> bool {
        let has_files = |uuid: &_, domain, client| self.has_files(uuid, domain, client);
        let json = self.json();
        let without_files = json.without_files(&has_files);
        json.lost_unattached > 0 || without_files.iter().any(|stream| stream.lost() > 0)
    }

    /// In each stream, leaves out all files after the first file for which `is_last` is true.
    pub(crate) fn end_streams(&mut self, is_last: impl Fn(&Path) -> bool) {
        for stream in &mut self.streams {
            let last = stream.segments.iter().position(|segment| is_last(&segment.path));
            if let Some(last) = last {
                stream.segments.truncate(last + 1);
            }
        }
    }

    /// Returns the last part of the directory's path.
    pub(crate) fn name(&self) -> String {
        let name = self.dir.file_name().map(|n| n.to_owned()).or_else(|| {
            // `.` and `..` have no name of their own.
            self.dir.canonicalize().ok()?.file_name().map(|n| n.to_owned())
        });
        name.map_or_else(|| self.dir.display().to_string(), |n| n.to_string_lossy().into_owned())
    }

    /// Returns the number of events of all streams that `session.json` had before the streams were scanned.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Returns the host's counter, with the anchor from `session.json` unless another anchor was set.
    pub fn counter(&self) -> HostCounter {
        self.counter
    }

    /// Puts the session on another anchor of the same boot, see [`share`](crate::clock::host::share). Clock
    /// maps that were made before do not fit the new anchor.
    pub fn set_counter(&mut self, counter: HostCounter) {
        self.counter = counter;
        self.origin = origin(&counter, &self.json);
    }

    /// Moves all events of the session. The session's host then has another clock than other hosts of its
    /// boot.
    pub fn add_offset(&mut self, offset: Offset) {
        self.set_counter(self.counter.later(offset.ns));
        self.offset = Some(self.offset.map_or(offset, |before| before.and(offset)));
    }

    /// Returns the offset that was added to the session's times.
    pub fn offset(&self) -> Option<Offset> {
        self.offset
    }

    /// Returns whether both sessions are of one boot and have the same anchor, so that their events are in
    /// the order of the host's counter.
    pub fn is_placed_with(&self, other: &Session) -> bool {
        self.counter == other.counter && self.counter.is_same(&other.counter)
    }

    /// Converts a host time from a clock map of this session to Unix time in nanoseconds.
    pub fn unix_ns(&self, host: i64) -> i128 {
        (self.origin + i128::from(host)).div_euclid(FRACTION.into())
    }

    /// Returns the Unix time of the host time 0 in clock maps of this session, in host units.
    pub(crate) fn origin(&self) -> i128 {
        self.origin
    }

    /// Returns the time of a stream's tick. A tick of the host's clock is converted by the host's counter,
    /// and a tick of a guest's clock by the estimate in `session.json`.
    pub(crate) fn time(&self, clock: &Clock, ticks: u64) -> Time {
        match host(&self.json) {
            Some(host) if host.id == clock.id => {
                self.counter.unix(clock.base.saturating_add(ticks))
            }
            host => {
                let first = host.map_or(0, |host| host.offset_ns);
                let start = i128::from(clock.offset_ns) - i128::from(first);
                // 2^64 ticks x 2^38 fit in 128 bits.
                let ns = i128::from(ticks) * 1_000_000_000 * i128::from(FRACTION);
                self.origin + start * i128::from(FRACTION) + ns / i128::from(clock.frequency)
            }
        }
    }

    /// Returns the time of a stream's tick in host units since the origin. Saturates at 2^62 units (half a
    /// year).
    pub(crate) fn host_time(&self, clock: &Clock, ticks: u64) -> i64 {
        let limit = i128::from(crate::clock::LIMIT);
        (self.time(clock, ticks) - self.origin).clamp(-limit, limit - 1) as i64
    }
}

fn origin(counter: &HostCounter, json: &SessionJson) -> i128 {
    counter.unix(host(json).map_or(0, |host| host.base))
}

/// Returns the host's clock.
fn host(json: &SessionJson) -> Option<&Clock> {
    json.clocks.iter().find(|c| c.domain == Domain::Host)
}

/// Returns the paths of all stream files of a session.
pub(crate) fn stream_files(dir: &Path, json: &SessionJson) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for dir in json.folders(dir) {
        add_stream_files(&dir, &mut paths)?;
    }
    Ok(paths)
}

fn add_stream_files(dir: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    let ctf = dir.join("ctf");
    if ctf.is_symlink() {
        let why = "its folder ctf is a link: put the folder itself there".into();
        return Err(Error::NotASession { path: dir.to_owned(), why });
    }
    let entries = match std::fs::read_dir(&ctf) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            // The writer creates the folder as `.ctf`, and names it `ctf` when the folder is complete. If the
            // session ended before the folder was complete, the session is empty.
            if dir.join(".ctf").is_dir() {
                return Ok(());
            }
            let why = "session.json without the folder ctf: the session's streams are missing";
            return Err(Error::NotASession { path: dir.to_owned(), why: why.into() });
        }
        Err(source) => return Err(Error::io(&ctf)(source)),
    };
    for entry in entries {
        let entry = entry.map_err(Error::io(&ctf))?;
        let name = entry.file_name();
        // Files whose names begin with a dot are being created.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if name == "metadata" {
            // This reader does not read `metadata`, but checks that `metadata` is a regular file, because
            // other readers open `metadata` and would wait forever at a pipe.
            open_stream(&entry.path())?;
            continue;
        }
        paths.push(entry.path());
    }
    Ok(())
}

/// Checks the fields that are the same in all packets of a file against the description.
fn check(segment: &Segment, json: &SessionJson) -> Result<()> {
    let domain = segment.first.domain;
    let PacketHeader { uuid, stream_id, epoch, .. } = *segment.first;
    let damaged = |field, expected: &str, found: String| {
        Err(segment.first.damaged(&segment.path, field, expected, found))
    };
    if !json.has_uuid(&uuid) {
        let found = format!("{:032x}", u128::from_be_bytes(uuid));
        return damaged(offset_of!(PacketHeader, uuid), "the UUID in session.json", found);
    }
    match json.clock(stream_id) {
        // Programs on the host may stamp with the host's own clock.
        Some(clock) if clock.domain == domain || clock.domain == Domain::Host => {
            // The epoch may be later than the clock's epoch, because a session that has no clock left uses an
            // old clock for a new epoch.
            if epoch < clock.epoch {
                let expected = format!("an epoch of at least {}, its clock's", clock.epoch);
                return damaged(offset_of!(PacketHeader, epoch), &expected, epoch.to_string());
            }
            Ok(())
        }
        _ => {
            let expected = format!("the id of a clock of the {} in session.json", domain.name());
            damaged(offset_of!(PacketHeader, stream_id), &expected, stream_id.to_string())
        }
    }
}
