//! A machine that is reset again and again. A single session has all events of the machine's guests.

use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::Region;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{ClientMemory, Emit, Lease, LeaseInfo, Producer, ProducerState};
use hypertrace_device::{Chip, ChipConfig, Memory};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_test_support::kept::{Event, Value};
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::{babeltrace2, capability, kvm};
use kvm_vmm::{Answer, attach_window, record_in};
use std::sync::Arc;

const RESETS: u64 = 20;

/// Emits `events` as a guest does after its boot: its ring is empty, and its clock begins at `boot`. Returns
/// the number of events that found no room.
fn boot(host: &Host, generation: u64, boot: u64, events: u64) -> u64 {
    let rings = host.chip.memory().region(Region::Rings).unwrap().words();
    let memory = ClientMemory::of_rings(rings, 0, host.chip.geometry(), RingMode::Discard).unwrap();
    let state = ProducerState::new();
    let info = LeaseInfo { pid: 0, tid: 0, name: "cpu0" };
    let producer = Producer::lease(
        memory,
        &state,
        Lease::new(generation + 1, ClockKind::Tsc, boot, &info),
        false,
    );
    let mut lost = 0;
    for n in 0..events {
        let (site, fields) = event_type!("booted", generation, n);
        lost += u64::from(producer.emit((site, fields), || boot + 1 + n) != Emit::Recorded);
    }
    // The guest publishes the count of events that found no room.
    producer.refresh(boot + 1 + events);
    lost
}

/// Returns the value of an event's field.
fn number(event: &Event, name: &str) -> u64 {
    match event.fields.iter().find(|(key, _)| **key == *name) {
        Some((_, Value::Unsigned(value))) => *value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn totals_continue_and_no_event_is_lost_or_twice_over_resets() {
    let host = Host::new(geometry(2));
    let (mut emitted, mut lost) = (0, 0);
    for generation in 0..RESETS {
        // Some generations fill the ring, and a reset must not forget the total of lost events. A reset
        // drains the events that a generation leaves in the ring.
        let events = 500 + generation * 1_700;
        lost += boot(&host, generation, 1_000 + generation % 3 * 1_000_000, events);
        emitted += events;
        assert!(generation % 2 == 0 || !host.chip.drain_pass(std::time::Duration::from_secs(1)));
        host.chip.reset();
        let stream = host.session.summary();
        assert_eq!((stream.ring_events + stream.lost, stream.lost), (emitted, lost));
    }
    let recorded = host.finish();

    assert!(lost > 0, "some generation filled its ring");
    let summary = &recorded.summary;
    assert_eq!((summary.ring_events, summary.lost), (emitted - lost, lost), "{summary:?}");
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    let events = recorded.events();
    let events = events.iter().filter(|event| *event.name == *"booted");
    let numbers: Vec<_> =
        events.map(|event| (number(event, "generation"), number(event, "n"))).collect();
    assert_eq!(numbers.len() as u64, emitted - lost, "each has its type");
    assert!(numbers.is_sorted(), "in the order in which they happened");
    if let Some(count) = babeltrace2::count(&recorded.ctf()) {
        assert_eq!(count, summary.records);
    }
}

#[test]
fn a_new_chip_continues_the_session_of_another() {
    const CHIPS: u64 = 4;
    let mut host = Host::new(geometry(2));
    for number in 0..CHIPS {
        // The first guest's clock is ahead of the next guest's clock.
        assert_eq!(boot(&host, number, 1_000 + (number + 1) % 2 * 1_000_000, 500), 0);
        host.chip.reset();
        let memory = Memory::anonymous(geometry(2)).unwrap();
        let config = ChipConfig::default().with(|config| config.vcpu_clients = 2);
        host.chip = Arc::new(Chip::new(memory, &config, host.session.clone(), ()));
        host.chip.reset();
        assert!(host.chip.config_page().epoch > number, "the clock is another one");
    }
    let recorded = host.finish();

    let summary = &recorded.summary;
    assert_eq!((summary.ring_events, summary.lost), (CHIPS * 500, 0), "{summary:?}");
    assert_eq!((summary.faults.len(), summary.time_faults), (0, 0), "{summary:?}");
    let events = recorded.events();
    let booted = events.iter().filter(|event| *event.name == *"booted");
    let numbers: Vec<_> =
        booted.map(|event| (number(event, "generation"), number(event, "n"))).collect();
    assert_eq!(numbers.len() as u64, CHIPS * 500, "each has its type");
    assert!(numbers.is_sorted(), "in the order in which they happened");
}

#[test]
fn a_session_has_the_points_of_all_boots_of_a_machine() {
    const BOOTS: u64 = 5;
    let host = Host::new(geometry(2));
    let drain = host.drain();
    for boot in 0..BOOTS {
        let Some(mut machine) = kvm::machine(2) else { return };
        machine.observe(record_in(host.session.clone()));
        attach_window(&mut machine, &host.device, layout::DEVICE, Answer::Device).unwrap();
        let demo = Args {
            device: layout::DEVICE,
            events: 20_000,
            reference_points: 200,
            ..Args::new(Program::Demo)
        };
        kvm::run(machine, &demo);
        host.chip.reset();
        assert_eq!(host.chip.config_page().epoch, boot + 1);
    }
    drain.finish();
    let recorded = host.finish();

    let summary = &recorded.summary;
    assert_eq!((summary.lost, summary.time_faults), (0, 0), "{summary:?}");
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
    assert_eq!(summary.ring_events, BOOTS * 2 * 20_000);
    assert_eq!(summary.reference_points, BOOTS * 2 * 200);
    let events = recorded.events();
    assert!(events.iter().all(|event| !event.name.contains("untyped")));
    assert_eq!(events.iter().filter(|event| *event.name == *"round_done").count(), 2_000);
    if let Some(count) = babeltrace2::count(&recorded.ctf()) {
        assert_eq!(count, summary.records);
    }
    capability::used("kvm");
}
