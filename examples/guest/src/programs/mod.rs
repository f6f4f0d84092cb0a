//! The programs by number, and the function that runs them.
#![allow(unsafe_code)]

mod bars;
mod cost;
mod demo;
mod hello;
mod legacy;
mod selftest;
mod spend;

use hypertrace::abi::clock::ticks;
use hypertrace::{Channel, Client, LeaseInfo, ProducerState};

use crate::args::{Args, Board, Program};

/// Exit code of a program if the host did not record some of its reference points.
pub const NOT_RECORDED: u32 = 3;
/// Exit code of a guest for an unknown program.
pub const NO_SUCH_PROGRAM: u32 = 127;
/// Exit code of a program that found no hypertrace device.
pub const NO_DEVICE: u32 = 2;

/// Runs `args.program` as vCPU `cpu` and returns its exit code, 0 for success. `channel` is the
/// hypertrace device, if there is one.
///
/// # Safety
/// The addresses in `args` must be as [`Args`] describes: programs store to them.
pub unsafe fn run(cpu: u32, args: &Args, board: &Board, channel: Option<Channel<'_>>) -> u32 {
    let Some(program) = Program::from_number(args.program) else {
        return NO_SUCH_PROGRAM;
    };
    // There are no threads, so the vCPU's number takes the place of a thread's.
    let info = LeaseInfo { pid: 0, tid: cpu, name: "guest" };
    let channel = channel.map(|channel| (channel, info));
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
        Program::Spend => with_client(cpu, channel, |client| spend::run(cpu, args, board, client)),
        Program::StoreRegions => {
            with_client(cpu, channel, |client| cost::store_regions(cpu, args, board, client))
        }
        hosted => run_hosted(hosted, cpu, args, board, channel),
    }
}

/// Runs a program on a thread of the host. The program must use only the board and the channel, as
/// [`Program::Sse`], [`Program::Demo`] and the programs that measure do. Returns [`NO_SUCH_PROGRAM`] for
/// other programs. The [`LeaseInfo`] beside the channel has the facts about this thread that each lease
/// reports.
pub fn run_hosted(
    program: Program,
    cpu: u32,
    args: &Args,
    board: &Board,
    channel: Option<(Channel<'_>, LeaseInfo<'_>)>,
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
        Program::Sparse => with_client(cpu, channel, |client| spend::pause(args, client)),
        _ => NO_SUCH_PROGRAM,
    }
}

/// Runs `program` with a lease of this vCPU's client.
fn with_client(
    cpu: u32,
    channel: Option<(Channel<'_>, LeaseInfo<'_>)>,
    program: impl FnOnce(&Client<'_>) -> u32,
) -> u32 {
    let Some((channel, info)) = channel else {
        return NO_DEVICE;
    };
    let state = ProducerState::new();
    // The vCPU and the time make the token differ from the tokens of all other holders.
    let token = ticks() << 8 | (u64::from(cpu) + 1);
    match Client::lease(channel, cpu, &state, token, &info) {
        Ok(client) => {
            let code = program(&client);
            client.release();
            code
        }
        Err(_) => NO_DEVICE,
    }
}
