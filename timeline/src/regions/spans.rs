// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Spans of the crate `tracing`: regions that may begin on one thread and end on another thread. Each time in
//! which a thread is in a span is a *poll* of the span.
//!
//! ```text
//! a task    [poll]  idle  [poll]     [poll]
//! begin     NAME_begin                            (the first poll begins, too)
//! thread a        poll_end                 poll_begin, poll_end, NAME_end
//! thread b                poll_begin, poll_end
//! ```
//!
//! A span that is entered once, on the thread that closes it, is an ordinary region of that thread: its end
//! lacks the field `any_client`. Any other span is *parted*: its time consists of the times of its polls and
//! of idle time.

pub(super) mod inner;

use super::causes::{GroupWaits, Wait};
use super::pairs::Open;
use super::parts::{Detail, Divided, Part, Times, between};
use super::steps::Steps;
use super::store::NO_CLIENT;
use inner::{Around, Ended, Inside};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Maximum number of open spans of all sessions together, and the number of open spans that each session may
/// have in any case. Each session has the same share, so that no guest takes space from the spans of another
/// session.
const MAX_SPANS: (usize, usize) = (1 << 16, 1 << 10);
/// Maximum number of threads that are in a span at once. If more threads were in a span, the span's idle time
/// is not known.
const MAX_INSIDE: usize = 64;

/// A client of a session, or a thread of its VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Client(usize, u32),
    Thread(usize, u32),
}

impl Place {
    fn session(self) -> usize {
        match self {
            Place::Client(session, _) | Place::Thread(session, _) => session,
        }
    }
}

/// Process number that a client's lease names; 0 if the process is not known, and `None` for the VMM.
pub(super) type Process = Option<u32>;

/// Key of a span: the span's session, the process that made the span, and the span's id. The events of a span
/// come from one process, so another process of the session cannot change the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub session: usize,
    pub process: Process,
    pub id: u64,
}

/// A span that is open.
#[derive(Debug)]
pub(super) struct Span {
    /// Id of the region's name.
    pub name: u32,
    /// Where the span began.
    pub place: Place,
    /// Whether spans of this name can be shown.
    is_chosen: bool,
    /// Counts of losses when the span began: [`Lost::times`] of the span's process, and
    /// [`OfSession::of_kernel`].
    losses: (u64, u64),
    /// Number that tells the span from later spans with the same key.
    number: u64,
    /// The value of `number`, if polls of the span are known.
    pub parted: Option<u64>,
    /// The outer span, if the outer span may be parted.
    inside: Option<Box<Inside>>,
    /// The spans inside this span.
    around: Option<Box<Around>>,
}

/// The polls of a span.
#[derive(Debug, Default)]
pub(super) struct Parted {
    /// The whole span.
    pub open: Option<Open>,
    /// Whether the span was entered again.
    pub is_again: bool,
    /// Places whose threads are in the span now.
    inside: Vec<Place>,
    /// Whether more threads than [`MAX_INSIDE`] were in the span at once.
    has_more: bool,
    /// Place of the poll whose time counts. If several threads poll the span at once, the first poll counts.
    counted: Option<Place>,
    /// Time at which the last poll ended, if no thread is in the span now.
    idle_since: Option<i64>,
    idle: u64,
    /// Whether polls may be lost. If true, nothing proves that the span was idle.
    pub is_lost: bool,
    /// Number of polls that are regions.
    polls: u32,
    /// Where the last poll ended.
    left: Option<Place>,
    /// Place of the last poll that ended, the poll's index in the store, and whether the poll's time counts.
    last: Option<(Place, u32, bool)>,
    /// Index of the entry that only dropped the future, if the entry's time counts.
    dropped: Option<u32>,
    /// What is known of the polls.
    times: Times,
    waits: GroupWaits,
    /// Number of polls whose time is not divided yet.
    waiting: u32,
    /// The span's index in the store, once it has ended, and its duration.
    ended: Option<(u32, u64)>,
    /// Critical path of the polls, if wanted. `idle_steps` is the critical path of the idle time.
    pub steps: Steps,
    pub idle_steps: Steps,
    /// The spans inside the span, once it ends.
    pub inner: Vec<Ended>,
}

impl Parted {
    fn new(open: Open, place: Place) -> Parted {
        Parted { open: Some(open), inside: vec![place], counted: Some(place), ..Parted::default() }
    }

    /// Processes the begin of a poll after the span's first poll. Returns the idle time that ends with this
    /// poll.
    pub fn enter(&mut self, place: Place, time: i64) -> Option<(i64, i64)> {
        if !self.is_again && !self.inside.is_empty() {
            // The end of the first poll is missing, so the length of the first poll is not known.
            (self.inside, self.counted) = (Vec::new(), None);
        }
        self.is_again = true;
        let idle = self.idle_since.take().map(|since| (since, time));
        self.idle += idle.map_or(0, between);
        if self.inside.is_empty() {
            self.counted = Some(place);
        }
        // If the place is in `inside` already, the end of the place's last poll is missing.
        if !self.inside.contains(&place) {
            match self.inside.len() < MAX_INSIDE {
                true => self.inside.push(place),
                false => self.has_more = true,
            }
        }
        idle
    }

    /// Processes the end of a poll. Returns whether the poll's time counts.
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

    /// If the last poll that ended was at this place and is a region, returns the poll's index in the store.
    pub fn take_last(&mut self, place: Place) -> Option<u32> {
        let (_, index, counts) = self.last.take().filter(|(of, ..)| *of == place)?;
        self.polls -= 1;
        self.dropped = counts.then_some(index);
        Some(index)
    }

    /// Returns the time from the last poll to the end of the span.
    pub fn idle_until(&self, end: i64) -> u64 {
        self.idle_since.map_or(0, |since| between((since, end)))
    }

    /// Subtracts the times of a poll that were added before.
    fn remove(&mut self, times: &Times) {
        self.times.0.iter_mut().zip(times.0).for_each(|(sum, ns)| *sum = sum.saturating_sub(ns));
        // All steps and waits are forgotten, because the steps and waits of a single poll are not known any
        // more.
        (self.steps, self.waits) = (Steps::default(), GroupWaits::default());
    }

    /// Ends the span. `index` is the index of the span's region in the store.
    pub fn end(&mut self, time: i64, index: u32, duration: u64) {
        self.idle = if self.is_lost { 0 } else { self.idle + self.idle_until(time) };
        self.ended = Some((index, duration));
    }

    /// If the division of all polls is known, returns the index of the span, and how the span's time divides.
    fn finish(&self) -> Option<(u32, Divided)> {
        let (index, duration) = self.ended.filter(|_| self.waiting == 0)?;
        let mut times = self.times;
        times.0[Part::Idle as usize] = self.idle;
        times.0[Part::Unknown as usize] += duration.saturating_sub(times.total());
        let waits = self.waits.sorted().into();
        let detail = Detail { waits, ..Detail::default() };
        Some((index, Divided { times, detail, ..Divided::default() }))
    }
}

/// The polls of a parted span that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Index of the span in the store.
    pub index: u32,
    /// Number of polls.
    pub polls: u32,
    /// Time in nanoseconds that is neither in a poll nor idle.
    pub unknown: u64,
    /// Index of the entry that only dropped the future. This entry is no poll, but the entry's time belongs
    /// to the span.
    pub dropped: Option<u32>,
}

/// Losses of a process's events.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    /// Number of times that events were lost, or that a gap ended.
    times: u64,
    /// How many of the process's places have a gap now.
    gaps: u32,
}

/// What is known of the spans of a session.
#[derive(Debug, Default)]
struct OfSession {
    /// Number of open spans.
    open: usize,
    /// Keys and serial numbers of all open spans and of some ended spans, in the order in which the spans
    /// began.
    begun: VecDeque<(Key, u64)>,
    lost: HashMap<Process, Lost>,
    /// Places that lost events and had no event since then, with the process of each place. The client at
    /// such a place may lose more events before the next event is recorded.
    gaps: HashMap<Place, Process>,
    /// Whether threads without a place lost events.
    is_lossy: bool,
    /// Number of times that events of the kernel were lost.
    of_kernel: u64,
    /// Whether spans may be parted.
    has_parted: bool,
}

impl OfSession {
    fn lost(&self, process: Process) -> Lost {
        self.lost.get(&process).copied().unwrap_or_default()
    }
}

/// The spans of all sessions.
#[derive(Debug, Default)]
pub(super) struct Spans {
    open: HashMap<Key, Span>,
    sessions: Vec<OfSession>,
    parted: HashMap<u64, Parted>,
    /// Serial number of the last span.
    last: u64,
    /// Polls whose time is not divided yet: the index of the poll, and the number of the poll's span.
    polls: HashMap<u32, u64>,
    /// For each place whose last event ended a poll, the id of the poll's span.
    left: HashMap<Place, u64>,
    /// The parted spans.
    pub whole: Vec<Whole>,
    /// Number of spans that were given up, because too many spans were open.
    pub beyond: u64,
}

impl Spans {
    /// Makes the spans of sessions. The two values of each session say whether threads without a ring lost
    /// events, and whether spans may be parted.
    pub fn new(sessions: impl IntoIterator<Item = (bool, bool)>) -> Spans {
        let of_session =
            |(is_lossy, has_parted)| OfSession { is_lossy, has_parted, ..OfSession::default() };
        Spans { sessions: sessions.into_iter().map(of_session).collect(), ..Spans::default() }
    }

    /// Returns whether no span is open.
    pub fn is_unused(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns whether no span had polls so far.
    pub fn has_none_parted(&self) -> bool {
        self.whole.is_empty() && self.parted.is_empty()
    }

    /// Returns the maximum number of open spans of a session.
    pub fn most(&self) -> usize {
        (MAX_SPANS.0 / self.sessions.len().max(1)).max(MAX_SPANS.1)
    }

    /// If a session has the maximum number of open spans, returns the open span that began first.
    pub fn oldest_of_full(&mut self, session: usize) -> Option<Key> {
        let most = self.most();
        let OfSession { open, begun, .. } = &mut self.sessions[session];
        let is_open = |(key, number): &(Key, u64)| {
            self.open.get(key).is_some_and(|span| span.number == *number)
        };
        if begun.len() > 2 * most {
            begun.retain(is_open);
        }
        if *open < most {
            return None;
        }
        while let Some(first) = begun.pop_front() {
            if is_open(&first) {
                return Some(first.0);
            }
        }
        None
    }

    /// Notes the begin of a span. `is_chosen`: whether spans of this name can be shown. `parent` is the id of
    /// the outer span, or 0 if there is no outer span.
    pub fn begin(
        &mut self,
        key: Key,
        (name, is_chosen): (u32, bool),
        place: Place,
        (parent, time): (u64, i64),
    ) {
        self.last += 1;
        let (number, of) = (self.last, &mut self.sessions[key.session]);
        let losses = (of.lost(key.process).times, of.of_kernel);
        let has_parent = of.has_parted && parent != 0;
        let (inside, around) = (None, None);
        let span = Span { name, place, is_chosen, losses, number, parted: None, inside, around };
        of.begun.push_back((key, number));
        of.open += usize::from(self.open.insert(key, span).is_none());
        if has_parent {
            self.go_inside(key, parent, time);
        }
    }

    /// Forgets the span of a region that is no longer waited for, if the region is a span without polls.
    pub fn give_up(&mut self, key: Key, open: &Open) {
        if self.is_of(key, open) {
            self.remove(key);
        }
    }

    /// Returns whether a region is a span without polls.
    pub fn is_of(&self, key: Key, open: &Open) -> bool {
        let is_its = |span: &Span| {
            let client = match span.place {
                Place::Client(_, client) => client,
                _ => NO_CLIENT,
            };
            span.parted.is_none() && (span.name, client) == (open.name, open.client)
        };
        self.open.get(&key).is_some_and(is_its)
    }

    fn remove(&mut self, key: Key) -> Option<Span> {
        let span = self.open.remove(&key)?;
        self.sessions[key.session].open -= 1;
        Some(span)
    }

    /// Notes that a place lost events after its last event. `process` is the process that has the place.
    pub fn lose(&mut self, place: Place, process: Process) {
        let of = &mut self.sessions[place.session()];
        let is_new = of.gaps.insert(place, process).is_none();
        let lost = of.lost.entry(process).or_default();
        lost.times += 1;
        lost.gaps += u32::from(is_new);
        self.left.remove(&place);
    }

    /// Notes that unknown threads of a session lost events.
    pub fn lose_of_any(&mut self, session: usize) {
        self.sessions[session].is_lossy = true;
    }

    /// Notes that a session's kernel lost events.
    pub fn lose_of_kernel(&mut self, session: usize) {
        self.sessions[session].of_kernel += 1;
    }

    /// Notes an event of a place. `process` is the process that has the place. Returns whether the event ends
    /// a gap that began while another process had the place.
    pub fn resume(&mut self, place: Place, process: Process) -> bool {
        let of = &mut self.sessions[place.session()];
        if of.gaps.is_empty() {
            return false;
        }
        let Some(loser) = of.gaps.remove(&place) else { return false };
        of.lost.entry(loser).or_default().gaps -= 1;
        // Spans that are open now may miss events of the gap.
        for process in BTreeSet::from([loser, process]) {
            of.lost.entry(process).or_default().times += 1;
        }
        loser != process
    }

    pub fn get(&self, key: Key) -> Option<&Span> {
        self.open.get(&key)
    }

    /// Returns the polls of a span.
    pub fn parted(&mut self, key: Key) -> Option<&mut Parted> {
        self.parted.get_mut(&self.open.get(&key)?.parted?)
    }

    /// Returns whether the polls of a span are needed: for the span, or for the span around it.
    pub fn needs_polls(&self, key: Key) -> bool {
        self.open.get(&key).is_some_and(|span| span.is_chosen || span.inside.is_some())
    }

    /// Processes the begin of a later poll of a span with [`Parted::enter`].
    pub fn enter(&mut self, key: Key, place: Place, time: i64) -> Option<(i64, i64)> {
        let idle = self.parted(key)?.enter(place, time);
        self.turn(key, place, true);
        idle
    }

    /// Processes the end of a poll of a span. Returns whether the poll's time counts.
    pub fn leave(&mut self, key: Key, place: Place, time: i64) -> bool {
        self.turn(key, place, false);
        self.parted(key).is_some_and(|parted| parted.leave(place, time))
    }

    /// Notes that a span has polls.
    pub fn part(&mut self, key: Key, open: Open) -> Option<&mut Parted> {
        let span = self.open.get_mut(&key)?;
        span.parted = Some(span.number);
        Some(self.parted.entry(span.number).or_insert(Parted::new(open, span.place)))
    }

    /// Removes a span that ends. Returns the span, whether events of the span's polls may be lost, and
    /// whether events of the kernel may be lost.
    pub fn take(&mut self, key: Key) -> Option<(Span, bool, bool)> {
        let span = self.remove(key)?;
        let of = &self.sessions[key.session];
        let Lost { times, gaps } = of.lost(key.process);
        let has_lost = of.is_lossy || gaps > 0 || span.losses.0 != times;
        let has_lost_of_kernel = span.losses.1 != of.of_kernel;
        Some((span, has_lost, has_lost_of_kernel))
    }

    /// Returns the polls of the span with this id.
    pub fn numbered(&mut self, number: u64) -> Option<&mut Parted> {
        self.parted.get_mut(&number)
    }

    /// Forgets the polls of the span with this id, because nobody waits for these polls.
    pub fn forget(&mut self, number: u64) -> Option<Parted> {
        self.parted.remove(&number)
    }

    /// Notes the last event of a place. `left` is the id of a span, if the event ends a poll of this span. If
    /// the place's previous event ended a poll, returns the id of the previous poll's span.
    pub fn note(&mut self, place: Place, left: Option<u64>) -> Option<u64> {
        match left {
            Some(span) => self.left.insert(place, span),
            None if self.left.is_empty() => None,
            None => self.left.remove(&place),
        }
    }

    /// Counts a poll as a region inside its span. The poll's time is divided later. Returns the id of the
    /// span.
    pub fn add_poll(&mut self, key: Key, index: u32, counts: bool) -> Option<u32> {
        let number = self.open.get(&key).and_then(|span| span.parted)?;
        let parted = self.parted.get_mut(&number)?;
        parted.last = parted.left.map(|place| (place, index, counts));
        parted.polls += 1;
        if counts {
            parted.waiting += 1;
            self.polls.insert(index, number);
        }
        Some(number as u32)
    }

    /// Removes the times of a poll whose division is not known any more. The poll's time in the span becomes
    /// unknown.
    pub fn drop_poll(&mut self, key: Key, index: u32, times: &Times) {
        if let Some(number) = self.polls.remove(&index) {
            self.parted.get_mut(&number).into_iter().for_each(|parted| parted.waiting -= 1);
        } else if let Some(parted) = self.parted(key) {
            parted.remove(times);
        }
    }

    /// Processes the division of a region. If the region is a poll, and if the time of the poll's span is
    /// then known, returns the span's index and division.
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

    /// If the time of the span with this number is known, returns the span's index and division.
    pub fn finish(&mut self, number: u64) -> Option<(u32, Divided)> {
        let parted = self.parted.get(&number)?;
        let (index, divided) = parted.finish()?;
        let unknown = divided.times.get(Part::Unknown) - parted.times.get(Part::Unknown);
        let Parted { polls, dropped, .. } = *parted;
        self.whole.push(Whole { index, polls, unknown, dropped });
        self.parted.remove(&number);
        Some((index, divided))
    }

    /// Removes all open spans. Returns the session and the region of each removed span that has polls.
    pub fn take_open(&mut self) -> Vec<(usize, Open)> {
        let mut all = Vec::new();
        for (key, span) in self.open.drain() {
            let parted = span.parted.and_then(|number| self.parted.remove(&number));
            all.extend(parted.and_then(|parted| parted.open).map(|open| (key.session, open)));
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
