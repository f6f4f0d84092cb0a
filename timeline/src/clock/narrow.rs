// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Makes a map narrower with the constraints of a second source, which may be wrong.
//!
//! The constraints of reference points are certain. The constraints of a kernel's trace are not certain: the
//! trace may lack an event without counting the loss, or the file may be from another machine. So a
//! constraint of a trace counts only if the constraint agrees with the points and with the trace's other
//! constraints. If such constraints show a jump, the narrower map has this jump.

use super::sweep::{self, Reading};
use super::{ClockMap, Declared, ENDS, Point, nominal_rate, readings};
use std::collections::HashSet;

/// Divisor of the largest allowed share of contradictory constraints. If more constraints are contradictory,
/// no constraint of the source is reliable.
const MAX_WRONG: usize = 16;

/// Number of passes that search for contradicting constraints.
const PASSES: usize = 4;

/// Constraints on a map f. A point of `not_after` means f(x) <= y, and a point of `not_before` means f(x) >=
/// y.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    pub not_after: Vec<Point>,
    pub not_before: Vec<Point>,
}

impl Limits {
    pub fn len(&self) -> usize {
        self.not_after.len() + self.not_before.len()
    }

    pub fn extend(&mut self, other: &Limits) {
        self.not_after.extend(&other.not_after);
        self.not_before.extend(&other.not_before);
    }

    fn retain(&mut self, mut keep: impl FnMut(&Point, bool) -> bool) {
        self.not_after.retain(|point| keep(point, true));
        self.not_before.retain(|point| keep(point, false));
    }

    fn readings(&self, declared: Declared) -> Vec<Reading> {
        readings(nominal_rate(declared.frequency), &self.not_after, &self.not_before)
    }
}

impl ClockMap {
    /// Makes a narrower map from `certain`, the constraints of this map, and from the constraints that remain
    /// in `more`. A constraint of `more` that contradicts any other constraint is removed from `more`. If two
    /// constraints of `more` contradict each other, both are removed. If the removed constraints are more
    /// than a share of 1/[`MAX_WRONG`], or if the remaining constraints change whether the clock can have the
    /// declared rate, all constraints of `more` are removed and the result is `None`.
    ///
    /// The narrower map's bounds leave room for jumps of the same size as this map's bounds.
    pub(crate) fn narrowed(
        &self,
        declared: Declared,
        certain: &Limits,
        more: &mut Limits,
    ) -> Option<ClockMap> {
        if more.len() == 0 {
            return None;
        }
        let found = more.len();
        let mut hint = 0;
        more.retain(|point, is_upper| {
            let span = self.span(self.find(&mut hint, point.x), point.x);
            if is_upper { span.low <= point.y } else { point.y <= span.high }
        });
        let with = |more: &Limits| {
            let mut all = certain.clone();
            all.extend(more);
            all
        };
        for _ in 0..PASSES {
            let mut wrong = HashSet::new();
            sweep::forward(&with(more).readings(declared), self.rates, ENDS, |_, found| {
                if let Some(found) = found {
                    wrong.insert((found.before.x, found.before.y, !found.ahead));
                    wrong.insert((found.after.x, found.after.y, found.ahead));
                }
            });
            let before = more.len();
            more.retain(|point, is_upper| !wrong.contains(&(point.x, point.y, is_upper)));
            if more.len() == before {
                break;
            }
        }
        let all = with(more);
        let map = ClockMap::fit(declared, &all.not_after, &all.not_before).ok().flatten();
        let map = map.filter(|map| {
            (found - more.len()) * MAX_WRONG <= found
                && map.has_another_rate == self.has_another_rate
        });
        if map.is_none() {
            more.retain(|_, _| false);
        }
        map.map(|map| map.with_width(self.width))
    }

    /// Returns the map with bounds that leave room for jumps of the size `width`.
    pub(crate) fn with_width(mut self, width: Option<u64>) -> ClockMap {
        self.width = width;
        if let Some(otherwise) = &mut self.otherwise {
            otherwise.width = otherwise.width.max(width);
        }
        self
    }
}
