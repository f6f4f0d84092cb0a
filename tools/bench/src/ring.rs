//! Rows of the ring: emits, compared with rings that are written by hand.

use super::instructions::counted;
use super::measure::quantile;
use super::row::{Context, Floor, Row, row};
use super::timing::{BURST, BURST_RING, BURSTS, at_once, bursts, ns, timed};
use anyhow::{Context as _, Result, ensure};
use hypertrace::abi::atomic::AtomicU64;
use hypertrace::abi::clock::ticks;
use hypertrace::abi::config::{ConfigPage, HostInfo, RingMode};
use hypertrace::abi::layout::{Geometry, host_page};
use hypertrace::abi::ring::{ClientMemory, Consumer, ConsumerState, Flow, Record};
use hypertrace::abi::schema::id_of;
use hypertrace::{Channel, Client, Emit, LeaseInfo, ProducerState};
use std::hint::black_box;
use std::sync::atomic::{Ordering, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Row of the fastest ring that still does all that a ring must do.
pub const FLOOR: Floor = ("ring_floor", floor);
/// Loop that does nothing.
pub const EMPTY_LOOP: Floor = ("empty loop", empty);
/// The row of an ordinary event, with which the rows of other ways to emit are compared.
pub const EMIT: Floor = ("ring_emit", emit);

pub const ROWS: &[Row] = &[
    row("tsc", tsc, "one read of the counter"),
    row("ring_floor", floor, "a ring by hand: counter, 32-byte record, full check, release store")
        .note(
            "No blocks, schemas or signals: counter, four stores, check against a cached \
             tail, release store of head. Not inlined. A consumer copies everything out every \
             200 µs.",
        ),
    row("ring_emit", emit, "`event!` with two `u64`: 32 bytes")
        .over(FLOOR, "<= 1.3 x ring_floor")
        .note(
            "Not inlined. The library's consumer takes and copies every 200 µs; the ring \
             holds two bursts, nothing is lost. Only the bursts are timed.",
        ),
    row("ring_emit_two_ids", emit_two_ids, "`ring_emit` of two events alternately")
        .over(EMIT, "<= 1.3 x ring_emit")
        .note("Their ids are equal modulo the size of the producer's table of known ids."),
    row("ring_emit_cold", cold, "`ring_emit` after 10 ms in which the caches were overwritten")
        .over(("cold floor", cold_floor), "<= 1.3 x a floor that touches the same cache lines")
        .note(
            "The median of 50 events. Between two, 64 MiB are written again and again. With both reads of the \
             counter. The floor loads the event's word of the mask, stores its record and the head, and keeps its \
             position in a line of its own.",
        ),
    row(
        "ring_emit_disabled",
        disabled,
        "`ring_emit` switched off by the enable mask; the ratio is the difference in ns",
    )
    .less(EMPTY_LOOP, "<= 0.5 ns over an empty loop"),
    row(
        "ring_emit_2threads",
        |context| emit_threads(context, 2),
        "two threads' throughput over one thread's",
    )
    .speedup_of(
        ("one thread", |context| emit_threads(context, 1)),
        ">= 1.9 x one thread's throughput",
    )
    .note(
        "Each thread has a client and a ring that holds the whole run. They begin once \
         both are running at the same time.",
    ),
    row(
        "event_instructions",
        instructions,
        "user instructions of `ring_emit` (not ns); the ratio is the difference",
    )
    .less(("empty loop", instructions_empty), "<= 48 more than an empty loop")
    .note(
        "With the call, counted exactly: the CPU's trap flag raises a signal after each. \
         x86-64 only. The most are checks of the mask, of an emit under way, the text, the \
         pause, the room and the bounds, and the stores.",
    ),
    row(
        "event_instructions_off",
        instructions_off,
        "`event_instructions` switched off by the enable mask",
    )
    .less(("empty loop", instructions_empty), "<= 4 more than an empty loop"),
];

const GEOMETRY: Geometry = Geometry {
    clients: 2,
    legacy_args: 8,
    ring_bytes: BURST_RING,
    block_bytes: 1 << 16,
    schema_bytes: 1 << 12,
};

/// Rings of two clients. All rows use the same rings, so that no row measures how the kernel allocates pages.
struct Rings(Vec<AtomicU64>);

/// Empties the rings, and returns them.
fn rings(context: &mut Context) -> Result<&[AtomicU64]> {
    let Rings(rings) = context.resource(|| Ok(Rings(words(GEOMETRY.rings_size()))))?;
    for word in &mut *rings {
        *word.get_mut() = 0;
    }
    Ok(rings)
}

fn words(bytes: u64) -> Vec<AtomicU64> {
    (0..bytes / 8).map(|_| AtomicU64::new(0)).collect()
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Ring that is written by hand. The ring does only what a ring of any library has to do.
struct FloorRing {
    data: Vec<AtomicU64>,
    head: Line,
    tail: Line,
}

impl FloorRing {
    fn new() -> FloorRing {
        let data = words(GEOMETRY.ring_bytes);
        FloorRing { data, head: Line::default(), tail: Line::default() }
    }
}

pub fn tsc(_: &mut Context) -> Result<f64> {
    let turns = 1_000_000;
    let total = timed(turns, |_| {
        black_box(ticks());
    });
    Ok(ns(total, turns))
}

pub fn empty(_: &mut Context) -> Result<f64> {
    let turns = 20_000_000;
    let total = timed(turns, |n| {
        black_box(n);
    });
    Ok(ns(total, turns))
}

pub fn floor(context: &mut Context) -> Result<f64> {
    let ring = &*context.resource(|| Ok(FloorRing::new()))?;
    ring.head.0.store(0, Relaxed);
    ring.tail.0.store(0, Relaxed);
    let capacity = ring.data.len() as u64;
    let (mut head, mut tail, mut lost) = (0, 0, 0u64);
    let mut seen = 0;
    let mut packet = vec![0u64; 1 << 13];
    let total = bursts(
        || {
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
    ensure!(lost == 0, "{lost} records lost");
    Ok(ns(total, BURST * BURSTS))
}

/// Writes a record with two words of payload. The compiler does not inline this function, because the row
/// compares the function with another function that is not inlined.
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

/// Emits the event of all rows of the ring. This function is not inlined, as in a large program.
#[inline(never)]
fn emit_pair(client: &Client<'_>, a: u64, b: u64) {
    hypertrace::event!(client: client, "bench_pair", a, b);
}

/// Emits another event than [`emit`] does. The ids of both events have the same slot in a producer's table of
/// known ids.
#[inline(never)]
fn emit_twin(client: &Client<'_>, a: u64, b: u64) {
    const {
        let (pair, twin) = ("bench_pair(a:u64,b:u64)", "bench_pair1384(a:u64,b:u64)");
        // Two ids have the same slot if the ids are equal modulo 4096, because the table's size divides 4096.
        assert!(id_of(pair) % 4096 == id_of(twin) % 4096);
    }
    hypertrace::event!(client: client, "bench_pair1384", a, b);
}

#[inline(never)]
fn commit_pair(client: &Client<'_>, a: u64, b: u64) {
    let _ = hypertrace::commit!(client: client, "bench_pair", a, b);
}

/// Leases a client for this thread.
pub fn lease<'m>(channel: Channel<'m>, index: u32, state: &'m ProducerState) -> Result<Client<'m>> {
    let info = LeaseInfo { pid: 0, tid: index, name: "bench" };
    Ok(Client::lease(channel, index, state, ticks() | 1, &info)?)
}

fn channel(rings: &[AtomicU64]) -> Result<Channel<'_>> {
    Ok(Channel::local(&ConfigPage::new(&GEOMETRY, &HostInfo::default()), rings)?)
}

fn memory(rings: &[AtomicU64], index: u32) -> Result<ClientMemory<'_>> {
    ClientMemory::of_rings(rings, index, &GEOMETRY, RingMode::Discard)
        .context("the ring's memory does not fit its geometry")
}

pub fn emit(context: &mut Context) -> Result<f64> {
    drained(context, emit_pair)
}

/// Measures two events that alternate, in the same way as [`emit`] measures one event.
pub fn emit_two_ids(context: &mut Context) -> Result<f64> {
    drained(context, |client, a, b| match a % 2 {
        0 => emit_pair(client, a, b),
        _ => emit_twin(client, a, b),
    })
}

/// Measures [`commit_pair`] in the way in which [`emit`] measures events.
pub fn commit(context: &mut Context) -> Result<f64> {
    drained(context, commit_pair)
}

fn drained(context: &mut Context, emit: impl Fn(&Client<'_>, u64, u64)) -> Result<f64> {
    let rings = rings(context)?;
    let memory = memory(rings, 0)?;
    let state = ProducerState::new();
    let client = lease(channel(rings)?, 0, &state)?;
    let mut host = ConsumerState::default();
    let mut packet = vec![0u64; 1 << 13];
    let mut losses = 0;
    emit(&client, 0, 0);
    let total = bursts(
        || {
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
    ensure!(losses == 0, "{losses} records lost");
    Ok(ns(total, BURST * BURSTS))
}

/// Number of events of a run of [`cold`].
const COLD_EVENTS: u64 = 50;

/// Times single events, each after 10 ms in which the caches are overwritten. Returns the median of the times
/// in nanoseconds.
fn after_others(mut emit: impl FnMut(u64)) -> f64 {
    let mut others = vec![0u64; 8 << 20];
    let times = (0..COLD_EVENTS).map(|n| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(10) {
            others.iter_mut().step_by(8).for_each(|word| *word += 1);
            black_box(&others);
        }
        ns(timed(1, |_| emit(n)), 1)
    });
    quantile(&mut times.collect::<Vec<f64>>(), 0.5)
}

/// Measures an event whose cache lines are only in memory.
pub fn cold(context: &mut Context) -> Result<f64> {
    let rings = rings(context)?;
    let state = ProducerState::new();
    let client = lease(channel(rings)?, 0, &state)?;
    // The first event writes the event's text.
    emit_pair(&client, 0, 0);
    let time = after_others(|n| emit_pair(&client, n, black_box(n)));
    client.release();
    ensure!(memory(rings, 0)?.guest[8].load(Relaxed) == 0, "records lost");
    Ok(time)
}

/// Measures hand-written code with the loads and stores that [`cold`] needs.
pub fn cold_floor(context: &mut Context) -> Result<f64> {
    let rings = rings(context)?;
    let memory = memory(rings, 0)?;
    let mut head = Box::new(0);
    let mut recorded = 0;
    let time = after_others(|n| {
        recorded += u64::from(floor_cold_emit(&rings[0], memory, &mut head, n, black_box(n)));
    });
    ensure!(recorded == COLD_EVENTS, "records lost");
    Ok(time)
}

/// Writes a record unless the mask's word switches the event off. The compiler does not inline this function,
/// because the row compares this function with another function that is not inlined.
#[inline(never)]
fn floor_cold_emit(
    mask: &AtomicU64,
    memory: ClientMemory<'_>,
    head: &mut usize,
    a: u64,
    b: u64,
) -> bool {
    if mask.load(Relaxed) != 0 {
        return false;
    }
    let Some(record) = memory.ring.get(*head..*head + 4) else { return false };
    record[0].store(ticks(), Relaxed);
    record[1].store(0x2_1234_5678, Relaxed);
    record[2].store(a, Relaxed);
    record[3].store(b, Relaxed);
    *head += 4;
    memory.guest[0].store(*head as u64, Ordering::Release);
    true
}

/// Counts the instructions of an event, together with the instructions of the loop.
pub fn instructions(context: &mut Context) -> Result<f64> {
    let rings = rings(context)?;
    let state = ProducerState::new();
    let client = lease(channel(rings)?, 0, &state)?;
    // The first event writes the event's text.
    emit_pair(&client, 0, 0);
    counted(|n| emit_pair(&client, n, black_box(n)))
}

/// Counts the instructions of an empty loop.
pub fn instructions_empty(_: &mut Context) -> Result<f64> {
    counted(|n| {
        black_box(n);
    })
}

/// Counts the instructions of an event that the mask switches off, together with the instructions of the
/// loop.
pub fn instructions_off(context: &mut Context) -> Result<f64> {
    switched_off(context, |client| {
        counted(|n| {
            let a = black_box(n);
            hypertrace::event!(client: client, "bench_pair", a, b = a);
        })
    })
}

/// Measures an event that the mask switches off.
pub fn disabled(context: &mut Context) -> Result<f64> {
    let turns = 20_000_000;
    switched_off(context, |client| {
        let total = timed(turns, |n| {
            let a = black_box(n);
            hypertrace::event!(client: client, "bench_pair", a, b = a);
        });
        Ok(ns(total, turns))
    })
}

/// Runs a measurement with a client whose events the mask switches off.
fn switched_off(
    context: &mut Context,
    measure: impl FnOnce(&Client<'_>) -> Result<f64>,
) -> Result<f64> {
    let rings = rings(context)?;
    set_mask(rings, 1)?;
    let state = ProducerState::new();
    let client = lease(channel(rings)?, 0, &state)?;
    let measured = measure(&client);
    let head = memory(rings, 0)?.guest[0].load(Relaxed);
    set_mask(rings, 0)?;
    client.poll();
    let (site, fields) = hypertrace::abi::event_type!("bench_pair", a = 0u64, b = 0u64);
    let on = client.emit(site, fields) == Emit::Recorded;
    ensure!(on && head <= 64, "the mask did not switch the event off and on");
    measured
}

/// Writes the mask, and gives the mask a new version, as a host does.
fn set_mask(rings: &[AtomicU64], byte: u8) -> Result<()> {
    for word in &rings[..512] {
        word.store(u64::from_ne_bytes([byte; 8]), Relaxed);
    }
    let version = &memory(rings, 0)?.host[host_page::MASK_VERSION];
    version.store(ticks(), Ordering::Release);
    Ok(())
}

/// Measures the time per record if several threads emit at once. The rings hold all records of a run.
pub fn emit_threads(context: &mut Context, threads: u64) -> Result<f64> {
    let rings = rings(context)?;
    let turns = BURST * 2;
    let total = at_once(threads, |index, meet| {
        let state = ProducerState::new();
        let client = lease(channel(rings)?, index as u32, &state)?;
        emit_pair(&client, 0, 0);
        meet();
        let start = ticks();
        for i in 0..turns {
            emit_pair(&client, i, black_box(i));
        }
        let end = ticks();
        client.release();
        let lost = memory(rings, index as u32)?.guest[8].load(Relaxed);
        ensure!(lost == 0, "{lost} records lost");
        Ok((start, end))
    })?;
    Ok(ns(total, turns * threads))
}
