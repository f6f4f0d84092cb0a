// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The division of the drain loop's time between an honest client and clients with long steps.

use hypertrace_abi::layout::{Geometry, guest_page};
use hypertrace_abi::ring::{ClientMemory, Consumer};
use hypertrace_abi::sink::{DrainSink, Drained, EventSink, ReferencePoint, SessionInfo, Status};
use hypertrace_device::{Chip, ChipConfig, Memory, Region, RingMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CLIENTS: u32 = 16;
const HONEST: u32 = 15;
/// Share of a client in a pass, in ticks.
const SHARE: u64 = 1_000;
/// Duration of the honest client's steps, in ticks.
const STEP: u64 = 150;

/// A sink with a clock of its own. A step of a client advances this clock by the duration that the client
/// chooses.
#[derive(Default)]
struct Costs {
    now: AtomicU64,
    /// Duration of each client's steps, in ticks.
    steps: [u64; CLIENTS as usize],
    /// Ticks spent on each client.
    spent: [AtomicU64; CLIENTS as usize],
    /// Time of the honest client's last turn, and the longest time for which the honest client waited.
    last: AtomicU64,
    longest: AtomicU64,
    /// Ticks between two records of the honest client. Each record takes one step.
    every: u64,
    /// Time until which the honest client has nothing to take.
    honest_until: AtomicU64,
}

impl EventSink for Costs {
    fn session_info(&self) -> SessionInfo {
        SessionInfo::default()
    }

    fn reference_point(&self, _: &ReferencePoint<'_>) -> Status {
        Status::Failed
    }

    fn with_drain(&self, work: &mut dyn FnMut(&mut dyn DrainSink)) {
        work(&mut &*self);
    }
}

impl DrainSink for &Costs {
    fn drain(&mut self, client: u32, consumer: &mut Consumer<'_>) -> Drained {
        let cost = if consumer.is_paused() { 0 } else { self.steps[client as usize] };
        if self.steps[client as usize] == 0 {
            return Drained::default();
        }
        let now = self.now.load(Relaxed);
        if client == HONEST && !consumer.is_paused() {
            self.longest.fetch_max(now - self.last.load(Relaxed), Relaxed);
            self.last.store(now + cost, Relaxed);
            if self.every > 0 {
                let due = self.honest_until.load(Relaxed);
                if now < due {
                    return Drained::default();
                }
                self.honest_until.store(now + self.every, Relaxed);
                self.spend(client, cost);
                return Drained { words: 1, more: false };
            }
        }
        self.spend(client, cost);
        Drained { words: 1, more: true }
    }
}

impl Costs {
    fn spend(&self, client: u32, cost: u64) {
        self.now.fetch_add(cost, Relaxed);
        self.spent[client as usize].fetch_add(cost, Relaxed);
    }

    fn spent(&self, client: u32) -> u64 {
        self.spent[client as usize].load(Relaxed)
    }
}

/// Makes a device with clients that always have something in their rings, except for clients with steps of 0
/// ticks.
fn chip(costs: Costs) -> (Chip, Arc<Costs>) {
    let geometry = Geometry {
        clients: CLIENTS,
        legacy_args: 1,
        ring_bytes: 4096,
        block_bytes: 256,
        schema_bytes: 4096,
    };
    let memory = Memory::anonymous(geometry).unwrap();
    let sink = Arc::new(costs);
    let chip = Chip::new(memory, &ChipConfig::default(), sink.clone(), ());
    let rings = chip.memory().region(Region::Rings).unwrap().words();
    for client in (0..CLIENTS).filter(|client| sink.steps[*client as usize] > 0) {
        let memory = ClientMemory::of_rings(rings, client, chip.geometry(), RingMode::Discard);
        memory.unwrap().guest[guest_page::HEAD].store(8, Relaxed);
    }
    (chip, sink)
}

/// Returns the ticks of a hostile client's steps: between a few ticks and several shares.
fn hostile_steps(client: u32) -> u64 {
    [10, 900, 1_100, 3_000, 12_000][client as usize % 5]
}

fn run(chip: &Chip, sink: &Costs, ticks: u64) {
    let end = sink.now.load(Relaxed) + ticks;
    while sink.now.load(Relaxed) < end {
        assert!(chip.drain_pass_by(SHARE, &|| sink.now.load(Relaxed)));
    }
}

#[test]
fn an_honest_client_gets_its_part_of_the_time_beside_hostile_ones() {
    let steps = std::array::from_fn(|client| match client as u32 {
        HONEST => STEP,
        hostile => hostile_steps(hostile),
    });
    let (chip, sink) = chip(Costs { steps, ..Costs::default() });
    let ticks = 10_000_000;
    run(&chip, &sink, ticks);
    let part = sink.spent(HONEST) as f64 / (ticks as f64 / f64::from(CLIENTS));
    assert!(part >= 0.99, "{part} of its part");
    // Even clients with long steps get no more than their part of the time.
    for client in 0..CLIENTS {
        let spent = sink.spent(client) as f64 / (ticks as f64 / f64::from(CLIENTS));
        assert!((0.98..1.02).contains(&spent), "client {client}: {spent} of its part");
    }
}

#[test]
fn a_client_with_little_to_take_does_not_wait_for_all_others() {
    let steps = std::array::from_fn(|client| match client as u32 {
        HONEST => STEP,
        _ => 12_000,
    });
    let (chip, sink) = chip(Costs { steps, every: 20 * STEP, ..Costs::default() });
    run(&chip, &sink, 1_000_000);
    let longest = sink.longest.swap(0, Relaxed);
    assert!(longest > 0);
    run(&chip, &sink, 10_000_000);
    // The honest client waits for two rounds, and for the long step at the end of each round. The honest
    // client does not wait for a long step of each other client.
    let longest = sink.longest.load(Relaxed);
    assert!(longest <= 2 * (16 * SHARE + 12_000), "{longest} ticks");
}

#[test]
fn a_lone_client_does_not_pay_for_a_long_step() {
    let mut steps = [0; CLIENTS as usize];
    steps[0] = 1_000_000;
    let (chip, sink) = chip(Costs { steps, ..Costs::default() });
    for _ in 0..100 {
        let before = sink.spent(0);
        chip.drain_pass_by(SHARE, &|| sink.now.load(Relaxed));
        chip.drain_pass_by(SHARE, &|| sink.now.load(Relaxed));
        assert!(sink.spent(0) > before);
    }
}

#[test]
fn drain_all_ends_although_a_client_always_has_more() {
    let mut steps = [0; CLIENTS as usize];
    steps[3] = 1;
    let (chip, sink) = chip(Costs { steps, ..Costs::default() });
    chip.drain_all();
    let most = (4096 + 4096) / 8;
    assert!((1..=2 * most).contains(&sink.spent(3)));
}
