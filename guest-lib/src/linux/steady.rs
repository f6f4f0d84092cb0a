//! A check of the counter, for systems whose kernel does not use it as a clock: a guest's kernel gives it
//! up for what it does not know of the VMM. For the times of events it has to be the same on all CPUs, and to have
//! one rate; the host maps it to its own clock by reference points.
//!
//! Unsafe, because affinities are set by C functions.
#![allow(unsafe_code)]

use crate::os;
use hypertrace_abi::clock::{ticks, ticks_after_loads};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long all CPUs compare their counters.
const CHECK: Duration = Duration::from_millis(10);
/// Comparisons between two looks at the time, which may cost microseconds.
const ROUNDS: u32 = 64;
const STACK: usize = 64 * 1024;

/// Returns true if the counters of the CPUs on which this process may run are one clock, to a
/// microsecond, and tick `told` times a second, to 1 %. `told` 0: any rate will do.
pub(super) fn is_one_clock(told: u64) -> bool {
    let compared = Compared {
        latest: AtomicU64::new(0),
        is_other: AtomicBool::new(false),
        // An emulator may read the counter before an earlier load.
        slack: told / 1_000_000,
    };
    let (compared_by, begin) = (&compared, Sample::take());
    thread::scope(|scope| {
        for cpu in cpus() {
            let on_cpu = thread::Builder::new().name("hypertrace".into()).stack_size(STACK);
            if on_cpu.spawn_scoped(scope, move || compared_by.compare(cpu)).is_err() {
                compared.is_other.store(true, Ordering::Relaxed);
            }
        }
    });
    let rate = Sample::take().rate_since(&begin);
    !compared.is_other.into_inner() && (told == 0 || rate.abs_diff(told) <= told / 100)
}

/// The counters of all CPUs, compared.
struct Compared {
    /// The latest reading of any CPU.
    latest: AtomicU64,
    /// True if a CPU has read an earlier value after it, or could not be asked.
    is_other: AtomicBool,
    /// Ticks that are no difference.
    slack: u64,
}

impl Compared {
    /// Compares a CPU's counter with those of the others.
    fn compare(&self, cpu: usize) {
        let until = os::nanoseconds() + CHECK.as_nanos() as u64;
        let mut is_same = run_on(cpu);
        while is_same && os::nanoseconds() < until {
            for _ in 0..ROUNDS {
                // ORDERING: pairs with the AcqRel below: the reading there was made before.
                let latest = self.latest.load(Ordering::Acquire);
                let now = ticks_after_loads();
                is_same &= now.saturating_add(self.slack) >= latest;
                self.latest.fetch_max(now, Ordering::AcqRel);
            }
        }
        if !is_same {
            self.is_other.store(true, Ordering::Relaxed);
        }
    }
}

/// The counter at a time.
struct Sample {
    ticks: u64,
    nanoseconds: u64,
}

impl Sample {
    /// Reads both; of several readings the quickest.
    fn take() -> Sample {
        let readings = (0..8).map(|_| {
            let before = ticks();
            let nanoseconds = os::nanoseconds();
            let width = ticks().wrapping_sub(before);
            (width, Sample { ticks: before.wrapping_add(width / 2), nanoseconds })
        });
        let quickest = readings.min_by_key(|(width, _)| *width);
        quickest.map_or(Sample { ticks: 0, nanoseconds: 0 }, |(_, sample)| sample)
    }

    /// Returns the ticks per second since an earlier sample.
    fn rate_since(&self, earlier: &Sample) -> u64 {
        let ticks = u128::from(self.ticks.saturating_sub(earlier.ticks));
        let nanoseconds = self.nanoseconds.saturating_sub(earlier.nanoseconds).max(1);
        u64::try_from(ticks * 1_000_000_000 / u128::from(nanoseconds)).unwrap_or(u64::MAX)
    }
}

/// Returns the CPUs on which this thread may run.
fn cpus() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: zeros are an empty set; the kernel writes at most its size, and CPU_ISSET looks at numbers
    // below it.
    unsafe {
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr());
        let set = set.assume_init();
        (0..8 * size_of::<libc::cpu_set_t>()).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Keeps the calling thread on a CPU. `false`: it cannot run there.
fn run_on(cpu: usize) -> bool {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: as above; the call reads the set.
    unsafe {
        libc::CPU_SET(cpu, set.assume_init_mut());
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr()) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_is_behind_another_is_another_clock() {
        let compared = |latest| {
            let compared = Compared {
                latest: AtomicU64::new(latest),
                is_other: AtomicBool::new(false),
                slack: 1000,
            };
            compared.compare(cpus()[0]);
            compared.is_other.into_inner()
        };
        assert!(!compared(0));
        // Ten seconds or more, at any rate that counters have.
        assert!(compared(ticks() + 100_000_000_000));
    }

    #[test]
    fn a_cpu_that_cannot_be_asked_may_be_another_clock() {
        assert!(!run_on(8 * size_of::<libc::cpu_set_t>() - 1));
    }

    #[test]
    fn a_rate_is_compared_with_the_one_that_the_host_says() {
        let at = |ticks, nanoseconds| Sample { ticks, nanoseconds };
        assert_eq!(at(5_000_100, 2_000_000).rate_since(&at(100, 1_000_000)), 5_000_000_000);
        assert_eq!(at(0, 0).rate_since(&at(1, 1)), 0);
        assert!(!is_one_clock(1));
    }
}
