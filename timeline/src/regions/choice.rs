// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Which of the selected regions are shown, and how many are left out.

use super::groups::EMPTY;
use crate::event::{Event, EventRef};
use crate::filter::{Filter, RegionRef};
use std::collections::HashSet;

/// Which of the selected regions are shown.
///
/// A region that is left out is in no group. If it is inside of one that is shown, it is a child of that one as
/// all others are.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only those that fit; see [`Filter::of_regions`].
    pub filter: Option<Filter>,
    /// Whether the regions named `empty` are taken in any case: they measure what a region takes.
    pub keeps_empty: bool,
}

/// Why a region that could be counted is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LeftOut {
    /// It does not fit the filter.
    Filter,
}

impl LeftOut {
    /// All reasons, with their names.
    pub const ALL: [(LeftOut, &str); 1] = [(LeftOut::Filter, "where")];
}

/// A choice, and how many regions it has left out.
#[derive(Debug)]
pub(super) struct Chooser<'a> {
    choice: &'a Choice,
    /// Fields that the filter asks for.
    fields: HashSet<&'a str>,
    pub left_out: [u64; LeftOut::ALL.len()],
}

impl<'a> Chooser<'a> {
    pub fn new(choice: &'a Choice) -> Chooser<'a> {
        let fields = choice.filter.iter().flat_map(Filter::fields).collect();
        Chooser { choice, fields, left_out: [0; LeftOut::ALL.len()] }
    }

    /// Returns what is kept of the event that begins a region until it ends.
    pub fn keep(&self, event: &EventRef<'_>) -> Option<Box<Event>> {
        let is_needed = self.choice.filter.is_some();
        is_needed.then(|| Box::new(event.copy_with(|name| self.fields.contains(name))))
    }

    /// Returns why a region is left out, if it is.
    pub fn refuses(&self, region: &RegionRef<'_>) -> Option<LeftOut> {
        if self.choice.keeps_empty && region.name == EMPTY {
            return None;
        }
        let fits = |filter: &Filter| filter.fits_region(region);
        (!self.choice.filter.as_ref().is_none_or(fits)).then_some(LeftOut::Filter)
    }
}
