//! State that all sources of a session share: classes, clocks, the packet buffer, accounts, and the files
//! that describe the trace.

use super::budget::Pace;
use super::classes::Classes;
use super::recorder::Recorder;
use super::stats::{Failures, JOURNAL, SESSION_FILES, Stats};
use crate::ctf::files::{Description, Files, HIDDEN, Root, clear};
use crate::ctf::journal::Journal;
use crate::ctf::metadata::{blocks, tsdl};
use crate::ctf::packet_buffer::DEFAULT_PACKET_BYTES;
use crate::ctf::stream::DEFAULT_FILE_BYTES;
use crate::ctf::{Clocks, Folder, PacketBuffer, WriteFailed};
use crate::events::Unattached;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_format::classes::Line;
use hypertrace_format::origin::Origin;
use hypertrace_format::session_json::{FORMAT, SessionJson, VERSION};
use hypertrace_format::uuid;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Destination and files of the trace.
#[derive(Debug)]
pub(crate) struct TraceFiles {
    /// The session's directory or journal. In a flight recorder, the directory of the last snapshot.
    pub destination: Root,
    pub uuid: [u8; 16],
    /// UUID of the killed session that this session completes.
    pub completes: Option<String>,
    /// The process and the machine that record the session.
    pub origin: Option<Origin>,
    /// The span during which the session is recorded.
    pub trace_parent: Option<TraceParent>,
    /// Value of [`SessionConfig::served`](crate::SessionConfig::served).
    pub served: bool,
    /// The files of the trace. The files are in [`HIDDEN`] while the session is created. If the value is
    /// `None`, the drain builds and checks packets, but does not write them. A flight recorder has files only
    /// while it takes a snapshot.
    pub files: Option<Files>,
    /// Value of [`SessionConfig::open_files`](crate::SessionConfig::open_files).
    pub open_files: usize,
    pub file_bytes: u64,
}

impl TraceFiles {
    /// Returns true if there is a trace.
    pub fn is_open(&self) -> bool {
        self.files.is_some()
    }

    fn journal(&mut self) -> Option<&mut Journal> {
        self.files.as_mut().and_then(Files::as_journal)
    }

    /// Returns true if bytes still wait for a journal's reader.
    pub fn has_waiting(&self) -> bool {
        self.files.as_ref().is_some_and(Files::has_waiting)
    }

    /// From this call on, the journal of the session waits for its reader, because the session ends.
    pub fn block_until_drained(&mut self) {
        if let Some(journal) = self.journal() {
            journal.block_until_drained();
        }
    }

    /// Ends a journal.
    pub fn end(&mut self) -> Result<(), WriteFailed> {
        self.on_journal("end", Journal::end)
    }

    fn on_journal(
        &mut self,
        action: &'static str,
        call: impl FnOnce(&mut Journal) -> io::Result<()>,
    ) -> Result<(), WriteFailed> {
        match self.journal().map(|journal| (call(journal), journal)) {
            Some((Err(source), journal)) => {
                Err(WriteFailed { action, path: journal.path().to_owned(), source })
            }
            _ => Ok(()),
        }
    }
}

/// Number of words (256 KiB) of the guests' schema logs that a pass may read, whichever clients wrote these
/// words. A pass may read another 256 KiB. Each client has an equal part of these 256 KiB, and no other
/// client can use up this part. A guest can make its log full with one store, so the pass must not take
/// longer for logs than for the clients' records. If up to 16 logs are full, a pass reads all these logs.
pub(crate) const LOG_WORDS: u64 = 1 << 15;

/// State that all sources of a session share.
pub(crate) struct TraceState {
    pub trace: TraceFiles,
    pub buffer: PacketBuffer,
    /// Buffer of one block, for rings in overwrite mode.
    pub stage: Vec<u64>,
    pub classes: Classes,
    pub clocks: Clocks,
    /// True if the drain has noted the heads of the host rings, but has not read the guests' schema logs
    /// afterwards. In this case, a point with an unknown schema waits for the next pass.
    pub is_partial: bool,
    /// Number of words of the guests' schema logs that this pass may still read in addition to each client's
    /// part.
    pub log_words: u64,
    /// Each client's part in words, and the number of sources at the beginning of the pass. Sources that
    /// begin during the pass have no part.
    pub log_part: (u64, usize),
    pub stats: Vec<Stats>,
    /// Counters of the device, by name.
    pub device: BTreeMap<String, u64>,
    pub unattached: Arc<Unattached>,
    /// True if the session has recorded events that the last accounts do not count.
    pub is_ahead: bool,
    pub failures: Failures,
    /// Number of guest generations after the first.
    pub generations: u32,
    /// Times at which `session.json` and the metadata are replaced.
    pub pace: Pace,
}

impl TraceState {
    pub fn new(destination: Root, uuid: [u8; 16], clocks: Clocks) -> TraceState {
        let trace = TraceFiles {
            destination,
            uuid,
            completes: None,
            origin: None,
            trace_parent: None,
            served: false,
            files: None,
            open_files: 1,
            file_bytes: DEFAULT_FILE_BYTES,
        };
        TraceState {
            trace,
            buffer: PacketBuffer::new(DEFAULT_PACKET_BYTES),
            stage: Vec::new(),
            classes: Classes::new(),
            clocks,
            is_partial: false,
            log_words: LOG_WORDS,
            log_part: (0, 0),
            stats: Vec::new(),
            device: BTreeMap::new(),
            unattached: Arc::default(),
            is_ahead: false,
            failures: Failures::default(),
            generations: 0,
            pace: Pace::new(ticks()),
        }
    }

    /// Begins a trace in a directory that holds only [`HIDDEN`].
    pub fn begin_trace(&mut self, dir: Folder, uuid: [u8; 16]) -> Result<(), WriteFailed> {
        let begun = Files::open(&dir, HIDDEN, self.trace.open_files).and_then(|files| {
            self.trace.destination = Root::Directory(dir.clone());
            self.begin_files(files, uuid)
        });
        begun.inspect_err(|_| clear(&dir))
    }

    /// Begins a trace in these files.
    pub fn begin_files(&mut self, files: Files, uuid: [u8; 16]) -> Result<(), WriteFailed> {
        self.trace.uuid = uuid;
        self.trace.files = Some(files);
        let begun = self.write_classes().and_then(|()| {
            self.write_json(false)?;
            self.write_metadata()?;
            self.trace.files.as_mut().map_or(Ok(()), Files::appear)
        });
        begun.inspect_err(|_| self.trace.files = None)
    }

    /// Appends the new classes and clocks to `classes.jsonl` and the metadata, because the next packet may
    /// need them.
    #[inline]
    pub fn sync(&mut self) -> Result<(), WriteFailed> {
        let is_described = self.classes.is_described() && self.clocks.is_described();
        if self.trace.is_open() && !is_described { self.append() } else { Ok(()) }
    }

    fn append(&mut self) -> Result<(), WriteFailed> {
        let lines = self.lines()?;
        let TraceState { trace, classes, clocks, pace, .. } = self;
        let Some(files) = &mut trace.files else { return Ok(()) };
        if !lines.is_empty() {
            files.append(Description::Classes, &lines)?;
        }
        classes.listed(true);
        clocks.listed = clocks.len();
        let new = clocks.described..clocks.len();
        let at = files.len(Description::Metadata);
        let entries = clocks.entries(&trace.uuid, new.clone());
        let text = blocks(at, &entries, classes.new_entries(new.clone()));
        if !text.is_empty() {
            files.append(Description::Metadata, text.as_bytes())?;
        }
        if !new.is_empty() {
            pace.clock_added(ticks());
        }
        classes.described();
        clocks.described = clocks.len();
        Ok(())
    }

    /// Returns the lines that `classes.jsonl` does not have yet.
    fn lines(&self) -> Result<Vec<u8>, WriteFailed> {
        let clocks = self.clocks.to_json(self.clocks.listed..self.clocks.len());
        let classes = self.classes.unlisted().map(Line::Event);
        let mut text = Vec::new();
        for line in clocks.into_iter().map(Line::Clock).chain(classes) {
            line.append_to(&mut text)
                .map_err(|why| self.cannot_encode(Description::Classes, why))?;
        }
        Ok(text)
    }

    fn cannot_encode(&self, what: Description, why: serde_json::Error) -> WriteFailed {
        let path = self.trace.destination.path().join(what.name());
        WriteFailed { action: "encode", path, source: why.into() }
    }

    /// If the consumer's pull needs a larger stage, enlarges the stage.
    pub fn fit_stage(&mut self, consumer: &Consumer<'_>) {
        let words = consumer.stage_words();
        if self.stage.len() < words {
            self.stage.resize(words, 0);
        }
    }

    /// Writes bytes that still wait for a journal's reader.
    pub fn flush(&mut self) {
        let written = self.trace.on_journal("write", Journal::flush);
        self.failures.note(JOURNAL, written);
    }

    /// Replaces `session.json` if the accounts are due. In this case, also replaces the metadata if the maps
    /// of the clocks are due and a map has changed.
    pub fn write_accounts(&mut self, now: u64) {
        let frequency = self.clocks.host.frequency;
        // If this write fails, the next try comes when the accounts are due again.
        if !self.pace.begins_accounts(now, frequency) {
            return;
        }
        self.clocks.refresh();
        if !self.trace.is_open() {
            return;
        }
        let has_maps = self.clocks.changed && self.pace.begins_maps(now, frequency);
        let written = self.write_json(false).and_then(|bytes| match has_maps {
            true => Ok(bytes + self.write_metadata()?),
            false => Ok(bytes),
        });
        if let Some(bytes) = self.failures.note(SESSION_FILES, written) {
            self.is_ahead = false;
            self.pace.bytes = bytes;
        }
    }

    /// If the session has recorded events that the last accounts do not count, returns the time until the
    /// accounts are due. This time is at least 1 ms.
    pub fn accounts_due_in(&self, now: u64) -> Duration {
        if !self.is_ahead || !self.trace.is_open() {
            return Duration::MAX;
        }
        let frequency = self.clocks.host.frequency;
        let seconds = self.pace.ticks_to_accounts(now, frequency) as f64 / frequency.max(1) as f64;
        Duration::from_secs_f64(seconds).max(Duration::from_millis(1))
    }

    /// Writes the last descriptions at the session's end: replaces `session.json`, and also the metadata if
    /// the map of a clock has changed.
    pub fn write_end(&mut self) -> Result<(), WriteFailed> {
        self.write_json(true)?;
        if self.clocks.changed {
            self.write_metadata()?;
        }
        Ok(())
    }

    /// Replaces `classes.jsonl`.
    fn write_classes(&mut self) -> Result<(), WriteFailed> {
        self.classes.listed(false);
        // `session.json` already has the clocks that exist at the beginning.
        self.clocks.listed = self.clocks.len();
        let lines = self.lines()?;
        if let Some(files) = &mut self.trace.files {
            files.replace(Description::Classes, &lines)?;
        }
        self.classes.listed(true);
        Ok(())
    }

    /// Replaces the metadata. Returns the size of the metadata in bytes.
    fn write_metadata(&mut self) -> Result<u64, WriteFailed> {
        let (uuid, clocks) = (&self.trace.uuid, self.clocks.len());
        let entries = self.clocks.entries(uuid, 0..clocks);
        let TraceFiles { origin, trace_parent, .. } = &self.trace;
        let classes = self.classes.entries(clocks);
        let text = tsdl(uuid, origin.as_ref(), trace_parent.as_ref(), &entries, classes);
        if let Some(files) = &mut self.trace.files {
            files.replace(Description::Metadata, text.as_bytes())?;
        }
        self.classes.described();
        self.clocks.metadata_written();
        Ok(text.len() as u64)
    }

    /// Replaces `session.json`. Returns the file's size in bytes.
    fn write_json(&mut self, finished: bool) -> Result<u64, WriteFailed> {
        let json = SessionJson {
            format: FORMAT.into(),
            version: VERSION,
            uuid: uuid::text(u128::from_be_bytes(self.trace.uuid)),
            completes: self.trace.completes.clone(),
            started_unix_ns: self.clocks.host.first.unix_ns.try_into().unwrap_or(0),
            started_boot_ns: self.clocks.host.boot_ns,
            origin: self.trace.origin.clone(),
            trace_parent: self.trace.trace_parent.map(|parent| parent.to_string()),
            boot_id: self.clocks.boot_id.clone(),
            programs: self.clocks.shared,
            served: self.trace.served,
            clocks: self.clocks.to_json(0..self.clocks.len()),
            guest_tscs: self.clocks.guest_tscs.clone(),
            streams: self.stats.iter().filter(|s| s.is_used()).map(Stats::to_json).collect(),
            lost_unattached: self.unattached.events(),
            device: self.device.clone(),
            finished,
        };
        let text = json.text().map_err(|why| self.cannot_encode(Description::Session, why))?;
        if let Some(files) = &mut self.trace.files {
            files.replace(Description::Session, &text)?;
        }
        Ok(text.len() as u64)
    }

    /// Formats a human-readable status of the session's files.
    pub fn describe_files(&self, text: &mut String, recorder: Option<&Recorder>) -> fmt::Result {
        match recorder {
            Some(recorder) => write!(text, "{recorder}")?,
            None if !self.trace.is_open() => write!(text, "session: none")?,
            None => write!(text, "session: {}", self.trace.destination.path().display())?,
        }
        writeln!(text, ", {} writes failed", self.failures.count)
    }
}
