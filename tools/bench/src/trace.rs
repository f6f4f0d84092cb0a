//! Rows of declared events. The events are functions of a `trace-events` file. A session or the simple
//! backend records the events.

use super::child::Child;
use super::drain;
use super::events;
use super::peers;
use super::ring::{self, floor};
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::timing::{BURST, BURST_RING, BURSTS, at_once, bursts, ns, timed};
use anyhow::{Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::drain::pass;
use hypertrace_trace::event::TraceEvent;
use hypertrace_trace::{Output, Session, SessionConfig, Summary};
use std::cell::Cell;
use std::hint::black_box;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const LTTNG_UST: Floor = ("lttng_ust", peers::lttng);

pub const ROWS: &[Row] = &[
    row(
        "trace_disabled",
        disabled,
        "a declared event that is off; the ratio is the difference in ns",
    )
    .less(ring::EMPTY_LOOP, "<= 0.5 ns over an empty loop")
    .note("While a session exists."),
    row(
        "trace_session_burst",
        |_| burst(To::Session),
        "bursts of 50,000 events into a thread's ring",
    )
    .over(ring::FLOOR, "<= 1.3 x ring_floor")
    .note(
        "The ring has 4 MiB and holds two bursts. The session is drained every 200 µs, to \
         its file on tmpfs. Nothing is lost. Only the bursts are timed.",
    ),
    row(
        "trace_simple_burst",
        |_| burst(To::Simple),
        "`trace_session_burst`, to the simple backend's file alone",
    )
    .over(ring::FLOOR, "<= 1.3 x ring_floor"),
    row(
        "trace_session_sustained",
        |_| sustained(To::Session),
        "a million events to the session's file, 32 bytes each",
    )
    .over(
        ("ring + 32 B write", |context| sustained_floor(context, To::Session)),
        "<= 1.5 x (ring_floor + write_floor)",
    )
    .note(
        "From the first record until all are in the file: a ring of the default size (256 \
         KiB), and a writer thread (`Session::start_writer`) that is woken when it fills. \
         The producer checks for room every 256 records and yields while there is none, \
         so nothing is lost.",
    ),
    row(
        "trace_session_lttng",
        |_| sustained(To::Session),
        "`trace_session_sustained`, against LTTng-UST",
    )
    .over(LTTNG_UST, "<= 0.6 x lttng_ust"),
    row(
        "trace_simple_sustained",
        |_| sustained(To::Simple),
        "a million events to the simple backend's file alone, 48 bytes each",
    )
    .over(
        ("ring + 48 B write", |context| sustained_floor(context, To::Simple)),
        "<= 1.5 x (ring_floor + 1.5 x write_floor)",
    )
    .note(
        "Bounded by new pages of the file, and each record is laid out twice: for the \
         session, then for the simple file.",
    ),
    row(
        "trace_simple_lttng",
        |_| sustained(To::Simple),
        "`trace_simple_sustained`, against LTTng-UST",
    )
    .over(LTTNG_UST, "<= 0.6 x lttng_ust"),
    row("session_create", create, "`Session::create` of a process's first session, on tmpfs")
        .target("<= 1 ms")
        .note(
            "With the default sizes and `host_frequency`: its files, and the memory of 16 \
             host rings.",
        ),
    row("trace_2threads", |_| threads(2), "two threads' throughput over one thread's")
        .speedup_of(("one thread", |_| threads(1)), ">= 1.9 x one thread's throughput")
        .note(
            "Each thread has a ring that holds the whole run. They begin once both are \
             running at the same time.",
        ),
];

/// Number of records of a sustained run. The number is a hundred times the number of records that the ring
/// holds.
const SUSTAINED: u64 = 1_000_000;
/// Number of records between two checks for room.
const STRIDE: u64 = 256;
/// Number of ring words of a record.
const RECORD_WORDS: u64 = 4;
/// Pause between two passes of the writer if no ring is full.
const PERIOD: Duration = Duration::from_millis(1);

/// Destination of declared events. Each value is the size in bytes of an event `bench_pair` at the
/// destination.
#[derive(Clone, Copy, PartialEq)]
pub enum To {
    /// The session's file: time, id, two fields.
    Session = 32,
    /// The simple backend's file: type, id, time, length, pid, two arguments.
    Simple = 48,
}

/// Guard that keeps an event on.
pub struct On(&'static TraceEvent);

impl On {
    pub fn new(event: &'static TraceEvent) -> On {
        event.set(true);
        On(event)
    }
}

impl Drop for On {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Session of a run.
struct Host {
    session: Session,
    simple: Option<PathBuf>,
    _scratch: Scratch,
}

impl Host {
    fn new(to: To, rings: usize, ring_bytes: Option<u64>) -> Result<Host> {
        let scratch = Scratch::new()?;
        let mut config = SessionConfig::new(scratch.path().join("session"));
        config.host_rings = rings;
        if to == To::Simple {
            config.output = Output::Nothing;
        }
        config.host_ring_bytes = ring_bytes.unwrap_or(config.host_ring_bytes);
        let session = Session::create(config)?;
        let simple = (to == To::Simple).then(|| scratch.path().join("simple"));
        if let Some(path) = &simple {
            session.set_simple_file(path)?;
        }
        Ok(Host { session, simple, _scratch: scratch })
    }

    /// Ends the session, and checks that the session has all records.
    fn finish(self, records: u64) -> Result<Summary> {
        let summary = self.session.finish()?;
        let recorded = summary.host_events;
        ensure!(summary.lost == 0, "{} records lost", summary.lost);
        ensure!(recorded == records, "{recorded} of {records} were recorded");
        if let Some(path) = &self.simple {
            let bytes = std::fs::metadata(path)?.len();
            // In addition to the records, the file has a header and the event's name.
            let whole = records * To::Simple as u64..records * To::Simple as u64 + 128;
            ensure!(whole.contains(&bytes), "{bytes} bytes of {records} simple records");
        }
        Ok(summary)
    }
}

/// Measures the creation of a process's first session, with the default sizes.
pub fn create(_: &mut Context) -> Result<f64> {
    let scratch = Scratch::new()?;
    let dir = scratch.path().join("session");
    Child::of_this_program()?.ns(&format!("create {}", dir.display()))
}

/// Measures an event that is off.
pub fn disabled(_: &mut Context) -> Result<f64> {
    let host = Host::new(To::Session, 1, None)?;
    host.session.attach("bench");
    let turns = 20_000_000;
    let total = timed(turns, |n| {
        let a = black_box(n);
        events::bench_off(a, a);
    });
    let on = On::new(&events::bench_off::EVENT);
    events::bench_off(0, 0);
    drop(on);
    host.finish(1)?;
    Ok(ns(total, turns))
}

/// Measures bursts. The bursts are drained in the same way as in the rows of the ring.
pub fn burst(to: To) -> Result<f64> {
    let host = Host::new(to, 1, Some(BURST_RING))?;
    let session = &host.session;
    let _on = On::new(&events::bench_pair::EVENT);
    session.attach("bench");
    events::bench_pair(0, 0);
    let recorded = Cell::new(1);
    let total = bursts(
        || {
            for i in 0..BURST {
                events::bench_pair(i, black_box(i));
            }
            recorded.set(recorded.get() + BURST);
        },
        || pass(session, |_, _| ()),
        || session.summary().host_events == recorded.get(),
    );
    host.finish(BURST * BURSTS + 1)?;
    Ok(ns(total, BURST * BURSTS))
}

/// Measures the time from the first record until the last record is in the file.
pub fn sustained(to: To) -> Result<f64> {
    let host = Host::new(to, 1, None)?;
    let session = &host.session;
    let _on = On::new(&events::bench_pair::EVENT);
    session.attach("bench");
    events::bench_pair(0, 0);
    let writer = session.start_writer(PERIOD)?;
    let start = ticks();
    for stride in 0..SUSTAINED / STRIDE {
        while !session.has_room(STRIDE, RECORD_WORDS) {
            thread::yield_now();
        }
        for i in stride * STRIDE..(stride + 1) * STRIDE {
            events::bench_pair(i, black_box(i));
        }
    }
    drop(writer);
    let total = ticks() - start;
    let records = SUSTAINED / STRIDE * STRIDE;
    host.finish(records + 1)?;
    Ok(ns(total, records))
}

/// Measures a record in a ring, plus the write of the record's bytes to a file.
pub fn sustained_floor(context: &mut Context, to: To) -> Result<f64> {
    let write = drain::write_floor(context)? * f64::from(to as u8) / 32.0;
    Ok(floor(context)? + write)
}

/// Measures the time per record of all threads together. The rings have room for all records of a run.
pub fn threads(count: u64) -> Result<f64> {
    let host = Host::new(To::Session, count as usize, Some(BURST_RING))?;
    let _on = On::new(&events::bench_pair::EVENT);
    let turns = BURST * 2;
    let total = at_once(count, |_, meet| {
        host.session.attach("bench");
        events::bench_pair(0, 0);
        meet();
        let start = ticks();
        for i in 0..turns {
            events::bench_pair(i, black_box(i));
        }
        Ok((start, ticks()))
    })?;
    host.finish((turns + 1) * count)?;
    Ok(ns(total, turns * count))
}
