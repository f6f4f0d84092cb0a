//! The comparison as text for people.

use super::Side;
use crate::output::{counted, grouped, wrapped};
use hypertrace_compare::{
    Change, Comparison, Difference, Judged, Unit, Verdict, sentences, signed,
};
use hypertrace_export::escape::Escaped;
use hypertrace_timeline::regions::Part;
use std::fmt::Write;

/// Maximum number of rows that are shown for a name: for inner regions, for exits and for causes.
const MAX_ROWS: usize = 3;
/// Width of the column of names in characters.
const NAMES: usize = 24;

/// Formats a comparison. The last line is a sentence with the result.
pub fn text(sides: &[Side; 2], comparison: &Comparison) -> String {
    let mut out = String::new();
    for line in self::sides(sides) {
        out.push_str(&wrapped(&Escaped(line.as_bytes()).to_string(), ""));
    }
    for difference in &comparison.differences {
        block(&mut out, difference);
    }
    for (letter, names) in ["A", "B"].into_iter().zip(&comparison.only) {
        if !names.is_empty() {
            let names: Vec<String> =
                names.iter().take(10).map(|name| Escaped(name.as_bytes()).to_string()).collect();
            out.push_str(&wrapped(&format!("only in {letter}: {}", names.join(", ")), ""));
        }
    }
    out.push('\n');
    if comparison.differences.iter().any(|d| d.typical.verdict == Verdict::NoDifferenceSeen) {
        out.push_str("~ no difference is proven for this name\n");
    }
    for sentence in sentences(comparison).iter().take(10) {
        out.push_str(&wrapped(&Escaped(sentence.as_bytes()).to_string(), ""));
    }
    out
}

/// Returns a line about each side that has runs.
pub fn sides(sides: &[Side; 2]) -> Vec<String> {
    let line = |(letter, side): (&str, &Side)| {
        let ((first, _), (last, _)) = (side.first()?, side.last()?);
        let (first, last) = (first.display(), last.display());
        Some(match side.len() {
            1 => format!("{letter}: 1 run, {first}"),
            runs => format!("{letter}: {runs} runs, {first} .. {last}"),
        })
    };
    ["A", "B"].into_iter().zip(sides).filter_map(line).collect()
}

/// Formats the rows of a name.
fn block(out: &mut String, difference: &Difference) {
    let Judged { change, .. } = difference.typical;
    let unit = Unit::of_change(change.a_ns.max(change.b_ns), change.half_width_ns);
    let name = Escaped(difference.name.as_bytes()).to_string();
    // Writing to a String does not fail.
    let _ = writeln!(
        out,
        "\n{:<NAMES$} {:>9} {:>9} {:>19}",
        format!("{name}, {}", unit.name),
        "A",
        "B",
        "B - A"
    );
    row(out, "  trimmed mean", unit, &change, change.difference_ns, verdict(&difference.typical));
    parts(out, unit, &difference.parts);
    named(out, unit, "in ", &difference.children);
    named(out, unit, "", &exits(difference));
    named(out, unit, "", &causes(difference));
    let all = &difference.all;
    row(out, "  mean of all", unit, all, all.difference_ns, "");
    let p99 = &difference.p99;
    row(out, "  p99", unit, p99, p99.difference_ns, "");
    slowest(out, &difference.slowest);
    let [a, b] = difference.regions.map(grouped);
    let [runs_a, runs_b] = difference.runs;
    let runs_a = counted(runs_a as u64, "run");
    let _ = writeln!(out, "  {a} regions of {runs_a}, {b} of {runs_b}");
}

fn verdict(judged: &Judged) -> &'static str {
    match judged.verdict {
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::NoDifferenceSeen => "~",
        Verdict::NoVerdict => "",
    }
}

/// Formats the parts, whose differences are rounded so that they add up.
fn parts(out: &mut String, unit: Unit, all: &[(Part, Change)]) {
    let differences: Vec<f64> = all.iter().map(|(_, change)| change.difference_ns).collect();
    for ((part, change), difference) in all.iter().zip(unit.rounded(&differences)) {
        if change.a_ns > 0.0 || change.b_ns > 0.0 {
            row(out, &format!("    {}", part.label()), unit, change, difference, "");
        }
    }
}

/// Formats the parts of the time of each side's slowest regions (the slowest 1 %). Only the largest parts are
/// shown.
fn slowest(out: &mut String, parts: &[(Part, Change)]) {
    let side = |of: fn(&Change) -> f64| {
        let sum: f64 = parts.iter().map(|(_, change)| of(change)).sum();
        let mut all: Vec<(f64, &str)> =
            parts.iter().map(|(name, change)| (of(change) / sum * 100.0, name.label())).collect();
        all.retain(|(percent, _)| *percent >= 1.0);
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let all: Vec<String> =
            all.iter().take(MAX_ROWS).map(|(part, name)| format!("{name} {part:.0} %")).collect();
        all.join(", ")
    };
    let line = format!("slowest 1 %: A {}; B {}", side(|c| c.a_ns), side(|c| c.b_ns));
    out.push_str(&wrapped(&line, "  "));
}

/// Returns the waits by cause. If a thread waited for a CPU, the text says that the thread was "behind" the
/// thread that had the CPU.
fn causes(difference: &Difference) -> Vec<(String, Change)> {
    let all = difference.causes.iter().map(|(name, change)| {
        let behind = name.strip_prefix("runnable by ").map(|thread| format!("behind {thread}"));
        (behind.unwrap_or_else(|| name.clone()), *change)
    });
    all.collect()
}

/// Returns the time of exits by part and reason.
pub fn exits(difference: &Difference) -> Vec<(String, Change)> {
    let all = difference.exits_by_part().into_iter();
    all.map(|(part, name, change)| (format!("{part}, {name}"), change)).collect()
}

/// Formats the rows with the largest differences. The first row has no prefix. Among the rows of inner
/// regions, the first row is `self`.
fn named(out: &mut String, unit: Unit, prefix: &str, all: &[(String, Change)]) {
    for (at, (name, change)) in all.iter().take(MAX_ROWS).enumerate() {
        let prefix = if at == 0 { "" } else { prefix };
        let name = format!("    {prefix}{}", Escaped(name.as_bytes()));
        row(out, &name, unit, change, change.difference_ns, "");
    }
    if let Some(more) = all.len().checked_sub(MAX_ROWS).filter(|more| *more > 0) {
        let _ = writeln!(out, "    and {more} more");
    }
}

fn row(out: &mut String, name: &str, unit: Unit, change: &Change, shown: f64, verdict: &str) {
    let width = change.half_width_ns.map_or(String::new(), |ns| format!(" +- {}", unit.plain(ns)));
    let percent = change.relative().map_or(String::new(), |part| signed(part * 100.0, 1) + " %");
    // The middle of a long name is cut, because threads or exits of one kind often differ only at the end of
    // their names.
    let name: String = match name.chars().count().checked_sub(NAMES) {
        Some(more @ 1..) => {
            let kept = NAMES / 2;
            name.chars()
                .take(kept)
                .chain("..".chars())
                .chain(name.chars().skip(kept + 2 + more))
                .collect()
        }
        _ => name.to_owned(),
    };
    let line = format!(
        "{name:<NAMES$} {:>9} {:>9} {:>19} {percent:>8} {verdict}",
        unit.plain(change.a_ns),
        unit.plain(change.b_ns),
        format!("{}{width}", unit.signed(shown))
    );
    out.push_str(line.trim_end());
    out.push('\n');
}
