// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lines about a session for the user: what is missing, and what to do.

use super::super::account::Switches;
use super::super::host::{Counted, Host};
use super::super::vcpus::Vcpus;
use crate::inputs::ctf::{ClockMaps, Session};
use hypertrace_format::number::counted;
use std::path::Path;

/// Returns a line about events of a session that no file holds.
pub(super) fn missing(((session, _), host): (&(Session, ClockMaps), &Host)) -> Option<String> {
    let missing = session.counted().saturating_sub(host.events);
    (missing > 0).then(|| {
        format!(
            "{}: {missing} events that session.json counts are in no stream file: some regions are missing, \
             or lack their begin or end",
            session.dir().display()
        )
    })
}

/// Returns a line about a kernel's trace that has all threads, but lacks the events that say how threads
/// ended.
pub(super) fn without_ends(trace: &Path) -> String {
    format!(
        "{}: the recording lacks the events sched:sched_process_exit, signal:signal_deliver and \
         task:task_newtask, which say which thread ended a process: a critical path is unknown before the \
         end of a thread; `record` without -e records these events",
        trace.display()
    )
}

/// Returns lines about threads that several programs name, and about threads beyond the maximum number of
/// threads.
pub(super) fn disputes(host: &Host) -> impl Iterator<Item = String> {
    let of = |what: Counted, verb: &str| match what.count {
        0 => None,
        1 => Some(format!("1 lease {verb}s thread {}", what.first)),
        count => {
            Some(format!("{count} leases {verb} threads (the first is thread {})", what.first))
        }
    };
    let claimed = of(host.claimed, "name").map(|leases| {
        format!(
            "{leases} that another program had already named: the first program keeps such a thread, and the \
             time of the later lease's regions is unknown"
        )
    });
    let disputed = (host.disputed.count > 0).then(|| {
        format!(
            "on {} of these threads, the kernel's events contradict those of the first program: there the \
             time of both programs is unknown",
            host.disputed.count
        )
    });
    let too_many = of(host.without_account, "name").map(|leases| {
        format!(
            "{leases} beyond the number of threads that can be kept: the time of such a thread is \
                 unknown"
        )
    });
    let of_any = of(host.without_guest, "name").map(|leases| {
        format!(
            "{leases}, with a clock that no recorded kernel of the session's guests has: nothing says which \
             guest such a thread belongs to, and its time is unknown; let the guest's programs trace on the \
             clock of `hypertrace forward`"
        )
    });
    [claimed, disputed, too_many, of_any].into_iter().flatten()
}

/// Returns a line about threads of a session that the filter of its kernel's trace does not have.
pub(super) fn unfollowed(host: &Host) -> Option<String> {
    let mut threads = host.unfollowed();
    let (first, others) = (threads.next()?, threads.count());
    let more = if others > 0 { format!(", and {others} more") } else { String::new() };
    Some(format!(
        "the kernel's trace does not show that it recorded thread {}{more}: the time of such a thread is \
         unknown; record with --pid of the thread's own process",
        first.tid
    ))
}

/// Returns a line about clients whose host threads are not known.
pub(super) fn unplaced(host: &Host) -> Option<String> {
    let regions = host.without_thread;
    if host.recordings.is_empty() || regions == 0 {
        return None;
    }
    let time = counted(regions, "region");
    let next = match host.is_served {
        true => {
            "a server that runs beside the VMM does not see its threads: record the guest's kernel with \
             `hypertrace forward` in the guest"
        }
        false => "a reference point of each source shows its thread",
    };
    Some(format!(
        "nothing shows which threads of the host ran the session's sources: the time of {time} is unknown; \
         {next}"
    ))
}

/// Returns a line about a session if no kernel's trace shows a thread of the session.
pub(super) fn unshown(host: &Host) -> Option<String> {
    let is_shown = host.all_dividing().any(|thread| thread.recording.is_some());
    let is_said = unplaced(host).is_some() || unfollowed(host).is_some();
    if host.recordings.is_empty() || is_shown || is_said {
        return None;
    }
    let (what, next) = match host.all_dividing().next() {
        None if host.is_program => (
            "the session's programs do not name their threads",
            "the guest library names them if it makes the lease",
        ),
        // The session's regions have the field `any_client`, or their threads are beyond the maximum number
        // of threads.
        None => return None,
        Some(_) => (
            "the kernel's trace has no event of the session's threads",
            "record them with `hypertrace record --kernel`, or `record --pid` of their \
             process before the regions begin",
        ),
    };
    Some(format!("{what}: all time is unknown; {next}"))
}

/// Returns a line about switches that are missing in a kernel's trace.
pub(super) fn unreturned(host: &Host) -> Option<String> {
    let Switches { away, unreturned, .. } = host.switches();
    (unreturned > 0).then(|| {
        format!(
            "the kernel dropped {unreturned} of the {away} events that give a thread its CPU back, without \
             counting them. Time after each is unknown until the next event, so waiting and on-CPU times are \
             slightly too small"
        )
    })
}

/// Returns a line if nothing proves which threads of the host run a guest's CPUs.
pub(super) fn unproven(host: &Host) -> Option<String> {
    let guests = host.recordings.iter().filter(|of| of.side.guest().is_some()).map(|of| of.side);
    let mut unproven = guests.filter(|side| host.has_hosts && !host.divides(*side));
    unproven.next().map(|_| {
        let whose = if host.vcpus.is_some() { "a guest's CPUs" } else { "the guest's CPUs" };
        format!(
            "nothing proves which threads of the host run {whose}: time that the host took from the guest \
             counts as time on a CPU or as a wait; `hypertrace record -a` as root gives the proof if it \
             begins before the guest's programs, with KVM's default events, and if the guest's clock is the \
             TSC"
        )
    })
}

/// Returns a line if nothing proves which thread of the host runs some CPUs of guests, although the threads
/// of other CPUs are proven.
pub(super) fn unproven_cpus(host: &Host) -> Option<String> {
    let cpus = host.vcpus.as_ref().map_or(0, Vcpus::unproven);
    (cpus > 0).then(|| {
        let which =
            if cpus == 1 { "one CPU of a guest".into() } else { format!("{cpus} CPUs of guests") };
        format!("nothing proves which thread of the host runs {which}: time there is unknown")
    })
}

/// Returns a line if an event refutes that a thread of the host runs a guest's CPU.
pub(super) fn refuted(host: &Host) -> Option<String> {
    let mut all = host.vcpus.iter().flat_map(Vcpus::refuted);
    let ((cpu, tid), others) = (all.next()?, all.count());
    let more =
        if others > 0 { format!("; the same holds for {others} more CPUs") } else { String::new() };
    Some(format!(
        "the guest's kernel has an event on the guest's CPU {cpu} while thread {tid} was not in guest mode, \
         although all earlier events say that this thread runs that CPU: time on that CPU is unknown from \
         then on{more}"
    ))
}

/// Returns a line about time that waited too long for its proof.
pub(super) fn given_up(host: &Host) -> Option<String> {
    let times = host.given_up();
    (times > 0).then(|| {
        format!(
            "{times} times, too many intervals of a thread between the borders of regions waited for the \
             event that proves them: the time of the intervals left out is unknown"
        )
    })
}
