// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The regions that are open on a client, or on a thread of the VMM.

use super::Kind;
use super::parts::Sums;
use crate::clock::GuestTime;
use std::collections::VecDeque;

/// Most open regions of a client. The oldest ones are taken as never ended.
const MOST_OPEN: usize = 1024;

/// The sums of a thread where a region begins or ends.
#[derive(Clone, Debug)]
pub(super) enum Cut {
    Known(Box<Sums>),
    /// The account knows the sums later, by this number.
    Waiting(u64),
}

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
    /// Thread of the host, and the account there.
    pub thread: Option<(usize, Cut)>,
    /// Why it will not be counted.
    pub wrong: Option<Kind>,
}

/// The open regions of a client.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    open: VecDeque<Open>,
}

impl Pairs {
    /// Opens a region. Returns one that is no longer waited for.
    pub fn begin(&mut self, mut new: Open) -> Option<Open> {
        for open in self.open.iter_mut().filter(|open| open.name == new.name) {
            if open.id == new.id {
                open.wrong = Some(Kind::IdTwice);
                // One end closes both.
                return None;
            }
            if open.wrong == Some(Kind::LostEvents) {
                // Its end may be one of those.
                continue;
            }
            open.wrong.get_or_insert(Kind::Nested);
            new.wrong = Some(Kind::Nested);
        }
        let old = if self.open.len() == MOST_OPEN { self.open.pop_front() } else { None };
        self.open.push_back(new);
        old
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
        Open {
            name,
            id,
            group,
            begin,
            bound,
            is_point: false,
            guest_time: None,
            thread: None,
            wrong: None,
        }
    }

    #[test]
    fn a_region_whose_end_may_be_lost_contains_no_other() {
        let mut pairs = Pairs::default();
        pairs.begin(open(1));
        pairs.spoil(Kind::LostEvents);
        pairs.begin(open(2));
        assert_eq!(pairs.end(0, 2).unwrap().wrong, None);
        pairs.begin(open(3));
        pairs.begin(open(4));
        assert_eq!(pairs.end(0, 4).unwrap().wrong, Some(Kind::Nested));
        assert_eq!(pairs.end(0, 1).unwrap().wrong, Some(Kind::LostEvents));
    }
}
