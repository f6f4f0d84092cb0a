// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A machine made event by event: the thread that each CPU runs, what wakes threads, and the session of a
//! program with some of these threads. The kernel.dat has two buffers: one with the events of the program's
//! threads, and one with the scheduling of all threads.

use super::made::{BOOT, Made, Packet};
use super::trace_dat::{
    Counted, HRTIMER_EXPIRE_ENTRY_ID, HRTIMER_EXPIRE_EXIT_ID, IRQ_HANDLER_ENTRY_ID,
    IRQ_HANDLER_EXIT_ID, Page, SCHED_PROCESS_EXEC_ID, SCHED_PROCESS_EXIT_ID, SCHED_SWITCH_ID,
    SCHED_WAKEUP_ID, SCHED_WAKEUP_NEW_ID, SCHED_WAKING_ID, SIGNAL_DELIVER_ID, SIGNAL_GENERATE_ID,
    SOFTIRQ_ENTRY_ID, SOFTIRQ_EXIT_ID, TASK_NEWTASK_ID, TraceDat, delivered, generated, lost,
    newtask, recorded_with_all, switch, wakeup,
};
use super::vcpu::HOST_BASE;

/// Flags of an event in a hard interrupt, and in a softirq.
pub const HARD: u32 = 8;
pub const SOFT: u32 = 16;
/// States of a thread that is switched out: the thread is ready to run, sleeps, or has ended.
pub const READY: i64 = 0x100;
pub const ASLEEP: i64 = 1;
pub const ENDED: i64 = 0x20;
/// Nanoseconds from an event `sched_waking` to the event `sched_wakeup` of the same thread.
pub const WAY: u64 = 5;

/// Number and name of a thread.
pub type Task = (u32, &'static str);

/// An event of a CPU: time, id with flags, thread, payload.
pub type Event = (u64, u32, u32, Vec<u8>);

/// The machine, at a time.
#[derive(Clone)]
pub struct Cpus {
    pub now: u64,
    /// The program's threads.
    pub own: Vec<Task>,
    /// Thread that each CPU runs.
    pub running: Vec<Task>,
    /// The first buffer, by CPU.
    pub asked: Vec<Vec<Event>>,
    /// The second buffer, by CPU.
    pub all: Vec<Vec<Event>>,
    /// Ticks by which an event is later in the second buffer than in the first.
    pub late: i64,
    /// Begins and ends of regions: time, thread, number of the region's name, and whether the region begins.
    pub regions: Vec<(u64, u32, u32, bool)>,
    /// Whether regions may end on another thread.
    pub of_any: bool,
}

impl Cpus {
    pub fn new(cpus: usize, own: &[Task]) -> Cpus {
        Cpus {
            now: 1_000,
            own: own.to_vec(),
            running: vec![(0, "swapper"); cpus],
            asked: vec![Vec::new(); cpus],
            all: vec![Vec::new(); cpus],
            late: 0,
            regions: Vec::new(),
            of_any: false,
        }
    }

    /// Lets time pass until a time.
    pub fn at(&mut self, time: u64) -> &mut Cpus {
        assert!(time >= self.now);
        self.now = time;
        self
    }

    fn is_own(&self, tid: u32) -> bool {
        self.own.iter().any(|(own, _)| *own == tid)
    }

    /// Adds an event to the second buffer, in the thread that the CPU runs.
    pub fn event(&mut self, cpu: usize, id: u16, flags: u32, payload: Vec<u8>) {
        let time = HOST_BASE + self.now.saturating_add_signed(self.late);
        self.all[cpu].push((time, u32::from(id) | flags << 16, self.running[cpu].0, payload));
    }

    /// Gives a CPU to a thread, and puts the previous thread into this state.
    pub fn switch(&mut self, cpu: usize, state: i64, to: Task) -> &mut Cpus {
        let from = self.running[cpu];
        let payload = switch(from, if from.0 == 0 { 0 } else { state }, to);
        if self.is_own(from.0) || self.is_own(to.0) {
            let event = (HOST_BASE + self.now, SCHED_SWITCH_ID.into(), from.0, payload.clone());
            self.asked[cpu].push(event);
        }
        self.event(cpu, SCHED_SWITCH_ID, 0, payload);
        self.running[cpu] = to;
        self
    }

    /// Wakes a thread on a CPU, in a context.
    pub fn wake(&mut self, cpu: usize, flags: u32, woken: Task) -> &mut Cpus {
        self.event(cpu, SCHED_WAKING_ID, flags, wakeup(woken.0, woken.1));
        let running = self.running[cpu].0;
        if self.is_own(woken.0) || self.is_own(running) {
            let id = u32::from(SCHED_WAKEUP_ID) | flags << 16;
            let event = (HOST_BASE + self.now + WAY, id, running, wakeup(woken.0, woken.1));
            self.asked[cpu].push(event);
        }
        self
    }

    /// Lets a high resolution timer wake a thread.
    pub fn timer(&mut self, cpu: usize, flags: u32, woken: Task) -> &mut Cpus {
        self.event(cpu, HRTIMER_EXPIRE_ENTRY_ID, flags, vec![0; 24]);
        self.wake(cpu, flags, woken).now += WAY;
        self.event(cpu, HRTIMER_EXPIRE_EXIT_ID, flags, vec![0; 8]);
        self
    }

    /// Lets the handler of an interrupt wake a thread.
    pub fn handler(&mut self, cpu: usize, name: &str, woken: Task) -> &mut Cpus {
        let place = 16 | (name.len() as u32 + 1) << 16;
        let mut payload = [7u32, place].map(u32::to_le_bytes).concat();
        payload.extend([name.as_bytes(), b"\0"].concat());
        self.event(cpu, IRQ_HANDLER_ENTRY_ID, HARD, payload);
        self.wake(cpu, HARD, woken).now += WAY;
        self.event(cpu, IRQ_HANDLER_EXIT_ID, HARD, vec![0; 8]);
        self
    }

    /// Lets a softirq wake a thread.
    pub fn softirq(&mut self, cpu: usize, vec: u32, woken: Task) -> &mut Cpus {
        self.event(cpu, SOFTIRQ_ENTRY_ID, SOFT, vec.to_le_bytes().to_vec());
        self.wake(cpu, SOFT, woken).now += WAY;
        self.event(cpu, SOFTIRQ_EXIT_ID, SOFT, vec.to_le_bytes().to_vec());
        self
    }

    /// Lets the thread of a CPU start another thread, in its process or in a new process.
    pub fn start(&mut self, cpu: usize, is_of_process: bool, new: Task) -> &mut Cpus {
        let flags = if is_of_process { 0x3d_0f00 } else { 0x120_0000 };
        self.event(cpu, TASK_NEWTASK_ID, 0, newtask(new.0, new.1, flags));
        self.event(cpu, SCHED_WAKEUP_NEW_ID, 0, wakeup(new.0, new.1));
        self
    }

    /// Lets the process whose thread runs on a CPU execute a new program.
    pub fn execute(&mut self, cpu: usize) -> &mut Cpus {
        self.event(cpu, SCHED_PROCESS_EXEC_ID, 0, vec![0; 12]);
        self
    }

    /// Ends the thread of a CPU, without the switch to another thread. A killed thread takes SIGKILL before
    /// it ends.
    pub fn exit(&mut self, cpu: usize, is_killed: bool) -> &mut Cpus {
        if is_killed {
            self.event(cpu, SIGNAL_DELIVER_ID, 0, delivered(9));
        }
        let (tid, name) = self.running[cpu];
        self.event(cpu, SCHED_PROCESS_EXIT_ID, 0, wakeup(tid, name));
        self
    }

    /// Lets the thread of a CPU send a signal to a process, in a context.
    pub fn signal(&mut self, cpu: usize, flags: u32, number: u32, to: Task) -> &mut Cpus {
        self.event(cpu, SIGNAL_GENERATE_ID, flags, generated(number, to, 0));
        self
    }

    /// Begins a region of a thread.
    pub fn begin(&mut self, tid: u32, name: u32) -> &mut Cpus {
        self.regions.push((self.now, tid, name, true));
        self
    }

    /// Ends a region of a thread.
    pub fn end(&mut self, tid: u32, name: u32) -> &mut Cpus {
        self.regions.push((self.now, tid, name, false));
        self
    }

    /// Returns the list of the program's threads.
    pub fn threads(&self) -> String {
        let tids = self.own.iter().map(|(tid, _)| tid.to_string());
        Vec::from_iter(tids).join(",")
    }

    /// Makes the kernel.dat with both buffers.
    pub fn trace(&self) -> TraceDat {
        self.trace_without(|_, _, _| None)
    }

    /// Makes the kernel.dat without some events. `is_lost` is called with the buffer, the CPU and the index
    /// of an event, and returns `Some` if the event is lost.
    pub fn trace_without(
        &self,
        mut is_lost: impl FnMut(bool, usize, usize) -> Option<Counted>,
    ) -> TraceDat {
        let version = recorded_with_all(BOOT, Some(&self.threads()), "cpus");
        let trace = TraceDat::new("x86-tsc").with_wakeup_new().with_scheduling();
        let mut trace = trace.option(version);
        for (buffer, name) in [(&self.asked, ""), (&self.all, "cpus")] {
            for (cpu, events) in buffer.iter().enumerate() {
                let mut sum = 0;
                let pages = Page::all_but(events, |number| {
                    let lost = is_lost(name == "cpus", cpu, number);
                    // Each page with a gap says that 9 events are missing.
                    sum += if lost == Some(Counted(true)) { 9 } else { 0 };
                    lost
                });
                trace = if name.is_empty() { trace.cpu(&pages) } else { trace.cpu_of_all(&pages) };
                trace = trace.option(lost(name, cpu, sum));
            }
        }
        trace
    }

    /// Makes the session of the program, whose regions have the names `r0`, `r1` and so on.
    pub fn session(&self) -> Made {
        let names = self.regions.iter().map(|(_, _, name, _)| name + 1).max().unwrap_or(0);
        let events = (0..names).flat_map(|name| {
            [("begin", 0), ("end", 1)].map(|(end, one)| {
                let id = 16 + 2 * name + one;
                let any = if self.of_any { ",any_client:u64" } else { "" };
                format!(
                    r#"{{"id":{id},"schema":"r{name}_{end}(id:u64{any})","reference_point":false}}"#
                )
            })
        });
        let events = format!("[{}]", Vec::from_iter(events).join(","));
        (0..).zip(&self.own).fold(Made::of_programs(&events), |made, (client, (tid, name))| {
            let token = u64::from(client) + 9;
            let begin = Packet::new(1, client, 0);
            let lease = [token, 50, u64::from(*tid), 0];
            let packet = begin.clone().with64(80, token).event_str(1, 1, &lease, name.as_bytes());
            let own = self.regions.iter().filter(|(_, of, ..)| of == tid);
            let packet = own.fold(packet, |packet, (time, _, name, begins)| {
                let fields = if self.of_any { &[0, 0][..] } else { &[0] };
                packet.event(*time, 16 + 2 * name + u32::from(!begins), fields)
            });
            made.stream(&format!("guest-{client:03}-0000"), &[begin, packet])
        })
    }

    /// Makes the session with its kernel.dat.
    pub fn made(&self) -> Made {
        let made = self.session();
        made.kernel(&self.trace());
        made
    }
}
