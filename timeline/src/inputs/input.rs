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

/// Time of losses at an unknown place: after everything else.
pub(crate) const UNPLACED: Time = Time::MAX;

/// Returns a time in whole nanoseconds.
pub(crate) fn nanoseconds(time: Time) -> i64 {
    time.div_euclid(FRACTION.into()).clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns a distance of times in nanoseconds, rounded up.
pub(crate) fn nanoseconds_up(distance: Time) -> u64 {
    let units = distance.clamp(0, i64::MAX.into()) as u64;
    units.div_ceil(FRACTION.unsigned_abs())
}

/// A sequence of events in order of time, with the places where events were lost.
pub(crate) trait Input: Debug + Send {
    /// Reads the next entry. Returns the time of that entry, which is never before the time of the last one,
    /// or `None` at the end.
    ///
    /// # Errors
    /// If the input is damaged there.
    fn advance(&mut self) -> Result<Option<Time>>;

    /// Returns the entry that was read last. The timeline calls this in its own order, because a lease
    /// changes a name in `names` for the entries after it.
    fn take<'s>(&'s mut self, names: &'s mut Names) -> Option<EntryRef<'s>>;

    /// Returns whether the input's entries come after a guest's entries of the same time. The time of a
    /// guest's event before a reference point may be mapped to the time of the point, but the time of an
    /// event after the point never is.
    fn is_host(&self) -> bool;

    /// Returns whether the input has no entry, but damage that the next [`advance`](Input::advance) returns.
    fn is_damaged(&self) -> bool {
        false
    }

    /// Returns the session whose events were left out, and the number of those events so far.
    fn left_out(&self) -> Option<(usize, u64)> {
        None
    }

    /// Returns the faults so far of entries that could be read in spite of these faults.
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
