//! Rows of the ring: emits, compared with the same written by hand.

use super::rows::Context;
use anyhow::{Result, anyhow};
use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::clock::ticks;
use hypertrace::abi::config::{ConfigPage, HostFacts, RingMode};
use hypertrace::abi::layout::Geometry;
use hypertrace::abi::record::ClockKind;
use hypertrace::abi::ring::{ClientMemory, Consumer, ConsumerState, Flow, Record};
use hypertrace::{Channel, Client, Emit, LeaseInfo, ProducerState};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64 as StdAtomicU64, Ordering, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Records of one burst. A ring holds two bursts, so that nothing is lost
/// however late the consumer runs.
pub const BURST: u64 = 50_000;
pub const BURSTS: u64 = 10;
/// Pause between two passes of the consumer.
const CADENCE: Duration = Duration::from_micros(200);

const GEOMETRY: Geometry = Geometry {
    clients: 2,
    legacy_args: 8,
    ring_bytes: 4 << 20,
    block_bytes: 1 << 16,
    schema_bytes: 1 << 12,
};

/// Memory that all rows reuse, so that its pages are allocated.
pub struct Bench {
    rings: Vec<AtomicU64>,
    floor: FloorRing,
}

impl Bench {
    pub fn new() -> Result<Bench> {
        let words = |n: u64| (0..n / 8).map(|_| AtomicU64::new(0)).collect();
        Ok(Bench {
            rings: words(GEOMETRY.rings_size()),
            floor: FloorRing {
                data: words(GEOMETRY.ring_bytes),
                head: Line::default(),
                tail: Line::default(),
            },
        })
    }

    fn reset(&mut self) {
        for word in &mut self.rings {
            *word.get_mut() = 0;
        }
    }

    fn page() -> ConfigPage {
        ConfigPage::new(&GEOMETRY, &HostFacts::default())
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Ring written by hand, with only what every library needs.
struct FloorRing {
    data: Vec<AtomicU64>,
    head: Line,
    tail: Line,
}

/// Measures the ticks of the counter per nanosecond.
pub fn ticks_per_ns() -> f64 {
    let (time, counter) = (Instant::now(), ticks());
    thread::sleep(Duration::from_millis(100));
    (ticks() - counter) as f64 / time.elapsed().as_nanos() as f64
}

pub fn tsc(context: &mut Context) -> Result<f64> {
    let turns = 1_000_000;
    let start = ticks();
    for _ in 0..turns {
        black_box(ticks());
    }
    Ok(context.ns(ticks() - start, turns))
}

pub fn empty(context: &mut Context) -> Result<f64> {
    let turns = 20_000_000;
    let start = ticks();
    for i in 0..turns {
        black_box(i);
    }
    Ok(context.ns(ticks() - start, turns))
}

/// Runs `burst` on this thread while `look` runs every [`CADENCE`] on another.
/// `empty` returns whether the consumer has taken everything. Only bursts are
/// timed. Returns their ticks.
pub fn bursts(
    mut burst: impl FnMut(u64),
    mut look: impl FnMut() + Send,
    empty: impl Fn() -> bool,
) -> u64 {
    let done = AtomicBool::new(false);
    let mut total = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                thread::sleep(CADENCE);
                look();
            }
        });
        for number in 0..BURSTS {
            let start = ticks();
            burst(number);
            total += ticks() - start;
            while !empty() {
                thread::sleep(CADENCE / 4);
            }
        }
        done.store(true, Relaxed);
    });
    total
}

pub fn floor(context: &mut Context) -> Result<f64> {
    let ring = &context.ring.floor;
    ring.head.0.store(0, Relaxed);
    ring.tail.0.store(0, Relaxed);
    let capacity = ring.data.len() as u64;
    let (mut head, mut tail, mut lost) = (0, 0, 0u64);
    let mut seen = 0;
    let mut packet = vec![0u64; 1 << 13];
    let total = bursts(
        |_| {
            for i in 0..BURST {
                floor_emit(ring, capacity, &mut head, &mut tail, &mut lost, i, black_box(i));
            }
        },
        || {
            let end = ring.head.0.load(Ordering::Acquire);
            while seen < end {
                let n = (end - seen).min(packet.len() as u64);
                let start = (seen & (capacity - 1)) as usize;
                let n = n.min(capacity - start as u64) as usize;
                for (to, from) in packet[..n].iter_mut().zip(&ring.data[start..start + n]) {
                    *to = from.load(Relaxed);
                }
                black_box(&packet);
                seen += n as u64;
            }
            ring.tail.0.store(seen, Ordering::Release);
        },
        || ring.tail.0.load(Relaxed) == ring.head.0.load(Relaxed),
    );
    if lost > 0 {
        return Err(anyhow!("{lost} records lost"));
    }
    Ok(context.ns(total, BURST * BURSTS))
}

/// Writes a record with two words of payload. Not inlined, like the function
/// that it is compared with.
#[inline(never)]
fn floor_emit(
    ring: &FloorRing,
    capacity: u64,
    head: &mut u64,
    tail: &mut u64,
    lost: &mut u64,
    a: u64,
    b: u64,
) {
    let now = ticks();
    if *head + 4 - *tail > capacity {
        *tail = ring.tail.0.load(Ordering::Acquire);
        if *head + 4 - *tail > capacity {
            *lost += 1;
            return;
        }
    }
    let at = (*head & (capacity - 1)) as usize;
    let record = &ring.data[at..at + 4];
    record[0].store(now, Relaxed);
    record[1].store(0x2_1234_5678, Relaxed);
    record[2].store(a, Relaxed);
    record[3].store(b, Relaxed);
    *head += 4;
    ring.head.0.store(*head, Ordering::Release);
}

/// Emits the event of all rows of the ring. Not inlined, as in a large program.
#[inline(never)]
fn emit_pair(client: &Client<'_>, a: u64, b: u64) {
    hypertrace::event!(client: client, "bench_pair", a, b);
}

#[inline(never)]
fn commit_pair(client: &Client<'_>, a: u64, b: u64) {
    let _ = hypertrace::commit!(client: client, "bench_pair", a, b);
}

fn lease<'m>(rings: &'m [AtomicU64], index: u32, state: &'m ProducerState) -> Result<Client<'m>> {
    let channel = Channel::local(&Bench::page(), rings).map_err(|why| anyhow!("{why}"))?;
    let info = LeaseInfo { pid: 0, tid: index, clock: ClockKind::Tsc, name: "bench" };
    Client::lease(channel, index, state, ticks() | 1, &info).map_err(|why| anyhow!("{why}"))
}

fn memory(rings: &[AtomicU64], index: u32) -> Result<ClientMemory<'_>> {
    ClientMemory::of_rings(rings, index, &GEOMETRY, RingMode::Discard)
        .ok_or_else(|| anyhow!("the ring's memory does not fit its geometry"))
}

pub fn emit(context: &mut Context) -> Result<f64> {
    drained(context, emit_pair)
}

/// Measures commits, as [`emit`] measures events.
pub fn commit(context: &mut Context) -> Result<f64> {
    drained(context, commit_pair)
}

fn drained(context: &mut Context, emit: impl Fn(&Client<'_>, u64, u64)) -> Result<f64> {
    context.ring.reset();
    let rings = &context.ring.rings;
    let memory = memory(rings, 0)?;
    let state = ProducerState::new();
    let client = lease(rings, 0, &state)?;
    let mut host = ConsumerState::default();
    let mut packet = vec![0u64; 1 << 13];
    let mut losses = 0;
    emit(&client, 0, 0);
    let total = bursts(
        |_| {
            for i in 0..BURST {
                emit(&client, i, black_box(i));
            }
        },
        || {
            let mut consumer = Consumer::new(memory, &mut host);
            let mut used = 0;
            let mut take = |record: Record<'_>| {
                let end = used + 2 + record.payload.len();
                if end > packet.len() {
                    used = 0;
                    black_box(&packet);
                }
                let out = &mut packet[used..used + 2 + record.payload.len()];
                out[..2].copy_from_slice(&record.header.to_words());
                record.payload.copy_to(&mut out[2..]);
                used += out.len();
                Flow::Taken
            };
            while consumer.pull(&mut [], |_, record| take(record)).more {
                consumer.commit();
            }
            consumer.commit();
            losses = consumer.losses().total();
        },
        || {
            let words = [&memory.guest[0], &memory.host[0]].map(|word| word.load(Relaxed));
            words[0] == words[1]
        },
    );
    if losses > 0 {
        return Err(anyhow!("{losses} records lost"));
    }
    Ok(context.ns(total, BURST * BURSTS))
}

/// Measures an event that the mask switches off.
pub fn disabled(context: &mut Context) -> Result<f64> {
    context.ring.reset();
    let rings = &context.ring.rings;
    set_mask(rings, 1)?;
    let state = ProducerState::new();
    let client = lease(rings, 0, &state)?;
    let turns = 20_000_000;
    let start = ticks();
    for i in 0..turns {
        let a = black_box(i);
        hypertrace::event!(client: client, "bench_pair", a, b = a);
    }
    let total = ticks() - start;
    let head = memory(rings, 0)?.guest[0].load(Relaxed);
    set_mask(rings, 0)?;
    client.poll();
    let (site, fields) = hypertrace::abi::event_type!("bench_pair", a = 0u64, b = 0u64);
    let on = client.emit(site, fields) == Emit::Recorded;
    if !on || head > 64 {
        return Err(anyhow!("the mask did not switch the event off and on"));
    }
    Ok(context.ns(total, turns))
}

/// Writes the mask as a host does, with a new version.
fn set_mask(rings: &[AtomicU64], byte: u8) -> Result<()> {
    for word in &rings[..512] {
        word.store(u64::from_ne_bytes([byte; 8]), Relaxed);
    }
    let version = &memory(rings, 0)?.host[hypertrace::abi::layout::host_page::MASK_VERSION];
    version.store(ticks(), Ordering::Release);
    Ok(())
}

/// Turns of each thread in [`meet`].
const ROUNDS: u64 = 50;

/// Waits until this many threads run at once. They take turns without sleeping;
/// on one CPU that takes so long that the scheduler moves them to others.
pub fn meet(turn: &StdAtomicU64, index: u64, threads: u64) {
    let wait = |for_turn| {
        while turn.load(Ordering::Acquire) < for_turn {
            spin_loop();
        }
    };
    for round in 0..ROUNDS {
        let mine = round * threads + index;
        wait(mine);
        turn.store(mine + 1, Ordering::Release);
    }
    wait(ROUNDS * threads);
}

pub fn emit_one_thread(context: &mut Context) -> Result<f64> {
    emit_threads(context, 1)
}

pub fn emit_two_threads(context: &mut Context) -> Result<f64> {
    emit_threads(context, 2)
}

/// Measures the time per record of all threads together, in rings that hold the run.
fn emit_threads(context: &mut Context, threads: u32) -> Result<f64> {
    context.ring.reset();
    let rings = &context.ring.rings;
    let turns = BURST * 2;
    let ready = StdAtomicU64::new(0);
    let times: Vec<Result<(u64, u64)>> = thread::scope(|scope| {
        let run = |index| {
            let ready = &ready;
            scope.spawn(move || {
                let state = ProducerState::new();
                let client = lease(rings, index, &state)?;
                emit_pair(&client, 0, 0);
                meet(ready, index.into(), threads.into());
                let start = ticks();
                for i in 0..turns {
                    emit_pair(&client, i, black_box(i));
                }
                let end = ticks();
                client.release();
                match memory(rings, index)?.guest[8].load(Relaxed) {
                    0 => Ok((start, end)),
                    lost => Err(anyhow!("{lost} records lost")),
                }
            })
        };
        let threads: Vec<_> = (0..threads).map(run).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let times = times.into_iter().collect::<Result<Vec<_>>>()?;
    let start = times.iter().map(|t| t.0).min().unwrap_or(0);
    let end = times.iter().map(|t| t.1).max().unwrap_or(0);
    Ok(context.ns(end - start, turns * u64::from(threads)))
}
