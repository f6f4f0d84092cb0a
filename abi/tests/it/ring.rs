// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ring, with a producer and a consumer on one or two threads.

use crate::common;
use common::{Memory, Seen, emit, pull};
use hypertrace_abi::atomic::AtomicU64;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{DynamicEvent, Words};
use hypertrace_abi::event_type;
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::record::{HEADER_WORDS, Header, id};
use hypertrace_abi::ring::{
    Consumer, ConsumerState, Emit, Fault, Flow, Logged, NewRecord, ProducerState,
};
use hypertrace_abi::schema::{MAX_SCHEMAS, id_of};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// A guard that ends another thread's loop, even if an assertion fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn records_come_out_as_they_went_in() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    let mut seen = Vec::new();
    for i in 0..1000 {
        assert_eq!(emit(&producer, 10 + i, i), Emit::Recorded);
        let pulled = pull(&memory, &mut host, usize::MAX, &mut seen);
        assert_eq!(pulled.token, 7);
    }
    assert_eq!(seen[0].1, id::LEASE);
    let values: Vec<u64> = seen[1..].iter().map(|s| s.2[0]).collect();
    assert_eq!(values, (0..1000).collect::<Vec<_>>());
    assert_eq!(Consumer::new(memory.client(), &mut host).faults(), [0; 13]);
}

#[test]
fn a_schema_reaches_the_host_once_before_its_first_record() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    for i in 0..5 {
        emit(&producer, i + 1, i);
    }
    let mut consumer = Consumer::new(memory.client(), &mut host);
    assert_eq!(consumer.next_schema().unwrap().bytes(), b"value(value:u64)");
    assert!(consumer.next_schema().is_none());
}

#[test]
fn a_text_is_written_once_whatever_the_number_of_types() {
    let mut memory = Memory::new(1 << 16, 1 << 10, RingMode::Overwrite);
    memory.schema = common::words(1 << 13);
    let state = ProducerState::new();
    let producer = memory.producer(&state, 7);
    let events: Vec<_> = (0..1200).map(|n| DynamicEvent::new(format!("e{n}(n:u64)"))).collect();
    let written = || {
        for event in &events {
            assert_eq!(producer.emit((event, (1u64,)), || 5), Emit::Recorded);
        }
        memory.guest[guest_page::SCHEMA_LEN].load(Ordering::Relaxed)
    };
    // The host knows at most `MAX_SCHEMAS` texts of a client.
    let texts = &events[..MAX_SCHEMAS];
    let all: usize = texts.iter().map(|event| 1 + event.as_str().len().div_ceil(8)).sum();
    assert_eq!([written(), written()], [all as u64; 2]);
}

/// Appends a text to the log, whose end is `written`, as a producer does.
fn append(memory: &Memory, written: &mut u64, text: &str) {
    let mut put = |word: u64| {
        memory.schema[*written as usize % memory.schema.len()].store(word, Ordering::Relaxed);
        *written += 1;
    };
    put(u64::from(id_of(text)) | (text.len() as u64) << 32);
    for bytes in text.as_bytes().chunks(8) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        put(u64::from_le_bytes(word));
    }
    memory.guest[guest_page::SCHEMA_LEN].store(*written, Ordering::Release);
}

#[test]
fn a_schema_log_that_stays_full_does_not_delay_the_pull() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (mut host, mut written) = (ConsumerState::default(), 0);
    append(&memory, &mut written, "a()");
    let mut consumer = Consumer::new(memory.client(), &mut host);
    let mut read = 0;
    while consumer.next_schema().is_some() {
        read += 1;
        consumer.commit_schemas();
        append(&memory, &mut written, "a()");
        assert!(read <= memory.schema.len(), "more than there were");
    }
    assert_eq!(read, 1);
}

#[test]
fn a_log_may_be_read_in_parts_and_no_record_is_taken_before_its_text() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let (mut written, mut texts, mut seen) = (0, Vec::new(), Vec::new());
    for n in 0..8 {
        append(&memory, &mut written, &format!("e{n}()"));
    }
    let producer = memory.producer(&state, 7);
    emit(&producer, 2, 2);
    // Each turn of the loop makes a new consumer, which reads one text.
    loop {
        let mut consumer = Consumer::new(memory.client(), &mut host);
        match consumer.next_schema() {
            Some(text) => texts.push(text.id),
            None => {
                consumer.pull(&mut [], |_, record| {
                    let Header { timestamp, id, .. } = record.header;
                    assert!(id < id::FIRST || texts.contains(&id), "{timestamp} before its text");
                    seen.push(timestamp);
                    Flow::Taken
                });
                consumer.commit();
                break;
            }
        }
        consumer.commit_schemas();
        // This record and its text are emitted after the consumer has begun.
        let (site, fields) = event_type!("later", x = 1u64);
        producer.emit((site, fields), || 10 + texts.len() as u64);
    }
    assert_eq!((texts.len(), seen.len()), (10, 12));
}

#[test]
fn a_known_text_is_not_copied() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (mut host, mut written) = (ConsumerState::default(), 0);
    // A text longer than a word, a shorter text, and a text that begins like another text.
    let texts = ["known(x:u64)", "k()", "known(x:u64,y:u64)"];
    for text in texts {
        append(&memory, &mut written, text);
    }
    let mut consumer = Consumer::new(memory.client(), &mut host);
    for text in texts {
        let known = |id| Some(text).filter(|text| id == id_of(text));
        assert!(matches!(consumer.next_schema_beside(known), Some(Logged::Known)), "{text}");
    }
    assert!(consumer.next_schema_beside(|_| None).is_none());
    let mut host = ConsumerState::default();
    let mut consumer = Consumer::new(memory.client(), &mut host);
    for text in texts {
        // The caller may know another text under the same id.
        let Some(Logged::Text(read)) = consumer.next_schema_beside(|_| Some("known(x:u6?)")) else {
            panic!("{text} is taken for another");
        };
        assert_eq!(read.bytes(), text.as_bytes());
    }
}

#[test]
fn a_consumer_that_is_paused_reads_texts_takes_nothing_and_loses_nothing() {
    for mode in [RingMode::Discard, RingMode::Overwrite] {
        let memory = Memory::new(256, 16, mode);
        let (state, mut host) = (ProducerState::new(), ConsumerState::default());
        let producer = memory.producer(&state, 7);
        emit(&producer, 2, 2);
        let mut consumer = Consumer::new(memory.client(), &mut host);
        assert!(consumer.has_more());
        consumer.pause();
        assert_eq!(consumer.next_schema().unwrap().bytes(), b"value(value:u64)");
        assert!(consumer.next_schema().is_none() && !consumer.has_schemas());
        let mut stage = vec![0; consumer.stage_words()];
        let pulled = consumer.pull(&mut stage, |_, _| Flow::Taken);
        consumer.commit();
        assert_eq!((pulled.records, pulled.more), (0, false));
        let mut seen = Vec::new();
        pull(&memory, &mut host, usize::MAX, &mut seen);
        assert_eq!(seen.len(), 2);
    }
}

#[test]
fn one_pull_reads_a_bounded_part_of_a_large_ring() {
    let memory = Memory::new(1 << 18, 1 << 10, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    let mut now = 1;
    while emit(&producer, now, now) == Emit::Recorded {
        now += 1;
    }
    let (mut pulls, mut taken) = (0, 0);
    loop {
        let pulled = pull(&memory, &mut host, usize::MAX, &mut Vec::new());
        assert!(pulled.end - pulled.begin <= (1 << 15) + (1 << 10), "{pulled:?}");
        (pulls, taken) = (pulls + 1, taken + pulled.records);
        if !pulled.more {
            break;
        }
    }
    assert!(pulls >= 7 && taken == now, "{taken} records of {now} in {pulls} pulls");
}

#[test]
fn rolled_back_records_are_taken_again() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    for i in 0..20 {
        emit(&producer, i + 1, i);
    }
    let mut first = 0;
    let mut consumer = Consumer::new(memory.client(), &mut host);
    consumer.pull(&mut [], |_, _| {
        first += 1;
        Flow::Taken
    });
    consumer.rollback();
    let mut seen = Vec::new();
    pull(&memory, &mut host, usize::MAX, &mut seen);
    assert_eq!((first, seen.len()), (21, 21));
}

#[test]
fn there_is_never_room_for_a_record_larger_than_a_block() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let state = ProducerState::new();
    let producer = memory.producer(&state, 1);
    let most = memory.client().max_record_words();

    assert!(producer.has_room(1, most));
    assert!(!producer.has_room(1, most + 1));
    assert!(!producer.has_room(u64::MAX, 2));
    assert!(!producer.has_room(u64::MAX, most));
}

#[test]
fn an_empty_ring_has_room_for_a_burst_of_most_of_its_words() {
    let memory = Memory::new(1 << 10, 1 << 7, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 1);
    assert_eq!(emit(&producer, 1, 1), Emit::Recorded);
    pull(&memory, &mut host, usize::MAX, &mut Vec::new());

    assert!(producer.has_room(800 / 3, 3));
}

#[test]
fn a_new_holder_continues_in_a_new_block_with_its_own_token() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let mut host = ConsumerState::default();
    let mut tokens = Vec::new();
    for token in 1..=5 {
        let state = ProducerState::new();
        let producer = memory.producer(&state, token);
        emit(&producer, token * 10, token);
        producer.release();
        assert_eq!(emit(&producer, token * 10 + 1, 0), Emit::Unleased);
    }
    loop {
        let mut seen = Vec::new();
        let pulled = pull(&memory, &mut host, usize::MAX, &mut seen);
        if pulled.records == 0 {
            break;
        }
        tokens.push((pulled.token, pulled.sequence, pulled.records));
    }
    assert_eq!(tokens, (1..=5).map(|t| (t, (t - 1) * 2, 2)).collect::<Vec<_>>());
    let mut consumer = Consumer::new(memory.client(), &mut host);
    assert_eq!((consumer.faults(), consumer.losses().total()), ([0; 13], 0));
}

#[test]
fn a_lease_record_that_waited_for_room_has_the_time_at_which_it_was_written() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let before = memory.producer(&state, 1);
    while emit(&before, 10, 0) == Emit::Recorded {}
    before.release();
    let producer = memory.producer(&state, 2);
    pull(&memory, &mut host, usize::MAX, &mut Vec::new());

    assert_eq!(emit(&producer, 1_000_000, 7), Emit::Recorded);
    let mut seen = Vec::new();
    pull(&memory, &mut host, usize::MAX, &mut seen);

    let times: Vec<_> = seen.iter().map(|(time, id, _)| (*time, *id == id::LEASE)).collect();
    assert_eq!(times, [(1_000_000, true), (1_000_000, false)]);
}

#[test]
fn a_lying_producer_is_counted_and_does_not_harm_the_host() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let mut host = ConsumerState::default();
    let mut seen = Vec::new();
    for head in [257, u64::MAX, 3, 1, 0, 1 << 63, 12345] {
        memory.guest[guest_page::HEAD].store(head, Ordering::Relaxed);
        pull(&memory, &mut host, usize::MAX, &mut seen);
    }
    let consumer = Consumer::new(memory.client(), &mut host);
    assert!(consumer.faults()[Fault::Head as usize] >= 3);
    // After all these false heads, the host still takes the records of an honest holder.
    let state = ProducerState::new();
    let producer = memory.producer(&state, 9);
    seen.clear();
    for i in 0..100 {
        emit(&producer, 100 + i, i);
        pull(&memory, &mut host, usize::MAX, &mut seen);
    }
    assert!(seen.iter().filter(|s| s.2.len() == 1).count() >= 99, "{}", seen.len());
}

#[test]
fn a_head_within_a_blocks_header_makes_no_record_longer_than_a_block_has_room_for() {
    let memory = Memory::new(256, 16, RingMode::Discard);
    let mut host = ConsumerState::default();
    let mut seen = Vec::new();
    memory.guest[guest_page::HEAD].store(1, Ordering::Relaxed);
    pull(&memory, &mut host, usize::MAX, &mut seen);
    // A record from the second word of the block's header to the block's end.
    memory.ring[2].store(u64::from(id::FIRST) | 13 << 32, Ordering::Relaxed);
    memory.guest[guest_page::HEAD].store(16, Ordering::Relaxed);

    pull(&memory, &mut host, usize::MAX, &mut seen);

    let consumer = Consumer::new(memory.client(), &mut host);
    assert!(seen.iter().all(|record| record.2.len() <= consumer.max_payload_words()), "{seen:?}");
    assert_eq!(consumer.faults()[Fault::Length as usize], 1);
}

/// Emits `count` records of random sizes on one thread while another thread takes them. Checks order, content
/// and sums.
fn race(ring: usize, block: u64, mode: RingMode, count: u64, stall: u64) -> (u64, u64) {
    let memory = Memory::new(ring, block, mode);
    let done = AtomicBool::new(false);
    let mut host = ConsumerState::default();
    let mut next = 0;
    let mut taken = 0;
    let check = |next: &mut u64, taken: &mut u64, seen: &mut Vec<Seen>| {
        for (timestamp, id, payload) in seen.drain(..) {
            if id == id::LEASE {
                continue;
            }
            assert!(timestamp > *next, "order: {timestamp} after {next}");
            for (i, &word) in payload.iter().enumerate() {
                assert_eq!(word, timestamp.wrapping_mul(i as u64 + 3), "torn");
            }
            *next = timestamp;
            *taken += 1;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let state = ProducerState::new();
            let producer = memory.producer(&state, 7);
            let most = (memory.client().max_record_words() - 2).min(6);
            for now in 1..=count {
                let len = now.wrapping_mul(0x9e37_79b9) >> 7 & 7;
                let payload: [u64; 8] = std::array::from_fn(|i| now.wrapping_mul(i as u64 + 3));
                let payload = &payload[..len.min(most) as usize];
                producer.emit(NewRecord::of_id(99, Words(payload)), || now);
                if stall > 0 && now % stall == 0 {
                    std::thread::yield_now();
                }
            }
            producer.refresh(count + 1);
            done.store(true, Ordering::Release);
        });
        let mut seen = Vec::new();
        loop {
            let last = done.load(Ordering::Acquire);
            let most = if stall == 0 { usize::MAX } else { stall as usize };
            while pull(&memory, &mut host, most, &mut seen).more {
                check(&mut next, &mut taken, &mut seen);
            }
            check(&mut next, &mut taken, &mut seen);
            if last {
                break;
            }
        }
    });
    let mut consumer = Consumer::new(memory.client(), &mut host);
    let losses = consumer.losses();
    assert_eq!(consumer.faults(), [0; 13]);
    let lease = u64::from(mode == RingMode::Overwrite);
    // In overwrite mode, the lease record may be among the lost records.
    let sum = taken + losses.total();
    assert!(sum == count || sum == count + lease, "{taken} + {losses:?} != {count}");
    (taken, losses.total())
}

#[test]
fn two_million_records_across_threads_are_exact() {
    for mode in [RingMode::Discard, RingMode::Overwrite] {
        let (taken, lost) = race(1 << 12, 1 << 7, mode, 1_000_000, 0);
        assert!(taken > 0, "{mode:?}: nothing taken, {lost} lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn emitted_is_recorded_plus_lost(
        block_bits in 4u32..8,
        blocks_bits in 4u32..7,
        overwrite: bool,
        count in 1u64..200_000,
        stall in 0u64..500,
    ) {
        let mode = if overwrite { RingMode::Overwrite } else { RingMode::Discard };
        race(1 << (block_bits + blocks_bits), 1 << block_bits, mode, count, stall);
    }

    #[test]
    fn records_that_have_room_are_recorded(
        bursts in proptest::collection::vec(
            (1u64..40, proptest::collection::vec(0usize..13, 1..6), 0usize..30), 1..200,
        ),
    ) {
        let memory = Memory::new(256, 16, RingMode::Discard);
        let (state, mut host) = (ProducerState::new(), ConsumerState::default());
        let producer = memory.producer(&state, 1);
        let mut now = 0;
        for (records, sizes, pulled) in bursts {
            let most = sizes.iter().max().unwrap() + HEADER_WORDS;
            if producer.has_room(records, most as u64) {
                for (&words, _) in sizes.iter().cycle().zip(0..records) {
                    now += 1;
                    let record = producer.emit(NewRecord::of_id(1 << 20, Words(&[7; 13][..words])), || now);
                    prop_assert_eq!(record, Emit::Recorded);
                }
            }
            pull(&memory, &mut host, pulled, &mut Vec::new());
        }
    }

    #[test]
    fn a_head_that_moves_all_the_time_leaves_every_pull_bounded_by_the_ring(
        heads in proptest::collection::vec(
            prop_oneof![
                0u64..2048,
                (1u64 << 62) - 2048..(1u64 << 62) + 2048,
                (1u64 << 63) - 2048..(1u64 << 63) + 2048,
                u64::MAX - 2048..=u64::MAX,
                any::<u64>(),
            ],
            2..16,
        ),
        overwrite: bool,
        are_records: bool,
    ) {
        let mode = if overwrite { RingMode::Overwrite } else { RingMode::Discard };
        let mut memory = ring_of_empty_records();
        memory.mode = mode;
        if !are_records {
            // Every block contains pads, and records that cross the block's end.
            memory.ring.iter().step_by(3).for_each(|w| w.store(u64::MAX << 32, Ordering::Relaxed));
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _done = Done(&done);
                for head in heads.iter().cycle().take(20_000) {
                    memory.guest[guest_page::HEAD].store(*head, Ordering::Relaxed);
                    // A pull loads head when it begins, and again in its middle, so either load may see this
                    // head.
                    (0..32).for_each(|_| std::hint::spin_loop());
                }
            });
            let mut host = ConsumerState::default();
            let mut pulls = 0;
            while !done.load(Ordering::Relaxed) {
                let mut consumer = Consumer::new(memory.client(), &mut host);
                bounded_pull(&mut consumer, memory.ring.len());
                pulls += 1;
                if pulls % 3 > 0 { consumer.commit() } else { consumer.rollback() }
            }
        });
    }

    #[test]
    fn any_memory_is_read_without_harm(
        ring in proptest::collection::vec(any::<u64>(), 256),
        pages in proptest::collection::vec((0usize..20, any::<u64>()), 0..10),
        heads in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..1024], 1..20),
        overwrite: bool,
    ) {
        let mode = if overwrite { RingMode::Overwrite } else { RingMode::Discard };
        let memory = Memory::new(256, 16, mode);
        for (to, from) in memory.ring.iter().zip(&ring) {
            to.store(*from, Ordering::Relaxed);
        }
        for (at, value) in pages {
            memory.guest[at].store(value, Ordering::Relaxed);
        }
        let mut host = ConsumerState::default();
        for head in heads {
            memory.guest[guest_page::HEAD].store(head, Ordering::Relaxed);
            let mut consumer = Consumer::new(memory.client(), &mut host);
            while consumer.next_schema().is_some() {}
            consumer.commit_schemas();
            consumer.losses();
            let mut stage = vec![0; consumer.stage_words()];
            let mut records = 0;
            consumer.pull(&mut stage, |_, record| {
                records += record.payload.len() + 2;
                Flow::Taken
            });
            assert!(records <= 256);
            consumer.commit();
        }
    }
}

/// Makes a ring that consists of records without a payload.
fn ring_of_empty_records() -> Memory {
    let memory = Memory::new(1 << 10, 64, RingMode::Overwrite);
    for word in memory.ring.iter().skip(1).step_by(2) {
        word.store(id::FIRST.into(), Ordering::Relaxed);
    }
    memory
}

/// Pulls once, and checks that the pull ends within the ring's capacity. Returns the number of words in
/// visited records.
fn bounded_pull(consumer: &mut Consumer<'_>, capacity: usize) -> usize {
    let mut stage = vec![0; consumer.stage_words()];
    let (faults, mut visited) = (consumer.faults(), 0);
    let end = consumer.head();
    let pulled = consumer.pull(&mut stage, |_, record| {
        visited += 2 + record.payload.len();
        assert!(visited <= capacity, "a pull visits more than the ring holds");
        Flow::Taken
    });
    assert!(pulled.end.wrapping_sub(end) as i64 <= 0, "beyond the head of its begin: {pulled:?}");
    // Blocks without a record take time, too. Each block counts at most three faults.
    let counted: u64 = consumer.faults().iter().zip(faults).map(|(now, before)| now - before).sum();
    assert!(counted <= 1 + 3 * (capacity as u64 / 64 + 2), "{counted} faults");
    visited
}

#[test]
fn a_head_that_goes_back_during_a_pull_leaves_it_bounded_by_the_ring() {
    for tail in [0, 8] {
        let memory = ring_of_empty_records();
        let head = |value: u64| memory.guest[guest_page::HEAD].store(value, Ordering::Relaxed);
        let mut state = ConsumerState::default();
        head(tail);
        pull(&memory, &mut state, usize::MAX, &mut Vec::new());
        head(1 << 62);
        let mut consumer = Consumer::new(memory.client(), &mut state);
        head(8);
        assert!(bounded_pull(&mut consumer, 1 << 10) > 0);
    }
}

#[test]
fn a_producer_that_laps_the_consumer_exactly_is_no_fault() {
    let memory = Memory::new(256, 16, RingMode::Overwrite);
    let (state, mut host) = (ProducerState::new(), ConsumerState::default());
    let producer = memory.producer(&state, 7);
    let head = || memory.guest[guest_page::HEAD].load(Ordering::Relaxed);
    let mut now = 1;
    let mut emit_to = |target: u64| {
        // The last record fills its block, so that head can be at a block's beginning.
        while head() < target {
            now += 1;
            let left = 16 - head() % 16;
            let words = if left == 16 || left < 2 { 12 } else { left as usize - 2 };
            producer.emit(NewRecord::of_id(99, Words(&[0; 12][..words])), || now);
        }
        assert_eq!(head(), target);
        now
    };
    // The lease record and one more record fill a block.
    emit_to(64);
    let mut consumer = Consumer::new(memory.client(), &mut host);
    // After these records, the head that the consumer has loaded is the oldest position left in the ring.
    let emitted = emit_to(64 + 256 - 2 * 16);
    let mut stage = [0; 16];
    let pulled = consumer.pull(&mut stage, |_, _| Flow::Taken);
    assert_eq!((pulled.records, pulled.end, consumer.faults()), (0, 64, [0; 13]));
    consumer.commit();
    let mut seen = Vec::new();
    pull(&memory, &mut host, usize::MAX, &mut seen);
    let mut consumer = Consumer::new(memory.client(), &mut host);
    assert_eq!(consumer.faults(), [0; 13]);
    assert_eq!(seen.len() as u64 + consumer.losses().total(), emitted);
}

#[test]
fn a_head_near_the_largest_number_does_not_prevent_a_release() {
    let memory = ring_of_empty_records();
    let state = ProducerState::new();
    let producer = memory.producer(&state, 7);
    /// A field that unwinds out of its own emit, as a `siglongjmp` can do.
    #[derive(Clone, Copy)]
    struct Jumps;
    impl hypertrace_abi::event::Field for Jumps {
        const TYPE: hypertrace_abi::schema::FieldType = hypertrace_abi::schema::FieldType::U64;
        fn words(self) -> usize {
            1
        }
        fn put(self, _: &[AtomicU64]) {
            std::panic::resume_unwind(Box::new(()));
        }
    }
    let (site, fields) = event_type!("jumps", x = Jumps);
    let left = std::panic::AssertUnwindSafe(|| producer.emit((site, fields), || 4));
    std::panic::catch_unwind(left).unwrap_err();
    assert_eq!(state.interrupted_since(), Some(4));
    // Another program that maps the same segment overwrites the ring.
    for word in memory.ring.iter().skip(1).step_by(2) {
        word.store(0xffff << 32 | u64::from(id::FIRST), Ordering::Relaxed);
    }
    memory.guest[guest_page::HEAD].store(u64::MAX, Ordering::Relaxed);
    producer.release();
    assert!(!state.is_leased());
    assert_eq!(memory.guest[guest_page::LOST_BUSY].load(Ordering::Relaxed), 1);
}

#[test]
fn a_head_that_jumps_during_a_pull_does_not_extend_it() {
    let memory = ring_of_empty_records();
    let head = |value: u64| memory.guest[guest_page::HEAD].store(value, Ordering::Relaxed);
    let mut state = ConsumerState::default();
    let begin = 1 << 60;
    head(begin);
    pull(&memory, &mut state, usize::MAX, &mut Vec::new());
    let end = begin + (u64::MAX >> 1);
    head(end);
    let mut consumer = Consumer::new(memory.client(), &mut state);
    let mut stage = vec![0; consumer.stage_words()];
    head(begin + (1 << 62));
    let pulled = consumer.pull(&mut stage, |_, _| {
        head(end + (1 << 62));
        Flow::Taken
    });
    assert!(pulled.begin <= pulled.end && pulled.end <= end, "{pulled:?}");
}
