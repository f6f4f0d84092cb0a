//! A program of a Linux guest whose threads make regions: `hypertrace-linux-regions ROUNDS [RUN KIND CPU..]`.
//!
//! Without a kind, four threads sleep, work and ask the hypervisor in turns. After each sleep and each piece
//! of work, the thread makes an event with the CPU time that the guest's kernel has counted for the thread
//! meanwhile.
//!
//! If a kind is given, the program runs a thread on each given CPU. The threads have the names `RUN-0`,
//! `RUN-1` and so on, and each region has the name RUN:
//!
//! - `spinning`: the thread computes, and makes an event of each gap in which the thread computed nothing
//! - `sleeping`: the thread sleeps
//! - `passing`: the first and the second thread pass a byte to each other through pipes
//! - `moving`: the thread computes and asks the hypervisor on one CPU after another
//!
//! After each region comes a region in which the thread asks the hypervisor.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use hypertrace::{Options, event, reference_point, region};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const THREADS: u64 = 4;
const SLEEP: Duration = Duration::from_millis(10);
const WORK_NS: u64 = 10_000_000;
/// Number of CPUID instructions in a region. Each CPUID causes an exit.
const ASKED: u64 = 50;
/// Time of a region that spins, and shortest gap that is listed, in nanoseconds.
const SPIN_NS: u64 = 50_000_000;
const GAP_NS: u64 = 200_000;
/// Number of bytes that each thread passes to the other thread in a region.
const PASSED: u64 = 20;
/// Number of changes of the CPU in a region, nanoseconds of computing on each CPU, and number of CPUID
/// instructions after each change.
const MOVES: usize = 10;
const STAY_NS: u64 = 300_000;
const ASKED_ON_EACH: u64 = 5;

/// What the threads of a run do.
#[derive(Clone, Copy)]
enum Kind {
    Spinning,
    Sleeping,
    Passing,
    Moving,
}

fn main() -> ExitCode {
    let words = Vec::from_iter(std::env::args().skip(1));
    let words = Vec::from_iter(words.iter().map(String::as_str));
    let Some((rounds, run)) = words.split_first().and_then(|(rounds, run)| {
        let run = if run.is_empty() { None } else { Some(parse(run)?) };
        Some((rounds.parse::<u64>().ok()?, run))
    }) else {
        eprintln!("usage: hypertrace-linux-regions ROUNDS [RUN KIND CPU..]");
        return ExitCode::from(2);
    };
    if let Err(why) = hypertrace::open(&Options::default()) {
        println!("not traced: {why}: {:?}", std::error::Error::source(&why));
        return ExitCode::FAILURE;
    }
    let threads = run.as_ref().map_or(THREADS as usize, |(.., cpus)| cpus.len());
    let together = &Barrier::new(threads);
    let mut pipes = pipes(threads).into_iter();
    thread::scope(|scope| {
        for number in 0..threads {
            let first = number as u64 * rounds;
            let run = run.as_ref();
            let pipe = pipes.next().expect("a pipe for each");
            let work = move || match run {
                None => take_turns(together, first, rounds),
                Some((run, kind, cpus)) => {
                    pin_to(cpus[number]);
                    let rounds = first..first + rounds;
                    rounds.for_each(|n| round(run, *kind, cpus, (number, n), together, &pipe));
                }
            };
            let name = run.map_or("regions".to_owned(), |(run, ..)| format!("{run}-{number}"));
            thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread");
        }
    });
    ExitCode::SUCCESS
}

/// Parses the arguments `RUN KIND CPU..` of the command line.
fn parse<'a>(words: &[&'a str]) -> Option<(&'a str, Kind, Vec<usize>)> {
    let [run, kind, cpus @ ..] = words else { return None };
    let kind = match *kind {
        "spinning" => Kind::Spinning,
        "sleeping" => Kind::Sleeping,
        "passing" if cpus.len() == 2 => Kind::Passing,
        "moving" => Kind::Moving,
        _ => return None,
    };
    let cpus: Option<Vec<usize>> = cpus.iter().map(|cpu| cpu.parse().ok()).collect();
    Some((run, kind, cpus.filter(|cpus| !cpus.is_empty())?))
}

/// Makes a pipe from each thread to the next thread. Returns for each thread the pipe end from which the
/// thread reads, and the pipe end to which the thread writes.
fn pipes(threads: usize) -> Vec<(PipeReader, PipeWriter)> {
    let pipes = (0..threads).map(|_| pipe().expect("a pipe"));
    let (mut readers, writers): (Vec<_>, Vec<_>) = pipes.unzip();
    readers.rotate_right(1);
    readers.into_iter().zip(writers).collect()
}

/// Makes region `n` of the thread on CPU `number` of the run's CPUs.
fn round(
    run: &str,
    kind: Kind,
    cpus: &[usize],
    (number, n): (usize, u64),
    together: &Barrier,
    (reader, writer): &(PipeReader, PipeWriter),
) {
    // Relates the guest's clock to the host's.
    let _ = reference_point!("round", n);
    together.wait();
    match kind {
        Kind::Spinning => {
            let _region = region!("spinning", n, run);
            spin(SPIN_NS);
        }
        Kind::Sleeping => {
            let _region = region!("sleeping", n, run);
            thread::sleep(SLEEP);
        }
        Kind::Passing => {
            let _region = region!("passing", n, run);
            let (mut reader, mut writer) = (reader, writer);
            for _ in 0..PASSED {
                // The first thread begins.
                if number == 0 {
                    writer.write_all(&[0]).expect("the other thread reads");
                }
                reader.read_exact(&mut [0]).expect("the other thread writes");
                if number != 0 {
                    writer.write_all(&[0]).expect("the other thread reads");
                }
            }
        }
        Kind::Moving => {
            let _region = region!("moving", n, run);
            for change in 1..=MOVES {
                pin_to(cpus[(number + change) % cpus.len()]);
                (0..ASKED_ON_EACH).for_each(|_| ask());
                spin(STAY_NS);
            }
        }
    }
    let _region = region!("asking", n, run);
    (0..ASKED).for_each(|_| ask());
}

/// Computes until a time is over. Makes an event for each gap. A gap ends shortly before its event, unless
/// another gap is between the two.
fn spin(for_ns: u64) {
    let begin = now_ns();
    let mut last = begin;
    while last - begin < for_ns {
        let now = now_ns();
        if now - last >= GAP_NS {
            event!("gap", ns = now - last);
        }
        last = now;
    }
}

/// Runs rounds, whose regions have numbers from `first` on.
fn take_turns(together: &Barrier, first: u64, rounds: u64) {
    for n in first..first + rounds {
        // Relates the guest's clock to the host's.
        let _ = reference_point!("round", n);
        together.wait();
        let begin = cpu_ns();
        {
            let _region = region!("sleeping", id = n);
            thread::sleep(SLEEP);
        }
        event!("slept", n, cpu_ns = cpu_ns() - begin);
        let before = cpu_ns();
        let within = {
            let _region = region!("working", id = n);
            let begin = cpu_ns();
            while cpu_ns() - begin < WORK_NS {
                std::hint::spin_loop();
            }
            cpu_ns() - begin
        };
        event!("worked", n, within_ns = within, around_ns = cpu_ns() - before);
        let _region = region!("asking", id = n);
        (0..ASKED).for_each(|_| ask());
    }
}

/// Asks the hypervisor, on x86-64.
fn ask() {
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(std::arch::x86_64::__cpuid(0));
}

/// Lets this thread run on one CPU alone.
fn pin_to(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("the guest has the CPU");
}

/// Returns the CPU time of this thread.
fn cpu_ns() -> u64 {
    ns_of(ClockId::ThreadCPUTime)
}

/// Returns the time of the guest's clock that nothing adjusts.
fn now_ns() -> u64 {
    ns_of(ClockId::MonotonicRaw)
}

fn ns_of(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
