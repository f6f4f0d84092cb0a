// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the statistics: the results are those of SciPy, and infinite or missing values give no false
//! result.

use hypertrace_compare::runs_needed;
use hypertrace_compare::stats::{
    benjamini_hochberg, least_p_value, permutation, smallest_difference, welch,
};
use serde::Deserialize;

/// The contents of the file that `fixtures.py` wrote.
#[derive(Deserialize)]
struct Fixtures {
    sets: Vec<Set>,
    benjamini_hochberg: Vec<Adjusted>,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    a: Vec<f64>,
    b: Vec<f64>,
    degrees: f64,
    intervals: Vec<Interval>,
    permutation: Permutation,
    smallest_difference: Vec<Smallest>,
}

#[derive(Deserialize)]
struct Interval {
    confidence: f64,
    ends: [f64; 2],
}

#[derive(Deserialize)]
struct Permutation {
    exact: bool,
    p: f64,
}

#[derive(Deserialize)]
struct Smallest {
    level: f64,
    power: f64,
    difference: f64,
    found: f64,
}

#[derive(Deserialize)]
struct Adjusted {
    p: Vec<f64>,
    adjusted: Vec<f64>,
}

fn fixtures() -> Fixtures {
    serde_json::from_str(include_str!("../stats.json")).unwrap()
}

/// Returns whether `a` and `b` differ by at most `share` times `b`.
fn near(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * b.abs()
}

#[test]
fn there_are_more_names_than_any_number_of_runs_can_judge() {
    assert_eq!(runs_needed(1), Some(5));
    assert_eq!(runs_needed(4), Some(6));
    assert_eq!(runs_needed(923), Some(10));
    assert_eq!(runs_needed(20_000), None);
}

#[test]
fn intervals_are_those_of_scipy() {
    for set in fixtures().sets {
        for Interval { confidence, ends: [low, high] } in &set.intervals {
            let found = welch(&set.a, &set.b, *confidence).unwrap();
            let [mean, half_width] = [(low + high) / 2.0, (high - low) / 2.0];
            assert!((found.mean - mean).abs() <= 1e-9 * half_width, "{}: {found:?}", set.name);
            assert!(near(found.half_width, half_width, 1e-8), "{}: {found:?}", set.name);
            assert!(near(found.degrees, set.degrees, 1e-8), "{}: {found:?}", set.name);
        }
    }
}

#[test]
fn p_values_of_permutations_are_those_of_scipy() {
    for set in fixtures().sets {
        let p = permutation(&set.a, &set.b);
        let expected = set.permutation.p;
        // If the p value is not exact, the tolerance is four standard errors: `permutation` draws 199,999
        // random ways to divide the runs, or stops after 100 extreme ways.
        let tolerance = if set.permutation.exact { 1e-12 } else { 0.4 };
        assert!(near(p, expected, tolerance), "{}: {p}, not {expected}", set.name);
        let swapped = permutation(&set.b, &set.a);
        assert!(near(swapped, p, 2.0 * tolerance), "{}: {p}, and {swapped} swapped", set.name);
        // The call for `b` and `a` must not change the p value for `a` and `b`, although its random ways are
        // kept too.
        assert_eq!(permutation(&set.a, &set.b), p, "{}", set.name);
    }
}

#[test]
fn adjusted_p_values_are_those_of_scipy() {
    for Adjusted { p, adjusted } in fixtures().benjamini_hochberg {
        let found = benjamini_hochberg(&p);
        assert_eq!(found.len(), adjusted.len());
        let same = found.iter().zip(&adjusted).all(|(&a, &b)| near(a, b, 1e-12));
        assert!(same, "{found:?}, not {adjusted:?}");
    }
}

#[test]
fn what_is_not_a_p_value_makes_no_difference() {
    assert_eq!(benjamini_hochberg(&[f64::NAN, -1.0, 7.0, 0.25]), [1.0, 0.0, 1.0, 0.5]);
}

#[test]
fn smallest_difference_has_the_power_that_the_noncentral_t_distribution_tells() {
    for set in fixtures().sets {
        for wanted in &set.smallest_difference {
            let found = smallest_difference(&set.a, &set.b, wanted.level, wanted.power).unwrap();
            assert!(near(found, wanted.difference, 1e-8), "{}: {found}", set.name);
            // The reached power may differ from the wanted power, because the sum of two quantiles is an
            // approximation.
            let off = (wanted.found - wanted.power).abs();
            assert!(off < if set.degrees < 7.0 { 0.11 } else { 0.03 }, "{}: {off}", set.name);
        }
    }
}

#[test]
fn a_level_of_few_runs_has_steps() {
    let side = |first: u32, n: u32| (first..first + n).map(f64::from).collect::<Vec<_>>();
    for (runs, ways) in
        [(1, 2), (2, 6), (3, 20), (4, 70), (5, 252), (6, 924), (10, 184_756), (12, 2_704_156)]
    {
        let p = permutation(&side(0, runs), &side(1_000, runs));
        assert_eq!(p, 2.0 / f64::from(ways), "{runs} runs a side");
        assert_eq!(least_p_value(runs as usize, runs as usize), p, "{runs} runs a side");
    }
    assert_eq!(permutation(&side(0, 2), &side(1_000, 4)), 1.0 / 15.0);
    assert_eq!(least_p_value(2, 4), 1.0 / 15.0);
    // The 60 runs can be divided in too many ways to try all of them. Among the 200,000 ways that are tried,
    // only the observed division is extreme.
    assert_eq!(permutation(&side(0, 30), &side(1_000, 30)), 1.0 / 200_000.0);
    assert_eq!(least_p_value(30, 30), 1.0 / 200_000.0);
    assert_eq!(least_p_value(0, 5), 1.0);
}

#[test]
fn equal_values_have_no_width_and_no_difference() {
    let a = [0.1; 5];
    let found = welch(&a, &a, 0.95).unwrap();
    assert_eq!((found.mean, found.half_width, found.degrees), (0.0, 0.0, 8.0));
    let found = welch(&a, &[0.7; 3], 0.95).unwrap();
    assert_eq!((found.mean, found.half_width), (0.7 - 0.1, 0.0));
    assert_eq!(smallest_difference(&a, &a, 0.01, 0.8), Some(0.0));
    assert_eq!(permutation(&a, &a), 1.0);
    assert_eq!(permutation(&a, &[0.7; 5]), 2.0 / 252.0);
}

#[test]
fn few_values_have_no_interval() {
    for (a, b) in [(&[][..], &[1.0, 2.0][..]), (&[1.0], &[1.0, 2.0]), (&[1.0, 2.0], &[3.0])] {
        assert_eq!(welch(a, b, 0.95), None);
        assert_eq!(smallest_difference(a, b, 0.01, 0.8), None);
    }
    assert_eq!(permutation(&[], &[1.0, 2.0]), 1.0);
    assert_eq!(permutation(&[], &[]), 1.0);
    assert_eq!(permutation(&[1.0], &[2.0]), 1.0);
}

#[test]
fn confidences_levels_and_powers_are_between_0_and_1() {
    let (a, b) = ([1.0, 2.0], [3.0, 4.0]);
    for share in [-0.5, 0.0, 1.0, 1.5, f64::NAN] {
        assert_eq!(welch(&a, &b, share), None, "{share}");
        assert_eq!(smallest_difference(&a, &b, share, 0.8), None, "{share}");
        assert_eq!(smallest_difference(&a, &b, 0.01, share), None, "{share}");
    }
}

#[test]
fn infinite_and_huge_values_have_no_interval_and_no_verdict() {
    let a = [1.0, 2.0, 3.0, 4.0, 5.0];
    for odd in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MAX] {
        let b = [1.0, 2.0, 3.0, 4.0, odd];
        assert_eq!(welch(&a, &b, 0.95), None, "{odd}");
        assert_eq!(smallest_difference(&b, &a, 0.01, 0.8), None, "{odd}");
    }
    for odd in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        assert_eq!(permutation(&a, &[odd; 5]), 1.0, "{odd}");
    }
    assert_eq!(permutation(&[-f64::MAX; 5], &[f64::MAX; 5]), 1.0);
    // Even values of 10^140 have an interval, and a clock never returns such large values.
    let far = a.map(|value| value * 1e140);
    let difference = welch(&a, &far, 0.95).unwrap();
    assert!(near(difference.mean, 3e140, 1e-12) && difference.half_width.is_finite());
    assert_eq!(permutation(&a, &far), 2.0 / 252.0);
}
