//! The table of all groups. Each group has a line of 80 columns.

use super::rows::Shown;
use super::text::{short_count, shortened, time};
use hypertrace_timeline::regions::Group;
use std::cmp::Reverse;
use std::fmt::Write as _;

/// Width of the table in columns.
const WIDTH: usize = 80;
/// Width of a name in columns. A longer name has a line of its own.
const NAME: usize = 18;

/// What groups are sorted by: names upwards, and numbers downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    Name,
    Count,
    Median,
    P99,
    Total,
    /// Time outside of the regions inside
    #[value(name = "self")]
    Own,
}

impl Sort {
    /// Sorts groups. The caller has sorted the groups by names before.
    pub fn apply(self, groups: &mut [&Group]) {
        let number = |group: &Group| match self {
            Sort::Name => 0,
            Sort::Count => group.count,
            Sort::Median => group.quantile_ns(0.5),
            Sort::P99 => group.quantile_ns(0.99),
            Sort::Total => group.total.duration_ns,
            Sort::Own => group.own.duration_ns,
        };
        groups.sort_by_cached_key(|group| Reverse(number(group)));
    }
}

/// Formats the table, if there are several groups.
pub fn summary(shown: &Shown<'_>) -> String {
    let mut out = String::new();
    if shown.groups().nth(1).is_none() {
        return out;
    }
    let mut line = |name: &str, [count, median, p99, total, own, largest]: [String; 6]| {
        let mut name = name;
        if name.chars().count() > NAME {
            out.push_str(name);
            out.push('\n');
            name = "";
        }
        // Writing to a String does not fail.
        let _ = write!(out, "{name:<NAME$} {count:>5} {median:>7} {p99:>7} {total:>7} {own:>7}");
        out.push_str(format!("  {largest}").trim_end());
        out.push('\n');
    };
    let names = ["count", "median", "p99", "total", "self", "largest part"];
    line("region", names.map(Into::into));
    for group in shown.groups() {
        let mut name = shown.title(group);
        if let Some(value) = group.value() {
            name += &format!(" [{value}]");
        }
        let times = [
            group.p50_ns,
            group.p99_ns,
            Some(group.total.duration_ns),
            Some(group.own.duration_ns),
        ];
        let [p50, p99, total, own] =
            times.map(|ns| ns.filter(|_| group.count > 0).map_or("-".into(), time));
        line(
            &shortened(&name, WIDTH),
            [short_count(group.count as f64), p50, p99, total, own, largest(group)],
        );
    }
    out.push('\n');
    out
}

/// Returns the part with the most time, and the part's share.
fn largest(group: &Group) -> String {
    let all = group.total.duration_ns;
    match group.total.times.iter().rev().max_by_key(|(_, ns)| *ns) {
        Some((part, ns)) if ns > 0 => {
            let share = ns as f64 * 100.0 / all as f64;
            format!("{} {share:.0}%", part.label())
        }
        _ => String::new(),
    }
}
