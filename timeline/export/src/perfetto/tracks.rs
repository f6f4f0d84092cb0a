// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tracks, which are the lines of a viewer. Each track is described before its first event.

use super::fields::track;
use super::intern::valid;
use super::proto::Proto;
use super::sequence::{Output, Sequence};
use crate::Result;
use std::collections::HashMap;

/// Maximum number of tracks that are remembered. If there are more tracks, all are forgotten, and each track
/// is described again at its next event. If a thread's track is described twice, viewers merge both
/// descriptions.
const MAX: usize = 1 << 16;
/// Maximum size of a track's name in bytes.
const MAX_NAME: usize = 256;

/// What a track shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    /// The group of all tracks of a machine that belong to no known process.
    Group { machine: u64 },
    /// A thread of a machine.
    Thread { machine: u64, pid: u32, tid: u32 },
    /// A thread whose process is not known.
    Task { machine: u64, tid: u32 },
    /// A CPU of a machine.
    Cpu { machine: u64, cpu: u32 },
    /// The times in which a machine's kernel was not recorded.
    Unrecorded { machine: u64 },
    /// A client whose thread is not known.
    Client { session: usize, client: u32 },
    /// A source of events that is neither a thread nor a client.
    Source { session: usize, number: usize },
    /// A track that shows one part of another track.
    Part { of: u64, part: Part },
}

/// Part of a track. Viewers show the parts of a track in this order, below the regions that have tracks of
/// their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// What a thread did.
    States = 1,
    /// Exits of the vCPU that the thread runs.
    Exits,
    /// Guest threads that ran on the vCPU of the host's thread.
    GuestThreads,
    /// Functions.
    Functions,
    /// Events of the kernel.
    Kernel,
    /// Bound on the error of the clock.
    Bound,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::States => "parts",
            Part::Exits => "exits",
            Part::GuestThreads => "guest threads",
            Part::Functions => "functions",
            Part::Kernel => "kernel events",
            Part::Bound => "bound of the clock's error",
        }
    }
}

impl Track {
    /// Returns the place of the track in its group: clients first, then other sources, CPUs, threads, and
    /// times without a recording.
    fn rank(self) -> u32 {
        const OF_KIND: u32 = 1 << 28;
        let (kind, number) = match self {
            Track::Client { client, .. } => (0, client),
            Track::Source { number, .. } => (1, number as u32),
            Track::Cpu { cpu, .. } => (2, cpu),
            Track::Task { tid, .. } => (3, tid),
            Track::Unrecorded { .. } => (4, 0),
            Track::Group { .. } | Track::Thread { .. } | Track::Part { .. } => (0, 0),
        };
        // Tracks of regions have rank 0.
        1 + kind * OF_KIND + number.min(OF_KIND - 1)
    }
}

/// The tracks that were described.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    known: HashMap<Track, u64>,
    /// Track of each process. The key is the machine and the process's id. The bool says whether the track
    /// has the process's own name.
    processes: HashMap<(u64, u32), (u64, bool)>,
    /// Names of the threads whose process is not known, from events of the kernel. The names are kept because
    /// such a thread can be the first thread of a process.
    mains: HashMap<(u64, u32), Box<str>>,
    next: u64,
}

impl Tracks {
    /// Returns the id of a track. `write` describes the track if it is new. Tracks get small ids, because
    /// each event contains the id of a track.
    pub fn number(
        &mut self,
        (out, sequence): (&mut Output<'_>, &Sequence),
        of: Track,
        write: impl FnOnce(&mut Proto),
    ) -> Result<u64> {
        if let Some(number) = self.known.get(&of) {
            return Ok(*number);
        }
        if self.known.len() == MAX {
            self.known.clear();
        }
        let number = self.new_number();
        sequence.describe(out, number, write)?;
        self.known.insert(of, number);
        Ok(number)
    }

    /// Returns the id of a part of a track.
    pub fn part(
        &mut self,
        out: (&mut Output<'_>, &Sequence),
        of: u64,
        part: Part,
        write: impl FnOnce(&mut Proto),
    ) -> Result<u64> {
        self.number(out, Track::Part { of, part }, |proto| {
            below(proto, of, part as u32);
            name(proto, track::NAME, part.name());
            write(proto);
        })
    }

    /// Returns the id of a thread's track, and names the thread's process. If `is_new`, the thread has
    /// another name now.
    pub fn thread(
        &mut self,
        (out, sequence): (&mut Output<'_>, &Sequence),
        (machine, pid, tid): (u64, u32, u32),
        thread_name: Option<&str>,
        is_new: bool,
    ) -> Result<u64> {
        let main = self.mains.get(&(machine, pid)).cloned().filter(|_| pid != tid);
        let is_own = pid == tid || main.is_some();
        self.process((out, sequence), (machine, pid), main.as_deref().or(thread_name), is_own)?;
        let of = Track::Thread { machine, pid, tid };
        let write = |proto: &mut Proto| thread(proto, pid, tid, thread_name);
        match is_new {
            true => self.rename((out, sequence), of, write),
            false => self.number((out, sequence), of, write),
        }
    }

    /// Describes a track again, because its name has changed.
    pub fn rename(
        &mut self,
        (out, sequence): (&mut Output<'_>, &Sequence),
        of: Track,
        write: impl FnOnce(&mut Proto),
    ) -> Result<u64> {
        match self.known.get(&of) {
            Some(number) => sequence.describe(out, *number, write).map(|()| *number),
            None => self.number((out, sequence), of, write),
        }
    }

    /// Notes the name of a thread of an unknown process. If a known process has the thread's number, the
    /// process gets this name.
    pub fn main_thread(
        &mut self,
        out: (&mut Output<'_>, &Sequence),
        of: (u64, u32),
        thread_name: &str,
    ) -> Result<()> {
        if self.mains.len() == MAX {
            self.mains.clear();
        }
        self.mains.insert(of, valid(thread_name.as_bytes(), MAX_NAME).0.into());
        match self.processes.contains_key(&of) {
            true => self.process(out, of, Some(thread_name), true),
            false => Ok(()),
        }
    }

    /// Describes a process, if the process is new or was described only by the name of one of its threads.
    /// `is_own` says whether the name is the process's own name.
    pub fn process(
        &mut self,
        (out, sequence): (&mut Output<'_>, &Sequence),
        (machine, pid): (u64, u32),
        process_name: Option<&str>,
        is_own: bool,
    ) -> Result<()> {
        let is_own = is_own && process_name.is_some();
        let number = match self.processes.get(&(machine, pid)) {
            Some((_, is_known)) if *is_known || !is_own => return Ok(()),
            Some((number, _)) => *number,
            None => self.new_number(),
        };
        if self.processes.len() == MAX {
            self.processes.clear();
        }
        self.processes.insert((machine, pid), (number, is_own));
        sequence.describe(out, number, |proto| {
            proto.message(track::PROCESS, |process| {
                process.number(track::PID, pid.into());
                if let Some(process_name) = process_name {
                    name(process, track::PROCESS_NAME, process_name);
                }
            });
        })
    }

    /// Returns a number that no track has.
    pub fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Writes the parent of a track, and the track's place below the parent.
pub(super) fn below(proto: &mut Proto, parent: u64, rank: u32) {
    proto.number(track::PARENT, parent);
    proto.number(track::RANK, rank.into());
}

/// Writes a track with a name in a group.
pub(super) fn grouped(proto: &mut Proto, of: Track, group: u64, track_name: &str) {
    below(proto, group, of.rank());
    around(proto, track_name);
}

/// Writes a named track for a group of tracks. Viewers order the tracks of the group by rank.
pub(super) fn around(proto: &mut Proto, track_name: &str) {
    name(proto, track::NAME, track_name);
    proto.number(track::CHILD_ORDERING, track::EXPLICIT);
}

/// Writes a name of a track.
pub(super) fn name(proto: &mut Proto, field: u32, name: &str) {
    proto.put(field, valid(name.as_bytes(), MAX_NAME).0.as_bytes());
}

/// Writes a thread.
fn thread(proto: &mut Proto, pid: u32, tid: u32, thread_name: Option<&str>) {
    proto.message(track::THREAD, |thread| {
        thread.number(track::PID, pid.into());
        thread.number(track::TID, tid.into());
        if let Some(thread_name) = thread_name {
            name(thread, track::THREAD_NAME, thread_name);
        }
    });
    proto.number(track::CHILD_ORDERING, track::EXPLICIT);
}

/// Returns whether viewers accept these ids of a process and a thread. Viewers accept no 0, because each
/// CPU's idle thread has the id 0. Viewers also accept no number of more than 31 bits.
pub(super) fn is_thread(pid: u32, tid: u32) -> bool {
    let is_valid = |number: u32| number > 0 && i32::try_from(number).is_ok();
    is_valid(pid) && is_valid(tid)
}
