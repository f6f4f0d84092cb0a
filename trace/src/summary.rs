//! What a session holds, told at its end.

use crate::engine::Engine;
use crate::lane::{MOST_LOST, Stats};
use crate::packet::Domain;
use crate::session_json::StreamJson;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a session holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Events in the trace: what `babeltrace2 DIR/ctf` counts. The sum of the
    /// next six.
    pub records: u64,
    /// Events out of guests' rings.
    pub ring_events: u64,
    /// Reference points.
    pub reference_points: u64,
    /// Kernel-stamped points.
    pub stamps: u64,
    /// The VMM's own events.
    pub host_events: u64,
    /// Lease records, of guests' rings and of host rings.
    pub leases: u64,
    /// Timestamps that could not be, kept as they were.
    pub time_faults: u64,
    /// Lost events, all causes, of guests and of the VMM.
    pub lost: u64,
    /// Events that passed the mask and were not wanted.
    pub filtered: u64,
    /// Guest faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Writes that failed; what they should have written was tried again.
    pub write_failures: u64,
    /// Snapshots that were refused to guests' triggers.
    pub snapshots_refused: u64,
    /// Per stream.
    pub streams: Vec<StreamJson>,
}

impl Summary {
    /// `unattached`: what threads without a host ring could not record.
    pub(crate) fn of(engine: &Engine, unattached: u64) -> Summary {
        let shared = &engine.shared;
        let mut summary = Summary {
            lost: unattached,
            write_failures: shared.failures,
            snapshots_refused: engine.recorder.as_ref().map_or(0, |recorder| recorder.refused),
            streams: shared.stats.iter().filter(|s| s.is_used()).map(Stats::to_json).collect(),
            ..Summary::default()
        };
        for stats in &shared.stats {
            let counts = &stats.counts;
            summary.records += counts.records();
            summary.reference_points += counts.reference_points;
            summary.stamps += counts.stamps;
            summary.leases += counts.leases;
            summary.time_faults += counts.time_faults;
            match stats.domain {
                Domain::Guest => summary.ring_events += counts.events,
                Domain::Host => summary.host_events += counts.events,
            }
            summary.lost = summary.lost.saturating_add(stats.lost()).min(MOST_LOST);
            summary.filtered = summary.filtered.saturating_add(stats.filtered);
            for (kind, n) in stats.faults_by_kind() {
                let total = summary.faults.entry(kind).or_default();
                *total = total.saturating_add(n);
            }
        }
        summary
    }
}
