//! The demonstration: serves simulated requests and traces them.

use hypertrace::{
    Client, Emit, Hex, Reply, Status, event, reference_point, reference_region, region,
};

use super::NOT_RECORDED;
use crate::Args;

/// Number of words of the largest event's fields.
const MAX_WORDS: u64 = 3;
/// Number of events of the regions in a round: two begins and two ends.
const OF_REGIONS: u64 = 4;

/// Serves requests in `args.reference_points` rounds, with `args.events` events in all. Each round is a
/// region `batch`. Fails unless every reference point was recorded.
pub fn run(work: &Args, client: &Client<'_>) -> u32 {
    let rounds = work.reference_points.max(1);
    let (mut events, mut requests) = (0, 0);
    let mut recorded = true;
    // A wait for room fails if the host takes nothing, for example because its disk is full. After a failed
    // wait, the guest does not wait again.
    let (mut patient, mut answered) = (true, true);
    for round in 0..rounds {
        let until = work.events * (round + 1) / rounds;
        // This guest waits rather than lose an event. A round is 100 events.
        patient = patient && client.wait_for_room(until - events, MAX_WORDS);
        let mut batch = None;
        if until - events >= OF_REGIONS {
            // This region shows the cost of a region itself.
            drop(region!(client: client, "empty", id = round));
            batch = Some(region!(client: client, "batch", id = round));
            events += OF_REGIONS;
        }
        while events < until {
            serve_one(client, requests);
            requests += 1;
            events += 1;
        }
        if round < work.reference_points && answered {
            let point = reference_point!(client: client, "round_done", round, served = events);
            answered = point.is_ok();
            recorded &= point.is_ok_and(|reply| reply.status == hypertrace::Status::Recorded);
        }
        drop(batch);
    }
    if recorded { 0 } else { NOT_RECORDED }
}

/// Traces a region of interest and its surroundings.
pub fn regions(work: &Args, client: &Client<'_>) -> u32 {
    let mut recorded = true;
    let mut is_recorded = |point: Result<Reply, Emit>| {
        recorded &= point.is_ok_and(|reply| reply.status == Status::Recorded);
    };
    for round in 0..work.reference_points {
        is_recorded(reference_point!(client: client, "outside", round));
        let _region = reference_region!(client: client, "measured", id = round);
        is_recorded(reference_point!(client: client, "inside", round));
    }
    if recorded { 0 } else { NOT_RECORDED }
}

fn serve_one(client: &Client<'_>, id: u64) {
    let sum = work_a_little(id);
    match id % 4 {
        0 => event!(client: client, "request", id, bytes = 512u32 << (id % 5)),
        1 => {
            event!(client: client, "cache_miss", id, address = Hex(sum & !63), write = sum & 1 == 1)
        }
        2 => {
            event!(client: client, "reply", id, status = if sum.is_multiple_of(7) { "retry" } else { "ok" })
        }
        _ => {
            event!(client: client, "queue", depth = (sum % 32) as u16, drift = (sum % 100) as i32 - 50)
        }
    }
}

/// Computes for about a hundred nanoseconds.
fn work_a_little(seed: u64) -> u64 {
    (0..64).fold(seed, |sum, i| (sum ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}
