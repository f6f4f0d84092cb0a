// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A machine on which a VMM boots a guest, made event by event.

use super::cpus::{ASLEEP, Cpus, ENDED, Task};
use super::made::Made;
use super::trace_dat::TraceDat;
use super::vcpu::HOST_BASE;

/// The VMM's main thread, its vCPUs' threads, and another program.
pub const VMM: Task = (300, "vmm");
pub const VCPU: [Task; 2] = [(301, "cpu0"), (302, "cpu1")];
pub const OTHER: Task = (7, "other");

const ENTRY: &str = "name: kvm_entry
ID: 901
COMMON\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;
\tfield:unsigned long rip;\toffset:16;\tsize:8;\tsigned:0;

print fmt: \"vcpu %u, rip 0x%lx\", REC->vcpu_id, REC->rip
";
const PIO: &str = "name: kvm_pio
ID: 902
COMMON\tfield:unsigned int rw;\toffset:8;\tsize:4;\tsigned:0;
\tfield:unsigned int port;\toffset:12;\tsize:4;\tsigned:0;
\tfield:unsigned int val;\toffset:16;\tsize:4;\tsigned:0;

print fmt: \"port 0x%x\", REC->port
";
const EXIT_ID: u16 = 103;

/// A machine whose VMM has begun and whose first vCPU is on CPU 0.
#[derive(Clone)]
pub struct Vm(pub Cpus);

impl Vm {
    /// Starts the VMM.
    pub fn new() -> Vm {
        let mut cpus = Cpus::new(2, &[VMM, VCPU[0], VCPU[1]]);
        cpus.at(2_000).switch(0, ASLEEP, OTHER);
        // A shell starts the VMM, which starts its threads.
        cpus.start(0, false, VMM).switch(0, ASLEEP, VMM);
        cpus.at(3_000).execute(0);
        cpus.at(4_000).start(0, true, VCPU[0]).start(0, true, VCPU[1]);
        cpus.at(5_000).switch(0, ASLEEP, VCPU[0]);
        Vm(cpus)
    }

    fn event(&mut self, cpu: usize, id: u16, words: &[u64]) {
        let (time, tid) = (HOST_BASE + self.0.now, self.0.running[cpu].0);
        let payload = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.asked[cpu].push((time, id.into(), tid, payload));
    }

    /// Enters guest mode at a time and an address.
    pub fn enter(&mut self, time: u64, cpu: usize, vcpu: u64, address: u64) -> &mut Vm {
        self.0.at(time);
        self.event(cpu, 901, &[vcpu, address]);
        self
    }

    /// Leaves guest mode.
    pub fn exit(&mut self, time: u64, cpu: usize, reason: u64, address: u64) -> &mut Vm {
        self.0.at(time);
        self.event(cpu, EXIT_ID, &[reason, address, 2]);
        self
    }

    /// Leaves guest mode to write to a port, for some time.
    pub fn write(
        &mut self,
        time: u64,
        cpu: usize,
        (vcpu, port): (u64, u64),
        ns: u64,
        address: u64,
    ) {
        self.exit(time, cpu, 0x7b, address);
        self.0.at(time + 10);
        self.event(cpu, 902, &[1 | port << 32, 0]);
        self.enter(time + ns, cpu, vcpu, address);
    }

    /// Ends the VMM's threads, and returns the session.
    pub fn end(mut self, time: u64) -> Made {
        let to_vmm = |cpus: &mut Cpus| _ = cpus.exit(0, false).switch(0, ENDED, VMM);
        to_vmm(self.0.at(time));
        self.0.at(time + 100).exit(1, false).switch(1, ENDED, (0, "swapper"));
        self.0.at(time + 1_000).exit(0, false).switch(0, ENDED, OTHER);
        self.made(self.0.trace())
    }

    /// Returns the session with this trace.
    pub fn made(&self, trace: TraceDat) -> Made {
        let made = self.0.session();
        made.kernel(&trace.format("kvm", ENTRY).format("kvm", PIO));
        made
    }
}

/// Address of the guest's kernel.
pub const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// Makes a boot from the firmware to user space.
pub fn booted() -> Made {
    let mut vm = Vm::new();
    vm.enter(10_000, 0, 0, 0xfff0);
    vm.write(11_000, 0, (0, 0x80), 100, 0xe000);
    // The boot loader does not begin a stage.
    vm.write(12_000, 0, (0, 0x70), 200, 0x10_0000);
    vm.exit(20_000, 0, 0x60, KERNEL).enter(20_100, 0, 0, KERNEL);
    for n in 0..50 {
        vm.write(21_000 + 100 * n, 0, (0, 0x70), 40, KERNEL);
    }
    vm.0.at(30_000).switch(1, ASLEEP, VCPU[1]);
    // A second CPU begins below 1 MiB, where neither firmware nor user space is.
    vm.enter(30_500, 1, 1, 0x9_a000);
    vm.exit(31_000, 1, 0x60, KERNEL).enter(31_050, 1, 1, KERNEL);
    vm.exit(40_000, 0, 0x60, 0x40_1000).enter(40_100, 0, 0, 0x40_1000);
    vm.exit(50_000, 0, 0x60, 0x40_1000);
    vm.exit(50_000, 1, 0x60, KERNEL);
    vm.end(50_500)
}
