// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Session, device and drain thread.

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
    /// The process has no descriptors left.
    #[error("cannot make an eventfd")]
    EventFd(#[source] io::Error),
    /// There is no thread, or the function that it calls first has failed.
    #[error("cannot start the drain thread")]
    Drain(#[source] io::Error),
}

/// Configuration of the device. [`DeviceConfig::new`] has defaults: set fields of it.
#[derive(Debug)]
#[non_exhaustive]
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

    /// Returns the configuration as `change` leaves it.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut DeviceConfig)) -> DeviceConfig {
        change(&mut self);
        self
    }
}

/// The thread that drains the rings: it reads them, and writes files.
#[non_exhaustive]
pub enum Drain {
    /// One that is made for that. It calls the function first: there the VMM installs the thread's seccomp filter.
    Thread(Box<dyn FnOnce() -> io::Result<()> + Send>),
    /// None is started with the device. The VMM calls [`Hypertrace::start_threads`] later, for example in the process that
    /// it jails the device in. Or a thread of the VMM, not a vCPU's, drains: its event loop calls [`Chip::drain`] when
    /// [`Device::kick`] is readable, or has the adapter for `event-manager` do so.
    Later,
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
    /// Creates a session with a ring for each vCPU, and starts a device that records in it, as after a reset.
    ///
    /// # Errors
    /// If the host has no place or memory for it. The session's directory is empty
    /// then: another start may use it.
    pub fn start(session: SessionConfig, config: DeviceConfig) -> Result<Hypertrace, Error> {
        let host_rings = session.host_rings;
        let session = session.for_vcpus(config.vcpus);
        let host_rings = session.host_rings.max(host_rings);
        let session = Session::create(session.with(|config| config.host_rings = host_rings))?;
        Hypertrace::with_session(session, config)
    }

    /// Starts a device that records in a session which the VMM has created.
    ///
    /// # Errors
    /// As [`Hypertrace::start`]: the session is [abandoned](Session::abandon) then.
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

    /// Starts the thread that drains the rings, of a device with [`Drain::Later`]. The thread calls `first` first, as
    /// that of [`Drain::Thread`] does.
    ///
    /// A VMM that jails the device in a process which it forks calls this in that process, before any thread attaches.
    /// The process that forked [leaves](Hypertrace::leave) the device to that one, which may close all descriptors but
    /// [these](Hypertrace::descriptors).
    ///
    /// # Errors
    /// If there is no thread, if `first` has failed, or if the threads run already.
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

    /// Leaves the device's threads and its session to a process that was forked. Returns the device, whose memory the guest
    /// has if this process has mapped it: **keep it until the VM's last descriptor is closed**.
    pub fn leave(self) -> Device {
        self.session.leave();
        self.device
    }

    /// Serves `hypertrace ctl` until the device's end. A VMM with filters for system calls calls [`Session::serve_after`].
    ///
    /// # Errors
    /// If the session has no directory, or the socket cannot be made there.
    pub fn serve(&mut self) -> Result<(), MonitorError> {
        self.monitor = Some(self.session.serve()?);
        Ok(())
    }

    /// Returns the descriptors that the device and its session hold, for a VMM that closes all others in the process
    /// that it jails the device in.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let mut all = self.session.descriptors();
        all.push(self.device.kick().as_fd().as_raw_fd());
        let memory = self.chip().memory().region(Region::Rings);
        all.extend(memory.map(|region| region.file().as_raw_fd()));
        all
    }

    /// Keeps processes that this one forks from now on from having the device's mappings: see
    /// [`Memory::hide_from_children`]. They must close its [descriptors](Hypertrace::descriptors), and must not use or drop
    /// their copy of the device. Not for a VMM that daemonizes, or that jails this device, after this call.
    ///
    /// # Errors
    /// If the kernel refuses.
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

    /// Returns the device for a snapshot of the machine, without config space. What the rings hold goes to this session
    /// before. Call it while no vCPU runs; guest RAM is saved in the same pause.
    ///
    /// # Errors
    /// If the device's memory cannot be read.
    pub fn save(&self) -> io::Result<Saved> {
        let chip = self.chip().state();
        Ok(Saved { chip, pci: None, memory: self.chip().memory().save()? })
    }

    /// Continues where the device of a snapshot was, on this device, before a vCPU runs: see [`Chip::restore`]. Config
    /// space is loaded by [`PciFunction::load`](crate::PciFunction::load).
    ///
    /// # Errors
    /// If `saved` is of another device, says what no device's state can, or if this device has recorded something
    /// already: then nothing was done. Also if the host has no memory.
    pub fn load(&self, saved: &Saved) -> Result<(), RestoreError> {
        self.chip().restore(&saved.chip, Some(&saved.memory))
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
