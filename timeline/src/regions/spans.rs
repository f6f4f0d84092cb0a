// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Spans of the crate `tracing`: regions that may begin on one thread and end on another, with the polls in which a thread
//! was in them.
//!
//! ```text
//! a task    [poll]  idle  [poll]     [poll]
//! begin     NAME_begin                            (the first poll begins, too)
//! thread a        poll_end                 poll_begin, poll_end, NAME_end
//! thread b                poll_begin, poll_end
//! ```
//!
//! A span that is entered once, on the thread that closes it, is an ordinary region of that thread: its end lacks the field
//! `any_client`. Any other span is *parted*: its time is the polls', and idle.

use super::causes::{GroupWaits, Wait};
use super::pairs::Open;
use super::parts::{Divided, Part, Times, between};
use super::steps::Steps;
use super::store::NO_CLIENT;
use std::collections::HashMap;

/// Most open spans of all sessions together. Of further ones no polls are known.
const MAX_SPANS: usize = 1 << 16;
/// Most threads that are in a span at once. After more, its idle time is not known.
const MAX_INSIDE: usize = 64;

/// A client of a session, or a thread of its VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Client(usize, u32),
    Thread(usize, u32),
}

/// A span, by its session and its number.
pub(super) type Key = (usize, u64);

/// A span that is open.
#[derive(Debug)]
pub(super) struct Span {
    /// Number of the region's name.
    pub name: u32,
    /// Where the span began.
    pub place: Place,
    /// [`Spans::losses`] then.
    losses: u64,
    /// Number of what is known of its polls, once it has some.
    pub parted: Option<u64>,
}

/// The polls of a span.
#[derive(Debug, Default)]
pub(super) struct Parted {
    /// The whole span.
    pub open: Option<Open>,
    /// Whether the span was entered again.
    pub is_again: bool,
    /// Where a thread is in the span.
    inside: Vec<Place>,
    /// Whether more threads than [`MAX_INSIDE`] were in the span at once.
    has_more: bool,
    /// The poll whose time counts: of several at once, the first.
    counted: Option<Place>,
    /// When the last poll ended, if no thread is in the span.
    idle_since: Option<i64>,
    idle: u64,
    /// Number of polls that are regions.
    polls: u32,
    /// Where the last poll ended.
    left: Option<Place>,
    /// The last poll that ended: where, and its index in the store.
    last: Option<(Place, u32)>,
    /// What is known of the polls.
    times: Times,
    waits: GroupWaits,
    /// Number of polls whose time is not divided yet.
    waiting: u32,
    /// The span's index in the store, once it has ended, and its duration.
    ended: Option<(u32, u64)>,
    /// Its critical path, if that is wanted.
    pub steps: Steps,
}

impl Parted {
    fn new(open: Open, place: Place) -> Parted {
        Parted { open: Some(open), inside: vec![place], counted: Some(place), ..Parted::default() }
    }

    /// Takes the begin of a later poll. Returns the idle time that ends with it.
    pub fn enter(&mut self, place: Place, time: i64) -> Option<(i64, i64)> {
        if !self.is_again && !self.inside.is_empty() {
            // Nobody saw the first poll end: how long it was is not known.
            (self.inside, self.counted) = (Vec::new(), None);
        }
        self.is_again = true;
        let idle = self.idle_since.take().map(|since| (since, time));
        self.idle += idle.map_or(0, between);
        if self.inside.is_empty() {
            self.counted = Some(place);
        }
        // If the place is there, the last poll there has lost its end.
        if !self.inside.contains(&place) {
            match self.inside.len() < MAX_INSIDE {
                true => self.inside.push(place),
                false => self.has_more = true,
            }
        }
        idle
    }

    /// Takes the end of a poll. Returns whether its time counts.
    pub fn leave(&mut self, place: Place, time: i64) -> bool {
        let Some(at) = self.inside.iter().position(|inside| *inside == place) else { return false };
        self.inside.swap_remove(at);
        (self.left, self.last) = (Some(place), None);
        if self.inside.is_empty() && !self.has_more {
            self.idle_since = Some(time);
        }
        let is_counted = self.counted == Some(place);
        self.counted = self.counted.filter(|_| !is_counted);
        is_counted
    }

    /// Returns the last poll that ended, if it was here and is a region: its index in the store.
    pub fn take_last(&mut self, place: Place) -> Option<u32> {
        let (_, index) = self.last.take().filter(|(of, _)| *of == place)?;
        self.polls -= 1;
        Some(index)
    }

    /// Returns the time from the last poll to the end of the span.
    pub fn idle_until(&self, end: i64) -> u64 {
        self.idle_since.map_or(0, |since| between((since, end)))
    }

    /// Ends the span, which is the region of this index.
    pub fn end(&mut self, time: i64, index: u32, duration: u64) {
        self.idle += self.idle_until(time);
        self.ended = Some((index, duration));
    }

    /// Returns the index of the span, if all is known, and how its time divides.
    fn finish(&self) -> Option<(u32, Divided)> {
        let (index, duration) = self.ended.filter(|_| self.waiting == 0)?;
        let mut times = self.times;
        times.0[Part::Idle as usize] = self.idle;
        times.0[Part::Unknown as usize] += duration.saturating_sub(times.total());
        let waits = self.waits.sorted().into();
        Some((index, Divided { times, waits, ..Divided::default() }))
    }
}

/// The spans of all sessions.
#[derive(Debug, Default)]
pub(super) struct Spans {
    open: HashMap<Key, Span>,
    parted: HashMap<u64, Parted>,
    /// Number of the next span with polls.
    next: u64,
    /// The polls whose time is not divided: their indices, and the numbers of the spans.
    polls: HashMap<u32, u64>,
    /// The spans whose last poll was the last event of a place.
    left: HashMap<Place, u64>,
    /// The parted spans: their indices, and the number of polls and the time that is in none and not idle.
    pub whole: Vec<(u32, u32, u64)>,
    /// How often events were lost that may be of a span.
    pub losses: u64,
    /// Number of spans that began while [`MAX_SPANS`] were open.
    pub beyond: u64,
}

impl Spans {
    /// Returns whether no span was begun.
    pub fn is_unused(&self) -> bool {
        self.open.is_empty()
    }

    pub fn begin(&mut self, key: Key, name: u32, place: Place) {
        if self.open.len() < MAX_SPANS {
            let losses = self.losses;
            self.open.insert(key, Span { name, place, losses, parted: None });
        } else {
            self.beyond += 1;
        }
    }

    /// Forgets the span, if it is one and has no polls, of a region that is no longer waited for.
    pub fn give_up(&mut self, session: usize, open: &Open) {
        let key = (session, open.id);
        let is_its = |span: &Span| {
            let client = match span.place {
                Place::Client(_, client) => client,
                Place::Thread(..) => NO_CLIENT,
            };
            span.parted.is_none() && (span.name, client) == (open.name, open.client)
        };
        if self.open.get(&key).is_some_and(is_its) {
            self.open.remove(&key);
        }
    }

    pub fn get(&self, key: Key) -> Option<&Span> {
        self.open.get(&key)
    }

    /// Returns the polls of a span.
    pub fn parted(&mut self, key: Key) -> Option<&mut Parted> {
        self.parted.get_mut(&self.open.get(&key)?.parted?)
    }

    /// Notes that a span has polls.
    pub fn part(&mut self, key: Key, open: Open) -> Option<&mut Parted> {
        let span = self.open.get_mut(&key)?;
        self.next += 1;
        span.parted = Some(self.next);
        Some(self.parted.entry(self.next).or_insert(Parted::new(open, span.place)))
    }

    /// Forgets a span that ends. Returns it, and whether events that may be its own were lost.
    pub fn take(&mut self, key: Key) -> Option<(Span, bool)> {
        let span = self.open.remove(&key)?;
        let has_lost = span.losses != self.losses;
        Some((span, has_lost))
    }

    /// Returns the polls with a number.
    pub fn numbered(&mut self, number: u64) -> Option<&mut Parted> {
        self.parted.get_mut(&number)
    }

    /// Forgets the polls with a number, which nobody waits for.
    pub fn forget(&mut self, number: u64) -> Option<Parted> {
        self.parted.remove(&number)
    }

    /// Notes the last event of a place: whether it was the end of a poll, and of which span. Returns the span whose poll
    /// ended with the event before.
    pub fn note(&mut self, place: Place, left: Option<u64>) -> Option<u64> {
        match left {
            Some(span) => self.left.insert(place, span),
            None if self.left.is_empty() => None,
            None => self.left.remove(&place),
        }
    }

    /// Counts a poll as a region inside its span. The poll's time is divided later.
    pub fn add_poll(&mut self, key: Key, index: u32, counts: bool) {
        let Some(number) = self.open.get(&key).and_then(|span| span.parted) else { return };
        let Some(parted) = self.parted.get_mut(&number) else { return };
        parted.last = parted.left.map(|place| (place, index));
        parted.polls += 1;
        if counts {
            parted.waiting += 1;
            self.polls.insert(index, number);
        }
    }

    /// Takes the division of a region, which may be a poll. Returns the span whose time is known then.
    pub fn divided(
        &mut self,
        index: u32,
        times: &Times,
        waits: &[(Wait, u64)],
    ) -> Option<(u32, Divided)> {
        let number = if self.polls.is_empty() { None } else { self.polls.remove(&index) }?;
        let parted = self.parted.get_mut(&number)?;
        parted.waiting -= 1;
        parted.times.0.iter_mut().zip(times.0).for_each(|(sum, time)| *sum += time);
        parted.waits.add(waits);
        self.finish(number)
    }

    /// Returns the span with a number whose time is known, if it is.
    pub fn finish(&mut self, number: u64) -> Option<(u32, Divided)> {
        let parted = self.parted.get(&number)?;
        let (index, divided) = parted.finish()?;
        let unknown = divided.times.get(Part::Unknown) - parted.times.get(Part::Unknown);
        self.whole.push((index, parted.polls, unknown));
        self.parted.remove(&number);
        Some((index, divided))
    }

    /// Takes all spans that are open and have polls: their sessions, and their regions.
    pub fn take_open(&mut self) -> Vec<(usize, Open)> {
        let mut all = Vec::new();
        for ((session, _), span) in self.open.drain() {
            let parted = span.parted.and_then(|number| self.parted.remove(&number));
            all.extend(parted.and_then(|parted| parted.open).map(|open| (session, open)));
        }
        all.sort_by_key(|(session, open)| (*session, open.begin, open.id));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_more_threads_at_once_than_are_kept_no_idle_time_is_known() {
        for (threads, idle) in [(MAX_INSIDE as u32, 10), (MAX_INSIDE as u32 + 1, 0)] {
            let mut parted = Parted::default();
            (0..threads).for_each(|client| _ = parted.enter(Place::Client(0, client), 10));
            (0..threads).for_each(|client| _ = parted.leave(Place::Client(0, client), 20));

            assert_eq!((parted.idle_until(30), parted.inside.len()), (idle, 0), "{threads}");
        }
    }
}
