//! Summary of a session: counts of the recorded and the lost events.

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
    /// Number of events in the trace, which `babeltrace2 DIR/ctf` counts, too. This number is the sum of the
    /// next five fields.
    pub records: u64,
    /// Number of events from guests' rings.
    pub ring_events: u64,
    /// Number of reference points.
    pub reference_points: u64,
    /// Count of the VMM's own events.
    pub host_events: u64,
    /// Number of lease records, of guests' rings and of host rings.
    pub leases: u64,
    /// Number of impossible timestamps. The trace keeps the original timestamps, too.
    pub time_faults: u64,
    /// Number of lost events of guests and of the VMM, from all causes.
    pub lost: u64,
    /// Number of lost events of guest threads that found no client, and of VMM threads that found no host
    /// ring. `lost` includes this number.
    pub lost_unattached: u64,
    /// Number of events that passed the mask but were not wanted.
    pub filtered: u64,
    /// Guest faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Number of failed writes. The session tried again after each failed write.
    pub write_failures: u64,
    /// Number of snapshots that the session refused to guests' triggers.
    pub snapshots_refused: u64,
    /// Counts of each stream.
    pub streams: Vec<StreamJson>,
}

impl Summary {
    /// Sums up a session's counts. `refused` is the number of refused snapshots of guests' triggers.
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
