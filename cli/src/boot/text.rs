//! Boots as text for people, 80 columns wide.

use crate::output::{grouped, wrapped};
use crate::regions::time;
use hypertrace_export::escape::Escaped;
use hypertrace_timeline::boot::{Boot, Exit, Stage, Thread};
use hypertrace_timeline::regions::Part;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Columns of the longest bar.
const BAR: u64 = 20;
/// Number of stages that are shown in detail.
const MAX_DETAILS: usize = 3;
/// Number of rows of a table within a stage.
const MAX_ROWS: usize = 5;
/// Share of a count by which it has to differ between two sides, and the least difference: counts of boots repeat to some
/// percent.
const CLEAR: (u64, u64) = (10, 100);
/// Reasons of exits of vCPUs that have nothing to do: on x86, and on AArch64.
const HALTS: [&str; 2] = ["hlt", "wfx"];
/// Number of causes of a difference that are named.
const MAX_CAUSES: usize = 3;

type Recorded = (PathBuf, Vec<Boot>);

/// Formats boots: each stage of one, or the stages of all in columns.
pub fn boots(recorded: &[Recorded]) -> String {
    let mut out = String::new();
    let all = Vec::from_iter(
        recorded.iter().flat_map(|(path, boots)| boots.iter().map(move |b| (path, b))),
    );
    if all.len() > 1 {
        several(&mut out, &Vec::from_iter(all.iter().map(|(_, boot)| *boot)));
        out.push('\n');
    }
    // Of several, the fastest had the least that other programs took.
    let fastest = all.iter().min_by_key(|(_, boot)| boot.duration_ns());
    if let Some((path, boot)) = fastest {
        one(&mut out, path, boot);
    }
    out
}

fn one(out: &mut String, path: &Path, boot: &Boot) {
    let total = boot.duration_ns();
    let begin = boot.stages.first().map_or(0, |stage| stage.begin_ns);
    let vcpus = if boot.vcpus == 1 { "vCPU" } else { "vCPUs" };
    // Writing to a String does not fail.
    let _ = writeln!(
        out,
        "{} ({}), {} {vcpus}, in {}: {}",
        Escaped(boot.name.as_bytes()),
        boot.pid,
        boot.vcpus,
        path.display(),
        time(total)
    );
    if !boot.has_start {
        out.push_str("  the VMM began before the recording: the time before is missing\n");
    }
    if !boot.has_end {
        out.push_str("  the recording ended before the VMM\n");
    }
    let _ = writeln!(out, "  {:<22} {:>8} {:>8}", "stage", "from", "took");
    for stage in &boot.stages {
        let ns = stage.duration_ns();
        let bar =
            "#".repeat((u128::from(ns) * u128::from(BAR) / u128::from(total.max(1))) as usize);
        let from = time(stage.begin_ns.saturating_sub(begin).max(0).unsigned_abs());
        let _ = writeln!(
            out,
            "  {:<22} {from:>8} {:>8} {:>3}% {bar}",
            Escaped(stage.name.as_bytes()).to_string(),
            time(ns),
            percent(ns, total)
        );
    }
    for point in &boot.points {
        let from = time(point.ts_ns.saturating_sub(begin).max(0).unsigned_abs());
        let _ = writeln!(out, "  {:<22} {from:>8}", point.name);
    }
    let mut longest = Vec::from_iter(boot.stages.iter().filter(|stage| !stage.is_unknown()));
    longest.sort_by_key(|stage| Reverse(stage.duration_ns()));
    for stage in longest.into_iter().take(MAX_DETAILS) {
        details(out, stage);
    }
}

/// Formats what happened in a stage.
fn details(out: &mut String, stage: &Stage) {
    let total = stage.duration_ns();
    let _ = writeln!(out, "\n{}: {}", Escaped(stage.name.as_bytes()), time(total));
    if !stage.threads.is_empty() {
        let shown = Vec::from_iter(stage.threads.iter().take(MAX_ROWS));
        let parts =
            Part::ALL.into_iter().filter(|part| shown.iter().any(|t| t.times.get(*part) > 0));
        let parts = Vec::from_iter(parts);
        let _ = writeln!(out, "  threads");
        for thread in &shown {
            let times = parts.iter().filter(|part| thread.times.get(**part) > 0);
            let times =
                times.map(|part| format!("{} {}", part.label(), time(thread.times.get(*part))));
            let name = format!("{}-{}", thread.name, thread.tid);
            let vcpu = thread.vcpu.map_or(String::new(), |n| format!(" (vCPU {n})"));
            let times = Vec::from_iter(times).join(", ");
            out.push_str(&wrapped(&format!("{}{vcpu}: {times}", Escaped(name.as_bytes())), "    "));
            waits(out, thread);
        }
        more(out, stage.threads.len());
    }
    if !stage.exits.is_empty() {
        let count = stage.exits.iter().map(|exit| exit.count).sum::<u64>();
        let ns = stage.exits.iter().map(|exit| exit.ns).sum::<u64>();
        let _ = writeln!(out, "  exits of vCPUs          {:>9} {:>8}", grouped(count), time(ns));
        for exit in stage.exits.iter().take(MAX_ROWS) {
            let _ = writeln!(
                out,
                "    {:<22}{:>9} {:>8}",
                exit.what,
                grouped(exit.count),
                time(exit.ns)
            );
        }
        more(out, stage.exits.len());
    }
    if !stage.path.is_empty() {
        let _ = writeln!(out, "  critical path");
        for step in stage.path.iter().take(MAX_ROWS) {
            let name = format!("{}, {}", Escaped(step.name.as_bytes()), step.part.label());
            let _ = writeln!(
                out,
                "    {name:<38} {:>8} {:>3}%",
                time(step.ns),
                percent(step.ns, total)
            );
        }
        more(out, stage.path.len());
    }
}

fn waits(out: &mut String, thread: &Thread) {
    let all = thread.waits.iter().take(2).map(|wait| {
        let what = if wait.part == Part::Blocked { "woken by" } else { "behind" };
        format!("{} {what} {}", time(wait.ns), Escaped(wait.cause.as_bytes()))
    });
    let all = Vec::from_iter(all).join(", ");
    if !all.is_empty() {
        out.push_str(&wrapped(&all, "      "));
    }
}

fn more(out: &mut String, rows: usize) {
    if let Some(more) = rows.checked_sub(MAX_ROWS).filter(|more| *more > 0) {
        let _ = writeln!(out, "    and {more} more");
    }
}

fn percent(ns: u64, of: u64) -> u128 {
    u128::from(ns) * 100 / u128::from(of.max(1))
}

/// A stage of several boots.
#[derive(Default)]
struct Column {
    /// By boot, nanoseconds.
    times: Vec<u64>,
    /// By boot: exits by what they touched, each with its number and nanoseconds.
    exits: Vec<BTreeMap<String, (u64, u64)>>,
}

impl Column {
    fn min(&self) -> u64 {
        self.times.iter().min().copied().unwrap_or(0)
    }

    fn max(&self) -> u64 {
        self.times.iter().max().copied().unwrap_or(0)
    }

    /// Returns the smallest and the largest number of exits.
    fn counts(&self) -> (u64, u64) {
        let counts =
            self.exits.iter().map(|exits| exits.values().map(|(count, _)| count).sum::<u64>());
        let counts = Vec::from_iter(counts);
        (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0))
    }

    /// Returns the smallest and the largest number of exits that touched something, and the least time for them.
    fn of(&self, what: &str) -> (u64, u64, u64) {
        let all = self.exits.iter().map(|exits| exits.get(what).copied().unwrap_or_default());
        let all = Vec::from_iter(all);
        let counts = || all.iter().map(|(count, _)| *count);
        let ns = all.iter().map(|(_, ns)| *ns).min().unwrap_or(0);
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0), ns)
    }
}

/// Returns the stages of all boots, in the order in which they begin.
fn columns(boots: &[&Boot]) -> Vec<(String, Column)> {
    let mut all: Vec<(String, Column)> = Vec::new();
    for boot in boots {
        let mut before = 0;
        for stage in &boot.stages {
            let at = match all.iter().position(|(name, _)| *name == stage.name) {
                Some(at) => at,
                None => {
                    all.insert(before, (stage.name.clone(), Column::default()));
                    before
                }
            };
            before = at + 1;
            let exits = stage
                .exits
                .iter()
                .map(|Exit { what, count, ns, .. }| (what.clone(), (*count, *ns)));
            all[at].1.times.push(stage.duration_ns());
            all[at].1.exits.push(exits.collect());
        }
    }
    all
}

/// Formats the stages of several boots.
fn several(out: &mut String, boots: &[&Boot]) {
    let totals = || boots.iter().map(|boot| boot.duration_ns());
    let (min, max) = (totals().min().unwrap_or(0), totals().max().unwrap_or(0));
    let _ = writeln!(out, "{} boots: {} to {}", boots.len(), time(min), time(max));
    let _ = writeln!(out, "  {:<22} {:>8} {:>8}   {:>19}", "stage", "fastest", "slowest", "exits");
    for (name, column) in columns(boots) {
        let (least, most) = column.counts();
        let exits = if least == most {
            grouped(least)
        } else {
            format!("{} to {}", grouped(least), grouped(most))
        };
        let _ = writeln!(
            out,
            "  {:<22} {:>8} {:>8}   {exits:>19}",
            Escaped(name.as_bytes()).to_string(),
            time(column.min()),
            time(column.max())
        );
    }
}

/// Formats the differences between two sides.
pub fn compared(of: &[Recorded], other: &[Recorded]) -> String {
    let flat = |side: &'_ [Recorded]| side.iter().flat_map(|(_, boots)| boots).count();
    let (a, b) = (
        Vec::from_iter(of.iter().flat_map(|(_, boots)| boots)),
        Vec::from_iter(other.iter().flat_map(|(_, boots)| boots)),
    );
    let (before, after) = (columns(&a), columns(&b));
    let empty = Column::default();
    let side =
        |side: &'_ [(String, Column)], name: &str| side.iter().position(|(of, _)| of == name);
    let mut names = Vec::from_iter(after.iter().map(|(name, _)| name.clone()));
    names.extend(
        before.iter().map(|(name, _)| name.clone()).filter(|name| side(&after, name).is_none()),
    );
    let mut rows = Vec::new();
    for name in names {
        let a = side(&before, &name).map_or(&empty, |at| &before[at].1);
        let b = side(&after, &name).map_or(&empty, |at| &after[at].1);
        rows.push((name, a, b));
    }
    let change = |a: u64, b: u64| {
        if b >= a { format!("+{}", time(b - a)) } else { format!("-{}", time(a - b)) }
    };
    let mut out = wrapped(&verdict(&rows, [&a, &b]), "");
    let _ = writeln!(
        out,
        "\n  {:<22} {:>8} {:>8} {:>9}  {:>9} {:>9}",
        "stage, fastest of",
        format!("{}", flat(of)),
        format!("{}", flat(other)),
        "change",
        "exits",
        ""
    );
    for (name, a, b) in &rows {
        let _ = writeln!(
            out,
            "  {:<22} {:>8} {:>8} {:>9}  {:>9} {:>9}",
            Escaped(name.as_bytes()).to_string(),
            time(a.min()),
            time(b.min()),
            change(a.min(), b.min()),
            grouped(a.counts().0),
            grouped(b.counts().0)
        );
    }
    out
}

/// Returns the sentence that says which side is slower, in which stage, and because of what.
fn verdict(rows: &[(String, &Column, &Column)], [a, b]: [&[&Boot]; 2]) -> String {
    let times = |side: &[&Boot]| {
        let all = || side.iter().map(|boot| boot.duration_ns());
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    };
    let ((from, a_most), (to, b_most)) = (times(a), times(b));
    let is_slower = to >= from;
    let gain = |a: u64, b: u64| if is_slower { b.saturating_sub(a) } else { a.saturating_sub(b) };
    let stage = rows.iter().max_by_key(|(_, a, b)| gain(a.min(), b.min()));
    let Some((name, a, b)) = stage else { return "there are no stages".into() };
    let (few, many) = if is_slower { (a, b) } else { (b, a) };
    let touched = many.exits.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
    let mut causes = Vec::new();
    for what in touched {
        let ((_, most, ns_before), (least, _, ns)) = (few.of(what), many.of(what));
        // Each boot of one side has more than each of the other.
        if least > most + most * CLEAR.0 / 100 + CLEAR.1 {
            causes.push((ns.saturating_sub(ns_before), least - most, what));
        }
    }
    let (change, spread) = (from.abs_diff(to), (a_most - from).max(b_most - to));
    if causes.is_empty() && (change <= spread || change <= from / 20) {
        return format!(
            "no difference is clear: the fastest boots took {} and {}, boots of one side differ by up to {}, \
             and no exits are clearly more",
            time(from),
            time(to),
            time(spread)
        );
    }
    let word = if is_slower { "slower" } else { "faster" };
    let in_stage = time(gain(a.min(), b.min()));
    let mut text = format!("boot is {} {word}: {in_stage} of it in \"{name}\"", time(change));
    // A vCPU that has nothing to do is mostly an effect.
    causes
        .sort_by_key(|(ns, count, what)| (HALTS.contains(&what.as_str()), Reverse((*ns, *count))));
    let side = if is_slower { "more" } else { "fewer" };
    let all = causes.iter().take(MAX_CAUSES).map(|(ns, count, what)| {
        format!("{} exits {side} by {what} ({})", grouped(*count), time(*ns))
    });
    text.push_str(", with ");
    text.push_str(&match causes.is_empty() {
        true => "about as many exits: compare what its threads did".into(),
        false => Vec::from_iter(all).join(", "),
    });
    text
}
