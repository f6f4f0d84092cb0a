//! A session of programs: a trace session, a segment, and the host between them.

use crate::host::Host;
use crate::inherit::inherit;
use crate::policy::Policy;
use crate::state::PANICS;
use hypertrace_abi::config::{Features, HostInfo};
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::layout::local::ENVIRONMENT;
use hypertrace_abi::sink::{EventSink, SessionInfo};
use hypertrace_segment::{Segment, SegmentError};
use hypertrace_trace::{BadInput, SessionConfig, SessionError, Summary, is_bad_path};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Settings of a session of programs.
#[non_exhaustive]
pub struct Config {
    /// Settings of the trace session. The settings for relays and the counter are overwritten.
    pub trace: SessionConfig,
    /// Sizes, and the number of clients. Each thread that traces takes one client.
    pub geometry: Geometry,
    /// File for the segment, so that the segment outlives a crash; without a file, the segment is in memory.
    pub segment: Option<PathBuf>,
    /// Size of the file in bytes, a power of two, if the file is the memory of a VM's PCI function; `None` if
    /// programs of this host use the file.
    pub vm_memory: Option<u64>,
    /// Clients below this number relay the points of other clients, as an emulator's plugin does.
    pub relays: u32,
    /// When and how much to drain.
    pub policy: Policy,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("destination", &self.trace.destination)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Returns the default settings: 256 threads at a time, rings of 1 MiB, a segment in memory.
    pub fn new(dir: impl Into<PathBuf>) -> Config {
        Config {
            trace: SessionConfig::new(dir),
            geometry: Geometry::for_programs(256, 1 << 20),
            segment: None,
            vm_memory: None,
            relays: 0,
            policy: Policy::default(),
        }
    }

    /// Returns the configuration as `change` leaves it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Config {
        change(&mut self);
        self
    }
}

/// Error if the session cannot be created or written to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The trace session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The segment cannot be made or opened.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The host's threads cannot be started.
    #[error("cannot start the threads that serve the segment")]
    Thread(#[source] io::Error),
}

impl BadInput for Error {
    fn is_bad_input(&self) -> bool {
        match self {
            Error::Session(error) => error.is_bad_input(),
            Error::Segment(SegmentError::System { source, .. }) => is_bad_path(source),
            Error::Segment(SegmentError::Reserve { .. }) | Error::Thread(_) => false,
            Error::Segment(_) => true,
        }
    }
}

/// A session that programs trace into.
#[derive(Debug)]
pub struct Session {
    trace: hypertrace_trace::Session,
    segment: Arc<Segment>,
    host: Host,
}

impl Session {
    /// Makes the session's directory and the segment, and starts the host.
    ///
    /// # Errors
    /// If the directory, the segment or the host cannot be made. After an error, nothing is left.
    pub fn create(config: Config) -> Result<Session, Error> {
        let Config { mut trace, geometry, segment, vm_memory, relays, policy } = config;
        trace.relays = relays;
        trace.same_counter = vm_memory.is_none();
        // If the segment is the memory of a VM, this process is not the VMM, and does not know the threads of
        // the vCPUs.
        trace.served |= vm_memory.is_some();
        let trace = hypertrace_trace::Session::create(trace)?;
        let SessionInfo { session, guest_frequency, host_frequency, trace_parent, .. } =
            trace.session_info();
        let facts = HostInfo::default().with(|info| {
            info.session = session;
            info.guest_frequency = guest_frequency;
            info.host_frequency = host_frequency;
            info.trace_parent = trace_parent;
            info.vcpu_clients = relays;
            info.features = if vm_memory.is_some() { Features::REMOTE } else { Features::empty() };
        });
        let segment = match &segment {
            Some(path) => Segment::create(path, vm_memory, &geometry, &facts),
            None => Segment::anonymous(&geometry, &facts),
        };
        let started = segment.map_err(Error::from).and_then(|segment| {
            let segment = Arc::new(segment);
            match Host::start(&segment, trace.clone(), policy) {
                Ok(host) => Ok((segment, host)),
                Err(why) => {
                    segment.remove();
                    Err(Error::Thread(why))
                }
            }
        });
        match started {
            Ok((segment, host)) => {
                trace.wake_by(host.waker());
                Ok(Session { trace, segment, host })
            }
            Err(why) => {
                // This function made the session, and nothing was recorded.
                trace.abandon();
                Err(why)
            }
        }
    }

    /// Returns the trace session, for its monitor, triggers and control socket.
    pub fn trace(&self) -> &hypertrace_trace::Session {
        &self.trace
    }

    /// Returns the segment, for threads of this process, or for programs that are started by other means.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Lets a program that is about to be started, and all programs that this program starts, trace into this
    /// session.
    pub fn pass_to(&self, command: &mut Command) {
        command.env(ENVIRONMENT, self.segment.location());
        if let Some(descriptor) = self.segment.descriptor() {
            inherit(command, descriptor);
        }
    }

    /// Drains what is left and ends the session. Programs that still run are not traced any more. The
    /// segment's file is removed if all its records could be written.
    ///
    /// # Errors
    /// If the session cannot be written to its end.
    pub fn finish(self) -> Result<Summary, Error> {
        let (summary, written) = self.end();
        written?;
        Ok(summary)
    }

    /// Ends a session in which nothing was recorded. Afterwards, the files are as if the session had not been
    /// created.
    pub fn abandon(self) {
        let Session { trace, segment, host } = self;
        host.finish();
        segment.remove();
        trace.abandon();
    }

    /// Ends the session as [`Session::finish`] does, but returns a summary even if the
    /// session cannot be written to its end.
    pub fn end(self) -> (Summary, Result<(), Error>) {
        let Session { trace, segment, host } = self;
        let counts = host.finish();
        let is_whole = counts.get(PANICS).is_none_or(|panics| *panics == 0);
        trace.set_device_counters(counts);
        let (summary, written) = trace.end();
        if is_whole && written.is_ok() && summary.write_failures == 0 {
            segment.remove();
        }
        (summary, written.map_err(Into::into))
    }
}
