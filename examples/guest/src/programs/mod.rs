//! The programs by number, and the one function that runs them.
#![allow(unsafe_code)]

mod bars;
mod cost;
mod demo;
mod hello;
mod legacy;
mod selftest;

use hypertrace::abi::clock::ticks;
use hypertrace::abi::record::ClockKind;
use hypertrace::{Channel, Client, LeaseInfo, ProducerState};

use crate::{Args, Board};

/// Exit code of a program some of whose reference points were not recorded.
pub const NOT_RECORDED: u32 = 3;
/// Exit code of a guest for an unknown program.
pub const NO_SUCH_PROGRAM: u32 = 127;
/// Exit code of a program that found no hypertrace device.
pub const NO_DEVICE: u32 = 2;

/// A guest program: a function of the vCPU's index, the arguments and the board that returns an
/// exit code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Program {
    /// Greets on the console.
    Hello = 0,
    /// Checks floating-point sums: SSE is on, and every vCPU has its own registers.
    Sse,
    /// Stores `params[0]` times, each time the next number from 0, to `params[1]` with width
    /// `params[2]`.
    Store,
    /// Never ends.
    Hang,
    /// Panics.
    Panic,
    /// Touches an address that no page table maps.
    Fault,
    /// The demo: `events` ring events with work between them, `reference_points` and `stamps`
    /// spread among them. It waits for room rather than lose an event, and fails if a reference
    /// point was not recorded.
    Demo,
    /// Emits `events` ring events of two u64 in a row. Posts the ticks, and the number recorded in
    /// the ring.
    RingEmit,
    /// Makes `reference_points` reference points of two u64 in a row. Posts the ticks, and the
    /// number recorded.
    ReferencePoints,
    /// Makes `stamps` kernel-stamped points in a row. Posts the ticks, and the number recorded in
    /// the ring.
    Stamps,
    /// A driver of 2016: each of the first `params[0]` clients makes `events` events, alternately
    /// with one store of 8 bytes and with two of 4.
    Legacy,
    /// vCPU 0 moves BAR 4 to `params[0]` and back and switches decoding off and on, `events` times,
    /// while the others store to the first places of all BARs.
    MoveBars,
    /// `reference_points` times a point `outside`, then a region `measured` of two reference points
    /// with a point `inside` in it.
    Regions,
    /// The last vCPU moves BAR 4 as in [`Program::MoveBars`], while the others trace through the
    /// library: events, reference points, stamps.
    MoveTraced,
}

impl Program {
    const ALL: [Program; 14] = [
        Program::Hello,
        Program::Sse,
        Program::Store,
        Program::Hang,
        Program::Panic,
        Program::Fault,
        Program::Demo,
        Program::RingEmit,
        Program::ReferencePoints,
        Program::Stamps,
        Program::Legacy,
        Program::MoveBars,
        Program::Regions,
        Program::MoveTraced,
    ];

    /// Returns the program with this number. A table, not a cast: the number is from memory.
    pub fn from_number(number: u32) -> Option<Program> {
        Program::ALL.into_iter().find(|program| *program as u32 == number)
    }
}

/// Runs `args.program` as vCPU `cpu` and returns its exit code, 0 for success. `channel` is the
/// hypertrace device, if there is one.
///
/// # Safety
/// The addresses in `args` must be as [`Args`] describes: programs store to them.
pub unsafe fn run(cpu: u32, args: &Args, board: &Board, channel: Option<Channel<'_>>) -> u32 {
    let Some(program) = Program::from_number(args.program) else {
        return NO_SUCH_PROGRAM;
    };
    match program {
        Program::Hello => hello::run(cpu, args),
        Program::Store => selftest::store_many(args),
        Program::Hang => selftest::hang(),
        Program::Panic => panic!("asked to"),
        Program::Fault => selftest::fault(),
        Program::Legacy => legacy::run(cpu, args, board),
        Program::MoveBars => bars::run(cpu, args, board),
        Program::MoveTraced if cpu + 1 == args.vcpus => bars::move_until_done(cpu, args, board),
        Program::MoveTraced => {
            with_client(cpu, channel, |client| bars::trace_until_done(args, board, client))
        }
        hosted => run_hosted(hosted, cpu, args, board, channel),
    }
}

/// Runs a program that uses only the board and the channel, and so can run on a thread of the host:
/// [`Program::Sse`], [`Program::Demo`] and those that measure. Returns [`NO_SUCH_PROGRAM`] for
/// others.
pub fn run_hosted(
    program: Program,
    cpu: u32,
    args: &Args,
    board: &Board,
    channel: Option<Channel<'_>>,
) -> u32 {
    match program {
        Program::Sse => selftest::sse(cpu, args, board),
        Program::Demo => with_client(cpu, channel, |client| demo::run(args, client)),
        Program::RingEmit => {
            with_client(cpu, channel, |client| cost::ring_emit(cpu, args, board, client))
        }
        Program::ReferencePoints => {
            with_client(cpu, channel, |client| cost::reference_points(cpu, args, board, client))
        }
        Program::Regions => with_client(cpu, channel, |client| demo::regions(args, client)),
        Program::Stamps => {
            with_client(cpu, channel, |client| cost::stamps(cpu, args, board, client))
        }
        _ => NO_SUCH_PROGRAM,
    }
}

/// Runs `program` with a lease of this vCPU's client.
fn with_client(
    cpu: u32,
    channel: Option<Channel<'_>>,
    program: impl FnOnce(&Client<'_>) -> u32,
) -> u32 {
    let Some(channel) = channel else {
        return NO_DEVICE;
    };
    let state = ProducerState::new();
    // The token differs from every other lessee's: by the vCPU, and by the time.
    let token = ticks() << 8 | (u64::from(cpu) + 1);
    let info = LeaseInfo { pid: 0, tid: cpu, clock: ClockKind::Tsc, name: "guest" };
    match Client::lease(channel, cpu, &state, token, &info) {
        Ok(client) => {
            let code = program(&client);
            client.release();
            code
        }
        Err(_) => NO_DEVICE,
    }
}
