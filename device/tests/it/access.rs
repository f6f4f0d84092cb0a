// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Accesses of all widths at all classes of offset in all regions, through each front of the chip.

use crate::common;
use common::{Front, counted, counters, geometry, memory, points};
use hypertrace_abi::config::ConfigPage;
use hypertrace_abi::layout::{PAGE, register};
use hypertrace_device::Region;

/// Returns offsets of every class: aligned and unaligned, at registers, at the ends of pages, of the used
/// part and of the region, beyond the region, and huge ones.
fn offsets(region: Region) -> Vec<u64> {
    let g = geometry();
    let mut edges = vec![0, PAGE, 2 * PAGE, g.bar_size(region), 2 * g.bar_size(region)];
    edges.extend([1 << 32, 1 << 63, u64::MAX - 8]);
    match region {
        Region::Config => edges.push(size_of::<ConfigPage>() as u64),
        Region::Data => edges.extend([g.legacy_slot_stride(), g.data_size()]),
        Region::Control => {
            edges.extend([8 * u64::from(g.clients), g.control_pages_offset(), g.control_size()]);
            for client in [0, g.clients - 1] {
                let page = common::register(client, 0);
                edges.extend([page, page + register::LEASE, page + register::END, page + PAGE]);
            }
        }
        Region::Rings => {
            edges.extend([g.client_offset(1), g.client_offset(1) + PAGE, g.rings_size()]);
        }
    }
    let mut offsets: Vec<u64> = edges
        .into_iter()
        .flat_map(|edge| (0..=34).map(move |i| edge.wrapping_add(i).wrapping_sub(17)))
        .collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

/// Class that the specification gives to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// An access outside of all regions.
    Nothing,
    /// An access in a region but beyond its end, or a store to the config page.
    Region,
    Width,
    Unassigned,
    Register,
    Memory,
    Config,
}

fn class(front: &Front, region: Region, offset: u64, len: usize, store: bool) -> Class {
    let g = geometry();
    let Some((region, offset)) = front.target(region, offset) else {
        return Class::Nothing;
    };
    let inside = offset.checked_add(len as u64).is_some_and(|end| end <= g.bar_size(region));
    match region {
        Region::Control => {
            let page = g.control_pages_offset();
            if ![1, 2, 4, 8].contains(&len) || offset % len as u64 != 0 {
                Class::Width
            } else if offset < 8 * u64::from(g.clients) || offset & !7 == g.kick_offset() {
                Class::Register
            } else if offset < page || offset >= page + u64::from(g.clients) * PAGE {
                Class::Unassigned
            } else {
                match (offset % PAGE) & !7 {
                    at if at < register::END => Class::Register,
                    _ => Class::Unassigned,
                }
            }
        }
        _ if !inside => Class::Region,
        Region::Config if store => Class::Region,
        Region::Config => Class::Config,
        Region::Data | Region::Rings => Class::Memory,
    }
}

fn expected_counter(class: Class) -> Vec<(&'static str, u64)> {
    match class {
        Class::Region => vec![("region", 1)],
        Class::Width => vec![("register_width", 1)],
        Class::Unassigned => vec![("register_unassigned", 1)],
        Class::Memory => vec![("memory_trapped", 1)],
        _ => vec![],
    }
}

#[test]
fn a_load_fills_every_byte_and_changes_nothing() {
    for (front, sink) in Front::all() {
        let chip = front.chip();
        for region in [Region::Data, Region::Rings] {
            let bytes: Vec<u8> =
                (0..chip.geometry().bar_size(region)).map(|i| (i % 251) as u8).collect();
            chip.write(region, 0, &bytes);
        }
        let everything = memory(chip);
        for region in Region::ALL {
            for offset in offsets(region) {
                for len in 0..=16 {
                    let (mut one, mut other) = ([0x5a; 18], [0xa5; 18]);
                    let before = counters(chip);
                    front.read(region, offset, &mut one[1..=len]);
                    let counts = counted(chip, &before);
                    front.read(region, offset, &mut other[1..=len]);

                    let class = class(&front, region, offset, len, false);
                    let at = format!("{region:?} {offset:#x} {len} {class:?}");
                    assert_eq!(counts, expected_counter(class), "{at}");
                    // A byte that the access did not fill keeps its old value in both buffers.
                    let left = |i: usize| one[i] == 0x5a && other[i] == 0xa5;
                    assert!(!(1..=len).any(left), "{at}: not filled");
                    assert!(left(0) && left(len + 1), "{at}: overrun");
                    let found = &one[1..=len];
                    match class {
                        Class::Register => {}
                        Class::Config => {
                            let page = chip.config_bytes();
                            let byte = |i| page.get(offset as usize + i).copied().unwrap_or(0);
                            assert!((0..len).all(|i| found[i] == byte(i)), "{at}");
                        }
                        Class::Memory => {
                            let (_, offset) = front.target(region, offset).unwrap();
                            let byte = |i| ((offset + i as u64) % 251) as u8;
                            assert!((0..len).all(|i| found[i] == byte(i)), "{at}: {found:?}");
                        }
                        _ => assert!(found.iter().all(|byte| *byte == 0), "{at}"),
                    }
                }
            }
        }
        assert!(memory(chip) == everything);
        assert_eq!(points(&sink), []);
    }
}

#[test]
fn a_store_changes_what_it_should_or_nothing() {
    for (front, sink) in Front::all() {
        let chip = front.chip();
        let mut fill = 0u8;
        for region in Region::ALL {
            let mut everything = memory(chip);
            for offset in offsets(region) {
                for len in 0..=16 {
                    fill = fill.wrapping_add(1);
                    let data = [fill; 16];
                    let class = class(&front, region, offset, len, true);
                    if class == Class::Register {
                        // `registers.rs` tests stores to registers.
                        continue;
                    }
                    let before = counters(chip);
                    front.write(region, offset, &data[..len]);

                    let at = format!("{region:?} {offset:#x} {len} {class:?}");
                    assert_eq!(counted(chip, &before), expected_counter(class), "{at}");
                    if class == Class::Memory {
                        let (region, offset) = front.target(region, offset).unwrap();
                        let start = match region {
                            Region::Data => 0,
                            _ => chip.geometry().bar_size(Region::Data),
                        };
                        everything[(start + offset) as usize..][..len].fill(fill);
                    }
                }
            }
            assert!(memory(chip) == everything, "{region:?}");
            assert_eq!(points(&sink), []);
        }
    }
}

#[test]
fn wrong_stores_leave_a_registers_bytes_alone() {
    for (front, sink) in Front::all() {
        let legacy = 8;
        front.write(Region::Control, legacy, &0x1111_1111_1111_1111u64.to_le_bytes());
        for len in [0, 3, 5, 6, 7, 9, 12, 16] {
            front.write(Region::Control, legacy, &[0xff; 16][..len]);
        }
        for (offset, len) in [(9, 2), (10, 4), (12, 8), (15, 2), (7, 8), (4, 8)] {
            front.write(Region::Control, offset, &[0xff; 8][..len]);
        }
        front.write(Region::Control, legacy + 7, &[0x22]);
        let values: Vec<u64> = points(&sink).iter().map(|p| p.words[2]).collect();
        assert_eq!(values, [0x1111_1111_1111_1111, 0x2211_1111_1111_1111]);
    }
}

#[test]
fn a_trapped_store_does_not_undo_a_store_beside_it() {
    const STORES: u32 = 200_000;
    let (chip, _) = common::chip();
    std::thread::scope(|scope| {
        for (offset, end) in [(0, 4), (4, 8)] {
            let chip = &chip;
            scope.spawn(move || {
                for value in 1..=STORES {
                    chip.write(Region::Data, offset, &value.to_le_bytes());
                    let mut found = [0; 8];
                    chip.read(Region::Data, 0, &mut found);
                    let own = found[offset as usize..end].try_into().unwrap();
                    assert_eq!(u32::from_le_bytes(own), value, "at {offset}");
                }
            });
        }
    });
}
