//! Rows of user mode. A row measures a point that a thread of the host answers, and compares the point with a
//! handshake that is written by hand.

use super::ring::{self, lease};
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::timing::{ns, timed};
use anyhow::{Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::drain::LONGEST_POLL;
use hypertrace::{Client, ProducerState, Status};
use hypertrace_device::Geometry;
use hypertrace_user::{Config, Policy, Session};
use kvm_vmm::segment_channel;
use rustix::thread::futex::{self, Flags};
use std::collections::BTreeSet;
use std::fs;
use std::hint::{black_box, spin_loop};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const HANDSHAKE: Floor = ("handshake_floor", floor_awake);
const HANDSHAKE_ASLEEP: Floor = ("handshake_asleep_floor", floor_asleep);

pub const ROWS: &[Row] = &[
    row("user_commit", ring::commit, "`commit!` with two `u64`, otherwise as `ring_emit`")
        .over(ring::FLOOR, "<= 1.3 x ring_floor"),
    row("handshake_floor", floor_awake, "a handshake by hand with a thread that spins").note(
        "A thread stores six words and a number; another thread copies them, reads the \
         counter and stores a number back. The first spins on that number, then sleeps \
         (futex).",
    ),
    row(
        "user_acknowledged",
        awake,
        "`reference_point!` with two `u64` over a segment whose host spins",
    )
    .over(HANDSHAKE, "<= 1.2 x handshake_floor")
    .note(
        "While its session on tmpfs is drained; each must be recorded. The floor neither \
         records nor writes.",
    ),
    row(
        "handshake_asleep_floor",
        floor_asleep,
        "`handshake_floor` every 300 µs, with a host that sleeps",
    )
    .note("On a futex. Only the handshakes are timed."),
    row(
        "user_acknowledged_asleep",
        asleep,
        "`reference_point!` every 300 µs, so that the host sleeps",
    )
    .over(HANDSHAKE_ASLEEP, "<= 1.2 x handshake_asleep_floor"),
    row(
        "poll_floor",
        floor_cpu,
        "CPU time in a second of a thread that only sleeps, 16 ms each time",
    ),
    row(
        "user_idle_cpu",
        idle_cpu,
        "CPU time in a second of the threads that serve an idle program",
    )
    .compared_with(POLL)
    .note("What a wake-up costs depends on the machine: most of all whether it is a VM itself."),
    row("user_busy_cpu", busy_cpu, "the same beside a program with ten events each millisecond")
        .compared_with(POLL),
];

const POLL: Floor = ("poll_floor", floor_cpu);

/// Number of points of a run in which the host is awake.
const AWAKE: u64 = 50_000;
/// Number of points of a run in which the host is asleep.
const ASLEEP: u64 = 300;
/// Pause before each point of a run in which the host is asleep.
const PAUSE: Duration = Duration::from_micros(300);
/// Number of times that a thread loads the other side's word before the thread sleeps on this word.
const SPINS: u32 = 200;

/// Memory that two threads share. The threads only hand control to each other.
#[derive(Default)]
struct Handshake {
    slot: Line<[AtomicU64; 6]>,
    asked: Line<AtomicU32>,
    reply: Line<AtomicU32>,
    host_time: Line<AtomicU64>,
    host_sleeps: Line<AtomicU32>,
    guest_sleeps: Line<AtomicU32>,
}

#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

fn sleep(word: &AtomicU32, found: u32) {
    // The result does not matter, because the caller loads the word again after every return.
    let _ = futex::wait(word, Flags::empty(), found, None);
}

fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::empty(), 1);
}

impl Handshake {
    /// Runs the guest's side of handshake `n`.
    fn ask(&self, n: u32) {
        let now = ticks();
        for (word, value) in self.slot.0.iter().zip([n.into(), 1, now, 2, n.into(), n.into()]) {
            word.store(value, Relaxed);
        }
        self.asked.0.store(n, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.host_sleeps.0.load(Relaxed) != 0 {
            self.host_sleeps.0.store(0, Relaxed);
            wake(&self.host_sleeps.0);
        }
        self.wait(&self.reply.0, n);
        black_box((self.host_time.0.load(Relaxed), ticks()));
    }

    fn wait(&self, word: &AtomicU32, n: u32) {
        for _ in 0..SPINS {
            if word.load(Ordering::Acquire) == n {
                return;
            }
            spin_loop();
        }
        self.guest_sleeps.0.store(1, Relaxed);
        fence(Ordering::SeqCst);
        while word.load(Ordering::Acquire) != n {
            sleep(word, n - 1);
        }
        self.guest_sleeps.0.store(0, Relaxed);
    }

    /// Runs the host's side of all handshakes.
    fn serve(&self, last: u32, spin: bool) {
        let mut slot = [0; 6];
        for n in 1..=last {
            while self.asked.0.load(Ordering::Acquire) != n {
                if spin {
                    spin_loop();
                    continue;
                }
                self.host_sleeps.0.store(1, Relaxed);
                fence(Ordering::SeqCst);
                if self.asked.0.load(Relaxed) != n {
                    sleep(&self.host_sleeps.0, 1);
                }
                self.host_sleeps.0.store(0, Relaxed);
            }
            self.host_time.0.store(ticks(), Relaxed);
            for (to, from) in slot.iter_mut().zip(&self.slot.0) {
                *to = from.load(Relaxed);
            }
            black_box(&slot);
            self.reply.0.store(n, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.guest_sleeps.0.load(Relaxed) != 0 {
                wake(&self.reply.0);
            }
        }
    }
}

fn by_hand(turns: u64, pause: Option<Duration>) -> f64 {
    let both = Handshake::default();
    // An extra handshake comes before the timed handshakes, so that both threads run.
    let last = turns as u32 + 1;
    let mut total = 0;
    thread::scope(|scope| {
        scope.spawn(|| both.serve(last, pause.is_none()));
        both.ask(1);
        total = timed_with(turns, pause, |n| both.ask(n as u32 + 2));
    });
    ns(total, turns)
}

/// Runs all turns. Returns the ticks of the turns, without the pauses.
fn timed_with(turns: u64, pause: Option<Duration>, mut turn: impl FnMut(u64)) -> u64 {
    let Some(pause) = pause else { return timed(turns, turn) };
    let paused = |n| {
        thread::sleep(pause);
        timed(1, |_| turn(n))
    };
    (0..turns).map(paused).sum()
}

/// Time without events after which a host pauses as long as it ever does.
const SETTLE: Duration = Duration::from_millis(400);
/// Time that is measured.
const MEASURED: Duration = Duration::from_millis(500);

/// Returns the CPU time of some threads while `meanwhile` runs, in nanoseconds per second. These threads are
/// started by `start`, and their names begin with `ht-`.
fn cpu_of<T>(
    start: impl FnOnce() -> Result<T>,
    meanwhile: impl FnOnce(&T) -> Result<()>,
) -> Result<(T, f64)> {
    let tasks = || -> Result<BTreeSet<PathBuf>> {
        let tasks = fs::read_dir("/proc/self/task")?.map(|task| Ok(task?.path()));
        tasks.collect()
    };
    let before = tasks()?;
    let started = start()?;
    // The pause is long enough for each thread to set its own name.
    thread::sleep(SETTLE);
    let is_ours = |task: &PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("ht-"))
    };
    let ours = Vec::from_iter(tasks()?.difference(&before).filter(|task| is_ours(task)).cloned());
    ensure!(!ours.is_empty(), "no threads");
    // The first number of schedstat is nanoseconds on a CPU.
    let spent = || -> Result<u64> {
        let of = |task: &PathBuf| -> Result<u64> {
            let text = fs::read_to_string(task.join("schedstat"))?;
            Ok(text.split(' ').next().unwrap_or_default().parse()?)
        };
        ours.iter().map(of).sum()
    };
    let (begin, begun) = (spent()?, Instant::now());
    meanwhile(&started)?;
    let spent = spent()? - begin;
    Ok((started, spent as f64 / begun.elapsed().as_secs_f64()))
}

pub fn floor_cpu(_: &mut Context) -> Result<f64> {
    let ends = Arc::new(AtomicBool::new(false));
    let (stop, (tell, begun)) = (Arc::clone(&ends), mpsc::channel());
    let start = || {
        let sleep = move || {
            let _ = tell.send(());
            while !stop.load(Relaxed) {
                thread::sleep(LONGEST_POLL);
            }
        };
        let thread = thread::Builder::new().name("ht-floor".to_owned()).spawn(sleep)?;
        begun.recv()?;
        Ok(thread)
    };
    let (sleeper, spent) = cpu_of(start, |_| {
        thread::sleep(MEASURED);
        Ok(())
    })?;
    ends.store(true, Relaxed);
    ensure!(sleeper.join().is_ok(), "the thread panicked");
    Ok(spent)
}

pub fn idle_cpu(_: &mut Context) -> Result<f64> {
    host_cpu(|_| thread::sleep(MEASURED))
}

pub fn busy_cpu(_: &mut Context) -> Result<f64> {
    host_cpu(|client| {
        let begun = Instant::now();
        while begun.elapsed() < MEASURED {
            (0..10u64).for_each(|a| hypertrace::event!(client: client, "bench_pair", a, b = a));
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Measures the CPU time of a host's threads while `program` runs on this thread.
fn host_cpu(program: impl FnOnce(&Client<'_>)) -> Result<f64> {
    let scratch = Scratch::new()?;
    let state = ProducerState::new();
    let start = || Ok(Session::create(Config::new(scratch.path().join("session")))?);
    let (session, spent) = cpu_of(start, |session| {
        let client = lease(segment_channel(session.segment())?, 0, &state)?;
        program(&client);
        client.release();
        Ok(())
    })?;
    session.finish()?;
    Ok(spent)
}

pub fn floor_awake(_: &mut Context) -> Result<f64> {
    Ok(by_hand(AWAKE, None))
}

pub fn floor_asleep(_: &mut Context) -> Result<f64> {
    Ok(by_hand(ASLEEP, Some(PAUSE)))
}

pub fn awake(_: &mut Context) -> Result<f64> {
    acknowledged(AWAKE, None)
}

pub fn asleep(_: &mut Context) -> Result<f64> {
    acknowledged(ASLEEP, Some(PAUSE))
}

fn acknowledged(turns: u64, pause: Option<Duration>) -> Result<f64> {
    let scratch = Scratch::new()?;
    let spin = if pause.is_none() { Duration::from_secs(1) } else { Duration::ZERO };
    let session = Session::create(Config::new(scratch.path().join("session")).with(|config| {
        config.geometry = Geometry { clients: 1, ..Geometry::default() };
        config.policy = Policy { spin, ..Policy::default() };
    }))?;
    let state = ProducerState::new();
    let client = lease(segment_channel(session.segment())?, 0, &state)?;
    let mut recorded = 0;
    let mut point = |a: u64| {
        let reply =
            hypertrace::reference_point!(client: &client, "bench_pair", a, b = black_box(a));
        recorded += u64::from(reply.is_ok_and(|reply| reply.status == Status::Recorded));
    };
    point(1);
    let total = timed_with(turns, pause, |n| point(n + 2));
    client.release();
    session.finish()?;
    ensure!(recorded == turns + 1, "{recorded} of {} points were recorded", turns + 1);
    Ok(ns(total, turns))
}
