//! State that all sources of a session share: classes, clocks, the packet buffer, accounts,
//! and the two files that describe the rest.

use super::budget::Pace;
use super::classes::Classes;
use super::failures::{BOOKS, Failures, JOURNAL};
use super::recorder::Recorder;
use super::simple_file::SimpleFile;
use super::stats::Stats;
use super::waiting::Pass;
use crate::ctf::files::{CTF, Destination, Files, HIDDEN, clear};
use crate::ctf::journal::Journal;
use crate::ctf::metadata::tsdl;
use crate::ctf::packet_buffer::DEFAULT_PACKET_BYTES;
use crate::ctf::stream::DEFAULT_FILE_BYTES;
use crate::ctf::{Clocks, Folder, PacketBuffer, Uuid, WriteFailed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::Consumer;
use hypertrace_format::limits::MOST_LOST;
use hypertrace_format::session_json::{self, FORMAT, SessionJson, VERSION};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// Destination and files of the trace.
#[derive(Debug)]
pub(crate) struct TraceFiles {
    /// The session's directory or journal; of a flight recorder, the last snapshot's directory.
    pub destination: Destination,
    pub uuid: [u8; 16],
    /// The trace's files, in [`HIDDEN`] while the session is created. If there are
    /// none, packets are built and checked, and not written. A flight recorder has
    /// some only while it takes a snapshot.
    pub files: Option<Files>,
    /// As in [`SessionConfig`](crate::SessionConfig).
    pub open_files: usize,
    pub file_bytes: u64,
}

impl TraceFiles {
    /// Returns whether there is a trace.
    pub fn is_open(&self) -> bool {
        self.files.is_some()
    }

    fn journal(&mut self) -> Option<&mut Journal> {
        self.files.as_mut().and_then(Files::as_journal)
    }

    /// Returns whether a journal's reader has to take something before all is written.
    pub fn has_waiting(&self) -> bool {
        self.files.as_ref().is_some_and(Files::has_waiting)
    }

    /// Waits for a journal's reader from now on, as the session ends.
    pub fn be_patient(&mut self) {
        if let Some(journal) = self.journal() {
            journal.be_patient();
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

/// State that all sources of a session share.
pub(crate) struct TraceState {
    pub trace: TraceFiles,
    pub buffer: PacketBuffer,
    /// For rings in overwrite mode: a block.
    pub stage: Vec<u64>,
    pub classes: Classes,
    pub clocks: Clocks,
    pub pass: Pass,
    pub stats: Vec<Stats>,
    /// Counters that the device keeps itself, by name.
    pub device: BTreeMap<String, u64>,
    /// Events lost in processes that hold no client, running.
    pub clientless: u64,
    /// Something was recorded that the last accounts do not have.
    pub is_ahead: bool,
    pub failures: Failures,
    pub simple: SimpleFile,
    /// Generations of guests after the first.
    pub generations: u32,
    /// How often `session.json` and the metadata may be replaced.
    pub pace: Pace,
}

impl TraceState {
    pub fn new(destination: Destination, uuid: [u8; 16], clocks: Clocks) -> TraceState {
        let trace = TraceFiles {
            destination,
            uuid,
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
            pass: Pass::default(),
            stats: Vec::new(),
            device: BTreeMap::new(),
            clientless: 0,
            is_ahead: false,
            failures: Failures::default(),
            simple: SimpleFile::default(),
            generations: 0,
            pace: Pace::new(ticks()),
        }
    }

    /// Begins a trace in a directory that holds [`HIDDEN`] and nothing else.
    pub fn begin_trace(&mut self, dir: Folder, uuid: [u8; 16]) -> Result<(), WriteFailed> {
        let begun = Files::open(&dir, HIDDEN, self.trace.open_files).and_then(|files| {
            self.trace.destination = Destination::Directory(dir.clone());
            self.begin_files(files, uuid)
        });
        begun.inspect_err(|_| clear(&dir))
    }

    /// Begins a trace in these files.
    pub fn begin_files(&mut self, files: Files, uuid: [u8; 16]) -> Result<(), WriteFailed> {
        self.trace.uuid = uuid;
        self.classes.forget_described();
        self.trace.files = Some(files);
        let begun = self.describe(false).and_then(|_| match &mut self.trace.files {
            Some(files) => files.appear(),
            None => Ok(()),
        });
        begun.inspect_err(|_| self.trace.files = None)
    }

    /// Opens the trace that is in the session's directory.
    pub fn open_trace(&mut self, dir: &Folder) -> Result<(), WriteFailed> {
        self.trace.files = Some(Files::open(dir, CTF, self.trace.open_files)?);
        Ok(())
    }

    /// Returns whether `session.json` and the metadata may be replaced now because a
    /// guest brought something new.
    pub fn may_describe(&mut self, now: u64) -> bool {
        !self.trace.is_open()
            || self.pass.is_last
            || self.pace.allows(now, self.clocks.host.frequency)
    }

    /// Brings `session.json` and the metadata up to date, if a packet may need
    /// something that they do not have yet.
    #[inline]
    pub fn sync(&mut self) -> Result<(), WriteFailed> {
        let is_described = self.classes.is_described(self.classes.version());
        if self.trace.is_open() && (!is_described || self.clocks.changed) {
            self.describe(false)?;
        }
        Ok(())
    }

    /// Makes room for what this consumer's pull puts aside.
    pub fn fit_stage(&mut self, consumer: &Consumer<'_>) {
        let words = consumer.stage_words();
        if self.stage.len() < words {
            self.stage.resize(words, 0);
        }
    }

    /// Writes what waits for a journal's reader.
    pub fn flush(&mut self) {
        let written = self.trace.on_journal("write", Journal::flush);
        self.failures.note(JOURNAL, written);
    }

    /// Replaces `session.json` for its accounts, and the metadata where a map of a
    /// clock has changed, if the accounts are due.
    pub fn write_accounts(&mut self, now: u64) {
        // A failed write is tried again when the accounts are due again.
        if !self.pace.begins_accounts(now, self.clocks.host.frequency) {
            return;
        }
        self.clocks.refresh();
        if !self.trace.is_open() {
            return;
        }
        let written = match self.clocks.changed {
            true => self.describe(false),
            false => self.write_json(),
        };
        if let Some(bytes) = self.failures.note(BOOKS, written) {
            self.is_ahead = false;
            self.pace.accounts_bytes = bytes;
        }
    }

    /// Replaces `session.json`, then the metadata. Returns their size in bytes.
    pub fn describe(&mut self, finished: bool) -> Result<u64, WriteFailed> {
        let json = self.json(finished)?;
        let uuid = &self.trace.uuid;
        let clocks = self.clocks.entries(uuid);
        let text = tsdl(uuid, &clocks, self.classes.entries(self.clocks.len()));
        let bytes = (json.len() + text.len()) as u64;
        // Spent also where a write fails: the work was done.
        self.pace.spend(bytes);
        if let Some(files) = &mut self.trace.files {
            files.describe(&json, Some(text.as_bytes()))?;
        }
        self.classes.described();
        self.clocks.changed = false;
        self.clocks.described = self.clocks.len();
        Ok(bytes)
    }

    /// Returns the number of lost events that belong to no stream: of processes that hold
    /// no client, and of threads of the VMM that found no host ring.
    pub fn unattached(&self) -> u64 {
        let threads = self.simple.missed.all.load(Relaxed);
        self.clientless.saturating_add(threads).min(MOST_LOST)
    }

    /// Replaces `session.json`. Returns its size in bytes.
    fn write_json(&mut self) -> Result<u64, WriteFailed> {
        let json = self.json(false)?;
        if let Some(files) = &mut self.trace.files {
            files.describe(&json, None)?;
        }
        Ok(json.len() as u64)
    }

    /// Returns the text of `session.json`.
    fn json(&self, finished: bool) -> Result<Vec<u8>, WriteFailed> {
        let json = SessionJson {
            format: FORMAT.into(),
            version: VERSION,
            uuid: Uuid(&self.trace.uuid).to_string(),
            started_unix_ns: self.clocks.host.first.unix_ns.try_into().unwrap_or(0),
            boot_id: self.clocks.boot_id.clone(),
            programs: self.clocks.shared,
            clocks: self.clocks.to_json(),
            guest_tscs: self.clocks.guest_tscs.clone(),
            events: self.classes.to_json(),
            streams: self.stats.iter().filter(|s| s.is_used()).map(Stats::to_json).collect(),
            lost_unattached: self.unattached(),
            device: self.device.clone(),
            finished,
        };
        json.text().map_err(|why| WriteFailed {
            action: "encode",
            path: self.trace.destination.path().join(session_json::FILE),
            source: why.into(),
        })
    }

    /// Formats a human-readable status of the session's files.
    pub fn describe_files(&self, text: &mut String, recorder: Option<&Recorder>) -> fmt::Result {
        match recorder {
            Some(recorder) => write!(text, "{recorder}")?,
            None if !self.trace.is_open() => write!(text, "session: none")?,
            None => write!(text, "session: {}", self.trace.destination.path().display())?,
        }
        writeln!(text, ", {} writes failed", self.failures.count)?;
        writeln!(text, "{}", self.simple)
    }
}
