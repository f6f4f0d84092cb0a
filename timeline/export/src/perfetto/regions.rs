// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes regions as slices, and the intervals of threads as states or slices.

use super::arguments;
use super::events::Writer;
use super::fields::{event, track};
use super::intern::Kind;
use super::tracks::{self, Part};
use crate::{Error, Result};
use hypertrace_timeline::regions::{
    self, Interval, Options, ProvenVcpu, Region, Regions, Sample, ThreadInterval, names,
};
use hypertrace_timeline::{ClockMaps, Consumer, EventRef, Recording, Session, Warning};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

/// The form in which the parts of threads' time are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// A state track for each thread, for viewers from version 57 on
    #[default]
    Tracks,
    /// Slices, for viewers before version 57
    Slices,
}

/// State of a session's thread while the thread's intervals are written.
#[derive(Debug, Default)]
struct Thread {
    machine: u64,
    /// Ids of the thread's track of states and of its track of exits; 0 if the thread does not have the track
    /// yet.
    track: u64,
    exits: u64,
    /// End and part of the last interval.
    last: Option<(i64, regions::Part)>,
    /// Beginning and reason of the exit that is open.
    exit: Option<(i64, String)>,
}

/// Writes the regions and the threads' intervals of sessions in a window of time. Returns the faults of the
/// inputs, and the threads that run guests' CPUs.
pub(super) fn write(
    writer: &mut Writer<'_, '_>,
    recording: &Recording,
    window: (i64, i64),
    states: States,
) -> Result<(Vec<Warning>, Vec<ProvenVcpu>)> {
    let Recording { sessions, traces, .. } = recording;
    if traces.is_empty() && names(sessions).is_empty() {
        writer.points()?;
        return Ok(Default::default());
    }
    let (from_ns, to_ns) = (Some(window.0), Some(window.1));
    let choice = regions::Choice { from_ns, to_ns, ..regions::Choice::default() };
    let options = Options { choice, ..Options::default() };
    let threads = HashMap::new();
    let mut threads = Threads { writer, sessions, window, states, threads };
    let regions = recording.regions(&options, &mut threads)?;
    let mut threads = Vec::from_iter(threads.threads);
    threads.sort_unstable_by_key(|(of, _)| *of);
    for ((session, _, tid), thread) in threads {
        end(writer, (session, tid), thread, states)?;
    }
    writer.points()?;
    slices(writer, recording, &regions)?;
    let not_counted = regions.groups.iter().flat_map(|group| group.not_counted);
    writer.counts.not_counted = not_counted.fold(0, u64::saturating_add);
    Ok((regions.warnings, regions.vcpus))
}

/// Writes the intervals of threads in a window of time.
struct Threads<'a, 'w, 'o> {
    writer: &'a mut Writer<'w, 'o>,
    sessions: &'a [(Session, ClockMaps)],
    window: (i64, i64),
    states: States,
    /// Threads. The key is the session, whether the thread belongs to the guest, and the thread's id. The
    /// bool is needed because a guest's thread and a host's thread may have the same id.
    threads: HashMap<(usize, bool, u32), Thread>,
}

impl Consumer for Threads<'_, '_, '_> {
    type Error = Error;

    fn interval(&mut self, of: &ThreadInterval<'_>) -> Result<()> {
        let is_program = self.sessions[of.session].0.json().programs;
        let known = self.threads.entry((of.session, of.is_of_guest, of.tid)).or_default();
        interval(self.writer, known, of, self.states, (self.window, is_program))
    }
}

/// Writes an interval of a thread.
fn interval(
    writer: &mut Writer<'_, '_>,
    known: &mut Thread,
    thread: &ThreadInterval<'_>,
    states: States,
    (window, is_program): ((i64, i64), bool),
) -> Result<()> {
    let Interval { from, to, part, .. } = *thread.interval;
    let (from, to) = (from.max(window.0), to.min(window.1));
    if from > to {
        return Ok(());
    }
    let of = writer.machines[thread.session];
    let machine = if thread.is_of_guest { of.guest } else { of.host };
    known.machine = machine;
    if known.track == 0 {
        let parent = writer.task(machine, thread.tid, thread.name)?;
        let sequence = &writer.others[machine as usize];
        let mut part = |part, is_state: bool| {
            writer.tracks.part((writer.out, sequence), parent, part, |proto| {
                if is_state {
                    proto.message(track::STATE, |_| {});
                }
            })
        };
        known.track = part(Part::States, states == States::Tracks)?;
        if !is_program && !thread.is_of_guest {
            known.exits = part(Part::Exits, false)?;
        }
    }
    let ended = known.last.map(|(until, _)| until);
    let is_gap = ended.is_some_and(|until| until < from);
    // If a state follows a state of the same name, viewers show both as one state, so the first state is
    // ended explicitly.
    let is_same = known.last.is_some_and(|(_, last)| last == part);
    if is_gap || is_same || states == States::Slices {
        stop(writer, machine, known, states)?;
    }
    if matches!(part, regions::Part::Guest | regions::Part::Unknown) || is_gap {
        let at = if is_gap { ended.unwrap_or(from) } else { from };
        end_exit(writer, (thread.session, thread.tid), known, at)?;
    }
    if part == regions::Part::Kernel && known.exits != 0 {
        let reason = || thread.reason.unwrap_or("other").to_owned();
        known.exit.get_or_insert_with(|| (from, reason()));
    }
    let kind = match states {
        States::Tracks => event::STATE,
        States::Slices => event::SLICE_BEGIN,
    };
    known.last = Some((to, part));
    writer.counts.states += 1;
    writer.other(machine, (from, kind, known.track), |proto, interned| {
        proto.number(event::NAME_IID, interned.number(Kind::Event, part.label()));
        if let Some(reason) = thread.reason {
            arguments::text(proto, interned, "reason", reason);
        }
        if let Some(cause) = &thread.cause {
            arguments::text(proto, interned, "wait", &cause.to_string());
        }
    })
}

/// Ends the last interval of a thread.
fn stop(
    writer: &mut Writer<'_, '_>,
    machine: u64,
    known: &mut Thread,
    states: States,
) -> Result<()> {
    let Some((until, _)) = known.last.take() else { return Ok(()) };
    match states {
        // A state without a name ends the state before it.
        States::Tracks => writer.other(machine, (until, event::STATE, known.track), |_, _| {}),
        States::Slices => writer.slice_end(machine, until, known.track),
    }
}

/// Ends the last interval and exit of a thread.
fn end(
    writer: &mut Writer<'_, '_>,
    (session, tid): (usize, u32),
    mut known: Thread,
    states: States,
) -> Result<()> {
    let machine = known.machine;
    if let Some((until, _)) = known.last {
        end_exit(writer, (session, tid), &mut known, until)?;
    }
    stop(writer, machine, &mut known, states)
}

/// Writes an exit that ends at a time. A flow leads from the exit to each point that the thread served in the
/// exit.
fn end_exit(
    writer: &mut Writer<'_, '_>,
    (session, tid): (usize, u32),
    known: &mut Thread,
    at: i64,
) -> Result<()> {
    let Some((from, reason)) = known.exit.take() else { return Ok(()) };
    let machine = writer.machines[session].host;
    writer.counts.exits += 1;
    let flows = writer.served_in(session, tid, (from, at));
    writer.other(machine, (from, event::SLICE_BEGIN, known.exits), |proto, interned| {
        proto.number(event::NAME_IID, interned.number(Kind::Event, &reason));
        flows.iter().for_each(|flow| proto.fixed(event::FLOW_IDS, *flow));
    })?;
    writer.slice_end(machine, at, known.exits)
}

/// Owner of a region: the exporter draws the regions of one owner on one track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RegionTrack {
    /// The region is on a thread of the VMM.
    Thread(u32),
    /// The region is on a client.
    Client(u32),
    /// The region may begin on one client and end on another client. The number stands for the region's
    /// group.
    Any(u16),
}

/// Writes regions, with the fields of the regions' first events.
fn slices(writer: &mut Writer<'_, '_>, recording: &Recording, regions: &Regions) -> Result<()> {
    let names = regions.groups.iter().map(|group| Arc::from(&*group.name)).collect();
    let mut places = Places { writer, regions, names, lanes: BTreeMap::new() };
    if has_fields(&recording.sessions) {
        recording.read_regions(regions, &mut places)?;
    } else {
        regions.by_begin().try_for_each(|sample| places.slice(sample, None))?;
    }
    let Places { writer, lanes, .. } = places;
    lanes.into_values().try_for_each(|mut lanes| lanes.close(writer, |_, _| true))
}

/// Returns whether any event that begins regions has other fields than `id` and `any_client`.
fn has_fields(sessions: &[(Session, ClockMaps)]) -> bool {
    let mut classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
    classes.any(|class| {
        let fields = || class.fields.iter().map(|field| &**field);
        class.name.ends_with("_begin")
            && fields().any(|field| field == "id")
            && fields().any(is_own)
    })
}

/// Returns whether a field describes a region and does not only identify the region.
fn is_own(field: &str) -> bool {
    !["id", "any_client"].contains(&field)
}

/// The tracks of regions.
struct Places<'a, 'w, 'o> {
    writer: &'a mut Writer<'w, 'o>,
    regions: &'a Regions,
    /// Names of the groups.
    names: Vec<Arc<str>>,
    /// Lanes. The key is the session, the kind of track, and the id of the track of the region's thread.
    lanes: BTreeMap<(u16, RegionTrack, u64), Lanes>,
}

impl Consumer for Places<'_, '_, '_> {
    type Error = Error;

    fn region(&mut self, region: &Region<'_>) -> Result<bool> {
        self.slice(region.sample, region.begin)?;
        Ok(true)
    }
}

impl Places<'_, '_, '_> {
    /// Writes the next region in the order of beginnings. If a region of a thread begins inside another
    /// region and ends outside, the region gets a track of its own. A region of several clients gets a track
    /// of its own too.
    fn slice(&mut self, sample: &Sample, begin: Option<&EventRef<'_>>) -> Result<()> {
        let writer = &mut *self.writer;
        let place = match (sample.client(), self.regions.tid(sample)) {
            (Some(client), _) => RegionTrack::Client(client),
            (None, Some(tid)) => RegionTrack::Thread(tid),
            (None, None) => RegionTrack::Any(sample.group),
        };
        let session = usize::from(sample.session);
        let machine = match place {
            RegionTrack::Thread(_) => writer.machines[session].host,
            RegionTrack::Client(_) | RegionTrack::Any(_) => writer.machines[session].guest,
        };
        let parent = match place {
            RegionTrack::Thread(tid) => writer.task(machine, tid, None)?,
            RegionTrack::Client(client) => writer.holder(session, client, sample.begin_ns)?,
            RegionTrack::Any(_) => 0,
        };
        let name = &self.names[usize::from(sample.group)];
        let lanes = self.lanes.entry((sample.session, place, parent)).or_default();
        let on = lanes.find(writer, (machine, parent, name), sample)?;
        writer.counts.regions += 1;
        writer.slice_begin(machine, (sample.begin_ns, on), name, |proto, interned| {
            arguments::number(proto, interned, "id", sample.id);
            if let Some(bound_ns) = sample.bound_ns() {
                arguments::number(proto, interned, "bound_ns", bound_ns);
            }
            for (part, ns) in sample.times.iter().filter(|(_, ns)| *ns > 0) {
                arguments::number(proto, interned, part.key_ns(), ns);
            }
            if let Some(event) = begin {
                let own = event.fields.iter().filter(|(name, _)| is_own(name));
                let own = own.map(|(name, value)| (&**name, value));
                arguments::of_begin(proto, interned, own);
            }
        })?;
        match on == parent {
            true => Ok(()),
            false => writer.slice_end(machine, sample.end_ns(), on),
        }
    }
}

/// The tracks for the regions of one thread, client or group.
#[derive(Debug, Default)]
struct Lanes {
    /// Id of the machine, and id of the track for nested regions.
    nested: (u64, u64),
    /// End and depth of each region that is open on the track of nested regions, the innermost last.
    open: Vec<(i64, u8)>,
    /// For each further track, the end of the track's last region and the track's id.
    others: BinaryHeap<Reverse<(i64, u64)>>,
}

impl Lanes {
    /// Returns the track of the next region in the order of beginnings. If the region lies within the open
    /// regions of the track for nested regions, returns the track for nested regions and notes the region as
    /// open. Otherwise returns a further track.
    fn find(
        &mut self,
        writer: &mut Writer<'_, '_>,
        (machine, parent, name): (u64, u64, &str),
        sample: &Sample,
    ) -> Result<u64> {
        self.nested = (machine, parent);
        let (begin, end, depth) = (sample.begin_ns, sample.end_ns(), sample.depth());
        // If an open region ends exactly when the new region begins, the open region is closed. The open
        // region stays open only if the new region has no duration and is deeper than the open region.
        self.close(writer, |around, of| {
            around < begin || around == begin && (end > begin || of >= depth)
        })?;
        if parent != 0 && self.open.last().is_none_or(|(around, _)| *around >= end) {
            self.open.push((end, depth));
            return Ok(parent);
        }
        let free = self.others.peek().filter(|Reverse((until, _))| *until <= sample.begin_ns);
        let track = match free {
            Some(Reverse((_, track))) => {
                let track = *track;
                self.others.pop();
                track
            }
            None => {
                let around = match parent {
                    0 => writer.group(machine)?,
                    parent => parent,
                };
                let number = writer.tracks.new_number();
                let sequence = &writer.others[machine as usize];
                sequence.describe(writer.out, number, |proto| {
                    tracks::below(proto, around, 0);
                    tracks::name(proto, track::NAME, name);
                })?;
                number
            }
        };
        self.others.push(Reverse((end, track)));
        Ok(track)
    }

    /// Ends open regions, the innermost first, as long as `has_ended` returns true for a region's end and
    /// depth.
    fn close(
        &mut self,
        writer: &mut Writer<'_, '_>,
        has_ended: impl Fn(i64, u8) -> bool,
    ) -> Result<()> {
        while let Some((end, _)) = self.open.pop_if(|(end, depth)| has_ended(*end, *depth)) {
            writer.slice_end(self.nested.0, end, self.nested.1)?;
        }
        Ok(())
    }
}
