//! Row of the hostile clients: the share of the drain loop's time that an honest client gets beside 15
//! hostile clients.

use super::ring::lease;
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use anyhow::{Context as _, Result, ensure};
use hypertrace::abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::event_type;
use hypertrace::abi::layout::{guest_page, host_page};
use hypertrace::abi::record::Header;
use hypertrace::abi::ring::ClientMemory;
use hypertrace::abi::schema::id_of;
use hypertrace::{Channel, Client, Emit, ProducerState};
use hypertrace_device::DrainPolicy;
use hypertrace_device::{Chip, ChipConfig, Geometry, Memory, Region, RingMode};
use hypertrace_trace::session_json::{Domain, StreamJson};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread;

pub const ROWS: &[Row] =
    &[row("drain_hostile", beside, "drain time per record of a client beside 15 hostile ones")
        .speedup_of(("fair share", fair), ">= 0.9 x its fair share")
        .note(
            "The ratio is the part of its fair share that the client gets. Its own ring is always \
             full. The other 15 cost as much time as they can, refilled before each pass and \
             meanwhile by another thread: a known text repeated, new texts, a holder for each \
             record, empty blocks, heads that jump, impossible timestamps. Time is the CPU time \
             of passes of the drain loop with the default budget, to a session on tmpfs; the fair \
             share is 16 times the client's time when the others write elsewhere.",
        )];

const CLIENTS: u32 = 16;
/// Id of the honest client, which is the last client of a pass.
const HONEST: u32 = CLIENTS - 1;
/// Geometry with small blocks, because each holder takes at least one block.
const GEOMETRY: Geometry = Geometry {
    clients: CLIENTS,
    legacy_args: 1,
    ring_bytes: 1 << 20,
    block_bytes: 1 << 10,
    schema_bytes: 1 << 14,
};
/// Drain time of a run. The unit is the share of a pass that one client gets.
const SHARES: u64 = 2_000;

/// Measures the time per record of the honest client while there are hostile clients.
pub fn beside(_: &mut Context) -> Result<f64> {
    run(true)
}

/// Measures the fair share. The fair share is 16 times the time per record that the honest client needs when
/// it is alone.
pub fn fair(_: &mut Context) -> Result<f64> {
    Ok(run(false)? * f64::from(CLIENTS))
}

fn run(beside: bool) -> Result<f64> {
    let scratch = Scratch::new()?;
    let session = scratch.session()?;
    let config = ChipConfig::default();
    let chip = Chip::new(Memory::anonymous(GEOMETRY)?, &config, session.clone(), ());
    let rings = chip.memory().region(Region::Rings).context("the device has no rings")?.words();
    let channel = Channel::local(&chip.config_page(), rings)?;
    let state = ProducerState::new();
    let client = lease(channel, HONEST, &state)?;
    // If the honest client is alone, then the other thread makes the same load in other memory, because the
    // CPUs of the two threads may share a core.
    let elsewhere: Vec<AtomicU64> = match beside {
        true => Vec::new(),
        false => (0..GEOMETRY.rings_size() / 8).map(|_| AtomicU64::new(0)).collect(),
    };
    let rings = if beside { rings } else { &elsewhere };
    let hostile = |i| Hostile::new(rings, i).map(Mutex::new);
    let hostile: Option<Vec<_>> = (0..HONEST).map(hostile).collect();
    let hostile = hostile.context("the rings do not fit their geometry")?;
    let policy = DrainPolicy::default();
    let done = AtomicBool::new(false);
    let mut total = 0;
    let fill = || {
        for hostile in &hostile {
            let mut hostile = hostile.lock().unwrap_or_else(PoisonError::into_inner);
            if !beside {
                hostile.empty();
            }
            hostile.fill();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                fill();
            }
        });
        let end = policy.budget.as_nanos() as u64 * SHARES;
        while total < end {
            // All rings are filled before each pass, so that no ring is empty. The time does not include the
            // filling.
            fill();
            while emit(&client) == Emit::Recorded {}
            let begin = cpu_ns();
            chip.drain_pass(policy.budget);
            total += cpu_ns() - begin;
        }
        done.store(true, Relaxed);
    });
    let summary = session.finish()?;
    let own = |s: &&StreamJson| (s.domain, s.client) == (Domain::Guest, HONEST);
    let honest = summary.streams.iter().find(own).context("the honest client has no stream")?;
    ensure!(
        honest.faults.is_empty(),
        "faults were counted for the honest client: {:?}",
        honest.faults
    );
    ensure!(honest.events > 0, "nothing was drained of the honest client");
    Ok(total as f64 / honest.events as f64)
}

/// Returns the CPU time of this thread in nanoseconds. The CPU time of other processes is not included.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[inline(never)]
fn emit(client: &Client<'_>) -> Emit {
    let (site, fields) = event_type!("honest", a = 1u64, b = 2u64);
    client.emit(site, fields)
}

/// Kind of a hostile client.
#[derive(Clone, Copy)]
enum Kind {
    /// Writes the same text to its schema log again and again.
    KnownTexts,
    /// Writes a new text each time.
    NewTexts,
    /// Uses another holder for each record.
    Holders,
    /// Writes empty blocks.
    Pads,
    /// Stores arbitrary values to head.
    Heads,
    /// Writes impossible timestamps.
    Times,
}

const KINDS: [Kind; 6] =
    [Kind::KnownTexts, Kind::NewTexts, Kind::Holders, Kind::Pads, Kind::Heads, Kind::Times];

/// Client that costs the host as much time as it can.
struct Hostile<'m> {
    memory: ClientMemory<'m>,
    kind: Kind,
    head: u64,
    logged: u64,
    number: u64,
}

impl<'m> Hostile<'m> {
    fn new(rings: &'m [AtomicU64], client: u32) -> Option<Hostile<'m>> {
        let memory = ClientMemory::of_rings(rings, client, &GEOMETRY, RingMode::Discard)?;
        let kind = KINDS[client as usize % KINDS.len()];
        Some(Hostile { memory, kind, head: 0, logged: 0, number: 1 })
    }

    /// Fills the space that the host has emptied.
    fn fill(&mut self) {
        match self.kind {
            Kind::KnownTexts => while self.tell("known(x:u64)") {},
            Kind::NewTexts => {
                while self.tell(&format!("new{}(x:u64)", self.number)) {
                    self.number += 1;
                }
            }
            Kind::Holders => self.blocks(|number| (number, 1, ticks())),
            Kind::Pads => self.blocks(|_| (7, 0, 0)),
            Kind::Times => {
                self.blocks(|number| (7, 60, if number % 2 == 0 { 1 } else { u64::MAX }))
            }
            Kind::Heads => {
                self.number = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7) | 1;
                let head = [8, 1 << 62, self.number, self.number % 131_072];
                let head = head[self.number as usize / 2 % 4];
                self.memory.guest[guest_page::HEAD].store(head, Ordering::Release);
            }
        }
    }

    /// Marks all records and texts as taken, as the host would.
    fn empty(&mut self) {
        self.memory.host[host_page::TAIL].store(self.head, Ordering::Release);
        self.memory.host[host_page::SCHEMA_SEEN].store(self.logged, Ordering::Release);
    }

    /// Appends a text, if there is room.
    fn tell(&mut self, text: &str) -> bool {
        let log = self.memory.schema;
        let words = 1 + text.len().div_ceil(8) as u64;
        let seen = self.memory.host[host_page::SCHEMA_SEEN].load(Ordering::Acquire);
        if self.logged + words > seen + log.len() as u64 {
            return false;
        }
        let mut put = |word: u64| {
            log[self.logged as usize % log.len()].store(word, Relaxed);
            self.logged += 1;
        };
        put(u64::from(id_of(text)) | (text.len() as u64) << 32);
        for bytes in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            put(u64::from_le_bytes(word));
        }
        self.memory.guest[guest_page::SCHEMA_LEN].store(self.logged, Ordering::Release);
        true
    }

    /// Writes blocks while there is room. `of` maps the number of a record to the holder's token, the number
    /// of records in the block, and the record's timestamp. The records have no payload. A pad fills the rest
    /// of the block.
    fn blocks(&mut self, of: impl Fn(u64) -> (u64, u64, u64)) {
        let block = self.memory.block_words();
        let tail = self.memory.host[host_page::TAIL].load(Ordering::Acquire);
        while self.head + block <= tail + self.memory.capacity() {
            let (token, records, _) = of(self.number);
            self.word(self.number);
            self.word(token);
            for _ in 0..records {
                let (_, _, timestamp) = of(self.number);
                self.word(timestamp);
                self.word(Header::meta(99, 0, 0));
                self.number += 1;
            }
            self.number += u64::from(records == 0);
            self.word(0);
            self.word(0);
            self.head = self.head.next_multiple_of(block);
            self.memory.guest[guest_page::HEAD].store(self.head, Ordering::Release);
        }
    }

    fn word(&mut self, value: u64) {
        let ring = self.memory.ring;
        ring[self.head as usize % ring.len()].store(value, Relaxed);
        self.head += 1;
    }
}
