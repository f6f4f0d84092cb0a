//! Session, device and drain thread: the part that does not depend on the VMM's bus.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use hypertrace_device::{
    Bell, Chip, ChipConfig, ChipState, Counter, DrainPolicy, DrainThread, DrainWaker, Geometry,
    Memory, MemoryError, Region, RestoreError,
};
use hypertrace_trace::{Session, SessionConfig, SessionError, Summary};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::vm::Vm;

/// Error of the device, all of the host: guests cause none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The session cannot be created, or not be written to its end.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// There is no memory for the rings.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The snapshot is not one of this device.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// There is no eventfd or thread, or KVM refuses a mapping or an ioeventfd.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Contents of a snapshot: the device's state and its memory.
#[derive(Clone, Debug)]
pub struct Saved {
    /// State of the chip.
    pub state: ChipState,
    /// Contents of the device's memory.
    pub memory: Vec<u8>,
}

/// The device and its session.
pub struct Hypertrace {
    session: Session,
    chip: Arc<Chip<Session, EventFd>>,
    doorbells: [EventFd; 2],
    drain: DrainThread,
}

impl Hypertrace {
    /// Starts a session and its device for `vcpus` vCPUs, restored if `saved` is given. `geometry` has the sizes.
    ///
    /// # Errors
    /// If the host has no place or memory for it, or `saved` is of another device.
    pub fn start(
        config: SessionConfig,
        geometry: Geometry,
        vcpus: u32,
        saved: Option<&Saved>,
    ) -> Result<Hypertrace, Error> {
        let session = Session::create(config.for_vcpus(vcpus))?;
        let started = Hypertrace::with(session.clone(), geometry, vcpus, saved);
        if started.is_err() {
            // The directory is empty again: another start may use it.
            session.abandon();
        }
        started
    }

    fn with(
        session: Session,
        geometry: Geometry,
        vcpus: u32,
        saved: Option<&Saved>,
    ) -> Result<Hypertrace, Error> {
        let eventfd = || EventFd::new(EFD_NONBLOCK);
        let (kick, stamp) = (eventfd()?, eventfd()?);
        let config = ChipConfig {
            ring_mode: session.ring_mode(),
            vcpu_clients: vcpus,
            session: session.uuid(),
            guest_frequency: session.guest_frequency(),
            host_frequency: session.host_frequency(),
            kick_is_cheap: true,
            stamp_works: true,
            ..ChipConfig::default()
        };
        let memory = Memory::anonymous(geometry.for_vcpus(vcpus))?;
        let waker = kick.try_clone()?;
        let chip = match saved {
            None => Chip::new(memory, &config, session.clone(), waker),
            Some(saved) => {
                memory.load(&mut &saved.memory[..])?;
                Chip::restore(memory, &config, &saved.state, session.clone(), waker)?
            }
        };
        let chip = Arc::new(chip);
        let wake = kick.try_clone()?;
        session.wake_by(move || wake.wake());
        let drain = chip.drain_thread(&kick, DrainPolicy::default(), || Ok(()))?;
        Ok(Hypertrace { session, chip, doorbells: [kick, stamp], drain })
    }

    /// Returns the device.
    pub fn chip(&self) -> &Arc<Chip<Session, EventFd>> {
        &self.chip
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Makes a region that is decoded at `gpa` work without exits. Where this fails, its accesses trap.
    ///
    /// # Errors
    /// If KVM refuses.
    pub fn place(&self, vm: &dyn Vm, region: Region, gpa: u64) -> io::Result<()> {
        if let Some(memory) = self.chip.mapping(region, gpa) {
            vm.map(memory.gpa, memory.size, memory.host_address, memory.is_read_only)?;
        }
        for doorbell in self.chip.doorbells(region, gpa) {
            vm.arm(doorbell.gpa, doorbell.length, self.eventfd(doorbell.bell))?;
        }
        Ok(())
    }

    /// Undoes [`Hypertrace::place`], complete or not.
    pub fn remove(&self, vm: &dyn Vm, region: Region, gpa: u64) {
        if self.chip.mapping(region, gpa).is_some() {
            vm.unmap(gpa);
        }
        for doorbell in self.chip.doorbells(region, gpa) {
            vm.disarm(doorbell.gpa, doorbell.length, self.eventfd(doorbell.bell));
        }
    }

    fn eventfd(&self, bell: Bell) -> &EventFd {
        match bell {
            Bell::Kick => &self.doorbells[0],
            Bell::Stamp => &self.doorbells[1],
        }
    }

    /// Saves the device. No vCPU runs.
    ///
    /// # Errors
    /// If its memory cannot be read.
    pub fn save(&self) -> io::Result<Saved> {
        let state = self.chip.state();
        let mut memory = Vec::new();
        self.chip.memory().save(&mut memory)?;
        Ok(Saved { state, memory })
    }

    /// Ends the session. No vCPU runs any more.
    ///
    /// # Errors
    /// If it cannot be written to its end.
    pub fn finish(self) -> Result<Summary, Error> {
        self.drain.finish();
        let counters: BTreeMap<_, _> = Counter::ALL
            .into_iter()
            .map(|counter| (counter.name().to_owned(), self.chip.count(counter)))
            .collect();
        self.session.set_device_counters(counters);
        Ok(self.session.finish()?)
    }
}
