//! The numbers for scripts as JSON. docs/json.md has the same members with their types: `schema` compares both.

use super::rows::{Shown, why_unknown};
use hypertrace_export::escape::JsonText;
use hypertrace_export::json::{JSON_VERSION, exact};
use hypertrace_timeline::Warning;
use hypertrace_timeline::regions::{self, Histogram, NotCounted, ThreadInterval, Times};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Regions and warnings as a JSON object.
pub struct Json<'a>(pub &'a Shown<'a>, pub &'a [Warning]);

impl fmt::Display for Json<'_> {
    /// Writes it group by group: they may be many.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Json(shown, warnings) = self;
        write!(f, "{{\"version\":{JSON_VERSION},\"regions\":[")?;
        for (number, group) in shown.groups().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{}", JsonText(&text(&Group::of(shown, group))))?;
        }
        let rest = text(&Rest {
            left_out: shown.left_out().map(|(why, count)| (why.to_owned(), count)).collect(),
            steal_ms: shown.steal_ms,
            guest_steal_ms: shown.regions.guest_steal_ms,
            warnings: warnings.iter().map(|warning| warning.to_string()).collect(),
        });
        let rest = rest.strip_prefix('{').unwrap_or_default();
        writeln!(f, "],{}", JsonText(rest))
    }
}

/// Returns an object as one line. Numbers that readers would round become strings.
pub fn text(object: &impl Serialize) -> String {
    serde_json::to_value(object)
        .map_or_else(|why| why.to_string(), |value| exact(value).to_string())
}

/// The members that belong to no single region.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Rest {
    left_out: BTreeMap<String, u64>,
    steal_ms: Option<u64>,
    guest_steal_ms: Option<u64>,
    warnings: Vec<String>,
}

/// The regions of a name, or of a name and a value.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Group {
    name: String,
    session: usize,
    by: Option<By>,
    count: u64,
    bound_ns: Option<u64>,
    empty_ns: Option<u64>,
    min_ns: Option<u64>,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    histogram: Vec<Step>,
    not_counted: BTreeMap<String, u64>,
    breakdown: Breakdowns,
    total: Breakdown,
    #[serde(rename = "self")]
    own: Own,
    children: Vec<Child>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct By {
    key: String,
    value: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Step {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Breakdowns {
    median: Option<Breakdown>,
    p99: Option<Breakdown>,
    slowest: Option<Breakdown>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Breakdown {
    duration_ns: u64,
    bound_ns: Option<u64>,
    regions: u64,
    parts: Parts,
    exits: Vec<Exit>,
    waits: Vec<Wait>,
    path: Vec<PathStep>,
    exits_of: u64,
    steal_regions: Option<u64>,
    steal_at_most_ns: Option<u64>,
    guest_at_most_ns: Option<u64>,
    guest_includes_kvm: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Exit {
    reason: String,
    count: f64,
    kernel_ns: u64,
    vmm_ns: u64,
    waits_ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Wait {
    part: String,
    cause: String,
    name: Option<String>,
    names: Option<u32>,
    tid: Option<u32>,
    session: Option<usize>,
    ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct PathStep {
    name: Option<String>,
    names: Option<u32>,
    tid: Option<u32>,
    session: Option<usize>,
    doing: String,
    cause: Option<String>,
    ns: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Own {
    duration_ns: u64,
    parts: Parts,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Child {
    name: Option<String>,
    count: u64,
    duration_ns: u64,
    parts: Parts,
}

/// Times by the keys of parts.
#[derive(Serialize)]
struct Parts(Times);

/// What a thread did for some time.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct Interval {
    version: u32,
    session: usize,
    of_guest: bool,
    tid: u32,
    thread: Option<String>,
    t_ns: i64,
    begin_ns: i64,
    duration_ns: u64,
    part: String,
    reason: Option<String>,
    wait: Option<Cause>,
}

/// What a thread waited for.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
struct Cause {
    cause: String,
    name: Option<String>,
    names: Option<u32>,
    tid: Option<u32>,
    session: Option<usize>,
}

impl Group {
    fn of(shown: &Shown<'_>, group: &regions::Group) -> Group {
        let durations = shown.durations(group);
        let known = |ns: u64| (group.count() > 0).then_some(ns);
        let steps = Histogram::of(&durations.all);
        let step =
            |step: &regions::Step| Step { from_ns: step.from, to_ns: step.to, count: step.count };
        let kinds = NotCounted::ALL.iter();
        let kinds =
            kinds.map(|(kind, name)| ((*name).to_owned(), group.not_counted[*kind as usize]));
        let breakdown = |of: &regions::Breakdown| Breakdown::of(shown, group, of);
        let child = |child: &regions::Child| Child {
            name: child.name.clone(),
            count: child.count,
            duration_ns: child.times.total(),
            parts: Parts(child.times),
        };
        let own = group.own_times();
        Group {
            name: group.name.clone(),
            session: group.session,
            by: group.value.clone().map(|value| By { key: shown.by.to_owned(), value }),
            count: group.count(),
            bound_ns: group.bound_ns,
            empty_ns: group.empty_ns,
            min_ns: known(durations.min),
            p50_ns: known(durations.p50),
            p90_ns: known(durations.p90),
            p99_ns: known(durations.p99),
            max_ns: known(durations.max),
            histogram: steps.steps().iter().map(step).collect(),
            not_counted: kinds.collect(),
            breakdown: Breakdowns {
                median: group.median.as_ref().map(breakdown),
                p99: group.p99.as_ref().map(breakdown),
                slowest: group.slowest.as_ref().map(breakdown),
            },
            total: breakdown(&group.total),
            own: Own { duration_ns: own.total(), parts: Parts(own) },
            children: group.children.iter().map(child).collect(),
        }
    }
}

impl Breakdown {
    fn of(shown: &Shown<'_>, group: &regions::Group, of: &regions::Breakdown) -> Breakdown {
        let exits = of.exits.iter().map(|(reason, exits)| Exit {
            reason: shown.reason(*reason).to_owned(),
            count: exits.count,
            kernel_ns: exits.kernel,
            vmm_ns: exits.vmm,
            waits_ns: exits.waits,
        });
        let waits = of.waits.iter().map(|(part, cause, ns)| {
            let Cause { cause, name, names, tid, session } = Cause::of(shown.cause(*cause));
            Wait { part: part.key().to_owned(), cause, name, names, tid, session, ns: *ns }
        });
        Breakdown {
            duration_ns: of.times.total(),
            bound_ns: of.bound_ns,
            regions: of.regions,
            parts: Parts(of.times),
            exits: exits.collect(),
            waits: waits.collect(),
            path: of.path.iter().map(|step| PathStep::of(shown, step)).collect(),
            exits_of: of.exits_of,
            steal_regions: shown.steal_ms.map(|_| of.steals),
            steal_at_most_ns: of.steal_at_most_ns,
            guest_at_most_ns: of.guest_at_most_ns,
            guest_includes_kvm: group.includes_kvm,
        }
    }
}

impl PathStep {
    fn of(shown: &Shown<'_>, step: &regions::PathStep) -> PathStep {
        let cause = step.cause.map(|cause| match shown.cause(cause) {
            regions::Cause::Unknown(why) => why_unknown(*why).to_owned(),
            known => known.to_string(),
        });
        let thread = shown.cause(step.thread);
        let is_thread = matches!(thread, regions::Cause::Thread { .. });
        let Cause { name, names, tid, session, .. } = Cause::of(thread);
        let name = name.filter(|_| is_thread);
        PathStep {
            name,
            names,
            tid,
            session,
            doing: step.part.key().to_owned(),
            cause,
            ns: step.ns,
        }
    }
}

impl Interval {
    /// Returns what a thread did. `start` is the Unix time from which times count.
    pub fn of(thread: &ThreadInterval<'_>, start: i64) -> Interval {
        Interval {
            version: JSON_VERSION,
            session: thread.session,
            of_guest: thread.is_of_guest,
            tid: thread.tid,
            thread: thread.name.map(str::to_owned),
            t_ns: thread.interval.from.saturating_sub(start),
            begin_ns: thread.interval.from,
            duration_ns: thread.interval.length(),
            part: thread.interval.part.key().to_owned(),
            reason: thread.reason.map(str::to_owned),
            wait: thread.cause.as_ref().map(Cause::of),
        }
    }
}

impl Cause {
    fn of(cause: &regions::Cause) -> Cause {
        let (kind, name) = match cause {
            regions::Cause::Unknown(why) => ("unknown", Some(why_unknown(*why))),
            regions::Cause::Thread { name, .. } => ("thread", name.as_deref()),
            regions::Cause::Idle => ("idle", None),
            regions::Cause::Timer => ("timer", None),
            regions::Cause::Interrupt(name) => ("interrupt", name.as_deref()),
            regions::Cause::Softirq(name) => ("softirq", *name),
            _ => ("others", None),
        };
        let (tid, names, session) = match cause {
            regions::Cause::Thread { tid, names, session, .. } => {
                (Some(*tid), Some(*names), *session)
            }
            _ => (None, None, None),
        };
        Cause { cause: kind.to_owned(), name: name.map(str::to_owned), names, tid, session }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypertrace_timeline::regions::{PARTS, Part};
    use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

    impl<'de> Deserialize<'de> for Parts {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Parts, D::Error> {
            static KEYS: [&str; PARTS] = {
                let (mut keys, mut at) = ([""; PARTS], 0);
                while at < PARTS {
                    keys[at] = Part::ALL[at].key_ns();
                    at += 1;
                }
                keys
            };
            struct Times;
            impl<'de> Visitor<'de> for Times {
                type Value = Parts;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("times by parts")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parts, A::Error> {
                    while map.next_entry::<String, u64>()?.is_some() {}
                    Ok(Parts(Default::default()))
                }
            }
            from.deserialize_struct("Parts", &KEYS, Times)
        }
    }
}
