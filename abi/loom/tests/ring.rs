// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Runs the real producer and consumer under loom. loom tries every interleaving up to a bound of
//! preemptions, and every value that a load may see.
//!
//! The rings have two or four blocks of 16 words. A lease record and its block's header take nine words, so a
//! few emits fill, wrap and lap a ring. The producer is the model's main thread, which leases and fills the
//! ring before the consumer's thread begins, so that the model covers the race and not the preparation.
//!
//! Both threads take [`World::turn`]s, because loom detects a race from the last access to each word. The
//! consumer loads tail before it stores tail. In loom, this load would hide the producer's earlier loads of
//! tail.
//!
//! loom does not model a load that takes its value from a store later in the execution. So the model does not
//! check the Release ordering of the consumer's stores of tail and `schema_seen`.
//!
//! `unsafe_code` is allowed so that the threads of a model can share the states of its producers.
#![cfg(hypertrace_loom)]
#![allow(unsafe_code)]

use hypertrace_abi_loom::atomic::AtomicU64;
use hypertrace_abi_loom::config::RingMode;
use hypertrace_abi_loom::event::Words;
use hypertrace_abi_loom::event_type;
use hypertrace_abi_loom::record::{ClockKind, id};
use hypertrace_abi_loom::ring::{
    ClientMemory, Consumer, ConsumerState, Emit, FAULT_KINDS, Flow, Lease, LeaseInfo, NewRecord,
    Producer, ProducerState, Pulled,
};
use hypertrace_abi_loom::schema::id_of;
use loom::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const BLOCK: usize = 16;
/// Number of payload words of a record that fills a block.
const WHOLE: usize = BLOCK - 4;
/// Number of payload words of a record that fills half a block.
const HALF: usize = 5;

fn words(n: usize) -> Box<[AtomicU64]> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

/// One client's memory, and the private memory of its producers.
struct World {
    guest: Box<[AtomicU64]>,
    host: Box<[AtomicU64]>,
    schema: Box<[AtomicU64]>,
    ring: Box<[AtomicU64]>,
    mode: RingMode,
    state: ProducerState,
    next_state: ProducerState,
    turns: AtomicU64,
}

// SAFETY: a model gives each state to one of its threads at a time, and all fields are atomic.
unsafe impl Sync for World {}

impl World {
    fn new(blocks: usize, schema: usize, mode: RingMode) -> Arc<World> {
        Arc::new(World {
            guest: words(17),
            host: words(2),
            schema: words(schema),
            ring: words(blocks * BLOCK),
            mode,
            state: ProducerState::new(),
            next_state: ProducerState::new(),
            turns: AtomicU64::new(0),
        })
    }

    /// Lets any other thread run. Synchronises nothing.
    fn turn(&self) {
        self.turns.fetch_add(1, Relaxed);
    }

    fn memory(&self) -> ClientMemory<'_> {
        ClientMemory::for_test(
            &self.guest,
            &self.host,
            &self.schema,
            &self.ring,
            BLOCK as u64,
            self.mode,
        )
    }

    fn lease<'w>(&'w self, state: &'w ProducerState, token: u64, now: u64) -> Producer<'w> {
        let info = LeaseInfo { pid: 1, tid: 1, name: "" };
        Producer::lease(self.memory(), state, Lease::new(token, ClockKind::Tsc, now, &info), false)
    }

    /// Emits a record of `words` payload words. Returns 1 if the record was recorded.
    fn emit(&self, producer: &Producer<'_>, timestamp: u64, words: usize) -> u64 {
        self.turn();
        let payload: [u64; WHOLE] = std::array::from_fn(|i| word(timestamp, i));
        match producer.emit(NewRecord::of_id(99, Words(&payload[..words])), || timestamp) {
            Emit::Recorded => 1,
            Emit::Full => 0,
            other => panic!("{other:?}"),
        }
    }

    /// Emits a typed event of one word on the hot path. Returns 1 if the event was recorded.
    fn emit_small(&self, producer: &Producer<'_>, timestamp: u64) -> u64 {
        self.turn();
        let (site, fields) = event_type!("a", x = word(timestamp, 0));
        u64::from(producer.emit((site, fields), || timestamp) == Emit::Recorded)
    }
}

/// Returns word `i` of a payload. The word is computed from the timestamp, so that a reader can detect a torn
/// record.
fn word(timestamp: u64, i: usize) -> u64 {
    timestamp << 8 | i as u64
}

/// The host's state, with its counts.
#[derive(Default)]
struct Host {
    state: ConsumerState,
    last: u64,
    /// Number of records taken, lease records included.
    taken: u64,
    lost: u64,
}

impl Host {
    /// Pulls once and checks every record. Commits if `keep` is set, or else rolls back.
    fn pull(&mut self, world: &World, most: u64, keep: bool) -> (Pulled, Vec<u64>) {
        world.turn();
        let mut consumer = Consumer::new(world.memory(), &mut self.state);
        let mut stage = [0; BLOCK];
        let mut timestamps = Vec::new();
        let pulled = consumer.pull(&mut stage, |_, record| {
            if timestamps.len() as u64 == most {
                return Flow::Stop;
            }
            let timestamp = record.header.timestamp;
            let mut payload = [0; BLOCK];
            let len = record.payload.len();
            record.payload.copy_to(&mut payload);
            if record.header.id == id::LEASE {
                assert_eq!(payload[1..4], [1, 1, 0], "torn lease record");
            } else {
                assert!(len > 0, "torn header");
                for (i, &found) in payload[..len].iter().enumerate() {
                    assert_eq!(found, word(timestamp, i), "torn record");
                }
            }
            timestamps.push(timestamp);
            Flow::Taken
        });
        assert_eq!(pulled.records, timestamps.len() as u64);
        world.turn();
        if keep {
            consumer.commit();
            for &timestamp in &timestamps {
                assert!(timestamp > self.last, "{timestamp} after {}", self.last);
                self.last = timestamp;
            }
            self.taken += pulled.records;
        } else {
            consumer.rollback();
        }
        let lost = consumer.losses().total();
        assert!(lost >= self.lost, "losses went backwards");
        self.lost = lost;
        assert_eq!(consumer.faults(), [0; FAULT_KINDS]);
        (pulled, timestamps)
    }

    fn pull_all(&mut self, world: &World) {
        while self.pull(world, u64::MAX, true).0.more {}
    }
}

/// Runs the model up to a bound of preemptions, and prints the number of executions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let begin = std::time::Instant::now();
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let test = std::thread::current();
    println!(
        "{}: {} executions, {preemptions} preemptions, {:?}",
        test.name().unwrap_or("model"),
        runs.load(Relaxed),
        begin.elapsed()
    );
}

#[test]
fn discard_fills_drains_and_wraps() {
    check(2, || {
        let world = World::new(2, 4, RingMode::Discard);
        let producer = world.lease(&world.state, 7, 1);
        let shared = world.clone();
        let consumer = thread::spawn(move || {
            let mut host = Host::default();
            for _ in 0..3 {
                host.pull(&shared, u64::MAX, true);
            }
            host
        });
        // From the third record on, there is no room before a pull, and the ring wraps.
        let recorded: u64 = (2..=6).map(|now| world.emit(&producer, now, HALF)).sum();
        let mut host = consumer.join().unwrap();
        producer.refresh(9);
        host.pull_all(&world);
        assert_eq!((host.taken, host.lost), (1 + recorded, 5 - recorded));
    });
}

#[test]
fn discard_writes_no_further_than_a_tail_inside_a_block() {
    check(4, || {
        let world = World::new(2, 4, RingMode::Discard);
        let producer = world.lease(&world.state, 7, 1);
        let filled: u64 = (2..=7).map(|now| world.emit_small(&producer, now)).sum();
        let shared = world.clone();
        let consumer = thread::spawn(move || {
            let mut host = Host::default();
            // This pull takes only the lease record, which fills half a block.
            host.pull(&shared, 1, true);
            host.pull(&shared, u64::MAX, true);
            host
        });
        let recorded: u64 = (8..=10).map(|now| world.emit_small(&producer, now)).sum();
        let mut host = consumer.join().unwrap();
        producer.refresh(11);
        host.pull_all(&world);
        assert_eq!(filled, 6);
        assert_eq!((host.taken, host.lost), (7 + recorded, 3 - recorded));
    });
}

#[test]
#[ignore = "takes long: cargo xtask full"]
fn overwrite_accepts_nothing_torn_and_counts_lost_records() {
    check(4, || {
        let world = World::new(4, 4, RingMode::Overwrite);
        let producer = world.lease(&world.state, 7, 1);
        // Head is in the last of four blocks. The consumer may read three blocks, because the producer may be
        // writing to the next block.
        for now in 2..=3 {
            world.emit(&producer, now, WHOLE);
        }
        world.emit(&producer, 4, HALF);
        let shared = world.clone();
        let consumer = thread::spawn(move || {
            let mut host = Host::default();
            host.pull(&shared, u64::MAX, true);
            host.pull(&shared, u64::MAX, true);
            host
        });
        // These records overwrite the first block, then a part of the second block.
        world.emit(&producer, 5, WHOLE);
        world.emit(&producer, 6, 1);
        let mut host = consumer.join().unwrap();
        host.pull_all(&world);
        assert_eq!(host.taken + host.lost, 6);
        assert!(host.taken >= 2, "the newest blocks are still there");
    });
}

#[test]
fn rolled_back_records_are_taken_again() {
    check(4, || {
        let world = World::new(2, 4, RingMode::Discard);
        let producer = world.lease(&world.state, 7, 1);
        world.emit(&producer, 2, HALF);
        let shared = world.clone();
        let consumer = thread::spawn(move || {
            let mut host = Host::default();
            let (_, first) = host.pull(&shared, u64::MAX, false);
            let (_, second) = host.pull(&shared, 2, true);
            assert!(first.len() >= 2 && second[..] == first[..2]);
            host
        });
        let recorded: u64 = (3..=4).map(|now| world.emit(&producer, now, HALF)).sum();
        let mut host = consumer.join().unwrap();
        producer.refresh(9);
        host.pull_all(&world);
        assert_eq!((host.taken, host.lost), (2 + recorded, 2 - recorded));
    });
}

#[test]
fn records_have_the_token_of_their_holder() {
    check(4, || {
        let world = World::new(4, 4, RingMode::Discard);
        let producer = world.lease(&world.state, 1, 10);
        let shared = world.clone();
        let consumer = thread::spawn(move || {
            let mut host = Host::default();
            for _ in 0..2 {
                let (pulled, timestamps) = host.pull(&shared, u64::MAX, true);
                for timestamp in timestamps {
                    assert_eq!(timestamp / 10, pulled.token);
                }
            }
            host
        });
        world.emit(&producer, 11, 1);
        producer.release();
        let producer = world.lease(&world.next_state, 2, 20);
        world.emit(&producer, 21, 1);
        let mut host = consumer.join().unwrap();
        host.pull_all(&world);
        assert_eq!((host.taken, host.lost), (4, 0));
    });
}

#[test]
fn a_schema_is_read_before_the_record_that_uses_it() {
    check(4, || {
        // Two texts fill the log.
        let world = World::new(4, 4, RingMode::Discard);
        let producer = world.lease(&world.state, 7, 1);
        let shared = world.clone();
        let consumer = thread::spawn(move || {
            let (mut state, mut known) = (ConsumerState::default(), Vec::new());
            for _ in 0..2 {
                learn_then_pull(&shared, &mut state, &mut known);
            }
            (state, known)
        });
        let x = 1u64;
        world.turn();
        let (site, fields) = event_type!("a", x);
        producer.emit((site, fields), || 2);
        world.turn();
        let (site, fields) = event_type!("b", x);
        producer.emit((site, fields), || 3);
        let (mut state, mut known) = consumer.join().unwrap();
        learn_then_pull(&world, &mut state, &mut known);
        assert_eq!(known, [id_of("a(x:u64)"), id_of("b(x:u64)")]);
        // The host has read both texts, so there is room for a third.
        let (site, fields) = event_type!("c", x);
        producer.emit((site, fields), || 4);
        learn_then_pull(&world, &mut state, &mut known);
        assert_eq!(known.len(), 3);
    });
}

/// A vCPU's thread first runs the guest, and the guest logs a text. Then the same thread runs the host, and
/// the host records the point in a host ring. The drain loads the head of the host ring before it reads the
/// log.
#[test]
fn the_text_of_a_point_is_in_the_log_of_its_client_before_the_point_is_below_a_head() {
    check(3, || {
        let [guest, host] = [(); 2].map(|()| World::new(4, 4, RingMode::Discard));
        let producer = guest.lease(&guest.state, 7, 1);
        let points = host.lease(&host.state, 8, 1);
        let (log, ring) = (guest.clone(), host.clone());
        let drain = thread::spawn(move || {
            let (mut texts, mut taken) = (ConsumerState::default(), ConsumerState::default());
            let mut known = Vec::new();
            for _ in 0..2 {
                ring.turn();
                let noted = Consumer::new(ring.memory(), &mut taken).head();
                log.turn();
                learn(&mut Consumer::new(log.memory(), &mut texts), &mut known);
                ring.turn();
                let mut consumer = Consumer::new(ring.memory(), &mut taken);
                consumer.up_to(noted);
                pull_known(&mut consumer, &known);
            }
        });
        let x = 1u64;
        guest.turn();
        producer.emit(event_type!("a", x), || 2);
        host.turn();
        points.emit(NewRecord::of_id(id_of("a(x:u64)"), Words(&[])), || 2);
        drain.join().unwrap();
    });
}

/// Takes all texts and then the records, as a sink does.
fn learn_then_pull(world: &World, state: &mut ConsumerState, known: &mut Vec<u32>) {
    world.turn();
    let mut consumer = Consumer::new(world.memory(), state);
    learn(&mut consumer, known);
    world.turn();
    pull_known(&mut consumer, known);
}

fn learn(consumer: &mut Consumer<'_>, known: &mut Vec<u32>) {
    while let Some(text) = consumer.next_schema() {
        assert_eq!(id_of(std::str::from_utf8(text.bytes()).unwrap()), text.id);
        known.push(text.id);
    }
    consumer.commit_schemas();
}

/// Takes the records, and checks that their texts are known.
fn pull_known(consumer: &mut Consumer<'_>, known: &[u32]) {
    consumer.pull(&mut [], |_, record| {
        let id = record.header.id;
        assert!(id == id::LEASE || known.contains(&id), "no schema for {id}");
        Flow::Taken
    });
    consumer.commit();
    assert_eq!(consumer.faults(), [0; FAULT_KINDS]);
}
