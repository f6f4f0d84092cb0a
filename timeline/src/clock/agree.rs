// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks a clock map from the readings of several clients: the map has to agree with the constraints of each
//! client.
//!
//! A client's readings may be false. So a map from all clients' readings is compared with the limits of each
//! client's own constraints.

use super::{ClockMap, ENDS, MAX_JUMPS, Point};

impl ClockMap {
    /// Returns both ends of each steep part of the map, in order. A part is steep if its rate is outside the
    /// limits of the rate.
    pub(crate) fn steep(&self) -> Vec<Point> {
        let mut ends: Vec<Point> = Vec::new();
        for (a, b) in self.knots.iter().zip(self.knots.iter().skip(1)) {
            let rise = i128::from(b.y) - i128::from(a.y);
            // The limits are one unit wider, because the map's values are rounded down.
            let least = self.rates.min.rise(b.x - a.x - 1) - 1;
            let most = self.rates.max.rise(b.x - a.x + 1) + 2;
            if !(least..=most).contains(&rise) {
                ends.extend([a, b].map(|knot| Point { x: knot.x, y: knot.y }));
            }
        }
        ends
    }

    /// Returns whether this map, which was made from the constraints of several clients, lies within the
    /// limits that follow from the constraints of one client. `steep` holds the ends of the map's steep
    /// parts.
    ///
    /// The map is compared only at the client's readings and at the ends of the steep parts. At other times
    /// the limits of the rate hold, so no comparison is needed there. So the readings of other clients add no
    /// work. If the number of steep parts between the client's readings exceeds [`MAX_JUMPS`] plus the number
    /// of the client's readings, the result is false. The first and the last readings of the client are not
    /// compared. Near these readings, the client's own constraints may miss a jump that the constraints of
    /// other clients show.
    pub(crate) fn is_within(&self, own: &ClockMap, steep: &[Point]) -> bool {
        let ends = ENDS.min(own.knots.len() / 4);
        let compared = own.knots.get(ends..own.knots.len() - ends).unwrap_or_default();
        let (Some(first), Some(last)) = (compared.first(), compared.last()) else { return true };
        let from = steep.partition_point(|end| end.x <= first.x);
        let to = steep.partition_point(|end| end.x < last.x);
        let steep = steep.get(from..to).unwrap_or_default();
        let (mut here, mut there) = (0, 0);
        let mut is_inside = |x: i64, y: i64| {
            let span = own.span(own.find(&mut there, x), x);
            span.low <= y && y <= span.high
        };
        steep.len() / 2 <= MAX_JUMPS + own.knots.len()
            && steep.iter().all(|end| is_inside(end.x, end.y))
            && compared
                .iter()
                .all(|knot| is_inside(knot.x, self.value(self.find(&mut here, knot.x), knot.x)))
    }

    /// Returns whether this map and another client's map may belong to the same clock. If the result is true,
    /// the limits of both maps overlap at each reading of the other map.
    pub(crate) fn may_be(&self, other: &ClockMap) -> bool {
        let mut hints = (0, 0);
        other.knots.iter().all(|knot| {
            let own = self.span(self.find(&mut hints.0, knot.x), knot.x);
            let both = own.both(other.span(other.find(&mut hints.1, knot.x), knot.x));
            both.low <= both.high
        })
    }
}
