// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The map from a guest's clock to the host's, computed from constraints that are certain.
//!
//! A reference point gives two constraints on the unknown map *f* from guest ticks to host time. The guest
//! read `g` from its clock before the store, and the host saw the store at `h`, so `f(g) <= h` (*not after*).
//! The same client's next reading `g2` came after the reply, so `f(g2) >= h` (*not before*).
//!
//! # The envelope
//!
//! A clock's rate is never off by more than 1,000 ppm ([`SLACK_PER_MILLE`]). So each constraint limits *f*
//! everywhere. The limit is wider at readings that are farther from the constraint. For each reading, a sweep
//! from left to right computes the limits that all constraints before the reading set. A sweep from right to
//! left computes the limits that all constraints after the reading set. Between two readings, *f* must
//! satisfy the limits of *both* sweeps. At each reading, the map goes through the middle between these
//! limits. Between two readings, the map is a straight line.
//!
//! The map assumes nothing about how the rate changes within its limits: the rate may drift, change at once,
//! or oscillate.
//!
//! # Jumps
//!
//! A clock *jumps* if its rate is outside of its limits for a moment: the guest was stopped together with its
//! clock, or somebody set the clock. A jump that is larger than the envelope is *found*: two constraints
//! contradict each other. [`ClockMap::jumps`] names both constraints, and each sweep begins anew at the jump.
//! A smaller jump does not contradict the constraints, but makes the envelope narrower by the size of the
//! jump.
//!
//! # The bound
//!
//! For the bound, both ends of the envelope are moved outwards by the *usual width*. The bound of a mapped
//! time is the distance from this time to the farther end. At 90 of 100 readings, the limits of each sweep
//! are at most the usual width apart ([`ClockMap::width`]). So the true time is inside the bound even near a
//! jump that was not found, if the jump is no larger than the usual width. An end moves no farther outwards
//! than the wider of the two sweeps' limits. This limit is right, because on each side of a jump one of the
//! sweeps has not passed the jump yet. Around a jump that was found, the farther limits give the bound.
//!
//! # Assumptions
//!
//! - The rate stays within 1,000 ppm of the declared rate, unless the declared rate is only assumed
//!   ([`Declared`]). If the constraints contradict the declared rate, the map tries the mean rate from the
//!   first to the last constraint. If the mean rate needs at least two jumps fewer than the declared rate,
//!   the rate is assumed to stay within 1,000 ppm of the mean rate. If both rates are within one per cent,
//!   the bound holds for both rates, because a clock that runs at the declared rate and is stopped now and
//!   then could give the same constraints. Before the first and after the last reading, no constraint checks
//!   the rate.
//! - A jump that is not found is no larger than the envelope's usual width. If points are far apart, a larger
//!   jump could hide between two points.
//! - If two jumps in opposite directions are both too small to be found, each jump lies outside of the reach
//!   of the other jump. The reach of a jump ends where constraints from the other side of the jump no longer
//!   narrow the envelope, because the limits of the rate have become too wide. No jump is between the first
//!   [`ENDS`] readings or between the last [`ENDS`] readings, before the first reading, or after the last
//!   reading.
//! - Nobody sets the clock back to readings that the guest has already read.
//!
//! A time has no bound if no constraint gives an upper limit, or no constraint gives a lower limit.
//!
//! # Exactness
//!
//! Host time is in units of 1/256 ns ([`FRACTION`]), and all arithmetic is in integers. So the integer that
//! [`ClockMap::at`] returns satisfies each constraint exactly, and the map never goes backwards.
//!
//! # Memory
//!
//! A map takes 56 bytes for each reading with a constraint, and a reference point makes two such readings.
//! During the computation of a map, each reading takes up to 80 further bytes.

mod agree;
mod elapsed;
pub mod host;
mod hull;
mod line;
mod narrow;
mod residuals;
mod sweep;

pub(crate) use elapsed::{GuestReading, GuestTime};
pub(crate) use hull::Hull;
use hypertrace_format::clock::FREQUENCIES;
pub use line::{Agreement, Contradicted};
pub(crate) use line::{Line, Lines};
pub(crate) use narrow::Limits;
pub(crate) use residuals::Distances;
pub use residuals::Residuals;
pub use sweep::{LIMIT, Point};
use sweep::{NONE, Rate, Rates, Reading, Span};

/// Number of units of host time in a nanosecond: enough to keep the order of events within a nanosecond.
pub const FRACTION: i64 = 256;

/// Maximum deviation of a clock's true rate from its stated rate, in parts per thousand. Crystals deviate by
/// some 100 ppm, and the frequency that a VMM measures deviates by a few hundred ppm.
pub const SLACK_PER_MILLE: i64 = 1;

/// Number of readings at each end of a map where no jump can be recognized, because one sweep has passed too
/// few readings. Eight reference points give this number.
pub const ENDS: usize = 16;

/// Percentage of the readings at which the envelope is no wider than its usual width.
const USUAL_PER_CENT: usize = 90;

/// Maximum number of jumps that a map keeps. [`ClockMap::segments`] also counts the jumps that are not kept.
pub const MAX_JUMPS: usize = 1024;

/// Error: the constraints are not from one clock, because no map that never goes backwards satisfies all of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at guest tick {guest} the clock would have to go backwards")]
#[non_exhaustive]
pub struct Conflict {
    /// First guest reading with contradicting constraints.
    pub guest: i64,
}

/// The rate that a clock is said to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Rate in ticks per second. A value outside of [`FREQUENCIES`] is replaced by the nearest value in this
    /// range.
    pub frequency: u64,
    /// Whether the rate is only a claim of the guest. If true, bounds hold for all rates that the constraints
    /// allow: all rates within 1,000 ppm of a possible mean rate between the first and the last constraint.
    /// If the constraints do not limit the mean rate, or no mean rate satisfies the constraints, the rate has
    /// no limit.
    pub is_assumed: bool,
}

impl From<u64> for Declared {
    /// Returns a known rate.
    fn from(frequency: u64) -> Declared {
        Declared { frequency, is_assumed: false }
    }
}

/// A mapped time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// Host time in units of 1/[`FRACTION`] ns.
    pub host: i64,
    /// Bound on the error in units of 1/[`FRACTION`] ns; `None` if there is no bound.
    pub bound: Option<u64>,
}

/// A jump of a clock: two constraints that no clock with a rate within the limits can satisfy together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jump {
    /// Last constraint before the jump.
    pub before: Point,
    /// First constraint after the jump.
    pub after: Point,
    /// Least size of the jump in units of 1/[`FRACTION`] ns.
    pub least: u64,
    /// Whether the guest's clock jumped ahead. If true, `before` is a lower limit of the host time and
    /// `after` is an upper limit. If false, the guest's clock lost time like a stopped clock, `before` is an
    /// upper limit and `after` is a lower limit.
    pub ahead: bool,
}

/// Bounds of a map at its readings, in 1/[`FRACTION`] ns, as quantiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// Bound that half of the readings do not exceed.
    pub p50: u64,
    /// Bound that 99 of 100 readings do not exceed.
    pub p99: u64,
    /// Bound that no reading exceeds. The bound may be larger between two readings that are far apart, before
    /// the first reading, and after the last reading.
    pub max: u64,
}

/// A map from guest ticks to host time that never goes backwards.
#[derive(Clone, Debug)]
pub struct ClockMap {
    /// Readings in order of guest time. There is at least one reading.
    knots: Vec<Knot>,
    rates: Rates,
    /// Rate before the first and after the last reading.
    outside: Rate,
    has_another_rate: bool,
    /// Map of the same readings at the declared rate, if a clock of this rate with jumps could give these
    /// readings too.
    otherwise: Option<Box<ClockMap>>,
    constraints: usize,
    jumps: Vec<Jump>,
    segments: usize,
    /// Usual width of the envelope in units of 1/[`FRACTION`] ns.
    width: Option<u64>,
}

/// A reading with a constraint.
#[derive(Clone, Copy, Debug)]
struct Knot {
    x: i64,
    /// Host time that the map gives to the reading.
    y: i64,
    /// Limits from the constraints of this reading and of the readings before it.
    forward: Span,
    /// Limits from the constraints of this reading and of the readings after it.
    backward: Span,
    /// Number of readings up to and including this reading for which `is_at_jump` is true.
    jumps: u32,
    /// Whether a jump that was found may be between this reading and the next reading.
    is_at_jump: bool,
}

impl ClockMap {
    /// Makes a map without a bound, for a clock without constraints. The map passes through `at` with the
    /// rate of `frequency` (ticks per second).
    pub fn nominal(frequency: u64, at: Point) -> ClockMap {
        let at = Point { x: at.x.clamp(0, LIMIT), y: at.y.clamp(-LIMIT, LIMIT) };
        let (forward, backward) = (Span::ALL, Span::ALL);
        let knot = Knot { x: at.x, y: at.y, forward, backward, jumps: 0, is_at_jump: false };
        ClockMap {
            knots: vec![knot],
            rates: around(nominal_rate(frequency)),
            outside: nominal_rate(frequency),
            has_another_rate: false,
            otherwise: None,
            constraints: 0,
            jumps: Vec::new(),
            segments: 1,
            width: None,
        }
    }

    /// Makes the map of a clock of about the declared rate from constraints. A point of `not_after` means
    /// f(x) <= y, and a point of `not_before` means f(x) >= y. The constraints may be in any order. Returns
    /// `None` if there are no constraints.
    ///
    /// Points outside of `0..LIMIT` guest ticks and points that are more than half a year away are left out,
    /// because no session is so long.
    ///
    /// # Errors
    /// If the constraints contradict each other.
    pub fn fit(
        declared: impl Into<Declared>,
        not_after: &[Point],
        not_before: &[Point],
    ) -> Result<Option<ClockMap>, Conflict> {
        let Declared { frequency, is_assumed } = declared.into();
        let nominal = nominal_rate(frequency);
        let readings = readings(nominal, not_after, not_before);
        let windows = windows(&readings)?;
        if readings.is_empty() {
            return Ok(None);
        }
        let declared = around(nominal);
        let through = |rates, guess| ClockMap::through(&readings, &windows, rates, guess);
        let jumps = contradictions(&readings, declared);
        let measured = measured(&readings);
        if is_assumed {
            let mean = measured.unwrap_or(Rates::ANY);
            let least = contradictions(&readings, mean);
            // If the mean rate leaves more jumps than the declared rate, the points between the jumps prove
            // the declared rate.
            if least <= jumps + 1 {
                let is_possible = declared.min <= mean.max && mean.min <= declared.max;
                let guess = Some(if is_possible { declared } else { mean });
                if least > 0 && !mean.is_near(declared) {
                    // A large jump makes the mean differ from the rate between jumps.
                    return Ok(Some(through(Rates::ANY, guess)));
                }
                let map = through(mean, guess);
                // The constraints could also come from a clock that has the declared rate and was stopped now
                // and then.
                let is_either = (1..=least + 1).contains(&jumps);
                let otherwise = is_either.then(|| Box::new(through(declared, None)));
                return Ok(Some(ClockMap { has_another_rate: !is_possible, otherwise, ..map }));
            }
        } else if jumps > 0
            && let Some(measured) = measured.filter(|measured| *measured != declared)
            // A rate that saves only one contradiction is not taken, because the contradiction may be a real
            // jump.
            && contradictions(&readings, measured) + 1 < jumps
        {
            let is_either = declared.is_near(measured);
            let otherwise = is_either.then(|| Box::new(through(declared, None)));
            let map = through(measured, None);
            return Ok(Some(ClockMap { has_another_rate: true, otherwise, ..map }));
        }
        Ok(Some(through(declared, None)))
    }

    /// Makes the map under these limits of the rate. `guess` has narrower limits, which are likely but not
    /// certain. The map takes its times from the map under `guess`, as far as `rates` allow these times.
    fn through(
        readings: &[Reading],
        windows: &[Span],
        rates: Rates,
        guess: Option<Rates>,
    ) -> ClockMap {
        let guessed = guess.map(|guess| ClockMap::through(readings, windows, guess, None));
        let mut knots = Vec::with_capacity(readings.len());
        let (mut jumps, mut segments) = (Vec::new(), 1);
        let mut around_jumps = Vec::new();
        sweep::forward(readings, rates, ENDS, |forward, found| {
            let x = readings.get(knots.len()).map_or(0, |r| r.x);
            let knot = Knot { x, y: 0, forward, backward: Span::ALL, jumps: 0, is_at_jump: false };
            knots.push(knot);
            if let Some(found) = found {
                segments += 1;
                around_jumps.push(found.range());
                if jumps.len() < MAX_JUMPS {
                    let sweep::Contradiction { before, after, by, ahead } = found;
                    jumps.push(Jump { before, after, least: by.unsigned_abs(), ahead });
                }
            }
        });
        let mut left = knots.iter_mut().rev();
        sweep::backward(readings, rates, ENDS, |backward, found| {
            if let Some(knot) = left.next() {
                knot.backward = backward;
            }
            around_jumps.extend(found.map(|found| found.range()));
        });
        // All loops over the knots together are short, because the ranges of one sweep overlap only within
        // the sweep's first `ENDS` readings.
        for (from, to) in around_jumps {
            let first = knots.partition_point(|k| k.x < from);
            let inside = knots.iter_mut().skip(first).take_while(|k| k.x < to);
            inside.for_each(|knot| knot.is_at_jump = true);
        }
        let mut so_far = 0;
        for knot in &mut knots {
            so_far += u32::from(knot.is_at_jump);
            knot.jumps = so_far;
        }
        let mut widths = Vec::with_capacity(knots.len());
        let mut last = -LIMIT;
        for (at, (knot, window)) in knots.iter_mut().zip(windows).enumerate() {
            let Span { low, high } = knot.forward.both(knot.backward);
            let guess = guessed.as_ref().and_then(|map| Some(map.knots.get(at)?.y));
            // Near a jump, the limits of the two sweeps may contradict each other. The map then goes through
            // the middle between both limits.
            let middle = match (low, high) {
                (low, high) if guess.is_some_and(|guess| (low..=high).contains(&guess)) => {
                    guess.unwrap_or(low)
                }
                (low, NONE) => low,
                (low, high) if low == -NONE => high,
                (low, high) => ((i128::from(low) + i128::from(high)) >> 1) as i64,
            };
            // `last` is the time of the reading before. A time that is raised to `last` violates no limit,
            // because the limits in `windows` never decrease from reading to reading.
            knot.y = middle.clamp(window.low, window.high).max(last);
            last = knot.y;
            // The wider sweep gives the width, because a jump that is not found narrows the limits of one
            // sweep only.
            widths.extend(knot.forward.width().max(knot.backward.width()));
        }
        let width = quantile(&mut widths, USUAL_PER_CENT);
        ClockMap {
            knots,
            rates,
            outside: guessed.map_or(rates.min.between(rates.max), |map| map.outside),
            has_another_rate: false,
            otherwise: None,
            constraints: readings.len(),
            jumps,
            segments,
            width,
        }
    }

    /// Maps a guest reading to host time.
    pub fn at(&self, guest: u64) -> Mapped {
        let mut hint = 0;
        let host = self.host_from(&mut hint, guest);
        Mapped { host, bound: self.distance_from(&mut hint, guest, host) }
    }

    /// Maps a reading of the guest's clock to host time. The bound is not computed, because its computation
    /// takes longer. `hint` is the place at which the last reading was found. Any value gives the right
    /// result, but a value near the place of the new reading makes the lookup faster.
    pub fn host_from(&self, hint: &mut usize, guest: u64) -> i64 {
        let x = clamped(guest);
        self.value(self.find(hint, x), x)
    }

    /// Returns the distance from a host time to the farther limit that the clock's constraints set for a
    /// guest reading. Returns `None` if there is no upper or no lower limit.
    pub fn distance_from(&self, hint: &mut usize, guest: u64, host: i64) -> Option<u64> {
        let x = clamped(guest);
        let at = self.find(hint, x);
        self.distance_at(at, x, host)
    }

    fn distance_at(&self, at: usize, x: i64, host: i64) -> Option<u64> {
        let own = distance(host, self.span(at, x))?;
        match &self.otherwise {
            None => Some(own),
            // The index is valid in both maps, because the knots of `otherwise` are at the same readings.
            Some(map) => Some(own.max(distance(host, map.span(at, x))?)),
        }
    }

    /// Returns the number of knots at or before `x`, and stores this number as the hint.
    fn find(&self, hint: &mut usize, x: i64) -> usize {
        find(&self.knots, |knot| knot.x, hint, x)
    }

    fn value(&self, at: usize, x: i64) -> i64 {
        let along = |from: &Knot| {
            let y = i128::from(from.y) + self.outside.rise(x - from.x);
            y.clamp(-i128::from(LIMIT), LIMIT.into()) as i64
        };
        match (at.checked_sub(1).and_then(|i| self.knots.get(i)), self.knots.get(at)) {
            (Some(a), Some(b)) => {
                let (rise, run, dx) = (b.y.wrapping_sub(a.y), b.x - a.x, x - a.x);
                // The product nearly always fits 64 bits, and a division of 128 bits takes several times as
                // long.
                match rise.checked_mul(dx).filter(|_| rise >= 0) {
                    Some(product) => a.y + product / run,
                    None => {
                        let rise = i128::from(b.y) - i128::from(a.y);
                        (i128::from(a.y) + rise * i128::from(dx) / i128::from(run)) as i64
                    }
                }
            }
            (Some(last), None) => along(last),
            (None, Some(first)) => along(first),
            (None, None) => 0,
        }
    }

    /// Returns the limits at `x`, widened for a jump that was not found.
    fn span(&self, at: usize, x: i64) -> Span {
        let usual = self.width.map_or(NONE, |width| width.min(LIMIT as u64) as i64);
        let before = at.checked_sub(1).and_then(|i| self.knots.get(i));
        match (before, self.knots.get(at)) {
            (Some(a), Some(b)) => {
                let forward = a.forward.later(self.rates, x - a.x);
                // A jump that was found may be larger than the usual width.
                let usual = if a.is_at_jump { NONE } else { usual };
                forward.with_jumps(b.backward.earlier(self.rates, b.x - x), usual)
            }
            (Some(last), None) => {
                last.forward.with_jumps(last.backward, usual).later(self.rates, x - last.x)
            }
            (None, Some(first)) => {
                first.forward.with_jumps(first.backward, usual).earlier(self.rates, first.x - x)
            }
            (None, None) => Span::ALL,
        }
    }

    /// Returns the number of pieces between jumps, which is the number of jumps plus one.
    pub fn segments(&self) -> usize {
        self.segments
    }

    /// Returns the first [`MAX_JUMPS`] jumps in order of guest time.
    pub fn jumps(&self) -> &[Jump] {
        &self.jumps
    }

    /// Iterates over the guest readings with a constraint, in order.
    pub fn readings(&self) -> impl Iterator<Item = u64> {
        // Readings are not negative.
        self.knots.iter().map(|knot| knot.x.unsigned_abs())
    }

    /// Returns the number of guest readings with a constraint.
    pub fn constraints(&self) -> usize {
        self.constraints
    }

    /// Returns the usual width of the envelope in units of 1/[`FRACTION`] ns. At 90 of 100 readings, the
    /// limits of each sweep are at most this far apart.
    pub fn width(&self) -> Option<u64> {
        self.width
    }

    /// Returns whether the constraints contradict the declared rate, so that the map has other limits of the
    /// rate.
    pub fn has_another_rate(&self) -> bool {
        self.has_another_rate
    }

    /// Returns whether bounds hold for the declared rate as well, although the constraints contradict the
    /// declared rate. A clock that runs at the declared rate and is stopped now and then would give the same
    /// constraints.
    pub fn allows_declared_rate(&self) -> bool {
        self.otherwise.is_some()
    }

    /// Returns the limits of the clock's rate in guest ticks per second of host time, or `None` if the rate
    /// has no limits.
    pub fn frequencies(&self) -> Option<(f64, f64)> {
        let Rates { min, max } = self.rates;
        (self.rates != Rates::ANY).then(|| (max.frequency(), min.frequency()))
    }

    /// Returns the quantiles of the bounds at the readings. At each reading, two bounds are compared, and the
    /// larger bound counts: the bound just before the reading and the bound just after the reading. Returns
    /// `None` if a bound is unknown.
    pub fn bounds(&self) -> Option<Bounds> {
        let side = |at: usize, knot: &Knot| self.distance_at(at, knot.x, knot.y);
        let worse = |(i, knot): (usize, &Knot)| {
            let (left, right) = (side(i, knot)?, side(i + 1, knot)?);
            Some(match i {
                0 => right,
                _ if i + 1 == self.knots.len() => left,
                _ => left.max(right),
            })
        };
        Bounds::of(self.knots.iter().enumerate().map(worse).collect::<Option<Vec<u64>>>()?)
    }
}

impl Bounds {
    /// Returns the quantiles of the bounds `all`. `None` if there are no bounds.
    pub(crate) fn of(mut all: Vec<u64>) -> Option<Bounds> {
        let mut at = |per_cent| quantile(&mut all, per_cent);
        Some(Bounds { p50: at(50)?, p99: at(99)?, max: at(100)? })
    }

    /// Returns for each quantile the larger one of the two bounds.
    pub(crate) fn max(self, other: Bounds) -> Bounds {
        Bounds {
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            max: self.max.max(other.max),
        }
    }
}

/// Returns the ticks of a guest's reading, at most [`LIMIT`].
fn clamped(guest: u64) -> i64 {
    i64::try_from(guest).unwrap_or(LIMIT).min(LIMIT)
}

/// Returns the number of knots at or before `x`, and stores this number as the hint.
fn find<K>(knots: &[K], x_of: impl Fn(&K) -> i64, hint: &mut usize, x: i64) -> usize {
    let is_it = |n: usize| {
        n <= knots.len()
            && knots.get(n).is_none_or(|after| x_of(after) > x)
            && n.checked_sub(1).and_then(|i| knots.get(i)).is_none_or(|before| x_of(before) <= x)
    };
    if !is_it(*hint) {
        let next = hint.saturating_add(1);
        *hint = if is_it(next) { next } else { knots.partition_point(|k| x_of(k) <= x) };
    }
    *hint
}

/// Returns the larger distance from `host` to the two limits.
fn distance(host: i64, span: Span) -> Option<u64> {
    if span.low == -NONE || span.high == NONE {
        return None;
    }
    // Limits and times are below 2^62 in magnitude.
    Some(span.high.saturating_sub(host).max(host.saturating_sub(span.low)).max(0).unsigned_abs())
}

/// Returns the value that `per_cent` per cent of all values do not exceed.
fn quantile(values: &mut [u64], per_cent: usize) -> Option<u64> {
    let at = values.len().checked_sub(1)? * per_cent / 100;
    Some(*values.select_nth_unstable(at).1)
}

/// Returns the declared rate.
fn nominal_rate(frequency: u64) -> Rate {
    let frequency = frequency.clamp(*FREQUENCIES.start(), *FREQUENCIES.end());
    Rate::floor(1_000_000_000 * i128::from(FRACTION), frequency.into())
}

/// Returns the limits of the true rate of a clock whose stated rate is `rate`.
fn around(rate: Rate) -> Rates {
    rate.around(SLACK_PER_MILLE)
}

/// Sorts the constraints by reading.
fn readings(rate: Rate, not_after: &[Point], not_before: &[Point]) -> Vec<Reading> {
    // A point is used only if a clock of this rate can reach the point within a session's time.
    let in_range = |p: &&Point| {
        (0..LIMIT).contains(&p.x) && (-LIMIT..LIMIT).contains(&p.y) && rate.rise(p.x) < LIMIT.into()
    };
    let upper = |p: &Point| Reading { x: p.x, span: Span { low: -NONE, high: p.y } };
    let lower = |p: &Point| Reading { x: p.x, span: Span { low: p.y, high: NONE } };
    let upper = not_after.iter().filter(in_range).map(upper);
    let mut all: Vec<Reading> =
        upper.chain(not_before.iter().filter(in_range).map(lower)).collect();
    all.sort_by_key(|r| r.x);
    all.dedup_by(|next, kept| {
        let same = next.x == kept.x;
        if same {
            kept.span = kept.span.both(next.span);
        }
        same
    });
    all
}

/// Returns the limits of each reading that hold at any rate. The limits follow from the constraints of all
/// readings, because clocks do not go backwards: an upper limit also holds for all earlier readings, and a
/// lower limit also holds for all later readings.
fn windows(readings: &[Reading]) -> Result<Vec<Span>, Conflict> {
    let mut windows: Vec<Span> = readings.iter().map(|r| r.span).collect();
    let mut low = -NONE;
    for window in &mut windows {
        low = low.max(window.low);
        window.low = low;
    }
    let mut high = NONE;
    for window in windows.iter_mut().rev() {
        high = high.min(window.high);
        window.high = high;
    }
    match windows.iter().position(|w| w.low > w.high) {
        Some(at) => Err(Conflict { guest: readings.get(at).map_or(0, |r| r.x) }),
        None => Ok(windows),
    }
}

fn contradictions(readings: &[Reading], rates: Rates) -> usize {
    let mut count = 0;
    sweep::forward(readings, rates, ENDS, |_, found| count += usize::from(found.is_some()));
    count
}

/// Returns limits that contain each mean rate that the clock may have had from the first to the last
/// constraint. Returns `None` if the constraints allow no rate, or do not limit the rate.
fn measured(readings: &[Reading]) -> Option<Rates> {
    let low = |r: &Reading| (r.span.low > -NONE).then_some(Point { x: r.x, y: r.span.low });
    let high = |r: &Reading| (r.span.high < NONE).then_some(Point { x: r.x, y: r.span.high });
    let rate = |a: Option<Point>, b: Option<Point>| match (a?, b?) {
        (a, b) if a.x < b.x => {
            Some(Rate::floor(i128::from(b.y) - i128::from(a.y), i128::from(b.x) - i128::from(a.x)))
        }
        _ => None,
    };
    let steepest = rate(readings.iter().find_map(low), readings.iter().rev().find_map(high))?;
    let flattest = rate(readings.iter().find_map(high), readings.iter().rev().find_map(low))?;
    let rates = Rates { min: around(flattest).min, max: around(steepest).max };
    (rates.min <= rates.max).then_some(rates)
}

#[cfg(test)]
mod tests;
