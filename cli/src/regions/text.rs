//! Regions as text for people, 80 columns wide.

use super::rows::Shown;
use super::summary::summary;
use crate::output::{grouped, wrapped};
use hypertrace_export::escape::Escaped;
use hypertrace_timeline::Warning;
use hypertrace_timeline::regions::{
    Breakdown, ByValue, Cause, CauseEntry, Exit, Group, Histogram, LeftOut, NotCounted, Part,
    PathStep, Step, Times, Unknown,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

/// Length of a histogram's longest bar in columns.
const BAR: u64 = 40;
/// Maximum number of steps of a histogram that are shown. An `...` stands for the steps in between.
const MAX_STEPS: usize = 16;
/// Maximum number of names of inner regions that are shown for a group, and maximum number of causes of
/// waits.
const MAX_NAMES: usize = 3;
/// Maximum number of threads of a critical path that are shown.
const MAX_THREADS: usize = 5;

/// Why nothing is known about the time of regions that belong to no thread.
pub const OF_ANY: &str = "regions with the field any_client may begin on one thread and end on another: --path \
                          divides their time along the critical path";

/// Message about regions that have no path, because their clock differs from the clock of the kernel's
/// events. The message also says what helps.
const CLOCK: &str = "by the guest's clock, the regions ended while their threads had no CPU: the guest's \
                     clock is not the clock of the kernel's events, and its error is too large. Let both use \
                     one clock, or make more reference points";

/// Why it is unknown who had a CPU, and what to do about that.
pub const ALL_THREADS: &str = "the recording does not have all threads of the machine: `hypertrace record \
                               --kernel` as root, without --own-only, records them";

/// Formats all groups. If nothing is known about a group's time, the table is replaced by the first warning
/// about the reason. This warning is then removed from `warnings`.
pub fn text(shown: &Shown<'_>, warnings: &mut Vec<Warning>) -> String {
    let cut = shown.regions.cut();
    warnings.retain(|text| Some(&**text) != cut.as_deref());
    let mut out = cut.map_or(String::new(), |cut| wrapped(&cut, "") + "\n");
    out.push_str(&summary(shown));
    let is_unknown = |group: &Group| {
        let Breakdown { duration_ns, times, .. } = group.total;
        duration_ns > 0 && times.get(Part::Unknown) == duration_ns
    };
    let mut why = "nothing proves it".to_owned();
    warnings.retain(|text| **text != *OF_ANY);
    let of_any = |group: &Group| shown.of_any.contains(&group.name);
    if shown.groups().any(|group| is_unknown(group) && !of_any(group))
        && let Some(at) = warnings.iter().position(|text| text.contains(" is unknown"))
    {
        why = warnings.remove(at).to_string();
    }
    for (number, group) in shown.groups().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        // Writing to a String does not fail.
        let unknown = is_unknown(group).then(|| match of_any(group) {
            true => OF_ANY.to_owned(),
            false => std::mem::replace(&mut why, "as above".into()),
        });
        let _ = one(&mut out, shown, group, unknown);
    }
    if out.is_empty() {
        out.push_str("no regions\n");
    }
    for remark in remarks(shown) {
        out.push('\n');
        out.push_str(&wrapped(&remark, ""));
    }
    out
}

/// Formats a group. `unknown`: why nothing is known about the group's time.
fn one(out: &mut String, shown: &Shown<'_>, group: &Group, unknown: Option<String>) -> fmt::Result {
    write!(out, "{}", Escaped(shown.title(group).as_bytes()))?;
    if let Some(ByValue { key, value }) = &group.by {
        write!(out, " [{} {}]", Escaped(key.as_bytes()), Escaped(value.as_bytes()))?;
    }
    let regions = if group.count == 1 { "region" } else { "regions" };
    writeln!(out, ": {} {regions}", grouped(group.count))?;
    if group.count > 0 {
        out.push(' ');
        for (name, ns) in group.quantiles() {
            write!(out, " {name} {} ", time(ns))?;
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        for note in notes(group) {
            out.push_str(&wrapped(&note, "  "));
        }
        match unknown {
            Some(why) => {
                let lines = [format!("where the time went: {why}")].into_iter();
                lines
                    .chain(guest_at_most(group))
                    .for_each(|line| out.push_str(&wrapped(&line, "  ")));
            }
            None => breakdowns(out, shown, group)?,
        }
        path(out, shown, group)?;
        children(out, group)?;
        histogram(out, &group.histogram)?;
    }
    let kinds =
        NotCounted::ALL.iter().map(|(kind, name)| (name, group.not_counted[*kind as usize]));
    let kinds = kinds.filter(|(_, count)| *count > 0);
    let kinds = kinds.map(|(name, count)| format!("{} {}", name.replace('_', " "), grouped(count)));
    let kinds = Vec::from_iter(kinds).join(", ");
    if !kinds.is_empty() {
        out.push_str(&wrapped(&format!("not counted: {kinds}"), "  "));
    }
    Ok(())
}

/// Returns the lines about all groups together.
pub fn remarks(shown: &Shown<'_>) -> impl Iterator<Item = String> {
    let steals = [without_wakeups(shown), steal(shown), guest_steal(shown)];
    let all = [left_out(shown), unrecorded(shown), by_whom(shown), renamed(shown)];
    all.into_iter().chain(steals).flatten()
}

/// Returns a line about threads that changed their names more than once. Only two kinds of threads count:
/// threads that other threads waited for, and threads on a critical path. A new program counts as a new name.
fn renamed(shown: &Shown<'_>) -> Option<String> {
    let totals = || shown.groups().map(|group| &group.total);
    let waits = totals().flat_map(|total| &total.waits).map(|wait| &wait.cause);
    let threads = waits.chain(totals().flat_map(|total| &total.path).map(|step| &step.thread));
    let threads = BTreeSet::from_iter(threads);
    let names = |cause: &CauseEntry| match **cause {
        Cause::Thread { names, .. } if names > 2 => Some(names),
        _ => None,
    };
    let renamed = threads.into_iter().filter_map(|cause| Some((names(cause)?, cause)));
    let mut renamed = Vec::from_iter(renamed);
    renamed.sort_by_key(|(names, cause)| (Reverse(*names), *cause));
    let one = |(names, cause): &(u32, &CauseEntry)| {
        format!("{} ({} names)", shown.cause_name(cause), grouped((*names).into()))
    };
    let listed = Vec::from_iter(renamed.iter().take(MAX_NAMES).map(one)).join(", ");
    let more = match renamed.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(", and {} more", grouped(more as u64)),
    };
    (!renamed.is_empty()).then(|| {
        let listed = Escaped(listed.as_bytes());
        format!("threads that changed their names are shown with the last name: {listed}{more}")
    })
}

/// Returns a line about waits with unknown causes, if there are many: why the causes are unknown, and what to
/// do.
fn by_whom(shown: &Shown<'_>) -> Option<String> {
    let (all, unknown) = (shown.regions.waited.all_ns, shown.regions.waited.unknown_ns);
    let ns = unknown.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
    let (why, _) = unknown.into_iter().enumerate().max_by_key(|(_, ns)| *ns)?;
    let why = match why {
        _ if ns <= all / 100 => return None,
        0 => ALL_THREADS,
        1 => {
            "events of the machine's other threads are missing, because they were lost, or because the \
             recording had not begun or had ended; a larger --buffer may help"
        }
        _ => "there were too many waits or threads to keep them apart",
    };
    Some(format!(
        "for {} of {} waiting, nothing shows which thread had the CPU or woke the waiting one: {why}",
        time(ns),
        time(all)
    ))
}

/// Returns a line about the regions that options leave out, if there are any.
fn left_out(shown: &Shown<'_>) -> Option<String> {
    // Regions that `--name` leaves out are not in the line, because the user did not ask for these regions.
    let all = LeftOut::ALL.map(|(why, name)| (name, shown.regions.left_out[why as usize]));
    let all = all.into_iter().filter(|(why, count)| *count > 0 && *why != "name");
    let all = all.map(|(why, count)| {
        let option = if why == "from_to" { "from, --until" } else { why };
        format!("{} by --{}", grouped(count), option.replace('_', "-"))
    });
    let all = Vec::from_iter(all).join(", ");
    (!all.is_empty()).then(|| format!("regions left out: {all}"))
}

/// Returns a line about regions outside of the kernel's recordings, if there are any: why these regions are
/// not counted, and what to do.
fn unrecorded(shown: &Shown<'_>) -> Option<String> {
    let kind = NotCounted::KernelNotRecorded as usize;
    let count: u64 = shown.groups().map(|group| group.not_counted[kind]).sum();
    let regions = if count == 1 { "region is" } else { "regions are" };
    (count > 0).then(|| {
        format!(
            "{} {regions} not counted, because the kernel's events of their threads were not recorded from \
             begin to end: nothing proves where the time went. Start `hypertrace record`, or `hypertrace \
             forward` in a guest, before the regions begin, and end the recording after the last region. \
             `hypertrace report` shows when regions began and ended",
            grouped(count)
        )
    })
}

/// Returns a line about waits that are too short, because no event shows when a thread was woken.
fn without_wakeups(shown: &Shown<'_>) -> Option<String> {
    let is_off = |group: &Group| group.total.times.get(Part::OffCpu) > 0;
    shown.groups().any(is_off).then(|| {
        "no event shows when a thread was woken, so off-CPU contains the time from a wake-up until the thread \
         got a CPU, and \"waiting for a CPU\" is a lower bound. `hypertrace record` as root records wake-ups"
            .into()
    })
}

/// Returns a line about the steal time, which no event shows, if there was any.
fn steal(shown: &Shown<'_>) -> Option<String> {
    shown.regions.steal_ms.filter(|ms| *ms > 0)?;
    let ms = grouped(shown.regions.steal_at_most_ms);
    Some(format!(
        "steal time of this machine's CPUs while the kernel's events were recorded: at most {ms} ms. No \
         event shows when exactly, so any part may contain some steal time"
    ))
}

/// Returns a line about the time that the host took from the guest, if the host took any. A guest's kernel
/// has counted this time.
fn guest_steal(shown: &Shown<'_>) -> Option<String> {
    let Some(ms) = shown.regions.guest_steal_ms.filter(|ms| *ms > 0) else {
        let is_by_guest = |group: &Group| group.label(Part::OnCpu) != Part::OnCpu.label();
        return shown.groups().any(is_by_guest).then(|| {
            "only the guest's kernel was recorded, so on-CPU (guest) contains time that the host took from \
             the guest. `hypertrace record -a` on the host, with the same -o, shows this time"
                .into()
        });
    };
    Some(format!(
        "the host took {} ms from the guest's CPUs while the guest's kernel was recorded, by that kernel's \
         count. This time is part of on-CPU (guest) and of waits. `hypertrace record -a` on the host, with \
         the same -o, shows when, and which threads of the host had the CPUs",
        grouped(ms)
    ))
}

/// Returns notes about the error of durations.
pub fn notes(group: &Group) -> Vec<String> {
    let median = group.breakdown.median.as_ref().and_then(|median| median.bound_ns);
    let error = match (median, group.bound_ns) {
        (_, Some(0)) => None,
        (Some(p50), Some(most)) => {
            Some(format!("at most {} at p50, {} anywhere", time(p50), time(most)))
        }
        (Some(p50), None) => Some(format!("at most {} at p50, unknown elsewhere", time(p50))),
        (None, _) => Some("unknown".into()),
    };
    let bound = error.map(|error| format!("error by the guest's clock: {error}"));
    let empty = group.empty_ns.map(|ns| format!("an empty region takes {}: included", time(ns)));
    bound.into_iter().chain(empty).collect()
}

/// Returns the breakdowns of a group that are shown, with their names. If a hypervisor took time from the
/// machine during the regions of a breakdown, the breakdown's name has a mark.
pub fn columns(group: &Group) -> Vec<(&'static str, &Breakdown)> {
    let columns = [
        ("median*", "median*~", group.breakdown.median.as_ref()),
        ("p99", "p99~", group.breakdown.p99.as_ref()),
        ("slowest", "slowest~", group.breakdown.slowest.as_ref()),
        ("all", "all~", Some(&group.total)),
    ];
    let columns = columns.into_iter().filter_map(|(name, marked, b)| Some((name, marked, b?)));
    columns
        .map(|(name, marked, b)| (if b.steal_regions > Some(0) { marked } else { name }, b))
        .collect()
}

/// Returns the notes below breakdowns.
pub fn footnotes(shown: &Shown<'_>, group: &Group) -> Vec<String> {
    let regions = match group.breakdown.median.as_ref().map_or(0, |median| median.regions) {
        1 => "* the region at the 50th percentile".into(),
        n => format!("* mean of the {} regions from the 49th to the 51st percentile", grouped(n)),
    };
    let columns = columns(group);
    let is_partial = |b: &Breakdown| b.exits_of < b.regions && b.times.get(Part::Kernel) > 0;
    let partial = columns.iter().find(|(_, b)| is_partial(b));
    let partial = partial.map(|(name, b)| {
        let (of, all) = (grouped(b.exits_of), grouped(b.regions));
        let name = name.trim_end_matches(['*', '~']);
        format!("the exits in the column {name} come from {of} of its {all} regions")
    });
    let steal = group.total.steal_regions.filter(|regions| *regions > 0).map(|regions| {
        format!(
            "~ this machine's CPUs had steal time while {} of all {} regions ran; any part may contain some",
            grouped(regions),
            grouped(group.count)
        )
    });
    let most = group.total.steal_at_most_ns.filter(|ns| {
        *ns > 0 && (shown.regions.steal_ms > Some(0) || shown.regions.guest_steal_ms > Some(0))
    });
    let most =
        most.map(|ns| format!("at most {} of the time in the column all is steal time", time(ns)));
    let most = most.into_iter().chain(guest_at_most(group));
    [regions].into_iter().chain(partial).chain(steal).chain(most).collect()
}

/// Returns a line about threads of a guest for which only the time of the vCPUs is known, if there are any.
fn guest_at_most(group: &Group) -> Option<String> {
    group.total.guest_at_most_ns.map(|ns| {
        format!(
            "guest <= {} of all: vCPUs may have run the guest in this time, but nothing says which of its \
             threads; `hypertrace forward` in the guest records that",
            time(ns)
        )
    })
}

/// A row of the exits for one reason in a part.
pub struct ExitRow<'a> {
    pub reason: &'a str,
    /// For each column, the number of exits and their time in the part in nanoseconds. In the VMM's part, the
    /// number of exits is always 0. The number does not include exits that began before the region.
    pub cells: Vec<(f64, u64)>,
}

/// Returns the rows of the kernel's or the VMM's part. The reason with the most time comes first. If no
/// reason of an exit is known in the VMM's part, returns no rows of this part.
pub fn exit_rows<'a>(columns: &[(&str, &'a Breakdown)], part: Part) -> Vec<ExitRow<'a>> {
    let cell = |exit: &Exit| match part {
        Part::Vmm => (0.0, exit.vmm_ns),
        _ => (exit.count, exit.kernel_ns),
    };
    let is_shown = matches!(part, Part::Kernel | Part::Vmm);
    let all = columns.iter().enumerate().filter(|_| is_shown);
    let mut rows = BTreeMap::new();
    for (at, exit) in all.flat_map(|(at, (_, b))| b.exits.iter().map(move |exit| (at, exit))) {
        let cells = vec![(0.0, 0); columns.len()];
        let row = rows.entry(exit.number).or_insert(ExitRow { reason: &exit.reason, cells });
        row.cells[at] = cell(exit);
    }
    rows.retain(|_, row| row.cells.iter().any(|cell| *cell != (0.0, 0)));
    if part == Part::Vmm && rows.keys().all(|number| *number == 0) {
        rows.clear();
    }
    let mut rows = Vec::from_iter(rows.into_values());
    rows.sort_by_key(|row| Reverse(row.cells.iter().map(|(_, ns)| *ns).max()));
    rows
}

/// Formats a number of exits, with a fraction if the number is a mean.
pub fn exit_count(count: f64) -> String {
    match count.fract() {
        0.0 => grouped(count as u64),
        _ => format!("{count:.1}"),
    }
}

/// Formats a number of exits in at most five characters.
pub fn short_count(count: f64) -> String {
    let (unit, name) = match count {
        ..999.95 => return exit_count(count),
        ..9_999.5 => return grouped(count.round() as u64),
        ..999_500.0 => (1e3, "k"),
        ..999_500_000.0 => (1e6, "M"),
        _ => (1e9, "G"),
    };
    let value = count / unit;
    let digits = if value < 99.95 { 1 } else { 0 };
    format!("{value:.digits$}{name}")
}

fn histogram(out: &mut String, histogram: &Histogram) -> fmt::Result {
    let (steps, most) = (histogram.steps(), histogram.most().max(1));
    let shown = steps.iter().filter(|step| step.count > 0 || steps.len() <= MAX_STEPS);
    let mut before = None;
    writeln!(out, "  how long they took:")?;
    for Step { from, to, count } in shown {
        if before.is_some_and(|before| before != from) {
            writeln!(out, "{:>12} {:>17}", "...", 0)?;
        }
        before = Some(to);
        let bar = "#".repeat((count * BAR).div_ceil(most) as usize);
        let line =
            format!("  {:>7} .. {:<7} {:>10} {bar}", time(*from), time(*to), grouped(*count));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn breakdowns(out: &mut String, shown: &Shown<'_>, group: &Group) -> fmt::Result {
    let columns = columns(group);
    write!(out, "  {:<22}", "")?;
    for (name, _) in &columns {
        write!(out, " {name:>13}")?;
    }
    out.push('\n');
    row(out, "duration", columns.iter().map(|(_, b)| (b.duration_ns, None)))?;
    if columns.iter().any(|(_, b)| b.times.get(Part::Idle) > 0) {
        let busy = |b: &Breakdown| b.duration_ns.saturating_sub(b.times.get(Part::Idle));
        let share = |b: &Breakdown| busy(b) as f64 * 100.0 / b.duration_ns.max(1) as f64;
        row(out, "busy", columns.iter().map(|(_, b)| (busy(b), Some(share(b)))))?;
    }
    for part in Part::ALL {
        if columns.iter().any(|(_, b)| b.times.get(part) > 0) {
            let share = |b: &Breakdown| {
                let ns = b.times.get(part);
                (ns, Some(ns as f64 * 100.0 / b.duration_ns.max(1) as f64))
            };
            row(out, group.label(part), columns.iter().map(|(_, b)| share(b)))?;
        }
        exits(out, &columns, part)?;
        waits(out, shown, &columns, part)?;
    }
    for note in footnotes(shown, group) {
        out.push_str(&wrapped(&note, "  "));
    }
    Ok(())
}

/// Writes what the threads on the critical path did. Threads of the same name are shown as one.
fn path(out: &mut String, shown: &Shown<'_>, group: &Group) -> fmt::Result {
    let columns = columns(group);
    let steps = || {
        columns
            .iter()
            .enumerate()
            .flat_map(|(at, (_, b))| b.path.iter().map(move |step| (at, step)))
    };
    if steps().next().is_none() {
        return Ok(());
    }
    let mut threads = BTreeMap::<String, Thread>::new();
    let mut others = vec![0; columns.len()];
    let mut unknown = Unknown::ALL.map(|_| vec![0; columns.len()]);
    for (at, PathStep { thread, part, cause, ns, .. }) in steps() {
        let because = cause.as_deref();
        if let Some(Cause::Unknown(why)) = because.filter(|_| *part == Part::Unknown) {
            unknown[*why as usize][at] += ns;
            continue;
        }
        let Cause::Thread { tid, name, .. } = &**thread else {
            others[at] += ns;
            continue;
        };
        let name = name.clone().unwrap_or_else(|| shown.cause_name(thread));
        let thread = threads.entry(name).or_default();
        thread.tids.insert(*tid);
        let whom = because.map(|cause| shown.cause_name(cause));
        let ns_of =
            thread.doing.entry((*part as usize, whom)).or_insert_with(|| vec![0; columns.len()]);
        ns_of[at] += ns;
    }
    let share = |ns: u64, at: usize| ns as f64 / columns[at].1.duration_ns.max(1) as f64;
    let most = |thread: &Thread| {
        let columns = thread.sum(columns.len(), |_| true).into_iter().enumerate();
        columns.map(|(at, ns)| share(ns, at)).fold(0.0, f64::max)
    };
    let mut threads = Vec::from_iter(threads);
    threads.sort_by(|(_, a), (_, b)| most(b).total_cmp(&most(a)));
    if threads.is_empty() {
        let sum = |why: &Unknown| unknown[*why as usize].iter().sum::<u64>();
        let most = Unknown::ALL.into_iter().filter(|why| sum(why) > 0).max_by_key(sum);
        let why = match most {
            Some(Unknown::Clock) => CLOCK,
            Some(Unknown::NoThread) => {
                "nothing names the threads of these regions: in a guest, `hypertrace forward` records them"
            }
            _ => {
                "a critical path needs the events of all threads: `hypertrace record --kernel` or `record \
                 -a` as root, or `hypertrace forward` in a guest, records them"
            }
        };
        out.push_str(&wrapped(&format!("critical path: not known; {why}"), "  "));
        return Ok(());
    }
    out.push_str("  critical path\n");
    let write_row = |out: &mut String, name: &str, ns: &[u64]| {
        let cells = ns.iter().enumerate().map(|(at, ns)| (*ns, Some(share(*ns, at) * 100.0)));
        row(out, name, cells)
    };
    for (number, (name, thread)) in threads.iter().enumerate() {
        let total = thread.sum(columns.len(), |_| true);
        if number >= MAX_THREADS {
            others.iter_mut().zip(&total).for_each(|(sum, ns)| *sum += ns);
            continue;
        }
        let tids = match thread.tids.first() {
            Some(tid) if thread.tids.len() == 1 => format!("-{tid}"),
            _ => format!(" ({})", thread.tids.len()),
        };
        write_row(out, &format!("  {}", shortened_before(name, &tids, 20)), &total)?;
        for part in Part::ALL {
            let sum = thread.sum(columns.len(), |of| of == part as usize);
            if part != Part::Blocked && sum.iter().any(|ns| *ns > 0) {
                doing_row(out, 6, group.label(part), &sum);
            }
            let depth = if part == Part::Blocked { 6 } else { 8 };
            let whom = thread.doing.iter().filter(|((of, _), _)| *of == part as usize);
            let whom = whom.filter_map(|((_, whom), ns)| Some((whom.as_deref()?, ns)));
            let mut whom = Vec::from_iter(whom);
            whom.sort_by_key(|(_, ns)| Reverse(ns.iter().max()));
            let (first, rest) = whom.split_at(whom.len().min(MAX_NAMES));
            first.iter().for_each(|(name, ns)| doing_row(out, depth, name, ns));
            if !rest.is_empty() {
                let sum = |at: usize| rest.iter().map(|(_, ns)| ns[at]).sum();
                doing_row(out, depth, "others", &Vec::from_iter((0..columns.len()).map(sum)));
            }
        }
    }
    let all = |at: usize| unknown.iter().map(|ns| ns[at]).sum();
    let sum = Vec::from_iter((0..columns.len()).map(all));
    for (name, ns) in [("  others", others), ("  not known", sum)] {
        if ns.iter().any(|ns| *ns > 0) {
            write_row(out, name, &ns)?;
        }
    }
    let reasons = [
        (Unknown::Clock, "clock's error"),
        (Unknown::Border, "clock's bound"),
        (Unknown::Vcpu, "vCPU not proven"),
        (Unknown::Idle, "idle"),
    ];
    for (why, name) in reasons {
        let ns = &unknown[why as usize];
        if ns.iter().any(|ns| *ns > 0) {
            doing_row(out, 6, name, ns);
        }
    }
    if unknown[Unknown::Clock as usize].iter().any(|ns| *ns > 0) {
        out.push_str(&wrapped(CLOCK, "  "));
    }
    Ok(())
}

/// Writes what a thread did on critical paths: a time for each column, indented by `depth` columns.
fn doing_row(out: &mut String, depth: usize, doing: &str, ns: &[u64]) {
    let name = format!("{:depth$}{}", "", shortened(doing, 26 - depth));
    // A long name takes some of the space to the left of the first column of times.
    let first = (24 + 14_usize).saturating_sub(name.chars().count());
    // Writing to a String does not fail.
    let _ = write!(out, "{name}");
    for (at, ns) in ns.iter().enumerate() {
        let shown = Some(*ns).filter(|ns| *ns > 0).map_or("-".into(), time);
        let width = if at == 0 { first } else { 14 };
        let _ = write!(out, "{shown:>width$}");
    }
    out.push('\n');
}

/// All threads of one name on critical paths.
#[derive(Default)]
struct Thread {
    tids: BTreeSet<u32>,
    /// What the threads did. The key is the index of the part, and the cause. The value is the time for each
    /// column in nanoseconds.
    doing: BTreeMap<(usize, Option<String>), Vec<u64>>,
}

impl Thread {
    /// Returns the time in some parts for each column.
    fn sum(&self, columns: usize, is_wanted: impl Fn(usize) -> bool) -> Vec<u64> {
        let wanted = || self.doing.iter().filter(|((part, _), _)| is_wanted(*part));
        (0..columns).map(|at| wanted().map(|(_, ns)| ns[at]).sum()).collect()
    }
}

/// Writes how much of a group's time the regions inside take, and what is left.
fn children(out: &mut String, group: &Group) -> fmt::Result {
    if group.children.is_empty() {
        return Ok(());
    }
    out.push_str("  of all time, in regions inside:\n");
    let all = group.total.duration_ns.max(1) as f64;
    let has_idle = group.total.times.get(Part::Idle) > 0;
    let mut row = |name: &str, count: String, ns: u64, idle: u64| {
        let share = ns as f64 * 100.0 / all;
        let sum = format!("{} {share:>3.0}%", time(ns));
        write!(out, "    {name:<30} {count:>10} {sum:>13}")?;
        match has_idle {
            true => writeln!(out, "  {:>7} idle", time(idle)),
            false => writeln!(out),
        }
    };
    let idle = |times: &Times| times.get(Part::Idle);
    row("self", String::new(), group.own.duration_ns, idle(&group.own.times))?;
    let times = |count: u64| format!("{}x", grouped(count));
    let (shown, others) = group.children.split_at(group.children.len().min(MAX_NAMES));
    for child in shown {
        let name = child.name.as_deref().unwrap_or("others");
        row(&shortened(name, 30), times(child.count), child.duration_ns, idle(&child.times))?;
    }
    if !others.is_empty() {
        let count = others.iter().map(|child| child.count).sum();
        let ns = others.iter().map(|child| child.duration_ns).sum();
        row("others", times(count), ns, others.iter().map(|child| idle(&child.times)).sum())?;
    }
    Ok(())
}

/// Escapes a text, and cuts it to at most `most` characters.
pub fn shortened(text: &str, most: usize) -> String {
    // A number at the end of the text is kept, because it tells threads apart.
    let number = text.rsplit_once('-').map_or("", |(before, _)| &text[before.len()..]);
    let is_number =
        (2..9).contains(&number.len()) && number[1..].bytes().all(|b| b.is_ascii_digit());
    let number = if is_number { number } else { "" };
    shortened_before(&text[..text.len() - number.len()], number, most)
}

/// Escapes a text, and cuts it so that it has at most `most` characters together with `end`.
fn shortened_before(text: &str, end: &str, most: usize) -> String {
    let shown = Escaped(text.as_bytes()).to_string();
    match shown.chars().count() + end.len() <= most {
        true => shown + end,
        false => {
            let kept = most.saturating_sub(end.len() + 3);
            shown.chars().take(kept).chain("...".chars()).chain(end.chars()).collect()
        }
    }
}

/// Writes a row for each reason of exits in a part.
fn exits(out: &mut String, columns: &[(&str, &Breakdown)], part: Part) -> fmt::Result {
    for ExitRow { reason, cells } in exit_rows(columns, part) {
        let name = Escaped(reason.as_bytes()).to_string();
        write!(out, "    {:<20}", name.chars().take(20).collect::<String>())?;
        for cell in cells {
            let cell = match cell {
                (0.0, 0) => "-".into(),
                (0.0, ns) => time(ns),
                (count, ns) => format!("{}x {}", short_count(count), time(ns)),
            };
            write!(out, " {cell:>13}")?;
        }
        out.push('\n');
    }
    Ok(())
}

/// A row of the waits of a part.
pub struct WaitRow {
    pub name: String,
    /// Time for each column in nanoseconds.
    pub ns: Vec<u64>,
}

/// Returns the rows of the waits of a part: the causes with the most time, the other causes, and the unknown
/// causes. Returns no rows if the causes were not recorded.
pub fn wait_rows(shown: &Shown<'_>, columns: &[(&str, &Breakdown)], part: Part) -> Vec<WaitRow> {
    let of = |breakdown: &Breakdown, cause: &CauseEntry| {
        let found = breakdown.waits.iter().find(|wait| (wait.part, &wait.cause) == (part, cause));
        found.map_or(0, |wait| wait.ns)
    };
    let all = columns.iter().flat_map(|(_, b)| &b.waits).filter(|wait| wait.part == part);
    let causes = BTreeSet::from_iter(all.map(|wait| &wait.cause));
    let is_known = |cause: &&CauseEntry| !matches!(***cause, Cause::Unknown(_));
    let (mut known, unknown): (Vec<_>, Vec<_>) = causes.into_iter().partition(is_known);
    let is_missing = |cause: &&CauseEntry| ***cause != Cause::Unknown(Unknown::NotRecorded);
    if known.is_empty() && !unknown.iter().any(is_missing) {
        return Vec::new();
    }
    // Causes are compared by their shares and not by their times, because one column shows a single region
    // and another column shows all regions.
    let share = |cause: &CauseEntry| {
        let share = |b: &Breakdown| of(b, cause) as f64 / b.times.get(part).max(1) as f64;
        columns.iter().map(|(_, b)| share(b)).fold(0.0, f64::max)
    };
    let is_single = |cause: &&CauseEntry| ***cause != Cause::Others;
    known.sort_by(|a, b| is_single(b).cmp(&is_single(a)).then(share(b).total_cmp(&share(a))));
    let singles = known.iter().filter(|cause| is_single(cause)).count();
    let (first, others) = known.split_at(singles.min(MAX_NAMES));
    let row = |name: String, causes: &[&CauseEntry]| {
        let sum = |b: &Breakdown| causes.iter().map(|cause| of(b, cause)).sum();
        WaitRow { name, ns: columns.iter().map(|(_, b)| sum(b)).collect() }
    };
    let mut first = first.to_vec();
    // A reader asks for the program's threads first, and then for what the recording itself cost.
    first.sort_by_key(|cause| is_of_recording(cause));
    let firsts = first.iter().map(|cause| row(shown.cause_name(cause), &[*cause]));
    let rest = [("others", others), ("not known", &unknown)];
    let rest = rest.into_iter().filter(|(_, causes)| !causes.is_empty());
    firsts.chain(rest.map(|(name, causes)| row(name.to_owned(), causes))).collect()
}

/// Returns whether a cause is a thread of the recording itself.
fn is_of_recording(cause: &Cause) -> bool {
    let name = match cause {
        Cause::Thread { name, .. } => name.as_deref().unwrap_or(""),
        _ => "",
    };
    name.starts_with("ht-") || name == "hypertrace"
}

/// Writes a row for each cause of a part's waits.
fn waits(
    out: &mut String,
    shown: &Shown<'_>,
    columns: &[(&str, &Breakdown)],
    part: Part,
) -> fmt::Result {
    for WaitRow { name, ns } in wait_rows(shown, columns, part) {
        write!(out, "    {:<20}", shortened(&name, 20))?;
        for ns in ns {
            let cell = if ns == 0 { "-".into() } else { time(ns) };
            write!(out, " {cell:>13}")?;
        }
        out.push('\n');
    }
    Ok(())
}

/// Writes a row of times with their shares in per cent.
fn row(
    out: &mut String,
    name: &str,
    cells: impl Iterator<Item = (u64, Option<f64>)>,
) -> fmt::Result {
    write!(out, "  {name:<22}")?;
    for (ns, share) in cells {
        let share = share.map_or(String::new(), |share| format!(" {share:>3.0}%"));
        write!(out, " {:>13}", format!("{}{share}", time(ns)))?;
    }
    out.push('\n');
    Ok(())
}

/// Formats a time with three digits or more, in at most seven characters.
pub fn time(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (1e3, "us"),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let value = ns as f64 / unit;
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_export::{csv, json};
    use hypertrace_test_support::made::{Made, Packet};
    use hypertrace_timeline::regions::{Options, Regions, Summary};
    use hypertrace_timeline::{Given, Recording};

    #[test]
    fn regions_that_are_too_many_are_said_above_the_table_and_in_each_form() {
        let events = r#"[{"id":16,"schema":"a_begin(id:u64)","reference_point":false},
                         {"id":17,"schema":"a_end(id:u64)","reference_point":false}]"#;
        let regions = (1..8).fold(Packet::guest(0), |packet, id| {
            packet.event(id * 100, 16, &[id]).event(id * 100 + 50, 17, &[id])
        });
        let made = Made::of_programs(events);
        let made = made.stream("guest-000-0000", &[Packet::guest(0), regions]);
        let recording = Recording::open(&[Given::new(made.path())]).unwrap();
        let options = Options { most_regions: Some(5), ..Options::default() };
        let regions = Regions::of(&recording, &options).unwrap();
        let shown = Shown {
            regions: &regions,
            started_unix_ns: 0,
            groups: regions.groups.iter().collect(),
            of_any: BTreeSet::new(),
        };
        let mut warnings = regions.warnings.clone();
        let line = "there are more than 5 regions: 2 that ended later";
        assert!(warnings.iter().any(|warning| warning.contains(line)), "{warnings:?}");
        let page = crate::regions::html::page(&shown, &recording, &warnings).unwrap();
        assert!(page.contains(line), "{page}");
        let summary = Summary::of(&regions, &warnings);
        let json = json::RegionsJson(&shown.groups, &summary).to_string();
        assert!(json.contains(line) && json.contains("\"too_many\":2"), "{json}");
        let csv = csv::groups(shown.groups());
        let [head, row] = *csv.lines().collect::<Vec<_>>() else { panic!("{csv}") };
        let at = head.split(',').position(|name| name == "too_many").unwrap();
        assert_eq!(row.split(',').nth(at), Some("2"), "{csv}");

        let text = text(&shown, &mut warnings);

        assert!(text.starts_with(line), "{text}");
        assert!(
            text.contains("a: 5 regions") && text.contains("not counted: too many 2"),
            "{text}"
        );
        assert!(!warnings.iter().any(|warning| warning.contains(line)), "said twice: {warnings:?}");
    }

    #[test]
    fn counts_have_five_characters_at_most() {
        for (count, text) in [
            (0.25, "0.2"),
            (1.0, "1"),
            (999.94, "999.9"),
            (999.96, "1,000"),
            (9_999.0, "9,999"),
            (9_999.5, "10.0k"),
            (83_267.0, "83.3k"),
            (635_843.0, "636k"),
            (999_600.0, "1.0M"),
            (12_345_678_901.0, "12.3G"),
        ] {
            assert_eq!(short_count(count), text);
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.00us"),
            (51_684, "51.7us"),
            (99_960, "100us"),
            (26_012_345, "26.0ms"),
            (1_500_000_000, "1.50s"),
            (12_345_000_000_000, "12345s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
