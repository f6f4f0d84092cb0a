// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What outputs show in addition to groups: a summary of all regions together, and a line for each interval
//! of a thread.

use super::causes::Cause;
use super::choice::LeftOut;
use super::parts::Part;
use super::{Regions, ThreadInterval};
use hypertrace_format::error::Warning;
use serde::Serialize;
use std::collections::BTreeMap;

/// Facts that belong to no single group: all members of `hypertrace regions --json` except the groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct Summary {
    /// For each [`LeftOut`], the number of regions that are left out for this reason.
    pub left_out: BTreeMap<String, u64>,
    /// As [`Regions::steal_ms`].
    pub steal_ms: Option<u64>,
    /// As [`Regions::guest_steal_ms`].
    pub guest_steal_ms: Option<u64>,
    /// What the user should know about the numbers.
    pub warnings: Vec<String>,
}

impl Summary {
    /// Returns the summary of regions, with these warnings.
    pub fn of(regions: &Regions, warnings: &[Warning]) -> Summary {
        let left_out =
            |(why, name): (LeftOut, &str)| (name.to_owned(), regions.left_out[why as usize]);
        Summary {
            left_out: LeftOut::ALL.into_iter().map(left_out).collect(),
            steal_ms: regions.steal_ms,
            guest_steal_ms: regions.guest_steal_ms,
            warnings: warnings.iter().map(|warning| warning.to_string()).collect(),
        }
    }
}

/// What a thread did for some time: a line of `hypertrace regions --intervals`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct IntervalLine {
    /// Index of the session.
    pub session: usize,
    /// Whether the thread belongs to a guest whose own kernel was recorded. If false, the thread belongs to
    /// the host.
    pub of_guest: bool,
    /// Id of the thread.
    pub tid: u32,
    /// Name of the thread, if it is known. The program chooses the name: escape it.
    pub thread: Option<String>,
    /// Time from the recording's start to the interval's beginning in nanoseconds.
    pub t_ns: i64,
    /// Unix time of the interval's beginning in nanoseconds.
    pub begin_ns: i64,
    /// Length of the interval in nanoseconds.
    pub duration_ns: u64,
    /// Part that says what the thread did.
    pub part: Part,
    /// Reason of the exit, as [`ThreadInterval::reason`].
    pub reason: Option<String>,
    /// What the thread waited for, as [`ThreadInterval::cause`].
    pub wait: Option<Cause>,
}

impl IntervalLine {
    /// Returns the line of an interval. `start_unix_ns` is the Unix time in nanoseconds from which `t_ns`
    /// counts: see [`Recording::start_unix_ns`](crate::Recording::start_unix_ns).
    pub fn of(of: &ThreadInterval<'_>, start_unix_ns: i64) -> IntervalLine {
        IntervalLine {
            session: of.session,
            of_guest: of.is_of_guest,
            tid: of.tid,
            thread: of.name.map(str::to_owned),
            t_ns: of.interval.from.saturating_sub(start_unix_ns),
            begin_ns: of.interval.from,
            duration_ns: of.interval.length(),
            part: of.interval.part,
            reason: of.reason.map(str::to_owned),
            wait: of.cause.clone(),
        }
    }
}
