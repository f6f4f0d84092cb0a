// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How the time of a host's thread divides into parts, as the thread's events prove.
//!
//! A thread's events are *marks*. Time counts for a part only between two marks that prove the part together:
//! the first mark says what began, and the second mark says that nothing else happened in between. For
//! example, a guest's own event and the next emulated store prove that the guest ran in between. A guest's
//! event and the next return to the VMM prove nothing, because the exit is missing: the time between both is
//! *unknown*. So a missing event makes more time unknown, and never adds time to another part. There is one
//! exception: if a switch away from the thread and the next switch back are both missing, the remaining
//! events show no gap. The kernel reports such losses.
//!
//! While a thread is on a CPU, the thread is in a *mode*. Every mark that ends a mode proves the mode, even
//! across a time in which the thread was switched out: the switches and the wake-up prove what the thread did
//! in that time. The account keeps the intervals of a mode back until a mark ends the mode. Callers take
//! proven intervals in order of time, and proven intervals do not change any more: see
//! [`Account::take_proven`].
//!
//! | mark | ends | begins |
//! |---|---|---|
//! | guest event | guest; entry¹, access¹ (as the guest's time) | guest |
//! | event that is not KVM's³ | guest, if an exit follows | host interrupt |
//! | exit begins | guest, host interrupt; access¹ (as the guest's time) | exit |
//! | access (`kvm_mmio`) | exit; guest¹, access¹ (as the guest's time) | access |
//! | access (`kvm_pio`) | exit, where `kvm_exit` fires; where not, guest, access (as the guest's time) | access |
//! | unload of the guest's registers | exit, access | leave |
//! | `kvm_userspace_exit` | leave; exit¹, access¹. After an access: if that is its reason, or where `kvm_entry` fires | return |
//! | VMM event | return, VMM | VMM |
//! | VMM enters the guest | VMM | entry |
//! | load of the guest's registers | entry; VMM², return² (as the VMM's time) | guest; entry, where `kvm_entry` follows |
//! | `kvm_entry` | entry, exit, access | guest |
//!
//! ¹ Only where the kernel has no event that is more exact: see [`Exactness`].
//! ² Only where the VMM has no event before it enters the guest.
//! ³ Only where `kvm_entry` and `kvm_exit` fire: on AMD's processors, and on AArch64, the host handles an
//! interrupt before KVM traces the exit.
//!
//! The map of the guest's clock gives a guest's own event a host time, with a bound on the error. Such an
//! event proves nothing if the kernel's events say when the guest began and ended. If the kernel's events do
//! not say when, the guest's event still proves nothing in two cases. In the first case, the thread is on the
//! way out of the guest, in the VMM, or on the way back into the guest: other events end these modes. In the
//! second case, the thread is not in the guest's mode, and the time since the beginning of the thread's mode
//! is at most the bound on the event's error. A region begins and ends at the mapped times, whatever part the
//! account has at these times.
use super::causes::{CauseNumber, Unknown};
use super::parts::{Evidence, Interval, Part, Reason, between};

/// A state of a thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Guest,
    Interrupt,
    Exit,
    /// In an exit, after a traced access to memory or to a port.
    Access,
    Leave,
    /// Same as [`Leave`](Mode::Leave) if the access was the reason of the exit. Otherwise, the guest may have
    /// run since the access.
    AccessLeave,
    Return,
    Vmm,
    Entry,
}

/// Maximum number of intervals of a thread that wait for their proof.
pub const MAX_WAITING: usize = 4096;

/// An event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The guest's own event on this thread's vCPU.
    Guest,
    /// `kvm_exit`, or `kvm_emulate_insn`.
    Exit,
    /// `kvm_mmio`.
    Access,
    /// `kvm_pio`.
    Port,
    /// `kvm_fpu` with unload.
    Unload,
    /// `kvm_userspace_exit`.
    UserspaceExit,
    /// `kvm_userspace_exit` for an access to memory or a port.
    AccessExit,
    /// An event of the VMM, or a reference point that the VMM handles.
    Vmm,
    /// The VMM's event which says that the VMM is about to enter the guest.
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
    /// An interrupt in the thread's time on a CPU. Interrupts are off from a switch until the next thread
    /// begins to run.
    Interrupt,
    /// Another event of the thread, which is not an event of KVM.
    Other,
}

/// Reason why a thread was switched out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Another thread took the CPU.
    Preempted,
    /// The thread waits for something.
    Blocked,
    /// The thread was either preempted or blocked.
    Unknown,
}

/// Kinds of events that can occur in the trace of a thread. If the trace has a kind, a missing event of this
/// kind makes time unknown. If the trace lacks the kind, other events prove the part instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exactness {
    /// Whether the trace has the beginnings of exits.
    pub exits: bool,
    /// Whether the trace has `kvm_entry`.
    pub entries: bool,
    /// Whether the trace has `kvm_fpu`.
    pub registers: bool,
    /// Whether the VMM records an event before it enters the guest.
    pub runs: bool,
}

/// An interval that waits for its proof, or for the proof of an interval before it.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    from: i64,
    to: i64,
    /// Part of the interval; `None` if the thread was on a CPU and the part is not proven yet.
    part: Option<Part>,
    /// Whether an event after the interval may come from an interrupt of the host. If the interrupt is
    /// proven, the interval is the guest's time.
    is_before_interrupt: bool,
    /// Reason of the exit; `None` if the reason is not proven yet.
    reason: Option<Reason>,
    cause: CauseNumber,
    ended_by: Option<Evidence>,
    /// Whether a region began or ended in the interval, at its beginning or at its end.
    has_border: bool,
    /// Whether the interval is the sum of several intervals. If true, only the length of the interval is
    /// right.
    is_merged: bool,
    /// Whether the interval belongs to the same wait as the previous interval, but has another cause.
    goes_on: bool,
}

/// Whether the thread has a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cpu {
    On,
    Out(Why),
    Woken,
    /// A switch is missing: either the thread had an event of its own after a switch away, or the thread was
    /// on a CPU and then had an event on another CPU.
    Unclear,
}

/// The account of a thread, which must receive all marks in order of time.
#[derive(Debug)]
pub struct Account {
    /// Part of the mode [`Mode::Guest`].
    own: Part,
    exactness: Exactness,
    mode: Option<Mode>,
    cpu: Cpu,
    /// Id of the CPU on which the thread's last event in the kernel's trace was recorded.
    seen_on: Option<u16>,
    /// Time of the last mark of any kind; `None` before the first mark.
    last: Option<i64>,
    /// Event of the next mark.
    pub by: Option<Evidence>,
    /// Causes of the wait that the next mark ends. Each entry has a cause, and the time until which the
    /// thread waited for this cause: see [`Account::ends_wait`]. Empty if the causes are not known.
    pub causes: Vec<(i64, CauseNumber)>,
    /// Time of the mark that began the mode.
    begun: i64,
    /// Reason of the last exit. `is_new` says whether the exit must still be counted.
    reason: Reason,
    is_new: bool,
    /// Exit that was counted since the last call of [`Account::take_exit`].
    exit: Option<Reason>,
    /// Intervals that were not taken yet, in order. `is_unproven` says whether some of these intervals lack a
    /// proof.
    waiting: Vec<Waiting>,
    is_unproven: bool,
    /// Whether a region began or ended since the last mark. `last_border` is the last time at which a region
    /// began or ended.
    has_border: bool,
    last_border: i64,
    /// Maximum number of intervals in `waiting`.
    most: usize,
    /// Whether the thread had an event of its own while another thread had the CPU. If true, a switch is
    /// missing, or the event belongs to another thread.
    pub is_contradicted: bool,
    pub switches: Switches,
}

/// Numbers of a thread's switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Number of switches away from the thread.
    pub away: u64,
    /// Number of missing switches back to the thread. A switch back is missing if the thread was switched
    /// out, and the thread's next event shows that the thread has a CPU again.
    pub unreturned: u64,
    /// Number of times that too many intervals waited for their proof.
    pub given_up: u64,
}

impl Account {
    /// Makes the account of a thread. Two successive events of the thread's client prove that the time in
    /// between has the part `own`: the guest's part, or on-CPU if the thread itself is the client.
    /// `exactness` says which kinds of events the thread's trace has.
    pub fn new(own: Part, exactness: Exactness) -> Account {
        Account {
            own,
            exactness,
            mode: None,
            cpu: Cpu::On,
            seen_on: None,
            last: None,
            by: None,
            causes: Vec::new(),
            begun: 0,
            reason: 0,
            is_new: false,
            exit: None,
            waiting: Vec::new(),
            is_unproven: false,
            has_border: false,
            last_border: i64::MIN,
            most: MAX_WAITING,
            is_contradicted: false,
            switches: Switches::default(),
        }
    }

    /// Changes the kinds of events that the trace has.
    pub fn set_exactness(&mut self, exactness: Exactness) {
        self.exactness = exactness;
    }

    /// Returns the wait that a mark would end, and the time at which the wait began.
    pub(super) fn ends_wait(&self, mark: Mark) -> Option<(Part, i64)> {
        let part = match (mark, self.cpu) {
            (Mark::Wakeup, Cpu::Out(Why::Blocked)) => Part::Blocked,
            (Mark::In, Cpu::Woken | Cpu::Out(Why::Preempted)) => Part::Runnable,
            _ => return None,
        };
        Some((part, self.last?))
    }

    /// Returns the maximum number of causes of one wait.
    pub(super) fn most_causes(&self) -> usize {
        self.most / 4
    }

    /// Changes how many intervals may wait.
    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Processes the next mark.
    pub fn mark(&mut self, time: i64, mark: Mark) {
        self.see(mark);
        if self.cpu == Cpu::On && matches!(mark, Mark::Interrupt | Mark::Other) {
            return self.other(time);
        }
        if mark == Mark::Other || (self.cpu, mark) == (Cpu::On, Mark::Wakeup) {
            // Either the thread is not switched out yet, or a switch away from the thread is missing before
            // the wake-up. The next mark shows which case it was.
            return;
        }
        let last = self.last.replace(time).unwrap_or(time);
        let since = (last, time);
        self.switches.add(mark, self.cpu);
        self.mark_since(since, mark);
        if (mark, self.own, self.mode) == (Mark::In, Part::OnCpu, None) {
            // The mode is known, because a program's thread has only one mode.
            (self.mode, self.begun) = (Some(Mode::Guest), time);
        }
    }

    /// Notes the CPU of a mark. A thread that is on a CPU and has an event on another CPU was switched away
    /// and back in between, and the kernel's trace has neither switch.
    fn see(&mut self, mark: Mark) {
        // A wake-up tells nothing about the thread's CPU, because the event of a wake-up is on the CPU of the
        // waker.
        let Some(cpu) = self.by.and_then(Evidence::cpu).filter(|_| mark != Mark::Wakeup) else {
            return;
        };
        let before = self.seen_on.replace(cpu);
        if self.cpu == Cpu::On && mark != Mark::In && before.is_some_and(|before| before != cpu) {
            self.cpu = Cpu::Unclear;
        }
    }

    fn mark_since(&mut self, since: (i64, i64), mark: Mark) {
        let time = since.1;
        match (mark, self.cpu) {
            (Mark::Wakeup, Cpu::Out(Why::Blocked)) => self.off(Part::Blocked, since, Cpu::Woken),
            (Mark::Wakeup, Cpu::Out(Why::Unknown)) => self.off(Part::OffCpu, since, Cpu::Woken),
            // The thread is ready already, so the event before the wake-up is missing.
            (Mark::Wakeup, _) => self.off(Part::Unknown, since, Cpu::Woken),
            (Mark::Out(why), Cpu::On) => {
                // A program's thread has only one mode, so the part of the time is proven at once.
                let is_own = (self.own, self.mode) == (Part::OnCpu, Some(Mode::Guest));
                self.push(since, is_own.then_some(Part::OnCpu));
                self.is_unproven |= self.mode.is_some() && !is_own;
                self.cpu = Cpu::Out(why);
            }
            (Mark::Out(why), _) => self.off(Part::Unknown, since, Cpu::Out(why)),
            (Mark::In, Cpu::Woken | Cpu::Out(Why::Preempted)) => {
                self.off(Part::Runnable, since, Cpu::On);
            }
            (Mark::In, Cpu::Out(Why::Unknown)) => self.off(Part::OffCpu, since, Cpu::On),
            (Mark::In, _) => self.off(Part::Unknown, since, Cpu::On),
            (Mark::Interrupt, _) => {
                self.by = None;
                self.off(Part::Unknown, since, Cpu::On);
            }
            (_, Cpu::On) => self.change(since, mark),
            (..) => {
                self.off(Part::Unknown, since, Cpu::On);
                self.change((time, time), mark);
            }
        }
    }

    /// Processes an event that is not KVM's. The thread has a CPU.
    fn other(&mut self, time: i64) {
        let is_own = self.own == Part::OnCpu;
        let ends_guest = self.exactness.exits && self.exactness.entries;
        if self.mode != Some(Mode::Guest) || !is_own && !ends_guest {
            return;
        }
        let last = self.last.replace(time).unwrap_or(time);
        self.push((last, time), is_own.then_some(Part::OnCpu));
        if is_own {
            return;
        }
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.part.is_none()) {
            waiting.is_before_interrupt = true;
        }
        (self.mode, self.begun, self.is_unproven) = (Some(Mode::Interrupt), time, true);
    }

    /// Processes a guest's own event. If the event's time is not exact, `bound` returns the bound on the time's
    /// error; `None` if the bound is unknown.
    pub fn guest(&mut self, time: i64, is_exact: bool, bound: impl FnOnce() -> Option<u64>) {
        if is_exact && self.cpu != Cpu::On {
            // Only a switch or an interrupt proves that the thread has a CPU again.
            self.switches.add(Mark::Guest, self.cpu);
            self.cpu = Cpu::Unclear;
            self.is_contradicted = true;
            return;
        }
        if !is_exact {
            // The kernel's events say when the guest began and ended, without an error.
            if self.exactness.exits || self.cpu != Cpu::On {
                return;
            }
            let far = || bound().is_some_and(|bound| between((self.begun, time)) > bound);
            let (ends, _) = self.modes(Mark::Guest);
            // Other events end these modes before the guest runs again. So the guest's event happened before
            // the mode began, or the mode has ended and the event that shows the end is still to come.
            let is_out = |mode| {
                let modes = [Mode::Leave, Mode::AccessLeave, Mode::Return, Mode::Vmm, Mode::Entry];
                modes.contains(&mode) && !ends.contains(&mode)
            };
            if self.mode.is_some_and(|mode| mode != Mode::Guest && (is_out(mode) || !far())) {
                return;
            }
        }
        self.mark(time, Mark::Guest);
    }

    /// Processes the beginning of an exit, or a mark that says more about the exit.
    pub fn exit(&mut self, time: i64, mark: Mark, reason: Reason) {
        self.reason = reason;
        self.mark(time, mark);
    }

    /// Processes the VMM's event after an exit. The VMM's reason counts if the kernel's events tell no
    /// reason.
    pub fn vmm_exit(&mut self, time: i64, reason: impl FnOnce() -> Reason) {
        self.mark(time, Mark::Vmm);
        if self.reason == 0 {
            self.reason = reason();
        }
    }

    /// Returns the reason of the exit that the kernel handles now and may pass to the VMM; 0 if there is no
    /// such exit, or if the reason is not known.
    pub fn reason(&self) -> Reason {
        use Mode::{Access, AccessLeave, Exit, Leave};
        match self.mode {
            Some(Exit | Access | AccessLeave | Leave) => self.reason,
            _ => 0,
        }
    }

    /// Counts all time up to `time` as unknown, because nothing is known about the thread until then.
    pub fn skip(&mut self, time: i64) {
        let last = self.last.replace(time).unwrap_or(time);
        self.by = None;
        self.prove(Part::Unknown);
        self.push((last, time), Some(Part::Unknown));
        (self.mode, self.cpu, self.is_new, self.reason) = (None, Cpu::On, false, 0);
        self.seen_on = None;
    }

    /// Ends the account. All time that is not proven yet becomes unknown.
    pub fn end(&mut self) {
        if let Some(last) = self.last {
            self.skip(last.max(self.last_border));
        }
    }

    /// Notes that a region begins or ends at `time`. Returns whether all time before `time` is proven.
    pub fn border(&mut self, time: i64) -> bool {
        let last = *self.last.get_or_insert(time);
        (self.has_border, self.last_border) = (true, time);
        self.waiting.is_empty() && time <= last
    }

    /// Returns true if all time up to the last mark is proven, and at least one interval or exit was not
    /// taken yet.
    pub fn has_proven(&self) -> bool {
        !self.is_unproven && (!self.waiting.is_empty() || self.exit.is_some())
    }

    /// Hands over all intervals that wait, in order. Callers check [`Account::has_proven`] first. `take` is
    /// called with each interval, and with a flag that says whether the interval is the sum of several
    /// intervals. Of such a sum, only the length is right.
    pub fn take_proven(&mut self, mut take: impl FnMut(&Interval, bool)) {
        for waiting in &self.waiting {
            let Waiting { from, to, part, reason, cause, ended_by, is_merged, .. } = *waiting;
            let part = part.unwrap_or(Part::Unknown);
            let reason = reason.unwrap_or(0);
            let interval = Interval { from, to, part, reason, cause, ended_by };
            take(&interval, is_merged);
        }
        self.waiting.clear();
    }

    /// If an exit began with the proven intervals, returns the exit's reason.
    pub fn new_exit(&self) -> Option<Reason> {
        self.exit
    }

    /// If an exit began with the proven intervals, returns the exit's reason and forgets the exit.
    pub fn take_exit(&mut self) -> Option<Reason> {
        self.exit.take()
    }

    /// Ends a time in which the thread had no CPU.
    fn off(&mut self, part: Part, (from, to): (i64, i64), cpu: Cpu) {
        self.push((from, to), Some(part));
        self.cpu = cpu;
        if to > from
            && !self.causes.is_empty()
            && let Some(whole) = self.waiting.pop()
        {
            let mut next = Waiting { to: from, ..whole };
            for (to, cause) in &self.causes {
                next = Waiting { from: next.to, to: *to, cause: *cause, ..next };
                self.waiting.push(next);
                next.goes_on = true;
            }
        }
        self.causes.clear();
    }

    /// Processes a mark that begins a mode. If the mark can end the previous mode, the mark proves the
    /// previous mode.
    fn change(&mut self, since: (i64, i64), mark: Mark) {
        if (mark, self.mode) == (Mark::Unload, Some(Mode::Access)) && !self.exactness.entries {
            // A later mark with the reason of the exit will show whether the access caused the exit.
            self.push(since, None);
            (self.mode, self.begun) = (Some(Mode::AccessLeave), since.1);
            return;
        }
        let (ends, begins) = self.modes(mark);
        let part = match self.mode.filter(|mode| ends.contains(mode)) {
            // The guest runs again, but nothing shows when the guest began to run. So all of this time counts
            // as the guest's.
            Some(Mode::Access | Mode::Entry) if mark == Mark::Guest => self.own,
            // The kernel completed the exit without the VMM, because an exit that goes to the VMM has other
            // marks. So the guest has run again.
            Some(Mode::Access) if matches!(mark, Mark::Exit | Mark::Access | Mark::Port) => {
                self.own
            }
            // In this time, the VMM ran, and the kernel ran on the way to the VMM and back.
            Some(Mode::Return) if mark == Mark::Load => Part::Vmm,
            Some(Mode::Guest) => self.own,
            Some(Mode::Interrupt) => Part::HostInterrupt,
            Some(Mode::Vmm) => Part::Vmm,
            Some(_) => Part::Kernel,
            None => Part::Unknown,
        };
        if part == Part::Kernel && std::mem::take(&mut self.is_new) {
            self.exit = Some(self.reason);
        }
        self.prove(part);
        self.push(since, Some(part));
        if begins != Mode::Guest || self.mode != Some(Mode::Guest) {
            self.begun = since.1;
        }
        if begins == Mode::Exit || begins == Mode::Access && part == self.own {
            self.is_new = true;
        }
        // The reason is forgotten if the exit has ended. The reason is also forgotten if the mark belongs to
        // another exit, and the earlier events of this other exit are missing.
        let is_other = match mark {
            Mark::Unload => self.reason() == 0,
            Mark::Vmm | Mark::Run => !matches!(self.mode, Some(Mode::Return | Mode::Vmm)),
            _ => begins == Mode::Guest,
        };
        if is_other {
            self.reason = 0;
        }
        self.mode = Some(begins);
    }

    /// Gives the waiting intervals on a CPU the proven part `part`. This part also decides whether the waits
    /// between these intervals belong to an exit.
    fn prove(&mut self, part: Part) {
        if std::mem::take(&mut self.is_unproven) {
            let reason = self.reason_of(part);
            for waiting in self.waiting.iter_mut().filter(|waiting| waiting.reason.is_none()) {
                let before = if part == Part::HostInterrupt { self.own } else { Part::Unknown };
                let part = if waiting.is_before_interrupt { before } else { part };
                waiting.part.get_or_insert(part);
                waiting.reason = Some(reason);
            }
        }
    }

    /// Adds an interval. An interval without a part or without a reason waits for the mark that proves both,
    /// and all later intervals wait too.
    fn push(&mut self, (from, to): (i64, i64), part: Option<Part>) {
        if to <= from {
            return;
        }
        if self.is_unproven && self.waiting.len() >= self.most {
            self.merge();
        }
        // A wait belongs to an exit if the mode around the wait is proven to be an exit.
        let is_known = |part: &Part| !part.is_wait() || !self.is_unproven;
        let reason = part.filter(is_known).map(|part| self.reason_of(part));
        let has_border = std::mem::take(&mut self.has_border);
        self.is_unproven |= reason.is_none();
        self.waiting.push(Waiting {
            from,
            to,
            part,
            is_before_interrupt: false,
            reason,
            cause: Unknown::NotRecorded.number(),
            ended_by: self.by,
            has_border,
            is_merged: false,
            goes_on: false,
        });
    }

    fn reason_of(&self, part: Part) -> Reason {
        if matches!(part, Part::Kernel | Part::Vmm) { self.reason } else { 0 }
    }

    /// Merges waiting intervals that have the same part and no border of a region between them. The order of
    /// such intervals does not matter, because each region contains either all of these intervals or none. If
    /// too many intervals remain, the remaining intervals become unknown.
    fn merge(&mut self) {
        let (before, first) = (self.waiting.len(), self.waiting[0].from);
        let many = Unknown::TooMany.number();
        let mut merged: Vec<Waiting> = Vec::new();
        // `place` is the index of the merged interval to which the loop added the last interval. `joinable`
        // is the index of the first merged interval that later intervals can still join.
        let (mut place, mut joinable) = (0, 0);
        for waiting in self.waiting.drain(..) {
            // Intervals of one wait with different causes become one interval again, because parts matter
            // more than causes.
            if !waiting.goes_on {
                let key = |of: &Waiting| (of.part, of.reason, of.is_before_interrupt);
                let mut same = joinable..merged.len();
                let same = same.find(|at| key(&merged[*at]) == key(&waiting));
                place = same.filter(|_| !waiting.has_border).unwrap_or(merged.len());
            }
            match merged.get_mut(place) {
                Some(same) => {
                    same.to += waiting.to - waiting.from;
                    same.is_merged |= !waiting.goes_on;
                    let stream = |by: Option<Evidence>| by.map(|by| by.stream);
                    if stream(same.ended_by) != stream(waiting.ended_by) {
                        same.ended_by = None;
                    }
                    if same.cause != waiting.cause {
                        same.cause = many;
                    }
                }
                None => {
                    merged.push(waiting);
                    if waiting.has_border {
                        joinable = merged.len();
                    }
                }
            }
        }
        merged.iter_mut().fold(first, |from, waiting| {
            (waiting.from, waiting.to) = (from, from + waiting.to - waiting.from);
            waiting.to
        });
        self.waiting = merged;
        if self.waiting.len() > before / 2 {
            self.switches.given_up += 1;
            self.prove(Part::Unknown);
        }
    }

    /// Returns the modes that a mark can end, and the mode that it begins.
    fn modes(&self, mark: Mark) -> (&'static [Mode], Mode) {
        use Mode::*;
        let Exactness { exits, entries, registers, runs } = self.exactness;
        match mark {
            Mark::Guest if entries => (&[Guest], Guest),
            Mark::Guest if registers => (&[Guest, Access], Guest),
            Mark::Guest => (&[Guest, Access, Entry], Guest),
            Mark::Exit if entries => (&[Guest, Interrupt], Exit),
            Mark::Exit if !registers => (&[Guest], Exit),
            Mark::Exit => (&[Guest, Access], Exit),
            Mark::Access if exits => (&[Exit], Access),
            Mark::Port if entries => (&[Exit], Access),
            Mark::Access | Mark::Port if registers && !entries => (&[Guest, Access], Access),
            Mark::Access | Mark::Port => (&[Guest], Access),
            Mark::Unload => (&[Exit, Access], Leave),
            Mark::AccessExit if registers => (&[Leave, AccessLeave], Return),
            Mark::UserspaceExit if registers => (&[Leave], Return),
            Mark::UserspaceExit if !entries => (&[Exit], Return),
            Mark::AccessExit | Mark::UserspaceExit => (&[Exit, Access], Return),
            Mark::Vmm => (&[Return, Vmm], Vmm),
            Mark::Run => (&[Vmm], Entry),
            Mark::Load if runs => (&[Entry], if entries { Entry } else { Guest }),
            Mark::Load => (&[Entry, Vmm, Return], if entries { Entry } else { Guest }),
            Mark::Entry => (&[Entry, Exit, Access], Guest),
            Mark::Out(_) | Mark::In | Mark::Wakeup | Mark::Interrupt | Mark::Other => (&[], Guest),
        }
    }
}

impl Switches {
    /// Counts a mark of a thread. Until the mark, the thread was in the state `cpu`.
    fn add(&mut self, mark: Mark, cpu: Cpu) {
        self.away += u64::from(matches!(mark, Mark::Out(_)));
        let is_off = matches!(cpu, Cpu::Out(_) | Cpu::Woken);
        self.unreturned += u64::from(is_off && !matches!(mark, Mark::In | Mark::Wakeup));
    }
}

impl std::ops::AddAssign for Switches {
    fn add_assign(&mut self, other: Switches) {
        self.away += other.away;
        self.unreturned += other.unreturned;
        self.given_up += other.given_up;
    }
}

#[cfg(test)]
mod tests;
