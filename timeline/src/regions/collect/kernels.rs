// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events of kernels: marks of threads, and what each CPU did.

use super::super::account::{Mark, Why};
use super::super::cpus::Next;
use super::super::marks::{Kernel, of_kvm};
use super::super::parts::{Evidence, Stream};
use super::Pass;
use crate::event::{EventRef, Thread};
use crate::format;

impl Pass<'_> {
    /// Processes an event of a kernel.
    pub fn kernel(&mut self, event: &EventRef<'_>) {
        let (Some(fields), Some(running)) = (event.fields.kernel(), event.thread) else { return };
        if let Some(trace) = event.trace.checked_sub(self.traced.len()) {
            return self.cpu_event(trace, event, fields, running);
        }
        let (kernel, number) = self.roles.kernel(event);
        let (trace, cpu) = (event.trace as u16, running.cpu.unwrap_or(0) as u16);
        let by = Evidence { stream: Stream::Kernel { trace, cpu }, event: number };
        for at in 0..self.traced.get(event.trace).map_or(0, Vec::len) {
            let to = self.traced[event.trace][at];
            self.kernel_of(to, event.ts_ns, kernel, fields, (running, by), event.bound_ns());
        }
        if self.cpus[event.trace].as_ref().is_some_and(|cpus| cpus.is_in_trace) {
            self.cpu_event(event.trace, event, fields, running);
        }
    }

    /// Processes an event of a CPU of a trace.
    fn cpu_event(
        &mut self,
        trace: usize,
        event: &EventRef<'_>,
        fields: format::Fields<'_>,
        running: Thread,
    ) {
        let Some(cpus) = self.cpus.get_mut(trace).and_then(Option::as_mut) else { return };
        let at = (event.ts_ns, running.cpu.unwrap_or(0), running.tid);
        let kind = self.roles.cpu_event(event);
        let (_, number) = self.roles.kernel(event);
        let stream = Stream::Kernel { trace: trace as u16, cpu: at.1 as u16 };
        let by = Evidence { stream, event: number };
        cpus.take(at, kind, fields, &mut self.causes);
        if kind.is_interrupt() {
            for at in 0..self.traced.get(trace).map_or(0, Vec::len) {
                let (session, recording) = self.traced[trace][at];
                if let Some(thread) = self.hosts[session].shown(running.tid, recording) {
                    let account = &mut self.hosts[session].threads[thread].account;
                    account.by = Some(by);
                    account.mark(event.ts_ns, Mark::Interrupt);
                    self.release(session, thread);
                }
            }
        }
    }

    /// Processes what an event of a recording says about a session's threads.
    fn kernel_of(
        &mut self,
        (session, recording): (usize, usize),
        time: i64,
        kernel: Kernel,
        fields: format::Fields<'_>,
        (running, by): (Thread, Evidence),
        bound: Option<u64>,
    ) {
        let host = &mut self.hosts[session];
        if let Some(cpu) = running.cpu {
            host.recordings[recording].note(cpu as usize, time);
        }
        let cpu = running.cpu.and_then(|cpu| u16::try_from(cpu).ok());
        let guest_cpu = host.recordings[recording].side.guest().zip(cpu);
        if let (Some(vcpus), Some(cpu)) = (&mut host.vcpus, guest_cpu) {
            vcpus.guest_event(cpu, time, bound);
        }
        if kernel == Kernel::Other {
            return;
        }
        if matches!(kernel, Kernel::Elsewhere | Kernel::Wakeup { .. } | Kernel::Start { .. })
            && let Some(thread) = host.shown(running.tid, recording)
        {
            let account = &mut host.threads[thread].account;
            account.by = Some(by);
            account.mark(time, Mark::Other);
            self.release(session, thread);
        }
        if kernel == Kernel::Elsewhere {
            return;
        }
        let host = &mut self.hosts[session];
        if host.recordings[recording].kinds.add(kernel) {
            host.set_all_exactness();
        }
        host.recordings[recording].followed.add(kernel, fields, running.tid);
        // Each vCPU's thread gets an account, even if the thread has no ring and answered no point, because
        // each vCPU may run the guest's threads.
        if host.modes.is_some() && kernel.is_of_kvm() {
            host.thread_for_lanes(running.tid);
        }
        let kinds = host.recordings[recording].kinds;
        let tid = |field| fields.number(field).unwrap_or(-1);
        let trace = match by.stream {
            Stream::Kernel { trace, .. } => trace,
            _ => u16::MAX,
        };
        let cpus = self.cpus.get(usize::from(trace)).and_then(Option::as_ref);
        let (causes, cpu) = (&mut self.causes, running.cpu.unwrap_or(0));
        let prev = match kernel {
            Kernel::Switch { prev, .. } => u32::try_from(tid(prev)).ok(),
            _ => None,
        };
        let mut mark = |tid, mark| {
            let thread = host.traced(tid, recording);
            if let Some(account) = host.account(thread, recording, time) {
                account.by = Some(by);
                if let (Some(cpus), Some((part, from))) = (cpus, account.ends_wait(mark)) {
                    let next = Next { cpu, tid: tid as u32, prev };
                    let most = account.most_causes();
                    cpus.explain(part, next, (from, time), most, causes, &mut account.causes);
                }
                account.mark(time, mark);
            }
            thread
        };
        let (first, second) = match kernel {
            Kernel::Switch { prev, state, next } => {
                let out = Mark::Out(kinds.why(tid(state)));
                (mark(tid(prev), out), mark(tid(next), Mark::In))
            }
            Kernel::Wakeup { tid: field } | Kernel::Start { tid: field } => {
                (mark(tid(field), Mark::Wakeup), None)
            }
            Kernel::SwitchIn { tid: field } => (mark(tid(field), Mark::In), None),
            Kernel::SwitchOut { tid: field, preempted } => {
                let why = if tid(preempted) == 1 { Why::Preempted } else { Why::Unknown };
                (mark(tid(field), Mark::Out(why)), None)
            }
            _ => {
                let thread = host.traced(running.tid.into(), recording);
                if let Some(account) = host.account(thread, recording, time) {
                    let last = account.reason();
                    let mark = of_kvm(kernel, kinds, (trace, fields), &mut self.reasons, last);
                    if let Some((mark, reason)) = mark {
                        account.by = Some(by);
                        match reason {
                            Some(reason) => account.exit(time, mark, reason),
                            None => account.mark(time, mark),
                        }
                    }
                }
                (thread, None)
            }
        };
        host.recordings[recording].followed.remove(kernel, fields);
        for thread in [first, second].into_iter().flatten() {
            self.release(session, thread);
        }
    }
}
