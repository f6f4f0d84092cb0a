// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shows which guest thread each vCPU ran. The track stands below the host's thread that provably runs the
//! vCPU.

use super::events::Writer;
use super::fields::{event, track};
use super::intern::Kind;
use super::regions::States;
use super::tracks::Part;
use crate::Result;
use hypertrace_timeline::KernelTrace;
use hypertrace_timeline::regions::{ProvenVcpu, Scheduled, SchedulingStep as Step};
use std::collections::HashMap;

/// The CPUs in guests' traces for which the host's thread is proven.
pub(super) struct Vcpus {
    states: States,
    /// CPUs. The key is the index of the trace and the CPU's id.
    all: HashMap<(usize, u32), Vcpu>,
}

struct Vcpu {
    of: ProvenVcpu,
    /// Id of the CPU's track. 0 if the CPU has no track yet.
    track: u64,
    /// Whether a thread of the guest has the CPU.
    is_taken: bool,
}

impl Vcpus {
    pub fn new(traces: &[KernelTrace], proven: &[ProvenVcpu], states: States) -> Vcpus {
        let of_guests = traces.iter().enumerate().filter(|(_, trace)| trace.is_of_guest());
        let of_trace = |(number, trace): (usize, &KernelTrace)| {
            let guest = (trace.session(), trace.guest_clock());
            let own = proven.iter().filter(move |of| (Some(of.session), Some(of.clock)) == guest);
            let own = own.map(|of| ((number, of.cpu.into()), *of));
            Vec::from_iter(own)
        };
        let new = |(key, of)| (key, Vcpu { of, track: 0, is_taken: false });
        Vcpus { states, all: of_guests.flat_map(of_trace).map(new).collect() }
    }

    /// Writes a step of a guest's CPU.
    pub fn step(&mut self, writer: &mut Writer<'_, '_>, of: &Scheduled<'_>) -> Result<()> {
        let Some(vcpu) = self.all.get_mut(&(of.trace, of.cpu)) else { return Ok(()) };
        match of.step {
            Step::Switch { next, .. } => {
                vcpu.stop(writer, of.ts_ns, self.states)?;
                let is_proven = vcpu.of.until_ns.is_none_or(|until| of.ts_ns < until);
                if next.tid == 0 || !is_proven {
                    return Ok(());
                }
                let name = format!("{}-{}", String::from_utf8_lossy(next.name), next.tid);
                vcpu.begin(writer, of.ts_ns, &name, self.states)
            }
            Step::Lost => vcpu.stop(writer, of.ts_ns, self.states),
            Step::Waking { .. } | Step::Ready { .. } => Ok(()),
        }
    }

    /// Ends the times of threads that had guests' CPUs when the recordings ended.
    pub fn end(mut self, writer: &mut Writer<'_, '_>) -> Result<()> {
        for ((trace, _), vcpu) in &mut self.all {
            let end = writer.known.ends.get(*trace).copied().unwrap_or(i64::MIN);
            vcpu.stop(writer, end, self.states)?;
        }
        Ok(())
    }
}

impl Vcpu {
    fn begin(
        &mut self,
        writer: &mut Writer<'_, '_>,
        at: i64,
        name: &str,
        states: States,
    ) -> Result<()> {
        let machine = writer.machines[self.of.session].host;
        if self.track == 0 {
            let parent = writer.task(machine, self.of.tid, None)?;
            let out = (&mut *writer.out, &writer.others[machine as usize]);
            self.track = writer.tracks.part(out, parent, Part::GuestThreads, |proto| {
                if states == States::Tracks {
                    proto.message(track::STATE, |_| {});
                }
            })?;
        }
        self.is_taken = true;
        let kind = match states {
            States::Tracks => event::STATE,
            States::Slices => event::SLICE_BEGIN,
        };
        writer.other(machine, (at, kind, self.track), |proto, interned| {
            proto.number(event::NAME_IID, interned.number(Kind::Event, name));
        })
    }

    /// Ends the time of the thread that has the CPU.
    fn stop(&mut self, writer: &mut Writer<'_, '_>, at: i64, states: States) -> Result<()> {
        if !std::mem::take(&mut self.is_taken) {
            return Ok(());
        }
        let machine = writer.machines[self.of.session].host;
        let at = at.min(self.of.until_ns.unwrap_or(i64::MAX));
        match states {
            // A state without a name ends the state before it.
            States::Tracks => writer.other(machine, (at, event::STATE, self.track), |_, _| {}),
            States::Slices => writer.slice_end(machine, at, self.track),
        }
    }
}
