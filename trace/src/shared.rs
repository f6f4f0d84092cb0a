//! What all lanes of a session share: tables, clocks, the packet buffer, and
//! the two files that describe the rest.

use crate::budget::{ACCOUNT_BYTES_PER_SECOND, Rate};
use crate::classes::Classes;
use crate::clock::Clocks;
use crate::folder::Folder;
use crate::lane::Stats;
use crate::metadata::{Uuid, tsdl};
use crate::packet::PacketBuffer;
use crate::recorder::Recorder;
use crate::session_json::{self, FORMAT, SessionJson, VERSION};
use crate::simple::Simple;
use crate::stream::{Files, WriteFailed};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::ring::Consumer;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Told once when writing begins to fail, until all of it works again. Called
/// in the middle of a drain, so it must not call the session.
pub type OnWriteFailed = Box<dyn Fn(&WriteFailed) + Send>;

/// For [`Shared::failed`]: `session.json` and the metadata, once a second.
pub(crate) const BOOKS: usize = usize::MAX;
/// The same: the simple backend's file.
const SIMPLE: usize = usize::MAX - 1;

/// How long a pipe's reader may do nothing when the simple backend goes on to
/// another file: nothing is drained meanwhile.
const SIMPLE_SWITCH: Duration = Duration::from_millis(100);
/// The same at the session's end.
const SIMPLE_END: Duration = Duration::from_secs(1);

/// Where a trace is made: without metadata it cannot be read, so it appears
/// with it.
pub(crate) const HIDDEN: &str = ".ctf";
/// Its name from then on.
pub(crate) const CTF: &str = "ctf";

/// Removes what was made in a directory that was empty.
pub(crate) fn clear(dir: &Folder) {
    let _ = dir.remove_folder(HIDDEN);
    let _ = dir.remove_folder(CTF);
    let _ = dir.remove(session_json::FILE);
}

pub(crate) struct Shared {
    /// The session's directory; of a flight recorder, the last snapshot's.
    pub dir: Folder,
    /// The trace's files, in [`HIDDEN`] while the session is created.
    pub files: Option<Files>,
    /// As in [`SessionConfig`](crate::SessionConfig).
    pub open_files: usize,
    /// There is a trace. If not, packets are built and checked, and not
    /// written. A flight recorder has one only while it takes a snapshot.
    pub open: bool,
    pub uuid: [u8; 16],
    pub segment_bytes: u64,
    pub buffer: PacketBuffer,
    /// For rings in overwrite mode: a block.
    pub stage: Vec<u64>,
    pub classes: Classes,
    pub clocks: Clocks,
    /// How often `session.json` and the metadata may be replaced for guests.
    rate: Rate,
    /// No producer runs any more, so that no guest can ask for more.
    pub last_pass: bool,
    pub stats: Vec<Stats>,
    pub device: BTreeMap<String, u64>,
    pub on_failed: Option<OnWriteFailed>,
    /// Writes that failed.
    pub failures: u64,
    /// Whose last write failed: lanes by their [`Stats`], or [`BOOKS`].
    failing: BTreeSet<usize>,
    /// The simple backend's file.
    pub simple: Option<Simple>,
    /// Declared events of threads that found no host ring, running.
    pub missed: Arc<AtomicU64>,
    /// Events lost in processes that hold no client, running.
    pub unattached: u64,
    /// Those that the simple backend's file knows of.
    pub missed_told: u64,
    /// The guests' schema logs were not read since the host rings were noted:
    /// a point of which nothing is known waits for the next pass.
    pub partial: bool,
    /// Clients whose schema logs there was no time to read: the same for their
    /// points.
    pub behind: u32,
    /// When `session.json` was last replaced for its accounts, host's raw counter,
    /// and the bytes that this took.
    pub told_at: u64,
    told_bytes: u64,
}

impl Shared {
    pub fn new(dir: Folder, uuid: [u8; 16], clocks: Clocks) -> Shared {
        Shared {
            dir,
            files: None,
            open_files: 1,
            open: false,
            uuid,
            segment_bytes: crate::stream::DEFAULT_SEGMENT_BYTES,
            buffer: PacketBuffer::new(crate::packet::DEFAULT_PACKET_BYTES),
            stage: Vec::new(),
            classes: Classes::new(),
            clocks,
            rate: Rate::new(ticks()),
            last_pass: false,
            stats: Vec::new(),
            device: BTreeMap::new(),
            on_failed: None,
            failures: 0,
            failing: BTreeSet::new(),
            simple: None,
            missed: Arc::default(),
            unattached: 0,
            missed_told: 0,
            partial: false,
            behind: 0,
            told_at: 0,
            told_bytes: 0,
        }
    }

    /// Begins a trace in a directory that holds [`HIDDEN`] and nothing else.
    pub fn begin_trace(&mut self, dir: Folder, uuid: [u8; 16]) -> Result<(), WriteFailed> {
        let path = dir.path().join(CTF);
        (self.dir, self.uuid) = (dir, uuid);
        self.classes.forget_described();
        let begun = self
            .open_trace(HIDDEN)
            .and_then(|()| self.describe(false))
            .and_then(|_| self.dir.rename(HIDDEN, CTF).map_err(WriteFailed::on("create", &path)));
        if begun.is_err() {
            self.files = None;
            clear(&self.dir);
        }
        self.files = self.files.take().map(|files| files.moved(path));
        self.open = begun.is_ok();
        begun
    }

    /// Opens the folder of the trace, which has this name.
    pub fn open_trace(&mut self, name: &str) -> Result<(), WriteFailed> {
        let path = self.dir.path().join(name);
        let folder = self.dir.folder(name).map_err(WriteFailed::on("open", &path))?;
        self.files = Some(Files::new(folder, self.open_files));
        Ok(())
    }

    /// Whether `session.json` and the metadata may be replaced now because a
    /// guest brought something new.
    pub fn may_describe(&mut self, now: u64) -> bool {
        !self.open || self.last_pass || self.rate.allows(now, self.clocks.host.frequency)
    }

    /// Brings `session.json` and the metadata up to date, if a packet may need
    /// something that they do not say yet.
    #[inline]
    pub fn sync(&mut self) -> Result<(), WriteFailed> {
        let is_described = self.classes.is_described(self.classes.version());
        if self.open && (!is_described || self.clocks.changed) {
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

    /// Whether the accounts are due: once a second, or what
    /// [`ACCOUNT_BYTES_PER_SECOND`] allows.
    pub fn are_accounts_due(&self, now: u64) -> bool {
        let seconds = self.told_bytes.div_ceil(ACCOUNT_BYTES_PER_SECOND).max(1);
        now.saturating_sub(self.told_at) > self.clocks.host.frequency.saturating_mul(seconds)
    }

    /// Replaces `session.json` for its accounts, and the metadata where a map of a
    /// clock has changed.
    pub fn tell_accounts(&mut self, now: u64) {
        // Also when it fails: that is often enough to try.
        self.told_at = now;
        self.clocks.refresh();
        if !self.open {
            return;
        }
        let told = match self.clocks.changed {
            true => self.describe(false),
            false => self.write_json(false),
        };
        match told {
            Ok(bytes) => {
                self.told_bytes = bytes;
                self.works(BOOKS);
            }
            Err(failed) => self.failed(BOOKS, &failed),
        }
    }

    /// Replaces `session.json`, then the metadata. Returns their size in bytes.
    pub fn describe(&mut self, finished: bool) -> Result<u64, WriteFailed> {
        let json = self.write_json(finished);
        let clocks = self.clocks.entries(&self.uuid);
        let text = tsdl(&self.uuid, &clocks, self.classes.entries(self.clocks.len()));
        // Spent also where a write fails: the work was done.
        let bytes = json.as_ref().map_or(0, |bytes| *bytes) + text.len() as u64;
        self.rate.spend(bytes);
        json?;
        if let Some(files) = &self.files {
            files.folder().replace("metadata", text.as_bytes())?;
        }
        self.classes.described();
        self.clocks.changed = false;
        self.clocks.described = self.clocks.len();
        Ok(bytes)
    }

    /// Replaces `session.json`. Returns its size in bytes.
    pub fn write_json(&mut self, finished: bool) -> Result<u64, WriteFailed> {
        SessionJson {
            format: FORMAT.into(),
            version: VERSION,
            uuid: Uuid(&self.uuid).to_string(),
            started_unix_ns: self.clocks.host.started_unix_ns().try_into().unwrap_or(0),
            programs: self.clocks.shared,
            clocks: self.clocks.to_json(),
            events: self.classes.to_json(),
            streams: self.stats.iter().filter(|s| s.is_used()).map(Stats::to_json).collect(),
            lost_unattached: self.unattached,
            device: self.device.clone(),
            finished,
        }
        .write(&self.dir)
    }

    /// Where everything goes, for people.
    pub fn describe_files(&self, text: &mut String, recorder: Option<&Recorder>) -> fmt::Result {
        match recorder {
            Some(recorder) => write!(text, "{recorder}")?,
            None if !self.open => write!(text, "session: none")?,
            None => write!(text, "session: {}", self.dir.path().display())?,
        }
        writeln!(text, ", {} writes failed", self.failures)?;
        match &self.simple {
            None => writeln!(text, "simple: none"),
            Some(simple) => writeln!(
                text,
                "simple: {} {}, {} records, {} dropped, {} bytes waiting",
                simple.path().display(),
                if simple.is_on() { "on" } else { "off" },
                simple.taken,
                simple.dropped,
                simple.waiting()
            ),
        }
    }

    /// Has the simple backend write to this file from now on.
    pub fn set_simple(&mut self, path: &Path) -> Result<(), WriteFailed> {
        let now = ticks();
        let same = self.simple.as_mut().and_then(|old| Some((old.is(path)?, old)));
        if let Some((false, pipe)) = same {
            // There is no going back to its begin.
            pipe.set(true, now);
            return Ok(());
        }
        let same = same.is_some();
        let mut new = Simple::create(path, &self.dir, &self.clocks.host, now)?;
        if let Some(mut old) = self.simple.take() {
            let (left, closed) =
                if same { (old.forsake(), Ok(())) } else { old.close(SIMPLE_SWITCH) };
            new.lost(0, now, left);
            self.simple_wrote(closed);
        }
        self.simple = Some(new);
        Ok(())
    }

    /// The end, for the simple backend.
    pub fn simple_close(&mut self) {
        if let Some(simple) = &mut self.simple {
            let (_, closed) = simple.close(SIMPLE_END);
            self.simple_wrote(closed);
        }
    }

    /// A pass ends, for the simple backend.
    pub fn simple_pass(&mut self) {
        if let Some(simple) = &mut self.simple {
            let wrote = simple.pass(&self.clocks.host, ticks());
            self.simple_wrote(wrote);
        }
    }

    /// What became of a write of the simple backend's.
    fn simple_wrote(&mut self, wrote: Result<(), WriteFailed>) {
        match wrote {
            Ok(()) => self.works(SIMPLE),
            Err(failed) => self.failed(SIMPLE, &failed),
        }
    }

    /// Counts what could not be written, and reports it if nothing else is
    /// failing already.
    pub fn failed(&mut self, whose: usize, failed: &WriteFailed) {
        self.failures += 1;
        if self.failing.is_empty()
            && let Some(report) = &self.on_failed
        {
            report(failed);
        }
        self.failing.insert(whose);
    }

    /// Something of `whose` was written: its next failure is news again.
    #[inline]
    pub fn works(&mut self, whose: usize) {
        if !self.failing.is_empty() {
            self.failing.remove(&whose);
        }
    }
}
