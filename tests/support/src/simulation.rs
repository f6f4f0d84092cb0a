// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Simulated comparisons, which count how often the statistics of a comparison are wrong. The runs are drawn
//! at random from recorded runs.

use fastrand::Rng;
use hypertrace_compare::stats::{benjamini_hochberg, permutation, welch};

/// The runs. `timeline/compare/tests/record.py` recorded them.
const RUNS: &str = include_str!("../../../timeline/compare/tests/runs.csv");

/// Names of the regions whose typical means are compared. The verdicts are adjusted for the number of
/// regions.
pub const NAMES: [&str; 4] = ["request", "parse_alone", "look_up_alone", "render_alone"];

/// The typical mean of `request` and its parts.
pub const PARTS: [&str; 9] =
    ["request", "on_cpu", "runnable", "blocked", "unknown", "parse", "look_up", "render", "own"];

/// Runs of one build, each a row of values.
type Build = Vec<Vec<f64>>;

/// Recorded runs of two builds, and the random numbers that draw from them.
pub struct Simulation {
    columns: Vec<&'static str>,
    /// Runs of one build.
    same: Build,
    /// Runs of a second build, in which `parse` does 5 % more work.
    slower: Build,
    random: Rng,
}

impl Simulation {
    /// Reads the recorded runs. The draws depend on the seed alone.
    pub fn new(seed: u64) -> Self {
        let mut lines = RUNS.lines().filter(|line| !line.starts_with('#'));
        let columns = lines.next().expect("a line of names").split(',').collect();
        let row =
            |line: &str| line.split(',').map(|value| value.parse().expect("a number")).collect();
        let (same, slower) = lines.map(row).partition(|row: &Vec<f64>| row[0] == 100.0);
        let random = Rng::with_seed(seed);
        Self { columns, same, slower, random }
    }

    /// Makes this many comparisons of a build with itself. Returns the p values of [`NAMES`] for each
    /// comparison.
    pub fn of_one_build(&mut self, side: usize, comparisons: usize) -> Vec<Vec<f64>> {
        let compare = |_| {
            let drawn = draw(&mut self.random, &self.same, 2 * side);
            let (a, b) = drawn.split_at(side);
            let p = |name| permutation(&of(&self.columns, a, name), &of(&self.columns, b, name));
            NAMES.into_iter().map(p).collect()
        };
        (0..comparisons).map(compare).collect()
    }

    /// Compares a build with itself `comparisons` times, so that the true difference is 0. Returns for each
    /// of [`PARTS`] the share of the comparisons with a 95 % interval that contains 0.
    pub fn coverage(&mut self, side: usize, comparisons: usize) -> Vec<f64> {
        let mut covered = vec![0; PARTS.len()];
        for _ in 0..comparisons {
            let drawn = draw(&mut self.random, &self.same, 2 * side);
            let (a, b) = drawn.split_at(side);
            for (covered, part) in covered.iter_mut().zip(PARTS) {
                let (a, b) = (of(&self.columns, a, part), of(&self.columns, b, part));
                let difference = welch(&a, &b, 0.95).expect("finite values");
                *covered += usize::from(difference.mean.abs() <= difference.half_width);
            }
        }
        covered.into_iter().map(|covered| covered as f64 / comparisons as f64).collect()
    }

    /// Makes `comparisons` comparisons of the two builds. Returns for each of [`NAMES`] the share of
    /// comparisons that report this region as slower at this level.
    pub fn called_slower(&mut self, side: usize, level: f64, comparisons: usize) -> Vec<f64> {
        let mut called = vec![0; NAMES.len()];
        for _ in 0..comparisons {
            let a = draw(&mut self.random, &self.same, side);
            let b = draw(&mut self.random, &self.slower, side);
            let sides =
                NAMES.map(|name| (of(&self.columns, &a, name), of(&self.columns, &b, name)));
            let p: Vec<f64> = sides.iter().map(|(a, b)| permutation(a, b)).collect();
            for (i, p) in benjamini_hochberg(&p).into_iter().enumerate() {
                let (a, b) = &sides[i];
                called[i] +=
                    usize::from(p <= level && b.iter().sum::<f64>() > a.iter().sum::<f64>());
            }
        }
        called.into_iter().map(|called| called as f64 / comparisons as f64).collect()
    }
}

/// Draws `n` runs without replacement, in random order.
fn draw<'r>(random: &mut Rng, runs: &'r Build, n: usize) -> Vec<&'r [f64]> {
    let mut drawn: Vec<&[f64]> = runs.iter().map(Vec::as_slice).collect();
    random.shuffle(&mut drawn);
    drawn.truncate(n);
    drawn
}

/// Returns the values of a column.
fn of(columns: &[&str], runs: &[&[f64]], name: &str) -> Vec<f64> {
    let column = columns.iter().position(|column| *column == name).expect("a column of the runs");
    runs.iter().map(|run| run[column]).collect()
}
