//! The whole channel: a guest, the device, the drain loop and a session.

use crate::common;
use std::sync::Arc;

use common::run;
use hypertrace::Channel;
use hypertrace_device::{Chip, Geometry, Memory, Region};
use hypertrace_device::{DrainPolicy, DrainThread};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_trace::{Session, SessionConfig, Summary};
use kvm_vmm::{
    Answer, Doorbells, Error, Machine, attach_pci, attach_window, record_in, run_on_threads,
};
use tempfile::TempDir;
use vmm_sys_util::eventfd::EventFd;

const VCPUS: usize = 2;
const EVENTS: u64 = 100_000;
const REFERENCE_POINTS: u64 = 1_000;
const STAMPS: u64 = 100;

/// Session in a new directory, a device that records in it, and its drain loop.
struct Host {
    session: Session,
    chip: Arc<Chip<Session, EventFd>>,
    doorbells: Doorbells,
    drain: DrainThread,
    _dir: TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::create(SessionConfig::new(dir.path())).unwrap();
        // An eighth of a vCPU's events: unless the rings are drained while it runs, events are
        // lost.
        let geometry = Geometry {
            clients: 4,
            ring_bytes: 512 << 10,
            block_bytes: 16 << 10,
            ..Geometry::default()
        };
        let doorbells = Doorbells::new().unwrap();
        let config = doorbells.config(&session, VCPUS as u32);
        let memory = Memory::anonymous(geometry).unwrap();
        let waker = doorbells.kick.try_clone().unwrap();
        let chip = Arc::new(Chip::new(memory, &config, session.clone(), waker));
        let drain = chip.drain_thread(&doorbells.kick, DrainPolicy::default(), || Ok(())).unwrap();
        Host { session, chip, doorbells, drain, _dir: dir }
    }

    fn finish(self) -> Summary {
        self.drain.finish();
        self.session.finish().unwrap()
    }
}

/// Makes a machine whose events go to the host's session. Returns `None` without KVM.
fn machine(host: &Host) -> Option<Machine> {
    let mut machine = common::machine(VCPUS)?;
    host.session.set_events(&"*".parse().unwrap(), true).unwrap();
    machine.observe(record_in(host.session.clone()));
    Some(machine)
}

/// Returns arguments for the demo, without `device` and `ecam`.
fn demo() -> Args {
    Args {
        events: EVENTS,
        reference_points: REFERENCE_POINTS,
        stamps: STAMPS,
        ..Args::new(Program::Demo)
    }
}

fn assert_complete(summary: &Summary) {
    assert_eq!(summary.lost, 0, "{summary:#?}");
    assert_eq!(summary.faults.values().sum::<u64>(), 0, "{summary:#?}");
    assert_eq!(summary.ring_events, VCPUS as u64 * EVENTS);
    assert_eq!(summary.reference_points, VCPUS as u64 * REFERENCE_POINTS);
    assert_eq!(summary.stamps, VCPUS as u64 * STAMPS);
}

#[test]
fn every_event_of_two_vcpus_with_a_window_is_in_the_session() {
    let host = Host::new();
    let Some(mut machine) = machine(&host) else {
        return;
    };
    attach_window(&mut machine, &host.chip, &host.doorbells, layout::DEVICE, Answer::Device)
        .unwrap();

    run(machine, &Args { device: layout::DEVICE, ..demo() });

    let summary = host.finish();
    assert_complete(&summary);
    // Every reference point is an exit, with an event before and after it.
    assert!(summary.host_events >= 2 * VCPUS as u64 * REFERENCE_POINTS);
}

#[test]
fn every_event_of_two_vcpus_on_the_pci_bus_is_in_the_session() {
    let host = Host::new();
    let Some(mut machine) = machine(&host) else {
        return;
    };
    attach_pci(&mut machine, &host.chip, &host.doorbells).unwrap();

    run(machine, &Args { ecam: layout::ECAM, ..demo() });

    assert_complete(&host.finish());
}

/// Returns the device's rings as shared memory.
fn bare_rings(host: &Host) -> Channel<'_> {
    let rings = host.chip.memory().region(Region::Rings).unwrap();
    Channel::local(&host.chip.config_page(), rings.words()).unwrap()
}

#[test]
fn every_event_of_two_threads_is_in_the_session() {
    let host = Host::new();

    run_on_threads(bare_rings(&host), VCPUS, &demo()).unwrap();

    assert_complete(&host.finish());
}

#[test]
fn a_program_that_needs_a_machine_does_not_run_on_a_thread() {
    let host = Host::new();

    let error = run_on_threads(bare_rings(&host), 1, &Args::new(Program::Fault)).unwrap_err();

    assert!(matches!(error, Error::Program { code: 127, .. }), "{error:?}");
    host.finish();
}
