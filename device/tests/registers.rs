//! Registers and regions: every width at every kind of offset.

mod common;

use common::*;
use hypertrace_abi::atomic::Ordering;
use hypertrace_abi::layout::{host_page, register as reg};
use hypertrace_abi::record::id;
use hypertrace_abi::sink::Status;
use hypertrace_device::{ChipConfig, Counter, Region, Window};
use proptest::prelude::*;
use std::thread;

const ID: u32 = 0x1234_5678;

fn reply(chip: &TestChip, client: u32) -> (u32, u32) {
    let word = area(chip, client)[512 + host_page::REPLY].load(Ordering::Acquire);
    (word as u32, (word >> 32) as u32)
}

#[test]
fn emit_hands_the_slot_to_the_sink_and_replies() {
    let chip = chip();
    write_slot(&chip, 2, 5, ID, 3, &[10, 11, 12, 13]);

    chip.write(Region::Control, register(2, reg::EMIT), &5u64.to_le_bytes());

    let points = points(&chip);
    let [point] = &points[..] else { panic!("{points:?}") };
    assert_eq!((point.client, point.seq, point.id, point.cpu), (2, 5, ID, 7));
    assert_eq!((point.guest_time, &point.words[..]), (1000, &[10, 11, 12][..]));
    assert_eq!(reply(&chip, 2), (5, Status::Recorded as u32));
    let told = area(&chip, 2)[512 + host_page::REPLY_HOST_TIME].load(Ordering::Relaxed);
    assert_eq!(told, point.host_time);
}

#[test]
fn a_slot_that_cannot_be_is_counted_by_kind_and_answered() {
    for (seq, id, claimed, counter) in [
        (6, ID, 0, Counter::SlotSequence),
        (5, ID, 257, Counter::SlotWords),
        (5, ID, u16::MAX, Counter::SlotWords),
        (5, id::HYPERTRACE, 0, Counter::SlotId),
    ] {
        let chip = chip();
        write_slot(&chip, 0, seq, id, claimed, &[]);
        chip.write(Region::Control, register(0, reg::EMIT), &5u64.to_le_bytes());
        assert_eq!((chip.count(counter), counts(&chip)), (1, 1), "{counter:?}");
        assert_eq!(reply(&chip, 0), (5, Status::Invalid as u32));
        assert!(points(&chip).is_empty());
    }
}

#[test]
fn the_longest_slot_is_256_words() {
    let chip = chip();
    let words: Vec<u64> = (0..256).collect();
    write_slot(&chip, 3, 1, ID, 256, &words);
    chip.write(Region::Control, register(3, reg::EMIT), &1u64.to_le_bytes());
    assert_eq!(points(&chip)[0].words, words);
}

#[test]
fn a_register_fires_on_the_store_that_covers_its_last_byte() {
    let value = 0x0102_0304_0506_0708u64.to_le_bytes();
    for width in [1, 2, 4, 8] {
        let chip = chip();
        for at in (0..8).step_by(width) {
            assert!(points(&chip).is_empty(), "{width}: fired before byte {at}");
            chip.write(Region::Control, 8 + at as u64, &value[at..at + width]);
        }
        let points = points(&chip);
        // hypertrace(client:u32,args:[u64])
        assert_eq!(points[0].words, [1, 4, u64::from_le_bytes(value), 0, 0, 0], "{width}");
        assert_eq!((points.len(), counts(&chip)), (1, 0));
    }
}

#[test]
fn clients_0_to_3_of_2016_find_their_slots_at_client_times_64_times_args() {
    let chip = chip();
    for client in 0..4u64 {
        for arg in 0..3u64 {
            let offset = client * 64 * 4 + arg * 8;
            chip.write(Region::Data, offset, &(client * 10 + arg).to_le_bytes());
        }
        chip.write(Region::Control, client * 8, &(client as u32).to_le_bytes());
        chip.write(Region::Control, client * 8 + 4, &7u32.to_le_bytes());
    }
    for (client, point) in (0..4).zip(points(&chip)) {
        let first = client | 7 << 32;
        let args = [client, 4, first, client * 10, client * 10 + 1, client * 10 + 2];
        assert_eq!(
            (u64::from(point.client), point.id, &point.words[..]),
            (client, id::HYPERTRACE, &args[..])
        );
    }
}

#[test]
fn clock_latches_on_its_first_byte() {
    let chip = chip();
    let mut whole = [0; 8];
    chip.read(Region::Control, register(1, reg::CLOCK), &mut whole);
    let mut halves = [0; 8];
    let (low, high) = halves.split_at_mut(4);
    chip.read(Region::Control, register(1, reg::CLOCK), low);
    chip.read(Region::Control, register(1, reg::CLOCK) + 4, high);
    assert!(u64::from_le_bytes(halves) > u64::from_le_bytes(whole));
    assert_eq!(counts(&chip), 0);
}

#[test]
fn the_last_lessees_token_is_shown() {
    let chip = chip();
    for token in [3u64, 9] {
        chip.write(Region::Control, register(1, reg::LEASE), &token.to_le_bytes());
        assert_eq!(area(&chip, 1)[512 + host_page::LEASE].load(Ordering::Acquire), token);
    }
    chip.write(Region::Control, register(1, reg::LEASE), &[0; 8]);
    assert_eq!(chip.count(Counter::LeaseZero), 1);
    assert_eq!(area(&chip, 1)[512 + host_page::LEASE].load(Ordering::Acquire), 9);
}

#[test]
fn a_rate_bound_lets_a_seconds_worth_through_at_once() {
    let config = ChipConfig {
        host_frequency: 1 << 40,
        reference_points_per_second: 10,
        ..ChipConfig::default()
    };
    let chip = chip_with(&config);
    for client in 0..2 {
        for seq in 0..25u32 {
            write_slot(&chip, client, seq, ID, 0, &[]);
            chip.write(Region::Control, register(client, reg::EMIT), &u64::from(seq).to_le_bytes());
        }
        assert_eq!(reply(&chip, client).1, Status::Limited as u32);
    }
    assert_eq!((points(&chip).len(), chip.count(Counter::RateLimited)), (20, 30));
}

#[test]
fn a_pass_begins_drains_every_client_within_its_budget_and_ends() {
    let chip = chip();
    *chip.sink().more.lock().unwrap() = 5;
    assert!(chip.drain_pass(3));
    let drains = [0, 0, 0, 1, 1, 1, 2, 3].map(Call::Drain);
    let mut expected = vec![Call::Begin];
    expected.extend(drains);
    expected.push(Call::End);
    assert_eq!(calls(&chip), expected);
    assert!(!chip.drain_pass(3));
}

#[test]
fn a_new_mask_bumps_every_clients_version_after_it_is_there() {
    let chip = chip();
    let mut mask = [0; 4096];
    mask[17] = 1;
    chip.set_mask(&mask);
    let mut byte = [9; 2];
    chip.read(Region::Rings, 17, &mut byte);
    assert_eq!(byte, [1, 0]);
    for client in 0..GEOMETRY.clients {
        assert_eq!(area(&chip, client)[512 + host_page::MASK_VERSION].load(Ordering::Acquire), 1);
    }
}

#[test]
fn two_vcpus_on_one_client_lose_nothing_but_their_own_sense() {
    let chip = chip();
    thread::scope(|scope| {
        for half in 0..2u32 {
            let chip = &chip;
            scope.spawn(move || {
                for i in 0..20_000u32 {
                    write_slot(chip, 0, i, ID, (i % 300) as u16, &[half.into()]);
                    chip.write(
                        Region::Control,
                        register(0, reg::EMIT),
                        &u64::from(i).to_le_bytes(),
                    );
                }
            });
        }
    });
    let recorded = points(&chip);
    assert!(recorded.iter().all(|point| point.words.len() <= 256));
    assert_eq!(recorded.len() as u64 + counts(&chip), 40_000);
}

/// An offset near something: a region's start and end, a page, a register.
fn offsets() -> impl Strategy<Value = u64> {
    let near = prop_oneof![
        Just(0u64),
        Just(GEOMETRY.control_pages_offset()),
        Just(GEOMETRY.control_size()),
        Just(GEOMETRY.data_size()),
        Just(GEOMETRY.rings_size()),
        Just(1 << 16),
        Just(1 << 18),
        Just(1 << 19),
        Just(0x100),
        Just(u64::MAX),
        Just(1 << 32),
        (0u64..8).prop_map(|client| register(client as u32, 0)),
    ];
    prop_oneof![(near, -64i64..64).prop_map(|(at, by)| at.wrapping_add_signed(by)), any::<u64>()]
}

fn regions() -> impl Strategy<Value = Region> {
    prop_oneof![
        Just(Region::Config),
        Just(Region::Data),
        Just(Region::Control),
        Just(Region::Rings)
    ]
}

proptest! {
    #[test]
    fn any_width_anywhere_fills_every_byte_and_is_counted_or_takes_effect(
        accesses in proptest::collection::vec((regions(), offsets(), 0usize..=16, any::<bool>()), 1..50),
    ) {
        let chip = chip();
        for (region, offset, width, store) in accesses {
            let before = counts(&chip);
            if store {
                chip.write(region, offset, &vec![0xa5; width]);
            } else {
                // A byte that is not filled keeps its mark in one of the two.
                let (mut ones, mut twos) = (vec![1; width], vec![2; width]);
                chip.read(region, offset, &mut ones);
                chip.read(region, offset, &mut twos);
                if region != Region::Control {
                    prop_assert_eq!(&ones, &twos);
                }
                if region == Region::Control && counts(&chip) > before {
                    prop_assert!(ones.iter().chain(&twos).all(|byte| *byte == 0));
                }
            }
            let register = matches!(width, 1 | 2 | 4 | 8) && offset % width as u64 == 0;
            if region == Region::Control && !register {
                prop_assert!(counts(&chip) > before, "{offset:#x} x {width} went by uncounted");
            }
        }
    }

    #[test]
    fn a_store_of_a_wrong_width_changes_nothing(offset in 0u64..8, width in 0usize..=16) {
        prop_assume!(!(matches!(width, 1 | 2 | 4 | 8) && offset % width as u64 == 0));
        let chip = chip();
        chip.write(Region::Control, offset, &vec![0xff; width]);
        chip.write(Region::Control, 0, &1u32.to_le_bytes());
        chip.write(Region::Control, 4, &2u32.to_le_bytes());
        let points = points(&chip);
        prop_assert_eq!(points.len(), 1);
        prop_assert_eq!(points[0].words[2], 1 | 2 << 32);
        prop_assert_eq!(chip.count(Counter::Width), 1);
    }

    #[test]
    fn the_window_is_the_regions_back_to_back(offset in offsets(), width in 1usize..=16) {
        let chip = chip();
        let window = Window::new(chip.clone());
        let (mut ones, mut twos) = (vec![1; width], vec![2; width]);
        window.read(offset, &mut ones);
        match window.find(offset) {
            Some((region, inside)) => {
                prop_assert_eq!(GEOMETRY.window_offset(region) + inside, offset);
                if region != Region::Control {
                    chip.read(region, inside, &mut twos);
                    prop_assert_eq!(&ones, &twos);
                }
            }
            None => {
                prop_assert!(offset >= window.size());
                prop_assert!(ones.iter().all(|byte| *byte == 0));
            }
        }
        window.write(offset, &twos);
    }
}
