// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The merge of the inputs of sessions, of kernels' traces and of function traces.

use crate::error::Result;
use crate::event::{Entry, EntryRef, Event};
use crate::inputs::ctf::{ClockMaps, Session, inputs, stream_inputs};
use crate::inputs::functions::{self, FunctionTrace};
use crate::inputs::input::{Input, Time};
use crate::inputs::kernel::{self, KernelTrace};
use crate::inputs::names::Names;
use crate::inputs::needs::Needs;
use hypertrace_format::error::Warning;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// All events of one or several sessions in order of time.
///
/// The iterator returns events only; [`Timeline::next_entry`] also returns the places
/// where some were lost.
///
/// Within a stream nothing is reordered. Among streams, a guest's events come
/// before a reference point if the guest emitted them before it, and after the point if
/// it emitted them after the reply. Memory: one window per stream.
#[derive(Debug)]
pub struct Timeline<'a> {
    inputs: Vec<Box<dyn Input + 'a>>,
    heap: BinaryHeap<Reverse<Key>>,
    names: Names,
    /// Bounds on the errors of sessions' places, by session, `None` if unknown; empty if all are 0.
    margins: Vec<Option<u64>>,
    /// Whether the first input's entry was returned, so that its next one must be read.
    taken: bool,
}

/// Position of an input's next entry. Fields in order of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    time: Time,
    /// [`Input::is_host`].
    host: bool,
    input: usize,
}

impl<'a> Timeline<'a> {
    /// Starts at the beginning of all sessions, given with their clock maps. The timeline's clock is that
    /// of the first session's host. A session has bounds against it if it is on the same counter
    /// ([`Session::counter`]); the error of all others is unknown.
    ///
    /// # Errors
    /// If the first records of a stream are damaged.
    pub fn new(sessions: &'a [(Session, ClockMaps)]) -> Result<Timeline<'a>> {
        Timeline::with_kernel(sessions, &[])
    }

    /// Starts at the beginning of all sessions and of traces of kernels, of which each belongs
    /// to a session or to none.
    ///
    /// # Errors
    /// If the first records of a stream or of a trace are damaged.
    pub fn with_kernel(
        sessions: &'a [(Session, ClockMaps)],
        traces: &'a [KernelTrace],
    ) -> Result<Timeline<'a>> {
        Timeline::of_needed(Needs::ALL, sessions, traces, &[])
    }

    /// Starts at the beginning of what is needed of all sessions, and of all traces of kernels and function traces. Each
    /// function trace is on the clock of a session ([`FunctionTrace::place`]), or there is no session.
    ///
    /// # Errors
    /// If the first records of a stream or of a trace are damaged.
    pub fn of_needed(
        needs: &'a Needs,
        sessions: &'a [(Session, ClockMaps)],
        traces: &'a [KernelTrace],
        functions: &'a [FunctionTrace],
    ) -> Result<Timeline<'a>> {
        let mut hosts: Vec<_> =
            sessions.iter().map(|(s, _)| (s.name(), s.json().sides())).collect();
        let mut numbers = Vec::new();
        for trace in traces {
            numbers.push(trace.session().unwrap_or_else(|| {
                hosts.push((trace.name(), ["", "kernel"]));
                hosts.len() - 1
            }));
        }
        let mut of_functions = Vec::new();
        for trace in functions {
            of_functions.push(trace.session().unwrap_or_else(|| {
                hosts.push((trace.name(), ["", "functions"]));
                hosts.len() - 1
            }));
        }
        let mut names = Names::new(hosts);
        let mut all = Vec::new();
        let mut margins = Vec::new();
        for (number, (session, maps)) in sessions.iter().enumerate() {
            let stated = session.offset().and_then(|offset| offset.bound_ns);
            let is_placed = number == 0
                || stated.is_some()
                || sessions.first().is_some_and(|(first, _)| session.is_placed_with(first));
            margins.push(is_placed.then_some(stated.unwrap_or(0)));
            all.extend(inputs(number, session, maps, needs, &mut names));
        }
        for (trace, number) in traces.iter().enumerate().zip(numbers) {
            all.extend(kernel::inputs(number, trace, &names));
        }
        for (trace, number) in functions.iter().zip(of_functions) {
            all.extend(functions::inputs(number, trace, functions.len() == 1, &names)?);
        }
        if margins.iter().all(|margin| *margin == Some(0)) {
            margins.clear();
        }
        Ok(Timeline { margins, ..Timeline::of(all, names)? })
    }

    /// Starts at the beginning of what is needed of all sessions, and of traces of kernels. The events of all threads
    /// beside those of a trace are there: of a trace after all others, in their order.
    ///
    /// # Errors
    /// If the first records of a stream or of a trace are damaged.
    pub(crate) fn of_regions(
        needs: &'a Needs,
        sessions: &'a [(Session, ClockMaps)],
        traces: &'a [KernelTrace],
    ) -> Result<Timeline<'a>> {
        let mut timeline = Timeline::of_needed(needs, sessions, traces, &[])?;
        for (number, trace) in (traces.len()..).zip(traces) {
            kernel::inputs_of_cpus(number, trace).into_iter().try_for_each(|i| timeline.add(i))?;
        }
        Ok(timeline)
    }

    /// Starts at the beginning of the scheduling of traces of kernels.
    ///
    /// # Errors
    /// If the first records of a trace are damaged.
    pub(crate) fn of_scheduling(traces: &'a [KernelTrace]) -> Result<Timeline<'a>> {
        let inputs = |(number, trace)| kernel::inputs_of_scheduling(number, trace);
        Timeline::of((0..).zip(traces).flat_map(inputs).collect(), Names::new(Vec::new()))
    }

    /// Starts at the beginning of a part of a session's streams, with the names so far.
    pub(crate) fn of_part(
        session: &'a Session,
        maps: &'a ClockMaps,
        mut names: Names,
    ) -> Result<Timeline<'a>> {
        let stream_inputs = stream_inputs(0, session, maps, Needs::ALL, &mut names);
        Timeline::of(stream_inputs, names)
    }

    fn of(inputs: Vec<Box<dyn Input + 'a>>, names: Names) -> Result<Timeline<'a>> {
        let (heap, margins) = (BinaryHeap::new(), Vec::new());
        let mut timeline = Timeline { inputs: Vec::new(), heap, names, margins, taken: false };
        inputs.into_iter().try_for_each(|input| timeline.add(input))?;
        Ok(timeline)
    }

    /// Adds an input, before anything is read.
    fn add(&mut self, mut input: Box<dyn Input + 'a>) -> Result<()> {
        if let Some(time) = input.advance()? {
            let (host, input) = (input.is_host(), self.inputs.len());
            self.heap.push(Reverse(Key { time, host, input }));
        }
        self.inputs.push(input);
        Ok(())
    }

    /// Returns the names at its end.
    pub(crate) fn into_names(self) -> Names {
        self.names
    }

    /// Returns the next event, or the next place where some were lost. The losses of a
    /// stream's places add up exactly. A place is as exact as a packet: the drop itself
    /// may be up to a ring's content away. Losses at an unknown place come last.
    ///
    /// # Errors
    /// As for the iterator, which ends after an error.
    pub fn next_entry(&mut self) -> Option<Result<Entry>> {
        Some(self.read()?.map(|entry| entry.to_entry()))
    }

    /// Returns the same as [`next_entry`](Timeline::next_entry), without a copy of it.
    ///
    /// # Errors
    /// As for the iterator, which ends after an error.
    pub fn read(&mut self) -> Option<Result<EntryRef<'_>>> {
        let number = loop {
            if std::mem::take(&mut self.taken) {
                let mut first = self.heap.peek_mut()?;
                match self.inputs.get_mut(first.0.input)?.advance() {
                    Ok(Some(time)) => first.0.time = time,
                    Ok(None) => drop(PeekMut::pop(first)),
                    Err(error) => {
                        drop(first);
                        self.heap.clear();
                        return Some(Err(error));
                    }
                }
            }
            let number = self.heap.peek()?.0.input;
            self.taken = true;
            if !self.inputs.get(number)?.is_damaged() {
                break number;
            }
        };
        let mut entry = self.inputs.get_mut(number)?.take(&mut self.names)?;
        if let EntryRef::Event(event) = &mut entry
            && let Some(margin) = self.margins.get(event.session)
        {
            event.bound = event.bound.with_margin(*margin);
        }
        Some(Ok(entry))
    }

    /// Iterates over the sessions of events that were left out, with their numbers.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = (usize, u64)> {
        self.inputs.iter().filter_map(|input| input.left_out())
    }

    /// Returns the faults of the traces of kernels and of the function traces so far, although they could be read: with
    /// file and offset.
    pub fn warnings(&self) -> Vec<Warning> {
        self.inputs.iter().flat_map(|input| input.warnings()).collect()
    }
}

impl Iterator for Timeline<'_> {
    type Item = Result<Event>;

    /// Ends after an error.
    fn next(&mut self) -> Option<Result<Event>> {
        loop {
            match self.read()? {
                Ok(EntryRef::Event(event)) => return Some(Ok(event.to_event())),
                Ok(EntryRef::Lost(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
