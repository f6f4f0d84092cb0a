//! The whole channel: a guest, the device, the drain loop and a session.

use crate::common;

use common::run;
use hypertrace::Channel;
use hypertrace_guest::{Args, Program, layout};
use hypertrace_vmm::{DeviceConfig, Geometry, Hypertrace, Region, SessionConfig, Summary};
use kvm_vmm::{Answer, Error, Machine, attach_pci, attach_window, record_in, run_on_threads};
use tempfile::TempDir;

const VCPUS: usize = 2;
const EVENTS: u64 = 100_000;
const REFERENCE_POINTS: u64 = 1_000;

/// Starts a device with a session in a new directory.
fn start() -> (Hypertrace, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    // A ring holds an eighth of a vCPU's events, so events are lost unless the rings are drained while the
    // vCPU runs.
    let geometry = Geometry {
        clients: 4,
        ring_bytes: 512 << 10,
        block_bytes: 16 << 10,
        ..Geometry::default()
    };
    let config = DeviceConfig::new(VCPUS as u32).with(|config| config.geometry = geometry);
    (Hypertrace::start(SessionConfig::new(dir.path()), config).unwrap(), dir)
}

/// Makes a machine whose events go to the host's session. Returns `None` without KVM.
fn machine(host: &Hypertrace) -> Option<Machine> {
    let mut machine = common::machine(VCPUS)?;
    host.session().set_events(&"*".parse().unwrap(), true).unwrap();
    machine.observe(record_in(host.session().clone()));
    Some(machine)
}

/// Returns arguments for the demo, without `device` and `ecam`.
fn demo() -> Args {
    Args { events: EVENTS, reference_points: REFERENCE_POINTS, ..Args::new(Program::Demo) }
}

fn assert_complete(summary: &Summary) {
    assert_eq!(summary.lost, 0, "{summary:#?}");
    assert_eq!(summary.faults.values().sum::<u64>(), 0, "{summary:#?}");
    assert_eq!(summary.ring_events, VCPUS as u64 * EVENTS);
    assert_eq!(summary.reference_points, VCPUS as u64 * REFERENCE_POINTS);
}

#[test]
fn every_event_of_two_vcpus_with_a_window_is_in_the_session() {
    let (host, _dir) = start();
    let Some(mut machine) = machine(&host) else {
        return;
    };
    attach_window(&mut machine, host.device(), layout::DEVICE, Answer::Device).unwrap();

    run(machine, &Args { device: layout::DEVICE, ..demo() });

    let summary = host.finish().unwrap();
    assert_complete(&summary);
    // Every reference point is an exit, with an event before and after it.
    assert!(summary.host_events >= 2 * VCPUS as u64 * REFERENCE_POINTS);
}

#[test]
fn every_event_of_two_vcpus_on_the_pci_bus_is_in_the_session() {
    let (host, _dir) = start();
    let Some(mut machine) = machine(&host) else {
        return;
    };
    attach_pci(&mut machine, host.device()).unwrap();

    run(machine, &Args { ecam: layout::ECAM, ..demo() });

    assert_complete(&host.finish().unwrap());
}

/// Returns the device's rings as shared memory.
fn bare_rings(host: &Hypertrace) -> Channel<'_> {
    let rings = host.chip().memory().region(Region::Rings).unwrap();
    Channel::local(&host.chip().config_page(), rings.words()).unwrap()
}

#[test]
fn every_event_of_two_threads_is_in_the_session() {
    let (host, _dir) = start();

    run_on_threads(bare_rings(&host), VCPUS, &demo()).unwrap();

    assert_complete(&host.finish().unwrap());
}

#[test]
fn a_program_that_needs_a_machine_does_not_run_on_a_thread() {
    let (host, _dir) = start();

    let error = run_on_threads(bare_rings(&host), 1, &Args::new(Program::Fault)).unwrap_err();

    assert!(matches!(error, Error::Program { code: 127, .. }), "{error:?}");
    host.finish().unwrap();
}
