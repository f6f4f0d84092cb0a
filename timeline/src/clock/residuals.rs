// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Distances between the mapped times of guest readings and the constraints on these readings.

use super::{Limits, Point, quantile};

/// Medians of the distances between the mapped times of guest readings and the constraints on these readings,
/// in units of 1/[`FRACTION`](super::FRACTION) ns. If a reading has several upper limits, only the lowest
/// counts. If a reading has several lower limits, only the highest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Residuals {
    /// Distance from the time of a reading to its upper limit.
    pub to_host: Option<u64>,
    /// Distance from the lower limit of a reading to the reading's time.
    pub from_host: Option<u64>,
}

/// Distances from times to constraints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Distances {
    to_host: Vec<u64>,
    from_host: Vec<u64>,
}

impl Distances {
    /// Adds the distances between one client's constraints and the times that `at` returns for guest ticks.
    pub fn add(&mut self, limits: &Limits, mut at: impl FnMut(i64) -> i64) {
        let distance = |low: i64, high: i64| high.saturating_sub(low).max(0).unsigned_abs();
        let upper = closest(&limits.not_after, |y| y);
        self.to_host.extend(upper.iter().map(|point| distance(at(point.x), point.y)));
        let lower = closest(&limits.not_before, |y| -y);
        self.from_host.extend(lower.iter().map(|point| distance(point.y, at(point.x))));
    }

    /// Returns the least distance to lower limits and the least distance to upper limits.
    pub fn least(&self) -> (Option<u64>, Option<u64>) {
        (self.from_host.iter().min().copied(), self.to_host.iter().min().copied())
    }

    /// Returns the medians.
    pub fn medians(mut self) -> Residuals {
        Residuals {
            to_host: quantile(&mut self.to_host, 50),
            from_host: quantile(&mut self.from_host, 50),
        }
    }
}

/// Returns one point for each reading: the point whose host time has the least value of `order`.
fn closest(points: &[Point], order: impl Fn(i64) -> i64) -> Vec<Point> {
    let mut points = points.to_vec();
    // The list has the constraints of reference points in order, then the constraints of the kernel in order.
    // A stable sort merges two such parts fast.
    points.sort_by_key(|point| (point.x, order(point.y)));
    points.dedup_by_key(|point| point.x);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_constraint_of_a_reading_counts() {
        let point = |x, y| Point { x, y };
        let limits = Limits {
            not_after: vec![point(10, 19), point(20, 29), point(10, 12), point(20, 22)],
            not_before: vec![point(15, 10), point(25, 20), point(15, 14), point(25, 24)],
        };
        let mut distances = Distances::default();

        distances.add(&limits, |x| x);

        assert_eq!(distances.least(), (Some(1), Some(2)));
        assert_eq!(distances.medians(), Residuals { to_host: Some(2), from_host: Some(1) });
    }
}
