// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The trait of all inputs.

use super::names::Names;
use crate::clock::FRACTION;
use crate::error::Result;
use crate::event::{EntryRef, Lost};
use hypertrace_format::error::Warning;
use std::collections::VecDeque;
use std::fmt::Debug;

/// Unix time, in units of 1/[`FRACTION`](crate::clock::FRACTION) ns.
pub(crate) type Time = i128;

/// Time of losses at an unknown place. Such losses come after all other entries.
pub(crate) const UNPLACED: Time = Time::MAX;

/// Returns a time in whole nanoseconds.
pub(crate) fn nanoseconds(time: Time) -> i64 {
    time.div_euclid(FRACTION.into()).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Converts the distance between two times to nanoseconds, rounded up.
pub(crate) fn nanoseconds_up(distance: Time) -> u64 {
    let units = distance.clamp(0, i64::MAX.into()) as u64;
    units.div_ceil(FRACTION.unsigned_abs())
}

/// A sequence of events in order of time, with the places where events were lost.
pub(crate) trait Input: Debug + Send {
    /// Reads the next entry. Returns the time of the entry, or `None` at the end. The time is never earlier
    /// than the time of the entry before.
    ///
    /// # Errors
    /// If the input is damaged at the next entry.
    fn advance(&mut self) -> Result<Option<Time>>;

    /// Returns the entry that was read last. The timeline calls this method in the order of its entries,
    /// because a lease changes a name in `names` for the entries after the lease.
    fn take<'s>(&'s mut self, names: &'s mut Names) -> Option<EntryRef<'s>>;

    /// Returns whether the input's entries come after a guest's entries with the same time. A guest's event
    /// before a reference point may be mapped to the time of the point. A guest's event after the point is
    /// always mapped to a later time.
    fn is_host(&self) -> bool;

    /// Returns whether the next [`advance`](Input::advance) returns an error because the input is damaged.
    /// The input then has no current entry.
    fn is_damaged(&self) -> bool {
        false
    }

    /// Returns the index of the input's session, and the number of the session's events that the input has
    /// left out so far.
    fn left_out(&self) -> Option<(usize, u64)> {
        None
    }

    /// Returns the faults that were found so far and did not prevent the reading of entries.
    fn warnings(&self) -> Vec<Warning> {
        Vec::new()
    }
}

/// Losses that belong to no stream with events.
impl Input for VecDeque<Lost> {
    fn advance(&mut self) -> Result<Option<Time>> {
        Ok((!self.is_empty()).then_some(UNPLACED))
    }

    fn take<'s>(&'s mut self, _: &'s mut Names) -> Option<EntryRef<'s>> {
        self.pop_front().map(EntryRef::Lost)
    }

    fn is_host(&self) -> bool {
        false
    }
}
