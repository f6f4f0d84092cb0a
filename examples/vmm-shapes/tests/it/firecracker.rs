//! The MMIO window on a bus of Firecracker's shape.

use crate::common;
use std::sync::{Arc, Barrier};

use common::{MAGIC, POINT, config, geometry, kick, start};
use hypertrace_vmm::test_utils::FakeVm;
use hypertrace_vmm::{Counter, Error, Geometry, Hypertrace, Region, Saved, SessionConfig};
use vmm_shapes::attach_window;
use vmm_shapes::mmio_bus::Bus;

const BASE: u64 = 0xd000_0000;

fn attach(hypertrace: &Hypertrace) -> (FakeVm, Bus) {
    let (machine, mut bus) = (FakeVm::default(), Bus::default());
    attach_window(hypertrace.device(), &machine, &mut bus, BASE).unwrap();
    (machine, bus)
}

fn control() -> u64 {
    BASE + geometry().window_offset(Region::Control)
}

#[test]
fn a_window_takes_points_and_kicks() {
    let (_dir, hypertrace) = start(None);
    let (machine, bus) = attach(&hypertrace);

    let mut magic = [0; 8];
    assert!(bus.read(BASE + MAGIC.0, &mut magic));
    assert!(bus.write(control() + POINT, &7u64.to_le_bytes()));
    assert!(bus.write(control() + kick(), &0u64.to_le_bytes()));

    assert_eq!(magic, MAGIC.1);
    assert_eq!(machine.mapped().len(), 3);
    assert!(machine.armed().contains(&(control() + kick())));
    assert_eq!(hypertrace.chip().count(Counter::KickTrapped), 1);
    assert_eq!(hypertrace.finish().unwrap().reference_points, 1);
}

#[test]
fn a_window_works_again_after_a_reset() {
    let (_dir, hypertrace) = start(None);
    let (_machine, bus) = attach(&hypertrace);
    bus.write(control() + POINT, &7u64.to_le_bytes());

    hypertrace.chip().reset();
    bus.write(control() + POINT, &8u64.to_le_bytes());

    assert_eq!(hypertrace.finish().unwrap().reference_points, 2);
}

#[test]
fn a_window_is_restored() {
    let (_dir, hypertrace) = start(None);
    let (_machine, bus) = attach(&hypertrace);
    // The guest stores the lower half of the register before the snapshot, and the upper half after the
    // restore.
    bus.write(control() + POINT, &7u32.to_le_bytes());
    let mut stream = Vec::new();
    hypertrace.save().unwrap().write(&mut stream).unwrap();
    stream.extend(b"what the VMM saves after it");
    assert_eq!(hypertrace.finish().unwrap().reference_points, 0);

    let mut stream = &stream[..];
    let saved = Saved::read(&mut stream, &geometry()).unwrap();
    assert_eq!(stream, b"what the VMM saves after it");
    let (_dir, hypertrace) = start(Some(&saved));
    let (_machine, bus) = attach(&hypertrace);
    bus.write(control() + POINT + 4, &0u32.to_le_bytes());

    assert_eq!(hypertrace.finish().unwrap().reference_points, 1);
}

#[test]
fn a_snapshot_of_another_device_is_refused_by_name() {
    let (dir, hypertrace) = start(None);
    let mut saved = hypertrace.save().unwrap();
    saved.chip.ring_bytes *= 2;

    let session = SessionConfig::new(dir.path().join("other"));
    let error = Hypertrace::start(session, config()).unwrap().load(&saved).unwrap_err();

    assert!(error.to_string().contains("ring size"), "{error}");
}

#[test]
fn the_command_line_has_the_address_of_a_window_in_a_form_that_guests_take() {
    let (_dir, hypertrace) = start(None);
    let (machine, mut bus) = (FakeVm::default(), Bus::default());

    let parameter = attach_window(hypertrace.device(), &machine, &mut bus, BASE).unwrap();

    assert_eq!(parameter, "hypertrace.mmio=0xd0000000");
}

#[test]
fn each_of_64_vcpus_has_a_client_and_a_ring() {
    const VCPUS: u32 = 64;
    let dir = tempfile::tempdir().unwrap();
    let session = SessionConfig::new(dir.path().join("s"));
    let config = config().with(|config| {
        config.vcpus = VCPUS;
        config.geometry = geometry().for_vcpus(VCPUS);
    });
    let hypertrace = Hypertrace::start(session, config).unwrap();
    let (_machine, bus) = attach(&hypertrace);
    let control = BASE + hypertrace.chip().geometry().window_offset(Region::Control);

    // Each thread waits for the others before it ends, so no thread gives its ring back before all threads
    // have made their points.
    let all = Barrier::new(VCPUS as usize);
    std::thread::scope(|scope| {
        for vcpu in 0..u64::from(VCPUS) {
            let (all, bus) = (&all, &bus);
            scope.spawn(move || {
                bus.write(control + 8 * vcpu, &vcpu.to_le_bytes());
                all.wait();
            });
        }
    });

    let summary = hypertrace.finish().unwrap();
    assert_eq!((summary.reference_points, summary.lost), (u64::from(VCPUS), 0));
}

#[test]
fn a_window_takes_points_of_several_threads_without_a_lock() {
    let (_dir, hypertrace) = start(None);
    let (_machine, bus) = attach(&hypertrace);
    let bus = Arc::new(bus);

    std::thread::scope(|scope| {
        for vcpu in 0..u64::from(common::VCPUS) {
            let bus = &bus;
            scope.spawn(move || bus.write(control() + 8 * vcpu, &vcpu.to_le_bytes()));
        }
    });

    assert_eq!(hypertrace.finish().unwrap().reference_points, u64::from(common::VCPUS));
}

#[test]
fn a_start_that_fails_leaves_the_directory_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session");
    let session = || SessionConfig::new(&path).with(|config| config.file_bytes = 1 << 20);
    let geometry = Geometry { ring_bytes: 3, ..geometry() };
    let impossible = config().with(|config| config.geometry = geometry);

    let failed = Hypertrace::start(session(), impossible).unwrap_err();

    assert!(matches!(failed, Error::Memory(_)), "{failed}");
    Hypertrace::start(session(), config()).unwrap().finish().unwrap();
}
