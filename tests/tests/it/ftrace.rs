//! The `ftrace` backend. The kernel's trace alone shows a guest's store, the exit, the VMM's event, and the
//! return to the guest.

use std::collections::BTreeMap;

use hypertrace_abi::layout::{PAGE, Region, register};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_tests::child;
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::tracefs::{Instance, Traced};
use hypertrace_tests::{capability, kvm};
use hypertrace_trace::backend::{self, Backends, ftrace};
use hypertrace_trace::control::set_declared;
use kvm_vmm::{Answer, attach_window, record_in};

const VCPUS: u32 = 2;
const POINTS: u64 = 300;

#[test]
fn each_reference_point_is_between_its_exit_and_the_next_entry() {
    child::in_own_process(|| {
        let Some(mut machine) = kvm::machine(VCPUS as usize) else { return };
        let Some(tracefs) = Instance::recording("kvm") else { return };
        let host = Host::new(geometry(VCPUS));
        set_declared(&"*".parse().unwrap(), false);
        set_declared(&"guest_hypertrace".parse().unwrap(), true);
        ftrace::open(tracefs.dir()).unwrap();
        backend::add(Backends::FTRACE);
        let drain = host.drain();
        machine.observe(record_in(host.session.clone()));
        attach_window(&mut machine, &host.device, layout::DEVICE, Answer::Device).unwrap();
        let args = Args { reference_points: POINTS, ..Args::new(Program::ReferencePoints) };

        kvm::run(machine, &Args { device: layout::DEVICE, ..args });

        backend::remove(Backends::FTRACE);
        let kernel = tracefs.events();
        drain.finish();
        let geometry = *host.chip.geometry();
        let pages = layout::DEVICE
            + geometry.window_offset(Region::Control)
            + geometry.control_pages_offset();
        let recorded = host.finish();
        // KVM on hardware fires kvm_entry. A nested KVM may not.
        let has_entry = kernel.iter().any(|event| event.text.starts_with("kvm_entry: "));
        for client in 0..VCPUS {
            let emit = pages + u64::from(client) * PAGE + register::EMIT;
            let points = recorded.client(client).reference_points;
            assert!(points >= POINTS);
            assert_eq!(pictures(&kernel, client, emit, has_entry), points, "client {client}");
        }
        assert_eq!(ftrace::lost(), 0);
        capability::used("tracefs");
    });
}

/// Counts a client's stores to EMIT, and asserts that the expected events follow each store.
fn pictures(kernel: &[Traced], client: u32, emit: u64, has_entry: bool) -> u64 {
    let store = format!("kvm_mmio: mmio write len 8 gpa {emit:#x} val 0x");
    let mark = format!("tracing_mark_write: guest_hypertrace vcpu {client} client {client} args ");
    let mut count = 0;
    // Whether KVM's own event says that the thread's virtual CPU has left the guest.
    let mut has_left = BTreeMap::new();
    for (at, event) in kernel.iter().enumerate() {
        let left = has_left.entry(event.thread).or_insert(false);
        match &event.text {
            text if text.starts_with("kvm_exit: ") => *left = true,
            text if text.starts_with("kvm_entry: ") => *left = false,
            text if text.starts_with("tracing_mark_write: ") => {
                assert!(*left || !has_entry, "{event:?}");
            }
            _ => {}
        }
        let Some(value) = event.text.strip_prefix(&store) else { continue };
        assert!(*left || !has_entry, "{event:?}");
        count += 1;
        // The upper half is the hash of the event's name.
        let number = u64::from_str_radix(value.trim(), 16).map(|value| value & 0xffff_ffff);
        assert_eq!(number, Ok(count), "its number: {}", event.text);
        // Events about the FPU's registers are ignored.
        let own =
            |other: &&Traced| other.thread == event.thread && !other.text.starts_with("kvm_fpu: ");
        let mut next = kernel[at + 1..].iter().filter(own);
        let mut expect = |what: &dyn Fn(&str) -> bool| {
            let found = next.next().unwrap_or_else(|| panic!("nothing after {event:?}"));
            assert!(what(&found.text), "{count}: {found:?} after {event:?}");
        };
        expect(&|text| text.starts_with("kvm_userspace_exit: reason KVM_EXIT_MMIO"));
        expect(&|text| text.starts_with(&mark));
        expect(&|text| text.starts_with(if has_entry { "kvm_entry: " } else { "kvm_" }));
    }
    count
}
