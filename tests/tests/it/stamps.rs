//! Kernel-stamped points: the host's kernel traces each stamp of the session with its own time.

use hypertrace_abi::layout::{Region, register};
use hypertrace_abi::record::id;
use hypertrace_guest::{Args, Program, layout};
use hypertrace_tests::host::{Host, Recorded, geometry};
use hypertrace_tests::tracefs::{Instance, Traced};
use hypertrace_tests::{capability, kvm};
use hypertrace_timeline::Domain;
use kvm_vmm::{Answer, attach_window, record_in};
use std::collections::BTreeMap;

const VCPUS: u32 = 2;
const STAMPS: u64 = 500;

/// Returns the raw timestamps of a client's stamps in the session.
fn stamps(recorded: &Recorded, client: u32) -> Vec<u64> {
    let session = recorded.open();
    let own = |s: &&hypertrace_timeline::Stream| (s.domain, s.client) == (Domain::Guest, client);
    let mut records = session.streams().iter().find(own).unwrap().records(session.classes());
    let mut found = Vec::new();
    while let Some(record) = records.read().unwrap() {
        if record.class.id == id::STAMP {
            let clocks = &session.json().clocks;
            let clock = clocks.iter().find(|clock| clock.id == record.packet.stream_id).unwrap();
            found.push(clock.base + record.timestamp);
        }
    }
    found
}

/// Returns the values that the kernel saw each thread store to an address, in order of time. Asserts
/// that there was no other access.
fn traced(kernel: &[Traced], gpa: u64) -> Vec<Vec<u64>> {
    let at = format!(" gpa {gpa:#x} ");
    let mut threads = BTreeMap::<u32, Vec<(u64, u64)>>::new();
    for Traced { thread, time, text } in kernel {
        if format!("{text} ").contains(&at) {
            let store = format!("kvm_mmio: mmio write len 8 gpa {gpa:#x} val 0x");
            let value = text.strip_prefix(&store).unwrap_or_else(|| panic!("{text}"));
            let value = u64::from_str_radix(value.trim(), 16).unwrap();
            threads.entry(*thread).or_default().push((*time, value));
        }
    }
    let values = threads.into_values().map(|mut stores| {
        stores.sort();
        stores.into_iter().map(|(_, value)| value).collect()
    });
    values.collect()
}

#[test]
fn the_kernels_trace_has_every_stamp_with_its_value_and_in_its_order() {
    let Some(mut machine) = kvm::machine(VCPUS as usize) else { return };
    let Some(tracefs) = Instance::recording("kvm/kvm_mmio") else { return };
    let host = Host::new(geometry(VCPUS));
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    attach_window(&mut machine, &host.chip, &host.doorbells, layout::DEVICE, Answer::Device)
        .unwrap();

    kvm::run(
        machine,
        &Args { device: layout::DEVICE, stamps: STAMPS, ..Args::new(Program::Stamps) },
    );
    let kernel = tracefs.events();
    drain.finish();
    let geometry = *host.chip.geometry();
    let recorded = host.finish();

    assert_eq!(recorded.summary.stamps, u64::from(VCPUS) * STAMPS);
    let control = layout::DEVICE + geometry.window_offset(Region::Control);
    let register = control + geometry.shared_registers_offset() + register::STAMP;
    let mut traced = traced(&kernel, register);
    // Each vCPU is a client, and a thread.
    let mut stamps: Vec<_> = (0..VCPUS).map(|client| stamps(&recorded, client)).collect();
    assert!(stamps.iter().all(|stamps| stamps.len() as u64 == STAMPS));
    traced.sort();
    stamps.sort();
    assert_eq!(traced, stamps);
    capability::used("tracefs");
}
