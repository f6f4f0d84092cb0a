// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Translates the events of a thread to marks. The name of each kind of event is looked up once.

use super::account::{Exactness, Mark, Why};
use super::parts::{REASONS, Reason};
use crate::event::EventRef;
use crate::format;
use std::collections::HashSet;
use std::sync::Arc;

/// Names of the first reasons, by id.
const ACCESSES: [&str; 6] = ["other", "mmio write", "mmio read", "pio write", "pio read", "hlt"];
const MMIO_WRITE: Reason = 1;
const MMIO_READ: Reason = 2;
const PIO_WRITE: Reason = 3;
const PIO_READ: Reason = 4;
const HALT: Reason = 5;
/// Names that kernels use for the exit of a CPU that halts, on x86 and on AArch64.
const HALTS: [&str; 2] = ["hlt", "wfx"];
/// Maximum size of the VMM's name of a reason in bytes. The kernel's names are shorter.
const MAX_NAME: usize = 32;

/// Names of the VMM's events. `RUN` comes right before the VMM enters the guest, and `EXIT` comes right after
/// an exit.
const RUN: &str = "vcpu_run";
const EXIT: &str = "vcpu_exit";
/// State of a thread that was switched out although the thread could run. For a preempted thread, the kernel
/// sets this bit, which is above all states that the kernel reports. The state 0, `TASK_RUNNING`, has the
/// same meaning.
const PREEMPTED: i64 = 1 << 8;
/// The states that the kernel reports: `TASK_REPORT`, and the idle state above.
const REPORTED: i64 = PREEMPTED - 1;

/// `ret` of a trap in `kvm_exit`, from AArch64's asm/kvm_asm.h.
const ARM_EXCEPTION_TRAP: i64 = 2;

/// Reasons of `kvm_userspace_exit`, from linux/kvm.h.
const KVM_EXIT_IO: i64 = 2;
const KVM_EXIT_MMIO: i64 = 6;

/// Kind of a kernel's event, with the indices of the fields that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// An event that is no mark.
    Other,
    /// An event that is not KVM's. The event says about its thread only that the thread had the CPU.
    Elsewhere,
    Exit {
        reason: usize,
    },
    /// An exit on AArch64. `ret` says whether the exit is a trap. If the exit is a trap, the trap's class is
    /// the reason.
    ArmExit {
        ret: usize,
        class: usize,
    },
    Emulation,
    Mmio {
        kind: usize,
    },
    Pio {
        write: usize,
    },
    Fpu {
        load: usize,
    },
    UserspaceExit {
        reason: usize,
    },
    Entry,
    Switch {
        prev: usize,
        state: usize,
        next: usize,
    },
    Wakeup {
        tid: usize,
    },
    /// The thread that runs has started another thread.
    Start {
        tid: usize,
    },
    SwitchIn {
        tid: usize,
    },
    SwitchOut {
        tid: usize,
        preempted: usize,
    },
}

impl Kernel {
    /// Returns whether the event is of a thread that runs a vCPU.
    pub fn is_of_kvm(self) -> bool {
        use Kernel::*;
        matches!(
            self,
            Exit { .. }
                | ArmExit { .. }
                | Emulation
                | Mmio { .. }
                | Pio { .. }
                | Fpu { .. }
                | UserspaceExit { .. }
                | Entry
        )
    }
}

impl Kernel {
    /// Returns the kind of an event. The event's name and format determine the kind.
    pub fn of(event: &EventRef<'_>) -> Kernel {
        let Some(fields) = event.fields.kernel() else { return Kernel::Other };
        Kernel::named(event.name, |name| fields.format.field(name)).unwrap_or(Kernel::Other)
    }

    /// Returns the kind of the event with this name, or `None` if the event lacks a field.
    fn named(name: &str, field: impl Fn(&str) -> Option<usize>) -> Option<Kernel> {
        Some(match name {
            "kvm:kvm_exit" => match field("exit_reason") {
                Some(reason) => Kernel::Exit { reason },
                None => Kernel::ArmExit { ret: field("ret")?, class: field("esr_ec")? },
            },
            "kvm:kvm_emulate_insn" => Kernel::Emulation,
            "kvm:kvm_mmio" => Kernel::Mmio { kind: field("type")? },
            "kvm:kvm_pio" => Kernel::Pio { write: field("rw")? },
            "kvm:kvm_fpu" => Kernel::Fpu { load: field("load")? },
            "kvm:kvm_userspace_exit" => Kernel::UserspaceExit { reason: field("reason")? },
            "kvm:kvm_entry" => Kernel::Entry,
            "sched:sched_switch" => Kernel::Switch {
                prev: field("prev_pid")?,
                state: field("prev_state")?,
                next: field("next_pid")?,
            },
            "sched:sched_wakeup" => Kernel::Wakeup { tid: field("pid")? },
            "sched:sched_wakeup_new" => Kernel::Start { tid: field("pid")? },
            "perf:switch_in" => Kernel::SwitchIn { tid: field("tid")? },
            "perf:switch_out" => {
                Kernel::SwitchOut { tid: field("tid")?, preempted: field("preempted")? }
            }
            _ if name.starts_with("kvm:") => Kernel::Other,
            _ => Kernel::Elsewhere,
        })
    }
}

/// Kinds of events that a kernel's trace has. The struct has only kinds whose absence matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    exits: bool,
    emulations: bool,
    entries: bool,
    registers: bool,
    wakeups: bool,
}

impl Kinds {
    /// Returns the kinds of the events with these names.
    pub fn of(names: &HashSet<Arc<str>>) -> Kinds {
        let has = |name: &str| names.contains(name);
        Kinds {
            exits: has("kvm:kvm_exit"),
            emulations: has("kvm:kvm_emulate_insn"),
            entries: has("kvm:kvm_entry"),
            registers: has("kvm:kvm_fpu"),
            wakeups: has("sched:sched_wakeup"),
        }
    }

    /// Adds the kind of an event. Returns whether the kind is new.
    pub fn add(&mut self, kernel: Kernel) -> bool {
        let kind = match kernel {
            Kernel::Exit { .. } | Kernel::ArmExit { .. } => &mut self.exits,
            Kernel::Emulation => &mut self.emulations,
            Kernel::Entry => &mut self.entries,
            Kernel::Fpu { .. } => &mut self.registers,
            Kernel::Wakeup { .. } | Kernel::Start { .. } => &mut self.wakeups,
            _ => return false,
        };
        !std::mem::replace(kind, true)
    }

    /// Returns what these kinds say about a thread's account. `runs`: see [`Exactness`].
    pub fn exactness(self, runs: bool) -> Exactness {
        Exactness {
            exits: self.exits || self.emulations,
            entries: self.entries,
            registers: self.registers,
            runs,
        }
    }

    /// Returns whether the guest's time includes the time of KVM itself.
    pub fn includes_kvm(self) -> bool {
        !(self.entries && self.exits)
    }

    /// Returns why a thread was switched out in this state.
    pub fn why(self, state: i64) -> Why {
        match state {
            _ if is_ready(state) => Why::Preempted,
            // Without wake-ups, nothing would say when the thread was woken.
            _ if !self.wakeups => Why::Unknown,
            _ => Why::Blocked,
        }
    }

    /// Returns whether a `kvm_emulate_insn` counts as the beginning of an exit, because the trace lacks
    /// `kvm_exit`.
    pub fn emulation_begins(self) -> bool {
        !self.exits
    }
}

/// Returns whether a thread that was switched out in this state can run.
pub(super) fn is_ready(state: i64) -> bool {
    state & REPORTED == 0 || state & PREEMPTED != 0
}

/// Returns whether an event of the VMM is the event right before the VMM enters the guest.
pub(super) fn is_run(name: &str) -> bool {
    name == RUN
}

/// Returns whether an event of the VMM is the event right after an exit.
pub(super) fn is_exit(name: &str) -> bool {
    name == EXIT
}

/// If an event is an event of KVM, returns its mark for the thread that recorded the event. The mark comes
/// with the reason of the exit if the event tells a reason. `last` is the reason that is known so far.
pub(super) fn of_kvm(
    kernel: Kernel,
    kinds: Kinds,
    (trace, fields): (u16, format::Fields<'_>),
    reasons: &mut Reasons,
    last: Reason,
) -> Option<(Mark, Option<Reason>)> {
    let number = |field| fields.number(field).unwrap_or(-1);
    Some(match kernel {
        Kernel::Exit { reason } => (Mark::Exit, Some(reasons.get(trace, fields, reason))),
        Kernel::ArmExit { ret, class } => {
            let is_trap = number(ret) == ARM_EXCEPTION_TRAP;
            (Mark::Exit, Some(reasons.get(trace, fields, if is_trap { class } else { ret })))
        }
        Kernel::Emulation if kinds.emulation_begins() => (Mark::Exit, Some(0)),
        Kernel::Mmio { kind } => {
            (Mark::Access, Some(if number(kind) == 2 { MMIO_WRITE } else { MMIO_READ }))
        }
        Kernel::Pio { write } => {
            (Mark::Port, Some(if number(write) == 0 { PIO_READ } else { PIO_WRITE }))
        }
        Kernel::Fpu { load } if number(load) == 0 => (Mark::Unload, None),
        Kernel::Fpu { .. } => (Mark::Load, None),
        Kernel::UserspaceExit { reason } => {
            let is_of_access = match number(reason) {
                KVM_EXIT_IO => !matches!(last, MMIO_WRITE | MMIO_READ),
                KVM_EXIT_MMIO => !matches!(last, PIO_WRITE | PIO_READ),
                _ => false,
            };
            let mark = if is_of_access { Mark::AccessExit } else { Mark::UserspaceExit };
            // The reason in `kvm_userspace_exit` is not used if the exit's own event has told a reason, or if
            // an access is the reason, because both say more than `kvm_userspace_exit`.
            let is_known = last > PIO_READ || last != 0 && is_of_access;
            (mark, (!is_known).then(|| reasons.shown(fields, reason)))
        }
        Kernel::Entry => (Mark::Entry, None),
        _ => return None,
    })
}

/// A field's value that tells the reason of an exit. The tuple has the index of the trace, the index of the
/// event's format, the index of the field, and the value.
type Known = (u16, u32, usize, i64);

/// Names of exits' reasons.
#[derive(Debug)]
pub(super) struct Reasons {
    names: Vec<String>,
    /// Known reasons.
    known: Vec<(Known, Reason)>,
}

impl Reasons {
    pub fn new() -> Reasons {
        Reasons { names: ACCESSES.map(Into::into).to_vec(), known: Vec::new() }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns whether the guest's CPU halted with an exit for this reason.
    pub fn is_halt(reason: Reason) -> bool {
        reason == HALT
    }

    /// Returns the id of the VMM's name for a reason, such as `mmio_write`.
    pub fn of_vmm(&mut self, name: &[u8]) -> Reason {
        self.named(&String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]).replace('_', " "))
    }

    /// Returns the id of a name; 0 if there are too many names.
    fn named(&mut self, name: &str) -> Reason {
        if HALTS.contains(&name) {
            // A halt has a fixed number, so that names of exits during the boot cannot take all numbers
            // first.
            self.names[usize::from(HALT)] = name.into();
            return HALT;
        }
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            if self.names.len() == REASONS {
                return 0;
            }
            self.names.push(name.into());
            self.names.len() - 1
        }) as Reason
    }

    /// Returns the reason that the value of a field tells. The list `known` saves most look-ups of the
    /// value's name.
    fn get(&mut self, trace: u16, fields: format::Fields<'_>, field: usize) -> Reason {
        let of = (trace, fields.format.number, field, fields.number(field).unwrap_or(-1));
        if let Some((_, reason)) = self.known.iter().find(|(known, _)| *known == of) {
            return *reason;
        }
        let reason = self.shown(fields, field);
        // The list has a limit, because further numbers must come from a damaged file. Such numbers are
        // looked up again each time.
        if self.known.len() < 256 {
            self.known.push((of, reason));
        }
        reason
    }

    /// Returns the reason with the name that the event's format has for the value of a field.
    fn shown(&mut self, fields: format::Fields<'_>, field: usize) -> Reason {
        let name = fields.shown(field).unwrap_or_default();
        self.named(&name.strip_prefix("KVM_EXIT_").unwrap_or(&name).to_ascii_lowercase())
    }
}
