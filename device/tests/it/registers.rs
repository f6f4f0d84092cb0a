// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Registers: the effects of stores, reference points and their replies, the rate limit, and the 2016
//! interface.

use crate::common;
use common::{Done, Point, chip, chip_of, counted, counters, geometry, points, register as at};
use hypertrace_abi::atomic::Ordering::{Acquire, Relaxed, Release};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::{SLOT_WORDS, guest_page, host_page, register};
use hypertrace_abi::record::id;
use hypertrace_abi::ring::ClientMemory;
use hypertrace_abi::sink::SessionInfo;
use hypertrace_abi::sink::Status;
use hypertrace_device::{Chip, ChipConfig, Counter, Region, RingMode};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

fn store(chip: &Chip, offset: u64, data: &[u8]) {
    chip.write(Region::Control, offset, data);
}

fn client(chip: &Chip, client: u32) -> ClientMemory<'_> {
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    ClientMemory::of_rings(rings, client, chip.geometry(), RingMode::Discard).unwrap()
}

fn write_slot(memory: &ClientMemory<'_>, seq: u32, id: u32, claimed: u64, words: &[u64]) {
    let header = [u64::from(seq) | u64::from(id) << 32, 7 | 3 << 32, 1234, claimed];
    let slot = &memory.guest[guest_page::SLOT..];
    for (to, &from) in slot.iter().zip(header.iter().chain(words)) {
        to.store(from, Relaxed);
    }
}

/// Returns the reply's seq and status.
fn reply(memory: &ClientMemory<'_>) -> (u32, u32) {
    let reply = memory.host[host_page::REPLY].load(Acquire);
    (reply as u32, (reply >> 32) as u32)
}

#[test]
fn a_reference_point_has_the_contents_of_its_slot() {
    let (chip, sink) = chip();
    for words in [0, 1, 16, 17, SLOT_WORDS] {
        let memory = client(&chip, 2);
        let payload: Vec<u64> = (0..words as u64).map(|i| i * 3 + 1).collect();
        write_slot(&memory, 55, 99, words as u64, &payload);
        let before = ticks();
        store(&chip, at(2, register::EMIT), &55u64.to_le_bytes());
        let after = ticks();

        let found = points(&sink);
        let host_time = found[0].host_time;
        assert!(before <= host_time && host_time <= after);
        let (client, seq, id, name_hash, cpu, guest_time) = (2, 55, 99, 7, 3, 1234);
        let words = payload;
        assert_eq!(
            found,
            [Point { client, seq, id, name_hash, cpu, guest_time, host_time, words }]
        );
        assert_eq!(reply(&memory), (55, Status::Recorded as u32));
        assert_eq!(memory.host[host_page::REPLY_HOST_TIME].load(Relaxed), host_time);
        assert_eq!(memory.host[host_page::REPLY_EPOCH].load(Relaxed), 0);
    }
}

#[test]
fn a_malformed_slot_is_counted_and_answered() {
    let cases = [
        (1, 99, 0, 2, Counter::SlotSequence),
        (1, 99, 257, 1, Counter::SlotWords),
        (1, 99, 0xffff, 1, Counter::SlotWords),
        (1, 15, 0, 1, Counter::SlotId),
        (1, id::PAD, 0, 1, Counter::SlotId),
        (1, id::HYPERTRACE, 0, 1, Counter::SlotId),
    ];
    for (seq, id, claimed, stored, counter) in cases {
        let (chip, sink) = chip();
        let memory = client(&chip, 0);
        write_slot(&memory, seq, id, claimed, &[]);
        let before = counters(&chip);
        store(&chip, at(0, register::EMIT), &u64::from(stored).to_le_bytes());
        assert_eq!(counted(&chip, &before), [(counter.name(), 1)]);
        assert_eq!(reply(&memory), (stored, Status::Invalid as u32));
        assert_eq!(points(&sink), []);
    }
}

#[test]
fn the_reply_has_the_status_of_the_sink() {
    let (chip, sink) = chip();
    let memory = client(&chip, 1);
    for status in [Status::Recorded, Status::Filtered, Status::Failed] {
        *sink.status.lock().unwrap() = Some(status);
        write_slot(&memory, 9, 99, 0, &[]);
        store(&chip, at(1, register::EMIT), &9u64.to_le_bytes());
        assert_eq!(reply(&memory), (9, status as u32));
    }
    assert_eq!(chip.count(Counter::Failed), 1);
}

#[test]
fn lease_is_shown_in_page_h_and_zero_is_no_token() {
    let (chip, _) = chip();
    let shown = || client(&chip, 3).host[host_page::LEASE].load(Relaxed);
    store(&chip, at(3, register::LEASE), &0xfeed_u64.to_le_bytes());
    assert_eq!(shown(), 0xfeed);
    store(&chip, at(3, register::LEASE), &[0; 8]);
    assert_eq!((shown(), chip.count(Counter::LeaseZero)), (0xfeed, 1));
}

#[test]
fn a_changed_config_page_changes_nothing_for_the_host() {
    let (chip, _) = chip();
    let page = chip.config_bytes();
    // A VMM may have mapped the page writable.
    let mapped = chip.memory().region(Region::Config).unwrap();
    mapped.words().iter().for_each(|word| word.store(7, Relaxed));

    let mut loaded = vec![0; page.len()];
    chip.read(Region::Config, 0, &mut loaded);
    assert_eq!((&loaded, chip.config_bytes()), (&page, page.clone()));
    let memory = client(&chip, 3);
    write_slot(&memory, 9, 99, 0, &[]);
    store(&chip, at(3, register::EMIT), &9u64.to_le_bytes());
    assert_eq!(reply(&memory), (9, Status::Recorded as u32));

    chip.reset();
    let words = mapped.words().iter().flat_map(|word| word.load(Relaxed).to_le_bytes());
    assert_eq!(words.take(16).collect::<Vec<_>>(), page[..16]);
}

#[test]
fn a_client_over_its_rate_is_limited_and_others_are_not() {
    // At this frequency, no second passes while this test runs.
    let config = ChipConfig::default().with(|config| config.reference_points_per_second = 5);
    let (chip, sink) =
        chip_of(&config, SessionInfo::default().with(|info| info.host_frequency = 1 << 50));
    let mut statuses = Vec::new();
    for _ in 0..8 {
        write_slot(&client(&chip, 0), 1, 99, 0, &[]);
        store(&chip, at(0, register::EMIT), &1u64.to_le_bytes());
        statuses.push(reply(&client(&chip, 0)).1);
    }
    assert_eq!(statuses, [0, 0, 0, 0, 0, 4, 4, 4]);
    // The 2016 interface has the same limit but no reply.
    store(&chip, 0, &[0; 8]);
    store(&chip, 8, &[0; 8]);
    assert_eq!(points(&sink).iter().map(|p| p.client).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1]);
    assert_eq!(chip.count(Counter::RateLimited), 4);
}

#[test]
fn a_limited_client_may_emit_again_after_a_second() {
    let config = ChipConfig::default().with(|config| config.reference_points_per_second = 4);
    let (chip, sink) =
        chip_of(&config, SessionInfo::default().with(|info| info.host_frequency = 1 << 24));
    for _ in 0..3 {
        let until = ticks() + (1 << 25);
        while ticks() < until {
            std::thread::yield_now();
        }
        for _ in 0..4 {
            store(&chip, 0, &[0; 8]);
        }
    }
    assert_eq!((points(&sink).len(), chip.count(Counter::RateLimited)), (12, 0));
}

#[test]
fn a_driver_of_2016_is_served() {
    let (chip, sink) = chip();
    let g = geometry();
    let args = u64::from(g.legacy_args);
    for client in 0..4u32 {
        for arg in 2..=args {
            let offset = u64::from(client) * 64 * args + (arg - 2) * 8;
            chip.write(Region::Data, offset, &(u64::from(client) * 100 + arg).to_le_bytes());
        }
    }
    for client in 0..4u64 {
        // The kernel module and the library of 2016 use both of these ways to store.
        store(&chip, client * 8, &(client * 100 + 1).to_le_bytes());
        let split = (client * 100 + 1) | 0xabcd << 32;
        store(&chip, client * 8, &(split as u32).to_le_bytes());
        store(&chip, client * 8 + 4, &((split >> 32) as u32).to_le_bytes());
    }
    let found = points(&sink);
    let expected: Vec<Vec<u64>> = (0..4)
        .flat_map(|c| {
            let words = move |arg1| vec![c, args, arg1, c * 100 + 2, c * 100 + 3, c * 100 + 4];
            [words(c * 100 + 1), words((c * 100 + 1) | 0xabcd << 32)]
        })
        .collect();
    assert_eq!(found.iter().map(|p| p.words.clone()).collect::<Vec<_>>(), expected);
    assert!(found.iter().all(|p| p.id == id::HYPERTRACE && u64::from(p.client) == p.words[0]));
    assert!(chip.count(Counter::Width) + chip.count(Counter::Unassigned) == 0);
    // Client 4 of 4 has no register.
    store(&chip, 32, &[0; 8]);
    assert_eq!((points(&sink).len(), chip.count(Counter::Unassigned)), (0, 1));
}

#[test]
fn two_vcpus_on_one_client_lose_and_invent_nothing() {
    const EACH: u64 = 20_000;
    let (chip, sink) = chip();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let chip = &chip;
            scope.spawn(move || {
                for i in 0..EACH {
                    store(chip, 8, &(thread << 32 | i).to_le_bytes());
                }
            });
        }
    });
    let mut found: Vec<u64> = points(&sink).iter().map(|p| p.words[2]).collect();
    found.sort_unstable();
    let all: Vec<u64> = (0..2).flat_map(|t| (0..EACH).map(move |i| t << 32 | i)).collect();
    assert!(found == all);
}

#[test]
fn a_slot_that_changes_while_it_is_read_is_bounded() {
    let (chip, sink) = chip();
    let done = AtomicBool::new(false);
    let mut calls = 0u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Headers of every kind, word by word.
            let memory = client(&chip, 0);
            let mut random = 1u64;
            while !done.load(Relaxed) {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let word = random >> 60;
                let value = match word {
                    0 => 1 | (random >> 20 & 31) << 32,
                    3 => random >> 24 & 511,
                    _ => random,
                };
                memory.guest[guest_page::SLOT + word as usize].store(value, Release);
            }
        });
        let _end = Done(&done);
        // On a busy machine, this thread may finish all calls before the other thread has run, so the loop
        // also waits for the first store of that thread.
        while calls < 100_000 || chip.count(Counter::SlotWords) == 0 {
            let seq = 1 + calls % 2;
            calls += 1;
            store(&chip, at(0, register::EMIT), &seq.to_le_bytes());
            let (answered, status) = reply(&client(&chip, 0));
            assert!(u64::from(answered) == seq && (status == 0 || status == 3));
        }
    });
    let found = points(&sink);
    let fits = |p: &Point| p.client == 0 && p.id >= id::FIRST && p.words.len() <= SLOT_WORDS;
    assert!(found.iter().all(fits));
    let faults = [Counter::SlotSequence, Counter::SlotWords, Counter::SlotId];
    let faults: u64 = faults.map(|counter| chip.count(counter)).iter().sum();
    assert_eq!(found.len() as u64 + faults, calls);
}

/// A model of the registers that follows the specification.
#[derive(Default)]
struct Model {
    shadows: BTreeMap<u64, [u8; 8]>,
    counts: BTreeMap<&'static str, u64>,
    legacy: Vec<(u32, u64)>,
    lease: [u64; 4],
}

impl Model {
    fn store(&mut self, offset: u64, data: &[u8]) {
        let g = geometry();
        let mut count = |name| *self.counts.entry(name).or_default() += 1;
        let len = data.len() as u64;
        if ![1, 2, 4, 8].contains(&len) || !offset.is_multiple_of(len) {
            return count("register_width");
        }
        if (g.kick_offset()..g.kick_offset() + 8).contains(&offset) {
            return if offset % 8 + len == 8 {
                count("kick_trapped")
            };
        }
        let (client, kind) = match offset.checked_sub(g.control_pages_offset()) {
            None => (offset / 8, None),
            Some(offset) => (offset / 4096, Some((offset % 4096) & !7)),
        };
        let exists = matches!(kind, None | Some(register::EMIT | register::LEASE));
        if client >= u64::from(g.clients) || !exists {
            return count("register_unassigned");
        }
        let shadow = self.shadows.entry(offset & !7).or_default();
        shadow[offset as usize % 8..][..data.len()].copy_from_slice(data);
        if offset % 8 + len < 8 {
            return;
        }
        let value = u64::from_le_bytes(*shadow);
        match kind {
            None => self.legacy.push((client as u32, value)),
            // No slot was ever written, so the seq and the id of each slot are 0.
            Some(register::EMIT) if value as u32 == 0 => count("slot_id"),
            Some(register::EMIT) => count("slot_sequence"),
            _ if value == 0 => count("lease_zero"),
            _ => self.lease[client as usize] = value,
        }
    }
}

fn any_offset() -> impl Strategy<Value = u64> {
    let pages = geometry().control_pages_offset();
    prop_oneof![
        4 => 0..40u64,
        8 => (0..4u64, 0..48u64).prop_map(move |(client, at)| pages + client * 4096 + at),
        2 => pages - 4096..pages - 4096 + 0x20,
        1 => 0..2 * pages + 5 * 4096,
        1 => any::<u64>(),
    ]
}

fn any_data() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![8 => Just(1), 4 => Just(2), 4 => Just(4), 4 => Just(8), 1 => 0..=16usize];
    let byte = prop_oneof![Just(0u8), any::<u8>()];
    len.prop_flat_map(move |len| proptest::collection::vec(byte.clone(), len))
}

proptest! {
    #[test]
    fn stores_of_any_width_do_what_the_specification_says(
        stores in proptest::collection::vec((any_offset(), any_data()), 1..200)
    ) {
        let (chip, sink) = chip();
        let mut model = Model::default();
        let before = counters(&chip);
        for (offset, data) in stores {
            store(&chip, offset, &data);
            model.store(offset, &data);
        }
        let counts: BTreeMap<_, _> = counted(&chip, &before).into_iter().collect();
        prop_assert_eq!(counts, model.counts);
        let legacy: Vec<_> = points(&sink).iter().map(|p| (p.client, p.words[2])).collect();
        prop_assert_eq!(legacy, model.legacy);
        let lease = [0, 1, 2, 3].map(|c| client(&chip, c).host[host_page::LEASE].load(Relaxed));
        prop_assert_eq!(lease, model.lease);
    }
}
