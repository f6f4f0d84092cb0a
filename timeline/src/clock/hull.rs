// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Exact lines between integer points: slopes, and the hull of points that
//! arrive from left to right.
//!
//! Everything is integer arithmetic in 128 bits, so that rounding violates no
//! constraint: a map is only worth something if it satisfies *every* one.

use std::cmp::Ordering;

/// Largest absolute coordinate: differences then fit 63 bits, and the product
/// of two differences fits an `i128`.
pub const LIMIT: i64 = 1 << 62;

/// A point: guest ticks, host time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Guest ticks, `0..LIMIT`.
    pub x: i64,
    /// Host time, `-LIMIT..LIMIT`.
    pub y: i64,
}

/// A slope as a fraction; the denominator is positive.
#[derive(Clone, Copy, Debug)]
pub struct Slope {
    num: i128,
    den: i128,
}

impl Slope {
    /// Makes the slope `num / den`; both below 2^63 in magnitude.
    pub fn new(num: i128, den: i128) -> Slope {
        debug_assert!(den > 0);
        Slope { num, den }
    }

    /// Returns the slope from one point to another that is strictly to its right.
    pub fn between(from: Point, to: Point) -> Slope {
        Slope::new(i128::from(to.y) - i128::from(from.y), i128::from(to.x) - i128::from(from.x))
    }

    /// Returns the rise of a line of this slope over `dx`, rounded down.
    pub fn rise_floor(self, dx: i128) -> i128 {
        (self.num * dx).div_euclid(self.den)
    }

    /// Returns the rise of a line of this slope over `dx`, rounded up.
    pub fn rise_ceil(self, dx: i128) -> i128 {
        -(-self.num * dx).div_euclid(self.den)
    }

    /// Returns the slope in units of 2^-`bits`, rounded down. Saturates far outside of
    /// any slope that a clock can have.
    pub fn fixed_floor(self, bits: u32) -> i128 {
        let whole = self.num.div_euclid(self.den);
        let rest = self.num.rem_euclid(self.den);
        // rest < den < 2^63, so the shift by up to 48 bits fits.
        whole.saturating_mul(1 << bits).saturating_add((rest << bits) / self.den)
    }

    /// Returns the slope in units of 2^-`bits`, rounded up.
    pub fn fixed_ceil(self, bits: u32) -> i128 {
        -Slope::new(-self.num, self.den).fixed_floor(bits)
    }
}

impl PartialEq for Slope {
    fn eq(&self, other: &Slope) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Slope {}

impl PartialOrd for Slope {
    fn partial_cmp(&self, other: &Slope) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slope {
    fn cmp(&self, other: &Slope) -> Ordering {
        (self.num * other.den).cmp(&(other.num * self.den))
    }
}

/// The side of the points on which a hull is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The convex hull from below: lines must stay *under* all points.
    Below,
    /// The concave hull from above: lines must stay *over* all points.
    Above,
}

/// The hull of points that are added in order of `x`.
#[derive(Clone, Debug)]
pub struct Hull {
    side: Side,
    points: Vec<Point>,
}

impl Hull {
    /// Makes an empty hull.
    pub fn new(side: Side) -> Hull {
        Hull { side, points: Vec::new() }
    }

    /// Returns the hull's vertices, from left to right.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Adds a point that is strictly to the right of all others.
    pub fn push(&mut self, point: Point) {
        while let [.., a, b] = self.points[..] {
            let bends_in = match self.side {
                Side::Below => Slope::between(b, point) <= Slope::between(a, b),
                Side::Above => Slope::between(b, point) >= Slope::between(a, b),
            };
            if !bends_in {
                break;
            }
            self.points.pop();
        }
        self.points.push(point);
    }

    /// Returns the slope of the line that touches the hull and goes through `point`,
    /// which is strictly to the right of the hull: the smallest slope to any vertex of the
    /// hull from above, the largest to any of the hull from below.
    pub fn tangent(&self, point: Point) -> Option<Slope> {
        // From left to right, slopes to the vertices first improve and then get worse.
        // The best vertex is the first one whose edge no longer improves the slope.
        let (mut low, mut high) = (0, self.points.len().checked_sub(1)?);
        while low < high {
            let mid = (low + high) / 2;
            let edge = Slope::between(self.points[mid], self.points[mid + 1]);
            let sight = Slope::between(self.points[mid], point);
            let better = match self.side {
                Side::Above => edge > sight,
                Side::Below => edge < sight,
            };
            if better {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        Some(Slope::between(self.points[low], point))
    }

    /// Keeps the vertices at which a line of a slope in `min..=max` can touch.
    pub fn clip(&mut self, min: Slope, max: Slope) {
        let (left, right) = match self.side {
            // The slopes of edges increase on the hull from below, and decrease on the other.
            Side::Below => (min, max),
            Side::Above => (max, min),
        };
        let before = |edge: Slope, limit: Slope| match self.side {
            Side::Below => edge < limit,
            Side::Above => edge > limit,
        };
        let edge = |i: usize| Slope::between(self.points[i], self.points[i + 1]);
        let edges = self.points.len().saturating_sub(1);
        let mut first = 0;
        while first < edges && before(edge(first), left) {
            first += 1;
        }
        let mut last = first;
        while last < edges && !before(right, edge(last)) {
            last += 1;
        }
        self.points.truncate(last + 1);
        self.points.drain(..first);
        self.points.shrink_to_fit();
    }

    /// Returns the hull's height at `x`, rounded away from its inside: up for the hull
    /// from below (an upper bound), down for the other. Left and right of the
    /// vertices it continues with the extreme slope, like the outermost line of a
    /// slope in `min..=max`.
    pub fn bound_at(&self, x: i64, min: Slope, max: Slope) -> Option<i128> {
        let (first, last) = (*self.points.first()?, *self.points.last()?);
        let (left, right) = match self.side {
            Side::Below => (min, max),
            Side::Above => (max, min),
        };
        let (from, slope) = if x <= first.x {
            (first, left)
        } else if x >= last.x {
            (last, right)
        } else {
            let i = self.points.partition_point(|p| p.x <= x);
            let (a, b) = (self.points[i - 1], self.points[i]);
            (a, Slope::between(a, b))
        };
        let dx = i128::from(x) - i128::from(from.x);
        let rise = match self.side {
            Side::Below => slope.rise_ceil(dx),
            Side::Above => slope.rise_floor(dx),
        };
        Some(i128::from(from.y) + rise)
    }
}
