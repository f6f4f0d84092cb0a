// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A guest with two CPUs, and two recordings: one of the guest's kernel, and one of the host's kernel. The
//! tests make the recordings event by event. Some of the guest's threads have regions. The tests know what
//! each thread of the guest did at each time.

use crate::cpus::{ASLEEP, Event, HARD, READY};
use crate::guest_mode::{END, KVM_ENTRY, KVM_ENTRY_ID, MS, OFFSET, TIDS, raw, word};
use crate::machine::Random;
use crate::made::{
    BOOT, CHECKPOINT_POINT, GHZ, GUEST_BASE, Made, Packet, START_NS, clock, json, with_boot,
    with_pieces,
};
use crate::trace_dat::{
    Counted, HRTIMER_EXPIRE_ENTRY_ID, HRTIMER_EXPIRE_EXIT_ID, IRQ_HANDLER_ENTRY_ID,
    IRQ_HANDLER_EXIT_ID, KVM_EXIT_ID, KVM_FPU_ID, KVM_USERSPACE_EXIT_ID, Page, SCHED_SWITCH_ID,
    SCHED_WAKEUP_ID, SCHED_WAKING_ID, TraceDat, lost, switch, wakeup,
};
use hypertrace_timeline::regions::Part;

/// Milliseconds that the host took from the guest's CPUs, as the guest's kernel counts.
pub const STOLEN_MS: u64 = 30;

/// Numbers of the guest's threads with regions: two threads on each CPU, and a thread that moves from the
/// first CPU to the second. A thread of the host has the same id as the first of these threads.
pub const THREADS: [u32; 5] = [TIDS[0], 51, 52, 53, 54];
const MOVED: usize = 4;
/// Factor by which a thread's index is multiplied to get the first id of the thread's regions.
pub const REGIONS: u64 = 1_000;
/// Id of the host's thread that takes CPUs from vCPUs.
pub const HOG: u32 = 9;
/// Client that sends the guest's recording and makes the reference points. A second guest uses the client
/// after this client.
const FORWARD: u32 = THREADS.len() as u32;
/// Id of the server's thread.
const SERVER: u64 = 500;

const EVENTS: &str = r#"[
    {"id":16,"schema":"r_begin(id:u64)","reference_point":false},
    {"id":17,"schema":"r_end(id:u64)","reference_point":false},
    {"id":18,"schema":"checkpoint(n:u64)","reference_point":true},
    {"id":19,"schema":"tick(n:u64)","reference_point":false}]"#;
const PIECES: u32 = 20;
/// Sequence number of the first point after half of the time.
const HALF: u64 = 10;

/// Numbers of exit reasons on SVM.
const INTERRUPT: u32 = 0x60;
const HLT: u32 = 0x78;
const IO: u32 = 0x7b;
const NPF: u32 = 0x400;

/// What a guest's thread does, as its own kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On(usize),
    Ready(usize),
    Asleep,
}

/// A thread of the guest.
#[derive(Clone, Default)]
pub struct Thread {
    /// States of the thread, each with the time at which the state begins.
    states: Vec<(u64, State)>,
    /// Begin and end of each sleep, and the thread that ended the sleep; `None`: a timer ended the sleep.
    sleeps: Vec<(u64, u64, Option<usize>)>,
    /// Regions, with begin and end.
    pub regions: Vec<(u64, u64)>,
}

/// A CPU of the guest, with the host's CPU on which it runs.
#[derive(Clone, Default)]
pub struct Cpu {
    pub host: Vec<Event>,
    pub guest: Vec<Event>,
    /// Activities of the vCPU's thread, each with the time at which the activity begins.
    doing: Vec<(u64, Part)>,
    /// Guest's threads in the order in which they run, each with the time at which it gets the CPU. The
    /// number 0 means that no thread runs.
    running: Vec<(u64, u32)>,
}

/// Lost events of a CPU that lost no event.
const NOTHING_LOST: &[(usize, Counted)] = &[];

/// Clock and CPUs of a guest.
type Guest<'a> = (u32, &'a [usize]);

/// The host and its guests.
#[derive(Clone)]
pub struct World {
    pub cpus: [Cpu; 2],
    pub threads: [Thread; THREADS.len()],
    /// Numbers of the events that the recordings lose: first for each of the host's CPUs, and then for each
    /// of the guest's CPUs.
    pub lost: [Vec<(usize, Counted)>; 4],
    /// Number that the guest gives each CPU.
    pub numbers: [usize; 2],
    /// Whether the second CPU is the first CPU of another guest: see [`World::of_two_guests`].
    is_two: bool,
    /// Whether the second guest is the first guest's VM, started again: see [`World::restart`].
    is_restarted: bool,
    /// False information that the second guest gives.
    lies: Lies,
    /// Halts of the first CPU that ended because of the second CPU's vCPU: see [`World::wake_across`].
    pub woken: Vec<Halt>,
}

/// A halt of a vCPU. The thread of another vCPU ended this halt.
#[derive(Clone, Copy, Debug)]
pub struct Halt {
    from: u64,
    to: u64,
    /// Guest's thread that an interrupt woke after the halt.
    interrupted: Option<usize>,
}

/// False information that a guest gives, in addition to false events of its kernel.
#[derive(Clone, Default)]
struct Lies {
    /// Error in ticks of the guest's readings at reference points, and the maximum by which the error of one
    /// point differs from it at random.
    points: (i64, i64),
    /// Ticks by which the guest's clock jumps after half of the time.
    jump: u64,
    /// Number that the guest gives its CPU.
    cpu: usize,
    /// Numbers of the threads to which the guest's clients falsely claim to belong.
    tids: Option<[u32; 2]>,
}

impl Lies {
    /// Returns the ticks by which the reading of a point is wrong.
    fn at(&self, point: u64) -> i64 {
        let (all, differ) = self.points;
        all + if differ == 0 { 0 } else { Random(point).in_range(-differ, differ) }
    }

    /// Returns by how many ticks the guest's clock has jumped before this point.
    fn jumped(&self, point: u64) -> u64 {
        if point >= 10 { self.jump } else { 0 }
    }
}

/// Returns the value that a list has at time `at`. Each entry of the list holds a value and the time from
/// which the value holds.
fn last<T: Copy>(list: &[(u64, T)], at: u64) -> T {
    list[list.partition_point(|(from, _)| *from <= at) - 1].1
}

fn name(tid: u32) -> String {
    if tid == 0 { "swapper".into() } else { format!("t{tid}") }
}

impl World {
    pub fn new(seed: u64) -> World {
        World::with_guests(seed, false)
    }

    /// Makes a world of two guests. The second CPU of the world is the first CPU of the second guest. The
    /// threads of both guests have the same numbers. The thread that changes its CPU has no client.
    pub fn of_two_guests(seed: u64) -> World {
        World::with_guests(seed, true)
    }

    fn with_guests(seed: u64, is_two: bool) -> World {
        let mut world = World {
            cpus: Default::default(),
            threads: Default::default(),
            lost: Default::default(),
            numbers: [0, 1],
            is_two,
            is_restarted: false,
            lies: Lies::default(),
            woken: Vec::new(),
        };
        for thread in &mut world.threads {
            thread.states.push((0, State::Asleep));
        }
        for cpu in [0, 1] {
            world.run(cpu, &mut Random(seed * 2 + cpu as u64));
        }
        world
    }

    /// Makes a world whose guest swaps the events of its two CPUs in the second half of the time.
    pub fn swapped(seed: u64) -> World {
        let mut world = World::new(seed);
        let [first, second] = &mut world.cpus;
        let mut halves = [first, second].map(|cpu| {
            let half = cpu.guest.partition_point(|(time, ..)| *time < END / 2);
            (cpu.guest.split_off(half), cpu)
        });
        let [(first, _), (second, _)] = &mut halves;
        std::mem::swap(first, second);
        halves.into_iter().for_each(|(half, cpu)| cpu.guest.extend(half));
        world
    }

    /// Returns the id of a thread.
    pub fn tid(&self, thread: usize) -> u32 {
        let is_of_second = self.is_two && (2..MOVED).contains(&thread);
        THREADS[if is_of_second { thread - 2 } else { thread }]
    }

    /// Ends the VM of the first of two guests after half of the time, and then begins the VM of the second
    /// guest, in the next epoch.
    pub fn restart(&mut self) {
        self.is_restarted = true;
        let [first, second] = &mut self.cpus;
        first.host.retain(|(at, ..)| *at < END / 2);
        first.guest.retain(|(at, ..)| *at < END / 2);
        let is_entry = |(at, id, ..): &&Event| *at >= END / 2 && *id == u32::from(KVM_ENTRY_ID);
        let begin = second.host.iter().find(is_entry).map_or(END, |(at, ..)| *at);
        second.host.retain(|(at, ..)| *at >= begin);
        second.guest.retain(|(at, ..)| *at >= begin);
        self.exit(0, END / 2, NPF);
        self.host_switch(0, END / 2 + 5_000, TIDS[0], ASLEEP, HOG);
        for (number, Thread { regions, .. }) in self.threads.iter_mut().enumerate() {
            let is_its = |at: u64| (at >= END / 2) == (number >= 2);
            regions.retain(|(begin, end)| is_its(*begin) && is_its(*end));
        }
    }

    /// Lets the thread of the second CPU's vCPU end halts of the first CPU. Each halt ends during an exit of
    /// the second vCPU. After this exit, an interrupt wakes a thread of the first guest. Without this call, a
    /// timer would wake this thread.
    pub fn wake_across(&mut self) {
        let halts = self.cpus[0].doing.windows(2).filter(|pair| pair[0].1 == Part::Halted);
        let halts = Vec::from_iter(halts.map(|pair| (pair[0].0, pair[1].0)));
        for (from, to) in halts {
            let is_near = |at: u64| at.abs_diff(to) < 3_000;
            let [_, second] = &self.cpus;
            let mut busy = second.host.iter().chain(&second.guest).map(|(at, ..)| *at);
            let mut regions = self.threads[2..MOVED].iter().flat_map(|thread| &thread.regions);
            let is_in_guest = last(&second.doing, to) == Part::Guest;
            if !is_in_guest || busy.any(is_near) || regions.any(|r| is_near(r.0) || is_near(r.1)) {
                continue;
            }
            self.cpus[0].host.retain(|(at, id, ..)| {
                *id & 0xffff == u32::from(SCHED_WAKEUP_ID) || !(to - 2..to + 2).contains(at)
            });
            self.exit(1, to - 1_000, IO);
            self.host(1, to - 1, SCHED_WAKING_ID, 0, TIDS[1], wakeup(TIDS[0], "vcpu"));
            self.host(1, to + 1_000, KVM_ENTRY_ID, 0, TIDS[1], vec![1, 0, 0, 0]);
            self.cpus[1].doing.push((to + 1_000, Part::Guest));
            self.cpus[1].doing.sort_by_key(|(at, _)| *at);
            self.cpus[1].host.sort_by_key(|(at, ..)| *at);
            let interrupted = self.interrupt_after(to);
            self.woken.push(Halt { from, to, interrupted });
        }
    }

    /// Looks at the first CPU's first run in guest mode after `time`. If a timer expires in this run, turns
    /// the run's first timer into an interrupt. Returns the thread that the interrupt wakes.
    fn interrupt_after(&mut self, time: u64) -> Option<usize> {
        let Cpu { guest, doing, .. } = &mut self.cpus[0];
        let runs = doing.iter().position(|(at, part)| *at > time && *part == Part::Guest)?;
        let runs = doing[runs].0..doing[runs + 1].0;
        let is_entry = |(at, id, ..): &Event| {
            runs.contains(at) && *id & 0xffff == u32::from(HRTIMER_EXPIRE_ENTRY_ID)
        };
        let entry = guest.iter().position(is_entry)?;
        let wakes = guest[entry].0 + 3;
        let is_exit = |(_, id, ..): &Event| *id & 0xffff == u32::from(HRTIMER_EXPIRE_EXIT_ID);
        let exit = entry + guest[entry..].iter().position(is_exit)?;
        let mut payload = [7u32, 16 | 4 << 16].map(u32::to_le_bytes).concat();
        payload.extend(b"net\0");
        (guest[entry].1, guest[entry].3) = (u32::from(IRQ_HANDLER_ENTRY_ID) | HARD << 16, payload);
        (guest[exit].1, guest[exit].3) = (u32::from(IRQ_HANDLER_EXIT_ID) | HARD << 16, vec![0; 8]);
        self.threads.iter().position(|thread| thread.sleeps.iter().any(|(_, at, _)| *at == wakes))
    }

    /// Returns what the second vCPU's thread did on the critical path that `path` returns. Each part has the
    /// id of the second guest's thread that ran, or 0 if no thread ran. Each part also has the CPU time of
    /// the host's thread.
    pub fn across(&self, thread: usize, from: u64, to: u64) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        for (thread, from, to) in self.path(thread, from, to) {
            for (from, to, part) in self.truth(thread, from, to) {
                let is_its = |halt: &&Halt| match part {
                    Part::Halted => true,
                    Part::Blocked => halt.interrupted == Some(thread) && halt.to < to,
                    _ => false,
                };
                // The thread's sleep ended with the last halt within this sleep.
                let halts = self.woken.iter().rev().filter(is_its);
                let most = if part == Part::Blocked { 1 } else { usize::MAX };
                for halt in halts.filter(|halt| from < halt.to && halt.from < to).take(most) {
                    found.extend(self.ran(from.max(halt.from), to.min(halt.to)));
                }
            }
        }
        found
    }

    /// Returns the guest's threads that ran on the second CPU, and for each thread the CPU time of the host's
    /// thread.
    fn ran(&self, from: u64, to: u64) -> Vec<(u32, u64)> {
        let Cpu { doing, running, .. } = &self.cpus[1];
        let mut borders = vec![from, to];
        borders.extend(doing.iter().map(|(at, _)| *at).chain(running.iter().map(|(at, _)| *at)));
        borders.retain(|at| (from..=to).contains(at));
        borders.sort_unstable();
        let is_on = |pair: &&[u64]| {
            use Part::{Guest, HostInterrupt, Kernel, Vmm};
            matches!(last(doing, pair[0]), Guest | HostInterrupt | Kernel | Vmm)
        };
        let ran = borders.windows(2).filter(is_on);
        ran.map(|pair| (last(running, pair[0]), pair[1] - pair[0])).collect()
    }

    /// Adds events of the first guest's kernel at times at which its first CPU was not in guest mode. Thus
    /// the recordings do not prove which thread runs this CPU.
    pub fn contradict(&mut self) {
        let out = self.cpus[0].doing.iter().filter(|(_, part)| *part == Part::Stolen);
        let times = Vec::from_iter(out.map(|(at, _)| at + 10_000));
        let waking = |at| (at, u32::from(SCHED_WAKING_ID), 0, wakeup(777, "outside"));
        self.cpus[0].guest.extend(times.into_iter().map(waking));
        self.cpus[0].guest.sort_by_key(|(at, ..)| *at);
    }

    /// Lets the second of two guests lie about its kernel's events, its lost events, its clock, its threads
    /// and its regions.
    pub fn lie(&mut self, r: &mut Random) {
        let cpu = &mut self.cpus[1];
        if r.one_in(2) {
            for event in &mut cpu.guest {
                if r.one_in(20) {
                    let moved = event.0.saturating_add_signed(r.in_range(-3_000_000, 3_000_000));
                    event.0 = moved.max(2 * MS);
                }
            }
        }
        if r.one_in(2) {
            for _ in 0..r.in_range(1, 400) {
                let [from, to, waker] = [0; 3].map(|_| THREADS[r.in_range(0, 5) as usize]);
                let at = r.in_range(2 * MS as i64, END as i64 + 20_000_000) as u64;
                let state = if r.one_in(2) { ASLEEP } else { READY };
                let (id, payload) = match r.in_range(0, 3) {
                    0 => (SCHED_WAKING_ID, wakeup(to, "false")),
                    1 => (SCHED_WAKEUP_ID, wakeup(to, "false")),
                    _ => (SCHED_SWITCH_ID, switch((from, "false"), state, (to, "false"))),
                };
                cpu.guest.push((at, u32::from(id), waker, payload));
            }
        }
        cpu.guest.sort_by_key(|(at, ..)| *at);
        if r.one_in(3) {
            let all = cpu.guest.len();
            let of = |at| (at, Counted(true));
            self.lost[3] = (0..all).filter(|_| r.one_in(60)).map(of).collect();
        }
        let own = r.in_range(0, 5);
        self.lies = Lies {
            points: (
                if own == 0 { r.in_range(-800_000, 800_000) } else { 0 },
                if own == 1 { r.in_range(1, 3_000_000) } else { 0 },
            ),
            jump: if own == 2 { r.in_range(0, 90_000_000) as u64 } else { 0 },
            cpu: r.in_range(0, 3) as usize,
            tids: r.one_in(3).then(|| [0; 2].map(|_| [50, 51, 52, 777][r.in_range(0, 4) as usize])),
        };
        for thread in &mut self.threads[2..MOVED] {
            if r.one_in(2) {
                thread.regions.retain(|_| !r.one_in(3));
            }
        }
    }

    fn host(&mut self, cpu: usize, at: u64, id: u16, flags: u32, tid: u32, payload: Vec<u8>) {
        self.cpus[cpu].host.push((at, u32::from(id) | flags << 16, tid, payload));
    }

    fn guest(&mut self, cpu: usize, at: u64, id: u16, flags: u32, payload: Vec<u8>) {
        let running = self.cpus[cpu].running.last().map_or(0, |(_, tid)| *tid);
        self.cpus[cpu].guest.push((at, u32::from(id) | flags << 16, running, payload));
    }

    fn exit(&mut self, cpu: usize, at: u64, reason: u32) {
        let payload = [&reason.to_le_bytes()[..], &[0; 12], &2u32.to_le_bytes()].concat();
        self.host(cpu, at, KVM_EXIT_ID, 0, TIDS[cpu], payload);
        self.cpus[cpu].doing.push((at, Part::Kernel));
    }

    fn host_switch(&mut self, cpu: usize, at: u64, from: u32, state: i64, to: u32) {
        let payload =
            switch((from, &name(from)), if from == 0 { 0 } else { state }, (to, &name(to)));
        self.host(cpu, at, SCHED_SWITCH_ID, 0, from, payload);
    }

    /// Runs a vCPU, and the guest's threads on it.
    fn run(&mut self, cpu: usize, r: &mut Random) {
        let (tid, mut now) = (TIDS[cpu], 2 * MS);
        self.cpus[cpu].doing.push((0, Part::Unknown));
        self.cpus[cpu].running.push((0, 0));
        self.host_switch(cpu, now, 0, 0, tid);
        while now < END - 2 * MS {
            now += r.in_range(1_000, 20_000) as u64;
            self.host(cpu, now, KVM_ENTRY_ID, 0, tid, vec![cpu as u8, 0, 0, 0]);
            self.cpus[cpu].doing.push((now, Part::Guest));
            let stay = r.in_range(50_000, 400_000) as u64;
            let actions = r.in_range(1, 5) as u64;
            for action in 0..actions {
                let at = now + 1_000 + (stay - 2_000) / actions * action;
                self.act(cpu, at, r);
            }
            now += stay;
            let is_idle = self.cpus[cpu].running.last().unwrap().1 == 0;
            match r.in_range(0, 5) {
                0 => {
                    // On SVM, the host handles the interrupt before KVM traces the exit.
                    self.interrupt(cpu, now, tid);
                    self.cpus[cpu].doing.push((now, Part::HostInterrupt));
                    now += r.in_range(2_000, 9_000) as u64;
                    self.exit(cpu, now, INTERRUPT);
                }
                1 if is_idle => {
                    self.exit(cpu, now, HLT);
                    now += 2_000;
                    self.host_switch(cpu, now, tid, ASLEEP, 0);
                    self.cpus[cpu].doing.push((now, Part::Halted));
                    now += r.in_range(20_000, 900_000) as u64;
                    self.host(cpu, now, HRTIMER_EXPIRE_ENTRY_ID, HARD, 0, vec![0; 24]);
                    self.host(cpu, now + 1, SCHED_WAKING_ID, HARD, 0, wakeup(tid, "vcpu"));
                    self.host(cpu, now + 2, SCHED_WAKEUP_ID, HARD, 0, wakeup(tid, "vcpu"));
                    self.host(cpu, now + 3, HRTIMER_EXPIRE_EXIT_ID, HARD, 0, vec![0; 8]);
                    self.cpus[cpu].doing.push((now + 2, Part::Runnable));
                    now += 2_000;
                    self.host_switch(cpu, now, 0, 0, tid);
                    self.cpus[cpu].doing.push((now, Part::Kernel));
                }
                2 => {
                    self.exit(cpu, now, IO);
                    now += 1_000;
                    self.host(cpu, now, KVM_FPU_ID, 0, tid, vec![0; 4]);
                    now += 500;
                    let payload = [2u32, 0].map(u32::to_le_bytes).concat();
                    self.host(cpu, now, KVM_USERSPACE_EXIT_ID, 0, tid, payload);
                    self.cpus[cpu].doing.push((now, Part::Vmm));
                    now += r.in_range(5_000, 50_000) as u64;
                    self.host(cpu, now, KVM_FPU_ID, 0, tid, vec![1, 0, 0, 0]);
                    self.cpus[cpu].doing.push((now, Part::Kernel));
                }
                3 => {
                    self.exit(cpu, now, INTERRUPT);
                    now += 1_000;
                    self.host_switch(cpu, now, tid, READY, HOG);
                    self.cpus[cpu].doing.push((now, Part::Stolen));
                    now += r.in_range(20_000, 2_000_000) as u64;
                    self.host_switch(cpu, now, HOG, READY, tid);
                    self.cpus[cpu].doing.push((now, Part::Kernel));
                }
                _ => self.exit(cpu, now, NPF),
            }
        }
        self.exit_at_end(cpu, now);
    }

    fn interrupt(&mut self, cpu: usize, at: u64, tid: u32) {
        let mut payload = [7u32, 16 | 4 << 16].map(u32::to_le_bytes).concat();
        payload.extend(b"nic\0");
        self.host(cpu, at, IRQ_HANDLER_ENTRY_ID, HARD, tid, payload);
        self.host(cpu, at + 700, IRQ_HANDLER_EXIT_ID, HARD, tid, vec![0; 8]);
    }

    fn exit_at_end(&mut self, cpu: usize, now: u64) {
        self.host(cpu, now + 5_000, KVM_ENTRY_ID, 0, TIDS[cpu], vec![cpu as u8, 0, 0, 0]);
        self.cpus[cpu].doing.push((now + 5_000, Part::Guest));
        self.exit(cpu, now + 900_000, NPF);
        self.host_switch(cpu, now + 905_000, TIDS[cpu], READY, HOG);
    }

    /// Returns the threads that may run on a CPU at a time.
    fn own(cpu: usize, at: u64) -> Vec<usize> {
        let moved = (cpu == usize::from(at >= END / 2)).then_some(MOVED);
        [2 * cpu, 2 * cpu + 1].into_iter().chain(moved).collect()
    }

    fn state(&self, thread: usize) -> State {
        self.threads[thread].states.last().unwrap().1
    }

    /// Lets the guest do something on a CPU.
    fn act(&mut self, cpu: usize, at: u64, r: &mut Random) {
        let own = World::own(cpu, at);
        let current = self.cpus[cpu].running.last().unwrap().1;
        let running = own.iter().copied().find(|thread| self.tid(*thread) == current);
        // The thread that changes its CPU has to be asleep at the time of the change.
        let must_sleep = running == Some(MOVED) && (cpu == 1 || at + 8 * MS > END / 2) && cpu == 0;
        let choice = if must_sleep { 2 } else { r.in_range(0, 5) };
        let other = own[r.in_range(0, own.len() as i64) as usize];
        let is_late = other == MOVED && cpu == 0 && at + 12 * MS > END / 2;
        match choice {
            0 if self.state(other) == State::Asleep && !is_late => {
                let tid = self.tid(other);
                let by = running.filter(|_| at.is_multiple_of(2));
                let context = if by.is_some() { 0 } else { HARD };
                if by.is_none() {
                    self.guest(cpu, at, HRTIMER_EXPIRE_ENTRY_ID, HARD, vec![0; 24]);
                }
                self.guest(cpu, at + 1, SCHED_WAKING_ID, context, wakeup(tid, &name(tid)));
                self.guest(cpu, at + 3, SCHED_WAKEUP_ID, context, wakeup(tid, &name(tid)));
                if by.is_none() {
                    self.guest(cpu, at + 5, HRTIMER_EXPIRE_EXIT_ID, HARD, vec![0; 8]);
                }
                let Thread { states, sleeps, .. } = &mut self.threads[other];
                sleeps.push((states.last().unwrap().0, at + 3, by));
                states.push((at + 3, State::Ready(cpu)));
            }
            1 | 2 => {
                let is_ready = |thread: &usize| self.state(*thread) == State::Ready(cpu);
                let next = own.into_iter().find(is_ready);
                let sleeps = choice == 2;
                if next.is_none() && !sleeps || next.is_none() && running.is_none() {
                    return;
                }
                let to = next.map_or(0, |next| self.tid(next));
                let state = if sleeps { ASLEEP } else { READY };
                let state = if current == 0 { 0 } else { state };
                let payload = switch((current, &name(current)), state, (to, &name(to)));
                self.guest(cpu, at, SCHED_SWITCH_ID, 0, payload);
                self.cpus[cpu].running.push((at, to));
                if let Some(running) = running {
                    let state = if sleeps { State::Asleep } else { State::Ready(cpu) };
                    self.threads[running].states.push((at, state));
                }
                if let Some(next) = next {
                    self.threads[next].states.push((at, State::On(cpu)));
                }
            }
            _ => {
                let Some(running) = running else { return };
                let regions = &mut self.threads[running].regions;
                match regions.last_mut() {
                    Some((_, end)) if *end == 0 => *end = at,
                    // Both recordings go on after the last region.
                    _ if at < END - 20 * MS => regions.push((at, 0)),
                    _ => {}
                }
            }
        }
    }

    /// Returns what a thread did between two times, as consecutive parts.
    pub fn truth(&self, thread: usize, from: u64, to: u64) -> Vec<(u64, u64, Part)> {
        let states = &self.threads[thread].states;
        let lists = self.cpus.iter().flat_map(|cpu| cpu.doing.iter().map(|(at, _)| *at));
        let turns = self.cpus.iter().flat_map(|cpu| cpu.running.iter().map(|(at, _)| *at));
        let mut borders =
            Vec::from_iter(states.iter().map(|(at, _)| *at).chain(lists).chain(turns));
        borders.extend([from, to]);
        borders.retain(|at| (from..=to).contains(at));
        borders.sort_unstable();
        borders.dedup();
        let mut all: Vec<(u64, u64, Part)> = Vec::new();
        for pair in borders.windows(2) {
            let part = self.part(thread, pair[0]);
            match all.last_mut() {
                Some(last) if last.2 == part => last.1 = pair[1],
                _ => all.push((pair[0], pair[1], part)),
            }
        }
        all
    }

    /// Returns the threads that had a CPU, in order.
    pub fn had(&self, cpu: usize) -> Vec<u32> {
        let all = self.cpus[cpu].running.iter().map(|(_, tid)| *tid);
        all.filter(|tid| *tid != 0).collect()
    }

    /// Returns the critical path of a thread from one time to a later time. At the later time, the thread
    /// must be on a CPU. The path is a list of threads, each with the times at which its part of the path
    /// begins and ends.
    pub fn path(&self, thread: usize, from: u64, mut to: u64) -> Vec<(usize, u64, u64)> {
        let sleeps = self.threads[thread].sleeps.iter().rev();
        let end = to;
        let within = sleeps.filter(|(_, woken, _)| (from + 1..=end).contains(woken));
        let mut path = Vec::new();
        for (slept, woken, by) in
            within.filter_map(|(slept, woken, by)| Some((slept, woken, (*by)?)))
        {
            let slept = from.max(*slept);
            path.push((thread, *woken, to));
            path.extend(self.path(by, slept, *woken));
            to = slept;
        }
        path.push((thread, from, to));
        path
    }

    fn part(&self, thread: usize, at: u64) -> Part {
        match last(&self.threads[thread].states, at) {
            State::Asleep => Part::Blocked,
            State::On(cpu) => last(&self.cpus[cpu].doing, at),
            State::Ready(cpu) => {
                let is_idle = last(&self.cpus[cpu].running, at) == 0;
                match last(&self.cpus[cpu].doing, at) {
                    part @ (Part::Stolen | Part::Unknown) => part,
                    Part::Halted => Part::Halted,
                    _ if is_idle => Part::Runnable,
                    _ => Part::Behind,
                }
            }
        }
    }

    /// Makes a session with both recordings.
    pub fn made(&self) -> Made {
        let guests: &[Guest] = if self.is_two { &[(1, &[0]), (2, &[1])] } else { &[(1, &[0, 1])] };
        let mut clocks = vec![clock(0, "host", 0, GHZ, 0, START_NS)];
        let of_guest = |(number, _): &Guest| {
            clock(*number, "guest", self.epoch(*number), GHZ, GUEST_BASE, START_NS + 990_000)
        };
        clocks.extend(guests.iter().map(of_guest));
        let json = json(&format!("[{}]", clocks.join(",")), &with_pieces(EVENTS, PIECES), "[]");
        let json = json.replacen("\"clocks\"", "\"served\":true,\"clocks\"", 1);
        let mut made = Made::with_json(&with_boot(&json, Some(BOOT)));
        let server = Packet::host(0).with64(80, SERVER);
        let mut server = server.event_str(1, 1, &[SERVER, 42, SERVER, 0], b"segment");
        let mut servers = vec![Packet::host(0)];
        let own = |at: u64| raw(&[at])[0];
        for (number, (forward, _)) in (0..19).flat_map(|point| {
            (FORWARD..).zip(guests).map(move |(forward, guest)| (point, (forward, guest)))
        }) {
            if !self.runs(forward, number) {
                continue;
            }
            let at = (5 + 10 * number) * MS;
            if self.is_restarted && number == HALF {
                let mut next = Packet::host(0).with64(80, SERVER).after(&server);
                next.set32(92, self.epoch(2));
                servers.push(std::mem::replace(&mut server, next));
            }
            let mut reading = own(at);
            if forward > FORWARD {
                let lie = self.lies.at(number);
                reading = reading.saturating_add_signed(lie) + self.lies.jumped(number);
            }
            let payload = [forward.into(), forward.into(), number, reading, number];
            server = server.flagged(at + 2 * MS, CHECKPOINT_POINT, 1, &payload, 0);
        }
        for (client, thread) in (0..).zip(&self.threads) {
            if self.is_two && client == MOVED as u32 {
                continue;
            }
            let of = if self.is_two { client / 2 } else { 0 };
            let packet = || self.packet(client, 1 + of);
            let tid = self.lies.tids.filter(|_| of == 1).map(|tids| tids[client as usize % 2]);
            let tid = tid.unwrap_or_else(|| self.tid(client as usize));
            let token = u64::from(tid) + 9;
            let begin = packet().with64(80, token);
            let lease = [token, 50, tid.into(), 0];
            let mut ring = begin.event_str(1, 1, &lease, name(tid).as_bytes());
            let borders = thread.regions.iter().filter(|(_, end)| *end > 0).zip(0..);
            let borders = borders.flat_map(|((begin, end), number)| {
                let id = REGIONS * u64::from(client) + number;
                [(*begin, 16, id), (*end, 17, id)]
            });
            let events = Vec::from_iter(borders);
            for (at, event, id) in events {
                ring = ring.event(own(at) - GUEST_BASE, event, &[id]);
            }
            made = made.stream(&format!("guest-{client}"), &[packet(), ring]);
        }
        for (client, (clock, cpus)) in (FORWARD..).zip(guests) {
            let packet = || self.packet(client, *clock);
            let jumped = |point| if client > FORWARD { self.lies.jumped(point) } else { 0 };
            let ring = (0..19).filter(|point| self.runs(client, *point));
            let ring = ring.fold(packet(), |ring, point| {
                ring.event(own((9 + 10 * point) * MS) - GUEST_BASE + jumped(point), 19, &[0])
            });
            let end = if self.runs(client, 18) { END } else { END / 2 };
            let at = own(end) - GUEST_BASE + jumped(19);
            let ring = ring.recording((at, PIECES), &self.guest_trace(cpus));
            made = made.stream(&format!("guest-{client}"), &[packet(), ring]);
        }
        servers.push(server);
        let made = made.stream("host-0", &servers);
        made.kernel(&self.host_trace());
        made
    }

    /// Returns the epoch of a clock.
    fn epoch(&self, clock: u32) -> u32 {
        u32::from(self.is_restarted && clock == 2)
    }

    /// Makes a packet of a client with a clock.
    fn packet(&self, client: u32, clock: u32) -> Packet {
        let mut packet = Packet::new(1, client, clock);
        packet.set32(92, self.epoch(clock));
        packet
    }

    /// Returns whether the VM runs when this point is made. The client `forward` belongs to this VM.
    fn runs(&self, forward: u32, point: u64) -> bool {
        !self.is_restarted || (point >= HALF) == (forward > FORWARD)
    }

    fn host_trace(&self) -> TraceDat {
        let words = word(OFFSET);
        let options =
            format!("hypertrace 0.1.0; source=tracefs; boot_id={BOOT}; tscs={words}; all=\0");
        let trace = TraceDat::new("x86-tsc").with_scheduling().format("kvm", KVM_ENTRY);
        let trace = trace.option((9, options.into_bytes()));
        let cpus = self.cpus.iter().map(|cpu| cpu.host.clone()).zip(&self.lost);
        cpus.enumerate()
            .fold(trace, |trace, (number, (events, lost))| recorded(trace, number, (events, lost)))
    }

    /// Makes the recording of a guest with these CPUs.
    fn guest_trace(&self, cpus: &[usize]) -> TraceDat {
        let origin = format!("stolen_ms={STOLEN_MS}");
        let trace = TraceDat::new("x86-tsc").with_scheduling().option((9, origin.into_bytes()));
        let mut all = vec![(Vec::new(), NOTHING_LOST); cpus.len()];
        for cpu in cpus {
            let number = if self.is_two { cpu * self.lies.cpu } else { self.numbers[*cpu] };
            all.resize(all.len().max(number + 1), (Vec::new(), NOTHING_LOST));
            let events = self.cpus[*cpu].guest.iter().map(|(at, id, tid, payload)| {
                (at.wrapping_add_signed(OFFSET), *id, *tid, payload.clone())
            });
            all[number] = (events.collect(), &self.lost[2 + cpu][..]);
        }
        all.into_iter().enumerate().fold(trace, |trace, (number, cpu)| recorded(trace, number, cpu))
    }
}

/// Adds a CPU to a recording, without the events that were lost.
fn recorded(
    trace: TraceDat,
    number: usize,
    (events, gaps): (Vec<Event>, &[(usize, Counted)]),
) -> TraceDat {
    let mut sum = 0;
    let pages = Page::all_but(&events, |at| {
        let of = gaps.iter().find(|(number, _)| *number == at).map(|(_, of)| *of);
        sum += if of == Some(Counted(true)) { 9 } else { 0 };
        of
    });
    trace.cpu(&pages).option(lost("", number, sum))
}
