// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The device with its session and its drain thread.

use crate::saved::Saved;
use crate::vm::Device;
use hypertrace_device::{
    Chip, ChipConfig, Counter, DrainPolicy, DrainThread, DrainWaker, Geometry, Kick, Memory,
    MemoryError, Region, RestoreError,
};
use hypertrace_trace::monitor::{Monitor, MonitorError};
use hypertrace_trace::{Session, SessionConfig, SessionError, Summary};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// Error of the device, which no guest can cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The session cannot be created, or cannot be written to its end.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The host has no memory for the rings.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The process has no descriptors left.
    #[error("cannot make an eventfd")]
    EventFd(#[source] io::Error),
    /// The thread cannot be started, or its first function has failed.
    #[error("cannot start the drain thread")]
    Drain(#[source] io::Error),
}

/// Configuration of the device. [`DeviceConfig::new`] has defaults, whose fields a VMM can set.
#[derive(Debug)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// Sizes.
    pub geometry: Geometry,
    /// Number n of vCPUs. The clients of the vCPUs have the numbers 0 to n - 1. Programs lease the other
    /// clients.
    pub vcpus: u32,
    /// Whether [`Vm::arm`](crate::Vm::arm) works; guests rely on this setting. If the setting is false, the
    /// drain loop keeps its timer of 1 ms.
    pub has_doorbells: bool,
    /// Number of reference points that one client may make per second, 0 for no limit.
    pub reference_points_per_second: u32,
    /// The thread that drains the rings.
    pub drain: Drain,
}

impl DeviceConfig {
    /// Returns defaults for a VM of `vcpus` vCPUs: clients for 16 threads of programs, rings of 1 MiB,
    /// doorbells, no limit, a drain thread.
    pub fn new(vcpus: u32) -> DeviceConfig {
        DeviceConfig {
            geometry: Geometry::default().for_vcpus(vcpus),
            vcpus,
            has_doorbells: true,
            reference_points_per_second: 0,
            drain: Drain::default(),
        }
    }

    /// Returns the configuration after `change` has modified it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut DeviceConfig)) -> DeviceConfig {
        change(&mut self);
        self
    }
}

/// The thread that drains the rings: it reads rings and writes files.
#[non_exhaustive]
pub enum Drain {
    /// The device starts a thread that only drains. This thread first calls the function, in which the VMM
    /// installs the thread's seccomp filter.
    Thread(Box<dyn FnOnce() -> io::Result<()> + Send>),
    /// No thread starts with the device. The VMM calls [`Hypertrace::start_threads`] later, for example in
    /// the process in which the VMM jails the device. Alternatively, an event loop of the VMM drains the
    /// rings on a thread that is not a vCPU's. This event loop uses the adapter for `event-manager`, or calls
    /// [`Chip::drain`]. The next call is due when [`Device::kick`] is readable, or after the time that the
    /// last call returned.
    Later,
}

/// The default is a separate thread without a seccomp filter.
impl Default for Drain {
    fn default() -> Drain {
        Drain::Thread(Box::new(|| Ok(())))
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Drain::Thread(_) => "Thread",
            Drain::Later => "Later",
        })
    }
}

/// The device with its session and its drain thread.
#[derive(Debug)]
pub struct Hypertrace {
    session: Session,
    device: Device,
    drain: Option<DrainThread>,
    monitor: Option<Monitor>,
}

impl Hypertrace {
    /// Creates a session with a host ring for each vCPU, and starts a device that records in it, in the state
    /// after a reset.
    ///
    /// # Errors
    /// If the host has no space or memory. After an error, the session's directory is empty, and another
    /// start may use it.
    pub fn start(session: SessionConfig, config: DeviceConfig) -> Result<Hypertrace, Error> {
        let host_rings = session.host_rings;
        let session = session.for_vcpus(config.vcpus);
        let host_rings = session.host_rings.max(host_rings);
        let session = Session::create(session.with(|config| config.host_rings = host_rings))?;
        Hypertrace::with_session(session, config)
    }

    /// Starts a device that records in a session that the VMM has created.
    ///
    /// # Errors
    /// As [`Hypertrace::start`]. The session is [abandoned](Session::abandon) then.
    pub fn with_session(session: Session, config: DeviceConfig) -> Result<Hypertrace, Error> {
        let started = Hypertrace::with(&session, config);
        started.inspect_err(|_| session.abandon())
    }

    fn with(session: &Session, config: DeviceConfig) -> Result<Hypertrace, Error> {
        let kick = Kick::new().map_err(Error::EventFd)?;
        let (waker, wake) = (kick.clone(), kick.clone());
        let of_chip = ChipConfig::default().with(|chip| {
            chip.vcpu_clients = config.vcpus;
            chip.has_doorbells = config.has_doorbells;
            chip.reference_points_per_second = config.reference_points_per_second;
        });
        let memory = Memory::anonymous(config.geometry)?;
        let chip = Arc::new(Chip::new(memory, &of_chip, session.clone(), waker));
        session.wake_by(move || wake.wake());
        let device = Device::new(chip, kick);
        let mut hypertrace =
            Hypertrace { session: session.clone(), device, drain: None, monitor: None };
        if let Drain::Thread(first) = config.drain {
            hypertrace.start_threads(first)?;
        }
        Ok(hypertrace)
    }

    /// Starts the thread that drains the rings of a device with [`Drain::Later`]. The thread first calls
    /// `first`, as the thread of [`Drain::Thread`] does.
    ///
    /// A VMM that jails the device in a forked process calls this in the forked process, before any thread
    /// attaches. The original process [leaves](Hypertrace::leave) the device to the forked process. The
    /// forked process may close all descriptors except for the device's
    /// [descriptors](Hypertrace::descriptors).
    ///
    /// # Errors
    /// If the thread cannot be started, if `first` fails, or if the thread runs already.
    pub fn start_threads(
        &mut self,
        first: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        if self.drain.is_some() {
            return Err(Error::Drain(io::ErrorKind::AlreadyExists.into()));
        }
        self.session.adopt();
        let chip = Arc::clone(self.chip());
        let thread = chip.drain_thread(self.device.kick(), DrainPolicy::default(), first);
        self.drain = Some(thread.map_err(Error::Drain)?);
        Ok(())
    }

    /// Leaves the device's threads and its session to a forked process. Returns the device. If this process
    /// has mapped the device's memory into the guest, **keep the device until the VM's last descriptor is
    /// closed**.
    pub fn leave(self) -> Device {
        self.session.leave();
        self.device
    }

    /// Serves `hypertrace ctl` until the device ends. A VMM with seccomp filters calls
    /// [`Session::serve_after`] instead.
    ///
    /// # Errors
    /// If the session has no directory, or the socket cannot be made there.
    pub fn serve(&mut self) -> Result<(), MonitorError> {
        self.monitor = Some(self.session.serve()?);
        Ok(())
    }

    /// Returns the descriptors of the device and its session. A VMM that jails the device in another process
    /// closes all other descriptors in the jailed process.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut all = self.session.descriptors();
        all.push(self.device.kick().as_fd().as_raw_fd());
        let memory = self.chip().memory().region(Region::Rings);
        all.extend(memory.map(|region| region.file().as_raw_fd()));
        all
    }

    /// Hides the device's mappings from processes that this process forks from now on: see
    /// [`Memory::hide_from_children`]. A forked process must close the device's
    /// [descriptors](Hypertrace::descriptors), and must not use or drop its copy of the device. A VMM that
    /// later daemonizes or jails this device must not call this function.
    ///
    /// # Errors
    /// If the kernel does not accept the advice.
    pub fn hide_from_children(&self) -> io::Result<()> {
        self.chip().memory().hide_from_children()
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

    /// Returns the device for a snapshot of the machine, without config space. Drains the rings to this
    /// session first. Call this while no vCPU runs, and save guest RAM in the same pause.
    ///
    /// # Errors
    /// If the device's memory cannot be read.
    pub fn save(&self) -> io::Result<Saved> {
        let chip = self.chip().state();
        Ok(Saved { chip, pci: None, memory: self.chip().memory().save()? })
    }

    /// Restores the device of a snapshot in this device, before any vCPU runs: see [`Chip::restore`].
    /// [`PciFunction::load`](crate::PciFunction::load) restores config space.
    ///
    /// # Errors
    /// If `saved` belongs to another device or is impossible, if this device has recorded something, or if
    /// the host has no memory. In the last case, the device was reset. In all other cases, the device is
    /// unchanged.
    pub fn load(&self, saved: &Saved) -> Result<(), RestoreError> {
        self.chip().restore(&saved.chip, Some(&saved.memory))
    }

    /// Ends the session, when no vCPU runs any more.
    ///
    /// # Errors
    /// If the session cannot be written to its end. Unlike this function, [`Hypertrace::end`] then still
    /// returns the summary.
    pub fn finish(self) -> Result<Summary, SessionError> {
        let (summary, written) = self.end();
        written.map(|()| summary)
    }

    /// Ends the session when no vCPU runs any more, even if it cannot be written to its end: see
    /// [`Session::end`].
    pub fn end(self) -> (Summary, Result<(), SessionError>) {
        self.stop().end()
    }

    /// Ends a session in which nothing was recorded, as if the session had not been created.
    pub fn abandon(self) {
        self.stop().abandon();
    }

    /// Drains the remaining records, and gives the session the device's counters.
    fn stop(self) -> Session {
        drop(self.monitor);
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
