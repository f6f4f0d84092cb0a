// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Guest mode of the host's threads. Checks whether the host's threads were in guest mode at the events of a
//! guest's kernel.
//!
//! A guest reads its TSC only in guest mode. So if KVM's description of the TSC is true, the thread of the
//! host that runs a vCPU was in guest mode at all events of this vCPU. For each CPU, a part of the events is
//! checked.
//!
//! A thread is out of guest mode between `kvm_exit` and its next `kvm_entry`. After an exit that KVM handles
//! at once, some kernels enter the guest again without `kvm_entry`. The next event is then another exit, and
//! nothing is proven about the time between both exits. Nothing is proven about a time in which events of the
//! host were lost, either. So an event that counts as outside of guest mode is certainly outside. An event
//! that counts as inside may be outside too.

use super::{KernelTrace, TSC};
use crate::clock::Line;
use crate::error::Result;
use crate::inputs::ctf::{Found, GuestCpu, GuestTsc, Sample, Session, kvm_line};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Names of the events at the borders of guest mode.
pub(super) const ENTRY: &str = "kvm:kvm_entry";
pub(super) const EXIT: &str = "kvm:kvm_exit";

/// Maximum and minimum number of events of a guest's CPU that are checked. A CPU with fewer events is not
/// checked, because fewer events prove little.
const MAX_EVENTS: usize = 4096;
const FEWEST_EVENTS: usize = 16;

/// Maximum number of pages from which the events of a CPU are taken, over all recordings of a guest.
const MAX_PAGES: usize = 64;

/// Maximum number of CPUs of a guest that are checked.
const MAX_CPUS: u32 = 64;
/// Maximum number of TSCs that are checked for one guest's clock.
const MAX_TSCS: usize = 4;
/// Maximum number of pairs of a CPU and a TSC over all clocks. Each clock has an equal share of the pairs.
const MAX_PAIRS: usize = 1024;

/// Maximum number of threads that run vCPUs. If there are more threads, no CPU is checked.
const MAX_THREADS: usize = 4096;

/// Maximum number of searches for the events of one guest's CPUs, and maximum number of searches for all
/// guests. The searches for one guest take some hundred milliseconds. Each guest gets an equal share. If no
/// thread was in guest mode at the events of a guest, this guest alone could use up all searches. If a guest
/// needs more searches, no CPU of this guest is checked.
const MAX_SEARCHES: (usize, usize) = (1 << 24, 1 << 26);

/// Maximum number of reference points that are compared with each TSC, to choose the TSCs that the guest may
/// read.
const MAX_COMPARED: usize = 256;

/// State of the check, while the trace of the host is read in order of time.
#[derive(Default)]
pub(super) struct GuestModes {
    words: Vec<Word>,
    cpus: Vec<Cpu>,
    /// State of each thread that runs a vCPU, by thread id.
    threads: HashMap<u32, Mode>,
    /// Number of searches so far, for each clock of a guest.
    searches: BTreeMap<u32, usize>,
    /// Host time of the first event of the host.
    start: Option<i64>,
    /// Host time up to which events of the host may be missing.
    missing_until: i64,
}

/// A TSC that KVM may have computed for a guest, and the range of host time for which the TSC held.
struct Word {
    clock: u32,
    tsc: GuestTsc,
    from: i64,
    until: i64,
    /// Maximum error of a time from the TSC's line. The time may be up to this difference too early.
    step: i64,
}

/// A CPU of a guest, with the times of events that follow from the TSC of a [`Word`].
struct Cpu {
    word: usize,
    number: u32,
    /// Host times of events, in order.
    times: Vec<i64>,
}

/// State of a thread that runs a vCPU.
struct Mode {
    /// Host time since which the thread is out of guest mode.
    out: Option<i64>,
    /// Whether the thread has lost its CPU since the time `out`. If true, only `kvm_entry` brings the thread
    /// back to guest mode.
    is_off: bool,
    has_entered: bool,
    /// CPUs of guests that this thread may run, because the thread was never out of guest mode at an event of
    /// such a CPU.
    possible: Vec<usize>,
}

impl GuestModes {
    /// Takes events from the recordings of a session's guests, and computes the events' times with each TSC
    /// that KVM describes in the host's trace.
    pub fn new(
        host: &KernelTrace,
        guests: &[&KernelTrace],
        session: &Session,
        found: &Found,
    ) -> Result<GuestModes> {
        let mut modes = GuestModes { missing_until: i64::MIN, ..GuestModes::default() };
        let has = |name: &str| host.events().any(|event| event == name);
        if host.file.options.tscs.is_empty() || guests.is_empty() || !has(ENTRY) || !has(EXIT) {
            return Ok(modes);
        }
        let mut readings: BTreeMap<(u32, u32), Vec<u64>> = BTreeMap::new();
        for guest in guests {
            guest.read_some(MAX_PAGES.div_ceil(guests.len()), &mut readings)?;
        }
        // If several VMs or vCPUs have the same TSC, the TSC counts once.
        let mut tscs: BTreeMap<GuestTsc, Option<(u64, u64)>> = BTreeMap::new();
        for seen in &host.file.options.tscs {
            let own = host.follows(seen.pid).then_some((seen.from, seen.until));
            let all = tscs.entry(seen.tsc).or_insert(own);
            *all = all.zip(own).map(|(all, own)| (all.0.max(own.0), all.1.min(own.1)));
        }
        let clocks = BTreeSet::from_iter(readings.keys().map(|(clock, _)| *clock));
        for (id, times) in found.by_clock.iter().filter(|(id, _)| clocks.contains(id)) {
            let Some(clock) = session.json().clock(*id) else { continue };
            let own: Vec<_> = readings.range((*id, 0)..(*id, MAX_CPUS)).collect();
            let most_tscs = MAX_PAIRS / clocks.len() / own.len().max(1);
            let samples = Vec::from_iter(times.values().flat_map(|of| &of.samples));
            let every = samples.len().div_ceil(MAX_COMPARED).max(1);
            let is_possible = |line: &Line| {
                samples.iter().step_by(every).any(|sample: &&Sample| sample.is_possible(line))
            };
            let lines = tscs.iter().filter_map(|(tsc, times)| {
                let line = kvm_line(session, clock, *tsc).filter(is_possible)?;
                Some((line, (*times)?))
            });
            for (line, (from, until)) in lines.take(most_tscs.min(MAX_TSCS)) {
                modes.searches.insert(*id, 0);
                let [from, until] = [from, until].map(|at| host.host_time(at, session.origin()));
                let step = i64::try_from(line.step()).unwrap_or(i64::MAX);
                let word = modes.words.len();
                modes.words.push(Word { clock: *id, tsc: line.tsc(), from, until, step });
                for ((_, number), raw) in &own {
                    let at = |raw: &u64| line.at(raw.wrapping_sub(clock.base) as i64);
                    let mut times = Vec::from_iter(raw.iter().map(at));
                    times.sort_by_key(|time| *time);
                    modes.cpus.push(Cpu { word, number: *number, times });
                }
            }
        }
        Ok(modes)
    }

    /// Notes the time of the host's first event. Later calls change nothing.
    pub fn begin(&mut self, time: i64) {
        self.start.get_or_insert(time);
    }

    /// Notes a time up to which events of the host may be missing. The caller must call this method before it
    /// passes the events up to this time.
    pub fn miss(&mut self, until: i64) {
        self.missing_until = self.missing_until.max(until);
    }

    /// Notes a change of a vCPU's TSC offset.
    pub fn change(&mut self, time: i64, previous: i64, next: i64) {
        let is_its = |word: &&mut Word| word.tsc.offset == previous && next != previous;
        for word in self.words.iter_mut().filter(is_its).filter(|word| word.from <= time) {
            word.until = word.until.min(time);
        }
    }

    /// Notes a thread's `kvm_entry`. The entry happened at `time` or later.
    pub fn enter(&mut self, tid: u32, time: i64) {
        // If no exit of the thread is known, the thread was out of guest mode from the first event on.
        let first = self.start.unwrap_or(time);
        let Some(mode) = self.mode(tid, Some(first)) else { return };
        mode.has_entered = true;
        if let Some(from) = mode.out.take() {
            self.leave_out(tid, from, time);
        }
    }

    /// Notes a thread's `kvm_exit`. The exit happened at `time` or earlier.
    pub fn exit(&mut self, tid: u32, time: i64) {
        if let Some(mode) = self.mode(tid, None) {
            (mode.out, mode.is_off) = (Some(time), false);
        }
    }

    /// Notes that a thread lost its CPU. The loss happened at `time` or earlier.
    pub fn lose_cpu(&mut self, tid: u32, time: i64) {
        if let Some(mode) = self.threads.get_mut(&tid) {
            // A thread that has no CPU is out of guest mode, even if the exit event is missing.
            mode.out = mode.out.or(Some(time));
            mode.is_off = true;
        }
    }

    /// Ends all searches.
    fn stop(&mut self) {
        self.cpus.clear();
        self.threads.clear();
    }

    /// Returns the state of a thread that runs a vCPU. A new thread counts as out of guest mode since `out`.
    fn mode(&mut self, tid: u32, out: Option<i64>) -> Option<&mut Mode> {
        if self.cpus.is_empty() {
            return None;
        }
        if !self.threads.contains_key(&tid) && self.threads.len() >= MAX_THREADS {
            self.stop();
            return None;
        }
        let all = self.cpus.len();
        let new = || Mode { out, is_off: false, has_entered: false, possible: (0..all).collect() };
        Some(self.threads.entry(tid).or_insert_with(new))
    }

    /// Notes a time in which a thread was out of guest mode. Removes each CPU with an event in this time from
    /// the CPUs that the thread may run.
    fn leave_out(&mut self, tid: u32, from: i64, until: i64) {
        if self.missing_until > from {
            return;
        }
        let most = self.most_searches();
        let GuestModes { words, cpus, threads, searches, .. } = self;
        let Some(mode) = threads.get_mut(&tid) else { return };
        // A removed CPU is never searched again, so in the end each call searches only the events of the CPU
        // that the thread runs.
        mode.possible.retain(|cpu| {
            let cpu = &cpus[*cpu];
            let word = &words[cpu.word];
            let searches = searches.entry(word.clock).or_default();
            *searches += 1;
            if *searches > most {
                return false;
            }
            let until = until.min(word.until).saturating_sub(word.step);
            let from = from.max(word.from);
            let next = cpu.times.partition_point(|time| *time <= from);
            cpu.times.get(next).is_none_or(|time| *time >= until)
        });
    }

    /// Returns the maximum number of searches for the events of one guest's CPUs.
    fn most_searches(&self) -> usize {
        MAX_SEARCHES.0.min(MAX_SEARCHES.1 / self.searches.len().max(1))
    }

    /// Returns the CPUs with enough checked events. Each CPU comes with the threads that may have been in
    /// guest mode at all these events. `end` is the time of the host's last event.
    pub fn finish(mut self, end: i64) -> Vec<GuestCpu> {
        // Only threads with a `kvm_entry` count, because under some hypervisors `kvm_entry` never occurs.
        let off = self.threads.iter().filter(|(_, mode)| mode.is_off && mode.has_entered);
        let off = Vec::from_iter(off.filter_map(|(tid, mode)| Some((*tid, mode.out?))));
        for (tid, from) in off {
            self.leave_out(tid, from, end);
        }
        let start = self.start.unwrap_or(end);
        let looked_for = |cpu: &Cpu| {
            let word = &self.words[cpu.word];
            let (from, until) = (word.from.max(start), word.until.min(end));
            let before = |limit: i64| cpu.times.partition_point(|time| *time < limit);
            before(until).saturating_sub(before(from))
        };
        let mut found = Vec::new();
        for (number, cpu) in self.cpus.iter().enumerate() {
            let word = &self.words[cpu.word];
            let of_word = self.cpus.iter().filter(|other| other.word == cpu.word);
            // A thread that was in guest mode all the time has no event, so `threads` may lack a thread.
            let are_all_seen =
                of_word.filter(|other| looked_for(other) > 0).count() <= self.threads.len();
            let events = looked_for(cpu);
            let is_beyond = self.searches.get(&word.clock) > Some(&self.most_searches());
            if events < FEWEST_EVENTS || !are_all_seen || is_beyond {
                continue;
            }
            let threads = self.threads.iter().filter(|(_, mode)| mode.possible.contains(&number));
            let mut threads = Vec::from_iter(threads.map(|(tid, _)| *tid));
            threads.sort_by_key(|tid| *tid);
            let (clock, tsc, cpu) = (word.clock, word.tsc, cpu.number);
            found.push(GuestCpu { clock, tsc, cpu, events, threads });
        }
        found
    }
}

impl KernelTrace {
    /// Reads the guest's counter at evenly spread events, from at most about `pages` pages of each CPU. Adds
    /// the readings to `to`. The key is the guest's clock and CPU.
    fn read_some(&self, pages: usize, to: &mut BTreeMap<(u32, u32), Vec<u64>>) -> Result<()> {
        let Some(clock) = self.guest_clock() else { return Ok(()) };
        let plain = self.file.buffers.iter().zip(&self.times);
        for (buffer, times) in plain.filter(|(of, _)| &*of.clock == TSC && !of.is_compressed) {
            for cpu in buffer.cpus.iter().filter(|cpu| cpu.len > 0 && cpu.number < MAX_CPUS) {
                let size = buffer.page_size as u64;
                let all = cpu.len.div_ceil(size);
                let every = all.div_ceil(pages as u64).max(1);
                let readings = to.entry((clock, cpu.number)).or_default();
                if readings.len() >= MAX_EVENTS {
                    continue;
                }
                for page in (0..all).step_by(every as usize) {
                    let at = page * size;
                    let page =
                        super::file::Cpu { at: cpu.at + at, len: size.min(cpu.len - at), ..*cpu };
                    let mut input = super::CpuInput::new(&self.file, times, 0, "", (buffer, page));
                    let mut raw = Vec::new();
                    while input.read()? {
                        raw.push(input.raw());
                    }
                    let every = raw.len().div_ceil(MAX_EVENTS / MAX_PAGES).max(1);
                    readings.extend(raw.into_iter().step_by(every));
                }
                readings.truncate(MAX_EVENTS);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_whose_events_are_nowhere_takes_no_proof_from_another_one() {
        let tsc = GuestTsc { offset: 0, multiplier: 1, shift: 0 };
        let word = |clock| Word { clock, tsc, from: 0, until: i64::MAX, step: 0 };
        // The events of the first guest lie in guest mode. The events of the second guest are later than the
        // whole recording.
        let inside = (0..200_000).map(|n| n * 100 + 50).step_by(1_000);
        let mut cpus = vec![Cpu { word: 0, number: 0, times: inside.collect() }];
        for number in 0..MAX_CPUS {
            cpus.push(Cpu { word: 1, number, times: vec![i64::MAX - 1; 20] });
        }
        let searches = BTreeMap::from([(1, 0), (2, 0)]);
        let words = vec![word(1), word(2)];
        let missing_until = i64::MIN;
        let mut modes =
            GuestModes { words, cpus, searches, missing_until, ..GuestModes::default() };
        modes.begin(0);

        for from in (0..300_000).map(|n| n * 100) {
            modes.enter(7, from + 10);
            modes.exit(7, from + 90);
        }

        let found = modes.finish(30_000_000).into_iter().map(|cpu| (cpu.clock, cpu.threads));
        assert_eq!(Vec::from_iter(found), [(1, vec![7])]);
    }
}
