// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Config space: identity, sizing, BARs that move while vCPUs use them.

use crate::common;
use common::{Done, chip, counted, counters, geometry};
use hypertrace_abi::layout::PAGE;
use hypertrace_device::{
    BarChange, BarForm, Chip, ChipConfig, Counter, Geometry, Memory, PciFunction, Region,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Function = PciFunction;

fn read(pci: &Function, offset: u64) -> u32 {
    let mut data = [0; 4];
    pci.config_read(offset, &mut data);
    u32::from_le_bytes(data)
}

fn write(pci: &Function, offset: u64, value: u32) {
    pci.config_write(offset, &value.to_le_bytes(), |_| ());
}

/// A VMM's view of the BARs: the address at which each region is mapped, and each region's address before. No
/// access to an earlier address may reach the region.
#[derive(Default)]
struct Map(HashMap<Region, u64>, HashMap<Region, u64>);

impl Map {
    fn change(&mut self, change: BarChange) {
        assert_ne!(change.from, change.to);
        assert_eq!(self.0.get(&change.region).copied(), change.from, "{change:?}");
        match change.to {
            Some(to) => self.0.insert(change.region, to),
            None => self.0.remove(&change.region),
        };
        if let Some(from) = change.from {
            self.1.insert(change.region, from);
        }
    }

    /// Returns the first region in window order, if BARs overlap.
    fn find(&self, address: u64) -> Option<(Region, u64)> {
        let g = geometry();
        Region::ALL.into_iter().find_map(|region| {
            let base = *self.0.get(&region)?;
            let inside = address.checked_sub(base)?;
            (inside < g.bar_size(region)).then_some((region, inside))
        })
    }

    /// Returns addresses at which `find` could be wrong.
    fn edges(&self) -> Vec<u64> {
        let g = geometry();
        let of = |(region, base): (&Region, &u64)| {
            let end = base.wrapping_add(g.bar_size(*region));
            [*base, base.wrapping_sub(1), base + PAGE + 1, end.wrapping_sub(1), end]
        };
        self.0
            .iter()
            .chain(&self.1)
            .flat_map(of)
            .chain([0, u64::MAX, u64::MAX - 1, 1 << 32])
            .collect()
    }
}

#[test]
fn the_identity_is_the_documented_one() {
    let pci = Function::new(chip().0);
    assert_eq!(read(&pci, 0), 0x10f0_1af4);
    assert_eq!(read(&pci, 8), 0x0500_0003);
    assert_eq!(read(&pci, 0x2c), 0x6874_1af4);
    for offset in [0, 8, 0x0c, 0x2c, 0x30, 0x34, 0x38] {
        let before = read(&pci, offset);
        write(&pci, offset, !0);
        assert_eq!(read(&pci, offset), before, "{offset:#x}");
    }
    write(&pci, 4, !0);
    assert_eq!(read(&pci, 4), 2, "only memory decoding can be switched");
    write(&pci, 0x3c, !0);
    assert_eq!(read(&pci, 0x3c), 0xff);
}

#[test]
fn a_guest_that_sizes_the_bars_finds_their_sizes_and_kinds() {
    let pci = Function::new(chip().0);
    let g = geometry();
    for bar in 0..6u64 {
        write(&pci, 0x10 + bar * 4, !0);
    }
    let sized: Vec<u32> = (0..6).map(|bar| read(&pci, 0x10 + bar * 4)).collect();
    let size32 = |region| !(g.bar_size(region) as u32 - 1);
    let size64 = u64::from(sized[4] & !0xf) | u64::from(sized[5]) << 32;
    assert_eq!(sized[0], size32(Region::Config));
    assert_eq!(sized[1], size32(Region::Data) | 8, "prefetchable");
    assert_eq!(sized[2], size32(Region::Control));
    assert_eq!(sized[3], 0, "there is no BAR 3");
    assert_eq!(sized[4] & 0xf, 0xc, "64-bit, prefetchable");
    assert_eq!(!size64 + 1, g.bar_size(Region::Rings));
}

#[test]
fn bars_with_32_address_bits_are_plain() {
    let pci = Function::with_form(chip().0, BarForm::Plain32).unwrap();
    for bar in 0..6u64 {
        write(&pci, 0x10 + bar * 4, !0);
    }
    let sized: Vec<u32> = (0..6).map(|bar| read(&pci, 0x10 + bar * 4)).collect();
    for region in Region::ALL {
        assert_eq!(sized[region.bar()], !(geometry().bar_size(region) as u32 - 1), "{region:?}");
    }
    assert_eq!((sized[3], sized[5]), (0, 0), "there is nothing in between");
    write(&pci, 0x20, 0xe000_0000);
    write(&pci, 4, 2);
    assert_eq!(pci.find(0xe000_0000), Some((Region::Rings, 0)));
    let large = Geometry { ring_bytes: 1 << 32, ..geometry() };
    let large = Memory::anonymous(large).unwrap();
    let large = Chip::new(large, &ChipConfig::default(), common::Recorder::default(), ());
    assert!(Function::with_form(Arc::new(large), BarForm::Plain32).is_err());
}

#[test]
fn the_bars_of_a_form_are_those_that_a_guest_sizes() {
    for form in [BarForm::Prefetchable64, BarForm::Plain32] {
        let pci = Function::with_form(chip().0, form).unwrap();
        let mut expected = [0; 6];
        for bar in form.bars(&geometry()) {
            let mask = !(bar.size - 1);
            let kind = u32::from(bar.is_64_bit) << 2 | u32::from(bar.is_prefetchable) << 3;
            expected[bar.index] = mask as u32 | kind;
            if bar.is_64_bit {
                expected[bar.index + 1] = (mask >> 32) as u32;
            }
        }

        for bar in 0..6u64 {
            write(&pci, 0x10 + bar * 4, !0);
        }

        let sized = [0, 1, 2, 3, 4, 5].map(|bar| read(&pci, 0x10 + bar * 4));
        assert_eq!(sized, expected, "{form:?}");
    }
}

#[test]
fn no_address_is_found_while_decoding_is_off() {
    let pci = Function::new(chip().0);
    for address in [0, 1, 1 << 32, u64::MAX - 1, u64::MAX] {
        assert_eq!(pci.find(address), None, "{address:#x}");
        assert!(!pci.read(address, &mut [0; 8]) && !pci.write(address, &[0; 8]));
    }
    let before = counters(pci.chip());
    assert_eq!(counted(pci.chip(), &before), []);
}

#[test]
fn every_width_at_every_offset_of_config_space() {
    let pci = Function::new(chip().0);
    let whole: Vec<u8> =
        (0..0x120).step_by(4).flat_map(|at| read(&pci, at).to_le_bytes()).collect();
    assert!(whole[0x40..].iter().all(|byte| *byte == 0), "there is nothing after the header");
    for offset in (0..0x110).chain([4095, 4096, 1 << 32, u64::MAX - 1, u64::MAX]) {
        for len in 0..=16usize {
            let is_store = [1, 2, 4].contains(&len) && offset % len as u64 == 0;
            let mut data = [0x5a; 16];
            let before = counters(pci.chip());
            pci.config_read(offset, &mut data[..len]);
            let expected = |i| match usize::try_from(offset) {
                Ok(offset) => {
                    offset.checked_add(i).and_then(|at| whole.get(at)).copied().unwrap_or(0)
                }
                _ => 0,
            };
            assert!((0..len).all(|i| data[i] == expected(i)), "{offset:#x} {len}: {data:?}");
            pci.config_write(offset, &data[..len], |change| panic!("{change:?}"));
            let counts = if is_store { vec![] } else { vec![("config_width", 1)] };
            assert_eq!(counted(pci.chip(), &before), counts, "{offset:#x} {len}");
        }
    }
}

#[test]
fn a_bar_can_take_anothers_place_in_one_store() {
    let pci = Function::new(chip().0);
    write(&pci, 0x10, 0xe000_0000);
    write(&pci, 0x18, 0xe001_0000);
    write(&pci, 4, 2);
    let mut changes = Vec::new();
    pci.config_write(0x18, &0xe000_0000u32.to_le_bytes(), |change| changes.push(change));
    let change = |from, to| BarChange { region: Region::Control, from, to };
    assert_eq!(changes, [change(Some(0xe001_0000), Some(0xe000_0000))]);
}

#[derive(Clone, Debug)]
enum Store {
    Bar(u64, u32),
    Command(bool),
    Bytes(u64, Vec<u8>),
}

fn any_store() -> impl Strategy<Value = Store> {
    let address = prop_oneof![
        Just(0u32),
        Just(!0),
        (0xe0u32..0xe4).prop_map(|high| high << 24),
        (0u32..64).prop_map(|slot| slot << 16),
        any::<u32>(),
    ];
    prop_oneof![
        4 => (0u64..6, address).prop_map(|(bar, value)| Store::Bar(bar, value)),
        2 => any::<bool>().prop_map(Store::Command),
        2 => (0u64..0x44, proptest::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(offset, data)| Store::Bytes(offset, data)),
    ]
}

proptest! {
    #[test]
    fn replayed_changes_match_the_decoded_addresses(
        stores in proptest::collection::vec(any_store(), 1..60)
    ) {
        let pci = Function::new(chip().0);
        let mut map = Map::default();
        for store in stores {
            let (offset, data) = match store {
                Store::Bar(bar, value) => (0x10 + bar * 4, value.to_le_bytes().to_vec()),
                Store::Command(on) => (4, vec![if on { 2 } else { 0 }]),
                Store::Bytes(offset, data) => (offset, data),
            };
            pci.config_write(offset, &data, |change| map.change(change));
            let decodes = read(&pci, 4) & 2 != 0;
            prop_assert_eq!(map.0.len(), if decodes { 4 } else { 0 });
            for address in map.edges() {
                prop_assert_eq!(pci.find(address), map.find(address), "{:#x}", address);
            }
        }
    }
}

#[test]
fn a_vcpu_uses_bars_while_a_move_is_reported() {
    let pci = Arc::new(Function::new(chip().0));
    write(&pci, 0x10, 0xe000_0000);
    pci.config_write(4, &[2, 0], |change| {
        let (pci, (tell, told)) = (Arc::clone(&pci), std::sync::mpsc::channel());
        std::thread::spawn(move || tell.send(pci.read(0xe000_0000, &mut [0; 8])));
        // The VMM needs some time to map the BAR.
        let found = told.recv_timeout(Duration::from_secs(20)).expect("the vCPU does not wait");
        assert!(found || change.region != Region::Config);
    });
}

#[test]
fn bars_move_while_vcpus_use_them() {
    let pci = Function::new(chip().0);
    let places = |i: u64| (0xe000_0000 + (i % 4) * 0x10_0000) as u32;
    let map = Mutex::new(Map::default());
    let done = AtomicBool::new(false);
    let change = |change: BarChange| map.lock().unwrap().change(change);
    let hits = [const { AtomicBool::new(false) }; 2];
    // On a machine with few CPUs, this thread may finish all moves before a user has run, so the moves go on
    // until each user has run.
    let is_enough = |moves: u64| moves >= 20_000 && hits.iter().all(|hit| hit.load(Relaxed));
    let begin = Instant::now();
    let is_late = || begin.elapsed() > Duration::from_secs(60);
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..2u64)
            .map(|thread| {
                let (pci, done, hit) = (&pci, &done, &hits[thread as usize]);
                scope.spawn(move || {
                    let (mut i, mut hits) = (thread, 0u64);
                    while !done.load(Relaxed) {
                        i += 1;
                        let address =
                            u64::from(places(i / 7)) + i % 3 * 0x1_0000 + i * 4 % 0x2_0000;
                        let mut data = [0x5a; 8];
                        let len = [1, 2, 4, 8, 3][i as usize % 5];
                        hits += u64::from(pci.read(address, &mut data[..len]));
                        hits += u64::from(pci.write(address, &data[..len]));
                        hits += u64::from(pci.read(0x40_0000_0000 + i % 0x1_0000, &mut data));
                        hit.store(hits > 0, Relaxed);
                    }
                })
            })
            .collect();
        // One vCPU switches decoding, and this thread moves BARs.
        let end = Done(&done);
        let switch = scope.spawn(|| {
            for i in (0..).take_while(|i| !is_enough(*i) && !is_late()) {
                pci.config_write(4, &[if i % 2 == 0 { 2 } else { 0 }, 0], &change);
            }
        });
        for i in (0..).take_while(|i| !is_enough(*i) && !is_late()) {
            let bar = 0x10 + [0, 1, 2, 4][i as usize % 4] * 4;
            pci.config_write(bar, &places(i / 3).to_le_bytes(), &change);
            pci.config_write(0x24, &((i % 3) as u32 * 0x40).to_le_bytes(), &change);
        }
        switch.join().unwrap();
        drop(end);
        users.into_iter().for_each(|user| user.join().unwrap());
    });
    assert!(hits.iter().all(|hit| hit.load(Relaxed)), "{hits:?}");
    let map = map.into_inner().unwrap();
    for address in map.edges() {
        assert_eq!(pci.find(address), map.find(address), "{address:#x}");
    }
    // Moves cause no config accesses of an invalid width.
    assert_eq!(pci.chip().count(Counter::ConfigWidth), 0);
}
