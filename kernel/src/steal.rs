//! Time that a hypervisor took from this machine's CPUs, where this machine is a guest itself.
//!
//! No event shows it: a thread that had a CPU did not run. So a recording has the sum, and the times in which it
//! rose.

use std::fs;
use std::time::{Duration, Instant};

/// USER_HZ, the unit of /proc/stat, is 100 on x86-64 and aarch64 (`man 5 proc_stat`).
const TICK_MS: u64 = 10;

/// Time between two readings where a hypervisor takes time. A reading takes some tens of microseconds.
const PERIOD: Duration = Duration::from_millis(50);

/// Most rises of a recording: beyond that, neighbours become one.
const MOST_RISES: usize = 1024;

/// The times in which the sum rose.
#[derive(Debug, Default)]
pub(crate) struct Rises {
    /// The last reading: when, the counter's ticks, and the sum in milliseconds.
    last: Option<(Instant, u64, u64)>,
    all: Vec<Rise>,
}

/// Ticks between two readings, and the milliseconds that were taken.
#[derive(Clone, Copy, Debug)]
struct Rise {
    from: u64,
    to: u64,
    ms: u64,
}

impl Rises {
    /// Returns the time until the next reading; `None` on a machine from which nothing was ever taken.
    pub fn period(&self) -> Option<Duration> {
        self.last.filter(|(.., ms)| *ms > 0).map(|_| PERIOD)
    }

    /// Reads the sum, unless it was read a moment ago.
    pub fn read(&mut self) {
        if self.last.is_none_or(|(at, ..)| at.elapsed() >= PERIOD) {
            self.read_now();
        }
    }

    fn read_now(&mut self) {
        if let Some(sum) = stolen() {
            self.add(hypertrace_abi::clock::ticks(), sum.as_millis() as u64);
        }
    }

    fn add(&mut self, now: u64, sum: u64) {
        let before = self.last.replace((Instant::now(), now, sum));
        let Some((_, from, before)) = before.filter(|(.., before)| *before < sum) else { return };
        if self.all.len() == MOST_RISES {
            let merged = self.all.chunks(2).map(|pair| {
                let (first, last) = (pair[0], pair[pair.len() - 1]);
                let ms = pair.iter().map(|rise| rise.ms).sum();
                Rise { from: first.from, to: last.to, ms }
            });
            self.all = merged.collect();
        }
        self.all.push(Rise { from, to: now, ms: sum - before });
    }

    /// Reads the sum for the last time. Returns all rises as `FROM-TO:MS,FROM-TO:MS`, in ticks.
    pub fn finish(&mut self) -> String {
        self.read_now();
        let rises = self.all.iter().map(|Rise { from, to, ms }| format!("{from}-{to}:{ms}"));
        rises.collect::<Vec<_>>().join(",")
    }
}

/// Returns the time since the boot, of all CPUs together; 0 on a machine that is no guest, or whose
/// hypervisor does not say it.
pub fn stolen() -> Option<Duration> {
    of(&fs::read_to_string("/proc/stat").ok()?)
}

/// Returns the eighth number of the line of all CPUs.
fn of(stat: &str) -> Option<Duration> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let ticks: u64 = words.nth(7)?.parse().ok()?;
    Some(Duration::from_millis(ticks.saturating_mul(TICK_MS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_lies_between_the_two_readings_that_show_it() {
        let mut rises = Rises::default();
        for (now, sum) in [(100, 70), (200, 70), (300, 90), (400, 90), (500, 100)] {
            rises.add(now, sum);
        }
        let shown: Vec<_> = rises.all.iter().map(|rise| (rise.from, rise.to, rise.ms)).collect();
        assert_eq!(shown, [(200, 300, 20), (400, 500, 10)]);
    }

    #[test]
    fn many_rises_become_fewer_and_longer_ones_of_the_same_sum() {
        let mut rises = Rises::default();
        (0..=100_000).for_each(|at| rises.add(at, at * 10));
        assert!((MOST_RISES / 2..=MOST_RISES).contains(&rises.all.len()));
        assert!(rises.all.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(rises.all.iter().map(|rise| rise.ms).sum::<u64>(), 1_000_000);
        assert_eq!((rises.all[0].from, rises.all[rises.all.len() - 1].to), (0, 100_000));
    }

    #[test]
    fn steal_is_the_eighth_number() {
        let stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 4 9 10\n";
        assert_eq!(of(stat), Some(Duration::from_millis(80)));
        assert_eq!(of("cpu 1 2 3 4 5 6 7\n"), None);
        assert_eq!(of("intr 1 2 3 4 5 6 7 8\n"), None);
        assert_eq!(of(""), None);
    }
}
