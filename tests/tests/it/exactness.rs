//! Emitted = recorded + lost, whatever the sizes, the mode and the consumer's pauses. No event is doubled or
//! torn, and all events are in order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hypertrace::{Emit, ProducerState};
use hypertrace_abi::event_type;
use hypertrace_abi::record::id;
use hypertrace_device::{Geometry, RingMode};
use hypertrace_tests::host::{Host, Recorded};
use hypertrace_tests::random::Random;
use hypertrace_tests::{FULL_SIZE, babeltrace2};
use hypertrace_timeline::{Domain, Stream};

const EVENTS: u64 = if FULL_SIZE { 10_000_000 } else { 500_000 };
const ROUNDS: u64 = 20;
const THREADS: u32 = 2;

/// Source of texts whose length and content follow from the event's number.
const TEXT: &str = "0123456789abcdefghijklmnopqrstuvwxyz0123456789";

fn text_of(number: u64) -> &'static str {
    &TEXT[..(number % 31) as usize]
}

fn check_of(number: u64, client: u32) -> u64 {
    (number ^ u64::from(client) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A producer's own counts of its events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Emitted {
    recorded: u64,
    dropped: u64,
    /// Sum of the numbers of recorded events.
    sum: u64,
}

fn produce(host: &Host, index: u32, events: u64, mut random: Random) -> Emitted {
    let state = ProducerState::new();
    let client = host.lease(index, &state, "producer");
    let mut emitted = Emitted::default();
    for number in 0..events {
        if number % 4096 == 0 {
            std::thread::sleep(Duration::from_micros(random.below(1_000)));
        }
        let check = check_of(number, index);
        let (site, fields) = event_type!("exact", number, text = text_of(number), check);
        match client.emit(site, fields) {
            Emit::Recorded => {
                emitted.recorded += 1;
                emitted.sum = emitted.sum.wrapping_add(number);
            }
            Emit::Full => emitted.dropped += 1,
            other => panic!("{other:?}"),
        }
    }
    client.release();
    emitted
}

/// Drains in passes of random length, with pauses. When `done` is set, drains the rest.
fn drain(host: &Host, mut random: Random, done: &AtomicBool) {
    while !done.load(Ordering::Acquire) {
        host.chip.drain_pass(Duration::from_micros(random.below(300)));
        let pause = random.pick(&[0, 0, 0, 50, 200, 1_000, 5_000]);
        std::thread::sleep(Duration::from_micros(random.below(pause + 1)));
    }
    host.chip.drain_all();
}

/// Reads a client's stream. Returns how many events the stream has, the sum of the sequence numbers in these
/// events, and how many leases the stream has.
fn read_back(recorded: &Recorded, client: u32) -> (u64, u64, u64) {
    let session = recorded.open();
    let own = |s: &&Stream| (s.domain, s.client) == (Domain::Guest, client);
    let mut records = session.streams().iter().find(own).unwrap().records(session.classes());
    let (mut count, mut sum, mut leases, mut next) = (0, 0u64, 0, 0);
    while let Some(record) = records.read().unwrap() {
        if record.class.id == id::LEASE {
            leases += 1;
            continue;
        }
        let (number, text) = (record.payload[0], text_of(record.payload[0]));
        assert!(number >= next, "event {number} of client {client} comes again, or late");
        next = number + 1;
        let mut words = Vec::from((text.len() as u32).to_le_bytes());
        words.extend_from_slice(text.as_bytes());
        words.resize(words.len().next_multiple_of(8), 0);
        let (last, string) = record.payload[1..].split_last().unwrap();
        let string = string.iter().flat_map(|word| word.to_le_bytes());
        assert!(string.eq(words) && *last == check_of(number, client), "event {number} is torn");
        count += 1;
        sum = sum.wrapping_add(number);
    }
    (count, sum, leases)
}

fn round(random: &mut Random, mode: RingMode) -> (u64, u64) {
    let block_bytes = 1 << (8 + random.below(7));
    let ring_bytes = (block_bytes * 16).max(1 << 12) << random.below(6);
    let geometry = Geometry { clients: THREADS, ring_bytes, block_bytes, ..Geometry::default() };
    let host = Host::with_mode(geometry, mode);
    let done = AtomicBool::new(false);
    let (stalls, pauses) = (random.fork(), [(); THREADS as usize].map(|()| random.fork()));
    let each = EVENTS / ROUNDS / u64::from(THREADS);

    let emitted: Vec<Emitted> = std::thread::scope(|scope| {
        let drain = scope.spawn(|| drain(&host, stalls, &done));
        let threads: Vec<_> = pauses
            .into_iter()
            .zip(0..)
            .map(|(pauses, i)| {
                scope.spawn({
                    let host = &host;
                    move || produce(host, i, each, pauses)
                })
            })
            .collect();
        let emitted = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        done.store(true, Ordering::Release);
        drain.join().unwrap();
        emitted
    });
    let recorded = host.finish();

    for (client, emitted) in (0..).zip(&emitted) {
        let stream = recorded.client(client);
        let (count, sum, leases) = read_back(&recorded, client);
        assert_eq!((stream.events, stream.lost_full), (count, emitted.dropped), "{geometry:?}");
        assert_eq!((stream.lost_busy, stream.filtered, stream.faults.len()), (0, 0, 0));
        // Not only events but also the lease record may be overwritten.
        let written = emitted.recorded + 1;
        assert_eq!(count + leases + stream.lost_overwritten, written, "{geometry:?}");
        if mode == RingMode::Discard {
            assert_eq!((sum, stream.lost_overwritten), (emitted.sum, 0));
        }
    }
    if let Some(read) = babeltrace2::read(&recorded.ctf()) {
        assert_eq!(read.complete(), recorded.summary.records);
    }
    (recorded.summary.ring_events, recorded.summary.lost)
}

fn rounds(mode: RingMode) {
    let mut random = Random::seeded();
    let (mut recorded, mut lost) = (0, 0);
    for _ in 0..ROUNDS / 2 {
        let (more, less) = round(&mut random, mode);
        recorded += more;
        lost += less;
    }
    println!("{mode:?}: {recorded} recorded, {lost} lost");
    assert!(recorded > 0 && lost > 0, "both have to happen");
}

#[test]
fn rings_that_drop_the_newest() {
    rounds(RingMode::Discard);
}

#[test]
fn rings_that_overwrite_the_oldest() {
    rounds(RingMode::Overwrite);
}
