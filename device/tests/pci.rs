//! The PCI function: sizing, decoding, and BARs that move while others use
//! them.

mod common;

use common::*;
use hypertrace_device::{BarChange, Counter, PciFunction, Region};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

type Function = PciFunction<Recorder>;

const COMMAND: u64 = 4;

fn read32(function: &Function, offset: u64) -> u32 {
    let mut bytes = [0xee; 4];
    function.config_read(offset, &mut bytes);
    u32::from_le_bytes(bytes)
}

fn write32(function: &Function, offset: u64, value: u32) -> Vec<BarChange> {
    let mut changes = Vec::new();
    function.config_write(offset, &value.to_le_bytes(), |change| changes.push(change));
    changes
}

fn bar(region: Region) -> u64 {
    0x10 + 4 * region.bar() as u64
}

/// BARs at 0x1000_0000 (config), 0x2000_0000 ... and decoding on.
fn placed() -> Function {
    let function = PciFunction::new(chip());
    for (i, region) in (1u32..).zip(Region::ALL) {
        write32(&function, bar(region), i << 28);
    }
    write32(&function, COMMAND, 2);
    function
}

#[test]
fn the_header_says_what_it_is() {
    let function = PciFunction::new(chip());
    assert_eq!(read32(&function, 0), 0x10f0_1af4);
    assert_eq!(read32(&function, 8), 0x0500_0002);
    assert_eq!(read32(&function, 0x2c), 0x6874_1af4);
    assert_eq!(read32(&function, 0x3c), 0);
    assert_eq!(read32(&function, 0xffc), 0);
}

#[test]
fn ones_written_to_a_bar_read_back_as_its_size() {
    let function = PciFunction::new(chip());
    for region in Region::ALL {
        assert!(write32(&function, bar(region), u32::MAX).is_empty());
        let low = read32(&function, bar(region));
        let mut mask = u64::from(low & !0xf) | 0xffff_ffff << 32;
        if region == Region::Rings {
            write32(&function, bar(region) + 4, u32::MAX);
            mask = u64::from(low & !0xf) | u64::from(read32(&function, bar(region) + 4)) << 32;
        }
        assert_eq!(mask.wrapping_neg(), GEOMETRY.bar_size(region), "{region:?}");
        let kind = match region {
            Region::Config | Region::Control => 0,
            Region::Data => 0b1000,
            Region::Rings => 0b1100,
        };
        assert_eq!(low & 0xf, kind);
    }
    // BARs 3 and beyond do not exist.
    write32(&function, 0x1c, u32::MAX);
    assert_eq!(read32(&function, 0x1c), 0);
}

#[test]
fn command_switches_all_bars() {
    let function = placed();
    assert_eq!(function.find(0x3000_0008), Some((Region::Control, 8)));
    let gone = write32(&function, COMMAND, 0);
    assert_eq!(gone.len(), 4);
    assert!(gone.iter().all(|change| change.from.is_some() && change.to.is_none()));
    assert_eq!(function.find(0x3000_0008), None);
    assert_eq!(read32(&function, COMMAND), 0);
}

#[test]
fn a_64_bit_bar_moves_above_4_gib() {
    let function = placed();
    let changes = write32(&function, bar(Region::Rings) + 4, 0x12);
    let to = 0x12_4000_0000;
    assert_eq!(changes.last().map(|change| change.to), Some(Some(to)));
    assert_eq!(function.find(to + 5), Some((Region::Rings, 5)));
}

#[test]
fn config_accesses_of_odd_widths_are_counted() {
    let function = placed();
    for (offset, width) in [(0, 0), (0, 3), (1, 2), (2, 4), (0, 8), (0, 16)] {
        let mut bytes = vec![0xee; width];
        function.config_read(offset, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        function.config_write(offset, &bytes, |_| panic!("nothing changes"));
    }
    assert_eq!(function.chip().count(Counter::ConfigWidth), 12);
}

#[test]
fn bars_move_while_others_use_them() {
    let function = placed();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for address in [0x3000_0000, 0x5000_0000, 0x2000_0010] {
                        function.write(address, &1u64.to_le_bytes());
                        function.read(address, &mut [0; 8]);
                    }
                }
            });
        }
        for turn in 0..20_000u32 {
            write32(&function, bar(Region::Control), if turn % 2 == 0 { 5 } else { 3 } << 28);
            write32(&function, COMMAND, turn % 4);
        }
        done.store(true, Ordering::Relaxed);
    });
    // The 2016 register at the control BAR's start, wherever that was.
    for point in points(function.chip()) {
        assert_eq!((point.client, point.words[2]), (0, 1));
    }
    assert_eq!(counts(function.chip()), 0);
}

proptest! {
    #[test]
    fn changes_replayed_are_what_is_decoded(
        stores in proptest::collection::vec(
            (0u64..0x48, prop_oneof![Just(1usize), Just(2), Just(4)], any::<u32>()), 1..60),
        probes in proptest::collection::vec(any::<u32>(), 20),
    ) {
        let function = PciFunction::new(chip());
        let mut map: HashMap<Region, u64> = HashMap::new();
        for (offset, width, value) in stores {
            // Decoding on, most of the time.
            let (offset, value) = if value % 5 == 0 { (COMMAND, value | 2) } else { (offset, value) };
            let mut consistent = true;
            function.config_write(offset, &value.to_le_bytes()[..width], |change| {
                if change.from.is_some() {
                    consistent &= map.remove(&change.region) == change.from;
                }
                if let Some(to) = change.to {
                    consistent &= map.insert(change.region, to).is_none();
                }
            });
            prop_assert!(consistent, "a change did not follow from the one before");
        }
        let near = map.values().flat_map(|at| [*at, at + 8, at.wrapping_sub(1)]);
        for address in near.chain(probes.iter().map(|probe| u64::from(*probe))) {
            let expected = Region::ALL.into_iter().find_map(|region| {
                let inside = address.checked_sub(*map.get(&region)?)?;
                (inside < GEOMETRY.bar_size(region)).then_some((region, inside))
            });
            prop_assert_eq!(function.find(address), expected);
        }
    }
}
