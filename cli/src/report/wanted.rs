//! The options that choose events.

use crate::Usage;
use crate::units::{At, at};
use hypertrace_export::Choice;
use hypertrace_format::pattern::matches;
use hypertrace_timeline::{Filter, FilterError, Recording, nearest, regions};
use std::fmt::Write as _;

/// Which events are wanted.
#[derive(Debug, clap::Args)]
pub struct Wanted {
    /// Only events whose name matches this pattern with * (any text) and ? (any
    /// character). May be given several times
    #[arg(long, value_name = "GLOB")]
    pub event: Vec<String>,

    /// Only events of the thread or vCPU with this number: 1 for guest/1 and program/1. May be given
    /// several times
    #[arg(long, short, value_name = "N")]
    client: Vec<u32>,

    /// Only events for which this condition is true. A condition compares (== != < <= > >=) a field, or
    /// source, event, thread, pid, tid, client or cpu, with a number, true, false, or a text in quotes.
    /// not, and, or, and parentheses join comparisons. For an event without the field, a comparison is
    /// false. In events of the kernel, pid is the thread's number
    #[arg(long = "where", value_name = "EXPR")]
    filter: Option<String>,

    /// Only events from this time on, counted from the start: 1.5ms, 200us, 2s; or as
    /// shown: 0.001500000, 2026-11-27T15:48:15.5Z
    #[arg(long, value_name = "T", value_parser = at, allow_hyphen_values = true)]
    from: Option<At>,
}

impl Wanted {
    /// Returns which events up to a time are wanted. The start is Unix time in nanoseconds.
    ///
    /// # Errors
    /// If the condition cannot be read.
    pub fn choice(&self, start: i64, to: Option<At>) -> Result<Choice, Usage> {
        let unix = |at: At| start.saturating_add(at.since(start));
        let [from_ns, to_ns] = [self.from, to].map(|at| at.map(unix));
        let filter = self.filter.as_deref().map(str::parse).transpose().map_err(wrong)?;
        let (events, clients) = (self.event.clone(), self.client.clone());
        Ok(Choice { events, clients, filter, from_ns, to_ns, ..Choice::default() })
    }

    /// Returns which regions that begin up to a time are wanted. The start is Unix time in nanoseconds.
    ///
    /// # Errors
    /// If the condition cannot be read, or events are chosen by other options.
    pub fn regions(&self, start: i64, to: Option<At>) -> Result<regions::Choice, Usage> {
        if !self.event.is_empty() || !self.client.is_empty() {
            return Err(Usage("--event and --client are not for regions: give --where".into()));
        }
        let filter = self.filter.as_deref().map(Filter::of_regions).transpose().map_err(wrong)?;
        let unix = |at: At| start.saturating_add(at.since(start));
        Ok(regions::Choice {
            filter,
            from_ns: self.from.map(unix),
            to_ns: to.map(|to| unix(to).saturating_add(1)),
            ..regions::Choice::default()
        })
    }

    /// Formats the message that no event matched. For each pattern of a name, the message says whether a
    /// session has an event of that name.
    pub fn unmatched(&self, recording: &Recording) -> String {
        let Recording { sessions, traces, .. } = recording;
        let mut text = "no event matched".to_owned();
        let kernel = Vec::from_iter(traces.iter().flat_map(|trace| trace.events()));
        let classes = sessions.iter().flat_map(|(session, _)| session.classes().iter());
        let classes = Vec::from_iter(classes.map(|class| &*class.name));
        let names = || classes.iter().copied().chain(kernel.iter().map(String::as_str));
        // For a user without root, perf records the switches, and the events then have other names.
        let is_by_perf = kernel.iter().any(|name| name.starts_with("perf:switch_"));
        for glob in &self.event {
            let is_known = names().any(|name| matches(glob, name));
            // Writing to a String does not fail.
            let _ = match is_known {
                true => write!(text, "; {glob} is a known name, but no such event was recorded"),
                false if is_by_perf && glob.starts_with("sched:") => {
                    write!(
                        text,
                        "; perf recorded the switches as perf:switch_in and perf:switch_out"
                    )
                }
                false => match nearest(glob, names()) {
                    Some(near) => write!(text, "; no event is named {glob}; there is {near}"),
                    None => write!(text, "; no event is named {glob}"),
                },
            };
        }
        text
    }
}

/// Returns the error of a condition.
pub fn wrong(filter: FilterError) -> Usage {
    Usage(format!("--where: {filter}"))
}
