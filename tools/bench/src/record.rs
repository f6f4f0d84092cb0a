//! Rows about recordings of the kernel's events.

use super::row::{Context, Row, row};
use super::scratch::Scratch;
use super::timing::{cpu_time, on_one_cpu};
use anyhow::{Result, anyhow, ensure};
use hypertrace_kernel::{Config, Recording, Source, Summary};
use std::fs;
use std::io::{Read, Write, pipe};
use std::thread;
use std::time::{Duration, Instant};

pub const ROWS: &[Row] = &[row(
    "record_switch",
    switch_of_all,
    "a switch between two threads while the kernel's events of a program are recorded; the ratio is \
     the difference in ns",
)
.less(("with --own-only", switch_of_own), "<= 300 ns more than with --own-only")
.note(
    "CPU time of two threads of the program that wake each other by pipes, on one CPU. Without \
     `--own-only`, the kernel writes their switches and wakings to the buffer of all threads, too.",
)];

/// Number of turns of each of two threads. A turn has two switches. The events of all switches fit into the
/// kernel's buffer of one CPU.
const TURNS: u64 = 20_000;

/// Runs something while the kernel's events of this process are recorded.
pub fn recorded<T>(own_only: bool, run: impl FnOnce() -> Result<T>) -> Result<(T, Recorded)> {
    let scratch = Scratch::new()?;
    // A recording needs a session that runs at the same time. The session here only serves this purpose, and
    // the guest has its own session.
    let beside = scratch.session()?;
    let mut config = Config::new(scratch.path().join("session"));
    (config.pids, config.own_only) = (vec![std::process::id()], own_only);
    let recording = Recording::start(&config)?;
    ensure!(recording.source() == Source::Tracefs, "needs root and tracefs");
    let begun = Instant::now();
    let done = run();
    let time = begun.elapsed();
    let summary = recording.finish()?;
    beside.finish()?;
    let done = done?;
    for counts in [Some(summary.asked), summary.cpus].into_iter().flatten() {
        ensure!(counts.lost() == 0, "{} of the kernel's events lost", counts.lost());
    }
    let bytes = fs::metadata(&summary.path)?.len();
    Ok((done, Recorded { summary, bytes, time }))
}

/// A recording that has ended.
pub struct Recorded {
    pub summary: Summary,
    /// Size of the recording's file in bytes.
    bytes: u64,
    time: Duration,
}

/// Size in bytes of a recording without the buffer in which the scheduling of all threads is recorded.
struct OwnBytes(u64);

/// Measures a switch while the program's own threads are recorded.
pub fn switch_of_own(context: &mut Context) -> Result<f64> {
    let (ns, recorded) = recorded(true, switch)?;
    context.resource(|| Ok(OwnBytes(0)))?.0 = recorded.bytes;
    Ok(ns)
}

/// Measures a switch while the kernel also records the scheduling of all threads.
pub fn switch_of_all(context: &mut Context) -> Result<f64> {
    let (ns, recorded) = recorded(false, switch)?;
    let own = context.resource(|| Ok(OwnBytes(0)))?.0;
    let events = recorded.summary.cpus.unwrap_or_default().events;
    ensure!(events >= 2 * TURNS, "{events} events of all threads, {} switches", 2 * TURNS);
    context.remark(format!(
        "the buffer of all threads: {:.0} bytes an event, {:.0} events a second",
        recorded.bytes.saturating_sub(own) as f64 / events as f64,
        events as f64 / recorded.time.as_secs_f64(),
    ));
    Ok(ns)
}

/// Returns the CPU time of a switch between two threads on one CPU, in nanoseconds.
fn switch() -> Result<f64> {
    on_one_cpu(|| {
        let ((mut here, mut to_here), (mut there, mut to_there)) = (pipe()?, pipe()?);
        let other = move || -> Result<Duration> {
            let begun = cpu_time();
            for _ in 0..TURNS {
                there.read_exact(&mut [0])?;
                to_here.write_all(&[0])?;
            }
            Ok(cpu_time() - begun)
        };
        let other = thread::spawn(other);
        let begun = cpu_time();
        for _ in 0..TURNS {
            to_there.write_all(&[0])?;
            here.read_exact(&mut [0])?;
        }
        let time = cpu_time() - begun;
        let others = other.join().map_err(|_| anyhow!("a thread panicked"))??;
        Ok((time + others).as_nanos() as f64 / (2 * TURNS) as f64)
    })
}
