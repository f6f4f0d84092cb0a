// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the times at which a producer wakes the reader of the producer's ring.

use crate::common;
use common::{Memory, pull};
use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{DynamicEvent, Text};
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{guest_page, host_page};
use hypertrace_abi::ring::{ConsumerState, Emit, Producer, ProducerState, Wake};
use std::cell::Cell;

/// Longest time between two emits that wakes nobody, in ticks.
const PAUSE: u64 = 100;

/// A waker that counts its calls.
#[derive(Debug, Default)]
struct Bell(AtomicU64);

impl Bell {
    fn calls(&self) -> u64 {
        self.0.swap(0, Relaxed)
    }
}

impl Wake for Bell {
    fn wake(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn emit(producer: &Producer<'_>, now: u64) {
    assert_eq!(common::emit(producer, now, 0), Emit::Recorded);
}

#[test]
fn an_event_after_a_pause_wakes_the_reader_once() {
    for mode in [RingMode::Discard, RingMode::Overwrite] {
        let (memory, state, bell) =
            (Memory::new(4096, 256, mode), ProducerState::new(), Bell::default());
        let producer = memory.producer(&state, 7).waking(&bell, PAUSE);
        emit(&producer, 50);
        emit(&producer, 50 + PAUSE);
        assert_eq!(bell.calls(), 0, "{mode:?}: no pause is longer than {PAUSE}");
        emit(&producer, 51 + 2 * PAUSE);
        assert_eq!(bell.calls(), 1, "{mode:?}");
        emit(&producer, 52 + 2 * PAUSE);
        assert_eq!(bell.calls(), 0, "{mode:?}: the reader is awake");
    }
}

#[test]
fn an_event_that_another_overtook_wakes_nobody() {
    let (memory, state, bell) =
        (Memory::new(4096, 256, RingMode::Discard), ProducerState::new(), Bell::default());
    let producer = memory.producer(&state, 7).waking(&bell, PAUSE);
    emit(&producer, 90);
    let times = Cell::new(80);
    let clock = || times.replace(91);
    let (site, fields) = event_type!("value", n = 0u64);
    assert_eq!(producer.emit((site, fields), clock), Emit::Recorded);
    let mut seen = Vec::new();
    pull(&memory, &mut ConsumerState::default(), 9, &mut seen);
    assert_eq!(seen.last().map(|(time, ..)| *time), Some(91), "read again");
    assert_eq!(bell.calls(), 0);
}

#[test]
fn an_event_after_the_clock_was_set_back_wakes_the_reader() {
    let (memory, state, bell) =
        (Memory::new(4096, 256, RingMode::Discard), ProducerState::new(), Bell::default());
    let producer = memory.producer(&state, 7).waking(&bell, PAUSE);
    emit(&producer, 90);
    emit(&producer, 10);
    assert_eq!(bell.calls(), 1);
}

#[test]
fn a_look_at_an_idle_ring_and_a_reference_point_wake_nobody() {
    let (memory, state, bell) =
        (Memory::new(4096, 256, RingMode::Discard), ProducerState::new(), Bell::default());
    let producer = memory.producer(&state, 7).waking(&bell, PAUSE);
    producer.refresh(1000 * PAUSE);
    let (site, fields) = event_type!("value", n = 0u64);
    producer.slot(site, || 2000 * PAUSE, || 1, 0, fields, |_, _| ()).unwrap();
    assert_eq!(bell.calls(), 0);
}

#[test]
fn a_ring_that_discards_wakes_the_reader_from_a_quarter_on() {
    let (memory, state, bell) =
        (Memory::new(1024, 64, RingMode::Discard), ProducerState::new(), Bell::default());
    let producer = memory.producer(&state, 7).waking(&bell, u64::MAX);
    let used = || producer.memory().guest[guest_page::HEAD].load(Relaxed);
    while used() < 256 - 64 {
        emit(&producer, 1);
    }
    assert_eq!(bell.calls(), 0);
    while used() <= 256 {
        emit(&producer, 1);
    }
    assert!(bell.calls() > 0);
}

/// Returns a producer whose ring is more than a quarter full, in the middle of a block. Resets the count of
/// the bell.
fn beyond_a_quarter<'m>(
    memory: &'m Memory,
    state: &'m ProducerState,
    bell: &'m Bell,
) -> Producer<'m> {
    let producer = memory.producer(state, 7).waking(bell, PAUSE);
    let used = || memory.guest[guest_page::HEAD].load(Relaxed);
    while used() <= memory.ring.len() as u64 / 4 {
        emit(&producer, 1);
    }
    bell.calls();
    producer
}

/// Returns `count` events with ids that are equal in their low 12 bits. A producer's table of known ids uses
/// fewer bits as its index.
fn alike(count: usize) -> Vec<DynamicEvent<String>> {
    let events = (0u32..).map(|n| DynamicEvent::new(format!("e{n}(n:u64)")));
    events.filter(|event| Text::id(event).is_multiple_of(1 << 12)).take(count).collect()
}

#[test]
fn known_ids_that_are_alike_wake_nobody_and_load_nothing_from_the_host() {
    for count in [2, 3, 60] {
        let mut memory = Memory::new(1 << 16, 1 << 10, RingMode::Discard);
        memory.schema = common::words(1 << 12);
        let (state, bell) = (ProducerState::new(), Bell::default());
        let producer = beyond_a_quarter(&memory, &state, &bell);
        let events = alike(count);
        let emit = |event| producer.emit((event, (5u64,)), || 1);
        for event in &events {
            assert_eq!(emit(event), Emit::Recorded);
        }
        bell.calls();
        let texts = memory.guest[guest_page::SCHEMA_LEN].load(Relaxed);

        // A producer that loads this tail finds a full ring.
        memory.host[host_page::TAIL].store(u64::MAX, Relaxed);
        for event in events.iter().cycle().take(180) {
            assert_eq!(emit(event), Emit::Recorded, "{count} ids");
        }
        assert_eq!(bell.calls(), 0, "{count} ids");
        assert_eq!(memory.guest[guest_page::SCHEMA_LEN].load(Relaxed), texts);
    }
}

#[test]
fn events_that_find_no_room_wake_the_reader_once_a_pause() {
    let (memory, state, bell) =
        (Memory::new(1024, 64, RingMode::Discard), ProducerState::new(), Bell::default());
    let producer = beyond_a_quarter(&memory, &state, &bell);
    while common::emit(&producer, 1, 0) == Emit::Recorded {}
    bell.calls();

    // These emits come within the pause after the last record, so nobody is woken.
    for now in 1..=1 + PAUSE {
        assert_eq!(common::emit(&producer, now, 0), Emit::Full);
    }
    assert_eq!(bell.calls(), 0);
    // These emits last for ten pauses.
    for now in 1..=10 * (PAUSE + 1) {
        assert_eq!(common::emit(&producer, 1 + PAUSE + now, 0), Emit::Full);
    }
    assert_eq!(bell.calls(), 10);
}

#[test]
fn a_block_that_is_opened_wakes_the_reader_once() {
    let (memory, state, bell) =
        (Memory::new(1024, 64, RingMode::Discard), ProducerState::new(), Bell::default());
    let producer = beyond_a_quarter(&memory, &state, &bell);
    let first = memory.guest[guest_page::HEAD].load(Relaxed) / 64;
    while common::emit(&producer, 1, 0) == Emit::Recorded {}
    let last = (memory.guest[guest_page::HEAD].load(Relaxed) - 1) / 64;
    assert_eq!(bell.calls(), last - first);
}
