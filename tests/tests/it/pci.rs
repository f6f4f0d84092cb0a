//! The device as a PCI function. The guest finds out the sizes of the BARs, enables the BARs, and moves them.

use hypertrace_device::{Geometry, Region};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_test_support::kept::{Event, Value};
use hypertrace_tests::host::{Host, Recorded, geometry};
use hypertrace_tests::{babeltrace2, kvm};
use kvm_vmm::{Machine, attach_pci, record_in};

const VCPUS: u32 = 2;

/// Runs a guest program with the function on its bus.
fn run(args: &Args) -> Option<Recorded> {
    let mut machine: Machine = kvm::machine(VCPUS as usize)?;
    let host = Host::new(geometry(VCPUS));
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    attach_pci(&mut machine, &host.device).unwrap();
    kvm::run(machine, &Args { ecam: layout::ECAM, ..args.clone() });
    drain.finish();
    Some(host.finish())
}

/// Returns the addresses at which the VMM mapped (or unmapped) a region, in order.
fn places(events: &[Event], name: &str, region: Region) -> Vec<u64> {
    let number = |event: &Event, field: usize| match event.fields[field].1 {
        Value::Unsigned(n) | Value::Hex(n) => n,
        ref other => panic!("{other:?}"),
    };
    let of_region =
        |event: &&Event| &*event.name == name && number(event, 0) == region.bar() as u64;
    events.iter().filter(of_region).map(|event| number(event, 1)).collect()
}

/// Asserts that the session's own counts equal the numbers of its events.
fn assert_consistent(recorded: &Recorded, events: &[Event]) {
    let summary = &recorded.summary;
    assert_eq!(summary.records, events.len() as u64);
    let kinds = summary.ring_events + summary.reference_points;
    assert_eq!(kinds + summary.host_events + summary.leases + summary.time_faults, summary.records);
    let Some(read) = babeltrace2::read(&recorded.ctf()) else { return };
    assert_eq!(read.complete(), summary.records);
}

#[test]
fn a_guest_on_the_pci_bus_loses_nothing() {
    let demo = Args { events: 100_000, reference_points: 1_000, ..Args::new(Program::Demo) };
    let Some(recorded) = run(&demo) else { return };

    let events = recorded.events();
    let each = u64::from(VCPUS);
    let summary = &recorded.summary;
    assert_eq!(summary.ring_events, each * 100_000);
    assert_eq!(summary.reference_points, each * 1_000);
    assert_eq!((summary.lost, summary.faults.len()), (0, 0), "{summary:#?}");
    let geometry: Geometry = geometry(VCPUS);
    for region in Region::ALL {
        let at = places(&events, "bar_mapped", region);
        assert_eq!(at.len(), 1, "{region:?}");
        assert!(at[0].is_multiple_of(geometry.bar_size(region)), "{region:?} at {:#x}", at[0]);
    }
    assert_consistent(&recorded, &events);
}

#[test]
fn moving_bars_of_another_vcpu_harm_only_its_events() {
    let elsewhere = layout::DEVICE + layout::DEVICE_SIZE / 2;
    let moves = 50;
    let args =
        Args { events: moves, params: [elsewhere, 0, 0, 0], ..Args::new(Program::MoveTraced) };
    let Some(recorded) = run(&args) else { return };

    let events = recorded.events();
    let mapped = places(&events, "bar_mapped", Region::Rings);
    assert_eq!(mapped.iter().filter(|gpa| **gpa == elsewhere).count() as u64, moves);
    assert_eq!(places(&events, "bar_unmapped", Region::Rings).len() + 1, mapped.len());
    // Events are whole if they reached the rings at a time at which the rings were mapped.
    let traced = events.iter().filter(|event| event.name.starts_with("traced")).count();
    assert!(traced > 100, "{:#?}", recorded.summary);
    assert_consistent(&recorded, &events);
}
