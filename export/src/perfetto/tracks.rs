// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tracks: the lines of a viewer, each described before its first event.

use super::fields::track;
use super::intern::valid;
use super::proto::Proto;
use super::sequence::{Output, Sequence};
use crate::Result;
use std::collections::HashMap;

/// Most tracks that are known at once: then they are described anew when they have an event. Viewers take the two
/// descriptions of a thread for one.
const MOST: usize = 1 << 16;
/// Most bytes of a track's name.
const MOST_NAME: usize = 256;

/// What a track is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    /// A process of a machine.
    Process { machine: u64, pid: u32 },
    /// A thread of a machine.
    Thread { machine: u64, pid: u32, tid: u32 },
    /// A thread of a machine whose process is not known.
    Task { machine: u64, tid: u32 },
    /// A CPU of a machine.
    Cpu { machine: u64, cpu: u32 },
    /// A client of a session whose thread is not known.
    Client { session: usize, client: u32 },
    /// A source of events that is neither a thread nor a client.
    Source { session: usize, number: usize },
    /// What belongs to a track and has events of its own.
    Part { of: u64, part: Part },
}

/// Part of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// Events of the kernel.
    Kernel,
    /// Functions.
    Functions,
    /// What the thread did.
    States,
    /// Exits of its guest.
    Exits,
    /// Bound on the error of the clock.
    Bound,
}

/// The tracks that were described.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    known: HashMap<Track, u64>,
    next: u64,
}

impl Tracks {
    /// Returns the number of a track, which is described by `write` if it is new. Numbers are small: each event has one.
    pub fn number(
        &mut self,
        (out, sequence): (&mut Output<'_>, &Sequence),
        of: Track,
        write: impl FnOnce(&mut Proto),
    ) -> Result<u64> {
        if let Some(number) = self.known.get(&of) {
            return Ok(*number);
        }
        if self.known.len() == MOST {
            self.known.clear();
        }
        let number = self.new_number();
        sequence.describe(out, number, write)?;
        self.known.insert(of, number);
        Ok(number)
    }

    /// Returns a number that no track has.
    pub fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Describes a track anew, which has another name now.
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
}

/// Writes a name of a track.
pub(super) fn name(proto: &mut Proto, field: u32, name: &str) {
    proto.put(field, valid(name.as_bytes(), MOST_NAME).0.as_bytes());
}

/// Writes a thread.
pub(super) fn thread(proto: &mut Proto, pid: u32, tid: u32, thread_name: Option<&str>) {
    proto.message(track::THREAD, |thread| {
        thread.number(track::PID, pid.into());
        thread.number(track::TID, tid.into());
        if let Some(thread_name) = thread_name {
            name(thread, track::THREAD_NAME, thread_name);
        }
    });
}

/// Writes a process.
pub(super) fn process(proto: &mut Proto, pid: u32, process_name: Option<&str>) {
    proto.message(track::PROCESS, |process| {
        process.number(track::PID, pid.into());
        if let Some(process_name) = process_name {
            name(process, track::PROCESS_NAME, process_name);
        }
    });
}

/// Returns whether a viewer takes numbers as those of a thread: 0 is the idle thread of each CPU, and the largest one has
/// 31 bits.
pub(super) fn is_thread(pid: u32, tid: u32) -> bool {
    let is_valid = |number: u32| number > 0 && i32::try_from(number).is_ok();
    is_valid(pid) && is_valid(tid)
}
