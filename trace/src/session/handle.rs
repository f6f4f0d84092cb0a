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

/// Maximum time that a caller waits for a snapshot.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state that all clones of a session share.
pub(super) struct SessionParts {
    pub uuid: [u8; 16],
    pub destination: Root,
    /// Directory of a session that does not write a trace all the time. At the session's end, the session
    /// removes the empty trace folder in this directory.
    pub claim: Option<Folder>,
    pub host_frequency: u64,
    pub guest_frequency: u64,
    pub trace_parent: Option<TraceParent>,
    pub rings: Arc<HostRings>,
    pub triggers: Triggers,
    pub ended: AtomicBool,
    pub engine: Mutex<Engine>,
    pub ring_mode: RingMode,
    /// Condition variable for callers that wait for a snapshot. Notified when a snapshot is written, or when
    /// the session has ended.
    pub snapshot: Condvar,
}

impl SessionParts {
    fn end(&self) {
        // `are_here` is false in the copy of a forked process, and in a session that this process has left to
        // a child. In both cases, this process must not end the session of the other process.
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

/// How many event names a pattern matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matched {
    /// Number of declared events of this program.
    pub declared: usize,
    /// Number of names of guest events that were seen so far.
    pub guest: usize,
}

/// A session. All clones of a value stand for the same session.
#[derive(Clone)]
pub struct Session {
    pub(super) parts: Arc<SessionParts>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text leaves out the engine, because the drain loop may hold the engine's lock.
        f.debug_struct("Session")
            .field("dir", &self.dir())
            .field("ring_mode", &self.ring_mode())
            .field("ended", &self.parts.ended)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Returns the state of a client's ring at the last commit of the killed process. Returns `None` if this
    /// session is no [recovery](Session::recover).
    pub fn committed(&self, client: u32) -> Option<Committed> {
        self.engine().committed(client)
    }

    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        // A panic under the lock loses at worst the counts of one packet. So the engine is used even if its
        // lock is poisoned.
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

    /// Returns the ticks per second of the guests' TSC, for the config page:
    /// [`SessionConfig::guest_frequency`](crate::SessionConfig::guest_frequency) if it is set, otherwise the
    /// host's frequency.
    pub fn guest_frequency(&self) -> u64 {
        self.parts.guest_frequency
    }

    /// Returns the mode of the device's rings. The mode tells how a full ring treats further events.
    pub fn ring_mode(&self) -> RingMode {
        self.parts.ring_mode
    }

    /// Writes the contents of a flight recorder as a session, and waits until that session is complete.
    /// Returns the directory of the new session, `snapshot-NNNN`. Overwritten events count as lost in the
    /// snapshot. The drain loop's thread must not call this method, because the same thread writes the
    /// snapshot.
    ///
    /// # Errors
    /// If this session is no flight recorder, if no thread drains the session's rings, or if the snapshot
    /// cannot be written.
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

    /// Returns the path of the session's directory. For a journal, returns the configured path for messages.
    pub fn dir(&self) -> &Path {
        self.parts.destination.path()
    }

    /// Wakes the drain loop.
    pub(crate) fn wake(&self) {
        self.parts.rings.wake();
    }

    /// Returns the open directory of the session. The directory's path may lead to another directory by now.
    ///
    /// # Errors
    /// If the session is written to a journal.
    pub fn folder(&self) -> io::Result<&Folder> {
        self.parts.destination.folder()
    }

    /// Makes the calling process the owner of the session. The process must have been forked after
    /// [`Session::create`]. From this call on, the process drains and ends the session. No thread may have
    /// attached yet, and the parent process must [leave](Session::leave) the session.
    pub fn adopt(&self) {
        if self.parts.rings.adopt() {
            registry::session_began();
        }
    }

    /// Leaves the session to a forked process. From now on, the threads of this process do not attach to the
    /// session, and the session records no events of this process. This process does not end the session,
    /// either. The caller should drop its copies of the handle.
    pub fn leave(&self) {
        if self.parts.rings.leave() {
            registry::session_ended();
        }
    }

    /// Returns the descriptors that the session holds, for a process that closes all its other descriptors.
    /// The list has the descriptors of the session's directories and files, or the descriptor of the
    /// journal's socket. The session opens later files by the descriptors of its directories. The list lacks
    /// the descriptors of triggers and of other backends, so add triggers after the fork.
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

    /// Claims a host ring for the calling thread under a name. From this call on, the declared events of the
    /// thread belong to this session. A thread gives its ring back when it ends.
    ///
    /// Returns `false` if all rings are taken, or if this thread is in the middle of an emit (in a field's
    /// `put`, or in the function of [`wake_by`](Self::wake_by)).
    pub fn attach(&self, name: &str) -> bool {
        self.parts.rings.attach(name)
    }

    /// Makes this session the default session: a thread without a session attaches to this session at the
    /// thread's next event. The session's memory stays until the process ends.
    pub fn install(&self) {
        self.parts.rings.install();
    }

    /// Registers `wake`. A thread calls `wake` when its ring fills, so that the drain loop makes a pass
    /// before the next tick of its timer: `session.wake_by(move || kick.trigger())`. `wake` must not block.
    /// Returns `false` if a function is registered already.
    pub fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) -> bool {
        self.parts.rings.wake_by(Box::new(wake))
    }

    /// Starts a thread that drains the VMM's own rings: in each `period` with events, at the first event
    /// after a pause, and when a ring fills. Only a VMM without a device needs this thread, because the drain
    /// loop of a device also drains these rings.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_writer(&self, period: Duration) -> io::Result<Writer> {
        let session = self.clone();
        let (writer, thread) = Writer::start(period, move || {
            pass(&session, |_, _| ());
            with_drain(&session, |sink| sink.quiet_for())
        })?;
        self.wake_by(move || thread.unpark());
        Ok(writer)
    }

    /// Records an event on the calling thread's ring without a declaration in a `trace-events` file:
    /// `session.emit(event_type!("tick", n))`, see [`event_type!`](crate::abi::event_type). The call never
    /// waits: if the ring has no room, the session counts the event as lost.
    #[inline]
    pub fn emit<S: Site, F: Fields>(&self, (site, fields): (S, F)) -> Emit {
        self.parts.rings.emit(site, fields)
    }

    /// Returns true if the calling thread's ring now has room for `records` records of `words` words. This
    /// method is for hypertrace-bench, because hypertrace-bench waits for room and does not lose events.
    #[doc(hidden)]
    pub fn has_room(&self, records: u64, words: u64) -> bool {
        let has_room = |producer: &Producer<'_>| producer.has_room(records, words);
        self.parts.rings.with(ticks, has_room).unwrap_or(false)
    }

    /// Switches the events that match a pattern: declared events, and the guest's events. Events that the
    /// guest emits for the first time later are switched, too.
    ///
    /// # Errors
    /// If the guest has too many rules.
    pub fn set_events(&self, pattern: &Pattern, on: bool) -> Result<Matched, TooManyRules> {
        let guest = self.engine().set_guest_events(pattern, on)?;
        // The guest sees the change after the next pass.
        self.wake();
        Ok(Matched { declared: set_declared(pattern, on), guest })
    }

    /// Adds a [trigger](crate::trigger), and returns the rule's id.
    ///
    /// # Errors
    /// If `rule` is no trigger, or names a file or a callback that does not exist.
    pub fn add_trigger(&self, rule: &str) -> Result<u32, TriggerError> {
        let number = self.parts.triggers.add(rule)?;
        // The drain loop is woken, because its next pass tells the relays about this trigger. Before this
        // pass, a relay may take points that the host must see.
        self.wake();
        Ok(number)
    }

    /// Removes a trigger. A point that a vCPU's thread is handling now may still fire the trigger.
    ///
    /// # Errors
    /// If no trigger has this number.
    pub fn remove_trigger(&self, number: u32) -> Result<(), TriggerError> {
        self.parts.triggers.remove(number)
    }

    /// Returns all triggers with their counts, one line each.
    pub fn triggers(&self) -> String {
        self.parts.triggers.list()
    }

    /// Registers a callback that triggers can `call`. Register a callback before you add rules that call the
    /// callback.
    pub fn register_callback(&self, name: &str, callback: Callback) {
        self.parts.triggers.register(name, callback);
    }

    /// Begins a new clock epoch, for a guest whose clock jumps while its rings continue. (A reset or a
    /// restore of the device begins an epoch without this call.) Drain the rings before this call, because
    /// all records that are drained after the call count as records of the new epoch. In each epoch, guests
    /// may begin a limited number of clocks and files ([`limits`](crate::limits)). So a guest must not be
    /// able to begin epochs at will: limit the number of times that a guest may reset itself.
    pub fn begin_epoch(&self, epoch: u32) {
        self.engine().state.clocks.begin_epoch(epoch, None);
    }

    /// Sets the TSC of a guest in the present clock epoch. The hypervisor computes this TSC from the host's
    /// TSC. The TSC is the TSC of `client`, or of all clients without their own TSC if `client` is `None`. If
    /// `tsc` is `None`, the call removes the TSC that an earlier call has set. The timeline maps the clocks
    /// of the clients with this TSC, unless a reference point contradicts the TSC.
    ///
    /// Call this method before the vCPUs run. Call the method again after each reset and restore of the
    /// device and after each [`begin_epoch`](Self::begin_epoch), because a new epoch has no TSC. The call
    /// waits for the drain loop, so the thread of a vCPU should not call this method.
    ///
    /// Returns `false` and sets no TSC if `tsc` is [impossible](GuestTsc::is_possible), or if the session has
    /// [`MAX_GUEST_TSCS`](crate::limits::MAX_GUEST_TSCS) TSCs already.
    pub fn set_guest_tsc(&self, client: Option<u32>, tsc: Option<GuestTsc>) -> bool {
        let clocks = &mut self.engine().state.clocks;
        let epoch = clocks.epoch();
        tsc::set(&mut clocks.guest_tscs, (epoch, client), tsc)
    }

    /// Sets the device's counters, for `session.json`.
    pub fn set_device_counters(&self, counters: BTreeMap<String, u64>) {
        self.engine().state.device = counters;
    }

    /// Returns a summary of the session until now.
    pub fn summary(&self) -> Summary {
        self.summary_of(&self.engine())
    }

    fn summary_of(&self, engine: &Engine) -> Summary {
        let refused = engine.recorder.as_ref().map_or(0, |recorder| recorder.refused);
        Summary::of(&engine.state, refused)
    }

    /// Ends a session without events, and removes the session's files. This method is for a caller that
    /// cannot use the session after all. A journal cannot be removed, and stays without an end.
    pub fn abandon(self) {
        self.parts.end();
        self.engine().finished = true;
        self.parts.destination.clear();
    }

    /// Ends the session: drains the host rings, writes the last maps and counters, and cuts the files to
    /// their length. Drain the guests first. After this call, clones of the handle, such as a device's,
    /// record no more events.
    ///
    /// # Errors
    /// If a write fails. In this case, committed packets are intact, and a clone may try again.
    pub fn finish(self) -> Result<Summary, SessionError> {
        self.parts.end();
        let mut engine = self.engine();
        engine.finish()?;
        self.parts.snapshot.notify_all();
        Ok(self.summary_of(&engine))
    }

    /// Ends the session like [`Session::finish`], but ends the session even if the session cannot be written
    /// to its end. Events that cannot be written count as lost in the summary. Such events also count as lost
    /// in the files, as far as the files have room for the counts.
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

/// Claims a host ring of the [installed](Session::install) session for the calling thread, like
/// [`Session::attach`]. This function is for code that has no handle of the session. If no session is
/// installed, the function returns `false`, too.
pub fn attach(name: &str) -> bool {
    rings::attach(name)
}
