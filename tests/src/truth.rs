//! Where a thread's time went, without any trace: readings of the counter, and of the kernel's own accounts
//! of the thread.

use std::cell::OnceCell;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use hypertrace_abi::clock::ticks;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Accounts of a thread at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Value of the counter.
    pub ticks: u64,
    /// Nanoseconds in which the thread was ready to run but had no CPU, from `/proc/PID/task/TID/schedstat`.
    pub waited: u64,
    /// Nanoseconds on a CPU, from CLOCK_THREAD_CPUTIME_ID. If the kernel knows the time that a hypervisor
    /// took from this CPU, this number does not include that time.
    pub ran: u64,
}

impl Reading {
    /// Reads the calling thread's accounts.
    pub fn now() -> Reading {
        loop {
            let before = waits();
            let (ticks, ran) = (ticks(), ran());
            // If the waits are the same before and after these readings, the thread has kept its CPU
            // meanwhile.
            if waits() == before {
                return Reading { ticks, waited: before.0, ran };
            }
        }
    }
}

/// Returns the calling thread's nanoseconds on a CPU.
pub fn ran() -> u64 {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    ran.tv_sec as u64 * 1_000_000_000 + ran.tv_nsec as u64
}

/// Computes until this thread was on a CPU for `ns` more nanoseconds.
pub fn compute(ns: u64) {
    let until = ran() + ns;
    while ran() < until {
        std::hint::spin_loop();
    }
}

/// Returns the calling thread's nanoseconds without a CPU, and the number of times that it got a CPU.
fn waits() -> (u64, u64) {
    thread_local! {
        static FILE: OnceCell<File> = const { OnceCell::new() };
    }
    let mut text = [0; 64];
    let read = FILE.with(|file| {
        let file = file.get_or_init(|| File::open("/proc/thread-self/schedstat").unwrap());
        file.read_at(&mut text, 0).unwrap()
    });
    let text = std::str::from_utf8(&text[..read]).unwrap();
    let mut numbers = text.split_whitespace().map(|number| number.parse().unwrap());
    let _stale_run_time = numbers.next();
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Returns the reason if this machine lacks the accounts with which the tests compare.
pub fn is_missing() -> Option<String> {
    let read = fs::read_to_string("/proc/thread-self/schedstat");
    read.err().map(|why| format!("/proc/thread-self/schedstat: {why}"))
}

/// Returns the first CPU on which this thread may run.
pub fn first_cpu() -> usize {
    let cpus = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap()
}

/// Restricts the calling thread to this CPU.
pub fn pin_to(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).unwrap();
}

/// A thread that takes a CPU from another thread.
#[derive(Debug)]
pub struct Rival {
    turns: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Rival {
    /// Starts the thread on this CPU, asleep. In each turn the thread is on its CPU for `ns` nanoseconds, and
    /// then calls `is_done`.
    pub fn start(cpu: usize, ns: u64, is_done: impl Fn(u64) + Send + 'static) -> Rival {
        let (turns, next) = mpsc::channel();
        let thread = thread::spawn(move || {
            pin_to(cpu);
            for turn in next {
                compute(ns);
                is_done(turn);
            }
        });
        Rival { turns: Some(turns), thread: Some(thread) }
    }

    /// Begins a turn, and returns.
    pub fn compete(&self, turn: u64) {
        let turns = self.turns.as_ref().expect("a thread that was not ended");
        turns.send(turn).unwrap();
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        self.turns = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Readings around and in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Name and id of the region.
    pub region: (String, u64),
    /// Values of the counter just after the region's beginning and just before its end.
    pub inside: [u64; 2],
    /// Accounts before and after the region.
    pub around: [Reading; 2],
    /// Accounts before and after the part of the region that a test looks at: the exit's handler, or the
    /// sleep.
    pub part: [Reading; 2],
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.region.0, self.region.1, self.inside[0], self.inside[1])?;
        for Reading { ticks, waited, ran } in self.around.iter().chain(&self.part) {
            write!(f, " {ticks} {waited} {ran}")?;
        }
        Ok(())
    }
}

impl Sample {
    /// Parses lines that contain a [`Sample`] in its `Display` form.
    #[track_caller]
    pub fn parse_all(file: &Path) -> Vec<Sample> {
        let text = fs::read_to_string(file).unwrap();
        text.lines().map(Sample::parse).collect()
    }

    #[track_caller]
    fn parse(line: &str) -> Sample {
        let (name, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
        let [id, began, ended, readings @ ..] = &numbers[..] else { panic!("{line}") };
        let reading = |n: usize| {
            let [ticks, waited, ran] = readings[3 * n..3 * n + 3] else { panic!("{line}") };
            Reading { ticks, waited, ran }
        };
        Sample {
            region: (name.to_owned(), *id),
            inside: [*began, *ended],
            around: [reading(0), reading(1)],
            part: [reading(2), reading(3)],
        }
    }

    /// Returns the ticks between the readings around the region and the readings inside.
    pub fn slack(&self) -> u64 {
        let [before, after] = self.around;
        let [began, ended] = self.inside;
        (began - before.ticks) + (after.ticks - ended)
    }
}
