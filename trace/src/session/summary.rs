//! Summary of a session: what it holds and what it lost.

use crate::ctf::Domain;
use crate::drain::{Stats, TraceState};
use hypertrace_format::limits::MAX_LOST;
use hypertrace_format::session_json::StreamJson;
use serde::Serialize;
use std::collections::BTreeMap;

/// Summary of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// Events in the trace: as many as `babeltrace2 DIR/ctf` counts. The sum of the
    /// next five.
    pub records: u64,
    /// Events out of guests' rings.
    pub ring_events: u64,
    /// Reference points.
    pub reference_points: u64,
    /// The VMM's own events.
    pub host_events: u64,
    /// Lease records, of guests' rings and of host rings.
    pub leases: u64,
    /// Timestamps that could not be, with the original kept.
    pub time_faults: u64,
    /// Lost events, all causes, of guests and of the VMM.
    pub lost: u64,
    /// Of these, events of threads that found no client, or of the VMM's that found no
    /// host ring.
    pub lost_unattached: u64,
    /// Events that passed the mask and were not wanted.
    pub filtered: u64,
    /// Guest faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Writes that failed; each was tried again.
    pub write_failures: u64,
    /// Snapshots that were refused to guests' triggers.
    pub snapshots_refused: u64,
    /// Per stream.
    pub streams: Vec<StreamJson>,
}

impl Summary {
    /// Sums up a session's accounts. `refused`: snapshots that were refused to guests' triggers.
    pub(super) fn of(state: &TraceState, refused: u64) -> Summary {
        let unattached = state.unattached.events();
        let mut summary = Summary {
            lost: unattached,
            lost_unattached: unattached,
            write_failures: state.failures.count,
            snapshots_refused: refused,
            streams: state.stats.iter().filter(|s| s.is_used()).map(Stats::to_json).collect(),
            ..Summary::default()
        };
        for stats in &state.stats {
            let counts = &stats.counts;
            summary.records += counts.records();
            summary.reference_points += counts.reference_points;
            summary.leases += counts.leases;
            summary.time_faults += counts.time_faults;
            match stats.domain {
                Domain::Guest => summary.ring_events += counts.events,
                Domain::Host => summary.host_events += counts.events,
            }
            summary.lost = summary.lost.saturating_add(stats.ledger.lost()).min(MAX_LOST);
            let unattached =
                summary.lost_unattached.saturating_add(stats.ledger.causes().unattached);
            summary.lost_unattached = unattached.min(MAX_LOST);
            summary.filtered = summary.filtered.saturating_add(stats.ledger.filtered);
            for (kind, n) in stats.faults_by_kind() {
                let total = summary.faults.entry(kind).or_default();
                *total = total.saturating_add(n);
            }
        }
        summary
    }
}
