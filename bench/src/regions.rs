//! The row about regions: what they cost beside a merge of the same files.

use super::row::{Context, Row, row};
use anyhow::{Result, ensure};
use hypertrace_test_support::made::Made;
use hypertrace_test_support::vcpu::{self, Vcpu};
use hypertrace_timeline::regions::{Options, Regions};
use hypertrace_timeline::{ClockMaps, KernelTrace, Session, Timeline};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::Duration;

pub const ROWS: &[Row] = &[row(
    "regions",
    regions,
    "CPU time of `Regions::of` a session with its kernel.dat, per event",
)
.over(("merge to null", merge), "<= 1.05 x merging the same files to null")
.note(
    "Two vCPUs with 8,000 regions, some 440,000 events in all, from opening the files on. \
     Compared with a merge of the same files whose entries nobody uses, in turns. Of the guest's events, \
     those that begin or end a region are merged: the kernel's events say when the guest ran.",
)];

/// Regions of each of two vCPUs.
const ROUNDS: u64 = 4_000;
/// Events in a region, besides its begin and end, a reference point, and the VMM's and the kernel's.
const EVENTS: u64 = 40;

/// A session with its kernel.dat, of some 400,000 events.
struct Files {
    made: Made,
    events: u64,
}

impl Files {
    fn new() -> Result<Files> {
        let vcpus = [Vcpu::rounds(0, ROUNDS, EVENTS), Vcpu::rounds(1, ROUNDS, EVENTS)];
        let made = vcpu::session(&vcpus);
        let trace = vcpu::trace(&vcpus, |_| true).version_7();
        std::fs::write(made.path().join("kernel.dat"), trace)?;
        let events = vcpus.iter().map(|vcpu| vcpu.events.len() as u64).sum();
        Ok(Files { made, events })
    }
}

type Opened = (Vec<(Session, ClockMaps)>, Vec<KernelTrace>);

fn open(dir: &Path) -> Result<Opened> {
    let session = Session::open(dir)?;
    let maps = ClockMaps::of(&session)?;
    let traces = Vec::from_iter(KernelTrace::of_session(0, &session)?);
    Ok((vec![(session, maps)], traces))
}

/// Returns the time that this thread has had a CPU.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures the regions of all, from opening the files on, per event.
pub fn regions(context: &mut Context) -> Result<f64> {
    let files = context.resource(Files::new)?;
    let begun = cpu_time();
    let (sessions, traces) = open(files.made.path())?;
    let regions = Regions::of(&sessions, &traces, &Options::default())?;
    let elapsed = cpu_time() - begun;
    ensure!(regions.samples().count() as u64 == 2 * ROUNDS, "regions are missing");
    Ok(elapsed.as_nanos() as f64 / files.events as f64)
}

/// Measures the merge of the same files to nothing, per event.
pub fn merge(context: &mut Context) -> Result<f64> {
    let files = context.resource(Files::new)?;
    let begun = cpu_time();
    let (sessions, traces) = open(files.made.path())?;
    let mut timeline = Timeline::with_kernel(&sessions, &traces)?;
    let mut entries = 0;
    while let Some(entry) = timeline.read() {
        entry?;
        entries += 1;
    }
    let elapsed = cpu_time() - begun;
    ensure!(entries >= files.events, "events are missing");
    Ok(elapsed.as_nanos() as f64 / files.events as f64)
}
