//! A session: a directory that fills with what guests and the VMM do.

use crate::backend;
use crate::clock::{Clocks, HostClock};
use crate::engine::Engine;
use crate::folder::{Folder, Share, retry};
use crate::host_ring::HostRings;
use crate::lane::MOST_LOST;
use crate::limits::MAX_HOST_RINGS;
use crate::packet::{DEFAULT_PACKET_BYTES, HEADER_BYTES, PacketBuffer};
use crate::recorder::{Asker, Recorder, SnapshotError, SnapshotLimit};
use crate::resume::{self, Committed};
use crate::shared::{CTF, HIDDEN, OnWriteFailed, Shared, clear};
use crate::stream::{DEFAULT_SEGMENT_BYTES, WriteFailed};
use crate::summary::Summary;
use crate::trace;
use crate::trigger::{self, Callback, Fired, TriggerError, Triggers};
use crate::wanted::Mask;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_abi::layout::GeometryError;
use hypertrace_abi::record::Flags;
use hypertrace_abi::ring::{Consumer, Emit};
use hypertrace_abi::sink::{Drained, EventSink, NameSet, ReferencePoint, Status};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a snapshot is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a session is to be.
pub struct SessionConfig {
    /// Where; a directory that is empty or does not exist.
    pub dir: PathBuf,
    /// Bytes of a stream's file, sparse; at least a packet and two headers.
    pub segment_bytes: u64,
    /// Bytes of the largest packet: the drain's only buffer for records.
    pub packet_bytes: usize,
    /// Stream files that are open at the same time, at least one: there is one
    /// for each client and each thread that traces, and a VMM has other uses for
    /// its descriptors. The one that was written least recently is closed when
    /// another is needed.
    pub open_files: usize,
    /// The users that may read what is written.
    pub share: Share,
    /// Host rings: threads of the VMM that can trace at the same time, at most
    /// [`MAX_HOST_RINGS`].
    pub host_rings: usize,
    /// Bytes of a host ring, a power of two from 64 KiB.
    pub host_ring_bytes: u64,
    /// Ticks per second of the guests' TSC, where it is not the host's.
    pub guest_frequency: Option<u64>,
    /// The clock epoch that begins.
    pub epoch: u32,
    /// Host's raw counter when it began, if that was before the session: a
    /// lease cannot span more time than has passed since.
    pub epoch_began: Option<u64>,
    /// Clients below this number relay reference points of others: their rings
    /// are as host rings.
    pub relays: u32,
    /// Guests stamp with the host's own counter: programs on this host.
    pub same_counter: bool,
    /// Called on the drain loop's thread when writing begins to fail, once
    /// until it works again.
    pub on_write_failed: Option<OnWriteFailed>,
    /// What is written in `dir`, beside the control socket.
    pub output: Output,
    /// How many snapshots guests may take, by triggers.
    pub guests_snapshots: SnapshotLimit,
}

/// What a session writes in its directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// The trace, all the time.
    #[default]
    Trace,
    /// [Snapshots](Session::snapshot), each a session in a directory of its
    /// own: a flight recorder. Rings overwrite their oldest records; a
    /// device's are to be of the same [mode](Session::ring_mode).
    Snapshots,
    /// Nothing: what the rings hold goes to the other backends only.
    Nothing,
}

impl SessionConfig {
    /// Defaults: segments of 64 MiB, packets of 64 KiB, 16 host rings of 256
    /// KiB, at most 64 open files and no more than a quarter of RLIMIT_NOFILE,
    /// readable for the owner alone, guests whose TSC counts as the host's.
    pub fn new(dir: impl Into<PathBuf>) -> SessionConfig {
        SessionConfig {
            dir: dir.into(),
            segment_bytes: DEFAULT_SEGMENT_BYTES,
            packet_bytes: DEFAULT_PACKET_BYTES,
            open_files: default_open_files(),
            share: Share::default(),
            host_rings: 16,
            host_ring_bytes: 256 * 1024,
            guest_frequency: None,
            epoch: 0,
            epoch_began: None,
            relays: 0,
            same_counter: false,
            on_write_failed: None,
            output: Output::Trace,
            guests_snapshots: SnapshotLimit::default(),
        }
    }
}

/// Why a session cannot be created or finished.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The directory is a file or the like.
    #[error("{} is not a directory; give a new or an empty one", .0.display())]
    NotADirectory(PathBuf),
    /// There is something in it already; nothing was touched.
    #[error("{} is not empty; give a new or an empty directory, or remove what is in it", .0.display())]
    NotEmpty(PathBuf),
    /// It belongs to another user, who could exchange and read what is written.
    #[error(
        "{} belongs to user {owner}, not to user {user} who runs this; give a directory of your \
         own, or a new one",
        path.display()
    )]
    NotOwned {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose this process is.
        user: u32,
    },
    /// It cannot be made or read.
    #[error("cannot use {} as a session directory; give one that can be written", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file in it cannot be written.
    #[error(transparent)]
    Write(#[from] WriteFailed),
    /// It cannot be gone on with.
    #[error("cannot complete {}: {why}", path.display())]
    NotResumable {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Sizes that no host ring can have.
    #[error("cannot make host rings")]
    HostRings(#[from] GeometryError),
}

impl SessionError {
    /// Whether another directory would help: what was asked for is at fault,
    /// not the machine.
    pub fn is_bad_input(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        match self {
            SessionError::NotADirectory(_)
            | SessionError::NotEmpty(_)
            | SessionError::NotOwned { .. }
            | SessionError::NotResumable { .. } => true,
            SessionError::Directory { source, .. } => {
                let none_left = matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                !none_left && !matches!(source.kind(), StorageFull | QuotaExceeded)
            }
            SessionError::Write(_) | SessionError::HostRings(_) => false,
        }
    }
}

struct Inner {
    uuid: [u8; 16],
    dir: Folder,
    host_frequency: u64,
    rings: Arc<HostRings>,
    triggers: Triggers,
    ended: AtomicBool,
    engine: Mutex<Engine>,
    ring_mode: RingMode,
    /// A snapshot is written, or the session has ended.
    snapshot: Condvar,
}

impl Inner {
    fn end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            backend::session_ended();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end();
    }
}

/// A session. Clones are the same session.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

impl Session {
    /// Creates the directory's files. Nothing that exists is overwritten.
    ///
    /// # Errors
    /// If there is something in the directory, or it cannot be written.
    pub fn create(config: SessionConfig) -> Result<Session, SessionError> {
        let dir = prepare(&config.dir, config.share)?;
        Session::begin(config, dir.clone()).inspect_err(|_| clear(&dir))
    }

    fn begin(mut config: SessionConfig, dir: Folder) -> Result<Session, SessionError> {
        let ring_mode = match config.output {
            Output::Snapshots => RingMode::Overwrite,
            Output::Trace | Output::Nothing => RingMode::Discard,
        };
        let rings = HostRings::new(
            config.host_rings.min(MAX_HOST_RINGS),
            config.host_ring_bytes,
            ring_mode,
        )?;
        let rings = Arc::new(rings);
        let clock = HostClock::start();
        let uuid = random_uuid();
        let mut clocks =
            Clocks::new(clock, config.epoch, config.epoch_began, config.guest_frequency);
        if config.same_counter {
            clocks.share();
        }
        let mut shared = Shared::new(dir.clone(), uuid, clocks);
        set_up(&mut shared, &mut config);
        shared.told_at = clock.started();
        shared.missed = rings.missed();
        if config.output != Output::Trace {
            // For later, or never.
            let _ = dir.remove_folder(HIDDEN);
        }
        let recorder = match config.output {
            Output::Snapshots => Some(Recorder::new(dir, config.guests_snapshots)),
            Output::Nothing => None,
            Output::Trace => {
                shared.begin_trace(dir, uuid)?;
                None
            }
        };
        let mut engine = Engine::new(shared, rings.consumers(), recorder);
        engine.relay(config.relays);
        Ok(Session::with(engine, rings))
    }

    /// Goes on with the session of this UUID that a killed process left in the
    /// directory: for what the rings of its guests still hold. What it
    /// committed is [`Session::committed`]; nothing of that is touched.
    ///
    /// # Errors
    /// If there is no such session, or it was ended.
    pub fn resume(mut config: SessionConfig, uuid: [u8; 16]) -> Result<Session, SessionError> {
        let path = config.dir.clone();
        let dir = resume::open(&path, config.share)?;
        let found = resume::look(&dir, &uuid)?;
        let wrong = || SessionError::NotResumable {
            path: path.clone(),
            why: "its session.json tells no clocks".into(),
        };
        let rings = HostRings::new(
            config.host_rings.min(MAX_HOST_RINGS),
            config.host_ring_bytes,
            RingMode::Discard,
        )?;
        let rings = Arc::new(rings);
        let clocks = Clocks::restore(&found.json.clocks, config.same_counter).ok_or_else(wrong)?;
        let mut shared = Shared::new(dir, uuid, clocks);
        set_up(&mut shared, &mut config);
        shared.open_trace(CTF)?;
        shared.open = true;
        shared.classes = found.classes(&path)?;
        shared.told_at = ticks();
        shared.missed = rings.missed();
        let mut engine = Engine::new(shared, rings.consumers(), None);
        engine.relay(config.relays);
        engine.resume(found);
        Ok(Session::with(engine, rings))
    }

    fn with(engine: Engine, rings: Arc<HostRings>) -> Session {
        backend::session_began();
        let ring_mode = match engine.recorder {
            Some(_) => RingMode::Overwrite,
            None => RingMode::Discard,
        };
        let inner = Arc::new(Inner {
            uuid: engine.shared.uuid,
            dir: engine.shared.dir.clone(),
            host_frequency: engine.shared.clocks.host.frequency,
            rings,
            triggers: Triggers::default(),
            ended: AtomicBool::new(false),
            engine: Mutex::new(engine),
            ring_mode,
            snapshot: Condvar::new(),
        });
        if ring_mode == RingMode::Overwrite {
            let weak = Arc::downgrade(&inner);
            let snapshot = move |_: &Fired| {
                // One that cannot be written is told as every failed write is;
                // one that was waited for in vain comes with the next pass.
                let _ = weak.upgrade().map(|inner| Session { inner }.snapshot_for(Asker::Guest));
            };
            inner.triggers.register(trigger::SNAPSHOT, Arc::new(snapshot));
        }
        Session { inner }
    }

    /// Where a client's ring was committed by the process that was
    /// [resumed](Session::resume) after. `None`: there was none.
    pub fn committed(&self, client: u32) -> Option<Committed> {
        self.engine().committed(client)
    }

    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        // A panic in between leaves at worst one packet's counts untold.
        self.inner.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's UUID: for the device's config page.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.uuid
    }

    /// Ticks per second of the host's raw counter: for the config page.
    pub fn host_frequency(&self) -> u64 {
        self.inner.host_frequency
    }

    /// What a device's rings are to do when they are full.
    pub fn ring_mode(&self) -> RingMode {
        self.inner.ring_mode
    }

    /// Has what the rings of a flight recorder hold now written as a session,
    /// and waits until it is; gives its directory, `snapshot-NNNN`. What was
    /// overwritten before counts as lost there. Not to be called on the drain
    /// loop's thread, which writes it.
    ///
    /// # Errors
    /// If this is no flight recorder, nobody drains, or it cannot be written.
    pub fn snapshot(&self) -> Result<PathBuf, SnapshotError> {
        self.snapshot_for(Asker::Owner)
    }

    fn snapshot_for(&self, asker: Asker) -> Result<PathBuf, SnapshotError> {
        let number = {
            let mut engine = self.engine();
            if engine.finished {
                return Err(SnapshotError::Ended);
            }
            engine.recorder.as_mut().ok_or(SnapshotError::NotARecorder)?.ask(asker)?
        };
        self.inner.rings.wake();
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
                return Err(SnapshotError::NobodyDrains);
            }
            let waited = self.inner.snapshot.wait_timeout(engine, left);
            engine = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.inner.dir.path()
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.inner.dir
    }

    /// Claims a host ring for the calling thread under a name: declared events
    /// of this thread are this session's from now on. `false`: all are taken.
    /// A thread gives its ring back when it ends.
    pub fn attach(&self, name: &str) -> bool {
        self.inner.rings.attach(name)
    }

    /// Makes this the session of all threads that are attached to none, from
    /// their first event on. The session's memory stays until the process ends.
    pub fn install(&self) {
        self.inner.rings.install();
    }

    /// Has `wake` called when a thread's ring fills, so that who drains comes
    /// before the next tick of its timer: `session.wake_by(move ||
    /// kick.trigger())`. It must not block. `false`: something is called
    /// already.
    pub fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) -> bool {
        self.inner.rings.wake_by(Box::new(wake))
    }

    /// Starts a thread that drains the VMM's own rings, on a timer and when one
    /// fills: for a VMM without a device, whose drain loop does it otherwise.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start_writer(&self, period: Duration) -> io::Result<Writer> {
        Writer::start(self.clone(), period)
    }

    /// Records an event that no `trace-events` file declares, on the calling
    /// thread's ring: `session.emit(event_type!("tick", n))`, see
    /// [`event_type!`](crate::abi::event_type). Never waits. What finds no room
    /// is counted.
    #[inline]
    pub fn emit<S: Site, F: Fields>(&self, (site, fields): (S, F)) -> Emit {
        self.inner.rings.emit(site, fields)
    }

    /// Whether the calling thread's ring takes this many words now. For
    /// `hypertrace bench`, which waits instead of losing.
    #[doc(hidden)]
    pub fn has_room(&self, words: u64) -> bool {
        self.inner.rings.with(ticks, |producer| producer.has_room(words)).unwrap_or(false)
    }

    /// Adds a [trigger](crate::trigger); gives its number.
    ///
    /// # Errors
    /// If it is not one, or names what is not there.
    pub fn add_trigger(&self, rule: &str) -> Result<u32, TriggerError> {
        let number = self.inner.triggers.add(rule, self.inner.rings.all_looking())?;
        // Somebody may take points in the host's place until the next pass.
        self.inner.rings.wake();
        Ok(number)
    }

    /// Removes a trigger.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn remove_trigger(&self, number: u32) -> Result<(), TriggerError> {
        self.inner.triggers.remove(number, self.inner.rings.all_looking())
    }

    /// Triggers and what became of them, a line each.
    pub fn triggers(&self) -> String {
        self.inner.triggers.list()
    }

    /// Registers what triggers can `call`. Before the rules that name it.
    pub fn register_callback(&self, name: &str, callback: Callback) {
        self.inner.triggers.register(name, callback);
    }

    /// A new clock epoch begins: another guest, restore, migration, reset. Drain
    /// first: what is drained later counts as the new epoch's. Each has a budget
    /// of its own of clocks and files that guests may begin
    /// ([`limits`](crate::limits)), so a guest must not be able to begin epochs
    /// at will: bound how often it may reset itself.
    pub fn begin_epoch(&self, epoch: u32) {
        self.engine().shared.clocks.begin_epoch(epoch);
    }

    /// The device's counters, for `session.json`.
    pub fn set_device_counters(&self, counters: BTreeMap<String, u64>) {
        self.engine().shared.device = counters;
    }

    /// What it holds so far.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.engine(), self.inner.rings.unattached())
    }

    /// Ends a session in which nothing was recorded as if it had not been
    /// created, for who finds that it cannot be used after all.
    pub fn abandon(self) {
        self.inner.end();
        self.engine().finished = true;
        clear(&self.inner.dir);
    }

    /// Ends it: drains the host rings, writes the last maps and counters, cuts
    /// the files to their length. Drain the guests first. Clones, a device's
    /// for one, take and record nothing from now on.
    ///
    /// # Errors
    /// If something cannot be written. What was committed is intact, and a
    /// clone may try again.
    pub fn finish(self) -> Result<Summary, SessionError> {
        self.inner.end();
        let mut engine = self.engine();
        engine.finish()?;
        self.inner.snapshot.notify_all();
        Ok(Summary::of(&engine, self.inner.rings.unattached()))
    }

    /// Ends it as [`Session::finish`] does, also where it cannot be written to
    /// its end: what is missing then is counted as lost in the summary, and in
    /// the files as far as they have room for that.
    pub fn end(self) -> (Summary, Result<(), SessionError>) {
        self.inner.end();
        let mut engine = self.engine();
        let finished = engine.finish();
        if finished.is_err() {
            engine.give_up();
        }
        self.inner.snapshot.notify_all();
        (Summary::of(&engine, self.inner.rings.unattached()), finished.map_err(Into::into))
    }
}

/// A thread that drains the VMM's own rings. Dropped, it drains once more and
/// ends.
#[derive(Debug)]
pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(session: Session, period: Duration) -> io::Result<Writer> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, rings) = (Arc::clone(&stop), Arc::clone(&session.inner.rings));
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                thread::park_timeout(period);
                session.begin_pass();
                session.end_pass();
            }
        };
        let thread = thread::Builder::new().name("trace-writer".into()).spawn(run)?;
        let writer = thread.thread().clone();
        rings.wake_by(Box::new(move || writer.unpark()));
        Ok(Writer { stop, thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It panics only where a caller's own code does.
            let _ = thread.join();
        }
    }
}

impl EventSink for Session {
    #[inline]
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        if self.inner.ended.load(Ordering::Relaxed) {
            return Status::Failed;
        }
        let ReferencePoint { client, seq, cpu, guest_time, .. } = *point;
        // Zero is a ring's word for "no emit under way".
        let now = point.host_time.max(1);
        let prefix = [client.into(), cpu.into(), seq.into(), guest_time];
        let declared = trace::guest_hypertrace::EVENT.is_wanted();
        let mut flags = Flags::REFERENCE_POINT;
        flags.set(Flags::GUEST_HYPERTRACE, declared);
        let emit = self.inner.rings.record(
            || now,
            |producer| producer.emit_words(now, point.id, flags, &prefix, point.words),
            declared,
        );
        trace::reference_point(point);
        self.inner.rings.looking(|looking| self.inner.triggers.point(point, looking));
        match emit {
            Emit::Recorded => Status::Recorded,
            _ => Status::Failed,
        }
    }

    fn update_mask(&self, set: &mut dyn FnMut(&Mask)) {
        let mut engine = self.engine();
        self.inner.triggers.pass(|pattern, on| {
            // Too many rules of the guest's: it stays as it is.
            let _ = engine.set_guest_events(pattern, on);
        });
        if let Some(mask) = engine.shared.classes.wanted.take_mask() {
            set(&mask);
        }
    }

    fn points_to_handle(&self, names: &mut NameSet) {
        if trace::guest_hypertrace::EVENT.is_wanted() {
            // An event of the host's own for each point, whatever its name.
            names.set_all();
        } else {
            self.inner.triggers.names(names);
        }
    }

    fn unattached(&self, total: u64) {
        self.engine().shared.unattached = total.min(MOST_LOST);
    }

    fn begin_pass(&self) {
        // Before the rings are looked at: who fills one later calls again.
        self.inner.rings.woken();
        self.engine().begin_pass();
    }

    fn last_pass(&self) {
        self.engine().shared.last_pass = true;
    }

    fn drain(&self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        self.engine().drain(client, consumer)
    }

    fn end_pass(&self) {
        let mut engine = self.engine();
        engine.end_pass();
        if engine.recorder.is_some() {
            self.inner.snapshot.notify_all();
        }
    }
}

/// Makes the directory, or sees that it is one of this user and empty; and makes
/// the folder for the trace, hidden still, so that of two sessions only one
/// finds it so.
fn prepare(dir: &Path, share: Share) -> Result<Folder, SessionError> {
    let failed = |source| SessionError::Directory { path: dir.to_owned(), source };
    let not_empty = || SessionError::NotEmpty(dir.to_owned());
    let folder = match own(dir, share)? {
        Some(folder) => folder,
        None => match Folder::create_path(dir, share) {
            // Another's, just now.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                own(dir, share)?.ok_or_else(not_empty)?
            }
            made => made.map_err(failed)?,
        },
    };
    if !folder.names(1).map_err(failed)?.is_empty() {
        return Err(not_empty());
    }
    folder.set_mode().map_err(failed)?;
    match folder.create(HIDDEN) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(not_empty()),
        made => made.map_err(failed)?,
    };
    // Another may have been here, and be further.
    if folder.names(2).map_err(failed)?.len() > 1 {
        let _ = folder.remove_folder(HIDDEN);
        return Err(not_empty());
    }
    Ok(folder)
}

/// A directory that is there, and a link to it if it is one, which must be this
/// user's: in another's, that user could exchange and read what is written.
pub(crate) fn own(dir: &Path, share: Share) -> Result<Option<Folder>, SessionError> {
    let failed = |source| SessionError::Directory { path: dir.to_owned(), source };
    let user = rustix::process::geteuid().as_raw();
    let check = |owner: u32| {
        let path = dir.to_owned();
        if owner == user { Ok(()) } else { Err(SessionError::NotOwned { path, owner, user }) }
    };
    match rustix::fs::lstat(dir).map_err(io::Error::from) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => check(found.map_err(failed)?.st_uid)?,
    }
    let folder = Folder::open(dir, share).map_err(|e| match e.kind() {
        io::ErrorKind::NotADirectory => SessionError::NotADirectory(dir.to_owned()),
        _ => failed(e),
    })?;
    check(folder.stat().map_err(failed)?.st_uid)?;
    Ok(Some(folder))
}

/// Stream files that are open at a time, unless the session says otherwise: a
/// quarter of what the process may have, at most 64.
fn default_open_files() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most.map_or(64, |most| (most / 4).clamp(1, 64) as usize)
}

/// What the configuration says of buffers and files.
fn set_up(shared: &mut Shared, config: &mut SessionConfig) {
    shared.buffer = PacketBuffer::new(config.packet_bytes);
    let least = (shared.buffer.packet_bytes() + 2 * HEADER_BYTES) as u64;
    shared.segment_bytes = config.segment_bytes.max(least).next_multiple_of(HEADER_BYTES as u64);
    shared.open_files = config.open_files;
    shared.on_failed = config.on_write_failed.take();
}

/// A random UUID (version 4).
pub(crate) fn random_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    let read = retry(|| getrandom(&mut uuid[..], GetRandomFlags::empty()));
    if !matches!(read, Ok(16)) {
        // Different in every process and call, which is what it is for.
        for (i, half) in uuid.chunks_exact_mut(8).enumerate() {
            let hash = RandomState::new().hash_one((i, ticks(), std::process::id()));
            half.copy_from_slice(&hash.to_le_bytes());
        }
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
