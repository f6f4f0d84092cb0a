//! Creating a session, or completing one that a killed process left.

use super::config::{Output, SessionConfig};
use super::engine::Engine;
use super::error::SessionError;
use super::handle::{Session, SessionParts};
use super::{place, resume};
use crate::ctf::{Clocks, Folder, HostClock, boot_id, random_uuid};
use crate::drain::state::{CTF, HIDDEN, clear};
use crate::drain::{Asker, Recorder, TraceState};
use crate::events::HostRings;
use crate::events::registry;
use crate::limits::MAX_HOST_RINGS;
use crate::trigger::{self, Fired, Triggers};
use hypertrace_abi::clock::in_ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::layout::GeometryError;
use hypertrace_abi::turns::PAUSE;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};

impl Session {
    /// Creates the directory's files. Nothing that exists is overwritten.
    ///
    /// # Errors
    /// If there is something in the directory, or it cannot be written.
    pub fn create(mut config: SessionConfig) -> Result<Session, SessionError> {
        let dir = place::prepare(&config.dir, config.dir_fd.take(), config.share)?;
        Session::begin(config, dir.clone()).inspect_err(|_| clear(&dir))
    }

    fn begin(mut config: SessionConfig, dir: Folder) -> Result<Session, SessionError> {
        let is_recorder = config.output == Output::Snapshots;
        let ring_mode = if is_recorder { RingMode::Overwrite } else { RingMode::Discard };
        let clock = HostClock::start(config.host_frequency);
        let rings = host_rings(&config, ring_mode, clock.frequency)?;
        let uuid = random_uuid();
        let mut clocks =
            Clocks::new(clock, config.epoch, config.epoch_began, config.guest_frequency);
        clocks.boot_id = boot_id();
        clocks.is_recorder = is_recorder;
        if config.same_counter {
            clocks.share();
        }
        let mut state = TraceState::new(dir.clone(), uuid, clocks);
        config.apply(&mut state);
        match config.output {
            Output::Trace => state.begin_trace(dir.clone(), uuid)?,
            // A trace is for later, or never.
            Output::Snapshots | Output::Nothing => _ = dir.remove_folder(HIDDEN),
        }
        let recorder = is_recorder.then(|| Recorder::new(dir, config.guests_snapshots));
        let engine = Engine::new(state, &rings, config.relays, recorder);
        Ok(Session::with(engine, rings, ring_mode))
    }

    /// Completes the session of this UUID that a killed process left in the
    /// directory, with the rest of its guests' rings. [`Session::committed`] is how far
    /// the process committed them; none of that is touched.
    ///
    /// # Errors
    /// If there is no such session, or it was ended.
    pub fn resume(mut config: SessionConfig, uuid: [u8; 16]) -> Result<Session, SessionError> {
        let path = config.dir.clone();
        let dir = resume::open(&path, config.share)?;
        let found = resume::look(&dir, &uuid)?;
        let mut clocks = Clocks::restore(&found.json.clocks, config.same_counter)
            .ok_or_else(|| SessionError::not_resumable(&path, "its session.json has no clocks"))?;
        let rings = host_rings(&config, RingMode::Discard, clocks.host.frequency)?;
        // The rings hold ticks of that boot, which may be an earlier one.
        clocks.boot_id.clone_from(&found.json.boot_id);
        clocks.guest_tscs.clone_from(&found.json.guest_tscs);
        let mut state = TraceState::new(dir, uuid, clocks);
        config.apply(&mut state);
        state.open_trace(CTF)?;
        state.classes = found.classes(&path)?;
        let mut engine = Engine::new(state, &rings, config.relays, None);
        engine.resume(&found);
        Ok(Session::with(engine, rings, RingMode::Discard))
    }

    fn with(engine: Engine, rings: Arc<HostRings>, ring_mode: RingMode) -> Session {
        registry::session_began();
        let trace = &engine.state.trace;
        let parts = Arc::new(SessionParts {
            uuid: trace.uuid,
            dir: trace.dir.clone(),
            host_frequency: engine.state.clocks.host.frequency,
            guest_frequency: engine.state.clocks.guest_frequency(),
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
                // One that cannot be written is reported as every failed write is;
                // one that was waited for in vain comes with the next pass.
                let _ = weak.upgrade().map(|parts| Session { parts }.snapshot_for(Asker::Guest));
            };
            parts.triggers.register(trigger::SNAPSHOT, Arc::new(snapshot));
        }
        Session { parts }
    }
}

fn host_rings(
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
