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

/// Length of the longest bar in columns.
const BAR: u64 = 20;
/// Maximum number of stages that are shown in detail.
const MAX_DETAILS: usize = 3;
/// Maximum number of rows of a table within a stage.
pub const MAX_ROWS: usize = 5;
/// First, the percentage by which a count has to differ between two sides. Second, the minimum difference.
/// Counts of boots repeat to within a few percent.
const CLEAR: (u64, u64) = (10, 100);
/// Reasons of the exits with which an idle vCPU halts, on x86 and on AArch64.
const HALTS: [&str; 2] = ["hlt", "wfx"];
/// Maximum number of causes that a text names for a difference.
const MAX_CAUSES: usize = 3;

/// A recording and its boots.
pub type Recorded = (PathBuf, Vec<Boot>);

/// Formats boots. If there are several boots, a table with a column for each boot comes first. Then come the
/// stages of the fastest boot.
pub fn boots(recorded: &[Recorded]) -> String {
    let mut out = String::new();
    let all = Vec::from_iter(flat(recorded));
    if all.len() > 1 {
        several(&mut out, &all);
        out.push('\n');
    }
    if let Some((path, boot)) = fastest(recorded) {
        one(&mut out, path, boot);
    }
    out
}

/// Returns the fastest boot. Other programs have disturbed this boot the least.
pub fn fastest(recorded: &[Recorded]) -> Option<(&Path, &Boot)> {
    let all =
        recorded.iter().flat_map(|(path, boots)| boots.iter().map(move |boot| (&**path, boot)));
    all.min_by_key(|(_, boot)| boot.duration_ns())
}

/// Returns one line about a boot and its duration. If the recording lacks the beginning or the end of the
/// boot, another line says this.
pub fn summary(path: &Path, boot: &Boot) -> String {
    let vcpus = if boot.vcpus == 1 { "vCPU" } else { "vCPUs" };
    let duration = time(boot.duration_ns());
    let path = Escaped(path.as_os_str().as_encoded_bytes());
    let Some(pid) = boot.pid else {
        let vcpus = if boot.vcpus == 0 { "" } else { &format!(", {} {vcpus}", boot.vcpus) };
        return format!("{path}{vcpus}, from the first mark to the end: {duration}\n");
    };
    let name = Escaped(boot.name.as_bytes());
    let mut out = format!("{name} ({pid}), {} {vcpus}, in {path}: {duration}\n", boot.vcpus);
    if !boot.has_start {
        out.push_str("  the VMM began before the recording, so the begin of the boot is missing\n");
    }
    if !boot.has_end {
        out.push_str("  the recording ended before the VMM\n");
    }
    out
}

fn one(out: &mut String, path: &Path, boot: &Boot) {
    let total = boot.duration_ns();
    let begin = boot.stages.first().map_or(0, |stage| stage.begin_ns);
    out.push_str(&summary(path, boot));
    // Writing to a String does not fail.
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
            let name = thread.to_string();
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
    let all = thread
        .waits
        .iter()
        .take(2)
        .map(|wait| format!("{} {}", time(wait.ns), Escaped(wait.to_string().as_bytes())));
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

pub fn percent(ns: u64, of: u64) -> u128 {
    u128::from(ns) * 100 / u128::from(of.max(1))
}

/// The same stage of several boots. All vectors have one element for each boot that has the stage.
#[derive(Debug, Default)]
pub struct Column {
    /// Durations in nanoseconds.
    times: Vec<u64>,
    /// For each thing that the guest touched, the number of exits and the time of these exits in nanoseconds.
    exits: Vec<BTreeMap<String, (u64, u64)>>,
    /// For each name of a thread that had a CPU, the time in nanoseconds during which other threads waited
    /// for this CPU.
    behind: Vec<BTreeMap<String, u64>>,
    /// Time in nanoseconds by part and thread, under the names that `parts` makes.
    parts: Vec<BTreeMap<String, u64>>,
}

impl Column {
    pub fn min(&self) -> u64 {
        self.times.iter().min().copied().unwrap_or(0)
    }

    pub fn max(&self) -> u64 {
        self.times.iter().max().copied().unwrap_or(0)
    }

    /// Returns the smallest and the largest number of exits.
    pub fn counts(&self) -> (u64, u64) {
        let counts =
            self.exits.iter().map(|exits| exits.values().map(|(count, _)| count).sum::<u64>());
        let counts = Vec::from_iter(counts);
        (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0))
    }

    /// Returns the smallest and the largest number of exits that touched `what`, and the least time of these
    /// exits.
    fn of(&self, what: &str) -> (u64, u64, u64) {
        let all = self.exits.iter().map(|exits| exits.get(what).copied().unwrap_or_default());
        let all = Vec::from_iter(all);
        let counts = || all.iter().map(|(count, _)| *count);
        let ns = all.iter().map(|(_, ns)| *ns).min().unwrap_or(0);
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0), ns)
    }
}

/// Returns whether a boot can be compared: no end is missing, and no stage is unknown.
fn is_whole(boot: &&Boot) -> bool {
    boot.has_start && boot.has_end && !boot.stages.iter().any(Stage::is_unknown)
}

/// Returns the stages of all boots, in the order in which they begin.
pub fn columns(boots: &[&Boot]) -> Vec<(String, Column)> {
    let mut all: Vec<(String, Column)> = Vec::new();
    for boot in boots {
        let mut seen = BTreeSet::new();
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
            let column = &mut all[at].1;
            // A boot can have a stage twice, because losses can divide a stage.
            if seen.insert(&*stage.name) {
                column.times.push(0);
                column.exits.push(BTreeMap::new());
                column.behind.push(BTreeMap::new());
                column.parts.push(BTreeMap::new());
            }
            let last = column.times.len() - 1;
            column.times[last] += stage.duration_ns();
            for Exit { what, count, ns, .. } in &stage.exits {
                let sum = column.exits[last].entry(what.clone()).or_default();
                (sum.0, sum.1) = (sum.0 + count, sum.1 + ns);
            }
            add(&mut column.behind[last], behind(stage));
            add(&mut column.parts[last], parts(stage));
        }
    }
    all
}

fn add(sums: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (name, ns) in more {
        *sums.entry(name).or_default() += ns;
    }
}

/// Returns for each name of a thread that had a CPU how long other threads waited for this CPU.
fn behind(stage: &Stage) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let waits = stage.threads.iter().flat_map(|thread| &thread.waits);
    for wait in waits.filter(|wait| wait.part == Part::Runnable) {
        // The cause ends with the thread's number. The number is left out, because the number differs between
        // boots.
        let name = wait.cause.rsplit_once('-').map_or(&*wait.cause, |(name, _)| name);
        *sums.entry(name.to_owned()).or_default() += wait.ns;
    }
    sums
}

/// Returns the time of threads in each part that uses a CPU. The key is a text with the part and the threads.
/// The vCPUs count together, because the guest may run the same work on another vCPU in another boot. The
/// VMM's other threads count together, too.
fn parts(stage: &Stage) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for thread in &stage.threads {
        let of = if thread.vcpu.is_some() { "the vCPUs" } else { "the VMM's other threads" };
        for (part, ns) in thread.times.iter().filter(|(part, _)| part.is_on_cpu()) {
            *sums.entry(format!("{} of {of}", part.label())).or_default() += ns;
        }
    }
    sums
}

/// Returns each name that has a clearly larger value in each boot of `many` than in each boot of `few`, and
/// the difference. The largest difference comes first.
fn clearly_more(
    few: &[BTreeMap<String, u64>],
    many: &[BTreeMap<String, u64>],
) -> Vec<(u64, String)> {
    let get = |of: &BTreeMap<String, u64>, name: &str| of.get(name).copied().unwrap_or(0);
    let names = many.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
    let more = names.into_iter().filter_map(|name| {
        let most = few.iter().map(|of| get(of, name)).max().unwrap_or(0);
        let least = many.iter().map(|of| get(of, name)).min().unwrap_or(0);
        let more = least.checked_sub(most + most * CLEAR.0 / 100).filter(|more| *more > 0)?;
        Some((more, name.clone()))
    });
    let mut more = Vec::from_iter(more);
    more.sort_by(|a, b| b.cmp(a));
    more
}

/// Returns the word for these items in the plural: "boots" or "recordings".
pub fn several_of(boots: &[&Boot]) -> &'static str {
    if boots.iter().all(|boot| boot.pid.is_none()) { "recordings" } else { "boots" }
}

/// Formats the stages of several boots.
fn several(out: &mut String, boots: &[&Boot]) {
    let totals = || boots.iter().map(|boot| boot.duration_ns());
    let (min, max) = (totals().min().unwrap_or(0), totals().max().unwrap_or(0));
    let what = several_of(boots);
    let _ = writeln!(out, "{} {what}: {} to {}", boots.len(), time(min), time(max));
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

/// Iterates over the boots of recordings.
fn flat(side: &[Recorded]) -> impl Iterator<Item = &Boot> {
    side.iter().flat_map(|(_, boots)| boots)
}

/// Formats the differences between two sides.
pub fn compared(of: &[Recorded], other: &[Recorded]) -> String {
    let all = |side: &'_ [Recorded]| side.iter().map(|(_, boots)| boots.len()).sum::<usize>();
    let whole = |side| Vec::from_iter(flat(side).filter(is_whole));
    let (a, b) = (whole(of), whole(other));
    let left_out = all(of) + all(other) - a.len() - b.len();
    let mut out = String::new();
    if left_out > 0 {
        let why = "without the VMM's start or end, or with lost events";
        out += &wrapped(&format!("boots left out, because they are {why}: {left_out}"), "");
    }
    if a.is_empty() || b.is_empty() {
        return out + "one side has no boot left: nothing is compared\n";
    }
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
    let shown = |column: &Column| match column.times.is_empty() {
        true => "-".to_owned(),
        false => time(column.min()),
    };
    let change = |a: u64, b: u64| {
        if b >= a { format!("+{}", time(b - a)) } else { format!("-{}", time(a - b)) }
    };
    let times = [&a, &b].map(|side| Vec::from_iter(side.iter().map(|boot| boot.duration_ns())));
    out += &wrapped(&verdict(&rows, [&times[0], &times[1]]), "");
    let _ = writeln!(
        out,
        "\n  {:<22} {:>8} {:>8} {:>9}  {:>9} {:>9}",
        "stage, fastest of",
        a.len(),
        b.len(),
        "change",
        "exits",
        ""
    );
    for (name, a, b) in &rows {
        let _ = writeln!(
            out,
            "  {:<22} {:>8} {:>8} {:>9}  {:>9} {:>9}",
            Escaped(name.as_bytes()).to_string(),
            shown(a),
            shown(b),
            change(a.min(), b.min()),
            grouped(a.counts().0),
            grouped(b.counts().0)
        );
    }
    out
}

/// Returns the exits that are clearly more frequent in each boot of `many` than in each boot of `few`, with
/// the difference of the least times and of the numbers. The largest difference of times comes first.
fn more_exits<'a>(few: &Column, many: &'a Column) -> Vec<(u64, u64, &'a str)> {
    let touched = many.exits.iter().flat_map(BTreeMap::keys).collect::<BTreeSet<_>>();
    let more = touched.into_iter().filter_map(|what| {
        let ((_, most, ns_before), (least, _, ns)) = (few.of(what), many.of(what));
        let is_clear = least > most + most * CLEAR.0 / 100 + CLEAR.1;
        is_clear.then(|| (ns.saturating_sub(ns_before), least - most, &**what))
    });
    let mut more = Vec::from_iter(more);
    more.sort_by(|a, b| b.cmp(a));
    more
}

/// Returns the causes that each boot of `many` clearly has more of than each boot of `few`, if these causes
/// took at least `least` nanoseconds more. The first list has waits behind other threads, and then exits
/// without halts. The second list has the halts. Each cause has its time. `words` say that a number and a
/// time are larger, or smaller.
fn causes(few: &Column, many: &Column, least: u64, words: [&str; 2]) -> [Vec<(u64, String)>; 2] {
    let [more, longer] = words;
    let behind = clearly_more(&few.behind, &many.behind).into_iter().map(|(ns, name)| {
        let name = Escaped(name.as_bytes());
        (ns, format!("{} {longer} waiting for a CPU behind {name}", time(ns)))
    });
    let (halts, exits): (Vec<_>, Vec<_>) =
        more_exits(few, many).into_iter().partition(|(.., what)| HALTS.contains(what));
    let exit = |(ns, count, what): (u64, u64, &str)| {
        (ns, format!("{} exits {more} by {what} ({})", grouped(count), time(ns)))
    };
    let matters = |cause: &(u64, String)| cause.0 >= least;
    let all = behind.chain(exits.into_iter().map(exit)).filter(matters).take(MAX_CAUSES);
    [all.collect(), halts.into_iter().map(exit).filter(matters).collect()]
}

/// Returns the sentence that says which side is slower, in which stage, and because of what. `boots`: the
/// durations of each side's boots in nanoseconds.
fn verdict(rows: &[(String, &Column, &Column)], boots: [&[u64]; 2]) -> String {
    let limits =
        |ns: &[u64]| (ns.iter().min().copied().unwrap_or(0), ns.iter().max().copied().unwrap_or(0));
    let [(from, a_most), (to, b_most)] = boots.map(limits);
    let is_slower = to >= from;
    let gain = |a: u64, b: u64| if is_slower { b.saturating_sub(a) } else { a.saturating_sub(b) };
    let stage = rows.iter().max_by_key(|(_, a, b)| gain(a.min(), b.min()));
    let Some((name, a, b)) = stage else { return "there are no stages".into() };
    let (few, many) = if is_slower { (a, b) } else { (b, a) };
    let (change, spread) = (from.abs_diff(to), (a_most - from).max(b_most - to));
    let chance = match boots.iter().any(|side| side.len() < 2) {
        true => {
            "with a single boot of a side, each difference may be chance (record several, -n): "
        }
        false => "",
    };
    if change <= spread || change <= from / 20 {
        let durations = format!(
            "no difference of the durations is clear: the fastest boots took {} and {}, and boots of one side \
             differ by up to {}",
            time(from),
            time(to),
            time(spread)
        );
        return match counted(rows, boots, from.min(to) / 20) {
            Some(causes) => format!("{chance}{causes}; {durations}"),
            None => durations,
        };
    }
    // Something that makes up less than a tenth of the change is no cause of the change.
    let least = change / 10;
    let (word, words) =
        if is_slower { ("slower", ["more", "more"]) } else { ("faster", ["fewer", "less"]) };
    let [mut named, halts] = causes(few, many, least, words);
    if named.is_empty() {
        let parts = clearly_more(&few.parts, &many.parts).into_iter();
        let parts = parts.filter(|(ns, _)| *ns >= least);
        let parts = parts.map(|(ns, part)| (ns, format!("{} {} {part}", time(ns), words[1])));
        named.extend(parts);
    }
    // Halts come last, because an idle vCPU is mostly an effect and not a cause.
    named.extend(halts);
    let named = Vec::from_iter(named.into_iter().take(MAX_CAUSES).map(|(_, cause)| cause));
    let named = match named.is_empty() {
        true => "nothing is clearly more in each boot".into(),
        false => format!("with {}", named.join(", ")),
    };
    let in_stage = time(gain(a.min(), b.min()));
    format!("{chance}boot is {} {word}: {in_stage} of it in \"{name}\", {named}", time(change))
}

/// Returns a text about the causes that each boot of one side clearly has more of, by stage. Each cause took at
/// least `least` nanoseconds more. The text is about the side, and the stages, with the most such time. Exits
/// repeat from boot to boot even where durations do not.
fn counted(rows: &[(String, &Column, &Column)], boots: [&[u64]; 2], least: u64) -> Option<String> {
    // A stage that some boots lack says nothing about each boot.
    let is_of_each = |(_, a, b): &&(String, &Column, &Column)| {
        [a.times.len(), b.times.len()] == boots.map(<[u64]>::len)
    };
    let of_side = |side: &'static str, is_second: bool| {
        let stages = rows.iter().filter(is_of_each).map(|(name, a, b)| {
            let (few, many) = if is_second { (a, b) } else { (b, a) };
            let [causes, _] = causes(few, many, least, ["more", "more"]);
            (causes.iter().map(|(ns, _)| *ns).sum::<u64>(), name, causes)
        });
        let mut stages = Vec::from_iter(stages.filter(|(.., causes)| !causes.is_empty()));
        stages.sort_by_key(|(ns, ..)| Reverse(*ns));
        (side, stages)
    };
    let sides = [of_side("first", false), of_side("second", true)];
    let (side, stages) = sides
        .into_iter()
        .max_by_key(|(_, stages)| stages.iter().map(|(ns, ..)| *ns).sum::<u64>())?;
    let stages = stages.into_iter().take(MAX_DETAILS).map(|(_, name, causes)| {
        let causes = Vec::from_iter(causes.into_iter().map(|(_, cause)| cause)).join(", ");
        format!("in \"{name}\", {causes}")
    });
    let stages = Vec::from_iter(stages).join("; ");
    (!stages.is_empty()).then(|| format!("each boot of the {side} side has {stages}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a stage of two boots with these numbers: the stage's time, the exits at a port, the time in
    /// which threads waited behind a thread, and the time in guest mode.
    fn stage(ns: u64, exits: u64, behind: u64, guest: u64) -> Column {
        fn map<T>(name: &str, value: T) -> BTreeMap<String, T> {
            BTreeMap::from([(name.to_owned(), value)])
        }
        // The second boot is a little slower.
        let both = [0, 50];
        Column {
            times: both.map(|more| ns + more).into(),
            exits: both.map(|more| map("pio read 0x71", (exits, exits * 10 + more))).into(),
            behind: both.map(|more| map("hog", behind + more)).into(),
            parts: both.map(|more| map("guest of the vCPUs", guest + more)).into(),
        }
    }

    fn said(a: &Column, b: &Column) -> String {
        verdict(&[("kernel".into(), a, b)], [&a.times, &b.times])
    }

    #[test]
    fn the_verdict_names_what_each_slower_boot_has_more_of() {
        let normal = stage(10_000, 1_000, 500, 8_000);
        for (slow, why) in [
            (stage(50_000, 20_000, 500, 8_000), "with 19,000 exits more by pio read 0x71"),
            (stage(50_000, 1_000, 40_000, 8_000), "more waiting for a CPU behind hog"),
            (stage(50_000, 1_000, 500, 48_000), "more guest of the vCPUs"),
            (stage(50_000, 1_000, 500, 8_000), "nothing is clearly more in each boot"),
        ] {
            let text = said(&normal, &slow);
            let begin = "boot is 40.0us slower: 40.0us of it in \"kernel\", ";
            assert!(text.starts_with(begin) && text.contains(why), "{text}");
        }
        let text = said(&stage(50_000, 20_000, 500, 8_000), &normal);
        assert!(text.contains("faster: ") && text.contains("19,000 exits fewer by pio"), "{text}");
        let text = said(&normal, &stage(10_030, 1_010, 510, 8_030));
        assert!(text.starts_with("no difference of the durations is clear"), "{text}");
        let alone = Column { times: vec![50_000], ..stage(50_000, 20_000, 500, 8_000) };
        let text = said(&normal, &alone);
        assert!(text.starts_with("with a single boot of a side, each difference may be"), "{text}");
    }

    #[test]
    fn a_stage_that_some_boots_lack_is_no_cause() {
        let normal = stage(10_000, 1_000, 500, 8_000);
        let rare = Column { times: vec![10_000], ..stage(10_000, 90_000, 500, 8_000) };

        let text = verdict(&[("rare".into(), &normal, &rare)], [&normal.times, &normal.times]);

        assert!(text.starts_with("no difference of the durations is clear"), "{text}");
    }

    #[test]
    fn exits_that_take_little_of_the_change_are_no_cause() {
        let mut slow = stage(50_000, 1_000, 500, 48_000);
        // A guest that computes for longer has more interrupts of its timer.
        let ticks = |count: u64| Vec::from([("interrupt".to_owned(), (count, 10))]);
        slow.exits.iter_mut().for_each(|exits| exits.extend(ticks(500)));

        let text = said(&stage(10_000, 1_000, 500, 8_000), &slow);

        assert!(text.contains("with 39.1us more guest of the vCPUs"), "{text}");
        assert!(!text.contains("interrupt"), "{text}");
    }

    #[test]
    fn counts_that_differ_in_each_boot_are_named_first_although_durations_overlap() {
        let (mut a, mut b) = (stage(10_000, 1_000, 500, 8_000), stage(30_000, 20_000, 500, 8_000));
        (a.times[1], b.times[1]) = (90_000, 95_000);
        // A stage with a smaller cause, and a stage without a cause.
        let [early, later] = [2_000, 6_000].map(|exits| stage(5_000, exits, 500, 3_000));
        let rows = |a, b| {
            let stages = [("VMM", &early, &early), ("firmware", &early, &later), ("kernel", a, b)];
            stages.map(|(name, a, b)| (name.to_owned(), a, b))
        };

        let text = verdict(&rows(&a, &b), [&a.times, &b.times]);

        let why = "each boot of the second side has in \"kernel\", 19,000 exits more by pio read 0x71 (190us); \
                   in \"firmware\", 4,000 exits more by pio read 0x71 (40.0us); no difference of the durations \
                   is clear: ";
        assert!(text.starts_with(why), "{text}");
        let text = said(&b, &a);
        assert!(
            text.starts_with("each boot of the first side has in \"kernel\", 19,000"),
            "{text}"
        );
    }
}
