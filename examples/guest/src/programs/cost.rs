//! Programs that measure the ticks of repeated calls.
#![allow(unsafe_code)]

use hypertrace::abi::clock::ticks;
use hypertrace::{Client, Status, event, reference_point, region};

use crate::{Args, Board, load, store};

/// Indices of the results of these programs.
const TICKS: usize = 0;
const DONE: usize = 1;

/// Number of words of an event's fields.
const WORDS: u64 = 2;
/// Number of words of an event's record.
const RECORD_WORDS: u64 = 2 + WORDS;

pub fn ring_emit(cpu: u32, args: &Args, board: &Board, client: &Client<'_>) -> u32 {
    // The first lap of the ring is a warm-up: its first event sends the schema, and the lap touches pages
    // that the hypervisor has not mapped yet.
    let lap = client.producer().memory().capacity() / RECORD_WORDS;
    let burst = lap / 8;
    for i in 0..lap {
        if i % burst == 0 {
            client.wait_for_room(burst, WORDS);
        }
        emit(client, i, 0);
    }
    client.wait_for_room(args.events, WORDS);
    board.meet(args.vcpus);
    let start = ticks();
    for i in 0..args.events {
        emit(client, i, start);
    }
    board.post(cpu, TICKS, ticks() - start);
    board.post(cpu, DONE, args.events);
    0
}

/// Emits an event. This function is not inlined, because a large program does not inline its call sites
/// either.
#[inline(never)]
fn emit(client: &Client<'_>, index: u64, value: u64) {
    event!(client: client, "cost", index, value);
}

pub fn reference_points(cpu: u32, args: &Args, board: &Board, client: &Client<'_>) -> u32 {
    // This point is a warm-up, because the first point sends its schema.
    let _ = reference_point!(client: client, "cost_point", index = 0u64, value = 0u64);
    board.meet(args.vcpus);
    let mut recorded = 0;
    let start = ticks();
    for index in 0..args.reference_points {
        let reply = reference_point!(client: client, "cost_point", index, value = start);
        recorded += u64::from(reply.is_ok_and(|reply| reply.status == Status::Recorded));
    }
    board.post(cpu, TICKS, ticks() - start);
    board.post(cpu, DONE, recorded);
    0
}

/// Number of regions from one reference point to the next.
const REGIONS_PER_POINT: u64 = 16;

pub fn store_regions(cpu: u32, args: &Args, board: &Board, client: &Client<'_>) -> u32 {
    let [address, first, loaded, _] = args.params;
    let (mut spent, mut done) = (0, 0);
    while done < args.events {
        // The reference point, which relates the clocks, and the wait for room are outside of the measured
        // time.
        let _ = reference_point!(client: client, "regions_done", done);
        client.wait_for_room(2 * (REGIONS_PER_POINT + 1), 1);
        drop(region!(client: client, "empty", id = first + done));
        let until = (done + REGIONS_PER_POINT).min(args.events);
        let start = ticks();
        for id in first + done..first + until {
            let _region = region!(client: client, "store", id);
            if loaded != 0 {
                // SAFETY: as below.
                unsafe { load(loaded) };
            }
            // SAFETY: the VMM chose an address that is MMIO in this guest and is aligned to 8.
            unsafe { store(address, id, 8) };
        }
        spent += ticks() - start;
        done = until;
    }
    let _ = reference_point!(client: client, "regions_done", done);
    board.post(cpu, TICKS, spent);
    board.post(cpu, DONE, done);
    0
}
