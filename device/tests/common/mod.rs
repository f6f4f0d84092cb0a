//! A chip on a sink that keeps what it is given.
#![allow(dead_code, reason = "each test file uses a part")]

use hypertrace_abi::atomic::{AtomicU64, Ordering};
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::sink::{Drained, EventSink, ReferencePoint, Status};
use hypertrace_device::{Chip, ChipConfig, Counter, Geometry, Memory, Region};
use std::sync::{Arc, Mutex};

pub const GEOMETRY: Geometry = Geometry {
    clients: 4,
    legacy_args: 4,
    ring_bytes: 1 << 16,
    block_bytes: 1 << 12,
    schema_bytes: 1 << 12,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub client: u32,
    pub seq: u32,
    pub id: u32,
    pub cpu: u32,
    pub guest_time: u64,
    pub host_time: u64,
    pub words: Vec<u64>,
}

/// What the sink was asked for, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Point(Point),
    Begin,
    Drain(u32),
    End,
}

/// Keeps calls; says that a client has more as often as it is told.
#[derive(Default)]
pub struct Recorder {
    pub calls: Mutex<Vec<Call>>,
    pub more: Mutex<usize>,
}

impl EventSink for Recorder {
    fn reference_point(&self, point: &ReferencePoint<'_>) -> Status {
        self.calls.lock().unwrap().push(Call::Point(Point {
            client: point.client,
            seq: point.seq,
            id: point.id,
            cpu: point.cpu,
            guest_time: point.guest_time,
            host_time: point.host_time,
            words: point.words.to_vec(),
        }));
        Status::Recorded
    }

    fn begin_pass(&self) {
        self.calls.lock().unwrap().push(Call::Begin);
    }

    fn drain(&self, client: u32, _: &mut Consumer<'_>) -> Drained {
        self.calls.lock().unwrap().push(Call::Drain(client));
        let mut more = self.more.lock().unwrap();
        let drained = Drained { words: 0, more: *more > 0 };
        *more = more.saturating_sub(1);
        drained
    }

    fn end_pass(&self) {
        self.calls.lock().unwrap().push(Call::End);
    }
}

pub type TestChip = Chip<Recorder>;

pub fn chip() -> Arc<TestChip> {
    chip_with(&ChipConfig::default())
}

pub fn chip_with(config: &ChipConfig) -> Arc<TestChip> {
    let memory = Memory::anonymous(GEOMETRY).unwrap();
    Arc::new(Chip::new(memory, config, Recorder::default(), ()))
}

pub fn calls(chip: &TestChip) -> Vec<Call> {
    std::mem::take(&mut chip.sink().calls.lock().unwrap())
}

pub fn points(chip: &TestChip) -> Vec<Point> {
    let points = calls(chip).into_iter().filter_map(|call| match call {
        Call::Point(point) => Some(point),
        _ => None,
    });
    points.collect()
}

/// All counters, added.
pub fn counts(chip: &TestChip) -> u64 {
    Counter::ALL.into_iter().map(|counter| chip.count(counter)).sum()
}

/// A client's area in the rings region.
pub fn area(chip: &TestChip, client: u32) -> &[AtomicU64] {
    let words = chip.memory().region(Region::Rings).unwrap().words();
    &words[GEOMETRY.client_offset(client) as usize / 8..]
}

/// Writes a v2 slot.
pub fn write_slot(chip: &TestChip, client: u32, seq: u32, id: u32, claimed: u16, words: &[u64]) {
    let slot = &area(chip, client)[guest_page::SLOT..];
    let header = [u64::from(seq) | u64::from(id) << 32, 7 << 32, 1000, claimed.into()];
    for (to, from) in slot.iter().zip(header.iter().chain(words)) {
        to.store(*from, Ordering::Relaxed);
    }
}

/// Offset of a v2 register in the control region.
pub fn register(client: u32, register: u64) -> u64 {
    GEOMETRY.control_pages_offset() + u64::from(client) * 4096 + register
}
