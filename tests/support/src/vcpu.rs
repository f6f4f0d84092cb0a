// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! vCPUs made event by event: a session with regions, a trace of the kernel, and the truth about where the
//! regions' time went.

use super::made::{self, GUEST_BASE, Made, Packet};
use super::trace_dat::{
    KVM_EMULATE_INSN_ID, KVM_FPU_ID, KVM_MMIO_ID, KVM_USERSPACE_EXIT_ID, Page, SCHED_SWITCH_ID,
    SCHED_WAKEUP_ID, TraceDat, mmio, recorded, switch, wakeup,
};

/// Raw value of the host's counter when the host's clock has its tick 0.
pub const HOST_BASE: u64 = 1_000_000;

pub const BEGIN: u32 = 16;
pub const END: u32 = 17;
pub const WORK: u32 = 18;
pub const POINT: u32 = 19;
pub const EXIT: u32 = 20;
pub const RUN: u32 = 21;
pub const NAMED_EXIT: u32 = 22;
pub const EVENTS: &str = r#"[
    {"id":16,"schema":"batch_begin(id:u64,kind:u64)","reference_point":false},
    {"id":17,"schema":"batch_end(id:u64)","reference_point":false},
    {"id":18,"schema":"work(n:u64)","reference_point":false},
    {"id":19,"schema":"done(n:u64)","reference_point":true},
    {"id":20,"schema":"vcpu_exit(reason:u32)","reference_point":false},
    {"id":21,"schema":"vcpu_run(vcpu:u32)","reference_point":false},
    {"id":22,"schema":"vcpu_exit(reason:str)","reference_point":false}
]"#;

/// An event of a vCPU's thread, or of its guest.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// An event of the guest: id and fields.
    Guest(u32, Vec<u64>),
    /// An event of the VMM: id and fields.
    Vmm(u32, Vec<u64>),
    /// An event of the VMM: id and text.
    VmmText(u32, &'static str),
    /// The VMM's record of a point. The guest made the point at this time.
    Point(u64),
    /// An event of the kernel: id and payload.
    Kernel(u16, Vec<u8>),
}

/// The events of a vCPU in order, with their times in ticks of 1 GHz.
#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    pub number: u32,
    /// Name of the thread; empty: `vcpuN`.
    pub name: String,
    /// Process of the guest's thread that has the vCPU's client; `None`: the client has no lease.
    pub process: Option<u64>,
    /// Client whose points the vCPU's thread answers, if this client is not the vCPU's own.
    pub answers: Option<u32>,
    pub events: Vec<(u64, What)>,
    /// Time within regions: in the guest, in the kernel, in the VMM, runnable, and blocked.
    pub truth: [u64; 5],
    /// Time of exits for loads within regions: in the kernel, in the VMM, and waiting.
    pub loads: [u64; 3],
    now: u64,
    random: u64,
    is_open: bool,
}

impl Vcpu {
    pub fn new(number: u32, seed: u64) -> Vcpu {
        Vcpu { number, now: 10_000 + u64::from(number) * 37, random: seed, ..Vcpu::default() }
    }

    pub fn tid(&self) -> u32 {
        100 + self.number
    }

    /// Returns a number below a limit.
    fn below(&mut self, limit: u64) -> u64 {
        let mixed = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = mixed.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    /// Lets time pass, and adds the time to a part of the regions' time.
    fn pass(&mut self, part: usize, time: u64) {
        self.now += time;
        if self.is_open {
            self.truth[part] += time;
        }
    }

    fn push(&mut self, what: What) {
        self.events.push((self.now, what));
    }

    fn kernel(&mut self, id: u16, payload: Vec<u8>) {
        self.push(What::Kernel(id, payload));
    }

    fn out(&mut self, state: i64) {
        let from = (self.tid(), "vcpu");
        self.kernel(SCHED_SWITCH_ID, switch(from, state, (9, "other")));
    }

    fn back(&mut self) {
        let to = (self.tid(), "vcpu");
        self.kernel(SCHED_SWITCH_ID, switch((9, "other"), 0, to));
    }

    /// Lets another thread take the CPU for a while.
    pub fn preempted(&mut self, time: u64) {
        self.out(0x100);
        self.pass(3, time);
        self.back();
    }

    /// Lets the thread wait for something.
    pub fn blocked(&mut self, time: u64, ready: u64) {
        self.out(1);
        self.pass(4, time);
        let payload = wakeup(self.tid(), "vcpu");
        self.kernel(SCHED_WAKEUP_ID, payload);
        self.pass(3, ready);
        self.back();
    }

    /// Lets the guest run.
    pub fn work(&mut self, time: u64) {
        self.pass(0, time);
    }

    pub fn guest(&mut self, id: u32, fields: &[u64]) {
        self.push(What::Guest(id, fields.to_vec()));
    }

    pub fn begin(&mut self, id: u64) {
        self.guest(BEGIN, &[id, id % 3]);
        self.is_open = true;
    }

    pub fn end(&mut self, id: u64) {
        self.guest(END, &[id]);
        self.is_open = false;
    }

    /// Makes a reference point: the exit to the VMM, and the return to the guest.
    pub fn point(&mut self, n: u64) {
        self.exit(mmio(n), Some(self.now));
    }

    /// Loads from a device of the VMM.
    pub fn load(&mut self, n: u64) {
        let before = self.truth;
        let mut payload = mmio(n);
        payload[0] = 0; // not satisfied by the kernel
        self.exit(payload, None);
        let [_, kernel, vmm, runnable, blocked] = self.truth;
        self.loads[0] += kernel - before[1];
        self.loads[1] += vmm - before[2];
        self.loads[2] += runnable - before[3] + blocked - before[4];
    }

    /// Makes an exit to the VMM for this access. If the access is a point, `made` is the time of the point.
    fn exit(&mut self, access: Vec<u8>, made: Option<u64>) {
        let [a, b, c, d, e, f, g] =
            [60, 30, 900, 600, 500, 300, 400].map(|most| 20 + self.below(most));
        self.pass(0, a);
        self.kernel(KVM_EMULATE_INSN_ID, vec![0; 8]);
        self.pass(1, b);
        self.kernel(KVM_MMIO_ID, access);
        self.pass(1, c);
        self.kernel(KVM_FPU_ID, vec![0; 4]);
        self.pass(1, d);
        self.kernel(KVM_USERSPACE_EXIT_ID, [6u32, 0].map(u32::to_le_bytes).concat());
        self.pass(1, e);
        self.push(What::Vmm(EXIT, vec![6]));
        self.pass(2, f);
        if let Some(made) = made {
            self.push(What::Point(made));
        }
        self.pass(2, g);
        match self.below(4) {
            0 => {
                let (time, ready) = (5_000 + self.below(50_000), 100 + self.below(5_000));
                self.blocked(time, ready);
                self.pass(2, 70);
            }
            1 => {
                self.preempted(7_000);
                self.pass(2, 50);
            }
            _ => {}
        }
        self.push(What::Vmm(RUN, vec![self.number.into()]));
        self.pass(1, 600 + d);
        self.kernel(KVM_FPU_ID, vec![1, 0, 0, 0]);
        self.pass(0, 2_000 + e);
    }

    /// Makes a store that the kernel completes, such as a store to KICK.
    pub fn kick(&mut self, n: u64) {
        self.pass(0, 50);
        self.kernel(KVM_EMULATE_INSN_ID, vec![0; 8]);
        self.pass(1, 20);
        self.kernel(KVM_MMIO_ID, mmio(n));
        self.pass(0, 1_500);
    }

    /// Makes a round: a region of some work with a point in it.
    pub fn round(&mut self, id: u64, events: u64) {
        self.pass(0, 300);
        self.begin(id);
        for n in 0..events {
            let time = 80 + self.below(40);
            self.pass(0, time);
            self.guest(WORK, &[n]);
            if self.below(30 * events) == 0 {
                self.pass(0, 50);
                let time = 10_000 + self.below(100_000);
                self.preempted(time);
                self.pass(0, 400);
            }
        }
        if id.is_multiple_of(10) {
            self.kick(id);
        }
        self.point(id);
        self.end(id);
    }

    /// Makes a vCPU with a first point and then rounds until the end.
    pub fn rounds(number: u32, rounds: u64, events: u64) -> Vcpu {
        let mut vcpu = Vcpu::new(number, 7 + u64::from(number));
        vcpu.point(1 << 32);
        // The kernel's trace shows the thread from this event on.
        vcpu.preempted(1_000);
        vcpu.pass(0, 20_000);
        for id in 0..rounds {
            vcpu.round(id, events);
        }
        vcpu.pass(0, 20_000);
        vcpu.preempted(1_000);
        vcpu.pass(0, 500);
        vcpu.point(2 << 32);
        vcpu
    }
}

/// Makes a session of these vCPUs.
pub fn session(vcpus: &[Vcpu]) -> Made {
    let json = made::json(&made::clocks(), EVENTS, "[]");
    let mut made = Made::with_json(&made::with_boot(&json, Some(made::BOOT)));
    for vcpu in vcpus {
        let lease = |packet: Packet| {
            let name = match vcpu.name.is_empty() {
                true => format!("vcpu{}", vcpu.number),
                false => vcpu.name.clone(),
            };
            let fields = [9 + u64::from(vcpu.number), 42, vcpu.tid().into(), 0];
            let token = 9 + u64::from(vcpu.number);
            packet.with64(80, token).event_str(1_000, 1, &fields, name.as_bytes())
        };
        let (mut guest, mut host) = (Packet::guest(vcpu.number), lease(Packet::host(vcpu.number)));
        if let Some(process) = vcpu.process {
            guest = guest.with64(80, 9).event_str(1, 1, &[9, process, 1, 0], b"thread");
        }
        for (time, what) in &vcpu.events {
            match what {
                What::Guest(id, fields) => guest = guest.event(*time, *id, fields),
                What::Vmm(id, fields) => host = host.event(*time, *id, fields),
                What::VmmText(id, text) => {
                    host = host.event_str(*time, *id, &[], text.as_bytes());
                }
                What::Point(made) => {
                    let client = vcpu.answers.unwrap_or(vcpu.number);
                    let payload = [client.into(), 0, 1, GUEST_BASE + made, *time];
                    host = host.flagged(*time, POINT, 1, &payload, 0);
                }
                What::Kernel(..) => {}
            }
        }
        let number = vcpu.number;
        made = made
            .stream(&format!("guest-{number:03}-0000"), &[Packet::guest(number), guest])
            .stream(&format!("host-{number:03}-0000"), &[Packet::host(number), host]);
    }
    made
}

/// Makes the kernel's trace of these vCPUs, each on its own CPU. `keep` is called with the index of an event,
/// and returns whether the trace has the event.
pub fn trace(vcpus: &[Vcpu], keep: impl Fn(usize) -> bool) -> TraceDat {
    let mut number = 0;
    let (id, version) = recorded(made::BOOT, 0);
    vcpus.iter().fold(TraceDat::new("x86-tsc").option((id, version)), |trace, vcpu| {
        let mut events = Vec::new();
        for (time, what) in &vcpu.events {
            let What::Kernel(id, payload) = what else { continue };
            if keep(number) {
                events.push((HOST_BASE + time, *id, vcpu.tid(), payload.clone()));
            }
            number += 1;
        }
        trace.cpu(&Page::all(&events))
    })
}

/// Returns the number of events in the kernel's trace.
pub fn kernel_events(vcpus: &[Vcpu]) -> usize {
    let events = vcpus.iter().flat_map(|vcpu| &vcpu.events);
    events.filter(|(_, what)| matches!(what, What::Kernel(..))).count()
}
