// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Statistics of two sets of runs, with one value per run.
//!
//! A run, and not a region, is the unit of the statistics. All regions of one run share the run's memory
//! layout, CPU frequency and neighbours on the machine. So a few runs give only a few independent values, no
//! matter how many regions each run has.

use std::cell::RefCell;
use std::collections::VecDeque;

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Maximum number of runs of both sides for which a p value is exact. The time to compute an exact value
/// doubles with each run.
pub const MAX_EXACT: usize = 24;

/// Number of ways to divide the runs, if there are more than [`MAX_EXACT`] runs: the observed way and random
/// ways.
const RANDOM_WAYS: usize = 200_000;

/// Number of extreme ways after which no more random ways are drawn (Besag and Clifford, 1991). A random way
/// is extreme if its difference is at least as large as the observed difference. The standard error of a p
/// value from so many extreme ways is a tenth of the p value.
const ENOUGH: usize = 100;

/// Maximum number of [`Ways`] that are kept. One [`Ways`] takes some megabytes. Runs of other numbers per
/// side need other [`Ways`].
const MAX_WAYS: usize = 8;

/// Seed of the random ways, so that the same runs have the same verdict.
const SEED: u64 = 0x6879_7065_7274_7263;

/// A difference of two means with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Difference of the means.
    pub mean: f64,
    /// Half of the interval's width: the interval is `mean` plus or minus `half_width`.
    pub half_width: f64,
    /// Degrees of freedom of the interval.
    pub degrees: f64,
}

/// Returns the mean of `b` minus the mean of `a`, with Welch's interval for `confidence` (0.95 for 95 %).
///
/// The interval assumes that means of runs are about normally distributed. The interval does not assume that
/// both sides vary equally. If all values of each side are equal, the interval's width is 0.
///
/// Returns `None` if a side has fewer than two values, if a value is not finite or differs from the others by
/// more than 10^150, or if the confidence is not between 0 and 1.
pub fn welch(a: &[f64], b: &[f64], confidence: f64) -> Option<Difference> {
    let errors = Errors::new(a, b)?;
    let half_width = errors.quantile(0.5 + share(confidence)? / 2.0)? * errors.standard_error;
    Some(Difference { mean: errors.mean, half_width, degrees: errors.degrees })
}

/// Returns the smallest difference of means that a two-sided test at `level` finds with a probability of
/// `power`. The test has as many runs on each side as `a` and `b`, with the same standard deviations. With a
/// level of 0.01 and a power of 0.8, four of five comparisons find the difference at 1 %.
///
/// The smallest difference is (t(1 - level/2) + t(power)) times the standard error by Welch, and 0 if all
/// values of each side are equal. Returns `None` in the cases in which [`welch`] returns `None`, and if
/// `level` or `power` is not between 0 and 1.
pub fn smallest_difference(a: &[f64], b: &[f64], level: f64, power: f64) -> Option<f64> {
    let errors = Errors::new(a, b)?;
    let quantiles = errors.quantile(1.0 - share(level)? / 2.0)? + errors.quantile(share(power)?)?;
    Some(quantiles * errors.standard_error)
}

/// Returns a confidence, a level or a power if its value is between 0 and 1.
fn share(share: f64) -> Option<f64> {
    (share > 0.0 && share < 1.0).then_some(share)
}

/// A difference of means with its standard error.
struct Errors {
    mean: f64,
    standard_error: f64,
    degrees: f64,
}

impl Errors {
    fn new(a: &[f64], b: &[f64]) -> Option<Self> {
        let (mean_a, variance_a) = mean_and_its_variance(a)?;
        let (mean_b, variance_b) = mean_and_its_variance(b)?;
        let (mean, variance) = (mean_b - mean_a, variance_a + variance_b);
        let (freedom_a, freedom_b) = (a.len() as f64 - 1.0, b.len() as f64 - 1.0);
        let share = variance_a / variance;
        let degrees = match variance > 0.0 {
            true => 1.0 / (share.powi(2) / freedom_a + (1.0 - share).powi(2) / freedom_b),
            false => freedom_a + freedom_b,
        };
        let finite = mean.is_finite() && variance.is_finite();
        finite.then(|| Self { mean, standard_error: variance.sqrt(), degrees })
    }

    /// Returns a quantile of Student's t.
    fn quantile(&self, p: f64) -> Option<f64> {
        Some(StudentsT::new(0.0, 1.0, self.degrees).ok()?.inverse_cdf(p))
    }
}

/// Returns the mean of values and the variance of that mean. Equal values have a variance of exactly 0.
fn mean_and_its_variance(values: &[f64]) -> Option<(f64, f64)> {
    let (&first, n) = (values.first()?, values.len() as f64);
    let offset = values.iter().map(|value| value - first).sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - first - offset).powi(2)).sum();
    (values.len() > 1).then_some((first + offset, squares / (n - 1.0) / n))
}

/// Returns the two-sided p value of the difference of two means. Consider all ways to divide the same runs
/// among the two sides: the p value is the share of ways in which the means differ by at least the observed
/// difference.
///
/// The p value is exact for at most 24 runs (12 per side have 2,704,156 ways). For more runs, 199,999 random
/// ways are drawn, and the observed way counts too, so the p value is at least 1/200,000. After 100 random
/// ways whose means differ by at least the observed difference, no more ways are drawn.
///
/// The p value assumes no distribution. With few runs, no p value is low: see [`least_p_value`].
///
/// The p value is 1 if a side has no runs, if all values are equal, or if the values or their sums are not
/// finite.
pub fn permutation(a: &[f64], b: &[f64]) -> f64 {
    let runs = a.len() + b.len();
    // The mean of all values is subtracted first: then the distance of one side's sum from 0 is proportional
    // to the difference of the means. Before that, the first value is subtracted, because differences of
    // values that are near each other have no rounding error.
    let first = a.first().copied().unwrap_or_default();
    let values = || a.iter().chain(b).map(|value| value - first);
    let mean = values().sum::<f64>() / runs as f64;
    let values: Vec<f64> = values().map(|value| value - mean).collect();
    let observed = values[..a.len()].iter().sum::<f64>().abs();
    // A tolerance is needed, because sums of the same values in different orders differ by rounding errors.
    let rounding = values.iter().map(|value| value.abs()).sum::<f64>() * 1e-12;
    if a.is_empty() || b.is_empty() || !rounding.is_finite() || rounding == 0.0 {
        return 1.0;
    }
    match runs <= MAX_EXACT {
        true => exact(&values, a.len(), observed - rounding),
        false => random(&values, a.len(), observed - rounding),
    }
}

/// Among all ways to choose `chosen` of the values, returns the share of ways whose sum is at least
/// `observed` away from 0.
///
/// Each way is a choice from the first half of the values and a choice from the second half, so a list of the
/// sums of each half is enough.
fn exact(values: &[f64], chosen: usize, observed: f64) -> f64 {
    let (first, second) = values.split_at(values.len() / 2);
    let mut second = sums_by_number(second);
    second.iter_mut().for_each(|sums| sums.sort_by(f64::total_cmp));
    let (mut extreme, mut ways) = (0, 0);
    for (number, sums) in sums_by_number(first).iter().enumerate() {
        let Some(others) = chosen.checked_sub(number).and_then(|rest| second.get(rest)) else {
            continue;
        };
        ways += sums.len() * others.len();
        for sum in sums {
            let below = others.partition_point(|other| sum + other <= -observed);
            let above = others.partition_point(|other| sum + other < observed);
            extreme += below + others.len() - above.max(below);
        }
    }
    extreme as f64 / ways as f64
}

/// Returns the sums of all choices of these values, by the number of chosen values.
fn sums_by_number(values: &[f64]) -> Vec<Vec<f64>> {
    let mut by_number = vec![vec![]; values.len() + 1];
    let mut sums = vec![0.0; 1 << values.len()];
    by_number[0].push(0.0);
    for bits in 1..sums.len() {
        sums[bits] = sums[bits & (bits - 1)] + values[bits.trailing_zeros() as usize];
        by_number[bits.count_ones() as usize].push(sums[bits]);
    }
    by_number
}

/// Among random ways to choose `chosen` of the values, returns the share of ways whose sum is at least
/// `observed` away from 0.
fn random(values: &[f64], chosen: usize, observed: f64) -> f64 {
    thread_local! {
        /// Ways that were used last. The ways are kept, because most names of a comparison have the same
        /// numbers of runs.
        static WAYS: RefCell<VecDeque<Ways>> = RefCell::default();
    }
    WAYS.with_borrow_mut(|known| {
        let is_same = |ways: &Ways| (ways.chosen, ways.of) == (chosen, values.len());
        let at = known.iter().position(is_same).unwrap_or_else(|| {
            known.truncate(MAX_WAYS - 1);
            known.push_front(Ways::new(chosen, values.len()));
            0
        });
        let ways = &known[at];
        let mut extreme = 1;
        for (tried, sum) in ways.sums(values).enumerate() {
            extreme += usize::from(sum.abs() >= observed);
            if extreme > ENOUGH {
                return ENOUGH as f64 / (tried + 1) as f64;
            }
        }
        extreme as f64 / RANDOM_WAYS as f64
    })
}

/// Random ways to choose some of the runs.
#[derive(Debug, Default)]
struct Ways {
    chosen: usize,
    of: usize,
    /// Bits of the ways. Each way has whole bytes, with a bit for each run: the bit is set if the way chooses
    /// the run.
    bits: Vec<u8>,
}

impl Ways {
    fn new(chosen: usize, of: usize) -> Self {
        let bytes = of.div_ceil(8);
        let mut bits = vec![0; (RANDOM_WAYS - 1) * bytes];
        let mut random = Rng::with_seed(SEED);
        let mut order: Vec<usize> = (0..of).collect();
        for way in bits.chunks_exact_mut(bytes) {
            for i in 0..chosen {
                order.swap(i, random.usize(i..of));
                way[order[i] / 8] |= 1 << (order[i] % 8);
            }
        }
        Self { chosen, of, bits }
    }

    /// Each way is a choice of some of the values. Returns for each way the sum of the chosen values.
    fn sums(&self, values: &[f64]) -> impl Iterator<Item = f64> {
        // `sums` has a table for each group of eight values. The index in the table is a byte of the way, and
        // each set bit of the byte chooses one of the eight values.
        let sums: Vec<[f64; 256]> = values.chunks(8).map(sums_by_bits).collect();
        let sum = move |way: &[u8]| {
            way.iter().zip(&sums).map(|(&bits, sums)| sums[usize::from(bits)]).sum()
        };
        self.bits.chunks_exact(self.of.div_ceil(8)).map(sum)
    }
}

/// Returns the smallest p value that `a` runs of one side and `b` runs of the other side can have: 2/252 with
/// 5 runs per side, and 2/924 with 6 runs per side.
///
/// With a level of 1 %, one changed name among `n` names can be found only if `n` times this value is at most
/// 0.01 ([`benjamini_hochberg`]). So `n` can be 1 with 5 runs per side, up to 4 with 6 runs, and up to 923
/// with 10 runs.
pub fn least_p_value(a: usize, b: usize) -> f64 {
    // The number of ways is a binomial coefficient.
    let ways = (1..=a.min(b)).fold(1.0, |ways, i| ways * (a + b + 1 - i) as f64 / i as f64);
    // If both sides have the same number of runs, the mirror image of the most extreme way is as extreme.
    let extreme = if a == b && a > 0 { 2.0 } else { 1.0 };
    let least = if a + b <= MAX_EXACT { 0.0 } else { 1.0 / RANDOM_WAYS as f64 };
    (extreme / ways).max(least)
}

/// Returns the sum of each choice of at most eight values. The bits of an index say which values are chosen.
fn sums_by_bits(values: &[f64]) -> [f64; 256] {
    let mut sums = [0.0; 256];
    for bits in 1_usize..1 << values.len() {
        sums[bits] = sums[bits & (bits - 1)] + values[bits.trailing_zeros() as usize];
    }
    sums
}

/// Returns the p values, adjusted for the number of p values (Benjamini and Hochberg). If every name with an
/// adjusted value of at most 0.01 is called different, about 1 % of these names have no difference.
///
/// A value that is not a number counts as 1.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<(usize, f64)> =
        p.iter().map(|p| if p.is_nan() { 1.0 } else { p.clamp(0.0, 1.0) }).enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (mut adjusted, mut least) = (vec![1.0; p.len()], 1.0_f64);
    for (larger, (index, p)) in order.into_iter().enumerate() {
        least = least.min(p * adjusted.len() as f64 / (adjusted.len() - larger) as f64);
        adjusted[index] = least;
    }
    adjusted
}
