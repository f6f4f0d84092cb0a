//! Creating a session.

use super::config::{Destination, Output, SessionConfig};
use super::engine::Engine;
use super::error::SessionError;
use super::handle::{Session, SessionParts};
use super::place;
use crate::ctf::Folder;
use crate::ctf::files::{Files, Root};
use crate::ctf::journal::Journal;
use crate::ctf::{Clocks, HostClock, random_uuid};
use crate::drain::{Asker, Recorder, TraceState};
use crate::events::HostRings;
use crate::events::registry;
use crate::trigger::{self, Fired, Triggers};
use hypertrace_abi::clock::in_ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::drain::PAUSE;
use hypertrace_abi::layout::GeometryError;
use hypertrace_format::clock::boot_id;
use hypertrace_format::limits::MAX_HOST_RINGS;
use hypertrace_format::origin::Origin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};

impl Session {
    /// Creates a session: the files in the session's directory, or the beginning of the session's journal.
    /// Overwrites no existing file.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be written, or if the session cannot be written to a journal.
    pub fn create(mut config: SessionConfig) -> Result<Session, SessionError> {
        let path = config.destination.path().to_owned();
        let (fd, journal) =
            match std::mem::replace(&mut config.destination, Destination::Path(path.clone())) {
                Destination::Path(_) => (None, None),
                Destination::Fd(dir, _) => (Some(dir), None),
                Destination::Journal(descriptor, _) => {
                    config.check_journal()?;
                    (None, Some(Journal::new(descriptor, &path).map_err(SessionError::Journal)?))
                }
            };
        let destination = match &journal {
            Some(_) => Root::Journal(path),
            None => Root::Directory(place::prepare(&path, fd, config.share)?),
        };
        let events = std::mem::take(&mut config.events);
        let begun = Session::begin(config, destination.clone(), journal).and_then(|session| {
            for pattern in &events {
                session.set_events(pattern, true)?;
            }
            Ok(session)
        });
        begun.inspect_err(|_| destination.clear())
    }

    fn begin(
        mut config: SessionConfig,
        destination: Root,
        journal: Option<Journal>,
    ) -> Result<Session, SessionError> {
        let is_recorder = config.output == Output::Snapshots;
        let ring_mode = if is_recorder { RingMode::Overwrite } else { RingMode::Discard };
        let clock = HostClock::start(config.host_frequency);
        let rings = host_rings(&config, ring_mode, clock.frequency)?;
        let uuid = random_uuid();
        let mut clocks =
            Clocks::new(clock, config.epoch, config.epoch_began, config.guest_frequency);
        // A process that writes a journal opens no file, so the boot stays unknown unless the VMM gives it.
        clocks.boot_id = match (config.boot_id.take(), &journal) {
            (None, None) => boot_id(),
            (given, _) => given,
        };
        clocks.is_recorder = is_recorder;
        if config.same_counter {
            clocks.share();
        }
        let origin = journal.is_none().then(Origin::here);
        let mut state = TraceState::new(destination.clone(), uuid, clocks);
        state.trace.origin = origin;
        state.trace.trace_parent = config.trace_parent;
        state.trace.served = config.served;
        config.apply(&mut state);
        let (mut recorder, mut claim) = (None, None);
        match (destination, journal, config.output) {
            (_, Some(journal), _) => state.begin_files(Files::journal(journal), uuid)?,
            (Root::Directory(dir), _, Output::Trace) => state.begin_trace(dir, uuid)?,
            // A flight recorder writes traces only later, and a session with `Output::Nothing` writes no
            // trace. Until the session's end, the hidden folder for a trace keeps other sessions out of the
            // directory.
            (Root::Directory(dir), ..) => {
                claim = Some(dir.clone());
                recorder = is_recorder.then(|| Recorder::new(dir, config.guests_snapshots));
            }
            (Root::Journal(_), None, _) => {}
        }
        let engine = Engine::new(state, &rings, config.relays, recorder);
        Ok(Session::with(engine, rings, ring_mode, claim))
    }

    pub(super) fn with(
        engine: Engine,
        rings: Arc<HostRings>,
        ring_mode: RingMode,
        claim: Option<Folder>,
    ) -> Session {
        registry::session_began();
        let trace = &engine.state.trace;
        let parts = Arc::new(SessionParts {
            uuid: trace.uuid,
            destination: trace.destination.clone(),
            claim,
            host_frequency: engine.state.clocks.host.frequency,
            guest_frequency: engine.state.clocks.guest_frequency(),
            trace_parent: trace.trace_parent,
            rings,
            triggers: Triggers::default(),
            ended: AtomicBool::new(false),
            engine: Mutex::new(engine),
            ring_mode,
            snapshot: Condvar::new(),
        });
        if ring_mode == RingMode::Overwrite {
            let weak = Arc::downgrade(&parts);
            let snapshot = move |_: &Fired| {
                // The outcome may be ignored here: if the snapshot cannot be written, the error is reported
                // like every failed write. If the wait times out, the next pass writes the snapshot.
                let _ = weak.upgrade().map(|parts| Session { parts }.snapshot_for(Asker::Guest));
            };
            parts.triggers.register(trigger::SNAPSHOT, Arc::new(snapshot));
        }
        Session { parts }
    }
}

pub(super) fn host_rings(
    config: &SessionConfig,
    mode: RingMode,
    frequency: u64,
) -> Result<Arc<HostRings>, SessionError> {
    if config.host_rings > MAX_HOST_RINGS {
        return Err(GeometryError("host_rings must be at most 1024").into());
    }
    let pause = in_ticks(PAUSE, frequency);
    Ok(Arc::new(HostRings::new(config.host_rings, config.host_ring_bytes, mode, pause)?))
}
