// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A guest's clock as a straight line. The VMM or KVM describes how the clock is computed. The reader
//! compares the line with the constraints, and uses the line only if the line satisfies every constraint.
//!
//! A line from the VMM is no evidence. The description may belong to another vCPU, or to the time before the
//! guest set its clock. A hypervisor may also compute the clock in another way than the VMM says. So such a
//! line does not change the bounds, which follow from the constraints alone.
//!
//! A line that KVM describes is evidence, because KVM sets the CPU's registers by the same numbers. The
//! recorder of the host's kernel reads these numbers. In the time for which KVM's line held, the times of
//! events have no error except rounding errors.

use super::host::HostCounter;
use super::sweep::{Rate, Rates};
use super::{ClockMap, Distances, FRACTION, LIMIT, Limits, Point, Residuals, clamped};
use hypertrace_format::session_json::GuestTsc;
use std::sync::Arc;

/// A guest's clock as KVM or the VMM describes it: a map from guest ticks to host time that never goes
/// backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    tsc: GuestTsc,
    counter: HostCounter,
    /// Unix time of the host time 0 in clock maps, in units of 1/[`FRACTION`] ns.
    origin: i128,
    /// Raw guest ticks at the guest time 0 of clock maps, minus the TSC's offset.
    start: i128,
    /// Range of host time in which KVM computed the TSC this way, without the end. `None` if the VMM
    /// describes the line.
    of_kvm: Option<(i64, i64)>,
}

/// The lines from which a client's times are computed: either the lines from KVM, in order of time and
/// without overlaps, or the single line from the VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    all: Arc<[Line]>,
    /// True if the client's own reference points do not prove that the client reads this TSC. If true, the
    /// bounds do not rely on KVM's lines.
    is_unproven: bool,
}

impl Lines {
    /// Makes lines from KVM's lines, or from the VMM's line.
    pub fn new(all: Arc<[Line]>) -> Lines {
        Lines { all, is_unproven: false }
    }

    /// Returns the lines for a client whose own points do not show that the client reads this TSC.
    pub fn unproven(self) -> Lines {
        Lines { is_unproven: true, ..self }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether there is no line.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the host time of a guest reading. If KVM's line held at that time, the function also returns
    /// the bound on the error. Returns `None` if there is no line.
    pub fn at(&self, guest: u64) -> Option<(i64, Option<u64>)> {
        let x = clamped(guest);
        // Between two lines of KVM and before the first line, no line gives a bound: only constraints limit
        // the time.
        let last = self.all.iter().take_while(|line| line.has_begun(x)).last();
        let line = last.or(self.all.first())?;
        let host = line.at(x);
        let is_exact = !self.is_unproven && line.holds(host);
        Some((host, is_exact.then(|| line.step())))
    }
}

/// Result of a comparison between the constraints and a clock that the VMM or KVM describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// Number of constraints.
    pub constraints: usize,
    /// Number of constraints that the clock contradicts.
    pub contradicting: usize,
    /// The constraint that the clock contradicts most.
    pub worst: Option<Contradicted>,
    /// Whether the constraints allow the rate of the described clock.
    pub has_possible_rate: bool,
    /// Room for a shift of the whole clock without a contradiction: first to earlier times, then to later
    /// times, in units of 1/[`FRACTION`] ns. A value is `None` if no constraint limits this direction.
    pub room: (Option<u64>, Option<u64>),
    /// Distances between the clock and the constraints.
    pub residuals: Residuals,
}

/// A constraint that a described clock contradicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contradicted {
    /// The constraint.
    pub point: Point,
    /// Whether the constraint is an upper limit: the reading is not after the constraint's host time. If
    /// false, the reading is not before this host time.
    pub is_upper: bool,
    /// Distance between the clock and the constraint in units of 1/[`FRACTION`] ns.
    pub by: u64,
}

impl Agreement {
    /// Returns whether no constraint contradicts the clock, and there are constraints on both sides.
    pub fn is_agreed(&self) -> bool {
        self.contradicting == 0
            && self.has_possible_rate
            && self.room.0.is_some()
            && self.room.1.is_some()
    }
}

impl Line {
    /// Makes the line of a TSC. Guest ticks of the line count from the raw value `base`. `origin` is the Unix
    /// time of the host time 0 in maps. Returns `None` if `tsc` has impossible values.
    pub fn new(tsc: GuestTsc, base: u64, counter: HostCounter, origin: i128) -> Option<Line> {
        // The difference is computed modulo 2^64 and taken as signed, because the guest's clock may have its
        // 0 before the host's counter has its 0.
        let start = base.wrapping_sub(tsc.offset as u64) as i64;
        let line = Line { tsc, counter, origin, start: start.into(), of_kvm: None };
        tsc.is_possible().then_some(line)
    }

    /// Returns this line as a line of KVM that held from the host time `from` until the host time `until`.
    pub fn of_kvm(self, from: i64, until: i64) -> Line {
        Line { of_kvm: Some((from, until)), ..self }
    }

    /// Returns the range of host time in which KVM computed the TSC this way, without the end.
    pub fn held(&self) -> Option<(i64, i64)> {
        self.of_kvm
    }

    fn holds(&self, host: i64) -> bool {
        self.of_kvm.is_some_and(|(from, until)| (from..until).contains(&host))
    }

    /// Returns whether both lines describe the same TSC, and KVM computed this TSC without a break from the
    /// first line to the second line.
    pub fn joins(&self, later: &Line) -> bool {
        self.tsc == later.tsc
            && self.of_kvm.zip(later.of_kvm).is_some_and(|((_, end), (from, _))| from <= end)
    }

    /// Returns whether both lines of KVM hold at some common time. `later` must not begin before this line.
    pub fn overlaps(&self, later: &Line) -> bool {
        self.of_kvm.zip(later.of_kvm).is_some_and(|((_, until), (from, _))| from < until)
    }

    /// Extends the time for which this line holds to the end of a later line. [`Line::joins`] must be true
    /// for both lines.
    pub fn join(&mut self, later: &Line) {
        if let (Some((_, until)), Some((_, later))) = (&mut self.of_kvm, later.of_kvm) {
            *until = later.max(*until);
        }
    }

    fn has_begun(&self, x: i64) -> bool {
        self.of_kvm.is_none_or(|(from, _)| from <= self.at(x))
    }

    /// Returns the largest error of [`Line::at`] for a line that describes the clock exactly. Such an error
    /// comes from rounding alone.
    pub fn step(&self) -> u64 {
        let tick = 1_000_000_000 * FRACTION as u128 / u128::from(self.counter.frequency());
        // Number of host ticks, after the first host tick, for which the guest's TSC keeps its value.
        let ticks = match self.tsc.multiplier {
            1 if self.tsc.shift == 0 => 0,
            multiplier => (1u128 << self.tsc.shift) / u128::from(multiplier) + 1,
        };
        u64::try_from((tick + 1).saturating_mul(ticks + 1)).unwrap_or(u64::MAX)
    }

    /// Returns the TSC.
    pub fn tsc(&self) -> GuestTsc {
        self.tsc
    }

    /// Returns the host time of a guest reading, rounded down.
    pub fn at(&self, x: i64) -> i64 {
        // 2^64 ticks x 2^48 fit in 128 bits.
        let scaled = (self.start + i128::from(x)) << self.tsc.shift;
        let most = i128::from(u64::MAX);
        let host = match self.tsc.multiplier {
            1 => scaled,
            multiplier => scaled.div_euclid(multiplier.into()),
        };
        let time = self.counter.unix(host.clamp(-most, most)) - self.origin;
        time.clamp(-i128::from(LIMIT), LIMIT.into()) as i64
    }

    /// Returns the limits of the TSC's rate. The rate is not exact, because the hypervisor rounded the
    /// multiplier down.
    fn rates(&self) -> Rates {
        let units = (1_000_000_000 * i128::from(FRACTION)) << self.tsc.shift;
        let rate = |multiplier: u64| {
            Rate::floor(units, i128::from(self.counter.frequency()) * i128::from(multiplier))
        };
        let (multiplier, shift) = (self.tsc.multiplier, self.tsc.shift);
        let more = if shift == 0 { multiplier } else { multiplier.saturating_add(1) };
        Rates { min: rate(more), max: rate(multiplier) }
    }

    /// Compares the line with the constraints of a clock's map. If the line is from KVM, a constraint counts
    /// only if the line held at the constraint's time.
    pub fn compare(&self, limits: &Limits, map: &ClockMap) -> Agreement {
        let held = |point: &Point| self.of_kvm.is_none() || self.holds(self.at(point.x));
        let within = |points: &[Point]| points.iter().copied().filter(held).collect();
        let (not_after, not_before) = (within(&limits.not_after), within(&limits.not_before));
        let limits = &Limits { not_after, not_before };
        let (own, allowed) = (self.rates(), map.rates);
        let mut found = Agreement {
            constraints: limits.len(),
            has_possible_rate: own.min <= allowed.max && allowed.min <= own.max,
            ..Agreement::default()
        };
        let mut side = |points: &[Point], is_upper: bool| {
            for point in points {
                let own = self.at(point.x);
                let (low, high) = if is_upper { (own, point.y) } else { (point.y, own) };
                if low > high {
                    let by = low.abs_diff(high);
                    found.contradicting += 1;
                    if found.worst.is_none_or(|worst| worst.by < by) {
                        found.worst = Some(Contradicted { point: *point, is_upper, by });
                    }
                }
            }
        };
        side(&limits.not_after, true);
        side(&limits.not_before, false);
        let mut distances = Distances::default();
        distances.add(limits, |x| self.at(x));
        found.room = distances.least();
        found.residuals = distances.medians();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GHZ: u64 = 1_000_000_000;
    /// Raw ticks of the host at the origin.
    const HOST: u64 = 1 << 40;

    /// Makes the line of a TSC on a host of 1 GHz. Guest ticks of the line count from `base`.
    fn line(tsc: GuestTsc, base: u64) -> Line {
        let counter = HostCounter::new(None, HOST, 0, GHZ);
        Line::new(tsc, base, counter, counter.unix(HOST)).unwrap()
    }

    #[test]
    fn a_reading_is_mapped_by_offset_and_ratio() {
        for (tsc, guest) in [
            (GuestTsc::unscaled(0), HOST),
            (GuestTsc::unscaled(77), HOST + 77),
            // The guest's clock showed 0 one second before the origin.
            (GuestTsc::unscaled(-((HOST - GHZ) as i64)), GHZ),
            // The guest's TSC has three ticks for each two ticks of the host.
            (GuestTsc { offset: 5, multiplier: 3 << 47, shift: 48 }, HOST / 2 * 3 + 5),
        ] {
            assert_eq!(line(tsc, guest).at(0), 0, "{tsc:?}");
            let later = line(tsc, guest - 3_000).at(6_000);
            let expected = if tsc.shift > 0 { 2_000 } else { 3_000 };
            assert_eq!(later, expected * FRACTION, "{tsc:?}");
        }
    }

    proptest! {
        #[test]
        fn any_tsc_is_a_map_that_never_goes_backwards(
            offset: i64,
            multiplier in 1u64..,
            shift in 0u32..=48,
            base: u64,
            a in 0..LIMIT,
            b in 0..LIMIT,
        ) {
            let line = line(GuestTsc { offset, multiplier, shift }, base);
            prop_assert!(line.at(a.min(b)) <= line.at(a.max(b)));
        }
    }

    #[test]
    fn a_contradiction_is_named_with_its_size() {
        let line = line(GuestTsc::unscaled(0), HOST);
        let point = |x: i64, ns: i64| Point { x, y: ns * FRACTION };
        // The line maps tick 3,000 to 3,000 ns, but the host saw this point 400 ns earlier.
        let limits = Limits {
            not_after: vec![point(1_000, 1_500), point(2_000, 2_100), point(3_000, 2_600)],
            not_before: vec![point(1_700, 1_500)],
        };
        let map = ClockMap::nominal(GHZ, point(0, 0));

        let found = line.compare(&limits, &map);

        let units = |ns: u64| ns * FRACTION as u64;
        let worst = Contradicted { point: point(3_000, 2_600), is_upper: true, by: units(400) };
        assert_eq!((found.constraints, found.contradicting), (4, 1));
        assert_eq!(found.worst, Some(worst));
        assert!(found.has_possible_rate && !found.is_agreed());
        assert_eq!(found.room, (Some(units(200)), Some(0)));
        let limits = Limits { not_after: limits.not_after[..2].to_vec(), ..limits };
        let found = line.compare(&limits, &map);
        assert!(found.is_agreed());
        assert_eq!(found.room, (Some(units(200)), Some(units(100))));
    }

    #[test]
    fn a_rate_that_the_map_does_not_allow_is_no_agreement() {
        let limits = Limits {
            not_after: vec![Point { x: 0, y: 500 }],
            not_before: vec![Point { x: 1, y: -500 }],
        };
        let map = ClockMap::nominal(GHZ, Point { x: 0, y: 0 });
        for (multiplier, is_agreed) in [(1u64 << 32, true), ((1 << 32) / 100 * 101, false)] {
            let offset = HOST as i64 - ((i128::from(HOST) * i128::from(multiplier)) >> 32) as i64;
            let found =
                line(GuestTsc { offset, multiplier, shift: 32 }, HOST).compare(&limits, &map);
            assert_eq!((found.is_agreed(), found.contradicting), (is_agreed, 0), "{multiplier}");
        }
    }
}
