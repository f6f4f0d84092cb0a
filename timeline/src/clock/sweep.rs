// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A sweep over readings with constraints. From the limits of a reading and the limits of the rate, the sweep
//! computes limits for the following readings. The sweep also finds readings that contradict each other.
//!
//! All arithmetic is in integers, rounded outwards, so that rounding never makes a limit tighter.

/// Largest absolute coordinate. With this limit, the product of a difference and a rate fits an `i128`.
pub const LIMIT: i64 = 1 << 62;

/// Value of a missing upper limit. The negated value stands for a missing lower limit.
pub(super) const NONE: i64 = i64::MAX;

/// Number of fraction bits of rates. The slowest clock's rate is below 2^28 units per tick.
const BITS: u32 = 32;

/// A pair of guest ticks and host time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Guest time in ticks, `0..LIMIT`.
    pub x: i64,
    /// Host time in units of 1/256 ns, `-LIMIT..LIMIT`.
    pub y: i64,
}

/// A rate in host units per guest tick, with [`BITS`] fraction bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rate(i64);

impl Rate {
    /// Makes the rate `rise / run`, rounded down. A negative rate becomes 0. `run` is positive.
    pub fn floor(rise: i128, run: i128) -> Rate {
        // Differences of coordinates have 63 bits, so the shift fits.
        Rate(((rise << BITS) / run).clamp(0, LIMIT.into()) as i64)
    }

    /// Returns the limits of the rates of all clocks whose frequency differs from this clock's frequency by
    /// at most `per_mille` parts per thousand. The limits are rounded outwards.
    pub fn around(self, per_mille: i64) -> Rates {
        let by = |thousandths: i64| i128::from(self.0) * 1000 / i128::from(thousandths);
        let rate = |rate: i128| Rate(rate.clamp(0, LIMIT.into()) as i64);
        // This rate was rounded down, so the largest rate is computed from the next larger value.
        let fastest = i128::from(self.0 + 1) * 1000 / i128::from(1000 - per_mille) + 1;
        Rates { min: rate(by(1000 + per_mille)), max: rate(fastest) }
    }

    /// Returns the rate in the middle between two rates.
    pub fn between(self, other: Rate) -> Rate {
        Rate(self.0 / 2 + other.0 / 2)
    }

    /// Returns the ticks per second of a clock of this rate, to show to people.
    pub fn frequency(self) -> f64 {
        let units = self.0.max(1) as f64 / (1_u64 << BITS) as f64;
        1e9 * super::FRACTION as f64 / units
    }

    /// Returns the rise over a distance, rounded down.
    pub fn rise(self, dx: i64) -> i128 {
        (i128::from(self.0) * i128::from(dx)) >> BITS
    }

    /// Returns the rise over a distance, rounded up.
    fn rise_up(self, dx: i64) -> i128 {
        -((i128::from(-self.0) * i128::from(dx)) >> BITS)
    }
}

/// The limits of a clock's rate, in host units per guest tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rates {
    pub min: Rate,
    pub max: Rate,
}

impl Rates {
    /// The limits of an unknown rate: a clock never goes backwards.
    pub const ANY: Rates = Rates { min: Rate(0), max: Rate(i64::MAX) };

    /// Returns the least and the largest rise over a distance. Each of the two readings may be anywhere
    /// within its tick.
    fn rises(self, dx: i64) -> (i128, Option<i128>) {
        let most = (self.max != Rates::ANY.max).then(|| self.max.rise_up(dx + 1));
        (self.min.rise(dx - 1), most)
    }

    /// Returns whether all rates in both ranges are within one per cent of each other.
    pub fn is_near(self, other: Rates) -> bool {
        let Rates { min, max } = self.or(other);
        max.0 - min.0 <= max.0 / 100
    }

    /// Returns the narrowest limits that include both ranges.
    pub fn or(self, other: Rates) -> Rates {
        Rates { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

/// Limits of the host time of one guest reading. A missing limit is [`NONE`] or its negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub low: i64,
    pub high: i64,
}

impl Span {
    pub const ALL: Span = Span { low: -NONE, high: NONE };

    /// Returns the limits that follow for a reading `dx` ticks later. Each of the two readings may have been
    /// anywhere within its tick.
    pub fn later(self, rates: Rates, dx: i64) -> Span {
        let (least, most) = rates.rises(dx);
        Span { low: add(self.low, least), high: most.map_or(NONE, |most| add(self.high, most)) }
    }

    /// Returns the limits that follow for a reading `dx` ticks earlier.
    pub fn earlier(self, rates: Rates, dx: i64) -> Span {
        let (least, most) = rates.rises(dx);
        Span { low: most.map_or(-NONE, |most| add(self.low, -most)), high: add(self.high, -least) }
    }

    /// Returns the distance between the limits.
    pub fn width(self) -> Option<u64> {
        let width = i128::from(self.high) - i128::from(self.low);
        (self.low > -NONE && self.high < NONE).then_some(width.max(0) as u64)
    }

    /// Returns the limits of the times that satisfy both spans. `low` is above `high` if no time satisfies
    /// both spans.
    pub fn both(self, other: Span) -> Span {
        Span { low: self.low.max(other.low), high: self.high.min(other.high) }
    }

    /// Returns the narrowest limits that include all times of both spans.
    pub fn or(self, other: Span) -> Span {
        Span { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Returns limits that hold even if there is a jump on one side that was not found and is at most as
    /// large as `usual`. With such a jump, the time satisfies the limit of one span, and is at most `usual`
    /// beyond the limit of the other span. If only one span has an upper or a lower limit, this limit is
    /// kept.
    pub fn with_jumps(self, other: Span, usual: i64) -> Span {
        let both = self.both(other);
        let usual = i128::from(usual);
        let low = match self.low.min(other.low) {
            low if low == -NONE => both.low,
            low => low.max(add(both.low, -usual)),
        };
        let high = match self.high.max(other.high) {
            NONE => both.high,
            high => high.min(add(both.high, usual)),
        };
        Span { low, high }
    }
}

/// Adds a rise to a limit. The sum stays within the range of coordinates, and a missing limit stays missing.
fn add(limit: i64, rise: i128) -> i64 {
    if limit.abs() == NONE {
        return limit;
    }
    (i128::from(limit) + rise).clamp(-i128::from(LIMIT), LIMIT.into()) as i64
}

/// The constraints on one guest reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub x: i64,
    pub span: Span,
}

impl Reading {
    /// Returns the reading turned by 180 degrees, which turns a sweep to the left into a sweep to the right.
    /// Slopes stay the same.
    fn turned(self) -> Reading {
        Reading { x: -self.x, span: self.span.turned() }
    }
}

impl Span {
    fn turned(self) -> Span {
        Span { low: -self.high, high: -self.low }
    }
}

/// Two constraints that no clock with a rate within the limits can satisfy together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contradiction {
    pub before: Point,
    pub after: Point,
    /// Least distance between the two constraints in host units.
    pub by: i64,
    /// Whether less host time passed than the limits of the rate allow: the guest's clock jumped ahead.
    pub ahead: bool,
}

impl Contradiction {
    /// Returns the two guest times that enclose the jump.
    pub fn range(&self) -> (i64, i64) {
        let (a, b) = (self.before.x, self.after.x);
        (a.min(b), a.max(b))
    }

    fn turned(self) -> Contradiction {
        let turn = |p: Point| Point { x: -p.x, y: -p.y };
        Contradiction { before: turn(self.after), after: turn(self.before), ..self }
    }
}

/// A limit on the readings to the right of a constraint. `at` is a point of the limit, and `from` is the
/// constraint from which the limit comes.
#[derive(Clone, Copy, Debug)]
struct Reach {
    at: Point,
    from: Point,
}

/// The limits from all readings that the sweep has read since the last contradiction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    low: Option<Reach>,
    high: Option<Reach>,
}

impl State {
    /// Returns the limits at `x`, which is not to the left of the state's readings.
    fn at(&self, x: i64, rates: Rates) -> Span {
        // The rise is computed in one step from the point at which each limit began, so that rounding errors
        // do not add up.
        let later = |r: Reach| Span { low: r.at.y, high: r.at.y }.later(rates, x - r.at.x);
        Span {
            low: self.low.map_or(-NONE, |r| later(r).low),
            high: self.high.map_or(NONE, |r| later(r).high),
        }
    }

    /// Adds the next reading to the sweep. Returns the limits at this reading, and the contradiction between
    /// this reading and the readings before it, if there is one. After a contradiction, the sweep forgets the
    /// earlier readings.
    pub fn step(&mut self, reading: &Reading, rates: Rates) -> (Span, Option<Contradiction>) {
        let (so_far, own) = (self.at(reading.x, rates), reading.span);
        let found = self.contradiction(so_far, reading);
        if found.is_some() {
            *self = State::default();
        }
        let own_reach = |y: i64| {
            let at = Point { x: reading.x, y };
            Some(Reach { at, from: at })
        };
        if own.low > -NONE && (self.low.is_none() || own.low >= so_far.low) {
            self.low = own_reach(own.low);
        }
        if own.high < NONE && (self.high.is_none() || own.high <= so_far.high) {
            self.high = own_reach(own.high);
        }
        (if found.is_some() { own } else { so_far.both(own) }, found)
    }

    fn contradiction(&self, so_far: Span, reading: &Reading) -> Option<Contradiction> {
        let Reading { x, span: own } = *reading;
        let found = |reach: Option<Reach>, y: i64, by: i128, ahead: bool| {
            let by = by.min(LIMIT.into()) as i64;
            Some(Contradiction { before: reach?.from, after: Point { x, y }, by, ahead })
        };
        let gap = |low: i64, high: i64| i128::from(low) - i128::from(high);
        if so_far.low > own.high {
            found(self.low, own.high, gap(so_far.low, own.high), true)
        } else if own.low > so_far.high {
            found(self.high, own.low, gap(own.low, so_far.high), false)
        } else {
            None
        }
    }

    /// Returns the state turned by 180 degrees, at `x` of the turned axis.
    fn turned(&self, x: i64, rates: Rates) -> State {
        let span = self.at(-x, rates).turned();
        let turn = |r: Reach, y: i64| Reach {
            at: Point { x, y },
            from: Point { x: -r.from.x, y: -r.from.y },
        };
        State {
            low: self.high.map(|r| turn(r, span.low)),
            high: self.low.map(|r| turn(r, span.high)),
        }
    }
}

/// Sweeps to the right over all readings. Calls `each` for each reading, with the limits and the
/// contradiction at this reading.
///
/// Before the sweep, a short sweep goes from right to left over the first `ends` readings. The sweep begins
/// with the limits that these readings give for the first reading.
pub(super) fn forward(
    readings: &[Reading],
    rates: Rates,
    ends: usize,
    each: impl FnMut(Span, Option<Contradiction>),
) {
    let head = readings.iter().take(ends).rev().map(|r| r.turned());
    sweep(head, readings.iter().copied(), rates, each);
}

/// Sweeps to the left, like [`forward`]: from the last reading to the first.
pub(super) fn backward(
    readings: &[Reading],
    rates: Rates,
    ends: usize,
    mut each: impl FnMut(Span, Option<Contradiction>),
) {
    let tail = &readings[readings.len().saturating_sub(ends)..];
    let all = readings.iter().rev().map(|r| r.turned());
    sweep(tail.iter().copied(), all, rates, |span, found| {
        each(span.turned(), found.map(Contradiction::turned));
    });
}

fn sweep(
    ends: impl Iterator<Item = Reading>,
    all: impl Iterator<Item = Reading>,
    rates: Rates,
    mut each: impl FnMut(Span, Option<Contradiction>),
) {
    let mut state = State::default();
    let mut start = 0;
    for reading in ends {
        state.step(&reading, rates);
        start = -reading.x;
    }
    state = state.turned(start, rates);
    for reading in all {
        let (span, found) = state.step(&reading, rates);
        each(span, found);
    }
}
