//! The hypertrace device in a real KVM guest: in its window, and on the PCI bus.

use crate::common;
use std::sync::{Arc, Mutex};

use common::{machine, run};
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::sink::{DrainSink, Drained, EventSink, ReferencePoint, SessionInfo, Status};
use hypertrace_device::{Chip, ChipConfig, Geometry, Kick, Memory, Region};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_vmm::Device;
use kvm_vmm::{Answer, VmmEvent, attach_pci, attach_window};

/// Sink that keeps reference points, and takes no records out of rings.
#[derive(Default)]
struct Recorder {
    points: Mutex<Vec<(u32, u32, Vec<u64>)>>,
}

impl EventSink for Recorder {
    fn session_info(&self) -> SessionInfo {
        SessionInfo::default()
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.points.lock().unwrap().push((point.client, point.id, point.words.to_vec()));
        Status::Recorded
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Recorder {
    fn drain(&mut self, _: u32, _: &mut Consumer<'_>) -> Drained {
        Drained::default()
    }
}

fn device() -> (Device, Arc<Recorder>) {
    let memory = Memory::anonymous(Geometry { clients: 4, ..Geometry::default() }).unwrap();
    let kick = Kick::new().unwrap();
    let config = ChipConfig::default().with(|config| {
        config.vcpu_clients = 2;
        config.has_doorbells = true;
    });
    let waker = kick.clone();
    let sink = Arc::<Recorder>::default();
    (Device::new(Arc::new(Chip::new(memory, &config, sink.clone(), waker)), kick), sink)
}

/// Returns the events of the 2016 driver with four clients and two events each, sorted by client.
fn legacy_events() -> Vec<(u32, u32, Vec<u64>)> {
    let mut events = Vec::new();
    for client in 0..4u64 {
        for number in 0..2 {
            let first = client << 32 | number;
            // hypertrace(client:u32,args:[u64])
            let mut words = vec![client, 8, first];
            words.extend((2..=8).map(|arg| first + arg));
            events.push((client as u32, hypertrace_abi::record::id::HYPERTRACE, words));
        }
    }
    events
}

fn sorted_points(sink: &Recorder) -> Vec<(u32, u32, Vec<u64>)> {
    let mut points = sink.points.lock().unwrap().clone();
    points.sort_by_key(|(client, _, words)| (*client, words[2]));
    points
}

#[test]
fn a_driver_of_2016_works_in_the_window() {
    let Some(mut machine) = machine(2) else {
        return;
    };
    let (device, sink) = device();
    attach_window(&mut machine, &device, layout::DEVICE, Answer::Device).unwrap();
    // The driver needs only the regions' addresses; the library writes them to the board.
    let args = Args {
        device: layout::DEVICE,
        events: 2,
        params: [4, 0, 0, 0],
        ..Args::new(Program::Legacy)
    };

    run(machine, &args);

    assert_eq!(sorted_points(&sink), legacy_events());
}

#[test]
fn a_driver_of_2016_works_on_the_pci_bus() {
    let Some(mut machine) = machine(2) else {
        return;
    };
    let (device, sink) = device();
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    machine.observe(Arc::new(move |event| log.lock().unwrap().push(event)));
    attach_pci(&mut machine, &device).unwrap();
    let args =
        Args { ecam: layout::ECAM, events: 2, params: [4, 0, 0, 0], ..Args::new(Program::Legacy) };

    run(machine, &args);

    assert_eq!(sorted_points(&sink), legacy_events());
    let events = events.lock().unwrap();
    for region in Region::ALL {
        let mapped = events.iter().filter(|event| {
            matches!(event, VmmEvent::BarMapped { region: r, direct: true, .. } if *r == region)
        });
        assert_eq!(mapped.count(), 1, "{region:?}");
    }
}

#[test]
fn bars_can_be_moved_while_another_vcpu_uses_them() {
    let Some(mut machine) = machine(2) else {
        return;
    };
    let (device, _) = device();
    let mapped = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&mapped);
    machine.observe(Arc::new(move |event| {
        if let VmmEvent::BarMapped { region: Region::Rings, gpa, direct: true } = event {
            log.lock().unwrap().push(gpa);
        }
    }));
    attach_pci(&mut machine, &device).unwrap();
    let elsewhere = layout::DEVICE + layout::DEVICE_SIZE / 2;
    let args = Args {
        ecam: layout::ECAM,
        events: 200,
        params: [elsewhere, 0, 0, 0],
        ..Args::new(Program::MoveBars)
    };

    run(machine, &args);

    let mapped = mapped.lock().unwrap();
    assert_eq!(mapped.iter().filter(|gpa| **gpa == elsewhere).count(), 200);
    assert_eq!(mapped.iter().filter(|gpa| **gpa != elsewhere).count(), 201);
}

#[test]
fn a_null_device_takes_the_same_stores_and_records_nothing() {
    let Some(mut machine) = machine(1) else {
        return;
    };
    let (device, sink) = device();
    attach_window(&mut machine, &device, layout::DEVICE, Answer::Null).unwrap();
    let args = Args {
        device: layout::DEVICE,
        reference_points: 100,
        ..Args::new(Program::ReferencePoints)
    };

    let outcome = run(machine, &args);

    assert_eq!(outcome.results[0][1], 0, "no point was answered");
    assert_eq!(sink.points.lock().unwrap().len(), 0);
}

#[test]
fn reference_points_of_two_vcpus_arrive_with_replies() {
    let Some(mut machine) = machine(2) else {
        return;
    };
    let (device, sink) = device();
    attach_window(&mut machine, &device, layout::DEVICE, Answer::Device).unwrap();
    let args = Args {
        device: layout::DEVICE,
        reference_points: 500,
        ..Args::new(Program::ReferencePoints)
    };

    let outcome = run(machine, &args);

    assert_eq!(outcome.results.iter().map(|words| words[1]).collect::<Vec<_>>(), [500, 500]);
    for client in 0..2 {
        let points = sink.points.lock().unwrap();
        let indexes: Vec<u64> = points
            .iter()
            .filter(|point| point.0 == client)
            .map(|point| point.2[0])
            .skip(1)
            .collect();
        assert_eq!(indexes, (0..500).collect::<Vec<_>>());
    }
}
