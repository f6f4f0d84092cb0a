//! Rows that run a guest under KVM. Every run has a new machine, so that runs do
//! not affect each other.
#![allow(unsafe_code)] // the device's memory as a guest's

use super::record;
use super::ring;
use super::row::{Context, Floor, Row, row};
use super::scratch::Scratch;
use super::timing::{BURST_RING, ns, timed};
use anyhow::{Result, anyhow, ensure};
use hypertrace_device::{Geometry, Region};
use hypertrace_guest::{Args, Program};
use kvm_vmm::{Answer, Machine, Vm};

const EXIT_NULL: Floor = ("kvm_exit_null", exit_null);

pub const ROWS: &[Row] = &[
    row("kvm_exit_null", exit_null, "a guest's reference points on a device that does nothing")
        .note("The same stores, the same exits."),
    row(
        "kvm_reference_point",
        reference_point,
        "the guest's reference points with the device and a session",
    )
    .over(EXIT_NULL, "<= 1.05 x kvm_exit_null"),
    row(
        "kvm_reference_point_2vcpu",
        |_| speedup(Answer::Device),
        "two vCPUs' throughput over one's (not ns)",
    )
    .over(("null device's", |_| speedup(Answer::Null)), ">= 0.95 x the null device's")
    .note("With the device, compared with the same without it."),
    row(
        "record_cost",
        recorded,
        "`kvm_reference_point` while the kernel is recorded; the ratio is the difference \
         in ns",
    )
    .less(("kvm_reference_point", reference_point), "<= 1500 ns more")
    .note(
        "Of the process's events in the kernel, those of `hypertrace record` without \
         `-e`.",
    ),
    row("bar_move", bar_move, "a move of BAR 2 of a device with 64 clients")
        .target("<= 1 ms")
        .note(
            "An ioeventfd is disarmed, and armed at the new address, on the vCPU's thread. With two, \
             under nested KVM of Linux 6.18 on an AMD EPYC, it was missed: 7.9 ms, about 2 ms \
             for each of the four calls.",
        ),
    row("kvm_ring_emit", ring_emit, "`ring_emit` inside the guest")
        .over(ring::EMIT, "<= 1.2 x ring_emit")
        .note("In a ring whose pages were touched before."),
];

const REFERENCE_POINTS: u64 = 3_000;
/// Number of events of a run. The ring holds all events of a run, so that no event waits, and no event is
/// lost.
const EVENTS: u64 = 100_000;

/// Number of moves of a BAR in a run, between these addresses.
const MOVES: u64 = 20;
const BARS: [u64; 2] = [0xe000_0000, 0xe800_0000];

/// Runs a guest program. Returns the ticks of the slowest vCPU.
fn run(args: &Args, vcpus: u32, answer: Answer, expected: u64) -> Result<u64> {
    let machine = Machine::new(vcpus as usize)?;
    let scratch = Scratch::new()?;
    let geometry = Geometry {
        clients: vcpus,
        ring_bytes: BURST_RING,
        block_bytes: 1 << 16,
        ..Geometry::default()
    };
    let device = scratch.device(geometry, vcpus)?;
    let outcome = machine.run_with(&device, args, answer);
    let summary = device.finish()?;
    let outcome = outcome?;
    for results in &outcome.results {
        ensure!(results[1] == expected, "{} of {expected} were recorded", results[1]);
    }
    ensure!(summary.lost == 0, "{} events lost", summary.lost);
    outcome.results.iter().map(|r| r[0]).max().ok_or_else(|| anyhow!("no vCPU ran"))
}

fn points(vcpus: u32, answer: Answer) -> Result<u64> {
    let args =
        Args { vcpus, reference_points: REFERENCE_POINTS, ..Args::new(Program::ReferencePoints) };
    let expected = if answer == Answer::Null { 0 } else { REFERENCE_POINTS };
    run(&args, vcpus, answer, expected)
}

pub fn exit_null(_: &mut Context) -> Result<f64> {
    Ok(ns(points(1, Answer::Null)?, REFERENCE_POINTS))
}

pub fn reference_point(_: &mut Context) -> Result<f64> {
    Ok(ns(points(1, Answer::Device)?, REFERENCE_POINTS))
}

/// Measures a reference point while the kernel's events of this process are recorded.
pub fn recorded(_: &mut Context) -> Result<f64> {
    let (measured, recorded) = record::recorded(false, || points(1, Answer::Device))?;
    let events = recorded.summary.asked.events;
    ensure!(events >= REFERENCE_POINTS, "{events} events of {REFERENCE_POINTS} points");
    Ok(ns(measured, REFERENCE_POINTS))
}

/// Measures a move of BAR 2 with 64 clients: the time is the VMM's work for the move on the vCPU's thread.
pub fn bar_move(_: &mut Context) -> Result<f64> {
    let vm = Vm::new()?;
    let scratch = Scratch::new()?;
    let geometry =
        Geometry { clients: 64, ring_bytes: 1 << 16, block_bytes: 1 << 12, ..Geometry::default() };
    let device = scratch.device(geometry, 1)?;
    // SAFETY: no vCPU runs.
    let calls = unsafe { vm.calls()? };
    let bar = |n: u64| BARS[n as usize % 2];
    device.device().place(&calls, Region::Control, bar(0))?;
    let mut failed = None;
    let time = timed(MOVES, |n| {
        device.device().remove(&calls, Region::Control, bar(n));
        failed = device.device().place(&calls, Region::Control, bar(n + 1)).err();
    });
    device.finish()?;
    failed.map_or(Ok(ns(time, MOVES)), |error| Err(error.into()))
}

/// Returns the throughput of two vCPUs divided by the throughput of one vCPU.
pub fn speedup(answer: Answer) -> Result<f64> {
    let one = points(1, answer)?;
    let two = points(2, answer)?;
    Ok(2.0 * one as f64 / two as f64)
}

pub fn ring_emit(_: &mut Context) -> Result<f64> {
    let args = Args { events: EVENTS, ..Args::new(Program::RingEmit) };
    Ok(ns(run(&args, 1, Answer::Device, EVENTS)?, EVENTS))
}
