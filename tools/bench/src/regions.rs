//! Rows about regions: their cost, compared with a merge of the same files.

use super::row::{Context, Row, row};
use super::timing::cpu_time;
use anyhow::{Result, ensure};
use hypertrace_test_support::cpus::{ASLEEP, Event, HARD, READY, Task, WAY};
use hypertrace_test_support::made::{BOOT, Made};
use hypertrace_test_support::trace_dat::{
    HRTIMER_EXPIRE_ENTRY_ID, HRTIMER_EXPIRE_EXIT_ID, Page, SCHED_SWITCH_ID, SCHED_WAKEUP_ID,
    SCHED_WAKING_ID, TraceDat, recorded, recorded_with_all, switch, wakeup,
};
use hypertrace_test_support::vcpu::{self, HOST_BASE, Vcpu, What};
use hypertrace_timeline::regions::{Cause, CauseEntry, Options, Regions};
use hypertrace_timeline::{ClockMaps, EntryRef, KernelTrace, Needs, Recording, Session};
use std::fs;

pub const ROWS: &[Row] = &[
    row("regions", regions, "CPU time of `Regions::of` a session with its kernel.dat, per event")
        .over(("merge to null", merge), "<= 1.05 x merging the same files to null")
        .note(
            "Two vCPUs with 8,000 regions, some 440,000 events in all, from opening the files on. \
             Compared with a merge of the same files whose entries nobody uses, in turns. Of the guest's \
             events, those that begin or end a region are merged: the kernel's events say when the guest \
             ran.",
        ),
    row("regions_whom", whom, "`regions` that name because of whom threads waited")
        .over(("merge of both buffers", merge_both), "<= 1.4 x merging both buffers to null")
        .note(
            "The session of `regions`, and the scheduling of four CPUs beside it: some 150,000 more events. \
             The merge reads them from a file of their own.",
        ),
    row("regions_path", path, "`regions_whom` with the regions' critical paths (`--path`)")
        .over(("regions_whom", whom), "<= 2 x regions_whom"),
];

/// Number of regions of each of two vCPUs.
const ROUNDS: u64 = 4_000;
/// Number of ordinary events in a region. The region's begin and end, the reference point, and the events of
/// the VMM and of the kernel are not counted here.
const EVENTS: u64 = 40;

/// Duration in nanoseconds of a turn of a thread that belongs to no session.
const TURN: u64 = 2_000;
/// Threads of no session that take turns on a CPU.
const OTHERS: [Task; 2] = [(9, "other"), (10, "third")];
/// Number of CPUs that no vCPU uses.
const OTHER_CPUS: usize = 2;
/// File that contains only the buffer of all threads.
const CPUS: &str = "cpus.dat";

/// A session with a kernel.dat. Together, they have about 440,000 events.
struct Files {
    made: Made,
    events: u64,
}

/// A session with a kernel.dat that also contains the scheduling of all threads.
struct Both(Files);

impl Files {
    fn new() -> Result<Files> {
        let vcpus = vcpus();
        Files::write(&vcpus, &vcpu::trace(&vcpus, |_| true))
    }

    fn write(vcpus: &[Vcpu], trace: &TraceDat) -> Result<Files> {
        let made = vcpu::session(vcpus);
        fs::write(made.path().join("kernel.dat"), trace.version_7())?;
        let events = vcpus.iter().map(|vcpu| vcpu.events.len() as u64).sum();
        Ok(Files { made, events })
    }

    /// Returns the time of `run`, which handles all events, in nanoseconds per event.
    fn ns(&self, run: impl FnOnce() -> Result<()>) -> Result<f64> {
        let begun = cpu_time();
        run()?;
        Ok((cpu_time() - begun).as_nanos() as f64 / self.events as f64)
    }
}

impl Both {
    fn new() -> Result<Both> {
        let vcpus = vcpus();
        let mut cpus = Vec::from_iter(vcpus.iter().map(of_cpu));
        let end = vcpus.iter().filter_map(|vcpu| Some(vcpu.events.last()?.0)).max().unwrap_or(0);
        cpus.extend((0..OTHER_CPUS).map(|_| of_other_cpu(end)));

        let mut trace = vcpu::trace(&vcpus, |_| true).with_scheduling();
        trace.options = vec![recorded_with_all(BOOT, Some("100,101"), "cpus")];
        let mut alone = TraceDat::new("x86-tsc").with_scheduling().option(recorded(BOOT, 0));
        for events in &cpus {
            let pages = Page::all(events);
            (trace, alone) = (trace.cpu_of_all(&pages), alone.cpu(&pages));
        }
        trace.cpus.resize(cpus.len(), Vec::new());

        let mut files = Files::write(&vcpus, &trace)?;
        fs::write(files.made.path().join(CPUS), alone.version_7())?;
        files.events += cpus.iter().map(|events| events.len() as u64).sum::<u64>();
        Ok(Both(files))
    }
}

fn vcpus() -> [Vcpu; 2] {
    [0, 1].map(|number| Vcpu::rounds(number, ROUNDS, EVENTS))
}

/// Threads that take turns on a CPU.
struct Turns {
    events: Vec<Event>,
    running: Task,
    now: u64,
}

impl Turns {
    fn push(&mut self, time: u64, id: u16, flags: u32, payload: Vec<u8>) {
        let id = u32::from(id) | flags << 16;
        self.events.push((HOST_BASE + time, id, self.running.0, payload));
        self.now = time;
    }

    /// Switches the CPU to the other thread.
    fn turn(&mut self, time: u64, state: i64) {
        let to = OTHERS[usize::from(self.running == OTHERS[0])];
        self.push(time, SCHED_SWITCH_ID, 0, switch(self.running, state, to));
        self.running = to;
    }

    fn until(&mut self, time: u64) {
        while self.now + TURN < time {
            self.turn(self.now + TURN, READY);
        }
    }
}

/// Makes the scheduling events of the CPU on which a vCPU runs. Other threads run on this CPU while the
/// vCPU's thread does not run.
fn of_cpu(vcpu: &Vcpu) -> Vec<Event> {
    let own = (vcpu.tid(), "vcpu");
    let mut turns = Turns { events: Vec::new(), running: own, now: 0 };
    for (time, what) in &vcpu.events {
        match what {
            What::Kernel(SCHED_SWITCH_ID, payload) if turns.running == own => {
                turns.push(*time, SCHED_SWITCH_ID, 0, payload.clone());
                turns.running = OTHERS[0];
            }
            What::Kernel(SCHED_SWITCH_ID, payload) => {
                turns.until(*time);
                if turns.running != OTHERS[0] {
                    turns.turn(time - 1, READY);
                }
                turns.push(*time, SCHED_SWITCH_ID, 0, payload.clone());
                turns.running = own;
            }
            What::Kernel(SCHED_WAKEUP_ID, payload) => {
                turns.until(time - 2 * WAY);
                turns.push(time - 2 * WAY, HRTIMER_EXPIRE_ENTRY_ID, HARD, vec![0; 24]);
                turns.push(time - WAY, SCHED_WAKING_ID, HARD, payload.clone());
                turns.push(time - 1, HRTIMER_EXPIRE_EXIT_ID, HARD, vec![0; 8]);
            }
            _ => {}
        }
    }
    turns.events
}

/// Makes the scheduling events of another CPU, on which two threads wake each other.
fn of_other_cpu(end: u64) -> Vec<Event> {
    let mut turns = Turns { events: Vec::new(), running: OTHERS[0], now: 0 };
    while turns.now < end {
        let (tid, name) = OTHERS[usize::from(turns.running == OTHERS[0])];
        turns.push(turns.now + TURN, SCHED_WAKING_ID, 0, wakeup(tid, name));
        turns.turn(turns.now + TURN, ASLEEP);
    }
    turns.events
}

fn open(files: &Files) -> Result<Recording> {
    let session = Session::open(files.made.path())?;
    let maps = ClockMaps::of(&session)?;
    let traces = Vec::from_iter(KernelTrace::of_session(0, &session)?);
    Ok(Recording::of([(session, maps)], traces))
}

fn read(files: &Files, options: &Options) -> Result<Regions> {
    let regions = Regions::of(&open(files)?, options)?;
    ensure!(regions.samples().count() as u64 == 2 * ROUNDS, "regions are missing");
    Ok(regions)
}

fn read_all(recording: &Recording, events: u64) -> Result<()> {
    let mut entries = 0;
    recording.read(Needs::ALL, &mut |_: &EntryRef<'_>| {
        entries += 1;
        Ok::<_, hypertrace_timeline::Error>(true)
    })?;
    ensure!(entries >= events, "events are missing");
    Ok(())
}

/// Measures the time per event to open the files and find all regions.
pub fn regions(context: &mut Context) -> Result<f64> {
    let files = context.resource(Files::new)?;
    files.ns(|| read(files, &Options::default()).map(drop))
}

/// Measures the merge of the same files without any output, per event.
pub fn merge(context: &mut Context) -> Result<f64> {
    let files = context.resource(Files::new)?;
    files.ns(|| read_all(&open(files)?, files.events))
}

/// Measures the merge with the scheduling of all threads.
pub fn merge_both(context: &mut Context) -> Result<f64> {
    let Both(files) = context.resource(Both::new)?;
    files.ns(|| {
        let mut recording = open(files)?;
        let mut cpus = KernelTrace::open(&files.made.path().join(CPUS))?;
        cpus.join(0, &recording.sessions[0].0);
        recording.traces.push(cpus);
        read_all(&recording, files.events)
    })
}

/// Measures the regions with the scheduling of all threads.
pub fn whom(context: &mut Context) -> Result<f64> {
    both(context, &Options::default())
}

/// Measures the regions with their critical paths.
pub fn path(context: &mut Context) -> Result<f64> {
    both(context, &Options { has_paths: true, ..Options::default() })
}

fn both(context: &mut Context, options: &Options) -> Result<f64> {
    let Both(files) = context.resource(Both::new)?;
    files.ns(|| {
        let regions = read(files, options)?;
        for group in &regions.groups {
            let is_known =
                |cause: &CauseEntry| !matches!(**cause, Cause::Unknown(_) | Cause::Others);
            let waits = || group.total.waits.iter();
            let all: u64 = waits().map(|wait| wait.ns).sum();
            let known: u64 = waits().filter(|wait| is_known(&wait.cause)).map(|wait| wait.ns).sum();
            ensure!(all > 0 && known * 100 >= all * 99, "{known} of {all} ns have a cause");
            ensure!(group.total.path.is_empty() != options.has_paths, "wrong critical paths");
        }
        Ok(())
    })
}
