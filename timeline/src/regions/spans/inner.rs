// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Spans inside a parted span: spans whose begins name the parted span as their parent, and that ended before
//! the parted span.
//!
//! ```text
//! request   [poll         ]  idle  [poll     ]
//! query       [poll     ]   idle    [poll]
//! self      [ ]                          [   ]
//! ```
//!
//! A reader learns late whether a span is parted, so each span keeps the spans inside it until its end.

use super::super::parts::{Part, Times};
use super::super::store::Store;
use super::{Key, Parted, Place, Span, Spans};

/// What an open span knows of the span around it.
#[derive(Debug)]
pub(super) struct Inside {
    parent: Key,
    /// [`Span::number`] of the parent.
    number: u64,
    /// Idle time of the parent before the span began, in nanoseconds.
    idle: u64,
    /// Value of [`Around::turn`] when the last poll of the span began.
    turn: u32,
    is_within: bool,
}

/// What an open span knows of the spans inside it.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// Number of times that a thread entered or left the span, or entered a span inside it.
    turn: u32,
    /// [`Span::number`] of the inner span that is polled now within the outer span's counted poll.
    polled: Option<u64>,
    ended: Vec<Ended>,
}

/// An inner span that has ended.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Ended {
    /// Idle time of the parent before the span began, and before the span ended, in nanoseconds.
    idle: [u64; 2],
    index: u32,
    is_within: bool,
}

/// An inner span that ends now.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Link {
    parent: Key,
    number: u64,
    idle: [u64; 2],
    is_within: bool,
}

/// An inner span of a parted span that has ended.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Inner {
    /// Time of the span that counts for the parent, in nanoseconds. If several inner spans are open at the
    /// same time, this time counts for the span that began first.
    pub counted: u64,
    /// Idle time of the parent in the time that counts, in nanoseconds.
    idle: u64,
    pub index: u32,
    /// Whether each poll of the inner span was in a poll of the parent on the same thread, but in no poll of
    /// another inner span.
    is_within: bool,
}

impl Spans {
    /// If the span `parent` is open and can be shown, notes that the span `key`, which has just begun, is inside
    /// the parent.
    pub(super) fn go_inside(&mut self, key: Key, parent: u64, time: i64) {
        let parent = Key { id: parent, ..key };
        let around = self.open.get(&parent).filter(|around| parent != key && around.is_chosen);
        let Some(&Span { number, .. }) = around else { return };
        let idle = self.idle_at(number, time);
        let Some(span) = self.open.get_mut(&key) else { return };
        let place = span.place;
        span.inside = Some(Box::new(Inside { parent, number, idle, turn: 0, is_within: true }));
        let around = self.open.get_mut(&parent).map(|span| &mut span.around);
        around.into_iter().for_each(|around| _ = around.get_or_insert_default());
        self.turn(key, place, true);
    }

    fn idle_at(&self, number: u64, time: i64) -> u64 {
        self.parted.get(&number).map_or(0, |parted| parted.idle + parted.idle_until(time))
    }

    /// Notes that a thread enters or leaves a span.
    pub(super) fn turn(&mut self, key: Key, place: Place, enters: bool) {
        let Some(span) = self.open.get_mut(&key) else { return };
        if let Some(around) = &mut span.around {
            around.turn = around.turn.wrapping_add(1);
            around.polled = None;
        }
        let (child, Some(inside)) = (span.number, &span.inside) else { return };
        let (parent, number, turn) = (inside.parent, inside.number, inside.turn);
        let is_polled_here = self.is_polled_at(parent, number, place);
        let around = self.open.get_mut(&parent).and_then(|span| span.around.as_mut());
        let Some(around) = around.filter(|_| is_polled_here) else {
            return self.is_not_within(key);
        };
        match enters {
            true if around.polled.is_none() => {
                around.turn = around.turn.wrapping_add(1);
                around.polled = Some(child);
                let turn = around.turn;
                let inside = self.open.get_mut(&key).and_then(|span| span.inside.as_mut());
                inside.into_iter().for_each(|inside| inside.turn = turn);
            }
            false if around.polled == Some(child) && around.turn == turn => around.polled = None,
            _ => self.is_not_within(key),
        }
    }

    fn is_not_within(&mut self, key: Key) {
        let inside = self.open.get_mut(&key).and_then(|span| span.inside.as_mut());
        inside.into_iter().for_each(|inside| inside.is_within = false);
    }

    /// Returns whether the poll at `place` is the poll whose time now counts for the span.
    fn is_polled_at(&self, key: Key, number: u64, place: Place) -> bool {
        let Some(span) = self.open.get(&key).filter(|span| span.number == number) else {
            return false;
        };
        match self.parted.get(&number) {
            Some(parted) => parted.counted == Some(place),
            // No end of the first poll was seen, so the first poll still counts.
            None => span.place == place,
        }
    }

    /// Returns what the outer span needs to know of a span that ends now.
    pub fn link(&mut self, key: Key, place: Place, time: i64, is_of_any: bool) -> Option<Link> {
        let span = self.open.get(&key)?;
        let (child, inside) = (span.number, span.inside.as_ref()?);
        let (parent, number, turn) = (inside.parent, inside.number, inside.turn);
        let around = self.open.get(&parent).filter(|span| span.number == number)?;
        let around = around.around.as_ref()?;
        // All time of a span that is not parted is time of its thread, also after the span's last exit.
        let is_plain = !is_of_any && self.parted.get(&child).is_none_or(|of| !of.is_again);
        let is_in_one_poll = around.turn == turn && self.is_polled_at(parent, number, place);
        if is_plain && !is_in_one_poll {
            self.is_not_within(key);
        }
        let end = self.idle_at(number, time);
        let around = self.open.get_mut(&parent)?.around.as_mut()?;
        around.polled = around.polled.filter(|of| *of != child);
        let Inside { idle, is_within, .. } = **self.open.get(&key)?.inside.as_ref()?;
        Some(Link { parent, number, idle: [idle, end], is_within })
    }

    /// Adds a span to the inner spans of the outer span in `link`, if the outer span is open.
    pub fn add_inner(&mut self, link: Link, index: u32) {
        let Link { parent, number, idle, is_within } = link;
        let parent = self.open.get_mut(&parent).filter(|span| span.number == number);
        if let Some(around) = parent.and_then(|span| span.around.as_mut()) {
            around.ended.push(Ended { idle, index, is_within });
        }
    }
}

impl Span {
    /// Returns the spans inside a span that ends.
    pub fn take_inner(&mut self) -> Vec<Ended> {
        self.around.take().map_or(Vec::new(), |around| around.ended)
    }
}

impl Parted {
    /// Returns the spans inside a span that has ended, in the order of their begins.
    pub fn take_inner(&mut self, store: &Store) -> Box<[Inner]> {
        let mut ended = std::mem::take(&mut self.inner);
        ended.sort_by_key(|of| store.get(of.index).begin_ns);
        let mut until = (i64::MIN, 0);
        let counted = ended.iter().map(|Ended { idle, index, is_within }| {
            let (begin, end) = store.times(*index);
            let from = until.max((begin, idle[0]));
            let mut inner = Inner { counted: 0, idle: 0, index: *index, is_within: *is_within };
            if end > from.0 {
                inner.counted = end.abs_diff(from.0);
                inner.idle = idle[1].saturating_sub(from.1).min(inner.counted);
                until = (end, idle[1]);
            }
            inner
        });
        counted.collect()
    }
}

/// Returns the times of an inner span that count for its parent: `counted` nanoseconds in total.
pub(in super::super) fn counted(times: &Times, counted: u64) -> Times {
    without(*times, times.total().saturating_sub(counted), counted)
}

/// Returns the times of a parted span outside of the given inner spans. Each inner span comes with its times.
pub(in super::super) fn own<'t>(
    times: &Times,
    inner: impl IntoIterator<Item = (&'t Inner, &'t Times)>,
) -> Times {
    let mut own = *times;
    let (mut counted, mut idle, mut polls) = (0, 0, 0);
    for (of, times) in inner {
        (counted, idle) = (counted + of.counted, idle + of.idle);
        for (part, ns) in times.iter().filter(|_| of.is_within) {
            // The idle time of an inner span can be busy time of the parent.
            if !matches!(part, Part::Idle | Part::Unknown) {
                own.0[part as usize] = own.0[part as usize].saturating_sub(ns);
                polls += ns;
            }
        }
    }
    let (all, left) = (own.get(Part::Idle), times.total().saturating_sub(counted));
    own.0[Part::Idle as usize] = 0;
    // Between the polls of an inner span, the parent may be busy, but nothing says which parts this time has.
    let undivided = counted.saturating_sub(idle).saturating_sub(polls);
    let own_idle = all.saturating_sub(idle).min(left);
    let mut own = without(own, undivided, left - own_idle);
    own.0[Part::Idle as usize] = own_idle;
    own
}

/// Subtracts `less` nanoseconds from the times, although nothing says to which parts these nanoseconds
/// belong. Returns the parts that are certainly left. The rest of the total `all` is unknown time.
fn without(times: Times, less: u64, all: u64) -> Times {
    let mut left = Times(times.0.map(|ns| ns.saturating_sub(less)));
    left.0[Part::Unknown as usize] = 0;
    match all.checked_sub(left.total()) {
        Some(unknown) => left.0[Part::Unknown as usize] = unknown,
        None => {
            left = Times::default();
            left.0[Part::Unknown as usize] = all;
        }
    }
    left
}
