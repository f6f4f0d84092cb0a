//! Rows of triggers: the cost that rules add to a reference point.

use super::row::{Floor, Row, row};
use super::scratch::Scratch;
use super::timing::ns;
use anyhow::{Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::drain::pass;
use hypertrace::abi::schema::name_hash;
use hypertrace::abi::sink::{EventSink, ReferencePoint, Status};

const NO_RULES: Floor = ("no rules", |_| points(Rules::None));

pub const ROWS: &[Row] = &[
    row(
        "trigger_match",
        |_| points(Rules::Two),
        "the time that 16 rules, of which one fires, add to a reference point",
    )
    .less(NO_RULES, "<= 20 ns more")
    .note(
        "`EventSink::reference_point` on a thread with a ring. The points alternate \
         between two names, as a region's begin and end do; each fires one rule, which \
         switches a declared event on or off (`events NAME on`). That, and the request to \
         switch the guest's events, are timed; the drain pass every 500 points, which \
         switches the guest's events, is not.",
    ),
    row(
        "trigger_miss",
        |_| points(Rules::Others),
        "the time that 16 rules about other names add to a reference point",
    )
    .less(NO_RULES, "<= 2 ns more"),
];

/// Number of points between two passes of the drain. The passes are not timed.
const BURST: u64 = 500;
const BURSTS: u64 = 400;
const RULES: usize = 16;
/// Names of the points. The two names alternate, as the begin and the end of a region do.
const NAMES: [&str; 2] = ["bench_begin", "bench_end"];

/// Rules of a run.
#[derive(Clone, Copy, PartialEq)]
pub enum Rules {
    None,
    /// Rules about other points only.
    Others,
    /// Two of the rules are about the two points, so that each point fires one rule. The rule switches an
    /// event.
    Two,
}

/// Measures the call that a device makes for a point. The thread has its own ring.
pub fn points(rules: Rules) -> Result<f64> {
    let scratch = Scratch::new()?;
    let session = scratch.session()?;
    for number in 0..RULES {
        let name = match (rules, number) {
            (Rules::None, _) => break,
            (Rules::Two, 6 | 7) => NAMES[number - 6].to_owned(),
            _ => format!("bench_other_{number}"),
        };
        let state = if number == 6 { "on" } else { "off" };
        session.add_trigger(&format!("on {name} do events bench_triggered {state}"))?;
    }
    session.attach("bench");
    let hashes = NAMES.map(name_hash);
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
                name_hash: hashes[seq as usize % 2],
                cpu: 0,
                guest_time: now,
                host_time: now,
                words,
            });
            failed += u64::from(status != Status::Recorded);
        }
        total += ticks() - start;
        pass(&session, |_, _| ());
    }
    let listed = session.triggers();
    ensure!(failed == 0, "{failed} points found no room");
    let fired = listed.matches(&format!("(fired {}, failed 0)", BURST * BURSTS / 2)).count();
    ensure!(fired == if rules == Rules::Two { 2 } else { 0 }, "the wrong rules fired:\n{listed}");
    ensure!(listed.contains(" 0 waiting"), "the guest's events did not follow:\n{listed}");
    session.finish()?;
    Ok(ns(total, BURST * BURSTS))
}
