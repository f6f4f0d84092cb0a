//! Rows of user mode: a point that a thread of the host answers, compared with
//! the same written by hand.

use super::ring::{self, lease};
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::timing::{ns, timed};
use anyhow::{Result, ensure};
use hypertrace::abi::clock::ticks;
use hypertrace::{ProducerState, Status};
use hypertrace_device::Geometry;
use hypertrace_user::{Config, Policy, Session};
use kvm_vmm::segment_channel;
use rustix::thread::futex::{self, Flags};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, Ordering::Relaxed, fence};
use std::thread;
use std::time::Duration;

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
];

/// Points of a run whose host is awake.
const AWAKE: u64 = 50_000;
/// Points of a run whose host is asleep.
const ASLEEP: u64 = 300;
/// Pause before each point whose host is asleep.
const PAUSE: Duration = Duration::from_micros(300);
/// Loads of the other side's word before sleeping on it.
const SPINS: u32 = 200;

/// Memory of two threads that do nothing but hand over to each other.
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
    // However it ends, the caller loads the word again.
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
    // One handshake more, before the timed ones, so that both threads run.
    let last = turns as u32 + 1;
    let mut total = 0;
    thread::scope(|scope| {
        scope.spawn(|| both.serve(last, pause.is_none()));
        both.ask(1);
        total = timed_with(turns, pause, |n| both.ask(n as u32 + 2));
    });
    ns(total, turns)
}

/// Runs all turns. Returns their ticks, without the pauses.
fn timed_with(turns: u64, pause: Option<Duration>, mut turn: impl FnMut(u64)) -> u64 {
    let Some(pause) = pause else { return timed(turns, turn) };
    let paused = |n| {
        thread::sleep(pause);
        timed(1, |_| turn(n))
    };
    (0..turns).map(paused).sum()
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
    let session = Session::create(Config {
        geometry: Geometry { clients: 1, ..Geometry::default() },
        policy: Policy { spin, ..Policy::default() },
        ..Config::new(scratch.path().join("session"))
    })?;
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
