// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The kernel's times around reference points.
//!
//! A reference point is a store that exits to the VMM. The kernel's `kvm_mmio` of it is after
//! the guest's reading and before the host's time. The next `kvm_fpu` (load) or `kvm_entry` of the
//! thread is after the host's time and before the guest's next reading.

use super::KernelTrace;
use super::cpu_input::CpuInput;
use super::shown::shown_by;
use crate::clock::{FRACTION, LIMIT};
use crate::error::Result;
use crate::format::{Fields, Format};
use crate::inputs::ctf::{ClockMaps, Found, GuestTsc, KvmTsc, MOST_POINTS, Sample, Session, find};
use crate::inputs::input::Time;
use crate::sort;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};

/// Most places with lost events. Where there are more, too little is known.
const MOST_GAPS: usize = 1 << 16;

/// Most changes of TSC offsets. Where there are more, only what the recorder saw is known.
const MOST_OFFSETS: usize = 1 << 16;

/// Most TSCs with the times at which KVM computed them: each is compared with each constraint. A guest can change its
/// offset at will, so beyond this number none counts.
const MOST_WORDS: usize = 256;

/// The event of a vCPU that gets another TSC offset.
const TSC_OFFSET: &str = "kvm:kvm_write_tsc_offset";

/// `kvm_mmio`'s type of a store.
const WRITE: i64 = 2;

impl KernelTrace {
    /// Makes the clock maps of the trace's session, as [`ClockMaps::of`], with the kernel's times around
    /// reference points: bounds are smaller then. Times that contradict the reference points are
    /// left out and counted. The trace is read once.
    ///
    /// # Errors
    /// If the session or the trace is damaged.
    pub fn clock_maps(&self, session: &Session) -> Result<ClockMaps> {
        KernelTrace::maps_by([self], session)
    }

    /// Makes the clock maps of the session with this index as [`clock_maps`](KernelTrace::clock_maps) does, by all
    /// traces that show its host's threads: its own, or those of the same boot in other directories.
    /// Without one, it is [`ClockMaps::of`]. Sessions and traces are those of a timeline.
    ///
    /// # Errors
    /// If the session or a trace is damaged.
    pub fn clock_maps_of(
        number: usize,
        sessions: &[Session],
        traces: &[KernelTrace],
    ) -> Result<ClockMaps> {
        let all = Vec::from_iter(sessions);
        let shows = |trace: &&KernelTrace| {
            !trace.is_of_guest()
                && shown_by(trace, &all, traces).is_some_and(|mut shown| shown.any(|n| n == number))
        };
        let mut shown = traces.iter().filter(shows).peekable();
        match shown.peek() {
            Some(_) => KernelTrace::maps_by(shown, &sessions[number]),
            None => ClockMaps::of(&sessions[number]),
        }
    }

    fn maps_by<'a>(
        traces: impl IntoIterator<Item = &'a KernelTrace>,
        session: &Session,
    ) -> Result<ClockMaps> {
        let mut found = find(session, MOST_POINTS)?;
        for trace in traces {
            if trace.times.iter().all(|times| times.bound.is_some()) {
                trace.fill(session, &mut found)?;
            }
        }
        Ok(ClockMaps::from(session, found))
    }

    /// Returns the TSCs that KVM computed for VMs of this host, each with the host times from and until which it did so, in
    /// [units](FRACTION) from the session's origin.
    ///
    /// # Errors
    /// If the trace is damaged.
    pub fn kvm_tscs(&self, session: &Session) -> Result<Vec<(GuestTsc, i64, i64)>> {
        let mut found = Found::default();
        self.fill(session, &mut found)?;
        Ok(found.tscs.into_iter().map(|KvmTsc { tsc, from, until }| (tsc, from, until)).collect())
    }

    /// Fills in the kernel's times.
    fn fill(&self, session: &Session, found: &mut Found) -> Result<()> {
        let mut around = Around::default();
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
            sort::by_key(&mut thread.samples, |sample| sample.host);
        }
        around.read(self, session.origin())?;
        around.leave_out_gaps();
        let Around { offsets, end, gaps, .. } = around;
        let is_complete = gaps.is_empty() && offsets.len() <= MOST_OFFSETS;
        found.tscs.extend(self.tscs(session.origin(), &offsets, end.filter(|_| is_complete)));
        Ok(())
    }

    /// Returns when VMs had the TSCs that the recorder saw. `end` is the last event's time, if no change is missing up
    /// to there.
    fn tscs(&self, origin: Time, offsets: &[NewOffset], end: Option<i64>) -> Vec<KvmTsc> {
        let Some(times) = self.times.first() else { return Vec::new() };
        let host = |ticks| {
            let time = times.at(&mut (0, 0), 0, ticks).0 - origin;
            time.clamp((-LIMIT).into(), LIMIT.into()) as i64
        };
        let has_changes = self.events().any(|name| name == TSC_OFFSET);
        let mut found = Vec::new();
        for seen in &self.file.options.tscs {
            let own = seen.tsc.offset;
            let (first, last) = (host(seen.from), host(seen.until));
            let is_recorded = self.threads().is_none_or(|threads| threads.contains(&seen.pid));
            let end = end.filter(|_| has_changes && is_recorded).unwrap_or(last).max(last);
            let comes = |change: &NewOffset| change.next == own;
            let goes = |change: &NewOffset| change.previous == own && change.next != own;
            // A vCPU that had another offset got this one before it was seen.
            let begun = offsets.iter().rev().find(|change| comes(change) && change.time <= first);
            let from = begun.map_or(first, |change| change.time);
            let mut held = Some(from);
            let meanwhile = |change: &&NewOffset| from < change.time && change.time < end;
            for change in offsets.iter().filter(meanwhile) {
                match held {
                    Some(from) if goes(change) => {
                        found.push(KvmTsc { tsc: seen.tsc, from, until: change.time });
                        held = None;
                    }
                    None if comes(change) => held = Some(change.time),
                    _ => {}
                }
            }
            found.extend(held.map(|from| KvmTsc { tsc: seen.tsc, from, until: end }));
            if found.len() > MOST_WORDS {
                return Vec::new();
            }
        }
        found
    }
}

/// Samples of a session while the trace is read.
#[derive(Default)]
struct Around<'a> {
    /// By number of the thread.
    threads: HashMap<u32, Served<'a>>,
    /// Times between which events of a CPU were lost, in order of their ends.
    gaps: Vec<(i64, i64)>,
    /// Changes of TSC offsets, in order of time, at most one more than [`MOST_OFFSETS`].
    offsets: Vec<NewOffset>,
    /// Time of the last event.
    end: Option<i64>,
}

/// KVM gave a vCPU another TSC offset.
#[derive(Clone, Copy)]
struct NewOffset {
    time: i64,
    previous: i64,
    next: i64,
}

/// The reference points that a thread served.
#[derive(Default)]
struct Served<'a> {
    /// In order of host time.
    samples: Vec<&'a mut Sample>,
    /// Number of them before the thread's last event.
    passed: usize,
    /// Time and value of the last store that the kernel handled; 0 for another access.
    stored: Option<(i64, u64)>,
    /// Whether the exit of the last point was found, and is not over.
    is_out: bool,
}

/// Kind of an event, with the indices of the fields that it needs.
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
    /// It shows that the guest ran.
    Exit,
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
                "kvm:kvm_entry" => KernelEvent::Entry,
                "kvm:kvm_exit" | "kvm:kvm_emulate_insn" => KernelEvent::Exit,
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
        let mut inputs: Vec<CpuInput<'_>> = trace.inputs(0, "").map(|(_, input)| input).collect();
        let mut heap = BinaryHeap::new();
        // A few formats, by their addresses.
        let mut kinds: HashMap<usize, KernelEvent> = HashMap::new();
        let mut last = vec![-LIMIT; inputs.len()];
        let mut at_end = Vec::new();
        for (number, input) in inputs.iter_mut().enumerate() {
            match input.read()? {
                true => heap.push(Reverse((input.time(), number))),
                false if input.is_cut() || input.take_missed().is_some() => {
                    at_end.push((-LIMIT, LIMIT));
                }
                false => {}
            }
        }
        while let Some(mut first) = heap.peek_mut() {
            let number = first.0.1;
            let input = &mut inputs[number];
            let time = (input.time() - origin).clamp((-LIMIT).into(), LIMIT.into()) as i64;
            let margin = input.bound_ns().map_or(LIMIT, |ns| {
                i64::try_from(ns).unwrap_or(LIMIT).saturating_mul(FRACTION).min(LIMIT)
            });
            self.end = self.end.max(Some(time));
            if let Some((tid, fields)) = input.record() {
                let format = std::ptr::from_ref(fields.format).addr();
                let kind = *kinds.entry(format).or_insert_with(|| KernelEvent::of(fields.format));
                self.take(tid, kind, fields, (time, margin));
            }
            if input.take_missed().is_some() && self.gaps.len() <= MOST_GAPS {
                self.gaps.push((last[number], time));
            }
            last[number] = time;
            match input.read()? {
                true => first.0.0 = input.time(),
                false => {
                    if input.is_cut() || input.take_missed().is_some() {
                        at_end.push((time, LIMIT));
                    }
                    PeekMut::pop(first);
                }
            }
        }
        self.gaps.extend(at_end);
        Ok(())
    }

    fn take(
        &mut self,
        tid: u32,
        kind: KernelEvent,
        fields: Fields<'_>,
        (time, margin): (i64, i64),
    ) {
        let number = |field| fields.number(field).unwrap_or(-1);
        if let KernelEvent::Offset { previous, next } = kind
            && self.offsets.len() <= MOST_OFFSETS
        {
            let (previous, next) = (number(previous), number(next));
            self.offsets.push(NewOffset { time, previous, next });
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
            KernelEvent::Fpu { .. } | KernelEvent::Exit => thread.is_out = false,
            KernelEvent::Offset { .. } | KernelEvent::Other => {}
        }
    }

    /// Removes times that a lost event could have changed.
    fn leave_out_gaps(&mut self) {
        if self.gaps.is_empty() {
            return;
        }
        // Their ends are in order. Of those that end later, one that begins earliest matters.
        let mut earliest = i64::MAX;
        for gap in self.gaps.iter_mut().rev() {
            earliest = earliest.min(gap.0);
            gap.0 = earliest;
        }
        let are_all_known = self.gaps.len() <= MOST_GAPS;
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
    /// Takes the points before an event of the thread.
    fn pass(&mut self, time: i64, margin: i64) {
        while let Some(sample) = self.samples.get_mut(self.passed).filter(|s| s.host <= time) {
            let stored = self.stored.take().filter(|(_, value)| *value as u32 == sample.seq);
            // Otherwise the next events may be of another point.
            self.is_out = stored.is_some();
            if let Some((at, _)) = stored {
                // Another trace may have it, too.
                sample.reached = Some(later(at, margin).min(sample.host));
            }
            self.passed += 1;
        }
    }

    /// Takes an event before the guest runs again.
    fn resume(&mut self, time: i64, margin: i64) {
        let sample = self.passed.checked_sub(1).and_then(|last| self.samples.get_mut(last));
        // A store before it is not that of the next point.
        self.stored = None;
        if let Some(sample) = sample.filter(|_| self.is_out) {
            sample.resumed = Some(time.saturating_sub(margin).max(sample.host));
        }
    }
}

/// Returns the latest time of an event. The kernel's ticks are rounded down.
fn later(time: i64, margin: i64) -> i64 {
    time.saturating_add(margin).saturating_add(1)
}
