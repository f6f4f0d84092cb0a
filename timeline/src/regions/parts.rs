// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How a host thread's time divides into parts, proven by its events.
//!
//! A thread's events are *marks*. Time counts for a part only between two marks that prove
//! it together: the first says what began, the second that nothing else came between. For
//! example, a guest's own event and the emulated store after it prove that the guest ran;
//! a guest's event and the return to the VMM do not, as the exit is missing. Then the time
//! is *unattributed*. So an event that is missing makes unattributed time, and never more of
//! another part. (Two events that are missing together, a switch away from the thread and
//! the next one back, leave no trace. The kernel reports such losses.)
//!
//! While a thread is on a CPU it is in a *mode*. Every mark that ends a mode confirms it, also
//! across the time in which the thread was switched out: that time has its own proof, the
//! switches and the wake-up.
//!
//! | mark | ends | begins |
//! |---|---|---|
//! | guest event | guest; entry¹, access¹ (as the guest's time) | guest |
//! | exit begins | guest | exit |
//! | access (`kvm_mmio`, `kvm_pio`) | exit; guest¹ | access |
//! | unload of the guest's registers | exit, access | leave |
//! | `kvm_userspace_exit` | leave; exit¹, access¹ | return |
//! | VMM event | return, VMM | VMM |
//! | VMM enters the guest | VMM | entry |
//! | load of the guest's registers | entry | guest; entry, where `kvm_entry` follows |
//! | `kvm_entry` | entry, exit, access | guest |
//!
//! ¹ Only where the kernel has no event that is more exact: see [`Exactness`].

/// Parts of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Part {
    /// In the guest; with KVM's own part where the kernel does not trace entries and exits.
    Guest,
    /// In the host's kernel, for an exit of the guest, and on the way to and from the VMM.
    Kernel,
    /// In the VMM: its code and its system calls.
    Vmm,
    /// Ready to run, but another thread had the CPU.
    Runnable,
    /// Asleep, until it was woken.
    Blocked,
    /// Off the CPU: asleep or ready, which is not known.
    Off,
    /// Not proven to be any of the others.
    Unattributed,
}

/// Number of parts.
pub const PARTS: usize = 7;

/// Time in each part, in units of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times(pub [u64; PARTS]);

impl Times {
    /// Returns the time in a part.
    pub fn get(&self, part: Part) -> u64 {
        self.0[part as usize]
    }

    /// Returns the time in all parts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &Times) -> Times {
        Times(std::array::from_fn(|part| self.0[part] - before.0[part]))
    }
}

/// A state of a thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Guest,
    Exit,
    /// The exit's access to memory or a port is known.
    Access,
    Leave,
    Return,
    Vmm,
    Entry,
}

impl Mode {
    fn part(self) -> Part {
        match self {
            Mode::Guest => Part::Guest,
            Mode::Exit | Mode::Access | Mode::Leave | Mode::Return | Mode::Entry => Part::Kernel,
            Mode::Vmm => Part::Vmm,
        }
    }
}

/// An event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The guest's own event on this thread's vCPU.
    Guest,
    /// `kvm_exit`, or `kvm_emulate_insn`.
    Exit,
    /// `kvm_mmio` or `kvm_pio`.
    Access,
    /// `kvm_fpu` with unload.
    Unload,
    /// `kvm_userspace_exit`.
    UserspaceExit,
    /// An event of the VMM, or a reference point's time in the VMM.
    Vmm,
    /// The VMM's event that it is about to enter the guest.
    Run,
    /// `kvm_fpu` with load.
    Load,
    /// `kvm_entry`.
    Entry,
    /// `sched_switch` away from the thread.
    Out(Why),
    /// `sched_switch` to the thread.
    In,
    /// `sched_wakeup` of the thread.
    Wakeup,
}

/// Reason why a thread was switched out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Another thread took the CPU.
    Preempted,
    /// It waits for something.
    Blocked,
    /// One of both.
    Unknown,
}

/// Kinds of events that the kernel's trace of a thread has at all. Where it has a kind, the
/// absence of one such event proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exactness {
    /// Beginnings of exits.
    pub exits: bool,
    /// `kvm_entry`.
    pub entries: bool,
    /// `kvm_fpu`.
    pub registers: bool,
}

/// Whether the thread has a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cpu {
    On,
    Out(Why),
    Woken,
}

/// The account of a thread: give it all marks in order of time.
#[derive(Debug)]
pub struct Account {
    exactness: Exactness,
    mode: Option<Mode>,
    cpu: Cpu,
    /// Time of the last mark of any kind; `None` before the first one.
    last: Option<i128>,
    /// Time on a CPU since the mark that began the mode: its part is not confirmed yet.
    pending: u64,
    times: Times,
}

impl Account {
    /// Makes the account of a thread whose trace has these kinds of events.
    pub fn new(exactness: Exactness) -> Account {
        Account {
            exactness,
            mode: None,
            cpu: Cpu::On,
            last: None,
            pending: 0,
            times: Times::default(),
        }
    }

    /// Takes the next mark. Marks in the guest or the VMM leave nothing pending.
    pub fn mark(&mut self, time: i128, mark: Mark) {
        if (mark, self.cpu) == (Mark::Wakeup, Cpu::On) {
            // Before it was switched out, or after a switch that is missing: the next mark shows.
            return;
        }
        let since = self.last.map_or(0, |last| u64::try_from(time - last).unwrap_or(0));
        self.last = Some(time);
        match (mark, self.cpu) {
            (Mark::Wakeup, Cpu::Out(Why::Blocked)) => self.off(Part::Blocked, since, Cpu::Woken),
            (Mark::Wakeup, Cpu::Out(Why::Unknown)) => self.off(Part::Off, since, Cpu::Woken),
            // Of a thread that is ready already: the event before it is missing.
            (Mark::Wakeup, _) => self.off(Part::Unattributed, since, Cpu::Woken),
            (Mark::Out(why), Cpu::On) => {
                self.pending += since;
                self.cpu = Cpu::Out(why);
            }
            (Mark::Out(why), _) => self.off(Part::Unattributed, since, Cpu::Out(why)),
            (Mark::In, Cpu::Woken | Cpu::Out(Why::Preempted)) => {
                self.off(Part::Runnable, since, Cpu::On);
            }
            (Mark::In, Cpu::Out(Why::Unknown)) => self.off(Part::Off, since, Cpu::On),
            (Mark::In, _) => self.off(Part::Unattributed, since, Cpu::On),
            (_, Cpu::On) => {
                self.pending += since;
                self.change(mark);
            }
            (..) => {
                self.off(Part::Unattributed, since, Cpu::On);
                self.change(mark);
            }
        }
    }

    /// Returns the time in each part so far. Time that is not confirmed yet is in none.
    pub fn times(&self) -> Times {
        self.times
    }

    fn off(&mut self, part: Part, since: u64, cpu: Cpu) {
        self.times.0[part as usize] += since;
        self.cpu = cpu;
    }

    /// Takes a mark that begins a mode, and confirms the one before.
    fn change(&mut self, mark: Mark) {
        let (ends, begins) = self.modes(mark);
        let part = match self.mode.filter(|mode| ends.contains(mode)) {
            // The guest has run on, after an unknown part of this time.
            Some(Mode::Access | Mode::Entry) if mark == Mark::Guest => Part::Guest,
            Some(mode) => mode.part(),
            None => Part::Unattributed,
        };
        self.times.0[part as usize] += std::mem::take(&mut self.pending);
        self.mode = Some(begins);
    }

    /// Returns the modes that a mark can end, and the one that it begins.
    fn modes(&self, mark: Mark) -> (&'static [Mode], Mode) {
        use Mode::*;
        let Exactness { exits, entries, registers } = self.exactness;
        match mark {
            Mark::Guest if entries => (&[Guest], Guest),
            Mark::Guest if registers => (&[Guest, Access], Guest),
            Mark::Guest => (&[Guest, Access, Entry], Guest),
            Mark::Exit => (&[Guest], Exit),
            Mark::Access if exits => (&[Exit], Access),
            Mark::Access => (&[Guest], Access),
            Mark::Unload => (&[Exit, Access], Leave),
            Mark::UserspaceExit if registers => (&[Leave], Return),
            Mark::UserspaceExit => (&[Exit, Access], Return),
            Mark::Vmm => (&[Return, Vmm], Vmm),
            Mark::Run => (&[Vmm], Entry),
            Mark::Load => (&[Entry], if entries { Entry } else { Guest }),
            Mark::Entry => (&[Entry, Exit, Access], Guest),
            Mark::Out(_) | Mark::In | Mark::Wakeup => (&[], Guest),
        }
    }
}

#[cfg(test)]
mod tests;
