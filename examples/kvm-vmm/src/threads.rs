//! The same guest programs on threads of this process, for hosts without a usable KVM.
//!
//! The programs use a segment, or bare rings. No access traps here, so a reference point waits for the host's
//! thread, or is a record in a ring.

use std::thread;

use hypertrace::{Channel, LeaseInfo};
use hypertrace_guest::{Args, Board, MAX_VCPUS, Program, run_hosted};
use rustix::thread::gettid;

use crate::error::{Error, VcpuError};
use crate::machine::Outcome;

/// Runs the program in `args` on `threads` threads until all threads have ended. Thread n is client n of the
/// channel.
///
/// No other thread can stop these threads, so there is no time limit. Only programs that end by themselves
/// can run here (see [`run_hosted`]).
pub fn run_on_threads(channel: Channel<'_>, threads: usize, args: &Args) -> Result<Outcome, Error> {
    if !(1..=MAX_VCPUS).contains(&threads) {
        return Err(Error::VcpuCount(threads));
    }
    let args = Args { vcpus: threads as u32, control: 0, device: 0, ecam: 0, ..args.clone() };
    let program = Program::from_number(args.program);
    let board = Board::default();
    let run = |cpu| {
        let tid = gettid().as_raw_nonzero().get().unsigned_abs();
        // The kernel's events name the thread by its tid.
        let info = LeaseInfo { pid: std::process::id(), tid, name: "demo" };
        program.map_or(hypertrace_guest::programs::NO_SUCH_PROGRAM, |program| {
            run_hosted(program, cpu, &args, &board, Some((channel, info)))
        })
    };
    let codes: Vec<_> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            (0..threads as u32).map(|cpu| scope.spawn(move || run(cpu))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for (vcpu, code) in codes.into_iter().enumerate() {
        match code {
            Ok(0) => {}
            Ok(code) => {
                return Err(Error::Program { vcpu, code, console: String::new() });
            }
            Err(_) => {
                return Err(Error::Vcpu { vcpu, source: VcpuError::Panicked });
            }
        }
    }
    let results = (0..threads as u32).map(|cpu| board.results(cpu)).collect();
    Ok(Outcome { console: Vec::new(), results })
}
