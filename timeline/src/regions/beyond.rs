// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Follows critical paths of a guest's threads beyond the guest. While a vCPU was halted, the path follows
//! the host's threads up to the wake-up of the vCPU's thread. If such a thread runs a guest's CPU, the path
//! names the guest's thread that had the CPU.
//!
//! The host's kernel says what a thread of the host did, and a guest says only the names of its threads. So a
//! lie of a guest changes only a name.

use super::causes::{CauseNumber, Causes};
use super::cpus::{Cpus, all_threads};
use super::parts::{Interval, Part};
use super::path::{Doing, Stay, Stretch};
use super::steps::{PathStep, Timed};
use super::vcpus::{GuestCpu, Vcpus};

/// The last halt that was walked, and the path of the host's threads during the halt.
#[derive(Debug, Default)]
pub(super) struct LastHalt {
    halt: Option<(Stretch, u16)>,
    stays: Vec<Stay>,
}

/// The recordings of all threads that show a session's threads, and all that is needed to read these
/// recordings.
pub(super) struct Beyond<'a> {
    pub session: usize,
    /// For each kernel's trace, the sessions whose threads the trace may show. Each session comes with the
    /// index of the trace in the session's recordings.
    pub traced: &'a [Vec<(usize, usize)>],
    pub cpus: &'a [Option<Cpus>],
    /// Returns the clock of the guest that a trace shows.
    pub clock: &'a dyn Fn(u16) -> Option<u32>,
    pub causes: &'a mut Causes,
    pub last: &'a mut LastHalt,
}

impl Beyond<'_> {
    /// Hands over the steps of the divided time `of` of a guest's thread. `clock` is the guest's clock. The
    /// thread had the CPU `of.cpu` in this time, or right after this time.
    pub fn steps(
        &mut self,
        clock: Option<u32>,
        of: &Timed,
        vcpus: &Vcpus,
        mut add: impl FnMut(PathStep),
    ) {
        let mut own = PathStep::new(of.thread, &of.interval);
        let is_interrupt = || self.causes.is_interrupt(of.interval.cause);
        let can_go = match of.interval.part {
            Part::Halted => true,
            Part::Blocked => is_interrupt(),
            _ => false,
        };
        let cpu = clock.zip(of.cpu).filter(|_| can_go);
        if let Some((halt, trace)) = cpu.and_then(|cpu| vcpus.halt(cpu, &of.interval)) {
            self.walk(halt, trace);
            for at in 0..self.last.stays.len() {
                let stay = self.last.stays[at];
                let times = (stay.from.max(of.interval.from), stay.to.min(of.interval.to));
                let is_own = stay.tid == halt.tid || matches!(stay.doing, Doing::Unknown(_));
                if !is_own && times.0 < times.1 {
                    own.ns -= (times.1 - times.0) as u64;
                    self.stay(&stay, times, vcpus, &mut add);
                }
            }
        }
        add(own);
    }

    /// Walks the path of a halt, unless `last` already has the path.
    fn walk(&mut self, halt: Stretch, trace: u16) {
        if self.last.halt != Some((halt, trace)) {
            let cpus = self.cpus.get(usize::from(trace)).and_then(Option::as_ref);
            let stays = cpus.map(|cpus| cpus.stays(halt, self.causes));
            *self.last = LastHalt { halt: Some((halt, trace)), stays: stays.unwrap_or_default() };
        }
    }

    /// Hands over the steps of a host's thread during a time.
    fn stay(
        &mut self,
        stay: &Stay,
        (mut from, to): (i64, i64),
        vcpus: &Vcpus,
        add: &mut impl FnMut(PathStep),
    ) {
        let timed = Timed::new(stay, (from, to), CauseNumber::default());
        let mut add = |thread, (from, to)| {
            add(PathStep::new(thread, &Interval { from, to, ..timed.interval }));
        };
        // While a vCPU's thread is blocked, the step names no thread of the guest, because no such thread
        // runs.
        let is_vcpu = !matches!(stay.doing, Doing::Blocked(..));
        let mut guests = vcpus.run_by(stay.tid, to).filter(|_| is_vcpu);
        let had = guests.find_map(|cpu| self.had(cpu, (from, to)));
        for (end, cause) in had.unwrap_or_default() {
            let is_named = self.causes.is_thread(cause);
            add(if is_named { cause } else { stay.thread }, (from, end));
            from = end;
        }
        add(stay.thread, (from, to));
    }

    /// Returns the threads that had a guest's CPU during a time; `None` if no thread is known.
    fn had(
        &mut self,
        (clock, cpu): GuestCpu,
        times: (i64, i64),
    ) -> Option<Vec<(i64, CauseNumber)>> {
        let all = all_threads(self.traced, self.cpus, self.session);
        let is_its = |cpus: &&Cpus| (self.clock)(cpus.trace) == Some(clock);
        let cpus = all.filter(is_its).find(|cpus| times.1 <= cpus.until)?;
        let had = cpus.had(cpu.into(), times, self.causes);
        had.iter().any(|(_, cause)| self.causes.is_thread(*cause)).then_some(had)
    }
}
