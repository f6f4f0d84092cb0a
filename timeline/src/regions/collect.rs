// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The pass over the timeline, which keeps the accounts of threads, and the open regions of clients.

mod borders;
mod kernels;
mod losses;
mod spans;
mod warnings;

use super::account::Mark;
use super::beyond::{Beyond, LastHalt};
use super::breakdown::{CauseEntry, Named};
use super::causes::Causes;
use super::choice::Chooser;
use super::cpus::{Cpus, all_threads};
use super::followed::Followed;
use super::groups::{Groups, unknown};
use super::host::{self, Host, Side, Thread, lease};
use super::lanes::Logged;
use super::marks::{Kinds, Reasons};
use super::pairs::Pairs;
use super::parts::{Detail, Divided, Evidence, Interval, Part, Reason, Stream};
use super::region_path::Path;
use super::roles::{Role, Roles, has_parted};
use super::spans::inner::Link;
use super::spans::{Key, Spans};
use super::steals::Steals;
use super::store::{NO_BOUND, State, Store};
use super::vcpus::{Unplaced, Vcpus, Waiter};
use super::waited;
use super::{Options, ProvenVcpu, Regions, Select, Sink, ThreadInterval};
use crate::error::Result;
use crate::event::{EntryRef, EventKind, EventRef};
use crate::inputs::ctf::{ClockMaps, Session};
use crate::inputs::kernel::{KernelTrace, machine_of, shown_by};
use crate::inputs::names::Names;
use crate::inputs::needs::Needs;
use crate::recording::Recording;
use hypertrace_format::error::Warning;
use hypertrace_format::number::{counted, grouped};
use losses::Losses;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use warnings::{
    disputes, given_up, missing, refuted, unfollowed, unplaced, unproven, unproven_cpus,
    unreturned, unshown, without_ends,
};

/// Number of events of each CPU that are read before the merge. These events show which kinds of events the
/// trace has.
const FIRST_EVENTS: usize = 1 << 12;
/// Maximum number of intervals of all threads that are kept, of 32 bytes each. If there are more intervals,
/// the intervals in the first half of the time are forgotten.
const MAX_LOGGED: usize = 1 << 23;

/// Maximum number of intervals of a thread that are kept before they are handed over.
const MAX_UNSENT: usize = 1 << 10;

/// The pass.
struct Pass<'a> {
    options: &'a Options,
    chooser: Chooser<'a>,
    hosts: Vec<Host>,
    /// For each kernel's trace, the sessions whose threads the trace may show. Each session comes with the
    /// index of the trace in [`Host::recordings`].
    traced: Vec<Vec<(usize, usize)>>,
    /// Machine of each kernel's trace, and the sessions with threads of that machine.
    owners: Vec<(Side, Vec<usize>)>,
    /// CPUs of each kernel's trace, if the trace has the events of all threads.
    cpus: Vec<Option<Cpus>>,
    causes: Causes,
    /// Critical paths of regions, by the region's index in the store. A path stays here until the whole path
    /// and the time of the region's own thread are known.
    paths: HashMap<u32, Path>,
    /// Number of switches and wake-ups on the paths that were walked for single regions.
    walked: u64,
    /// Number of switches and wake-ups on all paths.
    #[cfg(test)]
    records: u64,
    roles: Roles,
    reasons: Reasons,
    groups: Groups,
    store: Store,
    waited: waited::Spans,
    spans: Spans,
    /// Span whose poll ends now. The flag says whether the time of the poll counts for the span.
    polling: Option<(Key, bool)>,
    /// Number that stands for the polls of the span that ends now.
    parting: Option<u64>,
    /// Link of the span that ends now to the span around it.
    ending: Option<Link>,
    /// Memory for intervals of a guest's thread that are divided.
    placed: Vec<(Interval, Option<Reason>)>,
    last_halt: LastHalt,
    /// Number of all threads' intervals that are kept.
    logged: usize,
    /// Sink that receives the intervals. If there is a sink, intervals are not kept.
    sink: Option<Sink<'a>>,
    /// Losses of each session.
    losses: Vec<Losses>,
    /// Whether one client, or one thread of the VMM, had both an event that begins a region and an event that
    /// ends a region.
    has_both: bool,
    is_cut: bool,
}

/// Reads the recording, and sums up its regions. See [`Regions::of`].
pub(super) fn collect<'a>(
    recording: &Recording,
    options: &'a Options,
    sink: Option<Sink<'a>>,
) -> Result<Regions> {
    let Recording { sessions, traces, .. } = recording;
    let (pass, mut warnings) = read(recording, options, sink)?;
    warnings.extend(sessions.iter().zip(&pass.hosts).filter_map(missing).map(Warning::from));
    for ((session, _), losses) in sessions.iter().zip(&pass.losses) {
        warnings.extend(losses.said(session.dir()).map(Warning::from));
    }
    for (number, ((session, _), host)) in sessions.iter().zip(&pass.hosts).enumerate() {
        if pass.groups.all.iter().any(|group| group.session == number) {
            let of_guest = [unproven(host), refuted(host), unproven_cpus(host)];
            let lines = [unplaced(host), unshown(host), unreturned(host), given_up(host)];
            let lines = lines.into_iter().chain(of_guest).flatten();
            warnings.extend(lines.map(|line| Warning::from(line).of(session.dir().display())));
        }
    }
    let mut recordings = vec![Vec::new(); sessions.len()];
    let mut of_guests_ms = None;
    for (trace, shows) in traces.iter().zip(&pass.traced) {
        for (session, _) in shows {
            let host = &pass.hosts[*session];
            // If the host's kernel divides the guest's time, the regions already have a part for the time
            // that the host took.
            if let Some(ms) =
                trace.steal_ms().filter(|_| trace.is_of_guest() && !host.divides(Side::of(trace)))
            {
                of_guests_ms = Some(of_guests_ms.unwrap_or(0u64).saturating_add(ms));
            }
            // If the host's kernel may show the guest's vCPUs, the time that the guest counted as stolen is
            // not used, because this time says nothing about the host's threads.
            if !trace.is_of_guest() || !host.has_hosts {
                recordings[*session].push(trace);
            }
        }
    }
    let mut regions = pass.finish(warnings, traces, &Steals::new(&recordings));
    let of_hosts = || traces.iter().filter(|trace| !trace.is_of_guest());
    regions.steal_ms = of_hosts().filter_map(KernelTrace::steal_ms).reduce(u64::saturating_add);
    regions.steal_at_most_ms =
        of_hosts().filter_map(KernelTrace::steal_at_most_ms).fold(0, u64::saturating_add);
    regions.guest_steal_ms = of_guests_ms;
    let cut = regions.cut();
    regions.warnings.extend(cut.map(Warning::from));
    let hosts = sessions.iter().map(|(session, _)| (session.name(), session.json().sides()));
    let names = Names::new(hosts.collect());
    regions.sessions =
        (0..sessions.len()).map(|n| names.prefix(n).trim_end_matches(':').to_owned()).collect();
    Ok(regions)
}

/// Reads the recording up to its end.
fn read<'a>(
    recording: &Recording,
    options: &'a Options,
    sink: Option<Sink<'a>>,
) -> Result<(Pass<'a>, Vec<Warning>)> {
    let Recording { sessions, traces, .. } = recording;
    let mut warnings = Vec::new();
    let all = Vec::from_iter(sessions.iter().map(|(session, _)| session));
    let shown = |trace| shown_by(trace, &all, traces).into_iter().flatten();
    let of_hosts = traces.iter().filter(|trace| !trace.is_of_guest() && trace.has_switches());
    let shown = BTreeSet::from_iter(of_hosts.flat_map(shown));
    let mut hosts: Vec<Host> = (0..)
        .zip(sessions)
        .map(|(number, (session, maps))| {
            let own = traces.iter().filter(|trace| trace.session() == Some(number));
            let kernels = own.filter_map(|trace| Side::of(trace).guest()).collect();
            let has_log = options.keeps_intervals || sink.is_some();
            let mut host = Host::new(session, maps, &kernels, shown.contains(&number), has_log);
            for (tid, vcpu) in &options.threads {
                host.add_lane(*tid, vcpu.is_some());
            }
            host
        })
        .collect();
    let mut traced = vec![Vec::new(); traces.len()];
    let mut cpus = Vec::from_iter(traces.iter().map(|_| None));
    for (number, ((trace, shows), cpus)) in
        traces.iter().zip(&mut traced).zip(&mut cpus).enumerate()
    {
        let of_guest = trace.is_of_guest();
        if of_guest && trace.session().is_none_or(|number| !hosts[number].is_program) {
            // The trace shows threads of a guest, and no client of the session is such a thread.
            continue;
        }
        let Some(shown) = shown_by(trace, &all, traces) else {
            warnings.push(
                format!(
                    "{}: nothing says which session this file belongs to: its events are left out",
                    trace.path().display()
                )
                .into(),
            );
            continue;
        };
        if !trace.has_switches() {
            warnings.push(format!(
                "{}: the recording has no event sched:sched_switch, which proves that a thread had a CPU: \
                 the time of its threads is unknown; record with -e sched:sched_switch too, or without -e",
                trace.path().display()
            ).into());
            continue;
        }
        let (kinds, end) = (Kinds::of(&trace.first_names(FIRST_EVENTS)?), trace.end()?);
        let Some(end) = end else { continue };
        let all_threads = trace.all_threads_until()?;
        if options.has_paths && all_threads.is_some_and(|all| !all.knows_ends) {
            warnings.push(without_ends(trace.path()).into());
        }
        *cpus = all_threads.map(|all| Cpus::new(number as u16, all, options.has_paths));
        for session in shown {
            let host = &mut hosts[session];
            let is_shown = match of_guest {
                true => trace.session() == Some(session),
                false => host.has_vmm || !host.has_guests,
            };
            if !is_shown {
                continue;
            }
            let recordings = &mut host.recordings;
            shows.push((session, recordings.len()));
            let followed = Followed::new(trace.threads());
            recordings.push(host::Recording::new(Side::of(trace), kinds, end, followed));
            if let (false, Some(vcpus)) = (of_guest, &mut host.vcpus) {
                vcpus.end = vcpus.end.max(end);
            }
        }
    }
    let owners = traces.iter().map(|trace| match Side::of(trace) {
        side @ Side::Guest(_) => (side, Vec::from_iter(trace.session())),
        Side::Host => {
            let of_host = |number: &usize| hosts[*number].has_vmm || !hosts[*number].has_guests;
            (Side::Host, machine_of(trace, &all).into_iter().filter(of_host).collect())
        }
    });
    let owners = owners.collect();
    let mut pass = Pass::new(sessions, options, hosts);
    (pass.traced, pass.owners, pass.cpus, pass.sink) = (traced, owners, cpus, sink);
    let needs = Needs::of_regions(pass.unneeded());
    let mut timeline = recording.timeline(&needs)?;
    loop {
        // The event is taken by reference, because a copy would cost as much as the account of the event.
        match timeline.read() {
            Some(Ok(EntryRef::Event(ref event))) if event.kind == EventKind::Kernel => {
                pass.kernel(event);
            }
            Some(Ok(EntryRef::Event(ref event))) => pass.event(event),
            Some(Ok(EntryRef::Lost(ref lost))) => pass.lost(lost),
            Some(Err(error)) => return Err(error),
            None => break,
        }
    }
    for (session, events) in timeline.left_out() {
        pass.hosts[session].events += events;
    }
    warnings.extend(timeline.warnings());
    Ok((pass, warnings))
}

impl<'a> Pass<'a> {
    fn new(sessions: &[(Session, ClockMaps)], options: &'a Options, hosts: Vec<Host>) -> Pass<'a> {
        let roles = Roles::of(sessions, options);
        Pass {
            options,
            chooser: Chooser::new(&options.choice),
            traced: Vec::new(),
            owners: Vec::new(),
            cpus: Vec::new(),
            causes: Causes::new(),
            paths: HashMap::new(),
            walked: 0,
            #[cfg(test)]
            records: 0,
            groups: Groups::new(roles.names().len(), hosts.len(), options.by.key()),
            roles,
            hosts,
            reasons: Reasons::new(),
            store: Store::new(),
            waited: waited::Spans::default(),
            spans: Spans::new(
                sessions
                    .iter()
                    .map(|(session, _)| (session.has_lost_elsewhere(), has_parted(session))),
            ),
            polling: None,
            parting: None,
            ending: None,
            placed: Vec::new(),
            last_halt: LastHalt::default(),
            logged: 0,
            sink: None,
            losses: vec![Losses::default(); sessions.len()],
            has_both: false,
            is_cut: false,
        }
    }

    /// Returns for each session the classes whose events are not needed if a guest stamped them with its own
    /// clock. No region begins or ends with an event of such a class, and the kernel's events say when the
    /// guest ran.
    fn unneeded(&self) -> Vec<Box<[bool]>> {
        let of_session = |(session, host): (usize, &Host)| {
            let has_exits = |recording: &host::Recording| recording.kinds.exactness(false).exits;
            // A log needs all events, because each event of a thread ends an unknown interval of the thread.
            match !host.is_program && !host.has_log && host.recordings.iter().all(has_exits) {
                true => self.roles.no_borders(session),
                false => Box::default(),
            }
        };
        self.hosts.iter().enumerate().map(of_session).collect()
    }

    /// Processes an event of a session.
    fn event(&mut self, event: &EventRef<'_>) {
        let role = self.roles.get(event);
        let session = event.source.session;
        if let (EventKind::Lease, Some(client)) = (event.kind, event.source.client) {
            self.end_holder(session, client, event);
        }
        let Some(host) = self.hosts.get_mut(session) else { return };
        let time = event.ts_ns;
        match event.kind {
            EventKind::Lease => lease(host, event),
            EventKind::TimeFault => {}
            _ => host.events += 1,
        }
        // The thread of the VMM that made the event, or that served the reference point.
        let of_vmm = event.thread.filter(|_| host.has_vmm);
        let served = of_vmm.and_then(|thread| host.known(Side::Host, thread.tid));
        // A server's thread serves clients, but does not run clients.
        let is_own = event.source.client.is_none() || !host.is_served && !host.is_program;
        let mut thread = served.filter(|_| is_own);
        // Only the VMM's event counts, because a guest may have events with this name too.
        let is_run = role.is_run && event.source.client.is_none();
        let for_lanes = |host: &Host, thread: usize| host.threads[thread].for_lanes;
        let is_divided = served.is_some_and(|thread| !for_lanes(host, thread));
        if is_run && is_divided && !std::mem::replace(&mut host.runs, true) {
            host.set_all_exactness();
        }
        let mut is_unknown = false;
        if let Some(thread) = served {
            is_unknown = host.is_unknown(thread, time);
            if !is_unknown {
                let mark = if is_run { Mark::Run } else { Mark::Vmm };
                let account = &mut host.threads[thread].account;
                let stream = Stream::Thread(event.thread.map_or(0, |thread| thread.tid));
                account.by = Some(Evidence { stream, event: role.event });
                match role.reason(event).filter(|_| event.source.client.is_none()) {
                    Some(name) => account.vmm_exit(time, || self.reasons.of_vmm(name)),
                    None => account.mark(time, mark),
                }
            }
        }
        if let Some(client) = event.source.client.filter(|_| host.is_program || of_vmm.is_none()) {
            thread = host.client(client).and_then(|client| client.thread(time));
            if let Some(thread) = thread {
                is_unknown = host.is_unknown(thread, time);
                // A program's point is no mark of the program's thread: the point has the time at which the
                // host handled the point, and the thread waited at that time.
                let is_of_host = host.is_program && event.kind == EventKind::ReferencePoint;
                if !is_unknown && !is_of_host {
                    let by = Evidence { stream: Stream::Client(client), event: role.event };
                    host.threads[thread].account.by = Some(by);
                    host.guest(thread, event);
                }
            }
        }
        for thread in [served, thread.filter(|_| thread != served)].into_iter().flatten() {
            self.release(session, thread);
        }
        // A region with `any_client` gets no thread, because such a region may end on another thread.
        let host = &self.hosts[session];
        let on = thread.map(|thread| (host.threads[thread].side, host.threads[thread].tid));
        let thread = thread.filter(|thread| !role.is_of_any && !for_lanes(host, *thread));
        let is_unknown = is_unknown && thread.is_some();
        if role.is_lost_span {
            self.losses[session].spans += 1;
        }
        if !self.span_event(event, role, (thread, on), is_unknown) {
            if let Some(name) = role.ends {
                self.end(event, role, name, (thread, on), is_unknown);
            }
            if let Some(name) = role.begins {
                self.begin(event, role, name, thread, is_unknown);
            }
        }
        if !self.has_both && role.begins.or(role.ends).is_some() {
            self.has_both = self.pairs(event, role).is_some_and(|pairs| pairs.has_both());
        }
    }

    fn pairs(&mut self, event: &EventRef<'_>, role: Role) -> Option<&mut Pairs> {
        let host = &mut self.hosts[event.source.session];
        match (event.source.client, event.thread) {
            (Some(_), _) if role.is_of_any => Some(&mut host.of_any),
            (Some(client), _) => host.client(client).map(|client| &mut client.pairs),
            (None, Some(thread)) => host.vmm(thread.tid),
            (None, None) => None,
        }
    }

    /// Processes the intervals of a thread that the thread's events have proven by now. Then divides the
    /// regions that ended before the end of these intervals.
    fn release(&mut self, session: usize, at: usize) {
        let Host { vcpus, threads, modes, .. } = &mut self.hosts[session];
        let thread = &mut threads[at];
        let is_divided = thread.side == Side::Host || thread.unplaced.is_some();
        let Some(vcpus) = vcpus.as_mut().filter(|_| is_divided) else {
            let logged = thread.tally.log().len();
            let mut modes = modes.as_mut();
            let take = |interval: &Interval, is_merged| {
                modes.iter_mut().for_each(|modes| modes.take(at, interval, is_merged));
            };
            if thread.tally.pass(&mut thread.account, take) {
                self.divide_passed(session, at);
            }
            return self.note_log(session, at, logged);
        };
        if !thread.account.has_proven() {
            return;
        }
        if let Some(unplaced) = &mut thread.unplaced {
            thread.account.take_proven(|interval, is_merged| {
                let mut interval = *interval;
                if is_merged && matches!(interval.part, Part::OnCpu | Part::Runnable) {
                    interval.part = Part::Unknown;
                }
                unplaced.push(interval, vcpus, &self.causes);
            });
            return self.place(session, at);
        }
        let logged = thread.tally.log().len();
        let vcpu = Some(thread.tid).filter(|tid| vcpus.has(*tid));
        let mut exit = thread.account.new_exit();
        thread.tally.pass(&mut thread.account, |interval, is_merged| {
            let Some(vcpu) = vcpu else { return };
            let mut interval = *interval;
            if is_merged {
                interval.part = Part::Unknown;
            }
            match interval.part {
                Part::Blocked if Reasons::is_halt(interval.reason) => {
                    interval.part = Part::Halted;
                    let times = (interval.from, interval.to);
                    let is_host =
                        |cpus: &&Cpus| self.owners[usize::from(cpus.trace)].0 == Side::Host;
                    let mut hosts = all_threads(&self.traced, &self.cpus, session).filter(is_host);
                    let halt = |cpus: &Cpus| Some((cpus.stretch(vcpu, times)?, cpus.trace));
                    if let Some((halt, trace)) = hosts.find_map(halt) {
                        vcpus.take_halt(halt, trace);
                    }
                }
                // If the cause is *idle*, a wake-up was under way and no thread had the CPU. So no thread
                // stole this time.
                Part::Runnable if !self.causes.is_idle(interval.cause) => {
                    interval.part = Part::Stolen;
                }
                _ => {}
            }
            let begins = exit.filter(|_| interval.part == Part::Kernel);
            exit = exit.filter(|_| begins.is_none());
            vcpus.take(vcpu, &interval, begins);
        });
        self.divide_passed(session, at);
        self.note_log(session, at, logged);
        if let Some(vcpu) = vcpu {
            while let Some(waiter) =
                self.hosts[session].vcpus.as_mut().and_then(|vcpus| vcpus.next_waiting(vcpu))
            {
                match waiter {
                    Waiter::Thread(guest) => {
                        self.hosts[session].threads[guest]
                            .unplaced
                            .iter_mut()
                            .for_each(Unplaced::wake);
                        self.place(session, guest);
                    }
                    Waiter::Path(index) => self.place_path(index),
                    Waiter::Walked(thread) => {
                        let walked = &mut self.hosts[session].threads[thread].walked;
                        walked.iter_mut().for_each(|walked| walked.wake());
                        self.place_walked(session, thread);
                    }
                }
            }
        }
    }

    /// Divides the intervals of a guest's thread. What the host's kernel proves about the thread's CPU
    /// determines the parts.
    fn place(&mut self, session: usize, at: usize) {
        let host = &mut self.hosts[session];
        let (Some(vcpus), Some(thread)) = (&mut host.vcpus, host.threads.get_mut(at)) else {
            return;
        };
        let Some(unplaced) = &mut thread.unplaced else { return };
        let logged = thread.tally.log().len();
        if thread.tally.is_unused() && !host.has_log {
            return unplaced.clear(vcpus);
        }
        let mut placed = std::mem::take(&mut self.placed);
        unplaced.divide(Waiter::Thread(at), vcpus, &mut placed);
        thread.tally.pass_each(&placed);
        placed.clear();
        self.placed = placed;
        self.divide_passed(session, at);
        self.note_log(session, at, logged);
    }

    /// Divides the regions that ended before the end of a thread's proven intervals.
    fn divide_passed(&mut self, session: usize, at: usize) {
        while let Some((index, divided)) = {
            let tally = &mut self.hosts[session].threads[at].tally;
            tally.next_passed(|index| self.store.times(index))
        } {
            self.divide_own(index, divided);
        }
    }

    /// Divides the part of a region's path that is known by now. If the whole path is known, also divides the
    /// time of the region.
    fn place_path(&mut self, index: u32) {
        let Pass { paths, store, hosts, causes, placed, .. } = self;
        let Pass { traced, owners, cpus, last_halt: last, .. } = self;
        let clock = |trace: u16| owners[usize::from(trace)].0.guest();
        let session = usize::from(store.get(index).session);
        if let (Some(path), Some(vcpus)) = (paths.get_mut(&index), &mut hosts[session].vcpus) {
            let mut beyond = Beyond { session, traced, cpus, clock: &clock, causes, last };
            path.divide(index, vcpus, &mut beyond, placed);
        }
        self.divide_known(index);
    }

    /// Divides the part of a thread's path that is known by now. Then divides the time of each region of
    /// which the whole path is known.
    pub fn place_walked(&mut self, session: usize, at: usize) {
        let Pass { hosts, causes, placed, .. } = self;
        let Pass { traced, owners, cpus, last_halt: last, .. } = self;
        let clock = |trace: u16| owners[usize::from(trace)].0.guest();
        let Host { vcpus, threads, .. } = &mut hosts[session];
        let Some(walked) = &mut threads[at].walked else { return };
        let mut ended = Vec::new();
        let mut beyond = Beyond { session, traced, cpus, clock: &clock, causes, last };
        walked.divide(Waiter::Walked(at), vcpus, &mut beyond, placed, &mut ended);
        if walked.is_unused() {
            threads[at].walked = None;
        }
        for (index, steps) in ended {
            if let Some(path) = self.paths.get_mut(&index) {
                path.set_walked(steps);
            }
            self.divide_known(index);
        }
    }

    /// Processes the division of a region's time. The division comes from the region's own thread, or from
    /// the region's polls.
    fn divide_own(&mut self, index: u32, divided: Divided) {
        match self.paths.get_mut(&index) {
            Some(path) => {
                path.own = Some(divided);
                self.divide_known(index);
            }
            None => self.divide(index, divided),
        }
    }

    /// Divides the time of a region that has a path, if the path and the time of the region's own thread are
    /// known.
    fn divide_known(&mut self, index: u32) {
        if let Entry::Occupied(path) = self.paths.entry(index)
            && path.get().is_known()
        {
            let divided = path.remove().finish();
            self.divide(index, divided);
        }
    }

    /// Divides the time of a region into its parts. If the region is the last poll of a span, divides the
    /// time of the span too.
    fn divide(&mut self, index: u32, divided: Divided) {
        let sample = self.store.get_mut(index);
        let divided = if sample.guest_at_most_ns().is_some() {
            let Divided { times, cpu, detail: Detail { path, .. } } = divided;
            let detail = Detail { path, ..Detail::default() };
            Divided { times: unknown(times.total()), cpu, detail }
        } else {
            divided
        };
        (sample.times, sample.cpu) = (divided.times, divided.cpu);
        let sample = *sample;
        if sample.state == State::Counted {
            let times = (sample.begin_ns, sample.end_ns());
            self.waited.add((sample.session, sample.thread), times, &divided);
        }
        let Divided { times, detail, .. } = divided;
        let span = self.spans.divided(index, &times, &detail.waits);
        if sample.state == State::Counted {
            self.groups.all[usize::from(sample.group)].sums.add(&detail);
            self.groups.offer(&self.store, index, &detail);
        }
        if sample.state.is_counted() && self.store.wants(index) {
            self.store.keep(index, detail);
        }
        if let Some((span, divided)) = span {
            self.divide_own(span, divided);
        }
    }

    /// Counts the intervals that were added to a thread's log. If there are too many intervals, hands over or
    /// forgets some of them.
    fn note_log(&mut self, session: usize, at: usize, logged: usize) {
        let thread = &self.hosts[session].threads[at];
        self.logged += thread.tally.log().len() - logged;
        if self.sink.is_some() && thread.tally.log().len() > MAX_UNSENT {
            self.send(session, at, false);
        }
        if self.logged > MAX_LOGGED {
            self.shorten_logs();
        }
    }

    /// Hands the kept intervals of a thread to the sink.
    fn send(&mut self, session: usize, at: usize, has_ended: bool) {
        let Some(sink) = &mut self.sink else { return };
        let taken = Vec::from_iter(self.hosts[session].threads[at].tally.drain_log(has_ended));
        self.logged -= taken.len();
        let thread = &self.hosts[session].threads[at];
        let is_of_guest = thread.side.guest().is_some();
        for interval in &taken {
            let cause = interval.part.has_causes().then(|| {
                let of = |trace, tid| owner(&self.hosts, &self.owners, trace, tid);
                self.causes.get(interval.cause, of)
            });
            let reason = &self.reasons.names()[usize::from(interval.reason)];
            let is_of_exit = interval.part == Part::Kernel || interval.reason != 0;
            let reason = is_of_exit.then_some(reason.as_str());
            let (tid, name) = (thread.tid, thread.name.as_deref());
            sink(&ThreadInterval { session, tid, is_of_guest, name, interval, reason, cause });
        }
    }

    /// Forgets the intervals of all threads in the first half of the time that is kept.
    fn shorten_logs(&mut self) {
        let threads = || self.hosts.iter().flat_map(|host| &host.threads);
        let first = threads().filter_map(|thread| Some(thread.tally.log().first()?.from)).min();
        let last = threads().filter_map(|thread| Some(thread.tally.log().last()?.to)).max();
        let half = first.zip(last).map_or(i64::MAX, |(first, last)| first.midpoint(last));
        self.logged = 0;
        for thread in self.hosts.iter_mut().flat_map(|host| &mut host.threads) {
            thread.tally.forget_before(half);
            self.logged += thread.tally.log().len();
        }
    }

    /// Ends the accounts. All time that is still unknown stays unknown.
    fn end_accounts(&mut self) {
        for session in 0..self.hosts.len() {
            let threads = 0..self.hosts[session].threads.len();
            for thread in threads.clone() {
                self.hosts[session].threads[thread].account.end();
                self.release(session, thread);
            }
            self.hosts[session].vcpus.iter_mut().for_each(Vcpus::end);
            for thread in threads {
                self.place(session, thread);
                self.place_walked(session, thread);
                self.send(session, thread, true);
            }
        }
        let mut left = Vec::from_iter(self.paths.keys().copied());
        left.sort_unstable();
        left.into_iter().for_each(|index| self.place_path(index));
    }

    /// Sets [`Sample::guest_at_most_ns`] of regions of guests' threads, if only the host's kernel was
    /// recorded.
    fn limit_guests(&mut self) {
        let Pass { hosts, store, .. } = self;
        let all_out = |(number, host): (usize, &Host)| {
            // A thread that divides regions of another session runs no vCPU of this session's guest.
            let is_its = |at: usize| {
                let Thread { side, tid, for_lanes, .. } = host.threads[at];
                let mut others = hosts.iter().enumerate().filter(|(other, _)| *other != number);
                !for_lanes || others.all(|(_, other)| other.dividing(side, tid).is_none())
            };
            let seats = host.clients.iter().flat_map(|client| &client.seats);
            host.modes.as_ref()?.all_out(seats.filter_map(|(.., thread)| *thread), is_its)
        };
        let all_out = Vec::from_iter(hosts.iter().enumerate().map(all_out));
        for index in 0..store.len() as u32 {
            let sample = store.get_mut(index);
            if sample.guest_at_most_ns().is_some() {
                let (from, to) = (sample.begin_ns, sample.end_ns());
                let out = all_out[usize::from(sample.session)].as_ref();
                sample.guest_at_most = out.map_or(NO_BOUND, |out| out.at_most(from, to));
            }
        }
    }

    /// Ends all open regions, and sums up.
    fn finish(
        mut self,
        mut warnings: Vec<Warning>,
        traces: &[KernelTrace],
        steals: &Steals,
    ) -> Regions {
        self.end_accounts();
        warnings.extend(self.hosts.iter().flat_map(disputes).map(Warning::from));
        warnings.extend(self.hosts.iter().filter_map(unfollowed).map(Warning::from));
        for session in 0..self.hosts.len() {
            for open in self.hosts[session].take_open() {
                self.never_ended(session, &open);
            }
        }
        for (session, open) in self.spans.take_open() {
            self.never_ended(session, &open);
        }
        self.limit_guests();
        self.drop_unrecorded();
        let has_kernel = self.hosts.iter().any(|host| !host.recordings.is_empty());
        let reasons = Vec::from_iter(self.reasons.names().iter().map(|name| (&**name).into()));
        let causes = CauseEntry::number_all(self.causes.finish(|trace, tid| {
            let (name, session) = owner(&self.hosts, &self.owners, trace, tid);
            // The name from the kernel is preferred, because the kernel has the thread's own name, while the
            // name of a client also contains the name of the process.
            let own = traces.get(usize::from(trace)).and_then(|trace| trace.thread_name(tid));
            (own.map(str::to_owned).or(name), session)
        }));
        let has_all = |session| all_threads(&self.traced, &self.cpus, session).next().is_some();
        let has_all_threads = (0..self.hosts.len()).map(has_all).collect();
        let of_host = |(session, host): (usize, &Host)| {
            let all = host.vcpus.iter().flat_map(Vcpus::proven);
            Vec::from_iter(all.map(|((clock, cpu), tid, until_ns)| ProvenVcpu {
                session,
                clock,
                cpu,
                tid,
                until_ns,
            }))
        };
        let mut vcpus = Vec::from_iter(self.hosts.iter().enumerate().flat_map(of_host));
        vcpus.sort_unstable();
        let waited = self.waited.sum();
        if self.spans.beyond > 0 {
            warnings.push(
                format!(
                    "more than {} of the crate tracing were open in a session at once: the {} oldest count \
                     as begins without an end",
                    counted(self.spans.most() as u64, "span"),
                    grouped(self.spans.beyond)
                )
                .into(),
            );
        }
        let Pass { mut store, groups, spans, hosts, roles, has_both, is_cut, .. } = self;
        // The threads' logs stay, but all other memory of the hosts is freed here for the groups' numbers.
        let logs = |host: Host| host.threads.into_iter().map(Logged::of).collect();
        let threads = hosts.into_iter().map(logs).collect();
        let is_cut = is_cut || groups.is_cut;
        let (has_others, has_other_names) = (groups.has_others, groups.has_other_names);
        let named = Named { reasons: &reasons, causes: &causes };
        let groups = groups.finish(&mut store, &spans.whole, (steals, named));
        if matches!(self.options.select, Select::Between(..)) && !has_both {
            warnings.push(
                "no regions between these events: both must be of the same client, or both of the \
                 same thread of the VMM, or have a field any_client"
                    .into(),
            );
        }
        let sessions = Vec::new();
        Regions {
            groups,
            sessions,
            reasons,
            causes,
            events: roles.into_events(),
            warnings,
            is_cut,
            has_others,
            has_other_names,
            left_out: self.chooser.left_out,
            waited,
            has_kernel,
            steal_ms: None,
            steal_at_most_ms: 0,
            guest_steal_ms: None,
            vcpus,
            threads,
            has_all_threads,
            store,
        }
    }
}

/// If a thread of a trace belongs to a session, returns the thread's name and the session.
fn owner(
    hosts: &[Host],
    owners: &[(Side, Vec<usize>)],
    trace: u16,
    tid: u32,
) -> (Option<String>, Option<usize>) {
    let Some((side, of_machine)) = owners.get(usize::from(trace)) else { return (None, None) };
    let found = of_machine.iter().find_map(|number| {
        let host = &hosts[*number];
        let thread = &host.threads[host.dividing(*side, tid)?];
        Some((*number, thread.name.as_deref().map(str::to_owned)))
    });
    found.map_or((None, None), |(number, name)| (name, Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Given;
    use hypertrace_test_support::cpus::{ASLEEP, Cpus, READY};

    /// Makes `regions` regions, each inside the previous region. Returns the number of switches and wake-ups
    /// on all paths that are walked for these regions.
    fn walked(regions: u32) -> u64 {
        let (own, other) = ((200, "own"), (201, "other"));
        let mut machine = Cpus::new(1, &[own, other]);
        machine.at(2_000).switch(0, READY, other).at(2_100).switch(0, ASLEEP, own);
        (0..regions).for_each(|name| _ = machine.at(3_000 + u64::from(name)).begin(own.0, name));
        for round in 1..=1_000 {
            let from = 10_000 * round;
            machine.at(from).wake(0, 0, other).at(from + 1_000).switch(0, ASLEEP, other);
            machine.at(from + 2_000).wake(0, 0, own).at(from + 3_000).switch(0, ASLEEP, own);
        }
        let end = machine.now + 1_000;
        (0..regions).for_each(|name| _ = machine.at(end + u64::from(name)).end(own.0, name));
        machine.at(end + 10_000).switch(0, READY, (7, "last"));
        let made = machine.made();
        let recording = Recording::open(&[Given::new(made.path())]).unwrap();
        let options = Options { has_paths: true, ..Options::default() };

        let (pass, _) = read(&recording, &options, None).unwrap();

        assert_eq!(pass.groups.all.len(), regions as usize);
        pass.records
    }

    #[test]
    fn a_path_is_walked_once_for_all_regions_of_its_thread() {
        let (one, many) = (walked(1), walked(100));
        assert!(one > 4_000 && many < one + 400, "{one} {many}");
    }
}
