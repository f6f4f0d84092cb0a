//! Measures the guest's part of the rows about a Linux guest. The program runs inside this guest. This
//! program is the first process of the guest's kernel.

use super::linux::MODULE;
use super::measure::quantile;
use super::timing::{ns, tenth, timed};
use anyhow::{Context, Result, anyhow, bail, ensure};
use hypertrace::{ChannelLocation, Clock, Options, Status};
use rustix::mount::{MountFlags, mount};
use rustix::system::init_module;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::fs;
use std::hint::black_box;
use std::io;
use std::thread;
use std::time::Duration;

/// Number of batches of events in a run, and number of events in a batch. A ring holds several batches.
const BATCHES: [u64; 2] = [40, 2_000];
/// Number of words of an event's fields.
const WORDS: u64 = 2;
/// Number of events of [`million`]. A debug build has fewer events, because a debug build times nothing, and
/// would take a minute for a million events.
const MILLION: u64 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
/// Number of points of a run in which the host is awake.
const AWAKE: u64 = 500;
/// Number of points of a run in which the host is asleep.
const ASLEEP: u64 = 100;
/// Pause before each point of a run in which the host is asleep.
const PAUSE: Duration = Duration::from_millis(5);
/// Number of points of a run in which the host rests.
const IDLE: u64 = 10;
/// Pause before each point of a run in which the host rests.
const LONG_PAUSE: Duration = Duration::from_millis(300);

/// Prepares a guest that has nothing but this program. Mounts file systems, loads the kernel module if the
/// guest has the module, and makes the console a channel for lines.
///
/// # Errors
/// If the kernel refuses one of these steps.
pub fn init() -> Result<()> {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        let mounted = mount("none", at, kind, MountFlags::empty(), None);
        mounted.with_context(|| format!("cannot mount {at}"))?;
    }
    if let Ok(module) = fs::read(format!("/{MODULE}")) {
        init_module(&module, c"").with_context(|| format!("cannot load {MODULE}"))?;
    }
    let console = io::stdin();
    let mut mode = tcgetattr(&console).context("the console is no terminal")?;
    mode.make_raw();
    Ok(tcsetattr(&console, OptionalActions::Now, &mode)?)
}

/// Runs a part of the benchmark. Returns nanoseconds.
pub fn answer(part: &str) -> Result<f64> {
    match part.split_once(' ').unwrap_or((part, "")) {
        ("open", way) => open(way),
        ("emit", _) => tenth(BATCHES, || wait_for_room(BATCHES[1]), |n| emit(n, black_box(n))),
        ("awake", _) => points(AWAKE, Duration::ZERO, 0.1),
        // A sleeping host looks at its rings at regular times, so a quick answer to a point is luck.
        // Therefore this part returns the median.
        ("asleep", _) => points(ASLEEP, PAUSE, 0.5),
        ("idle", _) => points(IDLE, LONG_PAUSE, 1.0),
        ("million", _) => million(),
        _ => bail!("no part {part:?}"),
    }
}

/// Opens the device, and emits the first event. The library must find the device in the way `way`.
fn open(way: &str) -> Result<f64> {
    let info = hypertrace::open(&Options::default())?;
    let found = match &info.place {
        ChannelLocation::Function(_) => "sysfs",
        ChannelLocation::Ivshmem(_) => "ivshmem",
        ChannelLocation::Module(_) => "module",
        _ => "other",
    };
    ensure!(found == way, "the library found {:?}", info.place);
    ensure!(info.clock == Clock::Counter, "the clock is {:?}", info.clock);
    emit(0, 0);
    Ok(0.0)
}

/// Emits an event of this thread's client. This function is not inlined, because large programs often do not
/// inline such a function either.
#[inline(never)]
fn emit(a: u64, b: u64) {
    hypertrace::event!("bench_pair", a, b);
}

/// Waits until the ring has room for this many events, so that no event is lost.
fn wait_for_room(events: u64) -> Result<()> {
    let has_room = hypertrace::with_client(|client| client.wait_for_room(events, WORDS));
    ensure!(has_room == Some(true), "the host does not drain");
    Ok(())
}

/// Makes a reference point. Returns the point's time in nanoseconds.
fn point(n: u64) -> Result<f64> {
    let mut reply = None;
    let ticks =
        timed(1, |_| reply = Some(hypertrace::reference_point!("bench_point", n, m = 2 * n)));
    let is_recorded = matches!(reply, Some(Ok(reply)) if reply.status == Status::Recorded);
    ensure!(is_recorded, "a point was not recorded: {reply:?}");
    Ok(ns(ticks, 1))
}

/// Makes points with a pause before each. Returns the quantile `part` of the points' times.
fn points(points: u64, pause: Duration, part: f64) -> Result<f64> {
    // This point wakes the host, so that the next point finds the host awake.
    point(0)?;
    let times = (0..points).map(|n| {
        if !pause.is_zero() {
            thread::sleep(pause);
        }
        point(n)
    });
    Ok(quantile(&mut times.collect::<Result<Vec<f64>>>()?, part))
}

/// Emits a million events on a new thread. The thread leases its own client.
fn million() -> Result<f64> {
    let run = || {
        for _ in 0..MILLION / BATCHES[1] {
            wait_for_room(BATCHES[1])?;
            (0..BATCHES[1]).for_each(|n| emit(n, n));
        }
        Ok(0.0)
    };
    thread::spawn(run).join().map_err(|_| anyhow!("the thread panicked"))?
}
