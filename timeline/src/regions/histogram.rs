// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Histograms of durations.

use serde::Serialize;

/// A histogram of durations in nanoseconds. The steps go from 1 to 2, from 2 to 5, from 5 to 10, from 10 to
/// 20 and so on.
///
/// ```
/// use hypertrace_timeline::regions::{Histogram, Step};
///
/// let histogram = Histogram::of(&[7, 12, 15]);
/// let steps = [Step { from: 5, to: 10, count: 1 }, Step { from: 10, to: 20, count: 2 }];
/// assert_eq!((histogram.steps(), histogram.most()), (&steps[..], 2));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(transparent)]
pub struct Histogram {
    steps: Vec<Step>,
}

/// A step of a [`Histogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Step {
    /// Least duration of the step in nanoseconds.
    #[serde(rename = "from_ns")]
    pub from: u64,
    /// Least duration of the next step in nanoseconds; for the last possible step, the largest duration.
    #[serde(rename = "to_ns")]
    pub to: u64,
    /// Number of durations.
    pub count: u64,
}

impl Histogram {
    /// Counts durations, which are in ascending order.
    pub fn of(durations: &[u64]) -> Histogram {
        let mut steps = Vec::new();
        let (mut from, mut at) = (0, 0);
        let powers = (0..20).map(|power| 10u64.pow(power));
        for to in powers.flat_map(|power| [1, 2, 5].map(|n| power.saturating_mul(n))) {
            let is_below = |duration: &u64| *duration < to || to == u64::MAX;
            let end = at + durations[at..].partition_point(is_below);
            if end > at || !steps.is_empty() {
                steps.push(Step { from, to, count: (end - at) as u64 });
            }
            (from, at) = (to, end);
            if at == durations.len() {
                break;
            }
        }
        Histogram { steps }
    }

    /// Returns the steps from the step of the shortest duration to the step of the longest duration. Each
    /// step begins where the previous step ends.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the largest number of durations in one step; 0 if there are no durations.
    pub fn most(&self) -> u64 {
        self.steps.iter().map(|step| step.count).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_all_durations() {
        let histogram = Histogram::of(&[0, 1, 9, 10, 49, 50, 2_000]);

        let steps = histogram.steps();
        assert_eq!(steps[0], Step { from: 0, to: 1, count: 1 });
        assert_eq!(steps.last(), Some(&Step { from: 2_000, to: 5_000, count: 1 }));
        assert_eq!(steps.iter().map(|step| step.count).sum::<u64>(), 7);
        assert!(steps.windows(2).all(|pair| pair[0].to == pair[1].from));
    }

    #[test]
    fn the_longest_durations_have_a_step() {
        let last = Histogram::of(&[u64::MAX - 1, u64::MAX]).steps().last().copied();
        assert_eq!(last, Some(Step { from: 10_u64.pow(19), to: u64::MAX, count: 2 }));
    }

    #[test]
    fn no_durations_have_no_steps() {
        assert_eq!(Histogram::of(&[]), Histogram::default());
        assert_eq!(Histogram::default().most(), 0);
    }
}
