//! State that all lanes of a session share: classes, clocks, the packet buffer, accounts,
//! and the two files that describe the rest.

use super::budget::Pace;
use super::classes::Classes;
use super::failures::{BOOKS, Failures};
use super::recorder::Recorder;
use super::simple_file::SimpleFile;
use super::stats::Stats;
use super::waiting::Pass;
use crate::ctf::metadata::tsdl;
use crate::ctf::packet::DEFAULT_PACKET_BYTES;
use crate::ctf::session_json::{self, FORMAT, SessionJson, VERSION};
use crate::ctf::stream::DEFAULT_FILE_BYTES;
use crate::ctf::{Clocks, Files, Folder, PacketBuffer, Uuid, WriteFailed};
use crate::limits::MOST_LOST;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::Consumer;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::Ordering::Relaxed;

/// Name of the trace's folder while the session is created: without metadata it cannot
/// be read, so it appears with it.
pub(crate) const HIDDEN: &str = ".ctf";
/// Its name from then on.
pub(crate) const CTF: &str = "ctf";

/// Removes what was made in a directory that was empty.
pub(crate) fn clear(dir: &Folder) {
    let _ = dir.remove_folder(HIDDEN);
    let _ = dir.remove_folder(CTF);
    let _ = dir.remove(session_json::FILE);
}

/// Directory and files of the trace.
#[derive(Debug)]
pub(crate) struct TraceFiles {
    /// The session's directory; of a flight recorder, the last snapshot's.
    pub dir: Folder,
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
}

/// State that all lanes of a session share.
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
    pub fn new(dir: Folder, uuid: [u8; 16], clocks: Clocks) -> TraceState {
        let trace =
            TraceFiles { dir, uuid, files: None, open_files: 1, file_bytes: DEFAULT_FILE_BYTES };
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
        let path = dir.path().join(CTF);
        (self.trace.dir, self.trace.uuid) = (dir, uuid);
        self.classes.forget_described();
        let begun = self.open_trace(HIDDEN).and_then(|()| self.describe(false)).and_then(|_| {
            self.trace.dir.rename(HIDDEN, CTF).map_err(WriteFailed::on("create", &path))
        });
        if begun.is_err() {
            self.trace.files = None;
            clear(&self.trace.dir);
        }
        self.trace.files = self.trace.files.take().map(|files| files.moved(path));
        begun
    }

    /// Opens the folder of the trace, which has this name.
    pub fn open_trace(&mut self, name: &str) -> Result<(), WriteFailed> {
        let trace = &mut self.trace;
        let path = trace.dir.path().join(name);
        let folder = trace.dir.folder(name).map_err(WriteFailed::on("open", &path))?;
        trace.files = Some(Files::new(folder, trace.open_files));
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
            false => self.write_json(false),
        };
        if let Some(bytes) = self.failures.note(BOOKS, written) {
            self.is_ahead = false;
            self.pace.accounts_bytes = bytes;
        }
    }

    /// Replaces `session.json`, then the metadata. Returns their size in bytes.
    pub fn describe(&mut self, finished: bool) -> Result<u64, WriteFailed> {
        let json = self.write_json(finished);
        let uuid = &self.trace.uuid;
        let clocks = self.clocks.entries(uuid);
        let text = tsdl(uuid, &clocks, self.classes.entries(self.clocks.len()));
        // Spent also where a write fails: the work was done.
        let bytes = json.as_ref().map_or(0, |bytes| *bytes) + text.len() as u64;
        self.pace.spend(bytes);
        json?;
        if let Some(files) = &self.trace.files {
            files.folder().replace("metadata", text.as_bytes())?;
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
    fn write_json(&mut self, finished: bool) -> Result<u64, WriteFailed> {
        SessionJson {
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
        }
        .write(&self.trace.dir)
    }

    /// Formats a human-readable status of the session's files.
    pub fn describe_files(&self, text: &mut String, recorder: Option<&Recorder>) -> fmt::Result {
        match recorder {
            Some(recorder) => write!(text, "{recorder}")?,
            None if !self.trace.is_open() => write!(text, "session: none")?,
            None => write!(text, "session: {}", self.trace.dir.path().display())?,
        }
        writeln!(text, ", {} writes failed", self.failures.count)?;
        writeln!(text, "{}", self.simple)
    }
}
