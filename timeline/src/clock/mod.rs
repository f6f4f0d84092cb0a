// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The map from a guest's clock to the host's, by certain constraints.
//!
//! A reference point gives two constraints on the unknown map *f* from guest
//! ticks to host time. The guest read its clock at `g` before the store that
//! the host saw at `h`, so `f(g) <= h` (*not after*). The same client's next
//! reading `g2` came after the reply, so `f(g2) >= h` (*not before*).
//!
//! [`ClockMap::fit`] looks for a line that satisfies every such constraint. It
//! takes constraints in order of guest time as long as some line fits
//! all of them. If none does, a new segment begins, so the first segments are
//! as long as possible. Of all lines that fit, it takes one in the middle:
//! the slope midway between the steepest and the flattest, and for that slope
//! the offset midway between the highest and the lowest.
//!
//! *Slopes* are within 1000 ppm of the nominal rate, so that one or two
//! points already give a reasonable map (crystals differ by some 100 ppm, a VMM's
//! calibration by a few hundred). A clock that is declared to tick exactly like the
//! host's gets that rate if it fits, and so does one with too few constraints for a
//! better one. If the session as a whole contradicts the nominal rate, the limits
//! are around the measured rate instead, provided that this takes fewer segments.
//!
//! *The bound* of a mapped time is the distance to the farther one of the
//! highest and the lowest line that fit the segment: if the guest's clock ran
//! at a constant rate there, the true time is not farther off. Between segments it
//! follows from the fact that clocks do not go backwards. It grows outside of the
//! constraints, and there is no bound if one side has no constraint at all.
//!
//! *Exactness.* Host time is in units of 1/256 ns ([`FRACTION`]), lines are
//! fixed-point, hulls are integers: each constraint holds for the integer that
//! [`ClockMap::at`] returns, and the map never goes backwards.

pub mod host;
mod hull;

use hull::{Hull, Side, Slope};
pub use hull::{LIMIT, Point};

/// Units of host time in a nanosecond: enough to keep the order of events within a
/// nanosecond.
pub const FRACTION: i64 = 256;

/// Fraction bits of slopes and offsets: over the longest session (2^62 units)
/// a slope's last bit is worth 1/16 ns, and products still fit 128 bits.
const BITS: u32 = 48;

/// Maximum deviation of a clock from its nominal rate, in parts per thousand.
const SLACK_PER_MILLE: i128 = 1;

/// Number of constrained readings below which the nominal rate is better than a
/// measured one.
const FEW: usize = 8;

/// The declared rate of a guest clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nominal {
    /// Ticks per second, 1 to 10^12; other values count as the nearer end.
    pub frequency: u64,
    /// Whether the clock is declared to be the host's own counter with another
    /// offset: then this rate is exact.
    pub exact: bool,
}

impl Nominal {
    fn slope(self) -> Slope {
        let frequency = self.frequency.clamp(1, 1_000_000_000_000);
        Slope::new(1_000_000_000 * i128::from(FRACTION), frequency.into())
    }
}

/// No map that never goes backwards satisfies all the constraints: they are
/// not of one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at guest tick {guest} the clock would have to go backwards")]
#[non_exhaustive]
pub struct Conflict {
    /// First guest reading with contradicting constraints.
    pub guest: i64,
}

/// A mapped time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// Host time, in 1/[`FRACTION`] ns.
    pub host: i64,
    /// Bound on the error, in the same unit; `None` if there is no bound.
    pub bound: Option<u64>,
}

/// A map from guest ticks to host time that never goes backwards.
#[derive(Clone, Debug)]
pub struct ClockMap {
    /// Segments in order of guest time; at least one.
    segments: Vec<Segment>,
    constraints: usize,
}

impl ClockMap {
    /// Makes the map that passes through `at` with the nominal rate, without a bound:
    /// for a clock without constraints.
    pub fn nominal(nominal: Nominal, at: Point) -> ClockMap {
        let slope = nominal.slope();
        let at = Point { x: at.x.clamp(0, LIMIT), y: at.y.clamp(-LIMIT, LIMIT) };
        ClockMap {
            segments: vec![Segment {
                fit: Fit::new(at.x, (slope, slope)),
                rate: slope.fixed_floor(BITS),
                offset: i128::from(at.y) << BITS,
                floor: -LIMIT,
            }],
            constraints: 0,
        }
    }

    /// Fits a map to constraints: `not_after` means f(x) <= y, `not_before`
    /// means f(x) >= y. They may come in any order. Returns `None` if there are none.
    ///
    /// Points outside of `0..LIMIT` guest ticks, or farther away than a year, are
    /// left out: no clock of a session gets there.
    ///
    /// # Errors
    /// If the constraints contradict each other.
    pub fn fit(
        nominal: Nominal,
        not_after: &[Point],
        not_before: &[Point],
    ) -> Result<Option<ClockMap>, Conflict> {
        let readings = readings(nominal, not_after, not_before);
        if let Some(bad) = readings.iter().find(|r| r.low > r.high) {
            return Err(Conflict { guest: bad.x });
        }
        if readings.is_empty() {
            return Ok(None);
        }
        let limits = around(nominal.slope());
        let mut segments = segments(&readings, nominal, limits);
        if segments.len() > 1
            && let Some(measured) = measured_limits(&readings, limits)
        {
            let nominal = Nominal { exact: false, ..nominal };
            let other = self::segments(&readings, nominal, measured);
            if other.len() < segments.len() {
                segments = other;
            }
        }
        Ok(Some(ClockMap { segments, constraints: readings.len() }))
    }

    /// Maps a guest reading to host time.
    pub fn at(&self, guest: u64) -> Mapped {
        let x = i64::try_from(guest).unwrap_or(LIMIT).min(LIMIT);
        let next = self.segments.partition_point(|s| s.fit.from <= x);
        let Some(segment) = self.segments[..next].last().or(self.segments.first()) else {
            return Mapped { host: 0, bound: None };
        };
        match self.segments.get(next) {
            Some(after) if next > 0 && x > segment.fit.to => between(segment, after, x),
            _ => {
                let host = segment.value(x);
                Mapped { host, bound: distance(host, segment.lowest(x), segment.highest(x)) }
            }
        }
    }

    /// Returns the number of lines of the map.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns the number of guest readings with a constraint.
    pub fn constraints(&self) -> usize {
        self.constraints
    }

    /// Returns the largest bound within a linear piece, in 1/[`FRACTION`] ns; `None`
    /// if one is unknown. Between two lines' extremes the bound is convex, so it is
    /// largest at the first or the last reading.
    pub fn bound(&self) -> Option<u64> {
        let ends = self.segments.iter().flat_map(|s| [(s, s.fit.from), (s, s.fit.to)]);
        ends.map(|(s, x)| distance(s.value(x), s.lowest(x), s.highest(x)))
            .try_fold(0, |a, b| Some(b?.max(a)))
    }
}

/// Maps a reading between two segments, on a straight line from one to the other.
fn between(a: &Segment, b: &Segment, x: i64) -> Mapped {
    let (last, first) = (a.fit.to, b.fit.from);
    let (from, to) = (a.value(last), b.value(first));
    let (rise, run) = (i128::from(to) - i128::from(from), i128::from(first) - i128::from(last));
    let host = i128::from(from) + rise * (i128::from(x) - i128::from(last)) / run;
    let host = host as i64; // between two i64
    Mapped { host, bound: distance(host, a.lowest(last), b.highest(first)) }
}

/// Returns the larger distance from `host` to the two limits.
fn distance(host: i64, lowest: Option<i128>, highest: Option<i128>) -> Option<u64> {
    let host = i128::from(host);
    let far = (highest? - host).max(host - lowest?).max(0);
    Some(u64::try_from(far).unwrap_or(u64::MAX))
}

/// All constraints on one guest reading.
#[derive(Clone, Copy, Debug)]
struct Reading {
    x: i64,
    /// Lower limit: f(x) >= low; `i64::MIN` if there is none.
    low: i64,
    /// Upper limit: f(x) <= high; `i64::MAX` if there is none.
    high: i64,
}

/// Returns whether a clock of this rate can reach the point within a session's time.
fn plausible(nominal: Nominal, p: Point) -> bool {
    (0..LIMIT).contains(&p.x)
        && (-LIMIT..LIMIT).contains(&p.y)
        && nominal.slope().rise_ceil(p.x.into()) < LIMIT.into()
}

/// Sorts the constraints, and applies each of them to its neighbours too. As f
/// does not go backwards, an upper limit holds for all earlier readings, and a lower
/// limit for all later ones. Only with these limits does a segment fit the next one.
fn readings(nominal: Nominal, not_after: &[Point], not_before: &[Point]) -> Vec<Reading> {
    let in_range = |p: &&Point| plausible(nominal, **p);
    let upper = |p: &Point| Reading { x: p.x, low: i64::MIN, high: p.y };
    let lower = |p: &Point| Reading { x: p.x, low: p.y, high: i64::MAX };
    let mut all: Vec<Reading> = not_after
        .iter()
        .filter(in_range)
        .map(upper)
        .chain(not_before.iter().filter(in_range).map(lower))
        .collect();
    all.sort_unstable_by_key(|r| r.x);
    all.dedup_by(|next, kept| {
        let same = next.x == kept.x;
        if same {
            kept.low = kept.low.max(next.low);
            kept.high = kept.high.min(next.high);
        }
        same
    });
    let mut low = i64::MIN;
    for r in &mut all {
        low = low.max(r.low);
        r.low = low;
    }
    let mut high = i64::MAX;
    for r in all.iter_mut().rev() {
        high = high.min(r.high);
        r.high = high;
    }
    all
}

/// Returns the limits of the slopes that a clock of this rate may have.
fn around(rate: Slope) -> (Slope, Slope) {
    // 20 bits: a hundredth of a ppm for the slowest rise, and room to multiply.
    let rate = rate.fixed_floor(20);
    let den = 1000 << 20;
    (
        Slope::new(rate * (1000 - SLACK_PER_MILLE), den),
        Slope::new(rate * (1000 + SLACK_PER_MILLE), den),
    )
}

/// Returns limits around the rate from the first to the last reading, if that is
/// outside of `limits` for certain.
fn measured_limits(readings: &[Reading], limits: (Slope, Slope)) -> Option<(Slope, Slope)> {
    let low = |r: &Reading| (r.low > i64::MIN).then_some(Point { x: r.x, y: r.low });
    let high = |r: &Reading| (r.high < i64::MAX).then_some(Point { x: r.x, y: r.high });
    let slope = |a: Option<Point>, b: Option<Point>| match (a, b) {
        (Some(a), Some(b)) if a.x < b.x => Some(Slope::between(a, b)),
        _ => None,
    };
    let steepest = slope(readings.iter().find_map(low), readings.iter().rev().find_map(high))?;
    let flattest = slope(readings.iter().find_map(high), readings.iter().rev().find_map(low))?;
    if steepest >= limits.0 && flattest <= limits.1 {
        return None;
    }
    let middle = (steepest.fixed_floor(20) + flattest.fixed_floor(20)) / 2;
    // No clock is a thousand times faster than its nominal rate.
    let declared = limits.0.fixed_floor(20);
    (middle > declared / 1000 && middle < declared.saturating_mul(1000).min(1 << 52))
        .then(|| around(Slope::new(middle, 1 << 20)))
}

fn segments(readings: &[Reading], nominal: Nominal, limits: (Slope, Slope)) -> Vec<Segment> {
    let mut done: Vec<Segment> = Vec::new();
    let mut open: Option<Fit> = None;
    for reading in readings {
        if open.as_mut().is_some_and(|fit| fit.extend(reading)) {
            continue;
        }
        // A reading that does not fit ends the segment. One reading alone always fits.
        done.extend(open.replace(Fit::begin(reading, limits)).map(|f| f.finish(nominal)));
    }
    done.extend(open.map(|f| f.finish(nominal)));
    let mut floor = -LIMIT;
    for segment in &mut done {
        segment.floor = floor;
        floor = segment.value(segment.fit.to);
    }
    done
}

/// The set of all lines that fit the readings so far: the limits of their slopes, and
/// the hulls between which they run.
#[derive(Clone, Debug)]
struct Fit {
    /// First reading.
    from: i64,
    /// Last reading.
    to: i64,
    readings: usize,
    slopes: (Slope, Slope),
    above: Hull,
    below: Hull,
}

impl Fit {
    /// Makes the set of all lines of these slopes, for readings from `x` on.
    fn new(x: i64, slopes: (Slope, Slope)) -> Fit {
        let (above, below) = (Hull::new(Side::Below), Hull::new(Side::Above));
        Fit { from: x, to: x, readings: 0, slopes, above, below }
    }

    fn begin(reading: &Reading, limits: (Slope, Slope)) -> Fit {
        let mut fit = Fit::new(reading.x, limits);
        fit.push(reading);
        fit
    }

    /// Adds a reading to the right of all others, if some line still fits.
    fn extend(&mut self, reading: &Reading) -> bool {
        let (mut min, mut max) = self.slopes;
        if reading.high < i64::MAX {
            let here = Point { x: reading.x, y: reading.high };
            max = self.below.tangent(here).map_or(max, |s| s.min(max));
        }
        if reading.low > i64::MIN {
            let here = Point { x: reading.x, y: reading.low };
            min = self.above.tangent(here).map_or(min, |s| s.max(min));
        }
        // Fourier-Motzkin: there is a line if all pairs of an upper and a lower
        // constraint have a slope in common, which must be representable.
        if min.fixed_ceil(BITS) > max.fixed_floor(BITS) {
            return false;
        }
        self.slopes = (min, max);
        self.push(reading);
        true
    }

    fn push(&mut self, reading: &Reading) {
        self.to = reading.x;
        self.readings += 1;
        if reading.high < i64::MAX {
            self.above.push(Point { x: reading.x, y: reading.high });
        }
        if reading.low > i64::MIN {
            self.below.push(Point { x: reading.x, y: reading.low });
        }
    }

    fn finish(mut self, nominal: Nominal) -> Segment {
        let (min, max) = self.slopes;
        let (flattest, steepest) = (min.fixed_ceil(BITS), max.fixed_floor(BITS));
        let declared = nominal.slope().fixed_floor(BITS);
        let trusted = nominal.exact || self.readings < FEW;
        let rate = if trusted && (flattest..=steepest).contains(&declared) {
            declared
        } else {
            flattest + (steepest - flattest) / 2
        };
        // Returns the offset with which a line of this rate passes through a point.
        let start = |p: &Point| {
            (i128::from(p.y) << BITS) - rate * (i128::from(p.x) - i128::from(self.from))
        };
        let highest = self.above.points().iter().map(start).min();
        let lowest = self.below.points().iter().map(start).max();
        let offset = match (lowest, highest) {
            (Some(low), Some(high)) => low + (high - low) / 2,
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => 0,
        };
        self.above.clip(min, max);
        self.below.clip(min, max);
        Segment { fit: self, rate, offset, floor: -LIMIT }
    }
}

/// A line, with the limits of all lines that fit.
#[derive(Clone, Debug)]
struct Segment {
    fit: Fit,
    /// Host units per tick, [`BITS`] fraction bits.
    rate: i128,
    /// Host time at `from`, [`BITS`] fraction bits.
    offset: i128,
    /// End of the segment before, below which this one does not go. That violates no
    /// constraint: it is within the upper limit there, and later ones are no lower.
    floor: i64,
}

impl Segment {
    fn value(&self, x: i64) -> i64 {
        let dx = i128::from(x) - i128::from(self.fit.from);
        let host = match self.rate.checked_mul(dx).and_then(|r| r.checked_add(self.offset)) {
            Some(fixed) => (fixed >> BITS).clamp(-i128::from(LIMIT), LIMIT.into()) as i64,
            None if dx < 0 => -LIMIT,
            None => LIMIT,
        };
        host.max(self.floor)
    }

    fn highest(&self, x: i64) -> Option<i128> {
        self.fit.above.bound_at(x, self.fit.slopes.0, self.fit.slopes.1)
    }

    fn lowest(&self, x: i64) -> Option<i128> {
        self.fit.below.bound_at(x, self.fit.slopes.0, self.fit.slopes.1)
    }
}

#[cfg(test)]
mod tests;
