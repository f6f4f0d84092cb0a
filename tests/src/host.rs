//! The host's side, as in a VMM: a session, a device that records in it, a drain loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypertrace::{Channel, Client, LeaseInfo, ProducerState};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::sink::{DrainSink, EventSink, ReferencePoint, SessionInfo, Status};
use hypertrace_device::{Chip, ChipConfig, Counter, Geometry, Kick, Memory, Region, RingMode};
use hypertrace_device::{DrainPolicy, DrainThread};
use hypertrace_test_support::kept::{self, Event};
use hypertrace_timeline::{Given, Recording};
use hypertrace_trace::ctf::stream::DEFAULT_FILE_BYTES;
use hypertrace_trace::session_json::{Domain, StreamJson};
use hypertrace_trace::{Output, Session, SessionConfig, Summary};
use hypertrace_vmm::Device;
use tempfile::TempDir;

/// A session as the sink of a device. The device's rings have the mode `ring_mode` in place of the mode that
/// the session states.
struct WithMode {
    session: Session,
    ring_mode: RingMode,
}

impl EventSink for WithMode {
    fn session_info(&self) -> SessionInfo {
        self.session.session_info().with(|info| info.ring_mode = self.ring_mode)
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.session.reference_point(point)
    }

    fn has_room_for_point(&self) -> bool {
        self.session.has_room_for_point()
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        self.session.with_drain(work);
    }
}

/// Session in a new directory, and a device that records in it.
pub struct Host {
    /// The session.
    pub session: Session,
    /// The device.
    pub chip: Arc<Chip>,
    /// The device with its doorbell, for a bus.
    pub device: Device,
    dir: TempDir,
}

/// Returns a geometry with this many clients. The rings are small, so a guest fills them many times in a
/// test.
pub fn geometry(clients: u32) -> Geometry {
    Geometry { clients, ring_bytes: 512 << 10, block_bytes: 16 << 10, ..Geometry::default() }
}

impl Host {
    /// Makes a host whose rings drop the newest events when full.
    pub fn new(geometry: Geometry) -> Host {
        Host::with_mode(geometry, RingMode::Discard)
    }

    /// Makes a host whose rings have this mode.
    pub fn with_mode(geometry: Geometry, ring_mode: RingMode) -> Host {
        Host::within(tempfile::tempdir().unwrap(), geometry, ring_mode, DEFAULT_FILE_BYTES)
    }

    /// Makes a host whose session is in this directory, in files of this size.
    pub fn within(dir: TempDir, geometry: Geometry, ring_mode: RingMode, file_bytes: u64) -> Host {
        let config = SessionConfig::new(dir.path()).with(|config| config.file_bytes = file_bytes);
        Host::of(dir, config, geometry, ring_mode)
    }

    /// Makes a host whose session has this output.
    pub fn with_output(geometry: Geometry, output: Output) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let config = SessionConfig::new(dir.path()).with(|config| config.output = output);
        let ring_mode = match output {
            Output::Snapshots => RingMode::Overwrite,
            Output::Trace | Output::Nothing => RingMode::Discard,
        };
        Host::of(dir, config, geometry, ring_mode)
    }

    /// Makes a host whose session is in this directory, with this configuration.
    pub fn of(
        dir: TempDir,
        config: SessionConfig,
        geometry: Geometry,
        ring_mode: RingMode,
    ) -> Host {
        let session = Session::create(config).unwrap();
        session.set_events(&"*".parse().unwrap(), true).unwrap();
        let kick = Kick::new().unwrap();
        let config = ChipConfig::default().with(|config| {
            config.vcpu_clients = geometry.clients;
            config.has_doorbells = true;
        });
        let memory = Memory::anonymous(geometry).unwrap();
        let waker = kick.clone();
        let sink = WithMode { session: session.clone(), ring_mode };
        let chip = Arc::new(Chip::new(memory, &config, sink, waker));
        let device = Device::new(Arc::clone(&chip), kick);
        Host { session, chip, device, dir }
    }

    /// Returns the session's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the drain loop. Call [`DrainThread::finish`] before [`Host::finish`].
    pub fn drain(&self) -> DrainThread {
        self.chip.drain_thread(self.device.kick(), DrainPolicy::default(), || Ok(())).unwrap()
    }

    /// Returns the channel that a guest on threads of this process uses.
    pub fn channel(&self) -> Channel<'_> {
        let rings = self.chip.memory().region(Region::Rings).unwrap().words();
        Channel::local(&self.chip.config_page(), rings).unwrap()
    }

    /// Leases a client of [`Host::channel`], as a thread of a guest does.
    pub fn lease<'h>(&'h self, index: u32, state: &'h ProducerState, name: &'h str) -> Client<'h> {
        // The token differs from the tokens of all other holders.
        let token = ticks() | 1;
        let info = LeaseInfo { pid: 1, tid: index, name };
        Client::lease(self.channel(), index, state, token, &info).unwrap()
    }

    /// Ends the session.
    #[track_caller]
    pub fn finish(self) -> Recorded {
        let count = |counter: Counter| (counter.name().to_owned(), self.chip.count(counter));
        self.session.set_device_counters(Counter::ALL.map(count).into_iter().collect());
        let summary = self.session.finish().unwrap();
        Recorded { summary, dir: self.dir }
    }
}

/// Session that has ended. Dropping this value removes the session's directory.
#[derive(Debug)]
pub struct Recorded {
    /// The session's own counts.
    pub summary: Summary,
    dir: TempDir,
}

impl Recorded {
    /// Returns the session's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the folder of the session's CTF trace.
    pub fn ctf(&self) -> PathBuf {
        self.dir().join("ctf")
    }

    /// Opens the session for reading.
    #[track_caller]
    pub fn open(&self) -> hypertrace_timeline::Session {
        hypertrace_timeline::Session::open(self.dir()).unwrap()
    }

    /// Returns the session's counts of a guest's client.
    #[track_caller]
    pub fn client(&self, client: u32) -> &StreamJson {
        let own = |s: &&StreamJson| (s.domain, s.client) == (Domain::Guest, client);
        self.summary.streams.iter().find(own).unwrap()
    }

    /// Returns all events in order.
    #[track_caller]
    pub fn events(&self) -> Vec<Event> {
        events(self.dir())
    }
}

/// Returns all events of the session in this directory, in order.
#[track_caller]
pub fn events(dir: &Path) -> Vec<Event> {
    let recording = Recording::open(&[Given::new(dir)]).unwrap();
    kept::events(&recording).unwrap()
}
