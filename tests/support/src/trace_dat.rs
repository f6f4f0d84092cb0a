// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Files of trace-cmd made byte by byte, without trace-cmd. These files decide what a reader must accept.

/// Formats of events as the kernel writes them, with their systems.
pub const FORMATS: [(&str, &str); 9] = [
    ("ftrace", PRINT),
    ("kvm", KVM_MMIO),
    ("kvm", KVM_EXIT),
    ("kvm", KVM_EMULATE_INSN),
    ("kvm", KVM_FPU),
    ("kvm", KVM_USERSPACE_EXIT),
    ("sched", SCHED_SWITCH),
    ("sched", SCHED_WAKEUP),
    ("test", ODD),
];

pub const PRINT_ID: u16 = 5;
pub const KVM_MMIO_ID: u16 = 38;
pub const KVM_EXIT_ID: u16 = 103;
pub const KVM_EMULATE_INSN_ID: u16 = 36;
pub const KVM_FPU_ID: u16 = 37;
pub const KVM_USERSPACE_EXIT_ID: u16 = 42;
pub const SCHED_SWITCH_ID: u16 = 372;
pub const SCHED_WAKEUP_ID: u16 = 374;
pub const SCHED_WAKEUP_NEW_ID: u16 = 373;
pub const ODD_ID: u16 = 999;

/// Formats of the events in the buffer `cpus`.
const SCHEDULING: [(&str, &str); 12] = [
    ("irq", IRQ_HANDLER_ENTRY),
    ("irq", IRQ_HANDLER_EXIT),
    ("irq", SOFTIRQ_ENTRY),
    ("irq", SOFTIRQ_EXIT),
    ("sched", SCHED_WAKING),
    ("sched", SCHED_PROCESS_EXEC),
    ("sched", SCHED_PROCESS_EXIT),
    ("signal", SIGNAL_DELIVER),
    ("signal", SIGNAL_GENERATE),
    ("task", TASK_NEWTASK),
    ("timer", HRTIMER_EXPIRE_ENTRY),
    ("timer", HRTIMER_EXPIRE_EXIT),
];

pub const SCHED_WAKING_ID: u16 = 375;
pub const SCHED_PROCESS_EXEC_ID: u16 = 365;
pub const SCHED_PROCESS_EXIT_ID: u16 = 369;
pub const SIGNAL_DELIVER_ID: u16 = 260;
pub const SIGNAL_GENERATE_ID: u16 = 261;
pub const TASK_NEWTASK_ID: u16 = 203;
pub const HRTIMER_EXPIRE_ENTRY_ID: u16 = 459;
pub const HRTIMER_EXPIRE_EXIT_ID: u16 = 458;
pub const IRQ_HANDLER_ENTRY_ID: u16 = 225;
pub const IRQ_HANDLER_EXIT_ID: u16 = 224;
pub const SOFTIRQ_ENTRY_ID: u16 = 223;
pub const SOFTIRQ_EXIT_ID: u16 = 222;

pub const PERF_SWITCH_OUT_ID: u16 = 1;
pub const PERF_SWITCH_IN_ID: u16 = 2;

const PERF_SWITCH_OUT: &str = "name: switch_out
ID: 1
COMMON\tfield:int pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:int tid;\toffset:12;\tsize:4;\tsigned:1;
\tfield:unsigned int preempted;\toffset:16;\tsize:4;\tsigned:0;

print fmt: \"pid=%d tid=%d preempted=%u\", REC->pid, REC->tid, REC->preempted
";
const PERF_SWITCH_IN: &str = "name: switch_in
ID: 2
COMMON\tfield:int pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:int tid;\toffset:12;\tsize:4;\tsigned:1;

print fmt: \"pid=%d tid=%d\", REC->pid, REC->tid
";
const SCHED_WAKING: &str = "name: sched_waking
ID: 375
COMMON\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:int target_cpu;\toffset:32;\tsize:4;\tsigned:1;

print fmt: \"comm=%s pid=%d prio=%d target_cpu=%03d\", REC->comm, REC->pid, REC->prio, REC->target_cpu
";
const SCHED_PROCESS_EXEC: &str = "name: sched_process_exec
ID: 365
COMMON\tfield:__data_loc char[] filename;\toffset:8;\tsize:4;\tsigned:0;
\tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;
\tfield:pid_t old_pid;\toffset:16;\tsize:4;\tsigned:1;

print fmt: \"filename=%s pid=%d old_pid=%d\", __get_str(filename), REC->pid, REC->old_pid
";
const SCHED_PROCESS_EXIT: &str = "name: sched_process_exit
ID: 369
COMMON\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;

print fmt: \"comm=%s pid=%d prio=%d\", REC->comm, REC->pid, REC->prio
";
const SIGNAL_DELIVER: &str = "name: signal_deliver
ID: 260
COMMON\tfield:int sig;\toffset:8;\tsize:4;\tsigned:1;
\tfield:int errno;\toffset:12;\tsize:4;\tsigned:1;
\tfield:int code;\toffset:16;\tsize:4;\tsigned:1;

print fmt: \"sig=%d errno=%d code=%d\", REC->sig, REC->errno, REC->code
";
const SIGNAL_GENERATE: &str = "name: signal_generate
ID: 261
COMMON\tfield:int sig;\toffset:8;\tsize:4;\tsigned:1;
\tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:28;\tsize:4;\tsigned:1;
\tfield:int group;\toffset:32;\tsize:4;\tsigned:1;
\tfield:int result;\toffset:36;\tsize:4;\tsigned:1;

print fmt: \"sig=%d comm=%s pid=%d grp=%d res=%d\", REC->sig, REC->comm, REC->pid, REC->group, REC->result
";
const TASK_NEWTASK: &str = "name: task_newtask
ID: 203
COMMON\tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;
\tfield:u64 clone_flags;\toffset:32;\tsize:8;\tsigned:0;

print fmt: \"pid=%d comm=%s clone_flags=%llx\", REC->pid, REC->comm, REC->clone_flags
";
const HRTIMER_EXPIRE_ENTRY: &str = "name: hrtimer_expire_entry
ID: 459
COMMON\tfield:void * hrtimer;\toffset:8;\tsize:8;\tsigned:0;
\tfield:s64 now;\toffset:16;\tsize:8;\tsigned:1;
\tfield:void * function;\toffset:24;\tsize:8;\tsigned:0;

print fmt: \"hrtimer=%p function=%ps now=%llu\", REC->hrtimer, REC->function, (unsigned long long) REC->now
";
const HRTIMER_EXPIRE_EXIT: &str = "name: hrtimer_expire_exit
ID: 458
COMMON\tfield:void * hrtimer;\toffset:8;\tsize:8;\tsigned:0;

print fmt: \"hrtimer=%p\", REC->hrtimer
";
const IRQ_HANDLER_ENTRY: &str = "name: irq_handler_entry
ID: 225
COMMON\tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;

print fmt: \"irq=%d name=%s\", REC->irq, __get_str(name)
";
const IRQ_HANDLER_EXIT: &str = "name: irq_handler_exit
ID: 224
COMMON\tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;
\tfield:int ret;\toffset:12;\tsize:4;\tsigned:1;

print fmt: \"irq=%d ret=%s\", REC->irq, REC->ret ? \"handled\" : \"unhandled\"
";
const SOFTIRQ_ENTRY: &str = "name: softirq_entry
ID: 223
COMMON\tfield:unsigned int vec;\toffset:8;\tsize:4;\tsigned:0;

print fmt: \"vec=%u\", REC->vec
";
const SOFTIRQ_EXIT: &str = "name: softirq_exit
ID: 222
COMMON\tfield:unsigned int vec;\toffset:8;\tsize:4;\tsigned:0;

print fmt: \"vec=%u\", REC->vec
";

const COMMON: &str = "format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

";
const PRINT: &str = "name: print
ID: 5
COMMON\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;
\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;

print fmt: \"%ps: %s\", (void *)REC->ip, REC->buf
";
const KVM_MMIO: &str = "name: kvm_mmio
ID: 38
COMMON\tfield:u32 type;\toffset:8;\tsize:4;\tsigned:0;
\tfield:u32 len;\toffset:12;\tsize:4;\tsigned:0;
\tfield:u64 gpa;\toffset:16;\tsize:8;\tsigned:0;
\tfield:u64 val;\toffset:24;\tsize:8;\tsigned:0;

print fmt: \"mmio %s len %u gpa 0x%llx val 0x%llx\", __print_symbolic(REC->type, { 0, \"unsatisfied-read\" }, { 1, \"read\" }, { 2, \"write\" }), REC->len, REC->gpa, REC->val
";
const KVM_EXIT: &str = "name: kvm_exit
ID: 103
COMMON\tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;
\tfield:unsigned long guest_rip;\toffset:16;\tsize:8;\tsigned:0;
\tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;

print fmt: \"reason %s%s%s rip 0x%lx\", (REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, { 48, \"EPT_VIOLATION\" }, { 49, \"EPT_MISCONFIG\" }) : __print_symbolic(REC->exit_reason, { 0x040 + 14, \"PF excp\" }, { 0x60, \"interrupt\" }, { 0x78, \"hlt\" }, { 0x7b, \"io\" }, { 0x400, \"npf\" }), (REC->isa == 1 && REC->exit_reason & ~0xffff) ? \" \" : \"\", (REC->isa == 1) ? __print_flags(REC->exit_reason & ~0xffff, \" \", { 0x80000000, \"FAILED_VMENTRY\" }) : \"\", REC->guest_rip
";
const KVM_EMULATE_INSN: &str = "name: kvm_emulate_insn
ID: 36
COMMON\tfield:__u64 rip;\toffset:8;\tsize:8;\tsigned:0;

print fmt: \"rip %llx\", REC->rip
";
const KVM_FPU: &str = "name: kvm_fpu
ID: 37
COMMON\tfield:u32 load;\toffset:8;\tsize:4;\tsigned:0;

print fmt: \"%s\", __print_symbolic(REC->load, {0, \"unload\"}, {1, \"load\"})
";
const KVM_USERSPACE_EXIT: &str = "name: kvm_userspace_exit
ID: 42
COMMON\tfield:__u32 reason;\toffset:8;\tsize:4;\tsigned:0;
\tfield:int errno;\toffset:12;\tsize:4;\tsigned:1;

print fmt: \"reason %s (%d)\", REC->errno < 0 ? (REC->errno == -4 ? \"restart\" : \"error\") : __print_symbolic(REC->reason, { 2, \"KVM_EXIT_\" \"IO\" }, { 5, \"KVM_EXIT_\" \"HLT\" }, { 6, \"KVM_EXIT_\" \"MMIO\" }), REC->errno < 0 ? -REC->errno : REC->reason
";
const SCHED_WAKEUP: &str = "name: sched_wakeup
ID: 374
COMMON\tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:int target_cpu;\toffset:32;\tsize:4;\tsigned:1;

print fmt: \"comm=%s pid=%d prio=%d target_cpu=%03d\", REC->comm, REC->pid, REC->prio, REC->target_cpu
";
const SCHED_SWITCH: &str = "name: sched_switch
ID: 372
COMMON\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;
\tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;
\tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;
\tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;
\tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;
\tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;

print fmt: \"prev_comm=%s prev_pid=%d prev_prio=%d prev_state=%s%s ==> next_comm=%s next_pid=%d next_prio=%d\", REC->prev_comm, REC->prev_pid, REC->prev_prio, (REC->prev_state & ((((0x00000000 | 0x00000001 | 0x00000002 | 0x00000004 | 0x00000008 | 0x00000010 | 0x00000020 | 0x00000040) + 1) << 1) - 1)) ? __print_flags(REC->prev_state & ((((0x00000000 | 0x00000001 | 0x00000002 | 0x00000004 | 0x00000008 | 0x00000010 | 0x00000020 | 0x00000040) + 1) << 1) - 1), \"|\", { 0x00000001, \"S\" }, { 0x00000002, \"D\" }, { 0x00000080, \"I\" }) : \"R\", REC->prev_state & (((0x00000000 | 0x00000001) + 1) << 1) ? \"+\" : \"\", REC->next_comm, REC->next_pid, REC->next_prio
";
/// Format with fields of the shapes that the other formats lack.
const ODD: &str = "name: odd
ID: 999
COMMON\tfield:__data_loc char[] name;\toffset:8;\tsize:4;\tsigned:0;
\tfield:__rel_loc u16[] list;\toffset:12;\tsize:4;\tsigned:0;
\tfield:bool flag;\toffset:16;\tsize:1;\tsigned:0;
\tfield:s8 small;\toffset:17;\tsize:1;\tsigned:1;
\tfield:short pair[2];\toffset:18;\tsize:4;\tsigned:1;
\tfield:const void * ptr;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned int mode;\toffset:32;\tsize:4;\tsigned:0;

print fmt: \"%s %s %d %d %s %p %s\", __get_str(name), __print_array(__get_dynamic_array(list), 2, 2), REC->flag, REC->small, __print_array(REC->pair, 2, 2), REC->ptr, __print_symbolic(REC->mode, { MODE_OF_THE_KERNEL, \"A\" })
";

/// Format of `kvm_write_tsc_offset` of Linux 6.1, which [`FORMATS`] does not have.
pub const KVM_WRITE_TSC_OFFSET: &str = "name: kvm_write_tsc_offset
ID: 92
COMMON\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;
\tfield:__u64 previous_tsc_offset;\toffset:16;\tsize:8;\tsigned:0;
\tfield:__u64 next_tsc_offset;\toffset:24;\tsize:8;\tsigned:0;

print fmt: \"vcpu=%u prev=%llu next=%llu\", REC->vcpu_id, REC->previous_tsc_offset, REC->next_tsc_offset
";
pub const KVM_WRITE_TSC_OFFSET_ID: u16 = 92;

/// Whether the kernel counted a lost event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted(pub bool);

/// A page of the ring buffer.
#[derive(Default)]
pub struct Page {
    time: u64,
    data: Vec<u8>,
    flags: u64,
}

impl Page {
    /// Begins a page with this timestamp.
    pub fn at(time: u64) -> Page {
        Page { time, data: Vec::new(), flags: 0 }
    }

    /// Marks that events before this page were overwritten. The page also stores their number if `stored`.
    pub fn missed(mut self, stored: bool) -> Page {
        // In the kernel, `1 << 31` is a negative number, so all upper bits are set.
        self.flags = u64::MAX << 31 | if stored { 1 << 30 } else { 0 };
        self
    }

    /// Appends an event of a thread, `after` ticks after the previous event.
    pub fn event(self, after: u32, id: u16, tid: u32, payload: &[u8]) -> Page {
        self.flagged(after, id.into(), tid, payload)
    }

    /// Appends an event like [`event`](Self::event). In `id`, the bits above the event's id contain the
    /// event's flags.
    fn flagged(mut self, after: u32, id: u32, tid: u32, payload: &[u8]) -> Page {
        let len = (8 + payload.len()).next_multiple_of(4);
        assert!(len <= 28 * 4 && after < 1 << 27);
        let head = (len as u32 / 4) | after << 5;
        self.data.extend(head.to_le_bytes());
        self.data.extend(id.to_le_bytes());
        self.data.extend(tid.to_le_bytes());
        self.data.extend(payload);
        self.data.resize(self.data.len().next_multiple_of(4), 0);
        self
    }

    /// Appends a word of any content.
    pub fn word(mut self, word: u32) -> Page {
        self.data.extend(word.to_le_bytes());
        self
    }

    /// Makes pages of these events. The events are in order. Each event has a time, an id, a thread and a
    /// payload.
    pub fn all<I: Into<u32> + Copy>(events: &[(u64, I, u32, Vec<u8>)]) -> Vec<Page> {
        Page::all_but(events, |_| None)
    }

    /// Makes pages of events without the lost events. `lost` takes an event's index, and returns `None` if
    /// the event is kept. For a lost event, [`Counted`] says whether the page after the gap counts the event
    /// as lost.
    pub fn all_but<I: Into<u32> + Copy>(
        events: &[(u64, I, u32, Vec<u8>)],
        mut lost: impl FnMut(usize) -> Option<Counted>,
    ) -> Vec<Page> {
        let mut pages: Vec<Page> = Vec::new();
        let (mut last, mut has_gap) = (0, false);
        for (number, (time, id, tid, payload)) in events.iter().enumerate() {
            if let Some(Counted(is_counted)) = lost(number) {
                has_gap |= is_counted;
                continue;
            }
            // Besides its events, a page has room for the page's header, the header of the next record, and
            // the number of lost events at the end.
            let fits = |page: &Page| page.data.len() + payload.len() + 16 + 16 + 8 <= 4096;
            let gap = std::mem::take(&mut has_gap);
            match pages.pop_if(|page| !gap && fits(page)) {
                Some(page) => {
                    pages.push(page.flagged((time - last) as u32, (*id).into(), *tid, payload));
                }
                None => {
                    let page = Page::at(*time).flagged(0, (*id).into(), *tid, payload);
                    pages.push(if gap { page.missed(true) } else { page });
                }
            }
            last = *time;
        }
        pages
    }

    pub fn mmio(self, after: u32, tid: u32, value: u64) -> Page {
        self.event(after, KVM_MMIO_ID, tid, &mmio(value))
    }

    /// Appends a switch from thread `from`, which has the state `state`, to thread `to`.
    pub fn switch(self, after: u32, from: (u32, &str), state: i64, to: (u32, &str)) -> Page {
        self.event(after, SCHED_SWITCH_ID, from.0, &switch(from, state, to))
    }

    /// Returns the page's bytes, with the number of lost events after the data.
    pub fn bytes(&self, page_size: usize, lost: u64) -> Vec<u8> {
        let mut bytes = self.time.to_le_bytes().to_vec();
        bytes.extend((self.data.len() as u64 | self.flags).to_le_bytes());
        bytes.extend(&self.data);
        bytes.extend(lost.to_le_bytes());
        assert!(bytes.len() <= page_size);
        bytes.resize(page_size, 0);
        bytes
    }
}

/// Returns the payload of an event `kvm_mmio` that is a write.
pub fn mmio(value: u64) -> Vec<u8> {
    let mut payload = [2u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
    payload.extend(0xd000_0000u64.to_le_bytes());
    payload.extend(value.to_le_bytes());
    payload
}

/// Returns the payload of an event `sched_switch`.
pub fn switch(from: (u32, &str), state: i64, to: (u32, &str)) -> Vec<u8> {
    let mut payload = comm(from.1);
    payload.extend([from.0.to_le_bytes(), 120u32.to_le_bytes()].concat());
    payload.extend(state.to_le_bytes());
    payload.extend(comm(to.1));
    payload.extend([to.0.to_le_bytes(), 120u32.to_le_bytes()].concat());
    payload
}

/// Returns the payload of an event `sched_wakeup`.
pub fn wakeup(tid: u32, name: &str) -> Vec<u8> {
    [comm(name), [tid, 120, 0].map(u32::to_le_bytes).concat()].concat()
}

/// Returns the payload of an event `task_newtask`.
pub fn newtask(tid: u32, name: &str, flags: u64) -> Vec<u8> {
    [&tid.to_le_bytes()[..], &comm(name), &[0; 4], &flags.to_le_bytes()].concat()
}

/// Returns the payload of an event `signal_deliver`.
pub fn delivered(signal: u32) -> Vec<u8> {
    [signal, 0, 0].map(u32::to_le_bytes).concat()
}

/// Returns the payload of an event `signal_generate` to a process.
pub fn generated(signal: u32, (tid, name): (u32, &str), result: u32) -> Vec<u8> {
    let rest = [tid, 1, result].map(u32::to_le_bytes).concat();
    [&signal.to_le_bytes()[..], &comm(name), &rest].concat()
}

fn comm(name: &str) -> Vec<u8> {
    let mut comm = name.as_bytes().to_vec();
    comm.resize(16, 0);
    comm
}

/// Contents of a file, before it is written.
#[derive(Clone)]
pub struct TraceDat {
    pub clock: String,
    pub page_size: usize,
    pub comms: String,
    pub formats: Vec<(String, String)>,
    /// Pages of each CPU.
    pub cpus: Vec<Vec<u8>>,
    /// Pages of each CPU in the buffer `cpus`, which records the scheduling of all threads. The file has no
    /// such buffer if this list is empty.
    pub all: Vec<Vec<u8>>,
    /// Further options, besides those that describe the file's sections.
    pub options: Vec<(u16, Vec<u8>)>,
    /// Lines of the texts to which events refer by address.
    pub printk: String,
    /// Whether a file of version 7 has the section of the kernel's symbols. trace-cmd converts no file
    /// without this section.
    pub has_kallsyms: bool,
    /// Whether a file of version 6 has the form that trace-cmd 2 wrote: in this form, the clock's text comes
    /// after the table of CPUs.
    pub is_of_trace_cmd_2: bool,
}

impl TraceDat {
    pub fn new(clock: &str) -> TraceDat {
        let formats = FORMATS.map(|(s, text)| (s.to_owned(), text.replace("COMMON", COMMON)));
        TraceDat {
            clock: clock.into(),
            page_size: 4096,
            comms: "77 vcpu0\n5 kworker/1:2 x\n".into(),
            formats: formats.to_vec(),
            cpus: Vec::new(),
            all: Vec::new(),
            options: Vec::new(),
            printk: String::new(),
            has_kallsyms: false,
            is_of_trace_cmd_2: false,
        }
    }

    /// Replaces the descriptions of events with those of a recording by perf.
    pub fn of_perf(mut self) -> TraceDat {
        let texts = [PERF_SWITCH_OUT, PERF_SWITCH_IN];
        self.formats = texts.map(|text| ("perf".into(), text.replace("COMMON", COMMON))).into();
        self
    }

    /// Adds the descriptions of the events in the buffer `cpus`.
    pub fn with_scheduling(mut self) -> TraceDat {
        let format = |(s, text): (&str, &str)| (s.to_owned(), text.replace("COMMON", COMMON));
        self.formats.extend(SCHEDULING.map(format));
        self.formats.sort_by(|a, b| a.0.cmp(&b.0));
        self
    }

    /// Adds a CPU with these pages to the buffer `cpus`.
    pub fn cpu_of_all(mut self, pages: &[Page]) -> TraceDat {
        let pages = pages.iter().flat_map(|page| page.bytes(self.page_size, 9));
        self.all.push(pages.collect());
        self
    }

    /// Leaves out the description of an event.
    pub fn without(mut self, name: &str) -> TraceDat {
        self.formats.retain(|(_, text)| !text.starts_with(&format!("name: {name}\n")));
        self
    }

    /// Adds the description of `sched_wakeup_new`, which has the fields of `sched_wakeup`.
    pub fn with_wakeup_new(mut self) -> TraceDat {
        let text = SCHED_WAKEUP.replace("wakeup", "wakeup_new").replace("COMMON", COMMON);
        let text = text.replace("ID: 374", &format!("ID: {SCHED_WAKEUP_NEW_ID}"));
        let after = self.formats.iter().rposition(|(system, _)| system == "sched").unwrap();
        self.formats.insert(after + 1, ("sched".into(), text));
        self
    }

    /// Describes another event.
    pub fn format(mut self, system: &str, text: &str) -> TraceDat {
        let after = self.formats.iter().rposition(|(of, _)| of == system);
        let at = after.map_or(self.formats.len(), |after| after + 1);
        self.formats.insert(at, (system.into(), text.replace("COMMON", COMMON)));
        self
    }

    /// Adds a CPU with these pages.
    pub fn cpu(mut self, pages: &[Page]) -> TraceDat {
        let pages = pages.iter().flat_map(|page| page.bytes(self.page_size, 9));
        self.cpus.push(pages.collect());
        self
    }

    pub fn option(mut self, option: (u16, Vec<u8>)) -> TraceDat {
        self.options.push(option);
        self
    }

    fn header_info(&self) -> Vec<u8> {
        let data = self.page_size - 16;
        let page = format!(
            "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
             \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
             \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
             \tfield: char data;\toffset:16;\tsize:{data};\tsigned:0;\n"
        );
        let event = "# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 \
                     bits\n\tarray       :   32 bits\n\n\tpadding     : type == 29\n\ttime_extend \
                     : type == 30\n\ttime_stamp : type == 31\n\tdata max type_len  == 28\n";
        [
            b"header_page\0".to_vec(),
            sized(page.as_bytes()),
            b"header_event\0".to_vec(),
            sized(event.as_bytes()),
        ]
        .concat()
    }

    /// Returns the formats of ftrace's own events, and the formats of all other systems' events.
    fn event_formats(&self) -> (Vec<u8>, Vec<u8>) {
        let of = |system: &str| {
            let texts = self.formats.iter().filter(|(s, _)| s == system);
            let texts: Vec<Vec<u8>> = texts.map(|(_, text)| sized(text.as_bytes())).collect();
            [&(texts.len() as u32).to_le_bytes()[..], &texts.concat()].concat()
        };
        let mut systems: Vec<&str> = self.formats.iter().map(|(s, _)| s.as_str()).collect();
        systems.dedup();
        systems.retain(|s| *s != "ftrace");
        let mut all = (systems.len() as u32).to_le_bytes().to_vec();
        for system in systems {
            all.extend([system.as_bytes(), b"\0", &of(system)].concat());
        }
        (of("ftrace"), all)
    }

    /// Returns the descriptions before the pages, as a guest sends them.
    pub fn head(&self) -> Vec<u8> {
        let mut head = begin("7", self.page_size);
        head.extend([&b"none\0\0"[..], &[0; 8]].concat());
        let (ftrace, events) = self.event_formats();
        for (id, content) in
            [(16, self.header_info()), (17, ftrace), (18, events), (20, vec![0; 4])]
        {
            head.extend(section(id, &content));
        }
        head
    }

    /// Returns a file of version 7, with its options before the pages.
    pub fn version_7(&self) -> Vec<u8> {
        let mut file = begin("7", self.page_size);
        file.extend(b"none\0\0");
        let options_at = file.len();
        file.extend([0; 8]);
        let (ftrace, events) = self.event_formats();
        let mut options = Vec::new();
        for (id, content) in [
            (16, self.header_info()),
            (17, ftrace),
            (18, events),
            (20, self.printk_section()),
            (21, sized(self.comms.as_bytes())),
            (19, 0u32.to_le_bytes().to_vec()),
        ]
        .into_iter()
        .filter(|(id, _)| *id != 19 || self.has_kallsyms)
        {
            options.push((id, (file.len() as u64).to_le_bytes().to_vec()));
            file.extend(section(id, &content));
        }
        options.push((8, (self.cpus.len() as u32).to_le_bytes().to_vec()));
        options.extend(self.options.iter().cloned());
        // A buffer's option has a fixed length, so the place of the pages is known.
        let list = |name: &str, cpus: &[Vec<u8>], at: u64| {
            let mut option = at.to_le_bytes().to_vec();
            option.extend([name.as_bytes(), b"\0", self.clock.as_bytes(), b"\0"].concat());
            option.extend((self.page_size as u32).to_le_bytes());
            option.extend((cpus.len() as u32).to_le_bytes());
            let mut place = (at + 16).next_multiple_of(self.page_size as u64);
            for (cpu, pages) in cpus.iter().enumerate() {
                option.extend((cpu as u32).to_le_bytes());
                option.extend(place.to_le_bytes());
                option.extend((pages.len() as u64).to_le_bytes());
                place += pages.len() as u64;
            }
            (option, place)
        };
        let all = |at: u64| {
            let mut all = options.clone();
            let (first, end) = list("", &self.cpus, at);
            all.push((3, first));
            if !self.all.is_empty() {
                all.push((3, list("cpus", &self.all, end).0));
            }
            all.push((0, 0u64.to_le_bytes().to_vec()));
            let option = |(id, data): &(u16, Vec<u8>)| {
                let len = (data.len() as u32).to_le_bytes();
                [&id.to_le_bytes()[..], &len, data].concat()
            };
            section(0, &all.iter().flat_map(option).collect::<Vec<u8>>())
        };
        let here = file.len() as u64;
        file[options_at..options_at + 8].copy_from_slice(&here.to_le_bytes());
        let buffer = here + all(0).len() as u64;
        file.extend(all(buffer));
        self.add_section(&mut file, &self.cpus);
        if !self.all.is_empty() {
            self.add_section(&mut file, &self.all);
        }
        file
    }

    /// Appends the section of a buffer's pages.
    fn add_section(&self, file: &mut Vec<u8>, cpus: &[Vec<u8>]) {
        let at = file.len();
        let pages = (at + 16).next_multiple_of(self.page_size);
        let data = cpus.concat();
        let size = (pages + data.len() - at - 16) as u64;
        file.extend([&section(3, &[])[..8], &size.to_le_bytes()].concat());
        file.resize(pages, 0);
        file.extend(data);
    }

    /// Returns a file of version 7 that claims that the bytes of its CPUs are compressed.
    pub fn version_7_of_zstd(&self) -> Vec<u8> {
        let mut file = self.version_7();
        file[18..22].copy_from_slice(b"zstd");
        // The section of the pages ends with the file.
        let is_buffer = |at: &usize| {
            let size = (file.len() - at - 16) as u64;
            file[*at..].starts_with(&[&section(3, &[])[..8], &size.to_le_bytes()].concat())
        };
        let at = (0..file.len() - 16).find(is_buffer).unwrap();
        file[at + 2] = 1;
        file
    }

    /// Returns a file of version 6.
    pub fn version_6(&self) -> Vec<u8> {
        let (ftrace, events) = self.event_formats();
        let mut file = begin("6", self.page_size);
        file.extend([self.header_info(), ftrace, events].concat());
        file.extend([0; 4]);
        file.extend(self.printk_section());
        file.extend(sized(self.comms.as_bytes()));
        file.extend((self.cpus.len() as u32).to_le_bytes());
        file.extend(b"options  \0");
        let clock = if self.is_of_trace_cmd_2 { Vec::new() } else { self.clocks() };
        for (id, data) in self.options.iter().cloned().chain([(4, clock)]) {
            let len = (data.len() as u32).to_le_bytes();
            file.extend([&id.to_le_bytes()[..], &len, &data].concat());
        }
        file.extend(0u16.to_le_bytes());
        self.add_pages(&mut file);
        file
    }

    fn clocks(&self) -> Vec<u8> {
        format!("local global [{}] mono\n\0", self.clock).into_bytes()
    }

    fn printk_section(&self) -> Vec<u8> {
        [&(self.printk.len() as u32).to_le_bytes()[..], self.printk.as_bytes()].concat()
    }

    /// Appends the table of all CPUs' pages, in the form of version 6, and the pages.
    fn add_pages(&self, file: &mut Vec<u8>) {
        file.extend(b"flyrecord\0");
        let clocks = if self.is_of_trace_cmd_2 { sized(&self.clocks()) } else { Vec::new() };
        let end = file.len() + 16 * self.cpus.len() + clocks.len();
        let begin = end.next_multiple_of(self.page_size);
        let mut place = begin as u64;
        for pages in &self.cpus {
            file.extend(place.to_le_bytes());
            file.extend((pages.len() as u64).to_le_bytes());
            place += pages.len() as u64;
        }
        file.extend(clocks);
        file.resize(begin, 0);
        file.extend(self.cpus.concat());
    }

    /// Returns a file of version 6 with a further instance, which contains the buffers of another trace.
    pub fn version_6_with(&self, instance: &TraceDat) -> Vec<u8> {
        assert_eq!(self.cpus.len(), instance.cpus.len());
        let option = |at: u64| (3, [&at.to_le_bytes()[..], b"instance\0"].concat());
        let with = |at| self.clone().option(option(at)).version_6();
        let at = with(0).len() as u64;
        let mut file = with(at);
        instance.add_pages(&mut file);
        file
    }
}

fn begin(version: &str, page_size: usize) -> Vec<u8> {
    let mut file = b"\x17\x08\x44tracing".to_vec();
    file.extend([version.as_bytes(), b"\0", &[0, 8]].concat());
    file.extend((page_size as u32).to_le_bytes());
    file
}

fn sized(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn section(id: u16, content: &[u8]) -> Vec<u8> {
    let mut section = id.to_le_bytes().to_vec();
    section.extend([0; 6]);
    section.extend(sized(content));
    section
}

/// Returns the option GUEST.
pub fn guest(name: &str, trace: u64) -> (u16, Vec<u8>) {
    let cpus = [1u32, 0, 77].map(u32::to_le_bytes).concat();
    (13, [name.as_bytes(), b"\0", &trace.to_le_bytes(), &cpus].concat())
}

/// Returns the option TIME_SHIFT with one correction for one CPU.
pub fn time_shift(peer: u64, offset: i64, ratio: u64, fraction: u64) -> (u16, Vec<u8>) {
    time_shifts(peer, 0, &[&[[0, offset as u64, ratio, fraction]]])
}

/// Returns the option TIME_SHIFT with these corrections of each CPU: time, offset, ratio, and number of the
/// ratio's fraction bits.
pub fn time_shifts(peer: u64, flags: u32, cpus: &[&[[u64; 4]]]) -> (u16, Vec<u8>) {
    let list = |corrections: &[[u64; 4]], n: usize| -> Vec<u8> {
        corrections.iter().flat_map(|correction| correction[n].to_le_bytes()).collect()
    };
    let mut data = peer.to_le_bytes().to_vec();
    data.extend([flags, cpus.len() as u32].map(u32::to_le_bytes).concat());
    for corrections in cpus {
        data.extend((corrections.len() as u32).to_le_bytes());
        (0..3).for_each(|n| data.extend(list(corrections, n)));
    }
    cpus.iter().for_each(|corrections| data.extend(list(corrections, 3)));
    (12, data)
}

pub fn trace_id(id: u64) -> (u16, Vec<u8>) {
    (11, id.to_le_bytes().to_vec())
}

/// Returns the option VERSION as in recordings of hypertrace.
pub fn recorded(boot: &str, clock_bound_ns: u64) -> (u16, Vec<u8>) {
    let more = format!("source=perf; boot_id={boot}; clock_bound_ns={clock_bound_ns}");
    (9, format!("hypertrace 0.1.0; {more}\0").into_bytes())
}

/// Returns the option VERSION with the time that a hypervisor took during the recording.
pub fn recorded_with_steal(boot: &str, stolen_ms: u64) -> (u16, Vec<u8>) {
    recorded_with_steals(boot, stolen_ms, "")
}

/// Returns the option VERSION with the stolen time. `steals` lists the intervals during which the stolen time
/// rose, as `FROM-TO:MS`, in ticks.
pub fn recorded_with_steals(boot: &str, stolen_ms: u64, steals: &str) -> (u16, Vec<u8>) {
    let more = format!("source=tracefs; boot_id={boot}; stolen_ms={stolen_ms}; steals={steals}");
    (9, format!("hypertrace 0.1.0; {more}\0").into_bytes())
}

/// Returns the option VERSION with the TSCs that KVM gave to VMs: `PID-FD:OFFSET:RATIO:BITS:FROM:UNTIL`, in
/// ticks.
pub fn recorded_with_tscs(boot: &str, tscs: &str) -> (u16, Vec<u8>) {
    let more = format!("source=tracefs; boot_id={boot}; tscs={tscs}");
    (9, format!("hypertrace 0.1.0; {more}\0").into_bytes())
}

/// Returns the option VERSION with the threads that were in the kernel's filter when the recording began.
pub fn recorded_with_threads(boot: &str, threads: &str) -> (u16, Vec<u8>) {
    let more = format!("source=tracefs; boot_id={boot}; threads={threads}");
    (9, format!("hypertrace 0.1.0; {more}\0").into_bytes())
}

/// Returns the option VERSION with the name of the buffer in which the scheduling of all threads is recorded:
/// `""` if there is only one buffer.
pub fn recorded_with_all(boot: &str, threads: Option<&str>, all: &str) -> (u16, Vec<u8>) {
    let threads = threads.map_or(String::new(), |threads| format!("; threads={threads}"));
    let more = format!("source=tracefs; boot_id={boot}{threads}; all={all}");
    (9, format!("hypertrace 0.1.0; {more}\0").into_bytes())
}

/// Returns the option CPUSTAT of a CPU in a buffer, with the number of its lost events.
pub fn lost(buffer: &str, cpu: usize, lost: usize) -> (u16, Vec<u8>) {
    let buffer = if buffer.is_empty() { String::new() } else { format!("Buffer: {buffer}\n") };
    (2, format!("{buffer}CPU: {cpu}\noverrun: {lost}\n\0").into_bytes())
}

pub fn tsc2nsec(mult: u32, shift: u32) -> (u16, Vec<u8>) {
    (14, [&mult.to_le_bytes()[..], &shift.to_le_bytes(), &[0; 8]].concat())
}
