// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The fake machine and the fake guest find mistakes in a VMM's code.

use crate::common::{Traps, start};
use hypertrace_vmm::test_utils::{Bus, FakeGuest, FakeVm};
use hypertrace_vmm::{Counter, Mapping, Region, Vm, Window};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;

const BASE: u64 = 0xd000_0000;

/// A bus with a window at [`BASE`].
struct Mmio(Window);

impl Bus for Mmio {
    fn read(&self, gpa: u64, data: &mut [u8]) {
        self.0.read(gpa - BASE, data);
    }

    fn write(&self, gpa: u64, data: &[u8]) {
        self.0.write(gpa - BASE, data);
    }
}

/// Runs a guest on a device that `placed_by` places. Returns how many events and how many points were
/// recorded, and whether accesses to the device's memory trapped.
fn run(placed_by: &dyn Vm, vm: &FakeVm) -> (u64, u64, bool) {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let window = hypertrace.device().place_window(placed_by, BASE);
    let window = window.unwrap_or_else(|_| Window::new(hypertrace.chip().clone()));
    let bus = Mmio(window);

    let guest = FakeGuest::at_window(vm, &bus, BASE).unwrap();
    assert_eq!(guest.emit(1, 20), 20);
    assert!(guest.point(0) && guest.point(1));
    assert_eq!(guest.emit(1, 5), 5);

    let traps = hypertrace.chip().count(Counter::MemoryTrapped) > 0;
    let summary = hypertrace.finish().unwrap();
    assert_eq!(summary.lost, 0);
    (summary.ring_events, summary.reference_points, traps)
}

#[test]
fn a_guest_records_the_same_with_mapped_memory_and_with_traps() {
    let vm = FakeVm::default();
    assert_eq!(run(&vm, &vm), (25, 2, false));
    assert_eq!(run(&Traps, &FakeVm::default()), (25, 2, true));
}

/// A machine that refuses to map one region, with this error.
struct Refusing(FakeVm, Region, ErrorKind);

impl Vm for Refusing {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        match memory.region == self.1 {
            true => Err(self.2.into()),
            false => self.0.map(memory),
        }
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        self.0.unmap(memory);
    }

    fn arm(&self, gpa: u64, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.0.arm(gpa, eventfd)
    }

    fn disarm(&self, gpa: u64, eventfd: BorrowedFd<'_>) {
        self.0.disarm(gpa, eventfd);
    }
}

#[test]
fn a_window_traps_where_the_hypervisor_cannot_map_and_is_nowhere_if_it_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let device = hypertrace.device();
    let regions = |vm: &Refusing| vm.0.mapped().into_iter().map(|(region, _)| region);

    // A KVM without support for read-only memory.
    let without = Refusing(FakeVm::default(), Region::Config, ErrorKind::Unsupported);
    device.place_window(&without, BASE).unwrap();
    assert!(regions(&without).eq([Region::Data, Region::Rings]));

    let full = Refusing(FakeVm::default(), Region::Rings, ErrorKind::OutOfMemory);
    let refused = device.place_window(&full, BASE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OutOfMemory);
    assert_eq!((full.0.mapped(), full.0.armed()), (vec![], vec![]));
}

#[test]
fn a_machine_refuses_what_kvm_refuses_and_forgets_what_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let (device, vm) = (hypertrace.device(), FakeVm::default());

    device.place(&vm, Region::Data, BASE).unwrap();
    device.place(&vm, Region::Rings, BASE).unwrap_err();
    device.place(&vm, Region::Control, BASE).unwrap();
    assert_eq!(vm.mapped(), [(Region::Data, BASE)]);
    assert_eq!(vm.armed().len(), 1);

    device.remove(&vm, Region::Data, BASE);
    device.remove(&vm, Region::Control, BASE);
    assert_eq!((vm.mapped(), vm.armed()), (vec![], vec![]));
    assert!(!vm.store(BASE, &[1]) && !vm.load(BASE, &mut [0]));
}
