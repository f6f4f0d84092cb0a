// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of how often the statistics of a comparison are wrong, with runs that are drawn at random from
//! recorded runs.
//!
//! The benchmark has the same tests with more comparisons in its rows `compare_`, which also state the
//! targets. In these tests, a share may differ from its target by three or four standard errors. The standard
//! error is that of a share among 300 comparisons.

use hypertrace_compare::stats::benjamini_hochberg;
use hypertrace_test_support::simulation::{NAMES, PARTS, Simulation};

/// Number of comparisons of each kind.
const COMPARISONS: usize = 300;

#[test]
fn false_alarms_are_as_many_as_the_level_says() {
    let mut simulation = Simulation::new(1);
    for (level, few, many) in [(0.01, 0.0, 0.03), (0.05, 0.01, 0.095)] {
        for side in [5, 10, 20] {
            let p_values = simulation.of_one_build(side, COMPARISONS);
            let share = |is_alarm: &dyn Fn(&Vec<f64>) -> bool| {
                p_values.iter().filter(|p| is_alarm(p)).count() as f64 / COMPARISONS as f64
            };
            for (i, name) in NAMES.iter().enumerate() {
                let alarms = share(&|p| p[i] <= level);
                assert!(
                    few <= alarms && alarms <= many,
                    "{name}, {side} runs: {alarms}, not {level}"
                );
            }
            let any = share(&|p| benjamini_hochberg(p).iter().any(|&p| p <= level));
            assert!(any <= many, "any name, {side} runs: {any}, not {level}");
        }
    }
}

#[test]
fn intervals_have_the_true_difference_as_often_as_they_say() {
    let mut simulation = Simulation::new(2);
    for side in [5, 10, 20] {
        let coverage = simulation.coverage(side, COMPARISONS);
        for (part, coverage) in PARTS.iter().zip(coverage) {
            assert!(coverage >= 0.91, "{part}, {side} a side: {coverage}");
        }
    }
}

#[test]
fn a_child_that_is_slower_by_5_percent_is_found() {
    let slower = Simulation::new(3).called_slower(10, 0.01, COMPARISONS);
    let parse = NAMES.iter().position(|name| *name == "parse_alone").unwrap();
    assert!(slower[parse] >= 0.91, "{NAMES:?}: {slower:?}");
}
