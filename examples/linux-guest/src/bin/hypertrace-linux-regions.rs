//! Regions on four threads that sleep, work and ask the hypervisor in turns: `hypertrace-linux-regions ROUNDS`. An event after
//! each of the first two has the CPU time that the thread used meanwhile, by the guest's kernel.

use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use hypertrace::{Options, event, reference_point, region};
use rustix::time::{ClockId, clock_gettime};

const THREADS: u64 = 4;
const SLEEP: Duration = Duration::from_millis(10);
const WORK_NS: u64 = 10_000_000;
/// Instructions CPUID in a region, each of which is an exit.
const ASKED: u64 = 50;

fn main() -> ExitCode {
    let Some(rounds) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        eprintln!("usage: hypertrace-linux-regions ROUNDS");
        return ExitCode::from(2);
    };
    if let Err(why) = hypertrace::open(&Options::default()) {
        println!("not traced: {why}: {:?}", std::error::Error::source(&why));
        return ExitCode::FAILURE;
    }
    let together = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let together = &together;
            scope.spawn(move || run(together, number * rounds, rounds));
        }
    });
    ExitCode::SUCCESS
}

/// Runs rounds, whose regions have numbers from `first` on.
fn run(together: &Barrier, first: u64, rounds: u64) {
    for n in first..first + rounds {
        // Relates the guest's clock to the host's.
        let _ = reference_point!("round", n);
        together.wait();
        let begin = cpu_ns();
        {
            let _region = region!("sleeping", n);
            thread::sleep(SLEEP);
        }
        event!("slept", n, cpu_ns = cpu_ns() - begin);
        let before = cpu_ns();
        let within = {
            let _region = region!("working", n);
            let begin = cpu_ns();
            while cpu_ns() - begin < WORK_NS {
                std::hint::spin_loop();
            }
            cpu_ns() - begin
        };
        event!("worked", n, within_ns = within, around_ns = cpu_ns() - before);
        let _region = region!("asking", n);
        (0..ASKED).for_each(|_| ask());
    }
}

/// Asks the hypervisor, on x86-64.
fn ask() {
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(std::arch::x86_64::__cpuid(0));
}

/// Returns the CPU time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
