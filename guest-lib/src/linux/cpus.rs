//! Checks whether the counters of all CPUs are one clock, for a guest whose kernel has dropped the TSC. Most
//! such kernels have compared no counters, but have dropped the TSC because they know too little about the
//! hypervisor.
//!
//! A thread visits each CPU, and reads there the counter together with CLOCK_MONOTONIC_RAW, which the kernel
//! keeps the same on all CPUs.
//!
//! The code is unsafe because affinities are set by C functions.
#![allow(unsafe_code)]

use super::refresher;
use crate::os;
use hypertrace_abi::clock::ticks;
use hypertrace_segment::signals::SignalsBlocked;
use std::iter::once;
use std::sync::{Arc, OnceLock};

/// Longest time that a comparison may take, in milliseconds: the thread waits for CPUs that are busy.
const MAX_MS: u32 = 500;
/// Number of tries for each reading. Interruptions stretch a try, so the closest try is used.
const TRIES: u32 = 32;
/// Longest step of CLOCK_MONOTONIC_RAW in nanoseconds: the step if the kernel derives this clock from ACPI's
/// timer.
const STEP_NS: u64 = 280;
/// Maximum error of the readings in nanoseconds. Readings with a larger error cannot show that the counters
/// are one clock.
const MAX_ERROR_NS: u64 = 10_000;

/// Returns whether the counters of all CPUs are one clock, or `None` if the readings show neither. The
/// function looks at all CPUs that the system allows for this process. The counters may differ by less than
/// the readings' error, at most [`MAX_ERROR_NS`].
pub(super) fn are_one_clock() -> Option<bool> {
    // Blocks signals, because the new thread inherits the signal mask.
    let _signals_blocked = SignalsBlocked::begin();
    let answer = Arc::new(OnceLock::new());
    let of_thread = Arc::clone(&answer);
    refresher::start(move || {
        let _ = of_thread.set(readings().and_then(|readings| compare(&readings)));
        false
    });
    for _ in 0..MAX_MS {
        // If no thread shares `answer`, the thread has ended or was not started.
        if answer.get().is_some() || Arc::strong_count(&answer) == 1 {
            break;
        }
        os::nap_or_yield();
    }
    answer.get().copied().flatten()
}

/// A reading of both clocks.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Ticks of the counter in the middle of the interval that `width` measures.
    ticks: u64,
    /// CLOCK_MONOTONIC_RAW, nanoseconds.
    raw: u64,
    /// Ticks between the readings of the counter before and after `raw`.
    width: u64,
}

impl Reading {
    /// Reads both clocks several times and returns the closest pair.
    fn now() -> Reading {
        let read = || {
            let before = ticks();
            let raw = os::nanoseconds();
            let width = ticks().saturating_sub(before);
            Reading { ticks: before + width / 2, raw, width }
        };
        let closer = |a: Reading, b: Reading| if b.width < a.width { b } else { a };
        (1..TRIES).map(|_| read()).fold(read(), closer)
    }
}

/// Compares readings of all CPUs. The last reading is a second reading of the first CPU. Returns `None` if
/// the readings are too inexact.
fn compare(readings: &[Reading]) -> Option<bool> {
    let (first, last) = (readings.first()?, readings.last()?);
    // The ticks are compared first. If the kernel derives CLOCK_MONOTONIC_RAW from each CPU's own counter,
    // CLOCK_MONOTONIC_RAW may go back together with the ticks.
    if !readings.is_sorted_by_key(|reading| reading.ticks) {
        return Some(false);
    }
    if !readings.is_sorted_by_key(|reading| reading.raw) || first.raw == last.raw {
        return None;
    }
    let since = |reading: &Reading| (reading.ticks - first.ticks, reading.raw - first.raw);
    let (all_ticks, all_ns) = since(last);
    let in_ticks = |ns: u64| u128::from(ns) * u128::from(all_ticks) / u128::from(all_ns);
    let of_ends = first.width.max(last.width);
    let error = |reading: &Reading| {
        in_ticks(STEP_NS) + (u128::from(reading.width) + u128::from(of_ends)).div_ceil(2)
    };
    let is_off = |reading: &Reading| {
        let (ticks, ns) = since(reading);
        u128::from(ticks).abs_diff(in_ticks(ns)) > error(reading)
    };
    let is_exact = |reading: &Reading| error(reading) <= in_ticks(MAX_ERROR_NS);
    match readings.iter().any(is_off) {
        true => Some(false),
        false => readings.iter().all(is_exact).then_some(true),
    }
}

/// Returns a reading of each CPU and, at the end, a second reading of the first CPU. Returns `None` if the
/// system refuses to run the thread on one of these CPUs.
fn readings() -> Option<Vec<Reading>> {
    let cpus = cpus()?;
    let visited = cpus.iter().chain(once(cpus.first()?));
    visited.map(|cpu| run_on(*cpu).then(Reading::now)).collect()
}

/// A set of CPUs, by their numbers.
type CpuSet = [u64; 16];

/// Lets the calling thread run on all CPUs that the system allows for this thread, and returns these CPUs.
/// Returns `None` if the system refuses, or a set has no room for all CPUs.
fn cpus() -> Option<Vec<usize>> {
    // A program that was started on a few CPUs must choose the same clock as programs that run on all CPUs.
    let _ = set_affinity(&[u64::MAX; 16]);
    let mut set: CpuSet = [0; 16];
    // SAFETY: the kernel writes at most the set.
    let done = unsafe { libc::sched_getaffinity(0, size_of::<CpuSet>(), (&raw mut set).cast()) };
    let cpus = (0..64 * set.len()).filter(|cpu| set[cpu / 64] >> (cpu % 64) & 1 == 1);
    (done == 0).then(|| cpus.collect())
}

/// Keeps the calling thread on a CPU.
fn run_on(cpu: usize) -> bool {
    let mut set: CpuSet = [0; 16];
    set[cpu / 64] = 1 << (cpu % 64);
    set_affinity(&set)
}

fn set_affinity(set: &CpuSet) -> bool {
    // SAFETY: the call reads the set.
    unsafe { libc::sched_setaffinity(0, size_of::<CpuSet>(), (&raw const *set).cast()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a reading of a counter of 2.5 GHz, `ns` nanoseconds after the first reading.
    fn at(ns: u64, width: u64) -> Reading {
        Reading { ticks: 7_000_000 + ns * 5 / 2, raw: 1_000 + ns, width }
    }

    #[test]
    fn counters_on_one_line_are_one_clock() {
        let exact = [at(0, 100), at(1_000_003, 90), at(2_000_001, 110), at(3_000_000, 100)];
        assert_eq!(compare(&exact), Some(true));
        // One CPU alone.
        assert_eq!(compare(&[at(0, 100), at(5_000, 100)]), Some(true));
        let coarse = [at(0, 100), at(1_000_000, 60_000), at(2_000_000, 100)];
        assert_eq!(compare(&coarse), None, "12 us");
    }

    #[test]
    fn a_counter_that_is_beside_the_line_is_another_clock() {
        let moved = |ticks: i64, width| {
            let mut other = at(1_000_000, width);
            other.ticks = other.ticks.saturating_add_signed(ticks);
            compare(&[at(0, 100), other, at(2_000_000, 100)])
        };
        // The error is 800 ticks: the widths of both readings give 100 ticks, and the step of
        // CLOCK_MONOTONIC_RAW gives 700 ticks.
        for ticks in [-800, -1, 0, 800] {
            assert_eq!(moved(ticks, 100), Some(true), "{ticks}");
        }
        for ticks in [-801, 801, -2_000_000, 2_000_000] {
            assert_eq!(moved(ticks, 100), Some(false), "{ticks}");
        }
        // In the first check, the counter is so far off that even an inexact reading shows the difference. In
        // the other checks, the counter is before the first reading or after the last reading.
        assert_eq!(moved(40_000, 60_000), Some(false));
        for ticks in [i64::MIN, -3_000_000, 3_000_000, i64::MAX] {
            assert_eq!(moved(ticks, 100), Some(false), "{ticks}");
        }
    }

    #[test]
    fn counters_that_move_with_the_other_clock_are_compared_by_their_order() {
        // The counter of CPU 1 is a second ahead, as is the clock that the kernel derives from that counter.
        let readings = [at(0, 100), at(1_001_000_000, 100), at(2_000_000, 100)];
        assert_eq!(compare(&readings), Some(false));
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_shows_nothing() {
        let stands = |reading| Reading { raw: 1_000, ..reading };
        assert_eq!(compare(&[at(0, 1), stands(at(1, 1)), stands(at(2, 1))]), None);
        let back = Reading { raw: 999, ..at(1, 1) };
        assert_eq!(compare(&[at(0, 1), back, at(2, 1)]), None);
        assert_eq!(compare(&[]), None);
    }

    #[test]
    fn each_cpu_is_visited_and_the_caller_stays_where_it_was() {
        let own = std::thread::spawn(|| {
            let before = cpus().unwrap();
            assert!(run_on(before[0]));
            // The comparison starts a thread, and moves this thread, and not the caller, from CPU to CPU.
            let _ = are_one_clock();
            let mut set: CpuSet = [0; 16];
            // SAFETY: the kernel writes at most the set.
            unsafe { libc::sched_getaffinity(0, size_of::<CpuSet>(), (&raw mut set).cast()) };
            (before, set)
        });
        let (cpus, set) = own.join().unwrap();
        assert_eq!(set.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        let read = std::thread::spawn(readings).join().unwrap().unwrap();
        assert_eq!(read.len(), cpus.len() + 1);
        assert!(!run_on(1023));
    }
}
