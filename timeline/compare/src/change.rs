// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! For each name of regions, the difference between two sides. Each side has several runs.

use crate::run::{Exits, Mean, Region, Run, Typical};
use crate::stats::{
    MAX_EXACT, benjamini_hochberg, least_p_value, permutation, smallest_difference, welch,
};
use hypertrace_timeline::regions::Part;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of runs of a side for a verdict.
pub const LEAST_RUNS: usize = 5;
/// Significance level of verdicts.
pub const LEVEL: f64 = 0.01;
/// Confidence of intervals.
pub const CONFIDENCE: f64 = 0.95;
/// Statistical power for which [`Difference::smallest_ns`] is computed.
pub const POWER: f64 = 0.8;

/// A difference of means over runs: the second side's mean minus the first side's mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Change {
    /// Mean of the first side's runs in nanoseconds.
    pub a_ns: f64,
    /// Mean of the second side's runs in nanoseconds.
    pub b_ns: f64,
    /// Second side's mean minus the first side's mean, in nanoseconds.
    pub difference_ns: f64,
    /// Half of the width of Welch's interval of 95 % in nanoseconds; `None` if a side has one run.
    pub half_width_ns: Option<f64>,
}

impl Change {
    /// Returns the difference between the means of these runs.
    pub fn of(a: &[f64], b: &[f64]) -> Change {
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
        let (a_ns, b_ns) = (mean(a), mean(b));
        let half_width_ns = welch(a, b, CONFIDENCE).map(|welch| welch.half_width);
        Change { a_ns, b_ns, difference_ns: b_ns - a_ns, half_width_ns }
    }

    /// Returns whether the interval excludes 0.
    pub fn has_moved(&self) -> bool {
        self.half_width_ns.is_some_and(|half| self.difference_ns.abs() > half)
    }

    /// Returns the difference as a part of the first side's mean.
    pub fn relative(&self) -> Option<f64> {
        (self.a_ns > 0.0).then(|| self.difference_ns / self.a_ns)
    }
}

/// What the runs say about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second side is faster.
    Faster,
    /// The second side is slower.
    Slower,
    /// These runs show no difference.
    NoDifferenceSeen,
    /// There are too few runs for a verdict on so many names: see [`runs_needed`].
    NoVerdict,
}

/// A difference with its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// Difference of the means.
    #[serde(flatten)]
    pub change: Change,
    /// Verdict at [`LEVEL`].
    pub verdict: Verdict,
    /// Two-sided p value by permutation of runs; `None` if a side has too few runs for a verdict.
    pub p: Option<f64>,
    /// The p value, adjusted for the number of names.
    pub p_adjusted: Option<f64>,
}

/// The regions with one name, on both sides.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Name of the regions. Guests choose the names, so a program has to escape a name before it shows the
    /// name.
    pub name: String,
    /// Whether the regions are of a program of the host.
    pub is_program: bool,
    /// Number of runs on each side that have such regions.
    pub runs: [usize; 2],
    /// Number of regions on each side.
    pub regions: [u64; 2],
    /// Number of regions on each side that could not be counted.
    pub not_counted: [u64; 2],
    /// Typical mean: the mean of regions from the 5th to the 75th percentile of each run.
    pub typical: Judged,
    /// Part of the typical mean during which threads had a CPU.
    pub own: Judged,
    /// Part of the typical mean during which threads waited.
    pub waits: Judged,
    /// Smallest difference of the typical mean that these runs would show with a power of 80 %, in
    /// nanoseconds. This figure assumes that no other name has changed.
    pub smallest_ns: Option<f64>,
    /// Typical mean by part. The differences add up to the difference of the typical mean.
    #[serde(serialize_with = "objects")]
    pub parts: Vec<(Part, Change)>,
    /// Parts of the typical mean: a part for each name of inner regions, and `self` for the time outside of
    /// all inner regions. These differences also add up to the difference of the typical mean.
    #[serde(serialize_with = "objects")]
    pub children: Vec<(String, Change)>,
    /// For each reason of exits, the part of the typical mean that these exits took. Over all reasons, the
    /// times in the kernel add up to the part *kernel*, and the times in the VMM add up to the part *VMM*.
    #[serde(serialize_with = "objects")]
    pub exits: Vec<(String, ExitChange)>,
    /// For each cause of waits, the part of the typical mean during which threads waited.
    #[serde(serialize_with = "objects")]
    pub causes: Vec<(String, Change)>,
    /// Difference of the means of all regions.
    pub all: Change,
    /// Difference of the 99th percentiles of the durations.
    pub p99: Change,
    /// For the slowest 1 % of the regions: difference between the means of the two sides, for each part.
    #[serde(serialize_with = "objects")]
    pub slowest: Vec<(Part, Change)>,
    /// Percentiles of the durations from 0 to 100, for each side, in nanoseconds. Each percentile is the mean
    /// over the side's runs.
    pub percentiles_ns: [Vec<f64>; 2],
    /// Typical mean of each run, by side, in nanoseconds.
    pub points_ns: [Vec<f64>; 2],
}

/// Differences of the time that exits for one reason take. An exit takes the time until the guest runs again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ExitChange {
    /// Difference of the time in the kernel for these exits.
    #[serde(flatten)]
    pub kernel: Change,
    /// Difference of the time in the VMM for these exits.
    pub vmm: Change,
    /// Difference of the time in which the thread waited during these exits.
    pub waits: Change,
}

impl Difference {
    /// Returns the time of exits by part and reason, the largest differences first.
    pub fn exits_by_part(&self) -> Vec<(&'static str, &str, Change)> {
        let exits = self.exits.iter().flat_map(|(name, exits)| {
            let (kernel, vmm) = (Part::Kernel.label(), Part::Vmm.label());
            let all = [(kernel, exits.kernel), (vmm, exits.vmm), ("waits", exits.waits)];
            all.map(|(part, change)| (part, name.as_str(), change))
        });
        let mut all: Vec<_> = exits.collect();
        all.retain(|(.., change)| change.a_ns + change.b_ns > 0.0);
        all.sort_by(|(.., a), (.., b)| b.difference_ns.abs().total_cmp(&a.difference_ns.abs()));
        all
    }
}

/// Writes each change as an object with a member `name`.
fn objects<N: Serialize, C: Serialize, S: Serializer>(
    all: &[(N, C)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Object<'a, N, C> {
        name: &'a N,
        #[serde(flatten)]
        change: &'a C,
    }
    serializer.collect_seq(all.iter().map(|(name, change)| Object { name, change }))
}

/// A comparison of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Differences by name.
    pub differences: Vec<Difference>,
    /// Names that only the first side has, and names that only the second side has.
    pub only: [Vec<String>; 2],
}

impl Comparison {
    /// Compares the runs of two sides.
    pub fn of(a: &[&Run], b: &[&Run]) -> Comparison {
        let (of_a, of_b) = (names(a), names(b));
        let only = [of_a.difference(&of_b), of_b.difference(&of_a)]
            .map(|names| names.map(|name| (*name).to_owned()).collect());
        let common: Vec<&str> = of_a.intersection(&of_b).copied().collect();
        let mut differences: Vec<Difference> =
            common.iter().map(|name| difference(name, [a, b], common.len())).collect();
        judge(&mut differences, |difference| &mut difference.typical);
        judge(&mut differences, |difference| &mut difference.own);
        judge(&mut differences, |difference| &mut difference.waits);
        Comparison { differences, only }
    }
}

/// Returns the number of runs per side that a comparison of `names` names needs to find one changed name;
/// `None` if there are too many names.
pub fn runs_needed(names: usize) -> Option<usize> {
    // The search ends at `MAX_EXACT` runs of both sides together, because more runs do not make the smallest
    // possible p value smaller.
    (LEAST_RUNS..=MAX_EXACT / 2).find(|runs| can_show([*runs; 2], names))
}

/// Returns whether `a` and `b` runs can show that one of `names` names has changed.
fn can_show([a, b]: [usize; 2], names: usize) -> bool {
    least_p_value(a, b) * names as f64 <= LEVEL
}

/// Gives verdicts, with p values adjusted for the number of names.
fn judge(differences: &mut [Difference], judged: impl Fn(&mut Difference) -> &mut Judged) {
    let known: Vec<f64> = differences.iter_mut().filter_map(|d| judged(d).p).collect();
    let mut adjusted = benjamini_hochberg(&known).into_iter();
    let names = differences.len();
    for difference in differences {
        let runs = difference.runs;
        let judged = judged(difference);
        if judged.p.is_none() {
            continue;
        }
        judged.p_adjusted = adjusted.next();
        judged.verdict = match judged.p_adjusted {
            Some(p) if p < LEVEL && judged.change.difference_ns > 0.0 => Verdict::Slower,
            Some(p) if p < LEVEL && judged.change.difference_ns < 0.0 => Verdict::Faster,
            _ if can_show(runs, names) => Verdict::NoDifferenceSeen,
            _ => Verdict::NoVerdict,
        };
    }
}

/// Returns the names of all regions that at least one of these runs counted.
fn names<'a>(runs: &[&'a Run]) -> BTreeSet<&'a str> {
    let counted = runs.iter().flat_map(|run| &run.regions).filter(|(_, region)| region.count > 0);
    counted.map(|(name, _)| &**name).collect()
}

fn difference(name: &str, sides: [&[&Run]; 2], names: usize) -> Difference {
    let regions = sides.map(|runs| -> Vec<&Region> {
        let known = runs.iter().filter_map(|run| run.regions.get(name));
        known.map(|region| &**region).filter(|region| region.count > 0).collect()
    });
    let values = |of: &dyn Fn(&Region) -> f64| {
        let [a, b] = &regions;
        [a, b].map(|side| side.iter().map(|region| of(region)).collect::<Vec<f64>>())
    };
    let change = |of: &dyn Fn(&Region) -> f64| {
        let [a, b] = values(of);
        Change::of(&a, &b)
    };
    let runs = [regions[0].len(), regions[1].len()];
    let is_judged = runs.iter().all(|runs| *runs >= LEAST_RUNS);
    let judged = |of: &dyn Fn(&Region) -> f64| {
        let [a, b] = values(of);
        let p = is_judged.then(|| permutation(&a, &b));
        Judged { change: Change::of(&a, &b), verdict: Verdict::NoVerdict, p, p_adjusted: None }
    };
    let is_program = regions.iter().flatten().any(|region| region.is_program);
    let parts = |mean: fn(&Region) -> &Mean| {
        let part = |part: Part| (part, change(&|region| mean(region).parts_ns[part as usize]));
        Vec::from(Part::ALL.map(part))
    };
    let named = |of: &dyn Fn(&Typical) -> BTreeMap<&str, f64>| {
        let all = regions.each_ref().map(|side| {
            side.iter().map(|region| of(&region.typical)).collect::<Vec<BTreeMap<&str, f64>>>()
        });
        let names: BTreeSet<&str> =
            all.iter().flatten().flat_map(BTreeMap::keys).copied().collect();
        let one = |name: &str| {
            let [a, b] = all.each_ref().map(|side| {
                side.iter()
                    .map(|of_run| of_run.get(name).copied().unwrap_or(0.0))
                    .collect::<Vec<f64>>()
            });
            (name.to_owned(), Change::of(&a, &b))
        };
        let mut changes: Vec<(String, Change)> = names.into_iter().map(one).collect();
        changes.sort_by(|(_, a), (_, b)| b.difference_ns.abs().total_cmp(&a.difference_ns.abs()));
        changes
    };
    let [a, b] = values(&|region| region.typical.mean.duration_ns());
    let mut children =
        named(&|typical| typical.children.iter().map(|(name, (_, ns))| (name, *ns)).collect());
    if !children.is_empty() {
        children.insert(0, ("self".into(), change(&|region| region.typical.self_ns())));
    }
    let of_exits = |of: fn(&Exits) -> f64| {
        named(&|typical| typical.exits.iter().map(|(name, exits)| (name, of(exits))).collect())
    };
    let vmm = of_exits(|exits| exits.vmm_ns);
    let waits = of_exits(|exits| exits.waits_ns);
    let one = |(name, kernel): (String, Change)| {
        let find = |all: &[(String, Change)]| {
            all.iter().find(|(known, _)| *known == name).map_or_else(Change::default, |(_, c)| *c)
        };
        let exits = ExitChange { kernel, vmm: find(&vmm), waits: find(&waits) };
        (name, exits)
    };
    let mut exits: Vec<_> = of_exits(|exits| exits.kernel_ns).into_iter().map(one).collect();
    let most = |e: &ExitChange| e.kernel.difference_ns.abs().max(e.vmm.difference_ns.abs());
    exits.sort_by(|(_, a), (_, b)| most(b).total_cmp(&most(a)));
    let percentiles_ns = regions.each_ref().map(|side| {
        let len = side.iter().map(|region| region.percentiles_ns.iter().count()).min();
        let mut means = vec![0.0; len.unwrap_or(0)];
        for region in side {
            let percentiles = region.percentiles_ns.iter();
            means.iter_mut().zip(percentiles).for_each(|(sum, ns)| *sum += ns as f64);
        }
        means.iter_mut().for_each(|mean| *mean /= side.len().max(1) as f64);
        means
    });
    let count = |of: fn(&Region) -> u64| {
        let all = |side: &Vec<&Region>| {
            side.iter().fold(0, |sum: u64, region| sum.saturating_add(of(region)))
        };
        regions.each_ref().map(all)
    };
    Difference {
        name: name.to_owned(),
        is_program,
        runs,
        regions: count(|region| region.count),
        not_counted: count(|region| region.not_counted),
        typical: judged(&|region| region.typical.mean.duration_ns()),
        own: judged(&|region| region.typical.mean.own_ns()),
        waits: judged(&|region| region.typical.mean.waits_ns()),
        smallest_ns: smallest_difference(&a, &b, LEVEL / names.max(1) as f64, POWER),
        parts: parts(|region| &region.typical.mean),
        children,
        exits,
        causes: named(&|typical| typical.waits.iter().map(|(name, ns)| (name, *ns)).collect()),
        all: change(&|region| region.all.duration_ns()),
        p99: change(&|region| region.percentiles_ns.get(99).map_or(0.0, |ns| ns as f64)),
        slowest: parts(|region| &region.slowest),
        percentiles_ns,
        points_ns: [a, b],
    }
}
