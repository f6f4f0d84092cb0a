//! What is shown of regions, and lines of comma-separated values.

use anyhow::{Context, Result};
use hypertrace_export::escape::Csv;
use hypertrace_timeline::regions::{
    Cause, CauseNumber, Group, LeftOut, NotCounted, Part, Regions, Sample, Times, Unknown,
};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Name of the regions that measure what a region itself takes.
pub const EMPTY: &str = "empty";

/// Regions, and options of their output.
pub struct Shown<'a> {
    pub regions: &'a Regions,
    /// The sessions' UUIDs, in their order.
    pub uuids: Vec<String>,
    /// Unix time of the first session's start.
    pub started_unix_ns: i64,
    /// Name of the value by which they are grouped.
    pub by: &'a str,
    /// Whether the cost of an empty region is taken off durations.
    pub subtract: bool,
    /// The groups that are wanted, in their order.
    pub groups: Vec<&'a Group>,
    /// Names of regions that may begin on one thread and end on another.
    pub of_any: BTreeSet<String>,
    /// Time that an outer hypervisor took from the host's CPUs while the kernel's traces were recorded.
    pub steal_ms: Option<u64>,
    /// The most that this can be.
    pub steal_at_most_ms: u64,
}

/// Durations of a group, less the cost of an empty region if that is wanted.
pub struct Durations<'a> {
    /// In ascending order.
    pub all: Cow<'a, [u64]>,
    pub min: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

impl Durations<'_> {
    /// Returns names and values.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("min", self.min),
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("max", self.max),
        ]
    }
}

impl<'a> Shown<'a> {
    /// Iterates over the groups that are wanted.
    pub fn groups(&self) -> impl Iterator<Item = &'a Group> {
        self.groups.iter().copied()
    }

    /// Iterates over why regions are left out, with their numbers.
    pub fn left_out(&self) -> impl Iterator<Item = (&'static str, u64)> {
        LeftOut::ALL.iter().map(|(why, name)| (*name, self.regions.left_out[*why as usize]))
    }

    /// Returns the name of a group's session, if there are groups of several.
    fn session(&self, group: &Group) -> Option<&'a str> {
        let is_other = |other: &Group| other.session != group.session;
        let name = self.regions.sessions.get(group.session)?;
        (self.regions.sessions.len() > 1 && self.groups().any(is_other)).then_some(name)
    }

    /// Returns the time from the first session's start to a region's begin, nanoseconds.
    pub fn since_start(&self, sample: &Sample) -> i64 {
        sample.begin_ns.saturating_sub(self.started_unix_ns)
    }

    /// Returns a group's name, after that of its session if there are several.
    pub fn title(&self, group: &Group) -> String {
        match self.session(group) {
            Some(session) => format!("{session}:{}", group.name),
            None => group.name.clone(),
        }
    }

    /// Returns a group's durations.
    pub fn durations<'g>(&self, group: &'g Group) -> Durations<'g> {
        let off = group.empty_ns.filter(|_| self.subtract).unwrap_or(0);
        let of = |part| group.quantile_ns(part).saturating_sub(off);
        let all = group.durations_ns();
        Durations {
            all: match off {
                0 => all.into(),
                _ => all.iter().map(|ns| ns.saturating_sub(off)).collect(),
            },
            min: of(0.0),
            p50: of(0.5),
            p90: of(0.9),
            p99: of(0.99),
            max: of(1.0),
        }
    }

    /// Returns the cause of a wait.
    pub fn cause(&self, cause: CauseNumber) -> &Cause {
        self.regions.causes.get(usize::from(cause)).unwrap_or(&Cause::Others)
    }

    /// Returns the name of a cause, after that of its session if there are several.
    pub fn cause_name(&self, cause: &Cause) -> String {
        let session = match cause {
            Cause::Thread { session, .. } if self.regions.sessions.len() > 1 => *session,
            _ => None,
        };
        match session.and_then(|session| self.regions.sessions.get(session)) {
            Some(session) => format!("{session}:{cause}"),
            None => cause.to_string(),
        }
    }

    /// Returns the name of an exit's reason.
    pub fn reason(&self, reason: u8) -> &str {
        self.regions.reasons.get(usize::from(reason)).map_or("other", |name| name)
    }

    pub fn csv(&self) -> String {
        let mut out =
            "name,by,session,count,min_ns,p50_ns,p90_ns,p99_ns,max_ns,bound_ns,empty_ns".to_owned();
        // Writing to a String does not fail.
        for (_, name) in NotCounted::ALL {
            let _ = write!(out, ",{name}");
        }
        out.push_str(&part_columns());
        out.push('\n');
        for group in self.groups() {
            let _ = write!(out, "{},{}", Csv(group.name.as_bytes()), Csv(value(group).as_bytes()));
            let _ = write!(out, ",{},{}", group.session, group.count());
            for (_, ns) in self.durations(group).named() {
                let _ = write!(out, ",{}", number((group.count() > 0).then_some(ns)));
            }
            let _ = write!(out, ",{},{}", number(group.bound_ns), number(group.empty_ns));
            for (kind, _) in NotCounted::ALL {
                let _ = write!(out, ",{}", group.not_counted[kind as usize]);
            }
            out.push_str(&part_values(&group.total.times));
            out.push('\n');
        }
        out
    }

    /// Prints a line for each region.
    pub fn samples(&self) -> Result<()> {
        let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let columns = part_columns();
        let begin = "name,by,session,client,id,t_ns,begin_ns,duration_ns";
        writeln!(out, "{begin}{columns},session_uuid").context("cannot write")?;
        let hides_empty = self.groups().all(|group| group.name != EMPTY);
        for sample in self.regions.samples() {
            let Some(group) = self.regions.groups.get(sample.group as usize) else { continue };
            if hides_empty && group.name == EMPTY {
                continue;
            }
            let off = group.empty_ns.filter(|_| self.subtract).unwrap_or(0);
            writeln!(
                out,
                "{},{},{},{},{},{},{},{}{},{}",
                Csv(group.name.as_bytes()),
                Csv(value(group).as_bytes()),
                sample.session,
                number(sample.client().map(u64::from)),
                sample.id,
                self.since_start(sample),
                sample.begin_ns,
                sample.duration_ns().saturating_sub(off),
                part_values(&sample.times),
                self.uuids.get(usize::from(sample.session)).map_or("", |uuid| uuid)
            )
            .context("cannot write")?;
        }
        out.flush().context("cannot write")
    }
}

/// Returns the name of why something is not known.
pub fn why_unknown(why: Unknown) -> &'static str {
    match why {
        Unknown::NotRecorded => "not_recorded",
        Unknown::Missing => "missing_event",
        Unknown::TooMany => "too_many",
        Unknown::NoThread => "no_thread",
        Unknown::Clock => "clock_error",
        Unknown::Vcpu => "vcpu_not_proven",
        Unknown::Border => "clock_bound",
    }
}

fn value(group: &Group) -> &str {
    group.value.as_deref().unwrap_or_default()
}

fn number(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn part_columns() -> String {
    Part::ALL.iter().fold(String::new(), |out, part| format!("{out},{}", part.key_ns()))
}

fn part_values(times: &Times) -> String {
    times.iter().fold(String::new(), |out, (_, ns)| format!("{out},{ns}"))
}
