// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The drain pass and the enable mask.

use crate::common;
use common::{Call, Done, chip, chip_of, set_mask};
use hypertrace_abi::atomic::Ordering::Relaxed;
use hypertrace_abi::event::Words;
use hypertrace_abi::layout::host_page;
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Emit, Lease, LeaseInfo, NewRecord, Producer, ProducerState,
};
use hypertrace_abi::sink::SessionInfo;
use hypertrace_device::{Chip, ChipConfig, Counter, Region, RingMode};
use proptest::prelude::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire};
use std::time::Duration;

fn client(chip: &Chip, client: u32) -> ClientMemory<'_> {
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    let mode =
        if chip.config_page().ring_mode == 0 { RingMode::Discard } else { RingMode::Overwrite };
    ClientMemory::of_rings(rings, client, chip.geometry(), mode).unwrap()
}

fn lease<'c>(chip: &'c Chip, of: u32, state: &'c ProducerState) -> Producer<'c> {
    let info = LeaseInfo { pid: 1, tid: 1, name: "test" };
    Producer::lease(client(chip, of), state, Lease::new(7, ClockKind::Tsc, 1, &info), false)
}

fn emit(producer: &Producer<'_>, now: u64) -> Emit {
    producer.emit(NewRecord::of_id(99, Words(&[now])), || now)
}

#[test]
fn a_pass_begins_drains_every_client_and_ends() {
    let (chip, sink) = chip();
    assert!(!chip.drain_pass(Duration::from_millis(1)));
    let clients = (0..4).map(Call::Drain);
    let expected: Vec<Call> = [Call::Begin].into_iter().chain(clients).chain([Call::End]).collect();
    assert_eq!(*sink.calls.lock().unwrap(), expected);
}

#[test]
fn the_end_of_a_loop_takes_what_is_left_and_counts_what_the_sink_cannot_take() {
    // The ring has nine events and the lease record, which is no event.
    for (packet, taken, lost) in [(None, 10, 0), (Some(0), 0, 9)] {
        let (chip, sink) = chip();
        *sink.packet.lock().unwrap() = packet;
        let state = ProducerState::new();
        let producer = lease(&chip, 1, &state);
        for now in 2..=10 {
            assert_eq!(emit(&producer, now), Emit::Recorded);
        }

        chip.end_drain();

        assert_eq!(sink.records.lock().unwrap().len(), taken);
        let losses = sink.losses.lock().unwrap();
        assert_eq!(losses.get(&1).map_or(0, |(lost, _)| *lost), lost, "{packet:?}");
    }
}

#[test]
fn a_busy_client_gets_its_budget_and_no_more() {
    let (chip, sink) = chip();
    *sink.packet.lock().unwrap() = Some(2);
    let state = ProducerState::new();
    let producer = lease(&chip, 1, &state);
    for now in 2..=10 {
        assert_eq!(emit(&producer, now), Emit::Recorded);
    }
    let steps = steps();
    let mut passes = 0;
    let mut taken = Vec::new();
    loop {
        // Two steps.
        let more = chip.drain_pass_by(2, &steps);
        passes += 1;
        taken.push(sink.records.lock().unwrap().len());
        let calls = std::mem::take(&mut *sink.calls.lock().unwrap());
        assert!(calls.iter().filter(|c| **c == Call::Drain(1)).count() <= 2);
        assert!(calls.iter().filter(|c| **c == Call::Drain(2)).count() == 1);
        if !more {
            break;
        }
        assert!(passes < 10);
    }
    // A lease record and nine events, two in each drain.
    assert_eq!(taken, [4, 8, 10]);
    let records: Vec<_> = (1..=10).map(|now| (1, now)).collect();
    assert_eq!(*sink.records.lock().unwrap(), records);
    assert_eq!(client(&chip, 1).host[host_page::TAIL].load(Relaxed), state_head(&chip));
}

/// Returns a counter that advances by one tick at each reading.
fn steps() -> impl Fn() -> u64 {
    let now = Cell::new(0);
    move || {
        now.set(now.get() + 1);
        now.get()
    }
}

fn state_head(chip: &Chip) -> u64 {
    client(chip, 1).guest[hypertrace_abi::layout::guest_page::HEAD].load(Relaxed)
}

#[test]
fn a_budget_of_zero_still_visits_every_client() {
    let (chip, sink) = chip();
    assert!(!chip.drain_pass(Duration::ZERO));
    assert_eq!(sink.calls.lock().unwrap().len(), 6);
}

#[test]
fn all_remaining_records_of_an_overwritten_ring_are_drained() {
    let ring_mode = RingMode::Overwrite;
    let (chip, sink) = chip_of(
        &ChipConfig::default(),
        SessionInfo::default().with(|info| info.ring_mode = ring_mode),
    );
    *sink.packet.lock().unwrap() = Some(2);
    let state = ProducerState::new();
    let producer = lease(&chip, 1, &state);
    for now in 2..=10_000 {
        assert_eq!(emit(&producer, now), Emit::Recorded);
    }
    chip.drain_all();
    let records = sink.records.lock().unwrap();
    let times: Vec<u64> = records.iter().map(|(_, now)| *now).collect();
    assert!(
        times.len() > 100
            && times.iter().rev().eq((0..=10_000)
                .rev()
                .take(times.len())
                .collect::<Vec<_>>()
                .iter())
    );
}

#[test]
fn a_trapped_kick_is_counted() {
    let (chip, _) = chip();
    chip.write(Region::Control, chip.geometry().kick_offset(), &[1; 8]);
    assert_eq!(chip.count(Counter::KickTrapped), 1);
}

#[test]
fn a_new_mask_is_complete_before_its_version_changes() {
    let (chip, sink) = chip();
    let mut version = [0; 4];
    for mask in 1..=5u8 {
        set_mask(&chip, &sink, [mask; 4096]);
        let mut page = [0; 4096];
        chip.read(Region::Rings, 0, &mut page);
        assert_eq!(page, [mask; 4096]);
        let versions: [u64; 4] = std::array::from_fn(|c| {
            client(&chip, c as u32).host[host_page::MASK_VERSION].load(Relaxed)
        });
        assert!(versions.iter().zip(version).all(|(now, before)| *now == before + 1));
        version = versions;
    }
}

/// Runs passes while all clients emit on threads of their own. Every event arrives or is counted.
fn race(overwrite: bool, budget: u64, each: u64) {
    let steps = steps();
    let ring_mode = if overwrite { RingMode::Overwrite } else { RingMode::Discard };
    let (chip, sink) = chip_of(
        &ChipConfig::default(),
        SessionInfo::default().with(|info| info.ring_mode = ring_mode),
    );
    *sink.packet.lock().unwrap() = Some(16);
    let done: [AtomicBool; 4] = Default::default();
    let full: [AtomicU64; 4] = Default::default();
    std::thread::scope(|scope| {
        for of in 0..4 {
            let (chip, done, full) = (&chip, &done[of as usize], &full[of as usize]);
            scope.spawn(move || {
                let _end = Done(done);
                let state = ProducerState::new();
                let producer = lease(chip, of, &state);
                for now in 2..2 + each {
                    if emit(&producer, now) == Emit::Full {
                        full.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        while !done.iter().all(|done| done.load(Acquire)) {
            chip.drain_pass_by(budget, &steps);
        }
        chip.drain_all();
    });
    let records = sink.records.lock().unwrap();
    for of in 0..4 {
        let times: Vec<u64> = records.iter().filter(|r| r.0 == of).map(|r| r.1).collect();
        assert!(times.is_sorted_by(|a, b| a < b));
        let full = full[of as usize].load(Relaxed);
        assert!(times.len() as u64 + full <= 1 + each);
        if !overwrite {
            assert_eq!(times.len() as u64 + full, 1 + each);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn everything_arrives_or_is_counted(overwrite: bool, budget in 1u64..5, each in 1u64..5000) {
        race(overwrite, budget, each);
    }
}
