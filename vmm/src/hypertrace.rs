// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Session, device and drain thread.

use crate::saved::Saved;
use crate::vm::Device;
use hypertrace_device::{
    Chip, ChipConfig, Counter, DrainPolicy, DrainThread, DrainWaker, Geometry, Memory, MemoryError,
    RestoreError,
};
use hypertrace_trace::{Session, SessionConfig, SessionError, Summary};
use std::fmt;
use std::io;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// Error of the device. Guests cause none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The session cannot be created, or not be written to its end.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is no memory for the rings.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The snapshot is not one of this device.
    #[error("cannot restore the device")]
    Restore(#[from] RestoreError),
    /// The memory in the snapshot is not one of this device.
    #[error("cannot restore the device's memory")]
    Load(#[source] io::Error),
    /// The process has no descriptors left.
    #[error("cannot make an eventfd")]
    EventFd(#[source] io::Error),
    /// There is no thread, or the function that it calls first has failed.
    #[error("cannot start the drain thread")]
    Drain(#[source] io::Error),
}

/// Configuration of the device. [`DeviceConfig::new`] has defaults: set fields of it.
#[derive(Debug)]
pub struct DeviceConfig {
    /// Sizes.
    pub geometry: Geometry,
    /// Number of vCPUs: clients [0, n) are theirs, and programs lease the others.
    pub vcpus: u32,
    /// Whether [`Vm::arm`](crate::Vm::arm) works. Guests rely on it. If not, the drain loop keeps its timer of a millisecond.
    pub has_doorbells: bool,
    /// Reference points per second that one client may make, 0 for no limit.
    pub reference_points_per_second: u32,
    /// The thread that drains the rings.
    pub drain: Drain,
}

impl DeviceConfig {
    /// Defaults for a VM of `vcpus` vCPUs: clients for 16 programs' threads, rings of 1 MiB, doorbells,
    /// no limit, a drain thread.
    pub fn new(vcpus: u32) -> DeviceConfig {
        DeviceConfig {
            geometry: Geometry::default().for_vcpus(vcpus),
            vcpus,
            has_doorbells: true,
            reference_points_per_second: 0,
            drain: Drain::default(),
        }
    }
}

/// The thread that drains the rings: it reads them, and writes files.
pub enum Drain {
    /// One that is made for that. It calls the function first: there the VMM installs the thread's seccomp filter.
    Thread(Box<dyn FnOnce() -> io::Result<()> + Send>),
    /// One of the VMM, not a vCPU's: its event loop calls [`Chip::drain`] when [`Device::kick`] is
    /// readable, or has the adapter for `event-manager` do so.
    EventLoop,
}

/// A thread without a filter of its own.
impl Default for Drain {
    fn default() -> Drain {
        Drain::Thread(Box::new(|| Ok(())))
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Drain::Thread(_) => "Thread",
            Drain::EventLoop => "EventLoop",
        })
    }
}

/// The device with its session and its drain thread.
#[derive(Debug)]
pub struct Hypertrace {
    session: Session,
    device: Device,
    drain: Option<DrainThread>,
}

impl Hypertrace {
    /// Creates a session with a ring for each vCPU, and starts a device that records in it: as after a reset,
    /// or as it was `saved`.
    ///
    /// # Errors
    /// If the host has no place or memory for it, or `saved` is of another device. The session's directory is empty
    /// then: another start may use it.
    pub fn start(
        session: SessionConfig,
        config: DeviceConfig,
        saved: Option<&Saved>,
    ) -> Result<Hypertrace, Error> {
        let host_rings = session.host_rings;
        let session = session.for_vcpus(config.vcpus);
        let host_rings = session.host_rings.max(host_rings);
        let session = Session::create(SessionConfig { host_rings, ..session })?;
        Hypertrace::with_session(session, config, saved)
    }

    /// Starts a device that records in a session which the VMM has created.
    ///
    /// # Errors
    /// As [`Hypertrace::start`]: the session is [abandoned](Session::abandon) then.
    pub fn with_session(
        session: Session,
        config: DeviceConfig,
        saved: Option<&Saved>,
    ) -> Result<Hypertrace, Error> {
        let started = Hypertrace::with(&session, config, saved);
        started.inspect_err(|_| session.abandon())
    }

    fn with(
        session: &Session,
        config: DeviceConfig,
        saved: Option<&Saved>,
    ) -> Result<Hypertrace, Error> {
        let kick = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(Error::EventFd)?;
        let clone = || kick.try_clone().map_err(Error::EventFd);
        let (waker, wake) = (clone()?, clone()?);
        let of_chip = ChipConfig {
            vcpu_clients: config.vcpus,
            kick_is_cheap: config.has_doorbells,
            reference_points_per_second: config.reference_points_per_second,
        };
        let memory = Memory::anonymous(config.geometry)?;
        let chip = match saved {
            None => Chip::new(memory, &of_chip, session.clone(), waker),
            Some(saved) => {
                memory.load(&saved.memory).map_err(Error::Load)?;
                Chip::restore(memory, &of_chip, &saved.chip, session.clone(), waker)?
            }
        };
        let chip = Arc::new(chip);
        session.wake_by(move || wake.wake());
        let drain = match config.drain {
            Drain::EventLoop => None,
            Drain::Thread(first) => {
                let thread = chip.drain_thread(&kick, DrainPolicy::default(), first);
                Some(thread.map_err(Error::Drain)?)
            }
        };
        let device = Device::new(chip, kick);
        Ok(Hypertrace { session: session.clone(), device, drain })
    }

    /// Returns the device, for a bus.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device's registers, memory and counters.
    pub fn chip(&self) -> &Arc<Chip> {
        self.device.chip()
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the device for a snapshot of the machine, without config space. What the rings hold goes to this session
    /// before. Call it while no vCPU runs; guest RAM is saved in the same pause.
    ///
    /// # Errors
    /// If the device's memory cannot be read.
    pub fn save(&self) -> io::Result<Saved> {
        let chip = self.chip().state();
        Ok(Saved { chip, pci: None, memory: self.chip().memory().save()? })
    }

    /// Ends the session. No vCPU runs any more.
    ///
    /// # Errors
    /// If it cannot be written to its end, as [`Hypertrace::end`], which returns the summary all the same.
    pub fn finish(self) -> Result<Summary, SessionError> {
        let (summary, written) = self.end();
        written.map(|()| summary)
    }

    /// Ends the session, also where it cannot be written to its end: see [`Session::end`]. No vCPU runs any more.
    pub fn end(self) -> (Summary, Result<(), SessionError>) {
        self.stop().end()
    }

    /// Ends a session in which nothing was recorded as if it had not been created.
    pub fn abandon(self) {
        self.stop().abandon();
    }

    /// Drains the rest, and gives the session the device's counters.
    fn stop(self) -> Session {
        let chip = self.device.chip();
        match self.drain {
            Some(drain) => drain.finish(),
            None => chip.end_drain(),
        }
        let count = |counter: Counter| (counter.name().to_owned(), chip.count(counter));
        self.session.set_device_counters(Counter::ALL.map(count).into_iter().collect());
        self.session
    }
}
