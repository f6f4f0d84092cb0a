// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Merges the inputs: the inputs of sessions, of kernels' traces and of function traces.

use crate::error::Result;
use crate::event::EntryRef;
use crate::inputs::input::{Input, Time};
use crate::inputs::names::Names;
use hypertrace_format::error::Warning;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// All events of a recording in order of time, with the places where events were lost.
///
/// Within a stream nothing is reordered. Among streams, events that a guest emitted before a reference point
/// come before the point, and events that the guest emitted after the reply come after the point. The memory
/// holds one window for each stream.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    inputs: Vec<Box<dyn Input + 'a>>,
    heap: BinaryHeap<Reverse<Key>>,
    names: Names,
    margins: Vec<Option<u64>>,
    /// Whether the entry of the first input was already returned, so that this input must read its next
    /// entry.
    taken: bool,
}

/// Sort key of an input's next entry. Keys are compared by their fields, in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    time: Time,
    /// [`Input::is_host`].
    host: bool,
    input: usize,
}

impl<'a> Timeline<'a> {
    /// Returns a timeline of these inputs. The timeline is before the first entry. `names` has the names of
    /// the inputs' sources. For each session, `margins` has the bound on the error of the session's place
    /// relative to the other sessions, or `None` if this bound is unknown. `margins` is empty if all bounds
    /// are 0.
    ///
    /// # Errors
    /// If the first records of an input are damaged.
    pub fn of(
        inputs: Vec<Box<dyn Input + 'a>>,
        names: Names,
        margins: Vec<Option<u64>>,
    ) -> Result<Timeline<'a>> {
        let heap = BinaryHeap::new();
        let mut timeline = Timeline { inputs: Vec::new(), heap, names, margins, taken: false };
        for mut input in inputs {
            if let Some(time) = input.advance()? {
                let (host, input) = (input.is_host(), timeline.inputs.len());
                timeline.heap.push(Reverse(Key { time, host, input }));
            }
            timeline.inputs.push(input);
        }
        Ok(timeline)
    }

    /// Returns the names at the end of the timeline.
    pub fn into_names(self) -> Names {
        self.names
    }

    /// Returns the next event, or the next place where events were lost. The numbers of lost events at all
    /// places of a stream add up to exactly the number of events that the stream lost. A place is only as
    /// exact as a packet. The distance from the place to the real loss can be as long as the content of a
    /// ring. Losses at an unknown place come last.
    ///
    /// # Errors
    /// If an input is damaged. The events before the damage come before the error, and nothing follows the
    /// error.
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
            && let Some(margin) = self.margins.get(event.source.session)
        {
            event.bound = event.bound.with_margin(*margin);
        }
        Some(Ok(entry))
    }

    /// Iterates over the sessions whose events were left out, with the number of those events.
    pub fn left_out(&self) -> impl Iterator<Item = (usize, u64)> {
        self.inputs.iter().filter_map(|input| input.left_out())
    }

    /// Returns the faults so far that did not prevent the reading of kernels' traces and function traces,
    /// with file and offset.
    pub fn warnings(&self) -> Vec<Warning> {
        self.inputs.iter().flat_map(|input| input.warnings()).collect()
    }
}
