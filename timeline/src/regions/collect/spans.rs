// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The events of spans of the crate `tracing`.

use super::super::NotCounted;
use super::super::causes::Unknown;
use super::super::groups::POLLS;
use super::super::host::Side;
use super::super::pairs::{Open, Pairs};
use super::super::parts::Part;
use super::super::region_path::Path;
use super::super::roles::{OfSpan, Role};
use super::super::spans::{Key, Place, Process};
use super::super::steps::{PathStep, Timed};
use super::super::store::NO_CLIENT;
use super::Pass;
use crate::event::{EventKind, EventRef};

/// The thread of an event: the thread's index if the thread's time is divided, and the thread's machine and
/// id if these are known.
type On = (Option<usize>, Option<(Side, u32)>);

impl Pass<'_> {
    /// Processes an event that begins or ends a region. Returns whether the event belongs to a span.
    pub fn span_event(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        (thread, on): On,
        is_unknown: bool,
    ) -> bool {
        let Some(place) = place(event) else { return false };
        let session = event.source.session;
        let client = event.source.client.unwrap_or(NO_CLIENT);
        let mut key = self.hosts[session].span(session, client, 0);
        // Reference points and faults of time do not show that a ring has recovered, because a thread of the
        // host records such events.
        if !matches!(event.kind, EventKind::ReferencePoint | EventKind::TimeFault) {
            self.resume(place, key.process, event.ts_ns);
        }
        if role.span.is_none() && self.spans.is_unused() {
            return false;
        }
        key.id = role.id(event);
        let left = self.spans.note(place, (role.span == Some(OfSpan::PollEnd)).then_some(key.id));
        match (role.span, role.begins, role.ends) {
            (Some(OfSpan::Begin(_)), Some(name), _) => {
                self.replace(key, name, place);
                if let Some(oldest) = self.spans.oldest_of_full(session) {
                    self.spans.beyond += 1;
                    self.forget_span(oldest, NotCounted::BeginWithoutEnd);
                }
                self.begin(event, role, name, thread, is_unknown);
                let is_chosen = self.chooser.has_name(&self.roles.names()[name as usize]);
                let parent = (role.parent(event), event.ts_ns);
                self.spans.begin(key, (name, is_chosen), place, parent);
            }
            (Some(OfSpan::PollBegin), Some(name), _) => {
                self.begin(event, role, name, thread, is_unknown);
                self.begin_poll(event, key, place, on);
            }
            (Some(OfSpan::PollEnd), _, Some(name)) => {
                self.end_poll(event, role, (name, key, place), (thread, on), is_unknown);
            }
            (None, None, Some(name)) if self.spans.get(key).is_some_and(|of| of.name == name) => {
                let is_direct = left == Some(key.id);
                self.ending = self.spans.link(key, place, event.ts_ns, role.is_of_any);
                self.end_span(event, role, (key, place, is_direct), (thread, on), is_unknown);
                self.ending = None;
            }
            _ => return false,
        }
        true
    }

    /// Processes an event of a place. The event shows that the place's loss of events has ended.
    fn resume(&mut self, place: Place, process: Process, time: i64) {
        let is_of_new = self.spans.resume(place, process);
        let Place::Client(session, client) = place else { return };
        let host = &mut self.hosts[session];
        let last = host.client(client).map(|client| std::mem::replace(&mut client.last, time));
        // While a ring has no room for the lease of a new process, the process drops events. The dropped
        // events may be polls of spans that other clients have ended.
        if let Some(last) = last.filter(|_| is_of_new && host.clients_of(process) > 1) {
            self.drop_parted(session, last);
        }
    }

    /// Forgets a span if a new span with the same number begins at another place, or after polls. The end of
    /// the old span could not be told from the end of the new span.
    fn replace(&mut self, key: Key, name: u32, place: Place) {
        let Some(old) = self.spans.get(key) else { return };
        // `Pairs` counts a second begin with the same name and id at the same place.
        if old.parted.is_none() && (old.name, old.place) == (name, place) {
            return;
        }
        self.forget_span(key, NotCounted::IdTwice);
    }

    /// Forgets an open span. The span is not counted.
    fn forget_span(&mut self, key: Key, why: NotCounted) {
        let open = match self.spans.get(key).and_then(|span| span.parted) {
            Some(number) => self.spans.forget(number).and_then(|parted| parted.open),
            None => self.take_begun(key),
        };
        self.spans.take(key);
        if let Some(open) = open {
            self.forget(key.session, open.thread);
            self.count(key.session, &open, None, open.wrong.unwrap_or(why));
        }
    }

    /// Processes the begin of a poll that is not the first poll of the span.
    fn begin_poll(
        &mut self,
        event: &EventRef<'_>,
        key: Key,
        place: Place,
        on: Option<(Side, u32)>,
    ) {
        if self.spans.parted(key).is_none() {
            let Some(open) = self.take_begun(key) else { return };
            self.spans.part(key, open);
        }
        let (session, time) = (key.session, event.ts_ns);
        let idle = self.spans.enter(key, place, time);
        let Some(parted) = self.spans.parted(key) else { return };
        // The time of one thread is not the time of the whole span.
        let thread = parted.open.as_mut().and_then(|open| open.thread.take());
        self.forget(session, thread);
        if let Some(idle) = idle.filter(|_| self.options.has_paths) {
            let steps = self.steps(session, on, idle, self.hosts[session].is_exact(event));
            // For times in which the polling thread did something else, nothing shows what the task waited
            // for.
            let own = steps.first().map(|of| of.thread);
            if let Some(parted) = self.spans.parted(key) {
                for Timed { thread, interval, .. } in steps {
                    let is_other = interval.part == Part::Blocked || Some(thread) != own;
                    parted.idle_steps.add(&match is_other && interval.part != Part::Unknown {
                        true => PathStep::new(thread, &interval),
                        false => PathStep::unknown(Unknown::Idle, interval.length()),
                    });
                }
            }
        }
    }

    /// Processes the end of a poll.
    fn end_poll(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        (name, key, place): (u32, Key, Place),
        (thread, on): On,
        is_unknown: bool,
    ) {
        let session = key.session;
        let poll = self.pairs_of(place).and_then(|pairs| pairs.end(name, key.id));
        let (open, depth) = match poll {
            Some(poll) => poll,
            None => {
                let span = self.spans.get(key).filter(|span| span.place == place);
                if span.is_none_or(|span| span.parted.is_some()) {
                    self.spans.leave(key, place, event.ts_ns);
                    return self.end_without_begin(event, role, name, thread);
                }
                // This end belongs to the first poll, which began with the span.
                let Some(open) = self.take_begun(key) else { return };
                let depth = self.pairs_of(place).map_or(0, |pairs| pairs.len());
                let threads = &mut self.hosts[session].threads;
                let thread = open.thread.map(|(at, number)| (at, threads[at].tally.fork(number)));
                let first = Open {
                    name,
                    thread,
                    answers: None,
                    value: None,
                    target: POLLS,
                    ..open.clone()
                };
                self.spans.part(key, open);
                (first, depth)
            }
        };
        let counts = self.spans.leave(key, place, event.ts_ns);
        let times = (open.begin, event.ts_ns);
        if counts && open.wrong.is_none() && self.options.has_paths {
            let is_exact = self.hosts[session].is_exact(event);
            let steps = self.steps(session, on, times, is_exact);
            if let Some(parted) = self.spans.parted(key) {
                for of in steps {
                    parted.steps.add(&PathStep::new(of.thread, &of.interval));
                }
            }
        }
        self.polling = Some((key, counts)).filter(|_| self.spans.needs_polls(key));
        self.close(event, role, name, (open, depth), (thread, on), is_unknown);
        self.polling = None;
    }

    /// Processes the end of a span. `is_direct`: whether the thread left the span right before. If true, the
    /// thread entered the span for the last time to drop the future, or entered the span only once.
    fn end_span(
        &mut self,
        event: &EventRef<'_>,
        role: Role,
        (key, here, is_direct): (Key, Place, bool),
        (thread, on): On,
        is_unknown: bool,
    ) {
        let session = key.session;
        let begun = self.spans.get(key).filter(|span| span.parted.is_none()).map(|span| span.name);
        if let Some(name) = begun.filter(|_| !role.is_of_any) {
            self.spans.take(key);
            return self.end(event, role, name, (thread, on), is_unknown);
        }
        if let Some(name) = begun {
            let Some(open) = self.take_begun(key) else {
                self.spans.take(key);
                return self.end_without_begin(event, role, name, thread);
            };
            self.spans.part(key, open);
        }
        let Some((mut span, has_lost, has_lost_of_kernel)) = self.spans.take(key) else { return };
        let (Some(number), name) = (span.parted, span.name) else { return };
        let Some(parted) = self.spans.numbered(number) else { return };
        let Some(mut open) = parted.open.take() else { return };
        let is_plain = !role.is_of_any && !parted.is_again;
        let here = Some(here).filter(|_| is_plain || is_direct);
        if let Some(last) = here.and_then(|place| parted.take_last(place)) {
            // The last entry is no poll, but the entry's time is still the span's.
            self.count_out(last);
        }
        if is_plain {
            if has_lost_of_kernel {
                open.wrong.get_or_insert(NotCounted::LostEvents);
            }
            self.spans.forget(number);
            let pairs = self.pairs_of(span.place);
            let depth = pairs.map_or(0, |pairs| pairs.begun_before(open.begin));
            self.close(event, role, name, (open, depth), (thread, on), is_unknown);
            return;
        }
        // Begin and end belong together even if events between them are lost, because no other span has the
        // number.
        open.wrong = open.wrong.filter(|why| *why != NotCounted::LostEvents);
        if let Some(parted) = self.spans.numbered(number) {
            (parted.is_lost, parted.inner) = (has_lost, span.take_inner());
        }
        let of = open.thread.take();
        self.forget(session, of);
        open.is_unknown = false;
        let mut role = role;
        role.is_of_any = true;
        self.parting = Some(number);
        self.close(event, role, name, (open, 0), (None, on), false);
        // If the number is still here, the span has become no region, so nothing needs the span's polls.
        if self.parting.take().is_some() {
            self.spans.forget(number);
        }
    }

    /// Removes the region of a span from the open regions of the place where the span began.
    fn take_begun(&mut self, key: Key) -> Option<Open> {
        let span = self.spans.get(key)?;
        let (name, place) = (span.name, span.place);
        self.pairs_of(place)?.end(name, key.id).map(|(open, _)| open)
    }

    fn pairs_of(&mut self, place: Place) -> Option<&mut Pairs> {
        match place {
            Place::Client(session, client) => {
                self.hosts[session].client(client).map(|client| &mut client.pairs)
            }
            Place::Thread(session, tid) => self.hosts[session].vmm(tid),
        }
    }

    /// Returns the critical path of a thread between two times, from the second time back to the first time.
    fn steps(
        &mut self,
        session: usize,
        on: Option<(Side, u32)>,
        times: (i64, i64),
        is_exact: bool,
    ) -> Vec<Timed> {
        let mut steps = Vec::new();
        let host = &self.hosts[session];
        let is_divided = on.is_some_and(|(side, _)| host.divides(side));
        let followed = match is_divided || self.has_walked_enough() {
            true => Err(Unknown::TooMany),
            false => self.follow(session, on, times, (is_exact, false), |of| steps.push(of)),
        };
        match followed {
            Ok(records) => self.walked += records,
            Err(why) => steps = vec![Timed::unknown(why, times)],
        }
        steps
    }

    /// Returns the path of a parted span that ends. The path is known, because all polls were walked.
    pub fn parted_path(&mut self, number: u64, duration: u64, end: i64) -> Path {
        let mut path = Path::walked();
        if let Some(parted) = self.spans.numbered(number) {
            let mut steps = std::mem::take(&mut parted.steps);
            let mut idle = 0;
            if !parted.is_lost {
                steps.add_all(&parted.idle_steps.mean(1));
                idle = parted.idle_until(end);
            }
            let left = duration.saturating_sub(steps.total());
            let idle = left.min(idle);
            steps.add(&PathStep::unknown(Unknown::Idle, idle));
            steps.add(&PathStep::unknown(Unknown::Missing, left - idle));
            path.set_walked(steps);
        }
        path
    }
}

/// Returns where an event was recorded.
fn place(event: &EventRef<'_>) -> Option<Place> {
    let session = event.source.session;
    match (event.source.client, event.thread) {
        (Some(client), _) => Some(Place::Client(session, client)),
        (None, Some(thread)) => Some(Place::Thread(session, thread.tid)),
        (None, None) => None,
    }
}
