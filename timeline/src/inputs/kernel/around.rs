// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The kernel's times around reference points.
//!
//! A reference point is a store that exits to the VMM. The `kvm_mmio` of this exit is after the guest's
//! reading and before the host's time. The next `kvm_fpu` (load) or `kvm_entry` of the thread is after the
//! host's time and before the guest's next reading.

use super::KernelTrace;
use super::cpu_input::CpuInput;
use super::guest_mode::{ENTRY, EXIT, GuestModes};
use super::shown::shown_by;
use crate::clock::{FRACTION, LIMIT};
use crate::error::Result;
use crate::format::{Fields, Format};
use crate::inputs::ctf::{ClockMaps, Found, KvmTsc, MAX_POINTS, Sample, Session, find};
use crate::inputs::input::Time;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// Maximum number of gaps with lost events. If there are more gaps, no times of the kernel are used.
const MAX_GAPS: usize = 1 << 16;

/// Maximum number of changes of TSC offsets. If there are more changes, the only known TSCs are the TSCs that
/// the recorder saw.
const MAX_OFFSETS: usize = 1 << 16;

/// Maximum number of TSCs that are kept with the times for which they held. The number is limited because
/// each TSC is compared with each constraint. A guest can change its offset at will. So if there are too many
/// TSCs, the VMs with the fewest TSCs keep their TSCs, and the TSCs of other VMs are dropped.
const MAX_WORDS: usize = 256;

/// Name of the event that reports another TSC offset of a vCPU.
const TSC_OFFSET: &str = "kvm:kvm_write_tsc_offset";

/// Type of a store in `kvm_mmio`.
const WRITE: i64 = 2;

impl KernelTrace {
    /// Makes the clock maps of the session with this index, as [`ClockMaps::of`] does. These maps have
    /// smaller bounds, because they also use the kernel's times around reference points. Times that
    /// contradict the reference points are left out and counted. The times come from all traces with the
    /// threads of the session's host: the session's own trace, or traces of the same boot in other
    /// directories. Each trace is read once. `sessions` and `traces` are the sessions and traces of a
    /// timeline.
    ///
    /// The recordings of the session's guests among `guests` are used to check KVM's description of a TSC.
    ///
    /// # Errors
    /// If the session or a trace is damaged.
    pub fn clock_maps_of(
        number: usize,
        sessions: &[Session],
        traces: &[KernelTrace],
        guests: &[KernelTrace],
    ) -> Result<ClockMaps> {
        let all = Vec::from_iter(sessions);
        let shows = |trace: &&KernelTrace| {
            !trace.is_of_guest()
                && shown_by(trace, &all, traces).is_some_and(|mut shown| shown.any(|n| n == number))
        };
        let session = &sessions[number];
        let guests = guests.iter().filter(|trace| trace.session == Some(number));
        let guests = Vec::from_iter(guests);
        let mut shown = traces.iter().filter(shows).peekable();
        if shown.peek().is_none() {
            return ClockMaps::of(session);
        }
        let mut found = find(session, MAX_POINTS)?;
        for trace in shown {
            if trace.times.iter().all(|times| times.bound.is_some()) {
                trace.fill(session, &guests, &mut found)?;
            }
        }
        Ok(ClockMaps::from(session, found))
    }

    /// Fills in the kernel's times around the points in `found`.
    fn fill(&self, session: &Session, guests: &[&KernelTrace], found: &mut Found) -> Result<()> {
        let modes = GuestModes::new(self, guests, session, found)?;
        let mut around = Around { modes, ..Around::default() };
        let clients = found.by_clock.iter_mut().flat_map(|(_, clients)| clients.iter_mut());
        for (_, times) in clients {
            for sample in &mut times.samples {
                let Some(tid) = sample.tid else { continue };
                around.threads.entry(tid).or_default().samples.push(sample);
            }
        }
        if around.threads.is_empty() && self.file.options.tscs.is_empty() {
            return Ok(());
        }
        for thread in around.threads.values_mut() {
            thread.samples.sort_by_key(|sample| sample.host);
        }
        around.read(self, session.origin())?;
        around.leave_out_gaps();
        let Around { offsets, end, gaps, modes, .. } = around;
        let is_complete = gaps.is_empty() && offsets.len() <= MAX_OFFSETS;
        found.tscs.extend(self.tscs(session.origin(), &offsets, end.filter(|_| is_complete)));
        found.cpus.extend(end.map_or(Vec::new(), |end| modes.finish(end)));
        Ok(())
    }

    /// Converts a reading of the host's counter to host units since a session's origin. Returns 0 if the
    /// trace has no events.
    pub(super) fn host_time(&self, ticks: u64, origin: Time) -> i64 {
        self.of_counter(ticks).map_or(0, |time| since(time, origin))
    }

    /// Returns the TSCs that the recorder saw, with the times for which VMs had these TSCs. `end` is the time
    /// of the last event, if all changes up to this time are known.
    fn tscs(&self, origin: Time, offsets: &[NewOffset], end: Option<i64>) -> Vec<KvmTsc<i64>> {
        let has_changes = self.events().any(|name| name == TSC_OFFSET);
        let mut all: BTreeMap<u32, Vec<KvmTsc<i64>>> = BTreeMap::new();
        for KvmTsc { pid, tsc, from, until } in &self.file.options.tscs {
            let (pid, tsc, own) = (*pid, *tsc, tsc.offset);
            let found = all.entry(pid).or_default();
            if found.len() > MAX_WORDS {
                continue;
            }
            let (first, last) = (self.host_time(*from, origin), self.host_time(*until, origin));
            let is_recorded = has_changes && self.follows(pid);
            let end = end.filter(|_| is_recorded).unwrap_or(last).max(last);
            let comes = |change: &NewOffset| change.next == own;
            let goes = |change: &NewOffset| change.previous == own && change.next != own;
            // A vCPU got this offset before the recorder saw the offset. If there is an event of the change,
            // the event's time is used.
            let begun = offsets.iter().rev().find(|change| comes(change) && change.time <= first);
            let from = begun.map_or(first, |change| change.time);
            let mut held = Some(from);
            let meanwhile = |change: &&NewOffset| from < change.time && change.time < end;
            for change in offsets.iter().filter(meanwhile) {
                match held {
                    Some(from) if goes(change) => {
                        found.push(KvmTsc { pid, tsc, from, until: change.time });
                        held = None;
                    }
                    None if comes(change) => held = Some(change.time),
                    _ => {}
                }
            }
            found.extend(held.map(|from| KvmTsc { pid, tsc, from, until: end }));
        }
        let mut all = Vec::from_iter(all.into_values());
        all.sort_by_key(Vec::len);
        let mut left = MAX_WORDS;
        // The VMs with the fewest TSCs come first, so that a VM with many changes does not make the times of
        // another VM less exact.
        let is_kept = |of: &Vec<KvmTsc<i64>>| {
            let kept = left.checked_sub(of.len());
            left = kept.unwrap_or(0);
            kept.is_some()
        };
        all.into_iter().take_while(is_kept).flatten().collect()
    }
}

/// State of the pass over a trace, with the samples of a session.
#[derive(Default)]
struct Around<'a> {
    /// Reference points, by the id of the thread that served them.
    threads: HashMap<u32, Served<'a>>,
    /// Gaps: pairs of times between which a CPU may have lost events.
    gaps: Vec<(i64, i64)>,
    /// Changes of vCPUs' TSC offsets, sorted by time. The list has at most one entry more than
    /// [`MAX_OFFSETS`].
    offsets: Vec<NewOffset>,
    /// Time of the last event.
    end: Option<i64>,
    modes: GuestModes,
}

/// A change of a vCPU's TSC offset by KVM.
#[derive(Clone, Copy)]
struct NewOffset {
    time: i64,
    previous: i64,
    next: i64,
}

/// The reference points that a thread served.
#[derive(Default)]
struct Served<'a> {
    /// Reference points in order of host time.
    samples: Vec<&'a mut Sample>,
    /// Number of reference points before the thread's last event.
    passed: usize,
    /// Time and value of the thread's last MMIO access, if this access was a store.
    stored: Option<(i64, u64)>,
    /// Whether the exit of the last point was found, and the thread is still out of guest mode.
    is_out: bool,
}

/// Kind of an event, with the indices of the event's fields that are used.
#[derive(Clone, Copy)]
enum KernelEvent {
    Mmio {
        kind: usize,
        value: usize,
    },
    Fpu {
        load: usize,
    },
    Entry,
    Exit,
    /// An emulation of a guest's instruction. The event shows that the guest ran before the emulation.
    Emulation,
    /// A switch, at which the thread loses its CPU.
    Switch,
    Offset {
        previous: usize,
        next: usize,
    },
    Other,
}

impl KernelEvent {
    fn of(format: &Format) -> KernelEvent {
        let found = || {
            Some(match &*format.name {
                "kvm:kvm_mmio" => {
                    KernelEvent::Mmio { kind: format.field("type")?, value: format.field("val")? }
                }
                "kvm:kvm_fpu" => KernelEvent::Fpu { load: format.field("load")? },
                ENTRY => KernelEvent::Entry,
                EXIT => KernelEvent::Exit,
                "kvm:kvm_emulate_insn" => KernelEvent::Emulation,
                "sched:sched_switch" => KernelEvent::Switch,
                TSC_OFFSET => KernelEvent::Offset {
                    previous: format.field("previous_tsc_offset")?,
                    next: format.field("next_tsc_offset")?,
                },
                _ => return None,
            })
        };
        found().unwrap_or(KernelEvent::Other)
    }
}

impl<'a> Around<'a> {
    /// Reads all events of all CPUs, in order of time.
    fn read(&mut self, trace: &KernelTrace, origin: Time) -> Result<()> {
        let buffers = trace.file.buffers.iter().zip(&trace.times);
        let inputs = buffers.flat_map(|of| {
            let lost = |cpu| trace.file.lost(of.0, cpu);
            trace.inputs_of(of, 0, "").map(move |(cpu, input)| (input, lost(cpu)))
        });
        let mut inputs = Vec::from_iter(inputs);
        let mut heap = BinaryHeap::new();
        // A lookup by the address of an event's format is fast, and the table is small because there are few
        // formats.
        let mut kinds: HashMap<usize, KernelEvent> = HashMap::new();
        for (number, of) in inputs.iter_mut().enumerate() {
            if self.advance(of, -LIMIT, origin)? {
                heap.push(Reverse((of.0.time(), number)));
            }
        }
        while let Some(mut first) = heap.peek_mut() {
            let number = first.0.1;
            let of = &mut inputs[number];
            let input = &of.0;
            let time = since(input.time(), origin);
            let margin = input.bound_ns().map_or(LIMIT, |ns| {
                i64::try_from(ns).unwrap_or(LIMIT).saturating_mul(FRACTION).min(LIMIT)
            });
            self.end = self.end.max(Some(time));
            self.modes.begin(time);
            if let Some((tid, fields)) = input.record() {
                let format = std::ptr::from_ref(fields.format).addr();
                let kind = *kinds.entry(format).or_insert_with(|| KernelEvent::of(fields.format));
                self.take(tid, kind, fields, (time, margin));
            }
            match self.advance(of, time, origin)? {
                true => first.0.0 = of.0.time(),
                false => drop(PeekMut::pop(first)),
            }
        }
        Ok(())
    }

    /// Reads a CPU's next event. If events were lost before this event, notes a gap from the time `last` to
    /// this event. `lost` is the number of lost events that the kernel counted on this CPU and whose place is
    /// not yet known.
    fn advance(
        &mut self,
        (input, lost): &mut (CpuInput<'_>, u64),
        last: i64,
        origin: Time,
    ) -> Result<bool> {
        let has_next = input.read()?;
        let missed = input.take_missed();
        *lost = lost.saturating_sub(missed.unwrap_or(0));
        // The pages do not show losses after the last event, so the kernel's count decides.
        let has_lost = missed.is_some() || !has_next && (input.is_cut() || *lost > 0);
        if has_lost {
            let until = if has_next { since(input.time(), origin) } else { LIMIT };
            self.modes.miss(until);
            if self.gaps.len() <= MAX_GAPS {
                self.gaps.push((last, until));
            }
        }
        Ok(has_next)
    }

    fn take(
        &mut self,
        tid: u32,
        kind: KernelEvent,
        fields: Fields<'_>,
        (time, margin): (i64, i64),
    ) {
        let number = |field| fields.number(field).unwrap_or(-1);
        match kind {
            KernelEvent::Offset { previous, next } => {
                let (previous, next) = (number(previous), number(next));
                self.modes.change(time, previous, next);
                if self.offsets.len() <= MAX_OFFSETS {
                    self.offsets.push(NewOffset { time, previous, next });
                }
            }
            KernelEvent::Entry => self.modes.enter(tid, time.saturating_sub(margin)),
            KernelEvent::Exit => self.modes.exit(tid, later(time, margin)),
            KernelEvent::Switch => self.modes.lose_cpu(tid, later(time, margin)),
            _ => {}
        }
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.pass(time, margin);
        match kind {
            KernelEvent::Mmio { kind, value } => {
                let value = (number(kind) == WRITE).then(|| number(value) as u64);
                thread.stored = value.map(|value| (time, value));
                thread.is_out = false;
            }
            KernelEvent::Fpu { load } if number(load) == 1 => thread.resume(time, margin),
            KernelEvent::Entry => {
                thread.resume(time, margin);
                thread.is_out = false;
            }
            KernelEvent::Fpu { .. } | KernelEvent::Exit | KernelEvent::Emulation => {
                thread.is_out = false;
            }
            KernelEvent::Offset { .. } | KernelEvent::Switch | KernelEvent::Other => {}
        }
    }

    /// The kernel's events gave each reference point the times `reached` and `resumed`. Removes such a time
    /// if a gap lies between the time and the point, because a lost event could have given another time.
    fn leave_out_gaps(&mut self) {
        if self.gaps.is_empty() {
            return;
        }
        // Each gap gets the earliest beginning of this gap and of all gaps that end later.
        self.gaps.sort_by_key(|gap| gap.1);
        let mut earliest = i64::MAX;
        for gap in self.gaps.iter_mut().rev() {
            earliest = earliest.min(gap.0);
            gap.0 = earliest;
        }
        let are_all_known = self.gaps.len() <= MAX_GAPS;
        let is_whole = |from: i64, to: i64| {
            let first = self.gaps.partition_point(|(_, end)| *end < from);
            are_all_known && self.gaps.get(first).is_none_or(|(begin, _)| *begin > to)
        };
        for sample in self.threads.values_mut().flat_map(|thread| &mut thread.samples) {
            sample.reached = sample.reached.filter(|at| is_whole(*at, sample.host));
            sample.resumed = sample.resumed.filter(|at| is_whole(sample.host, *at));
        }
    }
}

impl Served<'_> {
    /// Marks reference points of the thread as passed, up to the time of an event of the thread.
    fn pass(&mut self, time: i64, margin: i64) {
        while let Some(sample) = self.samples.get_mut(self.passed).filter(|s| s.host <= time) {
            let stored = self.stored.take().filter(|(_, value)| *value as u32 == sample.seq);
            // If the thread's last store is not the store of the point, the next events may belong to another
            // point.
            self.is_out = stored.is_some();
            if let Some((at, _)) = stored {
                // If another trace has already set `reached`, the new value replaces the old value.
                sample.reached = Some(later(at, margin).min(sample.host));
            }
            self.passed += 1;
        }
    }

    /// Notes an event after which the guest runs again.
    fn resume(&mut self, time: i64, margin: i64) {
        let sample = self.passed.checked_sub(1).and_then(|last| self.samples.get_mut(last));
        // A store before this event cannot be the store of the next point.
        self.stored = None;
        if let Some(sample) = sample.filter(|_| self.is_out) {
            sample.resumed = Some(time.saturating_sub(margin).max(sample.host));
        }
    }
}

/// Returns a time in host units from a session's origin.
fn since(time: Time, origin: Time) -> i64 {
    (time - origin).clamp((-LIMIT).into(), LIMIT.into()) as i64
}

/// Returns the latest possible time of an event. The time is one unit later, because the kernel's ticks are
/// rounded down.
fn later(time: i64, margin: i64) -> i64 {
    time.saturating_add(margin).saturating_add(1)
}
