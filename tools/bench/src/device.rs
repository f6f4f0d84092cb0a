//! Rows of the device without a guest: a reference point, a restore, and a host without anything to do.

use super::ring::{self, lease};
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use super::timing::ns;
use anyhow::{Context as _, Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::layout::{guest_page, register};
use hypertrace::{Channel, ProducerState, event};
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Region};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

pub const ROWS: &[Row] = &[
    row(
        "device_reference_point",
        reference_point,
        "one call of `Chip::write` to EMIT, as a vCPU's thread makes it",
    )
    .over(ring::FLOOR, "<= 4 x ring_floor")
    .note(
        "Slot copied, host ring written, reply written. A drain loop empties the host \
         ring every 200 µs. By `perf`, a third of the time is the read of the counter, \
         and two fifths are around the copy of the slot.",
    ),
    row("restore", restore, "`Chip::restore` of a device with 64 clients, to a new session")
        .target("<= 1 ms")
        .note("Each client has a holder and 8 types of events."),
    row(
        "idle_cpu",
        idle_cpu,
        "CPU time in a second of a VMM's threads while 16 leased clients trace nothing",
    )
    .target("<= 100 µs (0.01 % of a CPU)")
    .note(
        "All threads of a VMM with a session and a drain loop, 1.5 s after the last \
         record; the guests' own threads are not in it.",
    ),
];

const BURST: u64 = 2_000;
const BURSTS: u64 = 20;

/// Slot of the first client's reference points. The points have two words.
pub struct Slot<'m>(&'m [hypertrace::abi::atomic::AtomicU64]);

impl Slot<'_> {
    pub fn new(memory: &Memory) -> Slot<'_> {
        let page = memory.region(Region::Rings).map_or(&[][..], |rings| rings.words());
        let at = (memory.geometry().client_offset(0) / 8) as usize + guest_page::SLOT;
        let slot = Slot(&page[at..]);
        slot.0[2].store(ticks(), Relaxed);
        slot.0[3].store(2, Relaxed);
        slot
    }

    /// Fills the slot with the point of this number. The point's id has no schema. Thus the drain loop does
    /// not decode the point, and the row does not measure decoding.
    pub fn fill(&self, seq: u64) {
        self.0[0].store(seq | 0x1234_5678 << 32, Relaxed);
    }
}

/// Measures one call of `Chip::write` per point, while a drain loop empties the host ring. A vCPU's thread
/// makes the same call.
pub fn reference_point(_: &mut Context) -> Result<f64> {
    let scratch = Scratch::new()?;
    let session = scratch.session()?;
    let geometry = Geometry { clients: 1, ..Geometry::default() };
    let config = ChipConfig::default().with(|config| config.vcpu_clients = 1);
    let chip = Chip::new(Memory::anonymous(geometry)?, &config, session.clone(), ());
    let (done, passes) = (AtomicBool::new(false), AtomicU64::new(0));
    let emit = geometry.control_pages_offset() + register::EMIT;
    let total = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                thread::sleep(Duration::from_micros(200));
                chip.drain_all();
                passes.fetch_add(1, Relaxed);
            }
        });
        session.attach("bench");
        let slot = Slot::new(chip.memory());
        let (mut seq, mut total) = (0u64, 0);
        for _ in 0..BURSTS {
            let start = ticks();
            for _ in 0..BURST {
                seq += 1;
                slot.fill(seq);
                chip.write(Region::Control, emit, &seq.to_le_bytes());
            }
            total += ticks() - start;
            // The benchmark waits for two passes of the drain loop, after which the host ring is empty. A
            // vCPU's thread would never wait for the host ring.
            let then = passes.load(Relaxed) + 2;
            while passes.load(Relaxed) < then {
                thread::sleep(Duration::from_micros(100));
            }
        }
        done.store(true, Relaxed);
        total
    });
    chip.drain_all();
    let summary = session.finish()?;
    let recorded = summary.reference_points;
    ensure!(recorded == BURST * BURSTS, "{recorded} of {} were recorded", BURST * BURSTS);
    Ok(ns(total, BURST * BURSTS))
}

/// Measures the restore of a device with 64 clients. The device is restored on its own memory, with a new
/// session.
pub fn restore(_: &mut Context) -> Result<f64> {
    const CLIENTS: u32 = 64;
    const TURNS: u64 = 16;
    let scratch = Scratch::new()?;
    let session = scratch.session()?;
    let geometry = Geometry { clients: CLIENTS, ..Geometry::default() };
    let config = ChipConfig::default();
    let chip = Chip::new(Memory::anonymous(geometry)?, &config, session.clone(), ());
    let rings = chip.memory().region(Region::Rings).map_or(&[][..], |r| r.words());
    let channel = Channel::local(&chip.config_page(), rings)?;
    for index in 0..CLIENTS {
        let state = ProducerState::new();
        let client = lease(channel, index, &state)?;
        event!(client: client, "bench_0", a = 1u64);
        event!(client: client, "bench_1", a = 1u64, b = 2u64);
        event!(client: client, "bench_2", a = 1u32, text = "two");
        event!(client: client, "bench_3", a = 1i64, b = true);
        event!(client: client, "bench_4", a = 1u64, b = 2u8, c = 3u16);
        event!(client: client, "bench_5");
        event!(client: client, "bench_6", address = 1u64);
        event!(client: client, "bench_7", id = 1u64, bytes = 4096u32);
        client.release();
    }
    let state = chip.state();
    let texts: usize = state.clients.iter().map(|client| client.texts.len()).sum();
    ensure!(texts == 8 * CLIENTS as usize, "{texts} texts are known");
    let file = chip.mapping(Region::Data, 0).map(|mapping| Arc::clone(mapping.file));
    let file = file.context("the region is memory")?;
    let mut total = 0;
    for _ in 0..TURNS {
        let scratch = Scratch::new()?;
        let session = scratch.session()?;
        let memory = Memory::from_file(geometry, file.try_clone()?)?;
        let start = ticks();
        let chip = Chip::new(memory, &config, session.clone(), ());
        chip.restore(&state, None)?;
        total += ticks() - start;
        drop(chip);
        session.finish()?;
    }
    session.finish()?;
    Ok(ns(total, TURNS))
}

/// Number of clients of the idle device.
const CLIENTS: u32 = 16;
/// Wait before the measurement, because the drain loop still has to write the session's accounts before it
/// rests.
const SETTLE: Duration = Duration::from_millis(1500);
/// Time that is measured.
const IDLE: Duration = Duration::from_secs(2);

/// Measures the CPU time per second of all threads of a VMM whose guests trace nothing.
pub fn idle_cpu(_: &mut Context) -> Result<f64> {
    let scratch = Scratch::new()?;
    let geometry = Geometry { clients: CLIENTS, ..Geometry::default() };
    let device = scratch.device(geometry, 0)?;
    let rings = device.chip().memory().region(Region::Rings).context("no rings")?;
    let channel = Channel::local(&device.chip().config_page(), rings.words())?;
    let states: Vec<_> = (0..CLIENTS).map(|_| ProducerState::new()).collect();
    let clients = (0..CLIENTS).zip(&states).map(|(index, state)| lease(channel, index, state));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let spent = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let before = spent();
    thread::sleep(IDLE);
    let spent = spent() - before;
    drop(clients);
    device.finish()?;
    Ok(spent / IDLE.as_secs_f64())
}
