//! The device with a session, for programs that embed this VMM.

use std::sync::Arc;
use std::time::Duration;

use hypertrace_device::{Chip, ChipConfig, Counter, DrainWaker, Geometry, Memory};
use hypertrace_device::{DrainPolicy, DrainThread};
use hypertrace_guest::{Args, layout};
use hypertrace_trace::{Session, SessionError, Summary};
use vmm_sys_util::eventfd::EventFd;

use crate::device::{Answer, Doorbells, attach_window};
use crate::error::Error;
use crate::machine::{Machine, Outcome};
use crate::observe::record_in;

/// Time limit of a guest: one that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Device with a session and a running drain loop.
#[derive(Debug)]
pub struct Device {
    /// The device.
    pub chip: Arc<Chip<Session, EventFd>>,
    /// The session that it records to.
    pub session: Session,
    /// Its eventfds.
    pub doorbells: Doorbells,
    drain: DrainThread,
}

impl Device {
    /// Makes a device with a client for each of `vcpus`, which records to `session`.
    pub fn new(session: Session, geometry: Geometry, vcpus: u32) -> Result<Device, Error> {
        let doorbells = Doorbells::new()?;
        let config = doorbells.config(&session, vcpus);
        Device::start(session, geometry, &config, doorbells)
    }

    /// Makes a device for a server, which knows of the VM what the session knows. All registers
    /// trap.
    pub fn of_server(session: Session, geometry: Geometry) -> Result<Device, Error> {
        let config = ChipConfig {
            ring_mode: session.ring_mode(),
            session: session.uuid(),
            guest_frequency: session.guest_frequency(),
            host_frequency: session.host_frequency(),
            ..ChipConfig::default()
        };
        Device::start(session, geometry, &config, Doorbells::new()?)
    }

    fn start(
        session: Session,
        geometry: Geometry,
        config: &ChipConfig,
        doorbells: Doorbells,
    ) -> Result<Device, Error> {
        let memory = Memory::anonymous(geometry)?;
        let clone = || doorbells.kick.try_clone().map_err(Error::EventFd);
        let (waker, kick) = (clone()?, clone()?);
        let chip = Arc::new(Chip::new(memory, config, session.clone(), waker));
        session.wake_by(move || kick.wake());
        let drain = chip
            .drain_thread(&doorbells.kick, DrainPolicy::default(), || Ok(()))
            .map_err(Error::Drain)?;
        Ok(Device { chip, session, doorbells, drain })
    }

    /// Runs a guest program on the machine with this device in its MMIO
    /// window.
    pub fn run(&self, machine: Machine, args: &Args, answer: Answer) -> Result<Outcome, Error> {
        self.run_for(machine, args, answer, LIMIT)
    }

    fn run_for(
        &self,
        mut machine: Machine,
        args: &Args,
        answer: Answer,
        limit: Duration,
    ) -> Result<Outcome, Error> {
        let base = layout::DEVICE;
        attach_window(&mut machine, &self.chip, &self.doorbells, base, answer)?;
        machine.run(&Args { device: base, ..args.clone() }, limit)
    }

    /// Runs a guest program and records the VMM's own events that are on. The
    /// time limit is multiplied by `times`.
    pub fn run_traced(
        &self,
        mut machine: Machine,
        args: &Args,
        times: u32,
    ) -> Result<Outcome, Error> {
        machine.give_tscs(&self.session);
        machine.observe(record_in(self.session.clone()));
        self.run_for(machine, args, Answer::Device, LIMIT * times)
    }

    /// Drains what is left and ends the session.
    pub fn finish(self) -> Result<Summary, SessionError> {
        let (summary, written) = self.end();
        written.map(|()| summary)
    }

    /// Ends a session in which nothing was recorded as if it had not been created.
    pub fn abandon(self) {
        self.drain.finish();
        self.session.abandon();
    }

    /// Drains the rest and ends the session. Returns the counts even if the session
    /// cannot be written to its end.
    pub fn end(self) -> (Summary, Result<(), SessionError>) {
        self.drain.finish();
        let count = |counter: Counter| (counter.name().to_owned(), self.chip.count(counter));
        let counters: [_; Counter::COUNT] = Counter::ALL.map(count);
        self.session.set_device_counters(counters.into_iter().collect());
        self.session.end()
    }
}
