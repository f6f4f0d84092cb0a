// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The map from a guest's clock to the host's, computed from constraints that are certain.
//!
//! A reference point gives two constraints on the unknown map *f* from guest ticks to host time.  The guest
//! read its clock at `g` before the store that the host saw at `h`, so `f(g) <= h` (*not after*). The same
//! client's next reading `g2` came after the reply, so `f(g2) >= h` (*not before*).
//!
//! # The envelope
//!
//! A clock's rate is never off by more than 1,000 ppm ([`SLACK_PER_MILLE`]). So each constraint limits *f*
//! everywhere. The limit is wider at readings that are farther from the constraint. For each reading, a sweep
//! from left to right gives the limits by all constraints before the reading, and a sweep from right to left
//! gives the limits by all constraints after the reading. Between two readings, *f* must satisfy the limits
//! of *both* sweeps. The map goes through the middle of what these limits leave, straight from reading to
//! reading.
//!
//! Nothing is assumed about how the rate changes within its limits: the rate may drift, change at once, or
//! oscillate.
//!
//! # Jumps
//!
//! A clock *jumps* if its rate is outside of its limits for a moment: the guest was stopped together with its
//! clock, or somebody set it. A jump that is larger than the envelope is *found*: two constraints contradict
//! each other, [`ClockMap::jumps`] names both, and each sweep begins anew there. A smaller jump only makes
//! the envelope narrower, by as much as the clock jumped.
//!
//! # The bound
//!
//! The bound of a mapped time is the distance to the farther end of the envelope, after the envelope was made
//! wider on both sides by the *usual width*, which the wider of both sweeps does not exceed at 90 of 100
//! readings ([`ClockMap::width`]). So the true time is inside the bound even beside a jump of at most that
//! size that was not found. The bound never exceeds the limits by *either* sweep, because on each side of a
//! jump one of the sweeps has not passed the jump yet. Around a jump that was found, these limits are the
//! bound.
//!
//! # Assumptions
//!
//! - The rate stays within 1,000 ppm of the declared rate, unless the declared rate is only assumed
//!   ([`Declared`]). If the constraints contradict the declared rate, and the mean rate from the first to the
//!   last constraint explains them with at least two jumps less, the rate is taken to stay within 1,000 ppm
//!   of that mean. If both rates are within one per cent, a clock of the declared rate that is stopped now
//!   and then could look the same, so the bound holds for both rates. Before the first and after the last
//!   reading nothing checks this.
//! - A jump that is not found is no larger than the envelope's usual width. If points are far apart, a larger
//!   jump could hide between two points.
//! - If two jumps in opposite directions are both too small to be found, neither is within the reach of the
//!   other. A jump reaches as far as the limits of the rate leave constraints on its other side of any use.
//!   No jump is among the first or last [`ENDS`] readings, or outside of them.
//! - The clock is not set back over readings that the clock gave already.
//!
//! A time has no bound if one side has no constraint at all.
//!
//! # Exactness
//!
//! Host time is in units of 1/256 ns ([`FRACTION`]), and all arithmetic is in integers: each constraint holds
//! for the integer that [`ClockMap::at`] returns, and the map never goes backwards.
//!
//! # Memory
//!
//! A map takes 56 bytes for each reading with a constraint, and a reference point makes two such readings.
//! While a map is made, each reading takes up to 80 bytes more.

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

/// Maximum deviation of a clock from its rate, in parts per thousand. Crystals differ by some
/// 100 ppm, a VMM's calibration by a few hundred.
pub const SLACK_PER_MILLE: i64 = 1;

/// Number of readings at each end of a map where no jump can be recognized, because one sweep has passed too
/// few readings. Eight reference points give this number.
pub const ENDS: usize = 16;

/// Percentage of the readings at which the envelope is no wider than its usual width.
const USUAL_PER_CENT: usize = 90;

/// Maximum number of jumps that a map keeps; [`ClockMap::segments`] counts all.
pub const MAX_JUMPS: usize = 1024;

/// No map that never goes backwards satisfies all the constraints, so they are not from one clock.
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
    /// Rate in ticks per second. A value outside of [`FREQUENCIES`] counts as the nearer end.
    pub frequency: u64,
    /// Whether only a guest's word speaks for the rate. Then bounds hold for all rates that the constraints
    /// allow: within 1,000 ppm of any mean rate between the first and the last constraint. If the constraints
    /// limit no mean rate, or contradict it, the rate has no limit.
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

/// A jump of a clock: two constraints that no rate within the limits connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Jump {
    /// Last constraint before the jump.
    pub before: Point,
    /// First constraint after the jump.
    pub after: Point,
    /// Least size of the jump in units of 1/[`FRACTION`] ns.
    pub least: u64,
    /// Whether the guest's clock went ahead. If it did, `before` limits the host time from below and `after`
    /// limits it from above. If it did not, the guest's clock lost time, as if it had been stopped, and
    /// `before` is the upper limit and `after` the lower one.
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
    /// Bound that no reading exceeds. The bounds of times between readings that are far apart exceed it, and
    /// so do the bounds of times before the first and after the last reading.
    pub max: u64,
}

/// A map from guest ticks to host time that never goes backwards.
#[derive(Clone, Debug)]
pub struct ClockMap {
    /// Readings in order of guest time. There is at least one.
    knots: Vec<Knot>,
    rates: Rates,
    /// Rate before the first and after the last reading.
    outside: Rate,
    has_another_rate: bool,
    /// Map of the same readings at the declared rate, if the declared rate explains them too, with jumps.
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
    /// Host time of the reading by the map.
    y: i64,
    /// Limits by this reading and the readings before it.
    forward: Span,
    /// Limits by this reading and the readings after it.
    backward: Span,
    /// Number of readings, up to this one, that have `is_at_jump`.
    jumps: u32,
    /// Whether a jump that was found may be between this reading and the next one.
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

    /// Makes the map of a clock of about this rate from constraints: `not_after` means f(x) <= y,
    /// `not_before` means f(x) >= y. The constraints may come in any order. Returns `None` if there are none.
    ///
    /// Points outside of `0..LIMIT` guest ticks, or farther away than half a year, are left out, because no
    /// clock of a session gets there.
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
            // If the mean leaves more jumps, the points between jumps prove the declared rate.
            if least <= jumps + 1 {
                let is_possible = declared.min <= mean.max && mean.min <= declared.max;
                let guess = Some(if is_possible { declared } else { mean });
                if least > 0 && !mean.is_near(declared) {
                    // A large jump makes the mean differ from the rate between jumps.
                    return Ok(Some(through(Rates::ANY, guess)));
                }
                let map = through(mean, guess);
                // A guest that had the declared rate and was stopped looks the same.
                let is_either = (1..=least + 1).contains(&jumps);
                let otherwise = is_either.then(|| Box::new(through(declared, None)));
                return Ok(Some(ClockMap { has_another_rate: !is_possible, otherwise, ..map }));
            }
        } else if jumps > 0
            && let Some(measured) = measured.filter(|measured| *measured != declared)
            // A single contradiction less proves no other rate, because the contradiction may be a real jump.
            && contradictions(&readings, measured) + 1 < jumps
        {
            let is_either = declared.is_near(measured);
            let otherwise = is_either.then(|| Box::new(through(declared, None)));
            let map = through(measured, None);
            return Ok(Some(ClockMap { has_another_rate: true, otherwise, ..map }));
        }
        Ok(Some(through(declared, None)))
    }

    /// Makes the map under these limits of the rate. If there are narrower limits `guess`, the map's times
    /// are those under `guess` wherever `rates` allow them.
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
        // Ranges of one sweep overlap only in its first `ENDS` readings.
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
            // Near a jump, the two sweeps may contradict each other. The value is then in the middle between
            // them.
            let middle = match (low, high) {
                (low, high) if guess.is_some_and(|guess| (low..=high).contains(&guess)) => {
                    guess.unwrap_or(low)
                }
                (low, NONE) => low,
                (low, high) if low == -NONE => high,
                (low, high) => ((i128::from(low) + i128::from(high)) >> 1) as i64,
            };
            // Limits only grow from window to window, so `last` violates no limit.
            knot.y = middle.clamp(window.low, window.high).max(last);
            last = knot.y;
            // A jump that is not found narrows the limits of one sweep only.
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

    /// Maps a reading of the guest's clock to host time, without the bound, whose computation takes longer.
    /// `hint` is where the last reading was found: any value is right, but a value near this reading makes
    /// the lookup faster.
    pub fn host_from(&self, hint: &mut usize, guest: u64) -> i64 {
        let x = clamped(guest);
        self.value(self.find(hint, x), x)
    }

    /// Returns the distance from a host time to the farther end of what the clock's
    /// constraints allow for a guest reading; `None` if there is no limit on one side.
    pub fn distance_from(&self, hint: &mut usize, guest: u64, host: i64) -> Option<u64> {
        let x = clamped(guest);
        let at = self.find(hint, x);
        self.distance_at(at, x, host)
    }

    fn distance_at(&self, at: usize, x: i64, host: i64) -> Option<u64> {
        let own = distance(host, self.span(at, x))?;
        match &self.otherwise {
            None => Some(own),
            // The knots of `otherwise` are at the same readings.
            Some(map) => Some(own.max(distance(host, map.span(at, x))?)),
        }
    }

    /// Returns the number of knots at or before `x`, and makes it the hint.
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

    /// Returns the limits at `x`, with room for a jump.
    fn span(&self, at: usize, x: i64) -> Span {
        let usual = self.width.map_or(NONE, |width| width.min(LIMIT as u64) as i64);
        let before = at.checked_sub(1).and_then(|i| self.knots.get(i));
        match (before, self.knots.get(at)) {
            (Some(a), Some(b)) => {
                let forward = a.forward.later(self.rates, x - a.x);
                // A jump that was found may be larger than usual.
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

    /// Returns the usual width of the envelope in units of 1/[`FRACTION`] ns: at 90 of 100 readings, neither
    /// sweep leaves more.
    pub fn width(&self) -> Option<u64> {
        self.width
    }

    /// Returns whether the constraints contradict the declared rate, so that the map has other limits of the
    /// rate.
    pub fn has_another_rate(&self) -> bool {
        self.has_another_rate
    }

    /// Returns whether bounds hold for the declared rate as well, although the constraints contradict it. A
    /// guest of that rate that is stopped now and then would look the same.
    pub fn allows_declared_rate(&self) -> bool {
        self.otherwise.is_some()
    }

    /// Returns the limits of the clock's rate, in guest ticks per second of host time; `None` if there are none.
    pub fn frequencies(&self) -> Option<(f64, f64)> {
        let Rates { min, max } = self.rates;
        (self.rates != Rates::ANY).then(|| (max.frequency(), min.frequency()))
    }

    /// Returns the bounds at the readings, each on the side where it is larger; `None` if a bound is unknown.
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

    /// Returns the larger bound of both for each quantile.
    pub(crate) fn max(self, other: Bounds) -> Bounds {
        Bounds {
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            max: self.max.max(other.max),
        }
    }
}

/// Returns the ticks of a guest's reading. A clock shows at most [`LIMIT`] ticks.
fn clamped(guest: u64) -> i64 {
    i64::try_from(guest).unwrap_or(LIMIT).min(LIMIT)
}

/// Returns the number of knots at or before `x`, and makes it the hint.
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

/// Returns the value that so many per cent of all do not exceed.
fn quantile(values: &mut [u64], per_cent: usize) -> Option<u64> {
    let at = values.len().checked_sub(1)? * per_cent / 100;
    Some(*values.select_nth_unstable(at).1)
}

/// Returns the declared rate.
fn nominal_rate(frequency: u64) -> Rate {
    let frequency = frequency.clamp(*FREQUENCIES.start(), *FREQUENCIES.end());
    Rate::floor(1_000_000_000 * i128::from(FRACTION), frequency.into())
}

/// Returns the limits of the rates that a clock of this rate may have.
fn around(rate: Rate) -> Rates {
    rate.around(SLACK_PER_MILLE)
}

/// Sorts the constraints by reading.
fn readings(rate: Rate, not_after: &[Point], not_before: &[Point]) -> Vec<Reading> {
    // Whether a clock of this rate can reach the point within a session's time.
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

/// Returns the limits of each reading that follow from its own constraints, and from the constraints of other
/// readings because clocks do not go backwards: an upper limit holds for all earlier readings, a lower limit
/// for all later ones. These limits hold whatever the rate is.
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

/// Returns limits around all rates that the clock may have had on average from the first to the last
/// constraint; `None` if the constraints allow no rate or limit none.
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
