//! The handle of a session, for a VMM while it runs.

use super::engine::Engine;
use super::error::SessionError;
use super::recover::Committed;
use super::summary::Summary;
use super::writer::Writer;
use crate::ctf::files::HIDDEN;
use crate::ctf::tsc;
use crate::ctf::{Folder, Root};
use crate::drain::{Asker, SnapshotError, TooManyRules};
use crate::events::registry::{self, set_declared};
use crate::events::{HostRings, Pattern, rings};
use crate::trigger::{Callback, TriggerError, Triggers};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::drain::pass;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_abi::ring::{Emit, Producer};
use hypertrace_abi::sink::with_drain;
use hypertrace_abi::trace_parent::TraceParent;
use hypertrace_format::session_json::GuestTsc;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a snapshot is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The parts of a session, which its clones share.
pub(super) struct SessionParts {
    pub uuid: [u8; 16],
    pub destination: Root,
    /// Directory without a trace of its own, whose empty folder for one is removed at the end.
    pub claim: Option<Folder>,
    pub host_frequency: u64,
    pub guest_frequency: u64,
    pub trace_parent: Option<TraceParent>,
    pub rings: Arc<HostRings>,
    pub triggers: Triggers,
    pub ended: AtomicBool,
    pub engine: Mutex<Engine>,
    pub ring_mode: RingMode,
    /// Notified when a snapshot is written, or the session has ended.
    pub snapshot: Condvar,
}

impl SessionParts {
    fn end(&self) {
        // A fork's copy, and one that was left to a child, end nothing of the other process.
        if !self.ended.swap(true, Ordering::Relaxed) && self.rings.are_here() {
            registry::session_ended();
            if let Some(dir) = &self.claim {
                let _ = dir.remove_empty(HIDDEN);
            }
        }
    }
}

impl Drop for SessionParts {
    fn drop(&mut self) {
        self.end();
    }
}

/// Numbers of names that a pattern matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matched {
    /// Declared events of this program.
    pub declared: usize,
    /// Names of the guest's events so far.
    pub guest: usize,
}

/// A session. Clones are the same session.
#[derive(Clone)]
pub struct Session {
    pub(super) parts: Arc<SessionParts>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the engine, whose lock the drain loop may hold.
        f.debug_struct("Session")
            .field("dir", &self.dir())
            .field("ring_mode", &self.ring_mode())
            .field("ended", &self.parts.ended)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Returns where a client's ring was committed by the killed process whose session is being
    /// [recovered](Session::recover). `None`: there was none.
    pub fn committed(&self, client: u32) -> Option<Committed> {
        self.engine().committed(client)
    }

    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        // A panic while the lock is held loses at worst one packet's counts.
        self.parts.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the session's UUID, for the device's config page.
    pub fn uuid(&self) -> [u8; 16] {
        self.parts.uuid
    }

    /// Returns the ticks per second of the host's raw counter, for the config page.
    pub fn host_frequency(&self) -> u64 {
        self.parts.host_frequency
    }

    /// Returns the ticks per second of the guests' TSC, for the config page: what
    /// [`SessionConfig::guest_frequency`](crate::SessionConfig::guest_frequency) says, else the host's.
    pub fn guest_frequency(&self) -> u64 {
        self.parts.guest_frequency
    }

    /// Returns the mode of the device's rings: what they do when they are full.
    pub fn ring_mode(&self) -> RingMode {
        self.parts.ring_mode
    }

    /// Writes the recorder's contents as a session, and waits until that is done.
    /// Returns its directory, `snapshot-NNNN`. Overwritten events count as lost
    /// there. Not to be called on the drain
    /// loop's thread, which writes it.
    ///
    /// # Errors
    /// If this is no flight recorder, the rings are not drained, or it cannot be written.
    pub fn snapshot(&self) -> Result<PathBuf, SnapshotError> {
        self.snapshot_for(Asker::Owner)
    }

    pub(super) fn snapshot_for(&self, asker: Asker) -> Result<PathBuf, SnapshotError> {
        let number = {
            let mut engine = self.engine();
            if engine.finished {
                return Err(SnapshotError::Ended);
            }
            engine.recorder.as_mut().ok_or(SnapshotError::NotARecorder)?.ask(asker)?
        };
        self.wake();
        let until = Instant::now() + PATIENCE;
        let mut engine = self.engine();
        loop {
            let recorder = engine.recorder.as_ref().ok_or(SnapshotError::NotARecorder)?;
            if let Some(outcome) = recorder.outcome(number) {
                return outcome;
            }
            if engine.finished {
                return Err(SnapshotError::Ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SnapshotError::NotDrained);
            }
            let waited = self.parts.snapshot.wait_timeout(engine, left);
            engine = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the session's directory; of one in a journal, the name that its configuration has for messages.
    pub fn dir(&self) -> &Path {
        self.parts.destination.path()
    }

    /// Wakes the drain loop.
    pub(crate) fn wake(&self) {
        self.parts.rings.wake();
    }

    /// Returns the session's directory, which is open: its path may lead elsewhere by now.
    ///
    /// # Errors
    /// If the session is written to a journal.
    pub fn folder(&self) -> io::Result<&Folder> {
        self.parts.destination.folder()
    }

    /// Makes the session the calling process's, for a process that was forked after [`Session::create`] and that
    /// drains and ends it from now on. No thread has attached yet. The process that forked [leaves](Session::leave) it.
    pub fn adopt(&self) {
        if self.parts.rings.adopt() {
            registry::session_began();
        }
    }

    /// Leaves the session to a process that was forked: here, no thread attaches any more, and nothing is recorded or
    /// ended. The caller drops its copies.
    pub fn leave(&self) {
        if self.parts.rings.leave() {
            registry::session_ended();
        }
    }

    /// Returns the descriptors that the session holds, for a process that closes all others: its directories and
    /// files, or its journal's socket. Its files that are opened later are in these directories. Those of triggers and of other
    /// backends are not among them: add triggers after the fork.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut all = Vec::new();
        let mut add = |fd: BorrowedFd<'_>| all.push(fd.as_raw_fd());
        let folders = [self.parts.destination.folder().ok(), self.parts.claim.as_ref()];
        folders.into_iter().flatten().for_each(|folder| add(folder.as_fd()));
        self.engine().each_descriptor(&mut add);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Claims a host ring for the calling thread under a name: declared events
    /// of this thread are this session's from now on. A thread gives its ring back
    /// when it ends.
    ///
    /// Returns `false` if all rings are taken, or in the middle of an emit of this
    /// thread (in a field's `put`, or what [`wake_by`](Self::wake_by) calls).
    pub fn attach(&self, name: &str) -> bool {
        self.parts.rings.attach(name)
    }

    /// Makes this the session of all threads that are attached to none, from
    /// their first event on. The session's memory stays until the process ends.
    pub fn install(&self) {
        self.parts.rings.install();
    }

    /// Registers `wake`, which is called when a thread's ring fills, so that
    /// the drain loop makes a pass before the next tick of its timer:
    /// `session.wake_by(move || kick.trigger())`. It must not block. Returns
    /// `false` if a function is registered already.
    pub fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) -> bool {
        self.parts.rings.wake_by(Box::new(wake))
    }

    /// Starts a thread that drains the VMM's own rings: every `period` while there are events, at the first event after a
    /// pause, and when a ring fills. It is for a VMM without a device, whose drain loop does it otherwise.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start_writer(&self, period: Duration) -> io::Result<Writer> {
        let session = self.clone();
        let (writer, thread) = Writer::start(period, move || {
            pass(&session, |_, _| ());
            with_drain(&session, |sink| sink.quiet_for())
        })?;
        self.wake_by(move || thread.unpark());
        Ok(writer)
    }

    /// Records an event that no `trace-events` file declares, on the calling
    /// thread's ring: `session.emit(event_type!("tick", n))`, see
    /// [`event_type!`](crate::abi::event_type). Never waits. An event that finds no room
    /// is counted.
    #[inline]
    pub fn emit<S: Site, F: Fields>(&self, (site, fields): (S, F)) -> Emit {
        self.parts.rings.emit(site, fields)
    }

    /// Returns whether the calling thread's ring takes this many records of `words` words now. For
    /// hypertrace-bench, which waits instead of losing.
    #[doc(hidden)]
    pub fn has_room(&self, records: u64, words: u64) -> bool {
        let has_room = |producer: &Producer<'_>| producer.has_room(records, words);
        self.parts.rings.with(ticks, has_room).unwrap_or(false)
    }

    /// Switches events by pattern: declared events and the guest's, including
    /// the guest's future events.
    ///
    /// # Errors
    /// If the guest has too many rules.
    pub fn set_events(&self, pattern: &Pattern, on: bool) -> Result<Matched, TooManyRules> {
        let guest = self.engine().set_guest_events(pattern, on)?;
        // The guest sees it after the next pass.
        self.wake();
        Ok(Matched { declared: set_declared(pattern, on), guest })
    }

    /// Adds a [trigger](crate::trigger); gives its number.
    ///
    /// # Errors
    /// If it is not one, or names something that is not there.
    pub fn add_trigger(&self, rule: &str) -> Result<u32, TriggerError> {
        let number = self.parts.triggers.add(rule)?;
        // A relay may take points in the host's place until the next pass.
        self.wake();
        Ok(number)
    }

    /// Removes a trigger. A point that a vCPU's thread is handling now may still fire it.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn remove_trigger(&self, number: u32) -> Result<(), TriggerError> {
        self.parts.triggers.remove(number)
    }

    /// Returns all triggers and what became of them, a line each.
    pub fn triggers(&self) -> String {
        self.parts.triggers.list()
    }

    /// Registers a callback that triggers can `call`, before the rules that name it.
    pub fn register_callback(&self, name: &str, callback: Callback) {
        self.parts.triggers.register(name, callback);
    }

    /// Begins a new clock epoch, for a guest whose clock jumps while its rings continue. (A reset or a
    /// restore of the device begins one by itself.) Drain first: what is
    /// drained later counts as the new epoch's. Each has a budget of its own of clocks and files
    /// that guests may begin ([`limits`](crate::limits)), so a guest must not be able to begin
    /// epochs at will: bound how often it may reset itself.
    pub fn begin_epoch(&self, epoch: u32) {
        self.engine().state.clocks.begin_epoch(epoch, None);
    }

    /// Sets the TSC that the hypervisor makes for a guest out of the host's, in this clock epoch: for
    /// `client`, or with `None` for all clients without one of their own. `None` for `tsc` takes it back. The
    /// timeline then maps the clients' clocks by it where no reference point contradicts it.
    ///
    /// Call it before the vCPUs run, and after each reset and restore of the device and each
    /// [`begin_epoch`](Self::begin_epoch): an epoch begins without. It waits for the drain loop, so not on
    /// a vCPU's thread.
    ///
    /// Returns `false` if it is [impossible](GuestTsc::is_possible), or if there are
    /// [`MAX_GUEST_TSCS`](crate::limits::MAX_GUEST_TSCS) already. Nothing changes then.
    pub fn set_guest_tsc(&self, client: Option<u32>, tsc: Option<GuestTsc>) -> bool {
        let clocks = &mut self.engine().state.clocks;
        let epoch = clocks.epoch();
        tsc::set(&mut clocks.guest_tscs, (epoch, client), tsc)
    }

    /// Sets the device's counters, for `session.json`.
    pub fn set_device_counters(&self, counters: BTreeMap<String, u64>) {
        self.engine().state.device = counters;
    }

    /// Returns a summary of the session so far.
    pub fn summary(&self) -> Summary {
        self.summary_of(&self.engine())
    }

    fn summary_of(&self, engine: &Engine) -> Summary {
        let refused = engine.recorder.as_ref().map_or(0, |recorder| recorder.refused);
        Summary::of(&engine.state, refused)
    }

    /// Ends a session in which nothing was recorded as if it had not been
    /// created, for a caller that cannot use it after all. A journal that was begun stays, without an end.
    pub fn abandon(self) {
        self.parts.end();
        self.engine().finished = true;
        self.parts.destination.clear();
    }

    /// Ends it: drains the host rings, writes the last maps and counters, cuts
    /// the files to their length. Drain the guests first. Clones, a device's
    /// for one, take and record nothing from now on.
    ///
    /// # Errors
    /// If something cannot be written. Committed packets are intact, and a
    /// clone may try again.
    pub fn finish(self) -> Result<Summary, SessionError> {
        self.parts.end();
        let mut engine = self.engine();
        engine.finish()?;
        self.parts.snapshot.notify_all();
        Ok(self.summary_of(&engine))
    }

    /// Ends it as [`Session::finish`] does, also where it cannot be written to
    /// its end: missing events are counted as lost in the summary, and in
    /// the files as far as they have room for that.
    pub fn end(self) -> (Summary, Result<(), SessionError>) {
        self.parts.end();
        let mut engine = self.engine();
        let finished = engine.finish();
        if finished.is_err() {
            engine.give_up();
        }
        self.parts.snapshot.notify_all();
        (self.summary_of(&engine), finished.map_err(Into::into))
    }
}

/// Claims a host ring of the [installed](Session::install) session for the calling thread, as [`Session::attach`]
/// does: for a thread that has no session at hand. Returns `false` if no session is installed, too.
pub fn attach(name: &str) -> bool {
    rings::attach(name)
}
