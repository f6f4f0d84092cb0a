//! The child's side: parts of a benchmark that this program measures for its parent.

use super::child::TURNS;
use super::timing::{ns, timed};
use super::trace::On;
use super::{emulated, events, linux_parts, sigsegv, spans};
use anyhow::{Result, bail, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace_trace::backend::{self, Backends, ftrace};
use hypertrace_trace::{Session, SessionConfig};
use std::fs::{self, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;

/// Answers lines on stdin until stdin is closed. This is the main function of a child.
///
/// # Errors
/// If stdin cannot be read.
#[expect(clippy::print_stdout, reason = "a child may panic if its parent is gone")]
pub fn serve() -> Result<()> {
    println!("ready");
    for line in io::stdin().lines() {
        match answer(&line?) {
            Ok(ns) => println!("{ns}"),
            Err(why) => println!("error: {why:#}"),
        }
    }
    Ok(())
}

/// Runs the part that a line names. Returns nanoseconds.
fn answer(line: &str) -> Result<f64> {
    if let Some(part) = line.strip_prefix("linux ") {
        return linux_parts::answer(part);
    }
    let (ticks, turns) = part(line)?;
    Ok(ns(ticks, turns))
}

/// Runs the part that a line names. Returns ticks and turns.
fn part(line: &str) -> Result<(u64, u64)> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("marker", instance) => marker(Path::new(instance)),
        ("ftrace", instance) => ftrace(Path::new(instance)),
        ("emulated", part) => emulated::answer(part),
        ("create", dir) => create(Path::new(dir)),
        ("spans", part) => spans::answer(part),
        ("uprobe", _) => Ok(uprobe()),
        ("sdt", _) => Ok(sdt()),
        ("sigsegv", _) => sigsegv::measure(),
        _ => bail!("no part {line:?}"),
    }
}

/// Arguments of every event. All events have the same arguments, so that all texts are equal.
const ARGUMENTS: (u64, u64) = (123_456, 7_890_123);

fn text() -> String {
    format!("bench_pair a {} b {}", ARGUMENTS.0, ARGUMENTS.1)
}

/// Measures the bare write of an event's text.
fn marker(instance: &Path) -> Result<(u64, u64)> {
    let path = instance.join("trace_marker");
    let mut file = OpenOptions::new().write(true).open(&path)?;
    let text = text();
    let mut short = 0u64;
    let time = timed(TURNS, |_| {
        let wrote = file.write(black_box(text.as_bytes()));
        short += u64::from(wrote.ok() != Some(text.len()));
    });
    ensure!(short == 0, "{short} writes to {} failed", path.display());
    Ok((time, TURNS))
}

/// Measures an event that goes to the kernel's trace.
fn ftrace(instance: &Path) -> Result<(u64, u64)> {
    ftrace::open(instance)?;
    backend::add(Backends::FTRACE);
    let on = On::new(&events::bench_pair::EVENT);
    // The event must write exactly the bytes that the floor writes.
    fs::write(instance.join("trace"), "")?;
    fire();
    fs::write(instance.join("trace_marker"), text())?;
    let trace = fs::read_to_string(instance.join("trace"))?;
    let same = trace.matches(&format!(": {}\n", text())).count();
    let time = timed(TURNS, |_| fire());
    drop(on);
    backend::remove(Backends::FTRACE);
    ensure!(same == 2, "an event and its text are not the same in the trace:\n{trace}");
    ensure!(ftrace::lost() == 0, "{} events lost", ftrace::lost());
    Ok((time, TURNS))
}

/// Measures the creation of the process's first session by a VMM that knows its counter's frequency. The
/// frequency here need not be right, because the measurement does not depend on its value.
fn create(dir: &Path) -> Result<(u64, u64)> {
    let config = SessionConfig::new(dir).with(|config| config.host_frequency = Some(2_000_000_000));
    let start = ticks();
    let session = Session::create(config);
    let time = ticks() - start;
    session?.finish()?;
    Ok((time, 1))
}

fn fire() {
    events::bench_pair(black_box(ARGUMENTS.0), black_box(ARGUMENTS.1));
}

fn uprobe() -> (u64, u64) {
    (timed(TURNS, |_| probed(black_box(0))), TURNS)
}

/// Function with the uprobe. The function begins with a `push`, because the function keeps a register across
/// a call. The kernel emulates the `push`. Most other instructions take far longer, because the kernel has to
/// single-step these instructions.
#[inline(never)]
pub fn probed(n: u64) {
    nothing();
    black_box(n);
}

#[inline(never)]
fn nothing() {
    black_box(());
}

/// Measures an SDT probe, which fires if a tracer is attached.
fn sdt() -> (u64, u64) {
    backend::add(Backends::SDT);
    let on = On::new(&events::bench_pair::EVENT);
    let time = timed(TURNS, |_| fire());
    drop(on);
    backend::remove(Backends::SDT);
    (time, TURNS)
}
