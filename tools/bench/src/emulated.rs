//! The guest side of the rows under an emulator: a child of this program that
//! QEMU runs.
//!
//! The code is unsafe because it stores to a register, and because it makes a system call that no kernel has.
#![allow(unsafe_code)]

use super::timing::timed;
use anyhow::{Context, Result, bail, ensure};
use hypertrace::abi::atomic::{AtomicU64, Ordering, Ordering::Relaxed};
use hypertrace::abi::clock::ticks;
use hypertrace::abi::layout::local::ENVIRONMENT;
use hypertrace::abi::layout::{
    PAGE, Region, SLOT_HEADER_WORDS, WORD, guest_page, host_page, mark, register,
};
use hypertrace::abi::ring::ClientMemory;
use hypertrace_user::Segment;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Number of points of a burst. A burst fills so little of the ring that the plugin does not wake the host.
const POINTS: u64 = 3500;
/// Number of bursts of a run. The host drains between two bursts.
const BURSTS: u64 = 8;
/// Size in bytes of the ring of the relay that receives the points. A ring has this size by default.
pub const RING_BYTES: u64 = 1 << 20;
/// Maximum time to wait until the host has drained a burst. If the drain takes longer, the benchmark assumes
/// that the host hangs.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Number of rounds of the code that does not trace.
const ROUNDS: u64 = 20;
const SORTED: usize = 4096;

/// Memory and register of the last client, and the relay of this client's points.
struct Raw {
    relay: ClientMemory<'static>,
    client: ClientMemory<'static>,
    emit: &'static AtomicU64,
    seq: AtomicU64,
}

impl Raw {
    fn get() -> Result<&'static Raw> {
        static RAW: OnceLock<Raw> = OnceLock::new();
        match RAW.get() {
            Some(raw) => Ok(raw),
            None => {
                let raw = Raw::open()?;
                Ok(RAW.get_or_init(|| raw))
            }
        }
    }

    /// Maps the segment without the guest library, so that the benchmark can store to a register directly.
    fn open() -> Result<Raw> {
        let path = std::env::var_os(ENVIRONMENT).context("there is no segment")?;
        let segment: &Segment = Box::leak(Box::new(Segment::open(path.as_ref())?));
        let geometry = segment.geometry();
        let client = geometry.clients - 1;
        let memory = |client| segment.client(client).context("no memory of a client");
        let page = geometry.window_offset(Region::Control)
            + geometry.control_pages_offset()
            + u64::from(client) * PAGE;
        Ok(Raw {
            relay: memory(0)?,
            client: memory(client)?,
            emit: &segment.mapping().words()[((page + register::EMIT) / WORD) as usize],
            seq: AtomicU64::new(0),
        })
    }

    /// Waits until the host has taken everything out of the relay.
    fn wait_until_drained(&self) -> Result<()> {
        let begun = Instant::now();
        let ClientMemory { guest, host, .. } = &self.relay;
        while host[host_page::TAIL].load(Relaxed) != guest[guest_page::HEAD].load(Relaxed) {
            ensure!(begun.elapsed() < DRAIN_LIMIT, "the host does not drain");
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Makes points with two words. `store` stores each point. Returns the ticks, and whether the last point
    /// of every burst was answered.
    ///
    /// # Errors
    /// If the host does not drain.
    fn points(&self, points: u64, store: impl Fn(&AtomicU64, u64)) -> Result<(u64, bool)> {
        let slot = &self.client.guest[guest_page::SLOT..];
        slot[1].store(77, Relaxed);
        slot[2].store(ticks(), Relaxed);
        slot[3].store(2, Relaxed);
        slot[SLOT_HEADER_WORDS].store(1, Relaxed);
        slot[SLOT_HEADER_WORDS + 1].store(2, Relaxed);
        let (mut time, mut answered) = (0, true);
        for _ in 0..BURSTS {
            self.wait_until_drained()?;
            let first = self.seq.fetch_add(points, Relaxed) + 1;
            time += timed(points, |n| {
                let seq = first + n;
                slot[0].store(seq | 1000 << 32, Relaxed);
                store(self.emit, seq);
            });
            let reply = self.client.host[host_page::REPLY].load(Ordering::Acquire);
            answered &= reply == first + points - 1;
        }
        Ok((time, answered))
    }
}

/// Writes `value` to a register with the marked store instruction that the library uses.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn marked(register: &AtomicU64, value: u64) {
    // SAFETY: the instruction stores 8 bytes to the register, and the reference to an atomic permits stores.
    unsafe {
        std::arch::asm!(
            "mov [{} + {mark}], {}",
            in(reg) register.as_ptr().wrapping_byte_sub(mark::DISPLACEMENT as usize),
            in(reg) value,
            mark = const mark::DISPLACEMENT,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn marked(_: &AtomicU64, _: u64) {}

/// Runs a part of the benchmark. Returns ticks and turns.
pub fn answer(part: &str) -> Result<(u64, u64)> {
    match part {
        // The smallest possible plugin does not answer points, so the code does not check for answers.
        "floor" => Ok((Raw::get()?.points(POINTS, marked)?.0, POINTS * BURSTS)),
        "store" => answered(Raw::get()?.points(POINTS, marked)?),
        "library" => library(),
        "bystander" => Ok(bystander()),
        _ => bail!("no part {part:?}"),
    }
}

fn answered((ticks, answered): (u64, bool)) -> Result<(u64, u64)> {
    ensure!(answered, "a point was not recorded");
    Ok((ticks, POINTS * BURSTS))
}

/// Measures a whole reference point: the library's part and the plugin's.
fn library() -> Result<(u64, u64)> {
    let (mut time, mut failed) = (0, 0);
    for _ in 0..BURSTS {
        Raw::get()?.wait_until_drained()?;
        time += timed(POINTS, |n| {
            let reply = hypertrace::reference_point!("bench_point", n, m = 2 * n);
            failed += u64::from(!reply.is_ok_and(|r| r.status == hypertrace::Status::Recorded));
        });
    }
    ensure!(failed == 0, "{failed} points were not recorded");
    Ok((time, POINTS * BURSTS))
}

/// Measures code that does not trace: a sort with calls, branches, loads and stores.
fn bystander() -> (u64, u64) {
    let mut state = 1u64;
    let time = timed(ROUNDS, |_| {
        let mut numbers: Vec<u64> = (0..SORTED)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            })
            .collect();
        numbers.sort_unstable();
        state = black_box(numbers[SORTED / 2]) | 1;
    });
    (time, ROUNDS * SORTED as u64)
}
