//! Guest programs in a real KVM guest. Each test checks a property of the VMM.
#![allow(unsafe_code)] // the device's memory as the guest's

use crate::common;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{LIMIT, machine, run};
use hypertrace_abi::sink::{DrainSink, EventSink, ReferencePoint, SessionInfo, Status};
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Region};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_vmm::{Vm, kvm::KvmVm};
use kvm_vmm::{Error, Machine, VcpuError, VmmEvent};
use rustix::event::{EventfdFlags, eventfd};

/// Returns arguments for `count` stores of `width` bytes at `address`.
fn stores(count: u64, address: u64, width: u64) -> Args {
    Args { params: [count, address, width, 0], ..Args::new(Program::Store) }
}

/// The guest's stores so far, as pairs of offset and bytes.
type Stores = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Adds a window of one page that keeps every store.
fn record_stores(machine: &mut Machine, base: u64) -> Stores {
    let seen = Stores::default();
    let log = Arc::clone(&seen);
    machine.bus_mut().add(
        base..base + 0x1000,
        |_, data| data.fill(0),
        move |offset, data| log.lock().unwrap().push((offset, data.to_vec())),
    );
    seen
}

/// Returns a device, and the calls for its memory and its doorbell.
fn device(machine: &Machine) -> (Chip, KvmVm) {
    let geometry = Geometry { clients: 1, ..Geometry::default() };
    let memory = Memory::anonymous(geometry).unwrap();
    let config = ChipConfig::default().with(|config| config.has_doorbells = true);
    // SAFETY: each test keeps the chip until its machine has run.
    let calls = unsafe { machine.vm().calls() };
    (Chip::new(memory, &config, Untold, ()), calls.unwrap())
}

/// Sink of a device without clients.
struct Untold;

impl EventSink for Untold {
    fn session_info(&self) -> SessionInfo {
        SessionInfo::default()
    }

    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        panic!("{point:?}")
    }

    fn with_drain(&self, _: &mut dyn FnMut(&mut dyn DrainSink)) {}
}

#[test]
fn hello_prints_on_the_console() {
    let Some(machine) = machine(1) else { return };

    let outcome = run(machine, &Args::new(Program::Hello));

    assert_eq!(String::from_utf8_lossy(&outcome.console), "hello from vCPU 0\n");
}

#[test]
fn stores_of_every_width_arrive_with_their_offset_and_bytes() {
    for width in [1, 2, 4, 8] {
        let Some(mut machine) = machine(1) else {
            return;
        };
        let seen = record_stores(&mut machine, layout::DEVICE);

        run(machine, &stores(3, layout::DEVICE + 0x18, width));

        let bytes = |value: u64| value.to_le_bytes()[..width as usize].to_vec();
        let expected: Vec<_> = (0..3).map(|value| (0x18, bytes(value))).collect();
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}

#[test]
fn two_vcpus_run_at_once_with_sse() {
    let Some(machine) = machine(2) else { return };

    // The program waits for the other vCPU before it begins, so vCPUs that run one after the other would
    // never end.
    let outcome = run(machine, &Args::new(Program::Sse));

    let sum: f64 = (1..=1_000_000u32).map(|n| 1.0 / f64::from(n)).sum();
    assert_eq!(
        outcome.results.iter().map(|words| f64::from_bits(words[0])).collect::<Vec<_>>(),
        [sum, sum]
    );
}

#[test]
fn a_store_to_read_only_memory_goes_to_the_bus_and_not_to_the_memory() {
    let Some(mut machine) = machine(1) else {
        return;
    };
    let (chip, kvm) = device(&machine);
    let mapped = kvm.map(&chip.mapping(Region::Config, layout::DEVICE).unwrap());
    if mapped.as_ref().is_err_and(|why| why.kind() == ErrorKind::Unsupported) {
        common::capability::missing("kvm read-only memory", "no KVM_CAP_READONLY_MEM");
        return;
    }
    mapped.unwrap();
    let seen = record_stores(&mut machine, layout::DEVICE);

    run(machine, &stores(3, layout::DEVICE + 8, 8));

    assert_eq!(seen.lock().unwrap().len(), 3);
    let memory = chip.memory().region(Region::Config).unwrap();
    assert_eq!(memory.words()[1].load(Ordering::Relaxed), chip.config_page().words()[1]);
}

#[test]
fn memory_can_be_mapped_and_unmapped_while_the_guest_runs() {
    let Some(mut machine) = machine(1) else {
        return;
    };
    let (chip, kvm) = device(&machine);
    let chip = Arc::new(chip);
    let traps = Arc::new(AtomicU64::new(0));
    let (counter, mapped) = (Arc::clone(&traps), Arc::clone(&chip));
    // The tenth trapped store maps memory over the window, so no eleventh store traps.
    machine.bus_mut().add(
        layout::DEVICE..layout::DEVICE + 0x1000,
        |_, _| (),
        move |_, _| {
            if counter.fetch_add(1, Ordering::Relaxed) == 9 {
                kvm.map(&mapped.mapping(Region::Data, layout::DEVICE).unwrap()).unwrap();
            }
        },
    );

    run(machine, &stores(1000, layout::DEVICE, 8));

    assert_eq!(traps.load(Ordering::Relaxed), 10);
    let words = chip.memory().region(Region::Data).unwrap().words();
    assert_eq!(words[0].load(Ordering::Relaxed), 999);
}

#[test]
fn memory_that_is_unmapped_traps_and_its_slot_is_used_again() {
    let Some(mut machine) = machine(1) else {
        return;
    };
    let (chip, kvm) = device(&machine);
    for _ in 0..1000 {
        let memory = chip.mapping(Region::Data, layout::DEVICE).unwrap();
        kvm.map(&memory).unwrap();
        kvm.unmap(&memory);
    }
    let seen = record_stores(&mut machine, layout::DEVICE);

    run(machine, &stores(2, layout::DEVICE, 4));

    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[test]
fn a_doorbell_counts_every_value_of_every_length_and_traps_once_it_is_disarmed() {
    for length in [1, 2, 4, 8] {
        let Some(mut machine) = machine(1) else { return };
        let (_chip, kvm) = device(&machine);
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        kvm.arm(layout::DEVICE, bell.as_fd()).unwrap();
        let seen = record_stores(&mut machine, layout::DEVICE);

        run(machine, &stores(100, layout::DEVICE, length));

        let mut count = [0; 8];
        rustix::io::read(&bell, &mut count).unwrap();
        assert_eq!((u64::from_ne_bytes(count), seen.lock().unwrap().len()), (100, 0));
    }
    let Some(mut machine) = machine(1) else { return };
    let (_chip, kvm) = device(&machine);
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    kvm.arm(layout::DEVICE, bell.as_fd()).unwrap();
    kvm.disarm(layout::DEVICE, bell.as_fd());
    let seen = record_stores(&mut machine, layout::DEVICE);

    run(machine, &stores(5, layout::DEVICE, 8));

    assert_eq!(seen.lock().unwrap().len(), 5);
}

#[test]
fn a_guest_that_hangs_is_stopped_at_the_limit() {
    let Some(machine) = machine(2) else { return };
    let start = Instant::now();

    let error = machine.run(&Args::new(Program::Hang), Duration::from_millis(200)).unwrap_err();

    assert!(matches!(error, Error::TimedOut { running: 2, .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
}

#[test]
fn a_guests_panic_is_printed_on_the_console() {
    let Some(machine) = machine(1) else { return };

    let error = machine.run(&Args::new(Program::Panic), LIMIT).unwrap_err();

    let Error::Program { vcpu: 0, code: 101, console } = error else { panic!("{error:?}") };
    assert!(console.contains("asked to"), "{console}");
}

#[test]
fn a_guest_that_faults_is_reported_with_the_address() {
    let Some(machine) = machine(1) else { return };

    let error = machine.run(&Args::new(Program::Fault), LIMIT).unwrap_err();

    let Error::Vcpu { vcpu: 0, source: VcpuError::Exception { pc, address } } = error else {
        panic!("{error:?}")
    };
    assert!((layout::IMAGE..layout::IMAGE_END).contains(&pc), "{pc:#x}");
    assert_eq!(address, 1 << 40);
}

#[test]
fn an_observer_sees_every_exit_between_two_runs() {
    let Some(mut machine) = machine(1) else {
        return;
    };
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    machine.observe(Arc::new(move |event| log.lock().unwrap().push(event)));

    run(machine, &stores(2, layout::DEVICE, 8));

    let run = VmmEvent::Run { vcpu: 0 };
    let write = |gpa| VmmEvent::Exit { vcpu: 0, reason: "mmio_write", gpa };
    let device = write(layout::DEVICE);
    let start = VmmEvent::Start { vcpu: 0 };
    assert_eq!(
        *events.lock().unwrap(),
        [start, run, device, run, device, run, write(layout::CONTROL)]
    );
}

#[test]
fn a_device_that_panics_ends_the_run_of_every_vcpu() {
    let Some(mut machine) = machine(2) else {
        return;
    };
    machine.bus_mut().add(
        layout::DEVICE..layout::DEVICE + 8,
        |_, _| (),
        |_, _| panic!("a device's bug"),
    );
    let args = Args { ..stores(u64::MAX, layout::DEVICE, 8) };

    let error = machine.run(&args, LIMIT).unwrap_err();

    assert!(matches!(error, Error::Vcpu { source: VcpuError::Panicked, .. }), "{error:?}");
}

#[test]
fn loads_outside_of_all_windows_read_as_ones() {
    let mut bus = kvm_vmm::Bus::default();
    bus.add(0x1000..0x2000, |offset, data| data.fill(offset as u8), |_, _| ());
    let mut data = [0; 4];

    bus.read(0x1004, &mut data);
    assert_eq!(data, [4; 4]);
    bus.read(0x2000, &mut data);
    assert_eq!(data, [0xff; 4]);
}
