//! Indices of the charts that can be zoomed, for the page's script. The amount of numbers has a limit that
//! does not depend on the number of regions.

use super::super::rows::Shown;
use super::super::text::{ALL_THREADS, time};
use super::short;
use hypertrace_export::escape::JsonInHtml;
use hypertrace_timeline::regions::{
    Cause, CauseNumber, Group, Lane, Lanes, Part, Sample, Turn, Unknown, Window,
};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Numbers of points of a curve. `EVENLY` points have even steps over all regions. The slowest tenth of the
/// regions has `IN_A_TENTH` further points. The slowest hundredth, the slowest thousandth and so on each have
/// as many.
const EVENLY: usize = 200;
const IN_A_TENTH: usize = 40;
/// Number of slowest regions of a group that have lanes. The median region and the p99 region have lanes,
/// too.
const SLOWEST: usize = 3;
/// Maximum number of regions of the page that have lanes.
const MAX_WINDOWS: usize = 64;
/// Maximum number of intervals of all lanes of the page.
const MAX_INTERVALS: usize = 16_000;
/// Maximum number of intervals of a window.
const MAX_IN_WINDOW: usize = 2_000;

/// Charts of the groups.
pub struct Charts {
    groups: Vec<Value>,
    reasons: Vec<String>,
    causes: Vec<String>,
    /// For each cause of a wait, the holder of the CPU, as an index into [`WHO`].
    who: Vec<usize>,
    /// For each group, the parts that appear in its lanes. Empty if there are no lanes.
    pub parts: Vec<Vec<Part>>,
    /// For each group, whether a holder of this kind had a CPU in the group's lanes. The kinds are in the
    /// order of [`WHO`].
    pub owners: Vec<[bool; WHO.len()]>,
}

/// Kinds of holders of a CPU. The page shows these names beside the colours.
pub const WHO: [&str; 5] =
    ["this thread", "another thread of a session", "any other thread", "none: idle", "not known"];
const OWN: usize = 0;
const SESSIONS: usize = 1;
const OTHER: usize = 2;
const IDLE: usize = 3;
const UNKNOWN: usize = 4;

impl Charts {
    /// Makes the charts of groups.
    pub fn of(shown: &Shown<'_>, groups: &[&Group]) -> Charts {
        let mut chosen: Vec<(usize, String, Sample)> = Vec::new();
        let has_kernel = shown.regions.has_kernel;
        for (index, group) in groups.iter().enumerate().filter(|_| has_kernel) {
            chosen.extend(choose(shown, group).into_iter().map(|(name, s)| (index, name, s)));
        }
        chosen.truncate(MAX_WINDOWS);
        let most = (MAX_INTERVALS / chosen.len().max(1)).min(MAX_IN_WINDOW);
        let mut by_group = vec![Vec::new(); groups.len()];
        let mut parts = vec![Vec::new(); groups.len()];
        let mut owners = vec![[false; WHO.len()]; groups.len()];
        let mut causes = Numbered::new(shown);
        for (group, label, sample) in &chosen {
            let window = window(sample);
            let lanes = shown.regions.lanes(sample, &window);
            let intervals = lanes.lanes.iter().flat_map(|lane| &lane.intervals);
            for part in intervals.map(|interval| interval.part) {
                if !parts[*group].contains(&part) {
                    parts[*group].push(part);
                }
            }
            for turn in lanes.lanes.iter().flat_map(|lane| &lane.turns).flatten() {
                let who = turn.other.map_or(OWN, |cause| who(shown.regions.cause(cause)));
                owners[*group][who] = true;
            }
            if !lanes.lanes.is_empty() {
                by_group[*group].push(window_json(
                    label,
                    sample,
                    &window,
                    (lanes, most),
                    &mut causes,
                ));
            }
        }
        let groups = groups.iter().zip(by_group).map(|(group, windows)| {
            let (x, y) = curve(group.durations_ns());
            json!({ "name": short(&shown.title(group)), "x": x, "ys": [y], "windows": windows })
        });
        let reasons = match chosen.is_empty() {
            true => Vec::new(),
            false => shown.regions.reasons.iter().map(|reason| short(reason)).collect(),
        };
        let (groups, causes, who) = (groups.collect(), causes.names, causes.who);
        Charts { groups, reasons, causes, who, parts, owners }
    }

    /// Returns the text of a `script` element of data.
    pub fn data(&self) -> String {
        let all = json!({
            "parts": Part::ALL.map(Part::label),
            "keys": Part::ALL,
            "reasons": self.reasons,
            "causes": self.causes,
            "who": self.who,
            "groups": self.groups,
        });
        JsonInHtml(&all.to_string()).to_string()
    }
}

/// Returns the regions of a group that have lanes.
fn choose(shown: &Shown<'_>, group: &Group) -> Vec<(String, Sample)> {
    let slowest = shown.regions.slowest(group).take(SLOWEST).enumerate();
    let slowest = slowest.map(|(index, (sample, _))| match index {
        0 => ("slowest".to_owned(), *sample),
        index => (format!("no. {} of the slowest", index + 1), *sample),
    });
    let others = [("at p99", &group.breakdown.p99), ("near the median", &group.breakdown.median)];
    let others = others
        .into_iter()
        .filter_map(|(name, breakdown)| Some((name.to_owned(), breakdown.as_ref()?.example?)));
    let mut chosen: Vec<(String, Sample)> = Vec::new();
    for (name, sample) in slowest.chain(others) {
        if !chosen.iter().any(|(_, known)| *known == sample) {
            chosen.push((format!("{name}: {}", time(sample.duration_ns())), sample));
        }
    }
    chosen
}

/// Returns the time window around a region, with a tenth of the region's duration before and after.
fn window(sample: &Sample) -> Window {
    Window {
        begin: sample.begin_ns,
        end: sample.end_ns(),
        around: (sample.duration_ns() / 10).max(1_000),
    }
}

/// Returns the points of a curve: durations, and for each duration the share of the regions that took at most
/// this duration.
fn curve(sorted: &[u64]) -> (Vec<f64>, Vec<f64>) {
    let len = sorted.len();
    let mut ranks: Vec<usize> = (0..=EVENLY).map(|step| step * len / EVENLY).collect();
    // More points are in the last tenth, the last hundredth and so on.
    let mut above = len;
    while above > 0 {
        ranks.extend((0..=IN_A_TENTH).map(|step| len - above * step / IN_A_TENTH));
        above /= 10;
    }
    ranks.sort_unstable();
    ranks.dedup();
    let (mut x, mut y): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for rank in ranks.into_iter().filter(|rank| *rank > 0) {
        let duration = sorted[rank - 1];
        // A duration of 0 becomes 0.5 ns, because a logarithmic axis has no 0.
        let shown = (duration as f64).max(0.5);
        if x.last() != Some(&shown) {
            x.push(shown);
            let at_most = sorted.partition_point(|other| *other <= duration);
            y.push(at_most as f64 / len as f64);
        }
    }
    (x, y)
}

/// Returns a window with the intervals of each lane. Each interval has three numbers: the time since the
/// previous interval, the length, and a code. The code stands for the part together with the reason of the
/// exit or the cause of the wait.
fn window_json(
    label: &str,
    sample: &Sample,
    window: &Window,
    (lanes, most): (Lanes, usize),
    causes: &mut Numbered<'_>,
) -> Value {
    let Lanes { lanes, left_out, has_own, .. } = lanes;
    let each = (most / lanes.len()).max(1);
    let mut is_partial = false;
    let has_turns = lanes.iter().any(|lane| lane.turns.is_some());
    let own =
        if has_own { "The first lane is the region's thread; the dashed" } else { "The dashed" };
    let lanes: Vec<Value> = lanes
        .into_iter()
        .map(|mut lane| {
            lane.shorten(each, window);
            is_partial |= !lane.is_whole;
            lane_json(&lane, window.from(), causes)
        })
        .collect();
    let mut note = format!("{own} lines are the region's beginning and end.");
    if is_partial {
        note.push_str(" Blank: too short to be shown, or too long ago to be known.");
    }
    note.push_str(&match has_turns {
        true => {
            " The bar below a thread's lane shows who had the CPU that the thread was on or waited \
                 for; the bar is empty while the thread was blocked."
                .into()
        }
        false => format!(" Nothing shows who had the threads' CPUs: {ALL_THREADS}."),
    });
    if left_out > 0 {
        note.push_str(&format!(" {left_out} more threads are left out."));
    }
    json!({
        "label": label,
        "note": note,
        "length": sample.duration_ns(),
        "from": window.from().saturating_sub(sample.begin_ns),
        "to": window.to().saturating_sub(sample.begin_ns),
        "lanes": lanes,
    })
}

/// Causes of waits that are on the page, numbered from 1 in the order in which the page first uses the
/// causes. The number 0 means no cause.
struct Numbered<'a> {
    shown: &'a Shown<'a>,
    numbers: HashMap<CauseNumber, i64>,
    names: Vec<String>,
    who: Vec<usize>,
}

impl Numbered<'_> {
    fn new<'a>(shown: &'a Shown<'a>) -> Numbered<'a> {
        Numbered { shown, numbers: HashMap::new(), names: Vec::new(), who: Vec::new() }
    }

    fn number(&mut self, cause: CauseNumber) -> i64 {
        *self.numbers.entry(cause).or_insert_with(|| {
            let cause = self.shown.regions.cause(cause);
            let why = match cause {
                Cause::Unknown(Unknown::NotRecorded) => {
                    ": only the session's threads were recorded"
                }
                Cause::Unknown(Unknown::Missing) => ": an event is missing",
                Cause::Unknown(Unknown::TooMany) => ": there were too many threads",
                Cause::Unknown(Unknown::NoThread) => ": nothing says which thread this is",
                Cause::Unknown(Unknown::Clock | Unknown::Border) => {
                    ": the guest's clock is not exact enough"
                }
                Cause::Unknown(Unknown::Vcpu) => ": what the guest's CPU did is not proven",
                _ => "",
            };
            self.names.push(short(&self.shown.cause_name(cause)) + why);
            self.who.push(who(cause));
            self.names.len() as i64
        })
    }
}

/// Returns who has a CPU, as an index into [`WHO`].
fn who(cause: &Cause) -> usize {
    match cause {
        Cause::Thread { session: Some(_), .. } => SESSIONS,
        Cause::Thread { .. } => OTHER,
        Cause::Idle => IDLE,
        _ => UNKNOWN,
    }
}

/// Returns a lane, which has intervals and turns of the CPU. Each turn has four numbers: the time since the
/// previous turn, the length, the CPU (-1 if unknown), and a code for the cause of the wait.
fn lane_json(lane: &Lane, from: i64, causes: &mut Numbered<'_>) -> Value {
    let mut at = from;
    let mut numbers = Vec::with_capacity(lane.intervals.len() * 3);
    for interval in &lane.intervals {
        let why = match interval.part {
            Part::Kernel => i64::from(interval.reason),
            Part::Runnable | Part::Blocked => causes.number(interval.cause),
            _ => 0,
        };
        let length = interval.to.saturating_sub(interval.from);
        numbers.extend([interval.from.saturating_sub(at), length, interval.part as i64 + 16 * why]);
        at = interval.to;
    }
    let name = format!("{} ({})", short(&lane.name), lane.tid);
    let mut at = from;
    let mut turn = |&Turn { from, to, cpu, other, .. }: &Turn| {
        let since = from.saturating_sub(std::mem::replace(&mut at, to));
        let other = other.map_or(0, |cause| causes.number(cause));
        [since, to.saturating_sub(from), cpu.map_or(-1, i64::from), other]
    };
    let turns = lane.turns.as_ref().map(|turns| Vec::from_iter(turns.iter().flat_map(&mut turn)));
    json!({ "name": name, "intervals": numbers, "turns": turns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_with_all_regions_and_has_few_points() {
        for len in [1, 2, 9, 100, 12_345, 1_000_000] {
            let sorted: Vec<u64> = (0..len).collect();
            let (x, y) = curve(&sorted);
            assert_eq!((x.len(), y.last()), (y.len(), Some(&1.0)));
            assert_eq!(x.last(), Some(&((len - 1) as f64).max(0.5)));
            assert!(x.windows(2).all(|pair| pair[0] < pair[1]), "{len}");
            assert!(y.is_sorted() && x.len() < 500, "{len}: {}", x.len());
            for (x, y) in x.iter().zip(&y).filter(|(x, _)| **x >= 1.0) {
                let at_most = sorted.partition_point(|ns| *ns as f64 <= *x);
                assert_eq!(at_most as f64 / len as f64, *y);
            }
        }
        assert_eq!(curve(&[7, 7, 7]), (vec![7.0], vec![1.0]));
    }
}
