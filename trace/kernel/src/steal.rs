//! Time that a hypervisor took from this machine's CPUs, if this machine is a guest itself.
//!
//! No event shows this time, because the system still counts the thread as running on the CPU. So a recording
//! has the sum of the time. The recording also has the intervals in which the sum rose, and the intervals in
//! which the counter of each CPU rose.

use crate::pace::Pace;
use hypertrace_abi::clock::ticks;
use hypertrace_format::trace_dat::MAX_STEALS;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// USER_HZ, the unit of /proc/stat, is 100 on x86-64 and aarch64 (`man 5 proc_stat`).
const TICK_MS: u64 = 10;

/// Minimum time between two readings while a hypervisor takes CPU time. The counters rise in steps of this
/// size.
const PERIOD: Duration = Duration::from_millis(TICK_MS);

/// Minimum time between two readings after a second in which no counter rose. Each reading takes CPU time
/// from the recorded programs.
const CALM_PERIOD: Duration = Duration::from_millis(200);
const CALM_AFTER: Duration = Duration::from_secs(1);

/// The intervals in which counters rose.
#[derive(Debug)]
pub(crate) struct Rises {
    pace: Pace,
    /// The counters by CPU. The key `None` stands for the sum of all CPUs.
    counters: BTreeMap<Option<u32>, Counter>,
    /// Number of all rises.
    count: usize,
    /// Instant at which the last rise was read.
    risen: Option<Instant>,
}

#[derive(Debug, Default)]
struct Counter {
    /// Ticks of the machine's counter just before the last reading, and the value that was read, in
    /// milliseconds.
    at: u64,
    ms: u64,
    rises: Vec<Rise>,
}

/// A rise of a counter between two readings: the ticks before the first reading, the ticks after the second
/// reading, and the milliseconds that the hypervisor took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rise {
    from: u64,
    to: u64,
    ms: u64,
}

impl Default for Rises {
    fn default() -> Rises {
        Rises { pace: Pace::new(PERIOD), counters: BTreeMap::new(), count: 0, risen: None }
    }
}

impl Rises {
    /// Returns the time until the next reading, or `None` if no hypervisor has ever taken CPU time from this
    /// machine.
    pub fn period(&self) -> Option<Duration> {
        self.counters.get(&None).filter(|sum| sum.ms > 0)?;
        let is_calm = self.risen.is_none_or(|at| at.elapsed() >= CALM_AFTER);
        let least = if is_calm { CALM_PERIOD } else { Duration::ZERO };
        Some(self.pace.pause().max(least))
    }

    /// Reads the counters, unless they were read a moment ago.
    pub fn read(&mut self) {
        if self.pace.is_due() {
            self.read_now();
        }
    }

    fn read_now(&mut self) {
        let (begun, before) = (Instant::now(), ticks());
        let Ok(stat) = fs::read_to_string("/proc/stat") else { return };
        let after = ticks();
        self.add((before, after), &stat);
        self.pace.ended(begun);
    }

    /// Adds the values of a reading that began at the ticks `before` and ended at the ticks `after`.
    fn add(&mut self, (before, after): (u64, u64), stat: &str) {
        for (cpu, ms) in counters(stat) {
            let is_new = !self.counters.contains_key(&cpu);
            let counter = self.counters.entry(cpu).or_default();
            let from = std::mem::replace(&mut counter.at, before);
            let risen = ms.saturating_sub(std::mem::replace(&mut counter.ms, ms));
            if risen > 0 && !is_new {
                counter.rises.push(Rise { from, to: after, ms: risen });
                self.count += 1;
                self.risen = Some(Instant::now());
            }
        }
        if self.count > MAX_STEALS / 2 {
            self.join();
        }
    }

    /// Joins pairs of neighbouring rises of a counter into one rise.
    fn join(&mut self) {
        self.count = 0;
        for counter in self.counters.values_mut() {
            let joined = counter.rises.chunks(2).map(|pair| {
                let (first, last) = (pair[0], pair[pair.len() - 1]);
                let ms = pair.iter().map(|rise| rise.ms).sum();
                Rise { from: first.from, to: last.to, ms }
            });
            counter.rises = joined.collect();
            self.count += counter.rises.len();
        }
    }

    /// Reads the counters for the last time. Returns all rises, with their times in ticks: `FROM-TO:MS` for
    /// each rise of the sum, and `CPU:FROM-TO:MS` for each rise of a CPU's counter.
    pub fn finish(&mut self) -> String {
        self.read_now();
        let all = self.counters.iter().flat_map(|(cpu, counter)| {
            let cpu = cpu.map_or(String::new(), |cpu| format!("{cpu}:"));
            counter.rises.iter().map(move |Rise { from, to, ms }| format!("{cpu}{from}-{to}:{ms}"))
        });
        all.collect::<Vec<_>>().join(",")
    }
}

/// Returns the time that a hypervisor took since the boot from all CPUs together. The time is 0 if this
/// machine is no guest, or if the hypervisor does not report the time.
pub fn stolen() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    counters(&stat).find(|(cpu, _)| cpu.is_none()).map(|(_, ms)| Duration::from_millis(ms))
}

/// Returns the same time as [`stolen`], in milliseconds.
pub(crate) fn stolen_ms() -> Option<u64> {
    stolen().map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the eighth number of each line that begins with `cpu`, in milliseconds. The line for all CPUs
/// together has the key `None`.
fn counters(stat: &str) -> impl Iterator<Item = (Option<u32>, u64)> {
    stat.lines().map_while(|line| line.strip_prefix("cpu")).filter_map(|line| {
        let (cpu, numbers) = line.split_once(' ')?;
        let cpu = if cpu.is_empty() { None } else { Some(cpu.parse().ok()?) };
        let ticks: u64 = numbers.split_ascii_whitespace().nth(7)?.parse().ok()?;
        Some((cpu, ticks.saturating_mul(TICK_MS)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a /proc/stat. The eighth number is `all` in the line for all CPUs together, and an
    /// entry of `cpus` in the line of each CPU.
    fn stat(all: u64, cpus: &[u64]) -> String {
        let line = |name: &str, steps| format!("{name} 1 2 3 4 5 6 7 {steps} 9 10\n");
        let cpus = cpus.iter().enumerate().map(|(cpu, steps)| line(&format!("cpu{cpu}"), steps));
        line("cpu ", &all) + &cpus.collect::<String>() + "intr 1 2 3\n"
    }

    fn of(rises: &Rises, cpu: Option<u32>) -> Vec<(u64, u64, u64)> {
        rises.counters[&cpu].rises.iter().map(|rise| (rise.from, rise.to, rise.ms)).collect()
    }

    #[test]
    fn a_rise_lies_between_the_beginning_and_the_end_of_the_readings_that_show_it() {
        let mut rises = Rises::default();
        let read =
            [(7, [3, 4]), (7, [3, 4]), (9, [4, 5]), (9, [4, 5]), (10, [5, 5])].iter().zip(1..);
        for ((all, cpus), at) in read {
            rises.add((at * 100 - 9, at * 100), &stat(*all, cpus));
        }
        assert_eq!(of(&rises, None), [(191, 300, 20), (391, 500, 10)]);
        assert_eq!(of(&rises, Some(0)), [(191, 300, 10), (391, 500, 10)]);
        assert_eq!(of(&rises, Some(1)), [(191, 300, 10)]);
    }

    #[test]
    fn a_cpu_that_was_off_rises_since_its_own_last_reading() {
        let mut rises = Rises::default();
        for (at, cpus) in [(1, &[1, 1][..]), (2, &[1]), (3, &[1, 2])] {
            rises.add((at, at), &stat(1, cpus));
        }
        assert_eq!(of(&rises, Some(1)), [(1, 3, 10)]);
    }

    #[test]
    fn many_rises_become_fewer_and_longer_ones_of_the_same_sum() {
        let mut rises = Rises::default();
        (0..=100_000).for_each(|at| rises.add((at, at), &stat(at, &[at])));
        assert!((MAX_STEALS / 4..=MAX_STEALS).contains(&rises.count));
        for counter in rises.counters.values() {
            let all = &counter.rises;
            assert!(all.windows(2).all(|pair| pair[0].to == pair[1].from));
            assert_eq!(all.iter().map(|rise| rise.ms).sum::<u64>(), 1_000_000);
            assert_eq!((all[0].from, all[all.len() - 1].to), (0, 100_000));
        }
    }

    #[test]
    fn a_machine_from_which_nothing_was_taken_is_not_read_again() {
        let mut rises = Rises::default();
        assert_eq!(rises.period(), None);
        rises.add((1, 1), &stat(1, &[1]));
        assert_eq!(rises.period(), Some(CALM_PERIOD));
    }

    #[test]
    fn a_machine_is_read_often_for_a_second_after_a_rise() {
        let mut rises = Rises::default();
        rises.add((1, 1), &stat(1, &[1]));
        rises.add((2, 2), &stat(2, &[2]));
        assert_eq!(rises.period(), Some(PERIOD));
        rises.risen = Instant::now().checked_sub(CALM_AFTER);
        assert_eq!(rises.period(), Some(CALM_PERIOD));
    }

    #[test]
    fn steal_is_the_eighth_number() {
        let all = |stat: &str| counters(stat).collect::<Vec<_>>();
        assert_eq!(all(&stat(8, &[3, 5])), [(None, 80), (Some(0), 30), (Some(1), 50)]);
        let far = "cpu 1 2 3 4 5 6 7\ncpu4000000000 1 2 3 4 5 6 7 8\n";
        assert_eq!(all(far), [(Some(4_000_000_000), 80)]);
        assert_eq!(all("cpux 1 2 3 4 5 6 7 8\ncpu-1 1 2 3 4 5 6 7 8\n"), []);
        assert_eq!(all("intr 1 2 3 4 5 6 7 8\ncpu 1 2 3 4 5 6 7 8\n"), []);
        assert_eq!(all(""), []);
    }
}
