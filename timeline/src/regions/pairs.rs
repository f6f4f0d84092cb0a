// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The regions that are open on a client, or on a thread of the VMM.

use super::NotCounted;
use crate::clock::GuestTime;
use crate::filter::Answers;
use std::collections::VecDeque;

/// Maximum number of open regions of a session's clients together. Each open region takes some 450 bytes,
/// including sums of the region's thread.
const MAX_OPEN: usize = 1 << 14;
/// Maximum number of open regions of a client: the first number for a session with few clients, and the
/// second number for a session with many clients.
const MAX_OF_CLIENT: (usize, usize) = (1024, 8);

/// A region that is open.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub name: u32,
    pub id: u64,
    /// Client on which the region began.
    pub client: u32,
    /// Id of the target of a span.
    pub target: u32,
    /// Value at the region's beginning that determines the region's group.
    pub value: Option<String>,
    /// What the filter found in the event that began the region.
    pub answers: Option<Answers>,
    pub begin: i64,
    pub bound: Option<u64>,
    pub is_point: bool,
    /// Reading of the guest's clock at the region's beginning. Only events in a ring have a reading.
    pub guest_time: Option<GuestTime>,
    /// Index of the region's thread, and the number that identifies the region in the thread's tally.
    pub thread: Option<(usize, u32)>,
    /// Whether nothing was known about the thread when the region began.
    pub is_unknown: bool,
    /// Why the region will not be counted.
    pub wrong: Option<NotCounted>,
    /// Whether the region's end may be lost. If true, the region no longer counts as open, but still waits
    /// for its end.
    pub may_have_ended: bool,
}

/// Effect of a new region on an open region of the same name and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SameId {
    /// Neither region can be measured, because the next end event may belong to either region.
    Joins,
    /// The new region replaces the open region.
    Replaces,
}

/// Result of the beginning of a region.
#[derive(Debug)]
pub(super) enum Begun {
    /// The new region is open.
    Open,
    /// The new region is open, and the value is the old region. The reader no longer waits for the end of the
    /// old region.
    Instead(Open),
    /// An open region already has the id of the new region. `is_first`: whether the open region meets another
    /// region with its id for the first time.
    Again { new: Open, is_first: bool },
}

/// The open regions of a client, or of all clients together.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    open: VecDeque<Open>,
    has_begun: bool,
    has_ended: bool,
}

/// Returns the maximum number of open regions of a client, in a session with this number of clients. If a
/// client has more open regions, the oldest region counts as never ended.
pub(super) fn most_open(clients: usize) -> usize {
    (MAX_OPEN / clients.max(1)).clamp(MAX_OF_CLIENT.1, MAX_OF_CLIENT.0)
}

impl Open {
    fn spoil(&mut self, why: NotCounted) {
        self.wrong = Some(why);
        self.may_have_ended = true;
    }
}

impl Pairs {
    /// Opens a region. If `most` regions are open already, the new region takes the place of the oldest
    /// region.
    pub fn begin(&mut self, new: Open, most: usize, same_id: SameId) -> Begun {
        self.has_begun = true;
        let same = self.open.iter().position(|open| (open.name, open.id) == (new.name, new.id));
        let mut old = None;
        if let Some(at) = same {
            let open = &mut self.open[at];
            if same_id == SameId::Joins && !open.may_have_ended {
                let is_first = open.wrong.replace(NotCounted::IdTwice) != Some(NotCounted::IdTwice);
                return Begun::Again { new, is_first };
            }
            old = self.open.remove(at);
        }
        if old.is_none() && self.open.len() >= most {
            old = self.open.pop_front();
        }
        self.open.push_back(new);
        old.map_or(Begun::Open, Begun::Instead)
    }

    /// Closes a region. Returns the region, and the number of older regions that are still open.
    pub fn end(&mut self, name: u32, id: u64) -> Option<(Open, usize)> {
        self.has_ended = true;
        let at = self.open.iter().rposition(|open| (open.name, open.id) == (name, id))?;
        Some((self.open.remove(at)?, at))
    }

    /// Returns the number of regions that are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of open regions that began before a time.
    pub fn begun_before(&self, time: i64) -> usize {
        self.open.iter().filter(|open| open.begin < time).count()
    }

    /// Returns whether there was an event that begins a region, and an event that ends a region.
    pub fn has_both(&self) -> bool {
        self.has_begun && self.has_ended
    }

    /// Notes that no open region will be counted, for the reason `why`. The ends of the open regions may be
    /// lost.
    pub fn spoil(&mut self, why: NotCounted) {
        self.open.iter_mut().for_each(|open| open.spoil(why));
    }

    /// Notes that no open region of a thread will be counted, for the reason `why`. The ends of these regions
    /// may be lost.
    pub fn spoil_of(&mut self, thread: usize, why: NotCounted) {
        // If no thread of a client is known, any thread may have answered the client's points.
        let is_of = |open: &&mut Open| open.thread.map_or(open.is_point, |(of, _)| of == thread);
        self.open.iter_mut().filter(is_of).for_each(|open| open.spoil(why));
    }

    /// Notes that no open region will be counted, because events of the kernel are lost. The ends of the open
    /// regions are not lost.
    pub fn spoil_by_kernel(&mut self) {
        self.open.iter_mut().for_each(|open| open.wrong = Some(NotCounted::LostEvents));
    }

    /// Closes the regions that a new holder of the client cannot end. A region stays open only if a reference
    /// point began the region at `time` or later.
    pub fn take_before(&mut self, time: i64) -> Vec<Open> {
        let all = std::mem::take(&mut self.open).into_iter();
        let (old, new): (VecDeque<Open>, _) =
            all.partition(|open| !open.is_point || open.begin < time);
        *self = Pairs { open: new, ..Pairs::default() };
        old.into()
    }

    /// Closes all regions.
    pub fn take(&mut self) -> impl Iterator<Item = Open> {
        std::mem::take(&mut self.open).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(id: u64) -> Open {
        let (name, client, begin, bound) = (0, 0, 0, Some(0));
        let (is_point, guest_time, thread) = (false, None, None);
        let (is_unknown, wrong, may_have_ended) = (false, None, false);
        Open {
            name,
            id,
            client,
            target: 0,
            value: None,
            answers: None,
            begin,
            bound,
            is_point,
            guest_time,
            thread,
            is_unknown,
            wrong,
            may_have_ended,
        }
    }

    fn begin(pairs: &mut Pairs, id: u64) -> Begun {
        pairs.begin(open(id), 8, SameId::Joins)
    }

    fn end(pairs: &mut Pairs, id: u64) -> Option<NotCounted> {
        pairs.end(0, id).unwrap().0.wrong
    }

    #[test]
    fn the_id_of_a_region_whose_end_may_be_lost_may_begin_again() {
        let mut pairs = Pairs::default();
        begin(&mut pairs, 1);
        pairs.spoil(NotCounted::LostEvents);
        assert!(matches!(begin(&mut pairs, 1), Begun::Instead(_)));
        assert_eq!(end(&mut pairs, 1), None);
    }

    #[test]
    fn a_loss_of_the_kernel_ends_no_region() {
        let mut pairs = Pairs::default();
        begin(&mut pairs, 1);
        pairs.spoil_by_kernel();
        assert!(matches!(begin(&mut pairs, 1), Begun::Again { .. }));
    }

    #[test]
    fn a_threads_loss_is_of_its_regions_and_of_points_that_any_thread_may_have_answered() {
        let mut pairs = Pairs::default();
        for (id, thread, is_point) in
            [(1, Some(7), true), (2, Some(8), true), (3, None, true), (4, None, false)]
        {
            let thread = thread.map(|of| (of, 0));
            pairs.begin(Open { thread, is_point, ..open(id) }, 8, SameId::Joins);
        }
        pairs.spoil_of(7, NotCounted::LostEvents);
        let lost = Some(NotCounted::LostEvents);
        assert_eq!([1, 2, 3, 4].map(|id| end(&mut pairs, id)), [lost, None, lost, None]);
    }

    #[test]
    fn a_regions_depth_is_the_number_of_those_around_it() {
        let mut pairs = Pairs::default();
        for id in [1, 2, 3] {
            begin(&mut pairs, id);
        }
        let mut depth = |id| pairs.end(0, id).unwrap().1;
        assert_eq!([3, 1, 2].map(&mut depth), [2, 0, 0], "2 did not end in 1");
    }
}
