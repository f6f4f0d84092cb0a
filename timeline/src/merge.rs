// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The merge of the inputs of one or several sessions.

use crate::error::{Error, Result};
use crate::event::{Entry, Event};
use crate::inputs::ctf::{ClockMaps, Session, inputs};
use crate::inputs::input::{Input, Time};
use crate::inputs::names::Names;
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
    /// Damage after the event that was returned last.
    failed: Option<Error>,
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
        let hosts = sessions.iter().map(|(s, _)| (s.name(), s.json().host()));
        let mut names = Names::new(hosts.collect());
        let mut all = Vec::new();
        for (number, (session, maps)) in sessions.iter().enumerate() {
            let is_placed = number == 0
                || sessions.first().is_some_and(|(first, _)| session.is_placed_with(first));
            all.extend(inputs(number, session, maps, is_placed, &mut names));
        }
        let mut heap = BinaryHeap::new();
        for (number, input) in all.iter_mut().enumerate() {
            if let Some(time) = input.advance()? {
                heap.push(Reverse(Key { time, host: input.is_host(), input: number }));
            }
        }
        Ok(Timeline { inputs: all, heap, names, failed: None })
    }

    /// Returns the next event, or the next place where some were lost. The losses of a
    /// stream's places add up exactly. A place is as exact as a packet: the drop itself
    /// may be up to a ring's content away. Losses at an unknown place come last.
    ///
    /// # Errors
    /// As for the iterator, which ends after an error.
    pub fn next_entry(&mut self) -> Option<Result<Entry>> {
        if let Some(error) = self.failed.take() {
            self.heap.clear();
            return Some(Err(error));
        }
        let mut first = self.heap.peek_mut()?;
        let input = self.inputs.get_mut(first.0.input)?;
        let entry = input.take(&mut self.names)?;
        match input.advance() {
            Ok(Some(time)) => first.0.time = time,
            Ok(None) => drop(PeekMut::pop(first)),
            Err(error) => self.failed = Some(error),
        }
        Some(Ok(entry))
    }
}

impl Iterator for Timeline<'_> {
    type Item = Result<Event>;

    /// Ends after an error.
    fn next(&mut self) -> Option<Result<Event>> {
        loop {
            match self.next_entry()? {
                Ok(Entry::Event(event)) => return Some(Ok(event)),
                Ok(Entry::Lost(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
