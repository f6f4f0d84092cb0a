// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the clock map with clocks whose true times are known.

use super::*;
use proptest::prelude::*;

const GHZ: u64 = 1_000_000_000;

fn p(x: i64, y: i64) -> Point {
    Point { x, y }
}

fn fit(nominal: u64, not_after: &[Point], not_before: &[Point]) -> ClockMap {
    ClockMap::fit(nominal, not_after, not_before).unwrap().unwrap()
}

fn assert_satisfies(map: &ClockMap, not_after: &[Point], not_before: &[Point]) {
    for c in not_after {
        let host = map.at(c.x as u64).host;
        assert!(host <= c.y, "f({}) = {host}, not after {}", c.x, c.y);
    }
    for c in not_before {
        let host = map.at(c.x as u64).host;
        assert!(host >= c.y, "f({}) = {host}, not before {}", c.x, c.y);
    }
}

fn assert_never_backwards(map: &ClockMap, readings: impl Iterator<Item = i64>) {
    let mut xs: Vec<i64> = readings.flat_map(|x| [x.saturating_sub(1).max(0), x, x + 1]).collect();
    xs.sort_unstable();
    let mut last = i64::MIN;
    for x in xs {
        let host = map.at(x as u64).host;
        assert!(host >= last, "f({x}) = {host} < {last}");
        last = host;
    }
}

#[test]
fn without_constraints_there_is_no_map() {
    assert!(ClockMap::fit(GHZ, &[], &[]).unwrap().is_none());
}

#[test]
fn one_reference_point_gives_the_nominal_rate_and_half_its_window() {
    // The guest reads 1,000 ticks, the host sees the point 10 us later, and the guest reads again 20 us after
    // the first reading.
    let map = fit(GHZ, &[p(1000, 256 * 11_000)], &[p(21_000, 256 * 11_000)]);

    assert_eq!(map.segments(), 1);
    let mapped = map.at(1000);
    // The constraints allow every host time from -9,000 ns to 11,000 ns for the reading 1,000.
    assert!((mapped.host / 256 - 1000).abs() <= 20, "{mapped:?}");
    let bound = mapped.bound.unwrap() / 256;
    assert!((9_990..=10_060).contains(&bound), "{bound}");
}

#[test]
fn with_only_upper_limits_the_bound_is_unknown() {
    let map = fit(GHZ, &[p(0, 512), p(1000, 256 * 1010)], &[]);
    assert_satisfies(&map, &[p(0, 512), p(1000, 256 * 1010)], &[]);
    assert_eq!(map.at(500).bound, None);
}

#[test]
fn a_clock_that_jumps_ahead_gets_a_segment_and_a_straight_piece_between() {
    // The clocks of guest and host agree at first. Then the guest loses a second, because it was stopped.
    let mut not_after = Vec::new();
    let mut not_before = Vec::new();
    for i in 0..10 {
        let stopped = if i < 5 { 0 } else { 1_000_000_000 };
        let g = i * 1_000_000;
        not_after.push(p(g, 256 * (g + stopped + 5_000)));
        not_before.push(p(g + 10_000, 256 * (g + stopped + 5_000)));
    }

    let map = fit(GHZ, &not_after, &not_before);

    assert_eq!(map.segments(), 2);
    assert_satisfies(&map, &not_after, &not_before);
    assert_never_backwards(&map, not_after.iter().map(|c| c.x));
    // The point at 5 ms still fits the line before the stop, but the reply to this point does not.
    let gap = map.at(5_005_000);
    assert!(gap.bound.unwrap() >= 256 * 400_000_000, "{gap:?}");
    assert!(map.at(6_000_000).bound.unwrap() < 256 * 10_000);
}

#[test]
fn constraints_of_two_clocks_conflict() {
    let not_after = [p(1000, 256 * 1000)];
    let not_before = [p(500, 256 * 1_000_000)];
    assert_eq!(ClockMap::fit(GHZ, &not_after, &not_before).unwrap_err(), Conflict { guest: 500 });
}

#[test]
fn a_wrong_nominal_rate_is_detected() {
    // The clock is declared as 1 GHz, but is 1 % faster. No crystal has such a large error.
    let true_host = |g: i64| g * 256 * 100 / 101;
    let mut not_after = Vec::new();
    let mut not_before = Vec::new();
    for i in 0..1000 {
        let g = i * 1_000_000;
        not_after.push(p(g, true_host(g) + 256 * 3_000));
        not_before.push(p(g + 8_000, true_host(g) + 256 * 3_000));
    }

    let map = fit(GHZ, &not_after, &not_before);

    assert_eq!(map.segments(), 1);
    assert_satisfies(&map, &not_after, &not_before);
}

#[test]
fn points_that_are_far_apart_prove_an_assumed_rate() {
    let (not_after, not_before) = points((1..100).map(|i| i * 10_000_000), |t| t / 16);
    for (frequency, is_right) in [(62_500_000, true), (2_600_000_000, false)] {
        let known = ClockMap::fit(62_500_000, &not_after, &not_before).unwrap().unwrap();
        let declared = Declared { frequency, is_assumed: true };
        let map = ClockMap::fit(declared, &not_after, &not_before).unwrap().unwrap();

        assert_eq!((map.has_another_rate(), map.segments()), (!is_right, 1));
        let (least, most) = map.frequencies().unwrap();
        assert!((62_300_000.0..62_437_501.0).contains(&least), "{least}");
        assert!((62_562_500.0..62_700_000.0).contains(&most), "{most}");
        let (own, best) = (map.bounds().unwrap(), known.bounds().unwrap());
        assert!(own.p50 <= best.p50 + best.p50 / 10, "{own:?} {best:?}");
    }
}

#[test]
fn impossible_readings_are_left_out() {
    let wild = [p(i64::MAX, 5), p(-1, 5), p(5, i64::MIN), p(LIMIT - 1, 5)];
    assert!(ClockMap::fit(GHZ, &wild, &wild).unwrap().is_none());
}

#[test]
fn times_far_outside_saturate_in_order() {
    let map = fit(GHZ, &[p(1000, 256 * 2000)], &[p(3000, 256 * 2000)]);
    assert_never_backwards(&map, [0, 1 << 40, 1 << 61, LIMIT - 2].into_iter());
    assert_eq!(map.at(u64::MAX).host, LIMIT);
}

/// A clock whose true times are known, with the constraints from its reference points.
#[derive(Debug)]
struct Known {
    frequency: u64,
    /// Rate of the clock: `num` host units per `den` ticks.
    num: i128,
    den: i128,
    start: i64,
    not_after: Vec<Point>,
    not_before: Vec<Point>,
}

impl Known {
    /// Returns the host time on the true line, rounded down. The result plus one is an upper limit of the
    /// true time.
    fn true_host(&self, x: i64) -> i64 {
        (i128::from(self.start) + (i128::from(x) * self.num).div_euclid(self.den)) as i64
    }

    /// Returns the first tick at which the true line reaches a host time.
    fn guest_at(&self, y: i64) -> i64 {
        let dy = i128::from(y) - i128::from(self.start);
        -((-dy * self.den).div_euclid(self.num)) as i64
    }
}

fn known_clock() -> impl Strategy<Value = Known> {
    (
        prop_oneof![Just(1_000_000u64), Just(24_000_000), Just(1_000_000_000), Just(2_599_998_000)],
        -900i128..900,
        -1_000_000_000_000i64..1_000_000_000_000,
        // Pause before the point, delay to the host, and delay back, in nanoseconds
        prop::collection::vec((1i64..3_000_000_000, 0i64..30_000, 0i64..60_000), 1..120),
    )
        .prop_map(|(frequency, ppm, start, points)| {
            let mut k = Known {
                frequency,
                num: 256_000_000_000 * (1_000_000 + ppm),
                den: i128::from(frequency) * 1_000_000,
                start,
                not_after: Vec::new(),
                not_before: Vec::new(),
            };
            let mut now = 1 + start.max(start + 256);
            for (pause, out, back) in points {
                now += pause * 256;
                let g = k.guest_at(now);
                let host = k.true_host(g) + 1 + out * 256;
                let g2 = k.guest_at(host + back * 256);
                k.not_after.push(p(g, host));
                k.not_before.push(p(g2, host));
                now = k.true_host(g2) + 1;
            }
            k
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_steady_clock_gets_one_line_and_the_truth_lies_within_the_bound(known in known_clock()) {
        let map = fit(known.frequency, &known.not_after, &known.not_before);

        assert_satisfies(&map, &known.not_after, &known.not_before);
        prop_assert_eq!(map.segments(), 1);
        assert_never_backwards(&map, known.not_after.iter().map(|c| c.x));
        let end = known.not_before.last().unwrap().x;
        for i in 0..=40 {
            // Some readings are before the first point, and some are after the last point.
            let x = end / 32 * i;
            let Mapped { host, bound } = map.at(x as u64);
            let truth = known.true_host(x);
            let off = host.abs_diff(truth).max(host.abs_diff(truth + 1));
            prop_assert!(off <= bound.unwrap() + 1, "{x}: {host} {truth} {bound:?}");
        }
    }

    #[test]
    fn a_clock_whose_rate_is_only_assumed_has_the_truth_within_its_bound(
        known in known_clock(),
        few in prop_oneof![1usize..5, 1usize..120],
        frequency in prop_oneof![Just(1_000_000u64), Just(1_000_000_000), Just(2_600_000_000)],
    ) {
        let few = few.min(known.not_after.len());
        let (not_after, not_before) = (&known.not_after[..few], &known.not_before[..few]);
        let declared = Declared { frequency, is_assumed: true };
        let map = ClockMap::fit(declared, not_after, not_before).unwrap().unwrap();

        assert_satisfies(&map, not_after, not_before);
        assert_never_backwards(&map, not_after.iter().map(|c| c.x));
        let end = not_before.last().unwrap().x;
        for i in 0..=40 {
            let x = end / 32 * i;
            let Mapped { host, bound } = map.at(x as u64);
            let truth = known.true_host(x);
            let off = host.abs_diff(truth).max(host.abs_diff(truth + 1));
            prop_assert!(bound.is_none_or(|bound| off <= bound + 1), "{x}: {host} {truth} {bound:?}");
        }
        if few == 1 {
            prop_assert_eq!(map.at(end as u64 + 1).bound, None);
        }
    }

    #[test]
    fn a_drifting_clock_keeps_every_constraint(
        frequency in prop_oneof![Just(1_000_000_000u64), Just(2_400_000_000)],
        steps in prop::collection::vec((1i64..200_000_000, -900i64..900, 0i64..20_000, 0i64..20_000), 1..200),
    ) {
        let mut not_after = Vec::new();
        let mut not_before = Vec::new();
        // True guest ticks and host units after each step
        let (mut g, mut now) = (0i64, 0i64);
        for (ns, ppm, out, back) in steps {
            let ticks = |ns: i64| (i128::from(ns) * i128::from(frequency) / 1_000_000_000) as i64;
            now += ns * 256 + ns * 256 / 1000 * ppm / 1000;
            g += ticks(ns);
            let host = now + 256 + out * 256;
            not_after.push(p(g, host));
            now = host + back * 256 + 512;
            g += ticks(out + back) + 3;
            not_before.push(p(g, host));
        }
        let map = fit(frequency, &not_after, &not_before);
        assert_satisfies(&map, &not_after, &not_before);
        assert_never_backwards(&map, not_after.iter().map(|c| c.x));
    }

    #[test]
    fn any_constraints_are_all_satisfied_or_all_refused(
        not_after in prop::collection::vec((0i64..400, 0i64..100_000), 0..20),
        not_before in prop::collection::vec((0i64..400, 0i64..100_000), 0..20),
    ) {
        let not_after: Vec<_> = not_after.into_iter().map(|(x, y)| p(x, y)).collect();
        let not_before: Vec<_> = not_before.into_iter().map(|(x, y)| p(x, y)).collect();
        let contradict = not_before
            .iter()
            .any(|l| not_after.iter().any(|u| l.x <= u.x && l.y > u.y));
        match ClockMap::fit(GHZ, &not_after, &not_before) {
            Err(_) => prop_assert!(contradict),
            Ok(None) => prop_assert!(not_after.is_empty() && not_before.is_empty()),
            Ok(Some(map)) => {
                prop_assert!(!contradict);
                assert_satisfies(&map, &not_after, &not_before);
                assert_never_backwards(&map, 0..400);
            }
        }
    }

    #[test]
    fn extreme_values_neither_panic_nor_break_a_constraint(
        not_after in prop::collection::vec((any::<i64>(), any::<i64>()), 0..12),
        not_before in prop::collection::vec((any::<i64>(), any::<i64>()), 0..12),
        frequency in any::<u64>(),
        x in any::<u64>(),
    ) {
        let not_after: Vec<_> = not_after.into_iter().map(|(x, y)| p(x, y)).collect();
        let not_before: Vec<_> = not_before.into_iter().map(|(x, y)| p(x, y)).collect();
        if let Ok(Some(map)) = ClockMap::fit(frequency, &not_after, &not_before) {
            map.at(x);
            let rate = nominal_rate(frequency);
            let in_range = |c: &&Point| {
                (0..LIMIT).contains(&c.x)
                    && (-LIMIT..LIMIT).contains(&c.y)
                    && rate.rise(c.x) < LIMIT.into()
            };
            let a: Vec<_> = not_after.iter().filter(in_range).copied().collect();
            let b: Vec<_> = not_before.iter().filter(in_range).copied().collect();
            assert_satisfies(&map, &a, &b);
        }
    }

}

/// Makes points of a clock. The guest reads its clock and makes a point. The host sees the point 10 us later,
/// and the guest reads its clock again 10 us after that. `guest` gives the clock, in ticks of 1 ns, at a host
/// time.
fn points(
    times: impl Iterator<Item = i64>,
    guest: impl Fn(i64) -> i64,
) -> (Vec<Point>, Vec<Point>) {
    times
        .map(|t| (p(guest(t), 256 * (t + 10_000)), p(guest(t + 20_000), 256 * (t + 10_000))))
        .unzip()
}

#[test]
fn a_small_jump_at_the_begin_of_a_pause_is_inside_the_bound() {
    // The guest makes a point each millisecond, and pauses for 100 ms. The clock jumps just after the last
    // point before the pause. At the jump, one sweep has narrow limits and the other sweep has wide limits,
    // so the envelope is not narrower than usual.
    const MS: i64 = 1_000_000;
    for jump in [15_000, 18_000, -18_000] {
        let at = 100 * MS + 50_000;
        let guest = |t: i64| 5_000_000 + t + if t >= at { jump } else { 0 };
        let (not_after, not_before) = points((1..=100).chain(200..300).map(|i| i * MS), guest);

        let map = fit(GHZ, &not_after, &not_before);

        assert_eq!(map.segments(), 1, "the jump is too small to be found");
        for t in (at..at + 4 * MS).step_by(20_000) {
            let mapped = map.at(guest(t) as u64);
            let error = (mapped.host - 256 * t).unsigned_abs();
            assert!(error <= mapped.bound.unwrap(), "jump {jump}, {} ns after it", t - at);
        }
    }
}

#[test]
fn a_clock_that_is_stopped_now_and_then_may_have_its_declared_rate() {
    // The guest stops for 30 us each 15 ms. So the mean rate is 2,000 ppm lower than the declared rate, and
    // all points fit the mean rate.
    const PERIOD: i64 = 15_000_000;
    for (out, back) in [(500, 19_500), (6_000, 14_000)] {
        let guest = |t: i64| 5_000_000 + t - (t + 2_500_000) / PERIOD * 30_000;
        // No point is within 2.5 ms of a stop.
        let near =
            |t: i64| !(2_600_000..12_300_000).contains(&((t + 2_500_000) % PERIOD - 100_000));
        let times = (1..500).map(|i| i * 250_000).filter(|t| !near(*t));
        let (not_after, not_before): (Vec<Point>, Vec<Point>) = times
            .map(|t| {
                let host = 256 * (t + out);
                (p(guest(t), host), p(guest(t + out + back), host))
            })
            .unzip();

        let map = fit(GHZ, &not_after, &not_before);

        assert!(map.has_another_rate());
        // While the clock is stopped, it shows its last value.
        let runs = |t: &i64| (t + 2_500_000) % PERIOD > 30_000;
        for t in (3_000_000..100_000_000).step_by(50_000).filter(runs) {
            let mapped = map.at(guest(t) as u64);
            let error = (mapped.host - 256 * t).unsigned_abs();
            assert!(error <= mapped.bound.unwrap(), "{out} + {back} ns: at {t}");
        }
    }
}

#[test]
fn the_limits_of_the_rate_are_those_of_the_clocks_frequency() {
    // The clock has 0.999 GHz, is declared as 1 GHz, and is read long after the last point.
    for hz in [999_000_000, 1_001_000_000] {
        let guest = |t: i64| (i128::from(t) * hz / 1_000_000_000) as i64;
        let (not_after, not_before) = points((1..1000).map(|i| i * 200_000), guest);

        let map = fit(GHZ, &not_after, &not_before);

        for t in (1..600).map(|seconds| seconds * 1_000_000_000) {
            let mapped = map.at(guest(t) as u64);
            let error = (mapped.host - 256 * t).unsigned_abs();
            assert!(error <= mapped.bound.unwrap(), "{hz} Hz: at {t}");
        }
    }
}

#[test]
fn between_two_readings_the_rate_alone_limits_the_time_unless_the_clock_may_have_jumped() {
    const MS: i64 = 1_000_000;
    let guest = |t: i64| 5_000_000 + t + if t >= 100 * MS { 3 * MS } else { 0 };
    let (not_after, not_before) = points((1..200).map(|i| i * MS), guest);
    let map = fit(GHZ, &not_after, &not_before);
    assert_eq!(map.segments(), 2);
    let at = |ms: i64| map.guest_time(guest(ms * MS) as u64);

    for (from, to) in [(10, 60), (120, 170)] {
        let (least, most) = at(from).until(at(to)).unwrap();
        let exact = 256 * 50 * MS;
        assert!((exact * 998 / 1000..=exact).contains(&least), "{least}");
        assert!((exact..=exact * 1002 / 1000).contains(&most), "{most}");
    }
    assert_eq!(at(60).until(at(120)), None, "over the jump");
    assert_eq!(at(60).until(at(10)), None, "backwards");
    let mut another = at(60);
    another.clock = 1;
    assert_eq!(at(10).until(another), None, "another clock");
}
