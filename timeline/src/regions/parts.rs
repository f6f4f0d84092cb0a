// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The parts of a thread's time, and sums over them.

use super::causes::{CauseNumber, Wait, Waits};
use super::steps::PathStep;
use serde::{Serialize, Serializer};

/// Parts of a thread's time, in the order of all outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Part {
    /// A thread of a program has a CPU. The part includes system calls. The program runs on the host, or in a
    /// guest whose kernel was recorded.
    OnCpu,
    /// The vCPU ran the guest. If the kernel does not trace entries and exits, the part includes KVM's own
    /// time. In a region of a guest's thread, the vCPU ran that thread.
    Guest,
    /// The host handled an interrupt before KVM traced the exit.
    HostInterrupt,
    /// The thread was in the host's kernel for an exit of the guest, or on the way to the VMM or back.
    Kernel,
    /// The thread was in the VMM: its code and its system calls.
    Vmm,
    /// The guest's thread could have run, but a thread of the host was running on the CPU that the vCPU's
    /// thread needed.
    Stolen,
    /// A guest's thread was ready to run, but another thread of the guest had the CPU.
    Behind,
    /// The thread was ready to run, but another thread had the CPU. For a guest's thread on a known vCPU: no
    /// thread had the CPU, or it is not known which thread had the CPU.
    Runnable,
    /// The guest's thread could have run, but its vCPU had halted and was not running again yet.
    Halted,
    /// The thread was asleep until it was woken.
    Blocked,
    /// The thread had no CPU, and it is not known whether the thread was asleep or ready.
    OffCpu,
    /// No thread was in the span. Only a span that is entered several times has this part.
    Idle,
    /// The time is not proven to be of any other part.
    Unknown,
}

/// Number of parts.
pub const PARTS: usize = 13;

/// Names of each part: the part's key in JSON, CSV and OTLP, the key of the part's time, and the label for
/// people.
const NAMES: [[&str; 3]; PARTS] = [
    ["on_cpu", "on_cpu_ns", "on-CPU"],
    ["guest", "guest_ns", "guest"],
    ["host_interrupt", "host_interrupt_ns", "host interrupt"],
    ["kernel", "kernel_ns", "kernel"],
    ["vmm", "vmm_ns", "VMM"],
    ["stolen", "stolen_ns", "stolen by the host"],
    ["behind", "behind_ns", "behind guest threads"],
    ["runnable", "runnable_ns", "waiting for a CPU"],
    ["halted", "halted_ns", "vCPU halted"],
    ["blocked", "blocked_ns", "blocked"],
    ["off_cpu", "off_cpu_ns", "off-CPU"],
    ["idle", "idle_ns", "idle"],
    ["unknown", "unknown_ns", "unknown"],
];

impl Part {
    /// All parts.
    pub const ALL: [Part; PARTS] = [
        Part::OnCpu,
        Part::Guest,
        Part::HostInterrupt,
        Part::Kernel,
        Part::Vmm,
        Part::Stolen,
        Part::Behind,
        Part::Runnable,
        Part::Halted,
        Part::Blocked,
        Part::OffCpu,
        Part::Idle,
        Part::Unknown,
    ];

    /// Returns the part's name in JSON, CSV and OTLP, such as `on_cpu`. The name never changes.
    pub fn key(self) -> &'static str {
        NAMES[self as usize][0]
    }

    /// Returns the part's name for a time in nanoseconds, such as `on_cpu_ns`.
    pub const fn key_ns(self) -> &'static str {
        NAMES[self as usize][1]
    }

    /// Returns the part's name for people, such as `on-CPU`.
    pub fn label(self) -> &'static str {
        NAMES[self as usize][2]
    }

    /// Returns whether the thread has a CPU in this part.
    pub fn is_on_cpu(self) -> bool {
        use Part::{Guest, HostInterrupt, Kernel, OnCpu, Vmm};
        matches!(self, OnCpu | Guest | HostInterrupt | Kernel | Vmm)
    }

    /// Returns whether the thread waits in this part.
    pub fn is_wait(self) -> bool {
        self.has_causes() || matches!(self, Part::Halted | Part::OffCpu)
    }

    /// Returns whether the part is a wait that has causes.
    pub fn has_causes(self) -> bool {
        matches!(self, Part::Stolen | Part::Behind | Part::Runnable | Part::Blocked)
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}

/// Time in each part. In [`Sample`](super::Sample), [`Group`](super::Group) and
/// [`Breakdown`](super::Breakdown), the times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(pub [u64; PARTS]);

impl Times {
    /// Returns the time in a part.
    pub fn get(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// Iterates over all parts and their times.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Part, u64)> {
        Part::ALL.into_iter().zip(self.0)
    }

    /// Returns the time in all parts.
    pub fn total(&self) -> u64 {
        self.0.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &Times) -> Times {
        Times(std::array::from_fn(|part| self.0[part] - before.0[part]))
    }
}

impl Serialize for Times {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(part, ns)| (part.key_ns(), ns)))
    }
}

/// Number of reasons of exits that have a name.
pub const REASONS: usize = 16;

/// Id of a reason. 0 stands for a reason that is not known.
pub type Reason = u8;

/// Exits for one reason, each until the guest runs again. Times are in units of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Number of exits that began.
    pub count: u64,
    /// Time in the kernel for these exits.
    pub kernel: u64,
    /// Time in the VMM for these exits.
    pub vmm: u64,
    /// Time in which the thread waited during these exits, for a CPU or for anything else.
    pub waits: u64,
}

impl Exits {
    /// Returns what was added since `before`.
    pub(super) fn since(&self, before: &Exits) -> Exits {
        Exits {
            count: self.count.saturating_sub(before.count),
            kernel: self.kernel.saturating_sub(before.kernel),
            vmm: self.vmm.saturating_sub(before.vmm),
            waits: self.waits.saturating_sub(before.waits),
        }
    }

    /// Adds the exits of another region.
    pub(super) fn add(&mut self, other: &Exits) {
        self.count += other.count;
        self.kernel = self.kernel.saturating_add(other.kernel);
        self.vmm = self.vmm.saturating_add(other.vmm);
        self.waits = self.waits.saturating_add(other.waits);
    }
}

/// Sums of a thread since its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Times by part.
    pub times: Times,
    /// Exits by reason. The exits' times in the kernel add up to the part *kernel*, and their times in the
    /// VMM add up to the part *VMM*.
    pub exits: [Exits; REASONS],
    /// Times of waits by cause. Only waits whose cause was searched for are included.
    pub(super) waits: Waits,
    /// CPU that the thread had last, if known. `moves` is the number of changes of `cpu`.
    cpu: Option<u16>,
    moves: u32,
}

/// How the time of a region divides: the thread's sums at the region's end minus the sums at the region's
/// begin.
#[derive(Clone, Debug, Default)]
pub(super) struct Divided {
    pub times: Times,
    /// CPU that the thread had, if the thread had only one.
    pub cpu: Option<u16>,
    pub detail: Detail,
}

/// The exits of a region by reason, its waits by cause, and its path.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    pub exits: Box<[(Reason, Exits)]>,
    /// Times of waits whose cause was searched for.
    pub waits: Box<[(Wait, u64)]>,
    /// Critical path of the region, if it is wanted.
    pub path: Box<[PathStep]>,
}

impl Sums {
    /// Returns what was added since `before`.
    pub(super) fn since(&self, before: &Sums) -> Divided {
        let exits = (0..).zip(&self.exits).zip(&before.exits);
        let exits = exits.map(|((reason, now), before)| (reason, now.since(before)));
        let exits = exits.filter(|(_, exits)| *exits != Exits::default()).collect();
        Divided {
            times: self.times.since(&before.times),
            cpu: self.cpu.filter(|_| self.moves == before.moves),
            detail: Detail { exits, waits: self.waits.since(&before.waits), ..Detail::default() },
        }
    }

    /// Adds an interval.
    pub fn add(&mut self, interval: &Interval) {
        let time = interval.length();
        self.times.0[interval.part as usize] += time;
        let exits = &mut self.exits[usize::from(interval.reason)];
        match interval.part {
            Part::Kernel => exits.kernel += time,
            Part::Vmm => exits.vmm += time,
            part if part.is_wait() && interval.reason != 0 => exits.waits += time,
            _ => {}
        }
        self.waits.add(interval);
        let cpu = match (interval.part, interval.ended_by.map(|by| by.stream)) {
            // Blocked and off-CPU time ends with a wake-up, which may be on any CPU.
            (Part::Blocked | Part::OffCpu, _) => return,
            (Part::Unknown, _) | (_, None) => None,
            (_, Some(Stream::Kernel { cpu, .. })) => Some(cpu),
            // Only a switch moves the thread to another CPU.
            (_, Some(Stream::Thread(_) | Stream::Client(_))) => return,
        };
        if self.cpu != cpu {
            (self.cpu, self.moves) = (cpu, self.moves.wrapping_add(1));
        }
    }

    /// Forgets which CPU the thread had, because the intervals name CPUs of several machines.
    pub(super) fn forget_cpu(&mut self) {
        (self.cpu, self.moves) = (None, self.moves.wrapping_add(1));
    }

    /// Forgets the causes of waits, because no region is open.
    pub(super) fn forget_waits(&mut self) {
        self.waits = Waits::default();
    }
}

/// An interval of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Beginning of the interval in units of the timeline.
    pub from: i64,
    /// End of the interval in units of the timeline.
    pub to: i64,
    /// Part that says what the thread did.
    pub part: Part,
    /// Reason of the exit: an index of [`Regions::reasons`](super::Regions::reasons). Time in the kernel,
    /// time in the VMM, and waits until the guest runs again have a reason. 0 if the reason is not known or
    /// there is no exit.
    pub reason: Reason,
    /// Index of [`Regions::causes`](super::Regions::causes). If the part [has causes](Part::has_causes), the
    /// entry is the cause of the wait. If the part of a guest's thread is unknown, the entry says why.
    pub cause: CauseNumber,
    /// Event that ended the interval. The event is at the interval's end. If the end of a region or of a
    /// window cut the interval, the event is later. `None` if nothing proves what the thread did.
    pub ended_by: Option<Evidence>,
}

/// An event that proves when a part of a thread's time ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Stream in which the event was recorded.
    pub stream: Stream,
    /// Name of the event: an index of [`Regions::events`](super::Regions::events).
    pub event: u32,
}

impl Evidence {
    /// Returns the CPU whose kernel recorded the event; `None` for an event of a client or of a VMM's thread.
    pub(super) fn cpu(self) -> Option<u16> {
        match self.stream {
            Stream::Kernel { cpu, .. } => Some(cpu),
            Stream::Client(_) | Stream::Thread(_) => None,
        }
    }
}

/// A stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// A CPU of a kernel's trace.
    Kernel {
        /// Index of the trace.
        trace: u16,
        /// Id of the CPU.
        cpu: u16,
    },
    /// A client of the guest.
    Client(u32),
    /// A thread of the VMM.
    Thread(u32),
}

impl Interval {
    /// Returns the length of the interval, or 0 if its end is before its beginning.
    pub fn length(&self) -> u64 {
        between((self.from, self.to))
    }

    /// Returns the CPU of the kernel's event that ended the interval.
    pub(super) fn cpu(&self) -> Option<u16> {
        self.ended_by?.cpu()
    }

    /// Returns the part of the interval between two times.
    pub(super) fn within(&self, from: i64, to: i64) -> Interval {
        Interval { from: self.from.max(from), to: self.to.min(to), ..*self }
    }
}

/// Returns the time between two times; 0 if the second time is before the first time.
pub(super) fn between((from, to): (i64, i64)) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}
