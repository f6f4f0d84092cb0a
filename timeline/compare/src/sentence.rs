// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The answer in words.

use crate::change::{Change, Comparison, Difference, Judged, Verdict, runs_needed};
use hypertrace_timeline::regions::Part;
use serde::Serialize;

/// Size of a small difference, as a share of the first side's time. The answer says how many runs would show
/// a difference of this size.
const SMALL: f64 = 0.05;
/// Maximum number of runs per side that the answer suggests.
const MAX_RUNS: f64 = 500.0;

/// A comparison with its answer in words: what `hypertrace compare --json` prints.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Answer<'a> {
    /// Sentences of the answer: see [`sentences`].
    pub answer: Vec<String>,
    /// Notes about the runs: see [`Checks::notes`](crate::Checks::notes).
    pub notes: &'a [String],
    /// Comparison to which the answer belongs.
    #[serde(flatten)]
    pub comparison: &'a Comparison,
}

impl<'a> Answer<'a> {
    /// Returns the answer of a comparison of runs with these notes.
    pub fn of(comparison: &'a Comparison, notes: &'a [String]) -> Answer<'a> {
        Answer { answer: sentences(comparison), notes, comparison }
    }
}

/// Unit in which times are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Name of the unit.
    pub name: &'static str,
    /// Number of nanoseconds in the unit.
    pub ns: f64,
    /// Number of digits after the point.
    pub digits: usize,
}

impl Unit {
    /// Returns the unit in which a time has one to four digits before the point.
    pub fn of(ns: f64) -> Unit {
        let (name, per, digits) = match ns.abs() {
            ns if ns < 1e3 => ("ns", 1.0, 1),
            ns if ns < 1e6 => ("us", 1e3, 2),
            ns if ns < 1e9 => ("ms", 1e6, 3),
            _ => ("s", 1e9, 4),
        };
        Unit { name, ns: per, digits }
    }

    /// Returns the unit for a change, given the longer of the two times, or the difference. A time in this
    /// unit has no more digits than are needed to show two significant digits of the interval's half width,
    /// because further digits would be noise.
    ///
    /// ```
    /// use hypertrace_compare::Unit;
    ///
    /// assert_eq!(Unit::of_change(798.6, Some(0.4)).plain(798.6), "798.6");
    /// assert_eq!(Unit::of_change(798.6, Some(83.1)).plain(798.6), "799");
    /// assert_eq!(Unit::of_change(8_406.0, Some(83.1)).plain(8_406.0), "8.41");
    /// assert_eq!(Unit::of_change(8_406.0, Some(8_300.0)).plain(8_406.0), "8.4");
    /// ```
    pub fn of_change(larger_ns: f64, half_width_ns: Option<f64>) -> Unit {
        let unit = Unit::of(larger_ns);
        let told =
            half_width_ns.filter(|ns| *ns > 0.0).map(|ns| 1.0 - (ns / unit.ns).log10().floor());
        let digits = told.map_or(unit.digits, |told| unit.digits.min(told.max(0.0) as usize));
        Unit { digits, ..unit }
    }

    /// Formats a time without the unit.
    pub fn plain(self, ns: f64) -> String {
        format!("{:.*}", self.digits, ns / self.ns)
    }

    /// Formats a difference with its sign, without the unit.
    pub fn signed(self, ns: f64) -> String {
        signed(ns / self.ns, self.digits)
    }

    /// Rounds times so that they add up to their rounded sum.
    pub fn rounded(self, all: &[f64]) -> Vec<f64> {
        let step = self.ns / 10f64.powi(self.digits as i32);
        let (mut sum, mut shared) = (0.0, 0.0);
        let one = |ns: &f64| {
            sum += ns;
            let part = (sum / step).round() * step - shared;
            shared += part;
            part
        };
        all.iter().map(one).collect()
    }
}

/// Formats a number with its sign, unless the number is shown as 0.
pub fn signed(number: f64, digits: usize) -> String {
    let text = format!("{number:+.digits$}");
    let is_zero = text.bytes().all(|c| matches!(c, b'+' | b'-' | b'0' | b'.'));
    if is_zero { text[1..].into() } else { text }
}

/// Returns a sentence for each name whose duration has a difference. A name also gets a sentence if only its
/// time on a CPU has a difference. The first name is the name with the largest difference outside of its
/// inner regions. If no name has a difference, returns sentences that say so.
pub fn sentences(comparison: &Comparison) -> Vec<String> {
    let differences = || comparison.differences.iter();
    let mut changed: Vec<&Difference> = differences().filter(|d| is_proven(&d.typical)).collect();
    changed.sort_by(|a, b| own_change(b).total_cmp(&own_change(a)));
    let is_of_cpu = |d: &&Difference| !is_proven(&d.typical) && is_proven(&d.own);
    let of_cpu = differences().filter(is_of_cpu).map(of_cpu);
    if !changed.is_empty() {
        return changed.into_iter().map(changed_sentence).chain(of_cpu).collect();
    }
    if differences().any(|d| d.typical.verdict == Verdict::NoVerdict) {
        let [a, b] = differences()
            .fold([usize::MAX; 2], |least, d| [least[0].min(d.runs[0]), least[1].min(d.runs[1])]);
        let names = comparison.differences.len();
        let of = if names == 1 { String::new() } else { format!(" of {names} names") };
        let needed = match runs_needed(names) {
            Some(runs) => format!("{runs} a side are needed"),
            None => "no number of runs is enough: compare fewer names".into(),
        };
        return vec![format!("no verdict: the sides have {a} and {b} runs{of}, and {needed}")];
    }
    let mut longest: Vec<&Difference> = differences().collect();
    longest.sort_by(|a, b| b.typical.change.a_ns.total_cmp(&a.typical.change.a_ns));
    longest.into_iter().map(|d| if is_of_cpu(&d) { self::of_cpu(d) } else { unseen(d) }).collect()
}

/// Returns whether runs prove a difference.
fn is_proven(judged: &Judged) -> bool {
    matches!(judged.verdict, Verdict::Faster | Verdict::Slower)
}

/// Returns the sentence of a name whose time on a CPU has a difference, and whose duration has no difference.
fn of_cpu(d: &Difference) -> String {
    let change = d.own.change;
    let longer = if d.own.verdict == Verdict::Slower { "longer" } else { "shorter" };
    let percent = percent(&change);
    let why = match d.waits.change.half_width_ns > change.half_width_ns {
        true => ", because waits vary more",
        false => "",
    };
    format!(
        "{}: its time on a CPU is {percent}{longer} ({}); its duration shows no difference{why}",
        d.name,
        of_interval(&change)
    )
}

/// Returns the sentence of a name without a difference. The sentence says how large a difference must be for
/// these runs to show the difference, and how many runs would show a small difference. The sentence also has
/// the means and tails that changed by more than their intervals.
fn unseen(d: &Difference) -> String {
    let mut text = format!("{}: no difference seen", d.name);
    if let Some(ns) = d.smallest_ns {
        let unit = Unit::of_change(ns, Some(ns));
        text.push_str(&format!(
            "; these runs would show a difference of {} {}",
            unit.plain(ns),
            unit.name
        ));
        let a_ns = d.typical.change.a_ns;
        if a_ns > 0.0 {
            let part = ns / a_ns;
            text.push_str(&format!(" ({:.1} %)", part * 100.0));
            // The smallest difference falls with the square root of the number of runs.
            let runs = (d.runs[0].min(d.runs[1]) as f64 * (part / SMALL).powi(2)).ceil();
            if part > SMALL && runs <= MAX_RUNS {
                text.push_str(&format!(", some {runs} runs a side one of {:.0} %", SMALL * 100.0));
            }
        }
    }
    for (name, change) in [("mean of all", &d.all), ("p99", &d.p99)] {
        if change.has_moved() {
            text.push_str(&format!("; {name} {}, without a verdict", of_interval(change)));
        }
    }
    text
}

/// Formats a difference as a percentage of the first side's time, with a space behind the percentage; returns
/// nothing if the first side's time is 0.
fn percent(change: &Change) -> String {
    change.relative().map_or(String::new(), |part| format!("{:.1} % ", part.abs() * 100.0))
}

/// Formats a difference with its interval and unit.
fn of_interval(change: &Change) -> String {
    let unit = Unit::of_change(change.difference_ns, change.half_width_ns);
    let width = change.half_width_ns.map_or(String::new(), |ns| format!(" +- {}", unit.plain(ns)));
    format!("{}{width} {}", unit.signed(change.difference_ns), unit.name)
}

/// Returns the absolute difference of a region's own time, which is the time outside of all inner regions.
fn own_change(difference: &Difference) -> f64 {
    let own = difference.children.first().filter(|(name, _)| name == "self");
    own.map_or(difference.typical.change, |(_, change)| *change).difference_ns.abs()
}

fn changed_sentence(d: &Difference) -> String {
    let Change { difference_ns, half_width_ns, .. } = d.typical.change;
    let unit = Unit::of_change(difference_ns, half_width_ns);
    let word = if d.typical.verdict == Verdict::Slower { "slower" } else { "faster" };
    let percent = percent(&d.typical.change);
    let mut text = format!("{} is {percent}{word} ({}", d.name, of_interval(&d.typical.change));
    let is_most = |change: &Change| {
        change.has_moved()
            && change.difference_ns.signum() == difference_ns.signum()
            && change.difference_ns.abs() >= 0.8 * difference_ns.abs()
    };
    if let Some((name, change)) = d.children.iter().skip(1).find(|(_, change)| is_most(change)) {
        text.push_str(&format!("; {} in {name}", unit.signed(change.difference_ns)));
    }
    text.push(')');
    let changes: Vec<f64> = d.parts.iter().map(|(_, change)| change.difference_ns).collect();
    let shown = unit.rounded(&changes);
    // The list has each part that moved. The list also has each part with a large change, even if the change
    // may be noise, so that the listed changes add up to about the whole difference.
    let is_listed = |change: &Change, shown: f64| {
        change.has_moved() && shown != 0.0 || shown.abs() >= 0.1 * difference_ns.abs()
    };
    let mut listed: Vec<(Part, f64, &Change)> = d
        .parts
        .iter()
        .zip(shown)
        .map(|((part, change), shown)| (*part, shown, change))
        .filter(|(_, shown, change)| is_listed(change, *shown))
        .collect();
    listed.sort_by(|(_, a, _), (_, b, _)| b.abs().total_cmp(&a.abs()));
    let one = |(part, shown, change): &(Part, f64, &Change)| {
        let width = change.half_width_ns.filter(|_| !change.has_moved());
        let width = width.map_or(String::new(), |ns| format!(" +- {}", unit.plain(ns)));
        let because = because(d, *part, unit);
        match part {
            Part::Stolen => {
                format!("{}{width} in time that host threads took{because}", unit.signed(*shown))
            }
            part => format!("{} {}{width}{because}", part.label(), unit.signed(*shown)),
        }
    };
    text.push_str(&format!(": {}", listed.iter().map(one).collect::<Vec<_>>().join(", ")));
    if listed.len() < d.parts.iter().filter(|(_, c)| c.a_ns + c.b_ns > 0.0).count() {
        text.push_str("; the rest did not move");
    }
    let is_of_others = |(part, change): &(Part, Change)| {
        matches!(part, Part::Stolen | Part::Behind | Part::Runnable) && is_most(change)
    };
    if d.own.verdict == Verdict::NoDifferenceSeen && d.parts.iter().any(is_of_others) {
        let how = if word == "slower" { "longer" } else { "a shorter time" };
        text.push_str(&format!(
            ". Other threads had the CPU for {how}. The code may still be the cause: such a thread may do \
             the code's work, as a kworker that writes its data does"
        ));
    }
    text
}

/// Returns a text with the exit or the cause that explains most of a part's difference.
fn because(d: &Difference, part: Part, unit: Unit) -> String {
    let of_part = d.parts.iter().find(|(of, _)| *of == part).map(|(_, change)| *change);
    let total = of_part.unwrap_or_default().difference_ns;
    let prefix = format!("{} by ", part.key());
    let causes = d.causes.iter().filter_map(|(name, c)| Some((name.strip_prefix(&prefix)?, *c)));
    let exits = d
        .exits_by_part()
        .into_iter()
        .filter(|(of, name, _)| *of == part.label() && *name != "other");
    let exits = exits.map(|(_, name, change)| (name, change));
    let found = causes.chain(exits).find(|(_, change)| {
        change.has_moved()
            && change.difference_ns.signum() == total.signum()
            && change.difference_ns.abs() >= 0.5 * total.abs()
    });
    found.map_or(String::new(), |(name, change)| {
        let by = if matches!(part, Part::Kernel | Part::Vmm) { "exits" } else { "by" };
        format!(" ({by} {name} {})", unit.signed(change.difference_ns))
    })
}
