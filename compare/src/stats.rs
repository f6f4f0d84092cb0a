// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Statistics of two sets of runs, one value a run.
//!
//! The run is the unit. Regions of one run share its memory layout, its CPU frequency and its neighbours, so many regions
//! in few runs are few independent values.

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Most ways to divide the runs for which a p value is exact. With more, so many random ones are drawn.
const MOST_WAYS: usize = 200_000;

/// Random ways at least as extreme as what was observed, after which no more are drawn (Besag and Clifford, 1991). The
/// standard error of such a p value is a tenth of it.
const ENOUGH: usize = 100;

/// Seed of the random ways, so that the same runs have the same verdict.
const SEED: u64 = 0x6879_7065_7274_7263;

/// A difference of two means with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The difference.
    pub mean: f64,
    /// Half of the interval's width: the interval is `mean` plus or minus this.
    pub half_width: f64,
    /// Degrees of freedom of the interval.
    pub degrees: f64,
}

/// Returns the mean of `b` less that of `a`, with Welch's interval of this confidence (0.95 for 95 %).
///
/// The interval assumes that means of runs are about normal, not that both sides vary by as much. If all values of each
/// side are equal, its width is 0.
///
/// Returns `None` if a side has less than two values, if a value is not finite or differs from the others by more than
/// 10^150, or if the confidence is not between 0 and 1.
pub fn welch(a: &[f64], b: &[f64], confidence: f64) -> Option<Difference> {
    let errors = Errors::new(a, b)?;
    let half_width = errors.quantile(0.5 + share(confidence)? / 2.0)? * errors.standard_error;
    Some(Difference { mean: errors.mean, half_width, degrees: errors.degrees })
}

/// Returns the smallest difference of means that runs as many and as scattered as these show with this power, if the
/// test is two-sided at this level: 0.01 and 0.8 for a difference that is found at 1 % in four of five comparisons.
///
/// It is (t(1 - level/2) + t(power)) times the standard error by Welch, 0 if all values of each side are equal. `None` as
/// for [`welch`].
pub fn smallest_difference(a: &[f64], b: &[f64], level: f64, power: f64) -> Option<f64> {
    let errors = Errors::new(a, b)?;
    let quantiles = errors.quantile(1.0 - share(level)? / 2.0)? + errors.quantile(share(power)?)?;
    Some(quantiles * errors.standard_error)
}

/// Returns a confidence, level or power that is one.
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

/// Returns the mean of values and its variance. Equal values have a variance of exactly 0.
fn mean_and_its_variance(values: &[f64]) -> Option<(f64, f64)> {
    let (&first, n) = (values.first()?, values.len() as f64);
    let offset = values.iter().map(|value| value - first).sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - first - offset).powi(2)).sum();
    (values.len() > 1).then_some((first + offset, squares / (n - 1.0) / n))
}

/// Returns the two-sided p value of a difference of means, as [`Permutations::p_value`] does.
pub fn permutation(a: &[f64], b: &[f64]) -> f64 {
    Permutations::default().p_value(a, b)
}

/// The ways to divide runs among two sides.
///
/// They are kept for the next p value of as many runs, so one of these serves all names of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Permutations {
    /// Runs of side a.
    a: usize,
    /// Runs of both sides.
    runs: usize,
    /// A bit for each run of each way, set in those that are in side a; whole bytes a way.
    ways: Vec<u8>,
    /// Whether these are all ways, or half of them and the others are their mirror images.
    all: bool,
}

impl Permutations {
    /// Returns the two-sided p value of the difference of two means: the share of the ways to divide the same runs among
    /// the sides in which the means differ by as much or more.
    ///
    /// It is exact while there are at most 200,000 ways (10 runs a side have 184,756). With more, 199,999 random ones
    /// are drawn, and the runs as they are count as another, so it is 1/200,000 at least; once 100 of them differ by
    /// as much or more, no more are drawn.
    ///
    /// It assumes no distribution. Few runs cannot reach a low level: see [`least_p_value`].
    ///
    /// It is 1 if a side has no runs, if all values are equal, and if values are not finite or so large that their sum
    /// is not.
    pub fn p_value(&mut self, a: &[f64], b: &[f64]) -> f64 {
        let runs = a.len() + b.len();
        // Of numbers around 0, each side's sum is as far from 0 as the means are from each other. Values are near to each
        // other, so their differences lose nothing.
        let first = a.first().copied().unwrap_or_default();
        let values = || a.iter().chain(b).map(|value| value - first);
        let mean = values().sum::<f64>() / runs as f64;
        let values: Vec<f64> = values().map(|value| value - mean).collect();
        let observed = values[..a.len()].iter().sum::<f64>().abs();
        // Sums of the same values in another order differ by rounding.
        let rounding = values.iter().map(|value| value.abs()).sum::<f64>() * 1e-12;
        if a.is_empty() || b.is_empty() || !rounding.is_finite() || rounding == 0.0 {
            return 1.0;
        }
        if (self.a, self.runs) != (a.len(), runs) {
            *self = Self::new(a.len(), runs);
        }
        // The sums of each eight runs, for each byte.
        let sums: Vec<[f64; 256]> = values.chunks(8).map(sums_by_bits).collect();
        let mut extreme = 0;
        for (tried, way) in self.ways.chunks_exact(sums.len()).enumerate() {
            let sum: f64 = way.iter().zip(&sums).map(|(&bits, sums)| sums[usize::from(bits)]).sum();
            extreme += usize::from(sum.abs() >= observed - rounding);
            if !self.all && extreme == ENOUGH {
                return ENOUGH as f64 / (tried + 1) as f64;
            }
        }
        let ways = self.ways.len() / sums.len();
        match self.all {
            true => extreme as f64 / ways as f64,
            false => (extreme + 1) as f64 / (ways + 1) as f64,
        }
    }

    fn new(a: usize, runs: usize) -> Self {
        let bytes = runs.div_ceil(8);
        let all = ways(a, runs).is_some();
        let mut ways = Vec::new();
        let mut add = |side: &[usize]| {
            let start = ways.len();
            ways.resize(start + bytes, 0);
            side.iter().for_each(|run| ways[start + run / 8] |= 1 << (run % 8));
        };
        let mut order: Vec<usize> = (0..runs).collect();
        if all {
            let mut side = order[..a].to_vec();
            add(&side);
            // Of sides of as many runs, each way has a mirror image that is as extreme: the first run stays in side a.
            let first = usize::from(2 * a == runs);
            // The next combination: the last run that can move does, and those behind it follow.
            while let Some(last) = (first..a).rev().find(|&i| side[i] < runs - a + i) {
                let moved = side[last] + 1;
                (last..a).for_each(|i| side[i] = moved + i - last);
                add(&side);
            }
        } else {
            let mut random = Rng::with_seed(SEED);
            for _ in 1..MOST_WAYS {
                (0..a).for_each(|i| order.swap(i, random.usize(i..runs)));
                add(&order[..a]);
            }
        }
        Self { a, runs, ways, all }
    }
}

/// Returns the smallest p value of a difference that so many runs can have: 2/252 with 5 a side, 2/924 with 6.
///
/// One changed name of `n` is only found at a level of 1 % if `n` times this is at most 0.01
/// ([`benjamini_hochberg`]): with 5 runs a side it has to be the only name, with 6 one of at most 4, with 10 one of 923.
pub fn least_p_value(a: usize, b: usize) -> f64 {
    let ways = ways(a, a + b).unwrap_or(MOST_WAYS);
    // Of sides of as many runs, the mirror image of the most extreme way is as extreme.
    let extreme = if a == b && a > 0 && ways < MOST_WAYS { 2.0 } else { 1.0 };
    extreme / ways as f64
}

/// Returns the number of ways to choose `a` of `runs`, if an exact p value may try them all.
fn ways(a: usize, runs: usize) -> Option<usize> {
    (0..a.min(runs - a)).try_fold(1, |ways, i| {
        // Exact: `i + 1` numbers in a row have a multiple of `i + 1` among them.
        Some(ways * (runs - i) / (i + 1)).filter(|&ways| ways <= MOST_WAYS)
    })
}

/// Returns the sum of each choice of at most eight values, whose bits are the index.
fn sums_by_bits(values: &[f64]) -> [f64; 256] {
    let mut sums = [0.0; 256];
    for bits in 1_usize..1 << values.len() {
        let lowest = bits.trailing_zeros() as usize;
        sums[bits] = sums[bits & (bits - 1)] + values[lowest];
    }
    sums
}

/// Returns p values adjusted for their number (Benjamini and Hochberg): if those that are at most 0.01 are called
/// differences, about 1 % of the called ones are none.
///
/// What is not a number counts as 1.
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
