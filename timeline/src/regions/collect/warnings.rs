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
            "{}: {missing} events that session.json counts are in no stream file: regions are \
             missing, or without their begin or end",
            session.dir().display()
        )
    })
}

/// Returns a line about a kernel's trace of all threads without the events that say how threads ended.
pub(super) fn without_ends(trace: &Path) -> String {
    format!(
        "{}: without the events sched:sched_process_exit, signal:signal_deliver and task:task_newtask, nothing says \
         which thread ended a process: critical paths are not known before a thread that ended; `record` has these \
         events if no -e is given",
        trace.display()
    )
}

/// Returns lines about threads that several programs name, and about threads that are too many.
pub(super) fn disputes(host: &Host) -> impl Iterator<Item = String> {
    let of = |what: Counted, verb: &str| match what.count {
        0 => None,
        1 => Some(format!("1 lease {verb}s the thread {}", what.first)),
        count => {
            Some(format!("{count} leases {verb} threads, the first the thread {}", what.first))
        }
    };
    let claimed = of(host.claimed, "name").map(|leases| {
        format!(
            "{leases}, while another program had it: it stays with that one, and the time of the lease's \
             own regions is unknown"
        )
    });
    let disputed = (host.disputed.count > 0).then(|| {
        format!(
            "the events of the first program contradict the kernel's on {} of these threads: the time of \
             both is unknown there",
            host.disputed.count
        )
    });
    let too_many = of(host.without_account, "name").map(|leases| {
        format!("{leases}, which are more threads than are kept: their time is unknown")
    });
    let of_any = of(host.without_guest, "name").map(|leases| {
        format!(
            "{leases}, by a clock that none of the recorded kernels of the session's guests has: of which guest they are is \
             not known, and their time is unknown; let the guest's programs trace on the clock of `hypertrace forward`"
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
        "the kernel's trace does not show that it recorded the thread {}{more}: that time is \
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
            "a server that runs beside the VMM does not see that: record the guest's kernel with \
             `hypertrace forward` in the guest"
        }
        false => "a reference point of each client shows that",
    };
    Some(format!(
        "which threads of the host ran its clients is not known: the time of {time} is unknown; {next}"
    ))
}

/// Returns a line for a session of which no kernel's trace shows a thread.
pub(super) fn unshown(host: &Host) -> Option<String> {
    let is_shown = host.all_dividing().any(|thread| thread.recording.is_some());
    let is_said = unplaced(host).is_some() || unfollowed(host).is_some();
    if host.recordings.is_empty() || is_shown || is_said {
        return None;
    }
    let (what, next) = match host.all_dividing().next() {
        None if host.is_program => (
            "its programs do not say which threads they are",
            "the guest library does, if it makes the lease",
        ),
        // The session's regions are of any client, or of threads that are too many.
        None => return None,
        Some(_) => (
            "the kernel's trace has no event of its threads",
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
            "the kernel's trace has no switch back after {unreturned} of {away} switches away from the \
             session's threads, also where it counts no loss: the time up to the next event is \
             unknown, and runnable time and that on a CPU are too small by as much"
        )
    })
}

/// Returns a line about guests whose CPUs no thread of the host is proven to run.
pub(super) fn unproven(host: &Host) -> Option<String> {
    let guests = host.recordings.iter().filter(|of| of.side.guest().is_some()).map(|of| of.side);
    let mut unproven = guests.filter(|side| host.has_hosts && !host.divides(*side));
    unproven.next().map(|_| {
        let whose = if host.vcpus.is_some() { "a guest's CPUs" } else { "the guest's CPUs" };
        format!(
            "which threads of the host run {whose} is not proven: what the host did meanwhile is in the time on a CPU and \
             in the waits; `hypertrace record -a` as root proves it, if it records KVM's default events from before the \
             guest's programs begin, and the guest's clock is the TSC"
        )
    })
}

/// Returns a line about CPUs of guests whose thread is not proven, if the threads of other CPUs are.
pub(super) fn unproven_cpus(host: &Host) -> Option<String> {
    let cpus = host.vcpus.as_ref().map_or(0, Vcpus::unproven);
    (cpus > 0).then(|| {
        let which =
            if cpus == 1 { "one CPU of a guest".into() } else { format!("{cpus} CPUs of guests") };
        format!("which thread of the host runs {which} is not proven: time on it is unknown")
    })
}

/// Returns a line about CPUs of a guest that a thread of the host turned out not to run.
pub(super) fn refuted(host: &Host) -> Option<String> {
    let mut all = host.vcpus.iter().flat_map(Vcpus::refuted);
    let ((cpu, tid), others) = (all.next()?, all.count());
    let more =
        if others > 0 { format!(", and so it was with {others} more CPUs") } else { String::new() };
    Some(format!(
        "an event of the guest's kernel on the guest's CPU {cpu} lies outside of the guest mode of thread {tid}, which runs that \
         CPU by all events before: time on that CPU is unknown from there on{more}"
    ))
}

/// Returns a line about time that waited too long for its proof.
pub(super) fn given_up(host: &Host) -> Option<String> {
    let times = host.given_up();
    (times > 0).then(|| {
        format!(
            "{times} times, more intervals of a thread between the borders of regions waited for the event \
             that proves them than are kept: that time is unknown"
        )
    })
}
