// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function on a bus, which has an entry for each BAR or a range for all BARs.

use crate::common::{Traps, start};
use hypertrace_vmm::{
    BarForm, BarMove, Bars, Hypertrace, Mapping, PciFunction, Region, RestoreError, Vm,
};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Addresses that the bus allocates for the BARs, in the order of `Region::ALL`.
const BASES: [u64; 4] = [0xe000_0000, 0xe010_0000, 0xe020_0000, 0x10_0000_0000];

/// Indices of dwords in config space.
const COMMAND: usize = 1;
const BAR0: usize = 4;
const MEMORY_SPACE: [u8; 4] = [0b10, 0, 0, 0];

/// Makes a function without addresses. Then the bus allocates addresses for the BARs.
fn function() -> (tempfile::TempDir, Hypertrace, PciFunction) {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let (vm, bars) = (Arc::new(Traps), Bars::At([0; 4]));
    let function = PciFunction::new(hypertrace.device(), vm, bars, BarForm::default()).unwrap();
    function.set_bars(Bars::At(BASES));
    (dir, hypertrace, function)
}

#[test]
fn a_function_has_the_addresses_that_its_bus_allocates_later() {
    let (_dir, _hypertrace, function) = function();

    for _ in 0..2 {
        let low = |region: Region| function.read_register(BAR0 + region.bar()) & !0xf;
        let high = function.read_register(BAR0 + Region::Rings.bar() + 1);
        assert_eq!(Region::ALL.map(low), BASES.map(|base| base as u32));
        assert_eq!(high, (BASES[3] >> 32) as u32);
        assert_eq!(function.write_register(COMMAND, 0, &MEMORY_SPACE), []);
        function.reset();
    }
}

#[test]
fn a_bar_that_moves_is_named_once_the_guest_decodes_it() {
    let (_dir, _hypertrace, function) = function();

    for bar in function.bars() {
        let from = BASES[bar.region as usize];
        let to = from + bar.size;
        let store = function.write_register(BAR0 + bar.index, 0, &(to as u32).to_le_bytes());
        let moves = function.write_register(COMMAND, 0, &MEMORY_SPACE);
        function.restore_bar(bar.region);
        function.write_register(COMMAND, 0, &[0; 4]);

        assert_eq!((store, moves), (vec![], vec![BarMove { bar, from, to }]));
    }
}

/// A machine that keeps the mapped addresses. If `function` is set, another vCPU turns memory space off
/// during the next mapping.
#[derive(Default)]
struct Interrupted {
    mapped: Mutex<Vec<u64>>,
    function: Mutex<Option<Arc<PciFunction>>>,
    vcpu: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Vm for Interrupted {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        if let Some(function) = self.function.lock().unwrap().take() {
            let vcpu = thread::spawn(move || _ = function.write_register(COMMAND, 0, &[0; 4]));
            // Waits for a limited time, because the vCPU may have to wait for this thread.
            let begin = Instant::now();
            while !vcpu.is_finished() && begin.elapsed() < Duration::from_millis(50) {
                thread::yield_now();
            }
            *self.vcpu.lock().unwrap() = Some(vcpu);
        }
        self.mapped.lock().unwrap().push(memory.gpa);
        Ok(())
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        self.mapped.lock().unwrap().retain(|gpa| *gpa != memory.gpa);
    }

    fn arm(&self, _: u64, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn disarm(&self, _: u64, _: BorrowedFd<'_>) {}
}

#[test]
fn a_bar_that_is_turned_off_while_the_bus_moves_it_is_not_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let vm = Arc::new(Interrupted::default());
    let (bars, form) = (Bars::At(BASES), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), vm.clone(), bars, form).unwrap();
    let function = Arc::new(function);
    function.write_register(COMMAND, 0, &MEMORY_SPACE);
    assert_eq!(vm.mapped.lock().unwrap().len(), 3, "all but the registers");
    let to = BASES[1] as u32 + (1 << 24);
    let moves = function.write_register(BAR0 + Region::Data.bar(), 0, &to.to_le_bytes());
    let [BarMove { bar, to, .. }] = moves[..] else { panic!("{moves:?}") };

    *vm.function.lock().unwrap() = Some(Arc::clone(&function));
    function.move_bar(bar.region, to).unwrap();
    vm.vcpu.lock().unwrap().take().unwrap().join().unwrap();

    assert_eq!(*vm.mapped.lock().unwrap(), [0; 0]);
}

/// A machine that uses the function while it maps a BAR, as a VMM with one lock for its whole bus may do.
#[derive(Default)]
struct Reentrant(Mutex<Option<Arc<PciFunction>>>, Mutex<Vec<(Region, bool)>>);

impl Reentrant {
    fn called(&self, region: Region, is_mapped: bool) {
        self.1.lock().unwrap().push((region, is_mapped));
        let Some(function) = self.0.lock().unwrap().clone() else { return };
        function.read_register(COMMAND);
        function.write_register(COMMAND, 0, &MEMORY_SPACE);
        function.save();
    }
}

impl Vm for Reentrant {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        self.called(memory.region, true);
        Ok(())
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        self.called(memory.region, false);
    }

    fn arm(&self, _: u64, _: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn disarm(&self, _: u64, _: BorrowedFd<'_>) {}
}

#[test]
fn calls_of_the_hypervisor_may_use_the_function() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let vm = Arc::new(Reentrant::default());
    let (bars, form) = (Bars::At(BASES), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), vm.clone(), bars, form).unwrap();
    let function = Arc::new(function);
    *vm.0.lock().unwrap() = Some(Arc::clone(&function));
    let regions = [Region::Config, Region::Data, Region::Rings];

    function.write_register(COMMAND, 0, &MEMORY_SPACE);
    assert_eq!(*vm.1.lock().unwrap(), regions.map(|region| (region, true)));
    assert_eq!(Region::ALL.map(|region| function.address(region)), BASES.map(Some));

    // The guest turns memory space off, and the VMM's `unmap` turns memory space on again.
    vm.1.lock().unwrap().clear();
    function.write_register(COMMAND, 0, &[0; 4]);
    let calls = std::mem::take(&mut *vm.1.lock().unwrap());
    assert_eq!(calls.iter().filter(|call| call.1).count(), calls.len() / 2);
    assert_eq!(Region::ALL.map(|region| function.address(region)), BASES.map(Some));
}

/// A machine in which another vCPU turns memory space on or off during each call.
#[derive(Default)]
struct Toggling {
    function: Mutex<Option<Arc<PciFunction>>>,
    mapped: Mutex<Vec<Region>>,
    calls: AtomicU32,
}

impl Toggling {
    fn toggle(&self) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(function) = self.function.lock().unwrap().clone() else { return };
        function.write_register(
            COMMAND,
            0,
            if call.is_multiple_of(2) { &[0; 4] } else { &MEMORY_SPACE },
        );
    }
}

impl Vm for Toggling {
    fn map(&self, memory: &Mapping<'_>) -> io::Result<()> {
        self.mapped.lock().unwrap().push(memory.region);
        self.toggle();
        Ok(())
    }

    fn unmap(&self, memory: &Mapping<'_>) {
        self.mapped.lock().unwrap().retain(|region| *region != memory.region);
        self.toggle();
    }

    fn arm(&self, _: u64, _: BorrowedFd<'_>) -> io::Result<()> {
        self.toggle();
        Ok(())
    }

    fn disarm(&self, _: u64, _: BorrowedFd<'_>) {
        self.toggle();
    }
}

#[test]
fn a_guest_that_changes_its_bars_without_end_keeps_no_thread_and_its_bars_trap() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let vm = Arc::new(Toggling::default());
    let (bars, form) = (Bars::At(BASES), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), vm.clone(), bars, form).unwrap();
    let function = Arc::new(function);
    *vm.function.lock().unwrap() = Some(Arc::clone(&function));

    function.write_register(COMMAND, 0, &MEMORY_SPACE);

    assert_eq!(vm.calls.load(Ordering::Relaxed), 16);
    assert_eq!(*vm.mapped.lock().unwrap(), []);
    // From here on, the other vCPU makes no changes, and the guest enables memory space once more.
    *vm.function.lock().unwrap() = None;
    function.write_register(COMMAND, 0, &MEMORY_SPACE);
    assert_eq!(vm.mapped.lock().unwrap().len(), 3);
}

#[test]
fn bars_that_change_their_places_are_unmapped_before_they_are_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let vm = Arc::new(Reentrant::default());
    let (bars, form) = (Bars::Within(0..1 << 40), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), vm.clone(), bars, form).unwrap();
    let put = |region: Region, base: u64| {
        function.write_register(BAR0 + region.bar(), 0, &(base as u32).to_le_bytes());
    };
    let place = |config, data| {
        function.write_register(COMMAND, 0, &[0; 4]);
        put(Region::Config, config);
        put(Region::Data, data);
        function.write_register(COMMAND, 0, &MEMORY_SPACE);
        function.save()
    };
    let before = place(BASES[0], BASES[1]);
    place(BASES[1], BASES[0]);
    vm.1.lock().unwrap().clear();

    function.load(&before).unwrap();

    let of = |is_mapped| [(Region::Config, is_mapped), (Region::Data, is_mapped)];
    assert_eq!(*vm.1.lock().unwrap(), [of(false), of(true)].concat());
}

#[test]
fn a_bar_that_leaves_the_address_of_another_one_is_mapped_where_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let hypertrace = start(&dir.path().join("s"));
    let vm = Arc::new(Interrupted::default());
    let (bars, form) = (Bars::At(BASES), BarForm::default());
    let function = PciFunction::new(hypertrace.device(), vm.clone(), bars, form).unwrap();
    function.write_register(COMMAND, 0, &MEMORY_SPACE);
    let place = |region: Region, base: u64| {
        let moves = function.write_register(BAR0 + region.bar(), 0, &(base as u32).to_le_bytes());
        for BarMove { bar, to, .. } in moves {
            function.move_bar(bar.region, to).unwrap();
        }
    };

    // Both BARs are at one address for a while.
    place(Region::Config, BASES[1]);
    place(Region::Data, BASES[1] + (1 << 24));

    assert!(vm.mapped.lock().unwrap().contains(&(BASES[1] + (1 << 24))));
}

#[test]
fn a_state_of_another_function_changes_nothing() {
    let (_dir, _hypertrace, function) = function();
    let before = function.save();
    let mut lie = before.clone();
    lie.bars = Bars::At([0x1000; 4]);
    lie.config.header[0] ^= 1;
    let mut other_bus = before.clone();
    other_bus.bars = Bars::Within(0..u64::MAX);

    for state in [lie, other_bus] {
        assert!(function.load(&state).is_err());
        assert_eq!(function.save(), before);
    }
}

#[test]
fn a_state_does_not_widen_the_range_of_a_bus() {
    let (_dir, hypertrace, _) = function();
    let bars = Bars::Within(1 << 32..1 << 33);
    let function =
        PciFunction::new(hypertrace.device(), Arc::new(Traps), bars, BarForm::default()).unwrap();
    let before = function.save();
    let mut wider = before.clone();
    wider.bars = Bars::Within(0..1 << 33);

    let refused = function.load(&wider).unwrap_err();

    let what = "begin of the BARs' range";
    assert_eq!(refused, RestoreError::Differs { what, expected: 1 << 32, found: 0 });
    assert_eq!(function.save(), before);
}

#[test]
fn a_dword_beyond_config_space_is_none_of_it() {
    let (_dir, _hypertrace, function) = function();
    let before = function.save();

    // If such a register number is multiplied by four, the product may wrap around to an offset in the
    // header.
    for register in [1 << 10, 1 << 62, (1 << 62) + COMMAND, usize::MAX] {
        for offset in [0, 1, 4, u64::MAX - 3] {
            assert_eq!(function.write_register(register, offset, &MEMORY_SPACE), []);
        }
        assert_eq!(function.read_register(register), 0);
    }

    assert_eq!(function.save(), before);
}
