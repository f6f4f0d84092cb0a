// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function on a bus that has an entry for each BAR.

use crate::common::{Traps, start};
use hypertrace_vmm::{BarForm, Bars, Hypertrace, Move, PciFunction, Region};
use std::sync::Arc;

/// Addresses that the bus allocates, in the order of `Region::ALL`.
const BASES: [u64; 4] = [0xe000_0000, 0xe010_0000, 0xe020_0000, 0x10_0000_0000];

/// Config space by dword.
const COMMAND: usize = 1;
const BAR0: usize = 4;
const MEMORY_SPACE: [u8; 4] = [0b10, 0, 0, 0];

/// Makes a function, whose bus allocates the addresses afterwards.
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
        function.restore_bar(from).unwrap();
        function.write_register(COMMAND, 0, &[0; 4]);

        assert_eq!((store, moves), (vec![], vec![Move { bar, from, to }]));
    }
}
