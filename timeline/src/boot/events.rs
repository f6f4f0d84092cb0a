// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Finds the marks of boots and the exits of vCPUs in one pass over the events.

use super::{Boot, Exit, Options, Point, RESTORED, Stage, UNKNOWN, VMM};
use crate::error::Result;
use crate::event::{EntryRef, EventRef};
use crate::inputs::needs::Needs;
use crate::recording::Recording;
use crate::value::ValueRef;
use hypertrace_format::error::Warning;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Maximum number of different ports, addresses and MSRs for which a stage has separate counts. Exits that
/// touched further ports, addresses or MSRs are counted together.
const MAX_TOUCHED: usize = 4096;
/// Name of the common count of exits that touched further ports, addresses or MSRs.
const OTHERS: &str = "others";
/// Suffix of a stage's name if the stage begins after lost events.
const OR_LATER: &str = " or later";
/// Maximum number of stages of a boot. If a boot has this many stages, marks and losses begin no further
/// stages.
const MAX_STAGES: usize = 1000;
/// Maximum difference in nanoseconds between the two times of an event that two buffers of the kernel hold.
const SAME: i64 = 100_000;
/// Maximum number of processes that ran vCPUs.
const MAX_BOOTS: usize = 1000;

/// `CLONE_THREAD` of linux/sched.h: the new task is a thread of the process that made it.
const CLONE_THREAD: i64 = 0x10000;
/// First address of the upper half of the address space. On x86-64 and AArch64, Linux runs in the upper half.
const UPPER_HALF: u64 = 1 << 63;
/// First address above the 1 MiB of memory in which a CPU of x86 begins.
const REAL_MODE: u64 = 1 << 20;
/// Addresses of the 64 KiB below 4 GiB in which a CPU of x86 begins.
const RESET: std::ops::Range<u64> = 0xffff_0000..0x1_0000_0000;
/// First address of user space in a program that Linux does not relocate.
const USER: u64 = 0x40_0000;

/// Ports of a PC: the first serial port, POST codes, and the controller of the keyboard. A command to this
/// controller resets the machine.
const SERIAL: i64 = 0x3f8;
const POST: i64 = 0x80;
const KEYBOARD: i64 = 0x64;
const RESET_COMMAND: i64 = 0xfe;
/// Value that a guest writes into Firecracker's boot timer at the end of the guest's boot.
const BOOT_TIMER: i64 = 123;

/// Result of the pass.
pub(super) struct Found {
    pub boots: Vec<Boot>,
    /// Process of each thread.
    pub processes: HashMap<u32, u32>,
    /// Parent of each process.
    pub parents: HashMap<u32, u32>,
    /// Time at which each thread was created, and the thread that created it.
    pub makers: HashMap<u32, (i64, u32)>,
    /// Index of the boot and index of the vCPU, for each thread that runs a vCPU.
    pub vcpus: HashMap<u32, (usize, u32)>,
    /// Threads whose events were recorded. `None` unless the user's marks divide the whole recording into
    /// stages.
    pub members: Option<HashSet<u32>>,
    /// Thread whose event ended the stage, for each stage of each boot.
    pub enders: Vec<Vec<Option<u32>>>,
    pub warnings: Vec<Warning>,
}

/// Values of a process from the time before the process runs a vCPU.
#[derive(Default)]
struct Process {
    /// Unix time of the process's first exec in nanoseconds.
    exec: Option<i64>,
    made: Option<i64>,
    name: Option<String>,
}

impl Process {
    /// Returns whether the process was created at the time `ts` or shortly before. The kernel cannot use an
    /// id for another process within such a short time.
    fn is_made_at(&self, ts: i64) -> bool {
        self.made.is_some_and(|made| ts - made < SAME)
    }
}

/// Code that a vCPU has run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    Nothing,
    /// Since the last reset, the vCPU has run only code below the kernel's addresses.
    Low,
    Kernel,
}

/// State of a vCPU.
struct Vcpu {
    boot: usize,
    code: Code,
    /// Exit that has not ended yet.
    exit: Option<Lasting>,
}

/// An exit that has not ended yet.
struct Lasting {
    /// Unix time at which the exit or the stage began, whichever is later, in nanoseconds.
    since: i64,
    what: String,
    /// Whether an earlier stage has counted the exit.
    is_counted: bool,
}

/// State of a boot while the boot's events are read.
struct Open {
    boot: Boot,
    enders: Vec<Option<u32>>,
    seen: HashSet<String>,
    exits: BTreeMap<String, (u64, u64)>,
    threads: HashSet<u32>,
    /// Process and number of each vCPU.
    numbers: HashSet<(u32, u32)>,
    /// Threads whose vCPUs have run the guest's kernel.
    in_kernel: HashSet<u32>,
    /// Thread of the vCPU that was the last to enter guest mode.
    last_vcpu: Option<u32>,
    last: i64,
}

struct Pass<'a> {
    options: &'a Options,
    processes: HashMap<u32, u32>,
    parents: HashMap<u32, u32>,
    makers: HashMap<u32, (i64, u32)>,
    started: HashMap<u32, Process>,
    vcpus: HashMap<u32, Vcpu>,
    numbers: HashMap<u32, (usize, u32)>,
    /// Index of the boot by process.
    boots: HashMap<u32, usize>,
    open: Vec<Open>,
    /// CPUs that lost events and have not had an event since the loss. Each CPU is given by its trace and its
    /// number.
    lost: HashSet<(usize, u32)>,
    /// Threads that have ended.
    ended: HashSet<u32>,
    /// Unix time of the last event of each CPU. The key is the trace and the CPU's id.
    last: HashMap<(usize, u32), i64>,
    has_lost: bool,
    has_entries: bool,
    has_kvm: bool,
    /// Whether the stage that ends boots has begun.
    has_until: bool,
    /// Threads whose events were recorded. `None` unless the user's marks divide the whole recording into
    /// stages.
    members: Option<HashSet<u32>>,
    /// Whether events were lost before the first mark of a whole recording.
    has_lost_before: bool,
    /// Whether programs lost events that could be marks.
    has_lost_marks: bool,
}

/// Reads all events of a recording.
pub(super) fn find(recording: &Recording, options: &Options) -> Result<Found> {
    let (pass, warnings) = read(recording, Pass::new(options), |_| false)?;
    Ok(pass.finish(warnings))
}

/// Reads all events of a recording as one boot. Each stage lasts from one mark to the next mark.
pub(super) fn find_marked(recording: &Recording, options: &Options) -> Result<Found> {
    let mut pass = Pass::new(options);
    let of_host = recording.traces.iter().filter(|trace| !trace.is_of_guest());
    let first = of_host.flat_map(|trace| trace.threads().unwrap_or_default());
    pass.members = Some(first.copied().collect());
    let boot = Boot { has_start: true, ..Boot::default() };
    pass.open.push(Open::new(boot, HashSet::new(), i64::MIN));
    let (pass, warnings) = read(recording, pass, |_| false)?;
    Ok(pass.finish(warnings))
}

/// Reads the events of a recording until the stage that ends boots begins, or until `is_over` returns true.
/// Returns whether this stage has begun.
pub(super) fn has_begun(
    recording: &Recording,
    options: &Options,
    is_over: impl Fn() -> bool,
) -> Result<bool> {
    let pass = Pass::new(options);
    Ok(read(recording, pass, |pass| pass.has_until || is_over())?.0.has_until)
}

/// Reads the events of a recording, as long as `is_enough` returns false.
fn read<'a>(
    recording: &Recording,
    mut pass: Pass<'a>,
    is_enough: impl Fn(&Pass<'_>) -> bool,
) -> Result<(Pass<'a>, Vec<Warning>)> {
    let mut needs = Needs::default().without_functions().without_bounds();
    needs.has_all_threads = true;
    let mut timeline = recording.timeline(&needs)?;
    let traces = &recording.traces;
    while !is_enough(&pass)
        && let Some(entry) = timeline.read()
    {
        match entry? {
            EntryRef::Event(event) => {
                let trace = event.kernel_trace();
                // A kernel's trace may have a second buffer, which holds the events of all threads. The index
                // of this buffer is the index of the trace plus `traces.len()`.
                let of = trace.map(|trace| (&traces[trace % traces.len()], trace < traces.len()));
                match of {
                    Some((of, _)) if of.is_of_guest() => {}
                    Some((of, is_asked)) => {
                        pass.member(&event, is_asked && of.threads().is_none());
                        pass.kernel(&event);
                    }
                    None => {
                        pass.member(&event, false);
                        pass.mark(&event, event.thread.map(|thread| thread.tid));
                    }
                }
            }
            EntryRef::Lost(lost) => {
                let of_host = |trace: usize| traces.get(trace).is_some_and(|of| !of.is_of_guest());
                if let (Some(trace), Some(ts), Some(cpu)) =
                    (lost.kernel_trace(), lost.ts_ns, lost.cpu)
                    && of_host(trace)
                {
                    pass.lose(ts, (trace, cpu));
                } else if lost.kernel_trace().is_none() && lost.events > 0 {
                    pass.has_lost_marks |= has_marks_of_programs(pass.options);
                }
            }
        }
    }
    let warnings = timeline.warnings();
    Ok((pass, warnings))
}

/// Returns whether a mark may be an event of a program. The name of a program's event has no prefix
/// `SYSTEM:`.
fn has_marks_of_programs(options: &Options) -> bool {
    options.marks.iter().any(|mark| !mark.event().contains(':'))
}

/// Returns the number in a field.
fn number(event: &EventRef<'_>, name: &str) -> Option<i64> {
    let fields = event.fields.kernel()?;
    fields.number(fields.format.field(name)?)
}

/// Returns a field in the form that the kernel shows.
fn shown(event: &EventRef<'_>, name: &str) -> Option<String> {
    let fields = event.fields.kernel()?;
    fields.shown(fields.format.field(name)?)
}

fn text(event: &EventRef<'_>, name: &str) -> Option<String> {
    event.fields.iter().find(|(field, _)| ***field == *name).and_then(|(_, value)| match value {
        ValueRef::Str(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    })
}

impl<'a> Pass<'a> {
    fn new(options: &'a Options) -> Pass<'a> {
        Pass {
            options,
            processes: HashMap::new(),
            parents: HashMap::new(),
            makers: HashMap::new(),
            started: HashMap::new(),
            vcpus: HashMap::new(),
            numbers: HashMap::new(),
            boots: HashMap::new(),
            open: Vec::new(),
            lost: HashSet::new(),
            ended: HashSet::new(),
            last: HashMap::new(),
            has_lost: false,
            has_entries: false,
            has_kvm: false,
            has_until: false,
            members: None,
            has_lost_before: false,
            has_lost_marks: false,
        }
    }
}

impl Pass<'_> {
    fn kernel(&mut self, event: &EventRef<'_>) {
        let (Some(thread), ts) = (event.thread, event.ts_ns) else { return };
        let tid = thread.tid;
        if let Some(cpu) = event.kernel_trace().zip(thread.cpu) {
            self.last.insert(cpu, ts);
            if !self.lost.is_empty() && self.lost.remove(&cpu) && self.lost.is_empty() {
                self.found_again(ts);
            }
        }
        let field = |name| number(event, name);
        match &**event.name {
            "task:task_newtask" | "sched:sched_process_fork" => self.new_task(event, tid),
            "sched:sched_process_exec" => {
                let process = self.process(tid);
                let started = self.started.entry(process).or_default();
                started.exec.get_or_insert(ts);
                let name = text(event, "filename");
                let name = name.map(|path| path.rsplit('/').next().unwrap_or(&path).to_owned());
                // The VMM is the last program that began before the vCPUs.
                started.name = name.or(started.name.take());
            }
            "sched:sched_process_exit" => {
                self.ended.insert(tid);
                let process = self.process(tid);
                if let Some(boot) = self.boots.get(&process).copied() {
                    self.end_thread(boot, tid, ts);
                }
            }
            "kvm:kvm_entry" => {
                self.has_entries = true;
                let vcpu = field("vcpu_id").and_then(|id| u32::try_from(id).ok());
                self.enter(tid, vcpu, ts);
                if let Some(rip) = field("rip").or_else(|| field("vcpu_pc")) {
                    self.runs(tid, rip as u64, ts);
                }
            }
            "kvm:kvm_exit" => {
                self.has_kvm = true;
                let reason = shown(event, "exit_reason").or_else(|| shown(event, "ret"));
                let reason = reason.unwrap_or_else(|| "exit".into()).to_ascii_lowercase();
                if let Some(rip) = field("guest_rip").or_else(|| field("vcpu_pc")) {
                    self.runs(tid, rip as u64, ts);
                }
                if let Some(vcpu) = self.vcpus.get_mut(&tid) {
                    let new = Lasting { since: ts, what: reason, is_counted: false };
                    // KVM has entered the guest again without an event, so the length of the last exit is
                    // unknown, and counts as 0.
                    if let Some(last) = vcpu.exit.replace(new) {
                        self.open[vcpu.boot].count(&last, last.since);
                    }
                }
            }
            "kvm:kvm_pio" => {
                let (Some(port), Some(write)) = (field("port"), field("rw")) else { return };
                let side = if write == 0 { "read" } else { "write" };
                self.touch(tid, format!("pio {side} {port:#x}"));
                match (port, field("val")) {
                    (SERIAL, _) if write != 0 => self.point(tid, "first byte on the console", ts),
                    (POST, _) if write != 0 => self.point(tid, "first POST code", ts),
                    (KEYBOARD, Some(RESET_COMMAND)) if write != 0 => {
                        self.point(tid, "reset", ts);
                        self.reset(tid);
                    }
                    _ => {}
                }
            }
            "kvm:kvm_mmio" => {
                let (Some(kind), Some(gpa)) = (field("type"), field("gpa")) else { return };
                let side = if kind == 2 { "write" } else { "read" };
                self.touch(tid, format!("mmio {side} {gpa:#x}"));
                if kind == 2 && field("len") == Some(1) && field("val") == Some(BOOT_TIMER) {
                    self.point(tid, "Firecracker's boot timer", ts);
                }
            }
            "kvm:kvm_msr" => {
                let (Some(msr), Some(write)) = (field("ecx"), field("write")) else { return };
                let side = if write == 0 { "read" } else { "write" };
                self.touch(tid, format!("msr {side} {msr:#x}"));
            }
            name => self.has_kvm |= name.starts_with("kvm:"),
        }
        self.mark(event, Some(tid));
    }

    /// Notes the time of an event of a whole recording, and also the event's thread if `is_member` is true.
    fn member(&mut self, event: &EventRef<'_>, is_member: bool) {
        let Some(members) = &mut self.members else { return };
        self.open[0].last = self.open[0].last.max(event.ts_ns);
        let thread = event.thread.filter(|thread| is_member && thread.tid != 0);
        members.extend(thread.map(|thread| thread.tid));
    }

    /// Begins a stage for each of the user's marks that the event fits.
    fn mark(&mut self, event: &EventRef<'_>, tid: Option<u32>) {
        for mark in &self.options.marks {
            if !mark.fits(event) {
                continue;
            }
            let own = tid.and_then(|tid| self.boots.get(&self.process(tid)).copied());
            // An event of the guest or of a program that is no VMM belongs to no particular boot, so the
            // event counts for all boots.
            let all = if own.is_none() { 0..self.open.len() } else { 0..0 };
            for boot in all.chain(own) {
                self.stage(boot, mark.name(), event.ts_ns, tid);
            }
        }
    }

    /// Returns the process of a thread. A thread whose beginning was not recorded counts as a process of its
    /// own.
    fn process(&self, tid: u32) -> u32 {
        self.processes.get(&tid).copied().unwrap_or(tid)
    }

    fn new_task(&mut self, event: &EventRef<'_>, by: u32) {
        let child = number(event, "pid").or_else(|| number(event, "child_pid"));
        let Some(child) = child.and_then(|pid| u32::try_from(pid).ok()) else { return };
        let parent = self.process(by);
        // The kernel may use a thread id again, so the state of an older thread with this id is forgotten.
        self.makers.insert(child, (event.ts_ns, by));
        self.vcpus.remove(&child);
        self.ended.remove(&child);
        // If a thread in the kernel's filter starts a thread, the kernel adds the new thread to the filter.
        if let Some(members) = self.members.as_mut().filter(|members| members.contains(&by)) {
            members.insert(child);
        }
        match number(event, "clone_flags") {
            Some(flags) if flags & CLONE_THREAD != 0 => {
                self.processes.insert(child, parent);
                // The thread is added to the boot, because other events of the process may already have begun
                // the boot.
                if let Some(boot) = self.boots.get(&parent) {
                    self.open[*boot].threads.insert(child);
                }
            }
            Some(_) => {
                self.processes.insert(child, child);
                self.parents.insert(child, parent);
                // Two buffers may hold this event, so the second copy of the event must not reset the
                // process.
                if !self.started.get(&child).is_some_and(|of| of.is_made_at(event.ts_ns)) {
                    let made = Some(event.ts_ns);
                    self.started.insert(child, Process { made, ..Process::default() });
                    self.boots.remove(&child);
                }
            }
            // `sched_process_fork` does not say whether the child is a thread.
            None => {}
        }
    }

    /// Notes that a vCPU enters guest mode.
    fn enter(&mut self, tid: u32, number: Option<u32>, ts: i64) {
        if !self.vcpus.contains_key(&tid) {
            let Some(boot) = self.boot_of(tid, ts) else { return };
            let process = self.process(tid);
            let open = &mut self.open[boot];
            let number = number.unwrap_or(open.numbers.len() as u32);
            open.threads.insert(tid);
            open.numbers.insert((process, number));
            open.boot.vcpus = open.numbers.len();
            self.numbers.insert(tid, (boot, number));
            self.vcpus.insert(tid, Vcpu { boot, code: Code::Nothing, exit: None });
        }
        let Some(vcpu) = self.vcpus.get_mut(&tid) else { return };
        let open = &mut self.open[vcpu.boot];
        (open.last, open.last_vcpu) = (open.last.max(ts), Some(tid));
        if let Some(exit) = vcpu.exit.take() {
            open.count(&exit, ts);
        }
    }

    /// Returns the boot of a thread that runs a vCPU. The first vCPU of a process begins the boot.
    fn boot_of(&mut self, tid: u32, ts: i64) -> Option<usize> {
        if self.members.is_some() {
            return Some(0);
        }
        let process = self.process(tid);
        if let Some(boot) = self.boots.get(&process) {
            return Some(*boot);
        }
        if self.open.len() == MAX_BOOTS {
            return None;
        }
        let started = self.started.get(&process);
        let begin = started.and_then(|process| process.exec.or(process.made));
        let name = started.and_then(|process| process.name.clone());
        let (name, has_start) = (name.unwrap_or_default(), begin.is_some());
        let boot = Boot { pid: Some(process), name, has_start, ..Boot::default() };
        let at = self.open.len();
        let is_its = |(tid, of): &(&u32, &u32)| **of == process && !self.ended.contains(*tid);
        let threads = self.processes.iter().filter(is_its).map(|(tid, _)| *tid);
        let threads = threads.chain([process].into_iter().filter(|p| !self.ended.contains(p)));
        self.open.push(Open::new(boot, threads.collect(), ts));
        self.boots.insert(process, at);
        if let Some(begin) = begin {
            self.stage(at, VMM, begin, None);
        }
        Some(at)
    }

    /// Notes an address at which a vCPU runs the guest's code, and begins the stage that the address shows.
    fn runs(&mut self, tid: u32, address: u64, ts: i64) {
        // A whole recording has no standard marks.
        if self.members.is_some() {
            return;
        }
        let Some(vcpu) = self.vcpus.get_mut(&tid) else { return };
        let (boot, code) = (vcpu.boot, vcpu.code);
        let is_first = self.open[boot].boot.stages.iter().all(|stage| stage.name == VMM);
        let is_beginning = address < REAL_MODE || RESET.contains(&address);
        if self.options.is_restore {
            // Each vCPU goes on where the saved vCPU stopped. The guest can bring up another vCPU later, but boots
            // no kernel.
            if code == Code::Nothing {
                vcpu.code = Code::Kernel;
                return self.stage(boot, RESTORED, ts, Some(tid));
            }
            if is_beginning || address >= UPPER_HALF {
                return;
            }
        }
        if code == Code::Kernel && is_beginning {
            // The CPU was reset, or runs firmware.
            vcpu.code = Code::Low;
            return;
        }
        let name = match code {
            Code::Kernel if address >= UPPER_HALF => return,
            _ if address >= UPPER_HALF => {
                vcpu.code = Code::Kernel;
                self.open[boot].in_kernel.insert(tid);
                match self.open[boot].in_kernel.len() {
                    1 => "kernel",
                    2 => "second vCPU",
                    _ => return,
                }
            }
            // The CPU has already run code at the kernel's own addresses, so a low address belongs to a
            // program.
            Code::Kernel if address >= USER => "user space",
            Code::Nothing if is_first => {
                vcpu.code = Code::Low;
                if is_beginning { "firmware" } else { "kernel's image" }
            }
            _ => {
                vcpu.code = if code == Code::Nothing { Code::Low } else { code };
                return;
            }
        };
        self.stage(boot, name, ts, Some(tid));
    }

    fn touch(&mut self, tid: u32, what: String) {
        if let Some(Vcpu { exit: Some(exit), .. }) = self.vcpus.get_mut(&tid) {
            exit.what = what;
        }
    }

    fn point(&mut self, tid: u32, name: &str, ts_ns: i64) {
        let Some(vcpu) = self.vcpus.get(&tid).filter(|_| self.members.is_none()) else { return };
        let open = &mut self.open[vcpu.boot];
        if !open.boot.has_end && open.boot.points.iter().all(|point| point.name != name) {
            open.boot.points.push(Point { name: name.into(), ts_ns });
        }
    }

    /// Notes that no vCPU of the boot runs the kernel any more.
    fn reset(&mut self, tid: u32) {
        let Some(boot) = self.vcpus.get(&tid).map(|vcpu| vcpu.boot) else { return };
        for vcpu in self.vcpus.values_mut().filter(|vcpu| vcpu.boot == boot) {
            vcpu.code = Code::Low;
        }
    }

    /// Begins a stage, unless a stage with this name has begun already.
    fn stage(&mut self, boot: usize, name: &str, ts: i64, by: Option<u32>) {
        let is_end = self.options.until.as_deref() == Some(name);
        let open = &mut self.open[boot];
        if open.boot.has_end || open.seen.len() >= MAX_STAGES || !open.seen.insert(name.into()) {
            return;
        }
        // The time of an exit that has not ended is divided between the old stage and the new stage. Only the
        // old stage counts the exit.
        for vcpu in self.vcpus.values_mut().filter(|vcpu| vcpu.boot == boot) {
            if let Some(exit) = &mut vcpu.exit {
                open.count(exit, ts);
                (exit.since, exit.is_counted) = (ts, true);
            }
        }
        if is_end {
            self.has_until = true;
            open.end(ts, by);
        } else {
            open.begin(name, ts, by);
        }
    }

    fn end_thread(&mut self, boot: usize, tid: u32, ts: i64) {
        let open = &mut self.open[boot];
        open.threads.remove(&tid);
        open.last = open.last.max(ts);
        if open.threads.is_empty() && !open.boot.has_end {
            // When a VMM ends, the VMM's other threads wait for the last vCPU, so the thread of this vCPU
            // counts as the cause of the end.
            open.end(ts, open.last_vcpu.or(Some(tid)));
        }
    }

    /// Notes that events were lost. From the loss until all CPUs have events again, the stage counts as
    /// unknown.
    fn lose(&mut self, ts: i64, cpu: (usize, u32)) {
        // The kernel overwrites the oldest events, and reports the loss with the CPU's next event. So the
        // loss may have begun right after the CPU's last event.
        let ts = self.last.get(&cpu).map_or(ts, |last| ts.min(*last));
        self.lost.insert(cpu);
        self.has_lost = true;
        let is_before = |open: &Open| open.boot.stages.is_empty();
        self.has_lost_before |= self.members.is_some() && self.open.iter().any(is_before);
        for open in &mut self.open {
            let known = open.boot.stages.last().filter(|stage| !stage.is_unknown());
            if let Some(begin) = known.map(|stage| stage.begin_ns)
                && !open.boot.has_end
            {
                open.begin(UNKNOWN, ts.max(begin), None);
            }
        }
        for vcpu in self.vcpus.values_mut() {
            vcpu.exit = None;
        }
    }

    fn found_again(&mut self, ts: i64) {
        for open in &mut self.open {
            let mut before = open.boot.stages.iter().rev().skip_while(|stage| stage.is_unknown());
            if open.boot.has_end || !open.boot.stages.last().is_some_and(Stage::is_unknown) {
                continue;
            }
            // Marks may have been lost in the unknown stage, so the new stage is the stage before the loss or
            // a later stage.
            let name = before.next().map_or(UNKNOWN, |stage| &stage.name);
            let name = format!("{}{OR_LATER}", name.trim_end_matches(OR_LATER));
            open.begin(&name, ts, None);
        }
    }

    fn finish(self, mut warnings: Vec<Warning>) -> Found {
        self.warn(&mut warnings);
        let mut enders = Vec::new();
        let boots = self.open.into_iter().map(|mut open| {
            let last = open.last;
            open.close(last, None);
            open.boot.has_end |= self.members.is_some();
            enders.push(open.enders);
            open.boot
        });
        let boots = Vec::from_iter(boots);
        let Pass { processes, parents, makers, numbers: vcpus, members, .. } = self;
        Found { boots, processes, parents, makers, vcpus, members, enders, warnings }
    }

    /// Adds warnings about missing events and marks, and about facts that could not be known.
    fn warn(&self, warnings: &mut Vec<Warning>) {
        let Pass { options, open, .. } = self;
        if open.is_empty() {
            let why = match (self.has_entries, self.has_kvm) {
                (_, true) => {
                    "no vCPU entered guest mode: kvm:kvm_entry was not recorded, or this machine's KVM does not trace it"
                }
                _ => {
                    "the recording has no events of KVM: record a VMM that uses KVM, as root, with the events of `hypertrace boot`"
                }
            };
            warnings.push(why.into());
        }
        if self.has_lost {
            let why = match self.has_lost_before {
                true => {
                    "the kernel lost events before the first mark, so an earlier event may have been the mark, \
                     or in the stages \"unknown\"; a larger `record --buffer` helps"
                }
                false => {
                    "the kernel lost events in the stages \"unknown\"; a larger `record --buffer` helps"
                }
            };
            warnings.push(why.into());
        }
        if self.has_lost_marks && self.members.is_some() {
            warnings.push("programs lost events, so a mark may be missing or late".into());
        }
        let seen = |name: &str| open.iter().any(|open| open.seen.contains(name));
        for mark in options.marks.iter().filter(|mark| !open.is_empty() && !seen(mark.name())) {
            let why = match self.members {
                Some(_) => "no event fits the mark",
                None => "no event after a vCPU's first entry fits the mark",
            };
            warnings.push(format!("{}: {why}", mark.name()).into());
        }
        let until = options.until.as_deref().filter(|until| !open.is_empty() && !seen(until));
        if let Some(until) = until {
            warnings
                .push(format!("no stage {until:?} begins: boots are shown to their ends").into());
        }
    }
}

impl Open {
    /// Makes an open boot without stages. `threads` are the threads of the boot's process.
    fn new(boot: Boot, threads: HashSet<u32>, last: i64) -> Open {
        Open {
            boot,
            enders: Vec::new(),
            seen: HashSet::new(),
            exits: BTreeMap::new(),
            threads,
            numbers: HashSet::new(),
            in_kernel: HashSet::new(),
            last_vcpu: None,
            last,
        }
    }

    /// Adds the time of an exit until `ts`.
    fn count(&mut self, exit: &Lasting, ts: i64) {
        let is_full = self.exits.len() >= MAX_TOUCHED && !self.exits.contains_key(&exit.what);
        let what = if is_full { OTHERS } else { &exit.what };
        let (count, ns) = self.exits.entry(what.to_owned()).or_default();
        *count += u64::from(!exit.is_counted);
        *ns = ns.saturating_add(ts.saturating_sub(exit.since).max(0).unsigned_abs());
    }

    fn begin(&mut self, name: &str, ts: i64, by: Option<u32>) {
        if self.boot.stages.len() >= MAX_STAGES {
            return;
        }
        // If two marks have the same time, only the second mark begins a stage, because no stage is empty.
        if self.boot.stages.pop_if(|last| last.begin_ns == ts).is_none() {
            self.close(ts, by);
        }
        let (begin_ns, end_ns) = (ts, ts);
        let (exits, threads, path) = (Vec::new(), Vec::new(), Vec::new());
        self.boot.stages.push(Stage { name: name.into(), begin_ns, end_ns, exits, threads, path });
        self.last = self.last.max(ts);
    }

    /// Ends the last stage.
    fn close(&mut self, ts: i64, by: Option<u32>) {
        let exits = std::mem::take(&mut self.exits);
        if self.enders.len() == self.boot.stages.len() {
            return;
        }
        let Some(stage) = self.boot.stages.last_mut() else { return };
        stage.end_ns = ts.max(stage.begin_ns);
        let exits = exits.into_iter().map(|(what, (count, ns))| Exit { what, count, ns });
        stage.exits = exits.collect();
        stage.exits.sort_by_key(|exit| Reverse((exit.ns, exit.count)));
        self.enders.push(by);
    }

    fn end(&mut self, ts: i64, by: Option<u32>) {
        self.close(ts, by);
        self.boot.has_end = true;
    }
}
