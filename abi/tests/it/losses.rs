// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lost events: every lost event is counted, and the count reaches the host.

use crate::common;
use common::{Memory, emit, pull};
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::Words;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::record::{Flags, id};
use hypertrace_abi::ring::{
    Consumer, ConsumerState, Emit, Fault, NewRecord, Producer, ProducerState,
};
use std::sync::atomic::Ordering;

#[test]
fn a_full_ring_drops_and_counts_and_keeps_room_for_reference_points() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    let mut recorded = 0;
    for i in 0..1000 {
        recorded += u64::from(emit(&producer, i + 1, i) == Emit::Recorded);
    }
    let point = producer.emit(
        NewRecord::of_id(id::HYPERTRACE, [Words(&[1]), Words(&[0])])
            .with_flags(Flags::REFERENCE_POINT),
        || 2000,
    );
    assert_eq!(point, Emit::Recorded);
    let mut seen = Vec::new();
    pull(&memory, &mut host, usize::MAX, &mut seen);
    assert_eq!(seen.len() as u64, recorded + 2);
    emit(&producer, 3000, 0);
    let losses = Consumer::new(memory.client(), &mut host).losses();
    assert_eq!(losses.full, 1000 - recorded);
}

#[test]
fn discarded_records_are_counted_and_their_room_given_back() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let mut host = ConsumerState::default();
    for token in 1..=3 {
        let state = ProducerState::new();
        let producer = memory.producer(&state, token);
        emit(&producer, token * 10, token);
        producer.release();
    }
    let mut consumer = Consumer::new(memory.client(), &mut host);
    consumer.discard_unread(&mut []);
    // A holder's lease record is no event, so each holder loses one event.
    assert_eq!(consumer.losses().overwritten, 3);
    let tail = memory.host[0].load(Ordering::Relaxed);
    assert_eq!(tail, memory.guest[guest_page::HEAD].load(Ordering::Relaxed));
    assert!(pull(&memory, &mut host, usize::MAX, &mut Vec::new()).records == 0);
}

#[test]
fn the_loss_of_a_full_ring_is_published_at_once() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let state = ProducerState::new();
    let producer = memory.producer(&state, 1);
    let mut lost = 0;
    for n in 1..200 {
        lost += u64::from(emit(&producer, n, n) == Emit::Full);
        assert_eq!(memory.guest[guest_page::LOST_FULL].load(Ordering::Relaxed), lost);
    }
    assert!(lost > 0);
}

#[test]
fn an_emit_inside_an_emit_is_counted() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    /// A field that emits while it is written, as a signal handler could.
    #[derive(Clone, Copy)]
    struct Emits<'a>(&'a Producer<'a>);
    impl hypertrace_abi::event::Field for Emits<'_> {
        const TYPE: hypertrace_abi::schema::FieldType = hypertrace_abi::schema::FieldType::U64;
        fn words(self) -> usize {
            1
        }
        fn put(self, out: &[AtomicU64]) {
            assert_eq!(emit(self.0, 5, 5), Emit::Busy);
            assert_eq!(self.0.state().interrupted_since(), Some(4));
            // The loss is published at once, because the thread may never emit again.
            let published = &self.0.memory().guest[guest_page::LOST_BUSY];
            assert_eq!(published.load(Ordering::Relaxed), 1);
            out[0].store(1, Ordering::Relaxed);
        }
    }
    let (site, fields) = event_type!("outer", x = Emits(&producer));
    assert_eq!(producer.emit((site, fields), || 4), Emit::Recorded);
    emit(&producer, 6, 6);
    let mut seen = Vec::new();
    pull(&memory, &mut host, usize::MAX, &mut seen);
    assert_eq!(seen.len(), 3);
    assert_eq!(Consumer::new(memory.client(), &mut host).losses().busy, 1);
}

#[test]
fn the_total_of_events_without_a_client_continues_across_holders() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let events = AtomicU64::new(5);
    let first = memory.producer(&state, 7).with_unattached(&events);
    first.refresh(2);
    events.store(1, Ordering::Relaxed);
    first.release();
    events.store(2, Ordering::Relaxed);
    memory.producer(&state, 8).with_unattached(&events).refresh(3);
    assert_eq!(events.into_inner(), 0);

    let mut consumer = Consumer::new(memory.client(), &mut host);
    let losses = consumer.losses();
    assert_eq!((losses.unattached, losses.total()), (8, 8));
    assert_eq!(consumer.faults(), [0; 13]);
    // An impossible total counts as a fault, not as lost events.
    memory.guest[guest_page::LOST_UNATTACHED].store(u64::MAX / 2, Ordering::Relaxed);
    assert_eq!(consumer.losses().unattached, 8);
    assert_eq!(consumer.faults()[Fault::Losses as usize], 1);
}
