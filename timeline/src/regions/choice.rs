// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Which of the selected regions are shown, and how many are left out.

use super::groups::EMPTY;
use crate::event::EventRef;
use crate::filter::{Answers, Filter, RegionRef};

/// Which of the selected regions are shown.
///
/// A region that is left out is in no group. If the region is inside a region that is shown, the inner region
/// is still a child of the outer region.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Names of the regions that are shown. If the list is empty, regions of all names are shown.
    pub names: Vec<String>,
    /// Filter that a region must fit: see [`Filter::of_regions`].
    pub filter: Option<Filter>,
    /// Unix time in nanoseconds. A region must begin at this time or later.
    pub from_ns: Option<i64>,
    /// Unix time in nanoseconds. A region must begin before this time.
    pub to_ns: Option<i64>,
    /// Whether regions named `empty` are always shown, even if the other fields leave these regions out.
    /// These regions measure the cost of a region.
    pub keeps_empty: bool,
}

/// Why a region that could be counted is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LeftOut {
    /// The region does not fit the filter.
    Filter,
    /// The region does not begin in the chosen time.
    Time,
    /// The region has a name that is not chosen.
    Name,
}

impl LeftOut {
    /// All reasons, with their names.
    pub const ALL: [(LeftOut, &str); 3] =
        [(LeftOut::Filter, "where"), (LeftOut::Time, "from_to"), (LeftOut::Name, "name")];
}

/// A choice, and how many regions it has left out.
#[derive(Debug)]
pub(super) struct Chooser<'a> {
    choice: &'a Choice,
    pub left_out: [u64; LeftOut::ALL.len()],
}

impl<'a> Chooser<'a> {
    pub fn new(choice: &'a Choice) -> Chooser<'a> {
        Chooser { choice, left_out: [0; LeftOut::ALL.len()] }
    }

    /// Returns the filter's answers about the event that begins a region. The filter needs these answers when
    /// the region ends.
    pub fn answers(&self, event: &EventRef<'_>) -> Option<Answers> {
        self.choice.filter.as_ref().map(|filter| filter.answers(event))
    }

    /// If a region that begins at `begin_ns` is left out, returns why.
    pub fn refuses(&self, begin_ns: i64, region: &RegionRef<'_>) -> Option<LeftOut> {
        let Choice { filter, from_ns, to_ns, .. } = self.choice;
        if self.is_kept(region.name) {
            None
        } else if !self.has_name(region.name) {
            Some(LeftOut::Name)
        } else if from_ns.is_some_and(|from| begin_ns < from)
            || to_ns.is_some_and(|to| begin_ns >= to)
        {
            Some(LeftOut::Time)
        } else {
            let fits = filter.as_ref().is_none_or(|filter| filter.fits_region(region));
            (!fits).then_some(LeftOut::Filter)
        }
    }

    /// Returns whether regions of a name can be shown.
    pub fn has_name(&self, name: &str) -> bool {
        let names = &self.choice.names;
        names.is_empty() || self.is_kept(name) || names.iter().any(|of| of == name)
    }

    fn is_kept(&self, name: &str) -> bool {
        self.choice.keeps_empty && name == EMPTY
    }
}
