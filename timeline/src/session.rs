//! A session's directory, opened.

use crate::class::Classes;
use crate::clock::{FRACTION, Nominal};
use crate::error::{Error, Result};
use crate::file::open_stream;
use crate::packet::{Domain, EPOCH, Packet, STREAM_ID, UUID};
use crate::session_json::{Clock, SessionJson};
use crate::stream::{Segment, Stream};
use std::path::{Path, PathBuf};

/// A session, as far as it was committed when it was opened.
///
/// It may still be written to: what comes later is left out.
#[derive(Clone, Debug)]
pub struct Session {
    dir: PathBuf,
    json: SessionJson,
    classes: Classes,
    streams: Vec<Stream>,
    /// Events that the streams hold at least, as `session.json` said before they were scanned.
    counted: u64,
    /// Host units of Unix time that clock maps count from.
    origin: i128,
}

impl Session {
    /// Reads `session.json` and the headers of all packets.
    ///
    /// # Errors
    /// If it is not a session's directory, or something in it is damaged.
    pub fn open(dir: &Path) -> Result<Session> {
        // Looked at first, so that what is no session is called so.
        let before = SessionJson::read(dir)?;
        let segments = scan(dir)?;
        // Read again: it is replaced before packets that need what is new in
        // it, so it knows all that the scan saw, also while a VMM is writing.
        let json = SessionJson::read(dir)?;
        let classes = Classes::new(&json.events)
            .map_err(|why| Error::Description { path: dir.join(crate::session_json::FILE), why })?;
        for segment in &segments {
            check(segment, &json)?;
        }
        let host = json.clocks.iter().find(|c| c.domain == Domain::Host);
        let origin = i128::from(host.map_or(0, |c| c.offset_ns)) * i128::from(FRACTION);
        Ok(Session {
            dir: dir.to_owned(),
            json,
            classes,
            streams: Stream::group(segments)?,
            counted: before.events(),
            origin,
        })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it says about itself.
    pub fn json(&self) -> &SessionJson {
        &self.json
    }

    /// Its event classes.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Its streams: those of the host, then those of the guest, by client.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Events of all streams, as `session.json` counted them before the streams were scanned.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Unix time, in host units, that clock maps of this session count from.
    pub(crate) fn origin(&self) -> i128 {
        self.origin
    }

    /// Time of a host stream's tick, in host units since the origin. Beyond
    /// 2^62 units (half a year) it stays there.
    pub(crate) fn host_time(&self, clock: &Clock, ticks: u64) -> i64 {
        let start = i128::from(clock.offset_ns) * i128::from(FRACTION) - self.origin;
        // 2^64 ticks x 2^38 fit.
        let units = i128::from(ticks) * 1_000_000_000 * i128::from(FRACTION);
        let limit = i128::from(crate::clock::LIMIT);
        (start + units / i128::from(clock.frequency)).clamp(-limit, limit - 1) as i64
    }
}

/// Returns a clock's rate as its session names it.
pub(crate) fn nominal(clock: &Clock) -> Nominal {
    Nominal {
        frequency: clock.frequency,
        exact: clock.kind == "tsc" && clock.frequency == clock.host_frequency,
    }
}

/// All stream files of a session.
fn scan(dir: &Path) -> Result<Vec<Segment>> {
    let ctf = dir.join("ctf");
    let mut segments = Vec::new();
    let entries = match std::fs::read_dir(&ctf) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            // It gets its name when it is complete: a session that was ended
            // before that is empty.
            if dir.join(".ctf").is_dir() {
                return Ok(segments);
            }
            let why = "session.json without the folder ctf: the session's streams are missing";
            return Err(Error::NotASession { path: dir.to_owned(), why: why.into() });
        }
        Err(source) => return Err(Error::io(&ctf)(source)),
    };
    for entry in entries {
        let entry = entry.map_err(Error::io(&ctf))?;
        let name = entry.file_name();
        // Dot-files are being created.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if name == "metadata" {
            // For other readers, who would wait at a pipe.
            open_stream(&entry.path())?;
            continue;
        }
        segments.push(Segment::scan(entry.path())?);
    }
    Ok(segments)
}

/// Checks what a file's packets have in common against the description.
fn check(segment: &Segment, json: &SessionJson) -> Result<()> {
    let Packet { uuid, stream_id, domain, epoch, .. } = segment.first;
    let damaged = |field, expected: &str, found: String| {
        Err(Error::damaged(&segment.path, segment.first.at + field, expected, found))
    };
    if uuid != json.uuid {
        let expected = "the UUID in session.json";
        return damaged(UUID, expected, format!("{:032x}", u128::from_be_bytes(uuid)));
    }
    match json.clock(stream_id) {
        // Programs on the host may stamp with the host's own clock.
        Some(clock) if clock.domain == domain || clock.domain == Domain::Host => {
            // Where clocks have run out, an old one serves a new epoch.
            if epoch < clock.epoch {
                let expected = format!("an epoch of at least {}, its clock's", clock.epoch);
                return damaged(EPOCH, &expected, epoch.to_string());
            }
            Ok(())
        }
        _ => {
            let expected = format!("the id of a clock of the {} in session.json", domain.name());
            damaged(STREAM_ID, &expected, stream_id.to_string())
        }
    }
}
