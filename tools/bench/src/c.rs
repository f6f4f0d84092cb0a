//! Rows of C. The rows measure a program that this machine's compiler builds from the header and
//! libhypertrace.a.

use super::child::Child;
use super::parts::c_library;
use super::ring;
use super::row::{Context, Row, row};
use super::scratch::Scratch;
use super::timing::{BURST, BURST_RING, BURSTS};
use anyhow::{Context as _, Result, anyhow, ensure};
use hypertrace_device::Geometry;
use hypertrace_trace::Output;
use hypertrace_user::{Config, Session};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub const ROWS: &[Row] = &[
    row("c_emit", emit, "`HYPERTRACE_EVENT` with two `uint64_t`, otherwise as `ring_emit`")
        .over(("ring_floor", floor), "<= 1.3 x ring_floor"),
    row(
        "c_disabled",
        disabled,
        "`c_emit` switched off by the host; the ratio is the difference in ns",
    )
    .less(("empty loop", empty), "<= 0.5 ns over an empty loop"),
    row(
        "c_function_call",
        function_call,
        "a call of a function built with `-finstrument-functions`: two events",
    )
    .over(("a C emit", emit_one), "<= 2.2 x c_emit of one field")
    .note(
        "The function is empty. Compared with one event of one `uint64_t`, in the same \
         bursts.",
    ),
    row(
        "c_function_call_off",
        function_call_off,
        "`c_function_call` switched off; the ratio is the difference in ns",
    )
    .less(("a plain call", call), "<= 5 ns over a call")
    .note("Compared with a call of the same function, not instrumented."),
];

const SOURCES: [(&str, &str); 2] = [
    ("rows.c", include_str!("c/rows.c")),
    ("hypertrace.h", include_str!("../../../guest-lib/include/hypertrace.h")),
];

/// Options for a program with a function that the compiler instruments.
const INSTRUMENTED: [&str; 2] = ["-finstrument-functions", "-DHYPERTRACE_FUNCTIONS"];

/// The compiled program.
struct Program {
    path: PathBuf,
    _scratch: Scratch,
}

/// The program with an instrumented function.
struct Instrumented(Program);

impl Program {
    fn new(options: &[&str]) -> Result<Program> {
        Program::compile(options).context("no program in C")
    }

    fn compile(options: &[&str]) -> Result<Program> {
        let library = c_library()?;
        let scratch = Scratch::new()?;
        scratch.write(&SOURCES)?;
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-I.", "-o", "rows", "rows.c"]).args(options).arg(library);
        scratch.run(cc.args(["-lpthread", "-ldl", "-lm"]))?;
        Ok(Program { path: scratch.path().join("rows"), _scratch: scratch })
    }

    /// Runs parts of the program in one session in which the events `off` are switched off. Returns the last
    /// part's time per event, and the number of events that the session has recorded.
    fn ask(&self, parts: &[&str], off: &[&str]) -> Result<(f64, u64)> {
        let scratch = Scratch::new()?;
        let mut config = Config::new(scratch.path().join("session"));
        config.trace.output = Output::Nothing;
        config.geometry = Geometry { clients: 1, ring_bytes: BURST_RING, ..Geometry::default() };
        config.policy.drain.period = Duration::from_micros(200);
        let session = Session::create(config)?;
        for name in off {
            let switch = format!("trace-event {name} off");
            session.trace().execute(&switch).map_err(|why| anyhow!("{why}"))?;
        }
        let mut command = Command::new(&self.path);
        session.pass_to(&mut command);
        let mut child = Child::start(&mut command)?;
        let answers: Result<Vec<f64>> = parts.iter().map(|part| child.ns(part)).collect();
        drop(child);
        let summary = session.finish()?;
        ensure!(summary.lost == 0, "{} records lost", summary.lost);
        let ns = answers?.last().copied().context("no part was run")?;
        Ok((ns, summary.ring_events))
    }
}

/// Runs parts of the program in one session. Returns the last part's time per
/// event and the number of recorded events.
fn ask(context: &mut Context, parts: &[&str]) -> Result<(f64, u64)> {
    context.resource(|| Program::new(&[]))?.ask(parts, &["c_off"])
}

/// Measures `HYPERTRACE_EVENT`, as `ring_emit` measures `event!`.
pub fn emit(context: &mut Context) -> Result<f64> {
    // The first run touches the ring's pages.
    let (ns, recorded) = ask(context, &["emit", "emit"])?;
    let all = 2 * BURST * BURSTS + 1;
    ensure!(recorded == all, "{recorded} of {all} were recorded");
    Ok(ns)
}

/// Measures `ring_floor` twice and returns the second time, because the first run is slower after this thread
/// has waited for a child.
pub fn floor(context: &mut Context) -> Result<f64> {
    ring::floor(context)?;
    ring::floor(context)
}

/// Measures an event with one field.
pub fn emit_one(context: &mut Context) -> Result<f64> {
    let (ns, recorded) = ask(context, &["one", "one"])?;
    let all = 2 * BURST * BURSTS + 1;
    ensure!(recorded == all, "{recorded} of {all} were recorded");
    Ok(ns)
}

/// Runs parts of the program with an instrumented function.
fn ask_instrumented(context: &mut Context, parts: &[&str], off: &[&str]) -> Result<(f64, u64)> {
    let Instrumented(program) =
        context.resource(|| Ok(Instrumented(Program::new(&INSTRUMENTED)?)))?;
    program.ask(parts, off)
}

/// Measures a call of an instrumented function. The call records two events.
pub fn function_call(context: &mut Context) -> Result<f64> {
    let (ns, recorded) = ask_instrumented(context, &["call", "call"], &[])?;
    // The session also records some events that describe the files of code.
    let least = 2 * 2 * BURST * BURSTS + 1;
    ensure!(recorded >= least, "{recorded} of {least} were recorded");
    Ok(ns)
}

/// Measures a call of an instrumented function while the events are off.
pub fn function_call_off(context: &mut Context) -> Result<f64> {
    // The program waits until the last event is off.
    let off = ["function_entry", "function_exit", "c_off"];
    let (ns, recorded) = ask_instrumented(context, &["calls off"], &off)?;
    // The only recorded events are the events that describe the files of code.
    ensure!(recorded < BURST, "{recorded} events were recorded");
    Ok(ns)
}

/// Measures a call of the same function without instrumentation.
pub fn call(context: &mut Context) -> Result<f64> {
    Ok(ask(context, &["calls off"])?.0)
}

/// Measures an event that is off.
pub fn disabled(context: &mut Context) -> Result<f64> {
    Ok(ask(context, &["disabled"])?.0)
}

/// Measures the empty loop in C.
pub fn empty(context: &mut Context) -> Result<f64> {
    Ok(ask(context, &["empty"])?.0)
}
