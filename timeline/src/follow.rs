// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A reader of a session that is still being written.

use crate::error::{Error, Result};
use crate::event::EntryRef;
use crate::inputs::ctf::{
    ClockMaps, Cursor, Domain, Segment, Session, SessionJson, elsewhere, stream_files,
    stream_inputs,
};
use crate::inputs::input::nanoseconds;
use crate::inputs::names::Names;
use crate::inputs::needs::Needs;
use crate::merge::Timeline;
use hypertrace_format::folder::{Folder, Share};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Maximum size of the packets that a round reads from all files together, in bytes.
const ROUND_BYTES: u64 = 4 << 20;
/// Number of bytes that a round may read from each file, even if all files together then exceed
/// [`ROUND_BYTES`].
const FILE_BYTES: u64 = 64 << 10;
/// Maximum number of times that a round is tried. A round that finds damage is repeated, because the writer
/// may have shortened a file during the round.
const TRIES: u32 = 4;
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A reader of a session that is being written, in rounds.
///
/// The reader computes the times of a guest's own clock from the writer's estimate in `session.json`, so
/// these times have no bound. An entry shows the name that the reader has read last for the entry's source.
/// An entry can come before the reader has read any name of its source, because the host may record the first
/// points of a thread before the reader gets the thread's name. Memory depends on the number of files, not on
/// the files' sizes.
#[derive(Debug)]
pub struct Follow {
    dir: PathBuf,
    started_unix_ns: i64,
    files: HashMap<PathBuf, File>,
    names: Names,
    json: SessionJson,
}

/// A stream file, with the position up to which the file was read.
#[derive(Debug)]
struct File {
    cursor: Cursor,
    /// Producer of the file's stream.
    source: (Domain, u32),
    /// UUID in the file's packets.
    uuid: [u8; 16],
    /// Unix time in nanoseconds up to which the file was read.
    until: i64,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Round {
    /// Whether the round found new packets.
    pub has_news: bool,
    /// Whether the session had ended before the round. If the session had ended and the round found no new
    /// packets, no more packets come.
    pub is_finished: bool,
    /// Earliest Unix time in nanoseconds up to which the round has read a file that holds further packets.
    /// `None` if the round has read all packets.
    pub more_after: Option<i64>,
}

impl Follow {
    /// Opens a session. The first round reads the session from its beginning.
    ///
    /// # Errors
    /// If `dir` is not a session's directory, or its description is damaged.
    pub fn open(dir: &Path) -> Result<Follow> {
        let json = SessionJson::read(dir)?;
        let session = Session::of(dir, json.clone(), Vec::new(), 0)?;
        Ok(Follow {
            json,
            dir: dir.to_owned(),
            started_unix_ns: session.json().started_unix_ns,
            files: HashMap::new(),
            names: Names::new(vec![(session.name(), session.json().sides())]),
        })
    }

    /// Returns the Unix time of the session's start in nanoseconds.
    pub fn started_unix_ns(&self) -> i64 {
        self.started_unix_ns
    }

    /// Reads the packets that the writer has committed since the last round, up to some MiB. `each` is called
    /// with the entries in order of time. Later rounds may give entries with earlier times.
    ///
    /// # Errors
    /// If a file is damaged. `each` may already have been called with the entries before the damage.
    pub fn round(&mut self, each: &mut dyn FnMut(EntryRef<'_>)) -> Result<Round> {
        let mut tries = 1;
        let (session, cursors, is_finished) = loop {
            match self.scan() {
                Ok(found) => break found,
                Err(Error::Damaged { .. }) if tries < TRIES => tries += 1,
                Err(why) => return Err(why),
            }
            thread::sleep(PAUSE);
        };
        let has_news = session.is_some();
        if let Some(session) = session {
            let maps = ClockMaps::estimates();
            // The round works on a copy, because `self.names` must not change if the round finds damage.
            let mut names = self.names.clone();
            let inputs = stream_inputs(0, &session, &maps, Needs::ALL, &mut names);
            let mut timeline = Timeline::of(inputs, names, Vec::new())?;
            let read = loop {
                match timeline.read() {
                    Some(Ok(entry)) => each(entry),
                    Some(Err(why)) => break Err(why),
                    None => break Ok(()),
                }
            };
            let names = timeline.into_names();
            // Even if the round fails, `each` may already have been called with entries of new sources. Later
            // sources must not have the serial numbers of these sources.
            self.names.number_after(&names);
            read?;
            self.names = names;
            self.advance(&session, &cursors);
        }
        let more = self.files.values().filter(|file| file.cursor.has_more);
        Ok(Round { has_news, is_finished, more_after: more.map(|file| file.until).min() })
    }

    /// Returns whether a process may still write the session. A writer holds a lock on the folder of the
    /// trace.
    pub fn has_writer(&self) -> bool {
        let locked = Folder::open(&self.dir.join("ctf"), Share::Owner).and_then(|f| f.is_locked());
        // If the folder cannot be locked, there may be a writer.
        locked.unwrap_or(true)
    }

    /// Passes to `each` the losses that belong to no stream. The caller must call this method only after the
    /// session has ended.
    ///
    /// # Errors
    /// If the description is damaged.
    pub fn end(mut self, each: &mut dyn FnMut(EntryRef<'_>)) -> Result<()> {
        self.json.read_again(&self.dir)?;
        let files = &self.files;
        let has_files = |uuid: &[u8; 16], domain, client| {
            files.values().any(|file| (&file.uuid, file.source) == (uuid, (domain, client)))
        };
        let all = elsewhere(0, &self.json, &has_files, &mut self.names);
        all.into_iter().for_each(|lost| each(EntryRef::Lost(lost)));
        Ok(())
    }

    /// Finds new packets. Returns a session that has only the new packets, or `None` if there are no new
    /// packets. The function also returns the position in each file after the new packets, and whether the
    /// session had ended before the scan.
    fn scan(&mut self) -> Result<(Option<Session>, HashMap<PathBuf, Cursor>, bool)> {
        self.json.read_again(&self.dir)?;
        let is_finished = self.json.finished;
        let paths = stream_files(&self.dir, &self.json)?;
        let most = (ROUND_BYTES / paths.len().max(1) as u64).max(FILE_BYTES);
        // If a file has further packets, this file is read first. Files that were read up to a later time
        // wait.
        let more = self.files.values().filter(|file| file.cursor.has_more);
        let limit = more.map(|file| file.until).min().unwrap_or(i64::MAX);
        // Later files of the same streams wait too.
        let ahead = self.files.values().filter(|file| file.cursor.has_more && file.until > limit);
        let ahead: HashSet<(Domain, u32)> = ahead.map(|file| file.source).collect();
        let mut cursors = HashMap::new();
        let mut segments = Vec::new();
        for path in paths {
            let file = self.files.get(&path);
            if file.is_some_and(|file| file.cursor.is_whole || file.until > limit) {
                continue;
            }
            let after = file.map(|file| &file.cursor);
            let (segment, cursor) = Segment::scan_after(path.clone(), after, most)?;
            if ahead.contains(&(segment.first.domain, segment.first.client)) {
                continue;
            }
            // A file without new packets also gets a new cursor, if its old cursor says that the file has
            // more packets. The last scan may have ended at the file's last packet before the scan could see
            // that no packet follows.
            if segment.has_news() || file.is_none_or(|file| file.cursor.has_more) {
                cursors.insert(path, cursor);
                segments.push(segment);
            }
        }
        if segments.is_empty() {
            return Ok((None, cursors, is_finished));
        }
        // The classes are read after the scan, so that they include the classes of all packets of the scan.
        self.json.read_classes(&self.dir)?;
        let mut session = Session::of(&self.dir, self.json.clone(), segments, 0)?;
        // Later files of a stream wait for the stream's earlier files.
        let has_more = |path: &Path| cursors.get(path).is_some_and(|cursor| cursor.has_more);
        session.end_streams(has_more);
        Ok((Some(session), cursors, is_finished))
    }

    /// Notes the position up to which each file was read.
    fn advance(&mut self, session: &Session, cursors: &HashMap<PathBuf, Cursor>) {
        for stream in session.streams() {
            for segment in &stream.segments {
                let Some(cursor) = cursors.get(&segment.path) else { continue };
                let until = end(session, segment);
                let (source, uuid) = ((stream.domain, stream.client), segment.first.uuid);
                let file = File { cursor: *cursor, source, uuid, until };
                self.files.insert(segment.path.clone(), file);
            }
        }
    }
}

/// Returns the Unix time in nanoseconds of the end of a segment.
fn end(session: &Session, segment: &Segment) -> i64 {
    let clock = session.json().clock(segment.last.stream_id);
    let time = clock.map(|clock| session.time(clock, segment.last.timestamp_end));
    time.map_or(i64::MIN, nanoseconds)
}
