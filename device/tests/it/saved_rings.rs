// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A saved machine contains only small parts of the rings, and these parts are enough for every guest to
//! continue.

use crate::common::Recorder;
use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::Fields;
use hypertrace_abi::layout::{PAGE, Region, guest_page};
use hypertrace_abi::record::ClockKind;
use hypertrace_abi::ring::{
    ClientMemory, Consumer, ConsumerState, Emit, Flow, Lease, LeaseInfo, NewRecord, Producer,
    ProducerState, RingPosition,
};
use hypertrace_abi::schema::FieldType;
use hypertrace_abi::sink::SessionInfo;
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Pages};

/// Rings of 64 pages, and blocks of four pages.
const GEOMETRY: Geometry = Geometry {
    clients: 3,
    legacy_args: 4,
    ring_bytes: 64 * PAGE,
    block_bytes: 4 * PAGE,
    schema_bytes: PAGE,
};

/// The position in an unused ring.
const START: RingPosition =
    RingPosition { position: 0, sequence: Some(0), token: 0, lost: [0; 3], schemas: 0 };

fn chip(ring_mode: RingMode) -> Chip {
    let sink = Recorder {
        facts: SessionInfo::default().with(|info| info.ring_mode = ring_mode),
        ..Recorder::default()
    };
    Chip::new(Memory::anonymous(GEOMETRY).unwrap(), &ChipConfig::default(), sink, ())
}

fn client(chip: &Chip, number: u32, mode: RingMode) -> ClientMemory<'_> {
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    ClientMemory::of_rings(rings, number, &GEOMETRY, mode).unwrap()
}

fn lease<'m>(memory: ClientMemory<'m>, token: u64, state: &'m ProducerState) -> Producer<'m> {
    let info = LeaseInfo { pid: 0, tid: 0, name: "cpu" };
    Producer::lease(memory, state, Lease::new(token, ClockKind::Tsc, 1, &info), false)
}

/// The words 1, 2, .. of an event. The function is called after half of these words are stored.
#[derive(Clone, Copy)]
struct Interrupted<'a>(usize, &'a dyn Fn());

impl Fields for Interrupted<'_> {
    const TYPES: &'static [FieldType] = &[];

    fn words(self) -> usize {
        self.0
    }

    fn put(self, out: &[AtomicU64]) {
        for (n, word) in out[..self.0].iter().enumerate() {
            if n == self.0 / 2 {
                (self.1)();
            }
            word.store(n as u64 + 1, Relaxed);
        }
    }
}

fn emit(producer: &Producer<'_>, words: usize, within: &dyn Fn()) -> Emit {
    producer.emit(NewRecord::of_id(99, Interrupted(words, within)), || 7)
}

/// Takes all records from `place` on. Returns the payloads of all events, and the place after the last
/// record.
fn take(memory: ClientMemory<'_>, place: &RingPosition) -> (Vec<Vec<u64>>, RingPosition) {
    let mut state = ConsumerState::continue_at(place);
    let mut payloads = Vec::new();
    loop {
        let mut consumer = Consumer::new(memory, &mut state);
        let pulled = consumer.pull(&mut [], |_, record| {
            let mut payload = vec![0; record.payload.len()];
            record.payload.copy_to(&mut payload);
            if record.header.id == 99 {
                payloads.push(payload);
            }
            Flow::Taken
        });
        consumer.commit();
        assert_eq!(consumer.faults().iter().sum::<u64>(), 0, "at {place:?}");
        assert_eq!(consumer.losses().total(), 0, "at {place:?}");
        if !pulled.more {
            return (payloads, state.place());
        }
    }
}

/// Saves the memory and loads it again.
fn save_and_load(memory: &Memory) {
    memory.load(&memory.save().unwrap()).unwrap();
}

#[test]
fn a_guest_that_was_stopped_within_an_emit_completes_its_record_after_the_restore() {
    let chip = chip(RingMode::Discard);
    let memory = client(&chip, 1, RingMode::Discard);
    let private = ProducerState::new();
    let producer = lease(memory, 77, &private);
    let mut place = START;
    // The records go three times around the ring, so a record begins at any place of a block. Some records
    // are the first of their block.
    for words in (0..200).map(|n| [2000, 300, 1][n % 3]) {
        assert_eq!(emit(&producer, words, &|| save_and_load(chip.memory())), Emit::Recorded);
        // The host takes the record only after the restore.
        save_and_load(chip.memory());

        let (payloads, next) = take(memory, &place);

        assert_eq!(payloads, [(1..=words as u64).collect::<Vec<_>>()], "at {place:?}");
        place = next;
    }
    assert!(place.position > 3 * memory.capacity());
}

#[test]
fn the_next_holder_continues_the_sequence_after_a_restore_at_any_place_of_a_block() {
    let chip = chip(RingMode::Discard);
    let memory = client(&chip, 1, RingMode::Discard);
    let mut place = START;
    for (token, records) in (1..).zip((1..80).map(|n| 17 * n % 1000)) {
        let private = ProducerState::new();
        let producer = lease(memory, token, &private);
        (0..records).for_each(|_| assert_eq!(emit(&producer, 1, &|| ()), Emit::Recorded));
        let (payloads, next) = take(memory, &place);
        assert_eq!(payloads.len(), records);
        // The next turn begins here. If the place were wrong, the records of the next holder would have a
        // gap.
        place = next;
        save_and_load(chip.memory());
    }
}

#[test]
fn records_that_the_host_has_not_taken_are_restored_however_many_there_are() {
    let chip = chip(RingMode::Discard);
    let memory = client(&chip, 1, RingMode::Discard);
    let private = ProducerState::new();
    let producer = lease(memory, 77, &private);
    let mut place = START;
    // The records of all turns go around the ring almost twenty times. Each turn begins at another place in
    // the ring.
    for records in (1..40).map(|n| 18 * n) {
        (0..records).for_each(|_| assert_eq!(emit(&producer, 40, &|| ()), Emit::Recorded));
        save_and_load(chip.memory());

        let (payloads, next) = take(memory, &place);

        assert_eq!(payloads.len(), records);
        assert!(payloads.iter().all(|payload| *payload == (1..=40).collect::<Vec<_>>()));
        place = next;
    }
}

/// Returns the number of bytes in all pages except the client pages and the config page.
fn bytes_of_rings(saved: &[Pages]) -> u64 {
    let all: usize = saved.iter().map(|pages| pages.words.len() * 8).sum();
    all as u64 - u64::from(GEOMETRY.clients) * 2 * PAGE - PAGE
}

#[test]
fn a_drained_ring_takes_two_blocks_of_a_snapshot_whatever_was_in_the_ring() {
    let chip = chip(RingMode::Discard);
    for number in 0..GEOMETRY.clients {
        let memory = client(&chip, number, RingMode::Discard);
        let private = ProducerState::new();
        let producer = lease(memory, 77, &private);
        for _ in 0..5 {
            while emit(&producer, 5, &|| ()) == Emit::Recorded {}
            chip.drain_all();
        }
    }
    chip.state();
    let saved = chip.memory().save().unwrap();

    let most = u64::from(GEOMETRY.clients) * (2 * GEOMETRY.block_bytes + 2 * PAGE);
    let bytes = bytes_of_rings(&saved);
    assert!((1..=most).contains(&bytes), "{bytes}, at most {most}");
}

#[test]
fn a_guest_cannot_make_a_snapshot_of_drained_rings_large() {
    for value in [u64::MAX, 1 << 63, 0x1234_5678_9abc, 1] {
        let chip = chip(RingMode::Discard);
        // Every word that a guest can write, even beyond the used parts of the regions.
        for region in [Region::Data, Region::Rings] {
            let words = chip.memory().region(region).unwrap().words();
            words.iter().for_each(|word| word.store(value, Relaxed));
        }
        chip.state();

        let saved = chip.memory().save().unwrap();

        let client = 2 * GEOMETRY.block_bytes + GEOMETRY.schema_bytes + 2 * PAGE;
        // The last page is the enable mask.
        let most = u64::from(GEOMETRY.clients) * client + GEOMETRY.data_size() + PAGE;
        let bytes = bytes_of_rings(&saved);
        assert!(bytes <= most, "{value:#x}: {bytes}, at most {most}");
    }
}

#[test]
fn a_flight_recorders_ring_is_saved_whole() {
    let chip = chip(RingMode::Overwrite);
    let memory = client(&chip, 1, RingMode::Overwrite);
    let private = ProducerState::new();
    let producer = lease(memory, 77, &private);
    (0..20_000).for_each(|_| assert_eq!(emit(&producer, 5, &|| ()), Emit::Recorded));
    let words = |memory: ClientMemory<'_>| -> Vec<u64> {
        memory.ring.iter().map(|word| word.load(Relaxed)).collect()
    };
    let before = words(memory);

    save_and_load(chip.memory());

    assert!(memory.guest[guest_page::HEAD].load(Relaxed) > memory.capacity());
    assert!(words(memory) == before);
}
