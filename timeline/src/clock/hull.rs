// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The common limits of several maps: a host time is inside if any of the maps allows the time.
//!
//! The hull stores the limits at each reading of any map. Between two readings, the limits follow from the
//! stored limits at both readings and from the limits of the rate. So the cost of a lookup does not depend on
//! the number of maps.

use super::sweep::{NONE, Rates, Span};
use super::{ClockMap, clamped, distance, find};

/// Maximum product of the number of maps and the number of different readings. The computation of so many
/// limits takes some seconds.
const MAX_LIMITS: usize = 1 << 25;

/// Limits of several maps.
#[derive(Debug)]
pub(crate) struct Hull {
    knots: Vec<Knot>,
    rates: Rates,
}

/// A reading of any map, with the common limits just before the reading and just after the reading.
#[derive(Debug)]
struct Knot {
    x: i64,
    before: Span,
    after: Span,
}

impl Hull {
    /// Computes the common limits of these maps. Returns `None` if the maps have too many readings.
    pub fn of<'m>(maps: impl Iterator<Item = &'m ClockMap>) -> Option<Hull> {
        let all = maps.flat_map(|map| [Some(map), map.otherwise.as_deref()]).flatten();
        let mut all: Vec<(&ClockMap, usize)> = all.map(|map| (map, 0)).collect();
        let mut readings: Vec<i64> =
            all.iter().flat_map(|(map, _)| map.knots.iter().map(|knot| knot.x)).collect();
        readings.sort_unstable();
        readings.dedup();
        if readings.len().saturating_mul(all.len()) > MAX_LIMITS {
            return None;
        }
        let rates = all.iter().map(|(map, _)| map.rates).reduce(Rates::or)?;
        let nothing = Span { low: NONE, high: -NONE };
        let knot = |x| {
            let mut knot = Knot { x, before: nothing, after: nothing };
            for (map, passed) in &mut all {
                knot.before = knot.before.or(map.span(*passed, x));
                *passed += usize::from(map.knots.get(*passed).is_some_and(|own| own.x == x));
                knot.after = knot.after.or(map.span(*passed, x));
            }
            knot
        };
        Some(Hull { knots: readings.into_iter().map(knot).collect(), rates })
    }

    /// Returns the distance from a host time to the farther limit of a guest reading. Returns `None` if a map
    /// lacks an upper or lower limit. `hint` has the same meaning as in [`ClockMap::host_from`].
    pub fn distance_from(&self, hint: &mut usize, guest: u64, host: i64) -> Option<u64> {
        let x = clamped(guest);
        let at = find(&self.knots, |knot| knot.x, hint, x);
        let before = at.checked_sub(1).and_then(|i| self.knots.get(i));
        let before = before.map(|knot| knot.after.later(self.rates, x - knot.x));
        let after = self.knots.get(at).map(|knot| knot.before.earlier(self.rates, knot.x - x));
        distance(host, before.unwrap_or(Span::ALL).both(after.unwrap_or(Span::ALL)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{FRACTION, Point};
    use proptest::prelude::*;

    const GHZ: u64 = 1_000_000_000;

    /// Makes the map of a clock that may jump once. Each reading has an upper limit, a lower limit, or both.
    fn map(readings: &[(i64, u8, i64)], jump: (i64, i64)) -> Option<ClockMap> {
        let (mut not_after, mut not_before) = (Vec::new(), Vec::new());
        for (x, sides, error) in readings {
            let y = x * FRACTION + if *x < jump.0 { 0 } else { jump.1 };
            if sides % 3 != 1 {
                not_after.push(Point { x: *x, y: y + error });
            }
            if sides % 3 != 2 {
                not_before.push(Point { x: *x, y: y - error });
            }
        }
        ClockMap::fit(GHZ, &not_after, &not_before).ok()?
    }

    proptest! {
        #[test]
        fn what_any_map_allows_is_inside(
            all in prop::collection::vec(
                (
                    prop::collection::vec((0..1_000_000i64, any::<u8>(), 0..100_000i64), 1..60),
                    (0..1_000_000i64, -1_000i64..50_000_000),
                ),
                1..4,
            ),
            at in prop::collection::vec((0..1_200_000u64, -1_000_000i64..1_000_000), 50),
        ) {
            let maps: Vec<ClockMap> = all.iter().filter_map(|(readings, jump)| map(readings, *jump)).collect();
            let Some(hull) = Hull::of(maps.iter()) else { return Ok(()) };
            let (mut hint, mut own) = (0, 0);
            for (guest, away) in at {
                let host = guest as i64 * FRACTION + away;
                let found = hull.distance_from(&mut hint, guest, host);

                let all = maps.iter().map(|map| map.distance_from(&mut own, guest, host));
                match all.collect::<Option<Vec<u64>>>() {
                    Some(all) => prop_assert!(found >= all.into_iter().max(), "{guest}: {found:?}"),
                    None => prop_assert_eq!(found, None),
                }
            }
        }
    }

    #[test]
    fn of_one_map_it_is_hardly_more() {
        let readings: Vec<(i64, u8, i64)> = (0..100).map(|n| (n * 10_000, n as u8, 500)).collect();
        let map = map(&readings, (0, 0)).unwrap();
        let hull = Hull::of([&map].into_iter()).unwrap();

        for guest in (0..1_000_000).step_by(777) {
            let (host, own) = (map.at(guest).host, map.at(guest).bound.unwrap());
            let found = hull.distance_from(&mut 0, guest, host).unwrap();
            assert!((own..own + 8 * FRACTION as u64).contains(&found), "{guest}: {own} {found}");
        }
    }

    #[test]
    fn maps_with_too_many_readings_have_none() {
        let readings: Vec<(i64, u8, i64)> = (0..6_000).map(|x| (x, 0, 5)).collect();
        let map = map(&readings, (0, 0)).unwrap();

        assert!(Hull::of(std::iter::repeat_n(&map, 5_592)).is_some());
        assert!(Hull::of(std::iter::repeat_n(&map, 5_593)).is_none());
    }
}
