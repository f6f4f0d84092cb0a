//! The regions and groups that the output shows.

use hypertrace_timeline::regions::{Cause, Group, Regions, Sample};
use std::collections::BTreeSet;

/// Regions, and options of the output.
pub struct Shown<'a> {
    pub regions: &'a Regions,
    /// Unix time of the first session's start, in nanoseconds.
    pub started_unix_ns: i64,
    /// The wanted groups, in the order of the output.
    pub groups: Vec<&'a Group>,
    /// Names of regions that may begin on one thread and end on another thread.
    pub of_any: BTreeSet<String>,
}

impl<'a> Shown<'a> {
    /// Iterates over the wanted groups.
    pub fn groups(&self) -> impl Iterator<Item = &'a Group> {
        self.groups.iter().copied()
    }

    /// Returns the name of a group's session, if the wanted groups belong to several sessions.
    fn session(&self, group: &Group) -> Option<&'a str> {
        let is_other = |other: &Group| other.session != group.session;
        let name = self.regions.sessions.get(group.session)?;
        (self.regions.sessions.len() > 1 && self.groups().any(is_other)).then_some(name)
    }

    /// Returns the time from the first session's start to a region's begin, in nanoseconds.
    pub fn since_start(&self, sample: &Sample) -> i64 {
        sample.begin_ns.saturating_sub(self.started_unix_ns)
    }

    /// Returns a group's name. If there are several sessions, the session's name stands in front.
    pub fn title(&self, group: &Group) -> String {
        match self.session(group) {
            Some(session) => format!("{session}:{}", group.name),
            None => group.name.clone(),
        }
    }

    /// Returns the name of a cause. If there are several sessions, the session's name stands in front.
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
}
