// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Writes a trace for Perfetto: hosts and guests are machines, and threads are tracks.
//!
//! ```text
//! events    events as instants, functions as slices, losses
//! regions   regions as slices, and what threads did
//! scheduling which thread each CPU had
//! vcpus     which thread of a guest had a guest's CPU
//! arguments of events
//! tracks    what viewers show as lines
//! machines  hosts and guests
//! sequence  packets with the names and times that those before have
//! intern    names that are written once
//! proto     protobuf's wire format
//! fields    numbers of fields
//! ```
//!
//! Packets are written in the order in which events come, and viewers sort the packets. Memory does not
//! depend on the number of events.

mod arguments;
mod events;
mod fields;
mod intern;
mod machines;
mod proto;
mod regions;
mod scheduling;
mod sequence;
mod tracks;
mod vcpus;

use crate::choice::Choice;
use crate::{Error, Result};
pub use regions::States;

use hypertrace_timeline::{EntryRef, Needs, Recording, Warning};
use sequence::{Output, Sequence, TraceClock};
use std::io::Write;

/// Counts of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of events.
    pub events: u64,
    /// Number of reference points that were written on the tracks of the threads that served the points.
    pub served: u64,
    /// Number of slices of functions.
    pub slices: u64,
    /// Number of functions that are nested too deep for slices.
    pub too_deep: u64,
    /// Number of regions.
    pub regions: u64,
    /// Number of regions that could not be measured, and are left out.
    pub not_counted: u64,
    /// Number of intervals of threads.
    pub states: u64,
    /// Number of exits of guests.
    pub exits: u64,
    /// Number of switches of CPUs, if the switches of all threads are known.
    pub switches: u64,
    /// Number of wake-ups of threads, if the switches of all threads are known.
    pub wakings: u64,
    /// Number of states of threads, if only some threads are known.
    pub task_states: u64,
    /// Number of places where events were lost.
    pub losses: u64,
    /// Number of events that were lost, as far as they were counted.
    pub lost: u64,
    /// Number of values on the tracks of clocks' bounds.
    pub bounds: u64,
    /// Number of events before the trace's time 0. The exporter moves such events to the time 0.
    pub moved: u64,
    /// Number of texts that were cut, or were not UTF-8.
    pub changed: u64,
    /// Number of packets.
    pub packets: u64,
}

/// Writes the events that are wanted. Returns counts, and the faults of the inputs.
///
/// # Errors
/// If there is no session, an input is damaged, or the output cannot be written.
pub fn write(
    recording: &Recording,
    choice: &Choice,
    states: States,
    out: &mut dyn Write,
) -> Result<(Counts, Vec<Warning>)> {
    let Recording { sessions, traces, .. } = recording;
    let Some((first, _)) = sessions.first() else { return Err(Error::NoSession) };
    let clock =
        TraceClock { unix_ns: first.json().started_unix_ns, boot_ns: first.json().started_boot_ns };
    let (machines, count) = machines::machines(sessions);
    let (of_traces, count) = events::machines_of(sessions, traces, &machines, count);
    let sequence = |first, is_incremental| {
        let of = move |machine| Sequence::new(first + machine, machine, is_incremental);
        (0..count).map(of).collect::<Vec<_>>()
    };
    let (mut sequences, mut others) = (sequence(1, true), sequence(1 + count, false));
    let mut output = Output::new(out);
    let out = &mut output;
    let (mut tracks, mut counts) = (tracks::Tracks::default(), Counts::default());
    let all = machines::describe(sessions, traces, &machines, &of_traces, count);
    machines::write(out, &all, &sequences)?;
    // Viewers from version 58 on use the clock of one machine as the clock of the trace: the machine that
    // wrote the last snapshot before the first packet with a time. These viewers drop the host's packets if a
    // guest's snapshot comes later.
    let at = clock.at(first.json().started_unix_ns).unwrap_or(0);
    for machine in (1..count as usize).chain([0]) {
        sequences[machine].snapshot(out, clock, at)?;
        others[machine].snapshot(out, clock, at)?;
    }
    machines::write_origins(out, sessions, &sequences[0])?;
    let mut known = events::Known::default();
    for ((session, _), of) in sessions.iter().zip(&machines) {
        let Some(pid) = known.read(session, *of)? else { continue };
        let command = session.json().origin.as_ref().map(|origin| &*origin.command);
        let name = command.and_then(|command| command.split(' ').next()?.rsplit('/').next());
        let name = name.filter(|name| !name.is_empty());
        tracks.process((out, &sequences[of.host as usize]), (of.host, pid), name, true)?;
    }
    let mut writer = events::Writer {
        out,
        clock,
        machines: &machines,
        all: &all,
        of_traces: &of_traces,
        sequences: &mut sequences,
        others: &mut others,
        tracks: &mut tracks,
        counts: &mut counts,
        known,
    };
    // All events are read, because an event that is not wanted may say which thread other events belong to.
    let faults = recording.read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
        let is_wanted = choice.admits(entry);
        match entry {
            EntryRef::Event(event) if !choice.is_past(event.ts_ns) => {
                writer.event(event, is_wanted)?;
            }
            EntryRef::Lost(lost) if is_wanted => writer.lost(lost)?,
            EntryRef::Lost(_) => {}
            EntryRef::Event(_) => return Ok(false),
        }
        Result::Ok(true)
    })?;
    let window = (choice.from_ns.unwrap_or(i64::MIN), choice.to_ns.unwrap_or(i64::MAX));
    // The regions' warnings include the faults of the kernels' traces.
    let (mut warnings, vcpus) = regions::write(&mut writer, recording, window, states)?;
    for fault in faults {
        if !warnings.contains(&fault) {
            warnings.push(fault);
        }
    }
    let vcpus = vcpus::Vcpus::new(traces, &vcpus, states);
    scheduling::write(&mut writer, traces, vcpus, window)?;
    output.flush()?;
    counts.packets = output.packets;
    counts.changed =
        sequences.iter().chain(&others).map(|sequence| sequence.interned.changed).sum();
    Ok((counts, warnings))
}
