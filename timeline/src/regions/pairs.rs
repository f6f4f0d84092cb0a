// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The regions that are open on a client, or on a thread of the VMM.

use super::Kind;
use crate::clock::GuestTime;
use std::collections::VecDeque;

/// Most open regions of a session's clients together. Each has some 450 bytes, with the sums of its
/// thread.
const MOST_OPEN: usize = 1 << 14;
/// Most open regions of a client, and of a client of a session with many.
const MOST_OF_CLIENT: (usize, usize) = (1024, 8);

/// A region that is open.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub name: u32,
    pub id: u64,
    pub group: u32,
    pub begin: i64,
    pub bound: Option<u64>,
    pub is_point: bool,
    /// Reading of the guest's clock where it begins, of an event of the ring.
    pub guest_time: Option<GuestTime>,
    /// Thread of the host, and the number of the cut in its account.
    pub thread: Option<(usize, u32)>,
    /// Whether nothing was known of the thread when it began.
    pub is_unknown: bool,
    /// Why it will not be counted.
    pub wrong: Option<Kind>,
}

/// Result of the beginning of a region.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is open.
    Open,
    /// It is open, and this one is no longer waited for.
    Instead(Open),
    /// Its id is open already, in this group; whether that is so for the first time.
    Again { group: u32, is_first: bool },
}

/// The open regions of a client.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    open: VecDeque<Open>,
}

/// Returns the most open regions of each of so many clients. The oldest ones are taken as never ended.
pub(super) fn most_open(clients: usize) -> usize {
    (MOST_OPEN / clients.max(1)).clamp(MOST_OF_CLIENT.1, MOST_OF_CLIENT.0)
}

impl Pairs {
    /// Opens a region, if there are fewer than `most`.
    pub fn begin(&mut self, mut new: Open, most: usize) -> Begun {
        for open in self.open.iter_mut().filter(|open| open.name == new.name) {
            if open.id == new.id {
                let is_first = open.wrong.replace(Kind::IdTwice) != Some(Kind::IdTwice);
                return Begun::Again { group: open.group, is_first };
            }
            if open.wrong == Some(Kind::LostEvents) {
                // Its end may be one of those.
                continue;
            }
            open.wrong.get_or_insert(Kind::Nested);
            new.wrong = Some(Kind::Nested);
        }
        let old = if self.open.len() >= most { self.open.pop_front() } else { None };
        self.open.push_back(new);
        old.map_or(Begun::Open, Begun::Instead)
    }

    /// Closes a region.
    pub fn end(&mut self, name: u32, id: u64) -> Option<Open> {
        let at = self.open.iter().rposition(|open| (open.name, open.id) == (name, id))?;
        self.open.remove(at)
    }

    /// Marks all that are open as wrong.
    pub fn spoil(&mut self, why: Kind) {
        self.open.iter_mut().for_each(|open| open.wrong = Some(why));
    }

    /// Marks those of a thread as wrong.
    pub fn spoil_of(&mut self, thread: usize, why: Kind) {
        let is_of = |open: &&mut Open| open.thread.is_some_and(|(of, _)| of == thread);
        self.open.iter_mut().filter(is_of).for_each(|open| open.wrong = Some(why));
    }

    /// Closes all.
    pub fn take(&mut self) -> impl Iterator<Item = Open> {
        std::mem::take(&mut self.open).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(id: u64) -> Open {
        let (name, group, begin, bound) = (0, 0, 0, Some(0));
        let (is_point, guest_time, thread) = (false, None, None);
        let (is_unknown, wrong) = (false, None);
        Open { name, id, group, begin, bound, is_point, guest_time, thread, is_unknown, wrong }
    }

    #[test]
    fn a_region_whose_end_may_be_lost_contains_no_other() {
        let mut pairs = Pairs::default();
        pairs.begin(open(1), 8);
        pairs.spoil(Kind::LostEvents);
        pairs.begin(open(2), 8);
        assert_eq!(pairs.end(0, 2).unwrap().wrong, None);
        pairs.begin(open(3), 8);
        pairs.begin(open(4), 8);
        assert_eq!(pairs.end(0, 4).unwrap().wrong, Some(Kind::Nested));
        assert_eq!(pairs.end(0, 1).unwrap().wrong, Some(Kind::LostEvents));
    }
}
