//! Ways to measure that several rows use: loops, bursts, threads that run at the same time.

use super::measure::quantile;
use anyhow::{Context, Result, anyhow};
use hypertrace::abi::clock::ticks;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::hint::spin_loop;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Number of records of a burst. A ring holds two bursts, so that no record is lost even if the consumer runs
/// late.
pub const BURST: u64 = 50_000;
pub const BURSTS: u64 = 10;
/// Size of a ring that holds two bursts in bytes.
pub const BURST_RING: u64 = 4 << 20;
/// Pause between two passes of the consumer.
const CADENCE: Duration = Duration::from_micros(200);
/// Number of turns of each thread in [`meet`].
const ROUNDS: u64 = 50;

/// Ticks of the counter per nanosecond, measured once.
pub static TICKS_PER_NS: LazyLock<f64> = LazyLock::new(|| {
    let (time, counter) = (Instant::now(), ticks());
    thread::sleep(Duration::from_millis(100));
    (ticks() - counter) as f64 / time.elapsed().as_nanos() as f64
});

/// Converts the ticks of `turns` turns to nanoseconds per turn.
pub fn ns(ticks: u64, turns: u64) -> f64 {
    ticks as f64 / *TICKS_PER_NS / turns as f64
}

/// Runs `turn` this many times. Returns the ticks.
#[inline(always)]
pub fn timed(turns: u64, mut turn: impl FnMut(u64)) -> u64 {
    let start = ticks();
    for n in 0..turns {
        turn(n);
    }
    ticks() - start
}

/// Times `batches` batches. In each batch, `turn` runs `batch` times. Returns the time of a turn in
/// nanoseconds in a fast batch: one tenth of the batches are faster than this batch. In such a fast batch,
/// other programs have taken no CPU time. `before` runs before each batch, and is not timed.
pub fn tenth(
    [batches, batch]: [u64; 2],
    mut before: impl FnMut() -> Result<()>,
    mut turn: impl FnMut(u64),
) -> Result<f64> {
    let times = (0..batches).map(|n| {
        before()?;
        Ok(ns(timed(batch, |at| turn(n * batch + at)), batch))
    });
    Ok(quantile(&mut times.collect::<Result<Vec<f64>>>()?, 0.1))
}

/// Returns how long this thread has run on a CPU.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the CPU with this index among the CPUs that this thread may use, or the last of these CPUs.
fn cpu(index: usize) -> Result<CpuSet> {
    let allowed = sched_getaffinity(None)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(cpus.take(index + 1).last().context("no CPU")?);
    Ok(one)
}

/// Runs `run` on a thread that stays on the first CPU. All threads and processes that `run` starts stay on
/// this CPU, too.
pub fn on_one_cpu<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let pinned = || {
        sched_setaffinity(None, &cpu(0)?)?;
        run()
    };
    thread::scope(|scope| scope.spawn(pinned).join()).map_err(|_| anyhow!("a thread panicked"))?
}

/// Moves a process to a CPU: index 0 is the first CPU, and index 1 is another CPU.
pub fn move_to_cpu(index: usize, process: u32) -> Result<()> {
    let cpu = cpu(index)?;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let id = thread?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(id), &cpu)?;
    }
    Ok(())
}

/// Runs `burst` on this thread, while another thread runs `look` every [`CADENCE`]. `empty` returns whether
/// the consumer has taken everything. Returns the ticks of the bursts alone.
pub fn bursts(
    mut burst: impl FnMut(),
    mut look: impl FnMut() + Send,
    empty: impl Fn() -> bool,
) -> u64 {
    let done = AtomicBool::new(false);
    let mut total = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                thread::sleep(CADENCE);
                look();
            }
        });
        for _ in 0..BURSTS {
            total += timed(1, |_| burst());
            while !empty() {
                thread::sleep(CADENCE / 4);
            }
        }
        done.store(true, Relaxed);
    });
    total
}

/// Runs `run` on `threads` threads. The arguments of `run` are the thread's number, and a function that waits
/// until all threads run. `run` returns the times at which its measurement began and ended. Returns the ticks
/// from the first begin to the last end.
pub fn at_once(
    threads: u64,
    run: impl Fn(u64, &dyn Fn()) -> Result<(u64, u64)> + Sync,
) -> Result<u64> {
    let turn = AtomicU64::new(0);
    let (mut first, mut last) = (u64::MAX, 0);
    thread::scope(|scope| {
        let start = |index| {
            let (turn, run) = (&turn, &run);
            scope.spawn(move || run(index, &|| meet(turn, index, threads)))
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        for thread in started {
            let (begin, end) = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            (first, last) = (first.min(begin), last.max(end));
        }
        Ok(last - first)
    })
}

/// Waits until this many threads run at once. The threads take turns without sleeping. If several threads
/// share a CPU, then the wait takes so long that the scheduler moves threads to other CPUs.
fn meet(turn: &AtomicU64, index: u64, threads: u64) {
    let wait = |for_turn| {
        while turn.load(Ordering::Acquire) < for_turn {
            spin_loop();
        }
    };
    for round in 0..ROUNDS {
        let mine = round * threads + index;
        wait(mine);
        turn.store(mine + 1, Ordering::Release);
    }
    wait(ROUNDS * threads);
}
