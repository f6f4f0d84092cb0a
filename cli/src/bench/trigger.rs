//! Rows of triggers: what rules add to a reference point.

use super::events;
use super::rows::Context;
use super::scratch::Scratch;
use anyhow::{Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::schema::name_hash;
use hypertrace::abi::sink::{EventSink, ReferencePoint, Status};
use hypertrace_trace::SessionConfig;
use std::thread;
use std::time::Duration;

/// Points of a burst: what they queue finds room.
const BURST: u64 = 500;
const BURSTS: u64 = 400;
const RULES: usize = 16;

/// Which rules there are.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    None,
    /// None is about the points.
    Others,
    /// One of them is.
    One,
}

pub fn none(context: &mut Context) -> Result<f64> {
    points(context, Rules::None)
}

pub fn miss(context: &mut Context) -> Result<f64> {
    points(context, Rules::Others)
}

pub fn hit(context: &mut Context) -> Result<f64> {
    points(context, Rules::One)
}

/// The call that a device makes, on a thread with a ring.
fn points(context: &mut Context, rules: Rules) -> Result<f64> {
    let scratch = Scratch::new()?;
    let session = hypertrace_trace::Session::create(SessionConfig::new(scratch.path().join("s")))?;
    for number in 0..RULES {
        let name = match (rules, number) {
            (Rules::None, _) => break,
            (Rules::One, 7) => "bench_point".to_owned(),
            _ => format!("bench_other_{number}"),
        };
        session.add_trigger(&format!("on {name} do events bench_triggered on"))?;
    }
    session.attach("bench");
    let name_hash = name_hash("bench_point");
    let (mut seq, mut total, mut failed) = (0, 0, 0u64);
    for _ in 0..BURSTS {
        let start = ticks();
        for now in start..start + BURST {
            seq += 1;
            let words = &[now, 0];
            let status = session.reference_point(&ReferencePoint {
                client: 0,
                seq,
                id: 0x1234_5678,
                name_hash,
                cpu: 0,
                guest_time: now,
                host_time: now,
                words,
            });
            failed += u64::from(status != Status::Recorded);
        }
        total += ticks() - start;
        session.begin_pass();
        session.end_pass();
        while !session.triggers().contains("actions: 0 waiting") {
            thread::sleep(Duration::from_micros(50));
        }
    }
    let (was_on, told) = (events::bench_triggered::EVENT.is_wanted(), session.triggers());
    events::bench_triggered::EVENT.set(false);
    ensure!(failed == 0, "{failed} points found no room");
    ensure!(was_on == (rules == Rules::One), "the wrong rules fired:\n{told}");
    let fired = format!("(fired {}, failed 0)", BURST * BURSTS);
    ensure!(was_on == told.contains(&fired), "not every point fired a rule:\n{told}");
    ensure!(told.contains(" 0 dropped"), "queued actions were dropped:\n{told}");
    session.finish()?;
    Ok(context.ns(total, BURST * BURSTS))
}
