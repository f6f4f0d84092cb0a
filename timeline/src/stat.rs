// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counts of a session: recorded, lost, and filtered events, and faults.

use crate::error::Result;
use crate::event::EventKind;
use crate::inputs::ctf::{Domain, Session, Stream};
use hypertrace_abi::ring::Losses;
use serde::Serialize;
use std::collections::BTreeMap;

/// Counts of one stream. A count comes from the stream's packets, unless the count's description names
/// another source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "Members")]
#[non_exhaustive]
pub struct StreamStat {
    /// Producer of the stream. `None` in a total.
    pub stream: Option<(Domain, u32)>,
    /// Name of the stream's last holder. The guest chooses the name, so escape the name.
    pub name: String,
    /// Number of packets with events.
    pub packets: u64,
    /// Number of records of any kind in the stream's files. Other readers report this number.
    pub records: u64,
    /// Number of events: declared events, events of the 2016 interface, and untyped events. An event that a
    /// vCPU thread recorded for a client counts for the client.
    pub events: u64,
    /// Number of reference points of this client, in any stream.
    pub reference_points: u64,
    /// Number of lost events, over all causes.
    pub lost: u64,
    /// For each cause, the number of lost events, from `session.json`. A total includes the losses of
    /// processes without any client.
    pub causes: Losses,
    /// Number of events that passed the mask but were wanted by no trace.
    pub filtered: u64,
    /// Number of guest faults.
    pub faults: u64,
    /// For each kind, the number of guest faults, from `session.json`.
    pub faults_by_kind: BTreeMap<String, u64>,
}

/// The members of [`StreamStat`] in JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(crate) struct Members {
    domain: Option<String>,
    client: Option<u32>,
    name: Option<String>,
    packets: u64,
    records: u64,
    events: u64,
    reference_points: u64,
    lost: u64,
    lost_full: u64,
    lost_busy: u64,
    lost_unattached: u64,
    lost_overwritten: u64,
    filtered: u64,
    faults_total: u64,
    faults: BTreeMap<String, u64>,
}

impl From<StreamStat> for Members {
    fn from(of: StreamStat) -> Members {
        let (domain, client) = of.stream.unzip();
        Members {
            domain: domain.map(|domain| domain.name().to_owned()),
            client,
            name: domain.map(|_| of.name),
            packets: of.packets,
            records: of.records,
            events: of.events,
            reference_points: of.reference_points,
            lost: of.lost,
            lost_full: of.causes.full,
            lost_busy: of.causes.busy,
            lost_unattached: of.causes.unattached,
            lost_overwritten: of.causes.overwritten,
            filtered: of.filtered,
            faults_total: of.faults,
            faults: of.faults_by_kind,
        }
    }
}

/// Counts of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SessionStat {
    /// Counts of each stream. The host's streams come first.
    pub streams: Vec<StreamStat>,
    /// Sums over all streams.
    pub total: StreamStat,
    /// Number of events and reference points that `session.json` counts but no file holds. Missing events do
    /// not count as lost in `total`, because the recorder wrote their packets, and the packets disappeared
    /// only later.
    pub missing: u64,
}

impl SessionStat {
    /// Counts everything in a session.
    ///
    /// # Errors
    /// If the session is damaged.
    pub fn of(session: &Session) -> Result<SessionStat> {
        let mut streams = Stats::default();
        for stream in session.streams() {
            count(session, stream, &mut streams)?;
        }
        for described in &session.json().streams {
            let stat = stat_of(&mut streams, described.domain, described.client);
            stat.name.clone_from(&described.name);
            stat.causes = described.causes();
            stat.faults_by_kind.clone_from(&described.faults);
        }
        let has_files = |uuid: &_, domain, client| session.has_files(uuid, domain, client);
        for described in session.json().without_files(&has_files) {
            // The counts come from the description, because a stream without files has no packets with these
            // counts.
            let add = |sum: u64, n: u64| sum.saturating_add(n);
            let stat = stat_of(&mut streams, described.domain, described.client);
            stat.lost = stat.lost.saturating_add(described.lost());
            stat.filtered = stat.filtered.saturating_add(described.filtered);
            stat.faults = described.faults.values().copied().fold(stat.faults, add);
        }
        let streams: Vec<StreamStat> = streams.into_values().collect();
        let mut total = streams.iter().fold(StreamStat::default(), StreamStat::add);
        let unattached = session.json().lost_unattached;
        total.lost = total.lost.saturating_add(unattached);
        total.causes.unattached = total.causes.unattached.saturating_add(unattached);
        let held = total.events.saturating_add(total.reference_points);
        Ok(SessionStat { missing: session.counted().saturating_sub(held), total, streams })
    }
}

impl StreamStat {
    fn add(mut self, other: &StreamStat) -> StreamStat {
        self.packets += other.packets;
        self.records += other.records;
        self.events += other.events;
        self.reference_points += other.reference_points;
        self.lost = self.lost.saturating_add(other.lost);
        let causes = &mut self.causes;
        causes.full = causes.full.saturating_add(other.causes.full);
        causes.busy = causes.busy.saturating_add(other.causes.busy);
        causes.unattached = causes.unattached.saturating_add(other.causes.unattached);
        causes.overwritten = causes.overwritten.saturating_add(other.causes.overwritten);
        self.filtered = self.filtered.saturating_add(other.filtered);
        self.faults = self.faults.saturating_add(other.faults);
        for (kind, n) in &other.faults_by_kind {
            let sum = self.faults_by_kind.entry(kind.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
        self
    }
}

type Stats = BTreeMap<(Domain, u32), StreamStat>;

fn stat_of(stats: &mut Stats, domain: Domain, client: u32) -> &mut StreamStat {
    let stream = Some((domain, client));
    let new = || StreamStat { stream, ..StreamStat::default() };
    stats.entry((domain, client)).or_insert_with(new)
}

fn count(session: &Session, stream: &Stream, stats: &mut Stats) -> Result<()> {
    let Stream { domain, client, .. } = *stream;
    let mut own = std::mem::take(stat_of(stats, domain, client));
    own.stream = Some((domain, client));
    own.packets = stream.segments.iter().map(|s| s.packets).sum();
    // Packets hold running totals since the session's beginning. The losses in each file count from the
    // file's first packet on. Other readers count in the same way, because they read each file as a separate
    // stream.
    own.lost = stream
        .segments
        .iter()
        .map(|s| s.last.events_discarded.saturating_sub(s.first.events_discarded))
        .fold(0, u64::saturating_add);
    // The totals begin anew in a recovered part. A recovered part has a UUID of its own.
    for part in stream.segments.chunk_by(|a, b| a.first.uuid == b.first.uuid) {
        if let Some(segment) = part.last() {
            own.filtered = own.filtered.saturating_add(segment.last.events_filtered);
            own.faults = own.faults.saturating_add(segment.last.faults);
        }
    }
    let mut records = stream.records(session.classes());
    while let Some(record) = records.read()? {
        own.records += 1;
        let stat = match (domain, record.made_for()) {
            (Domain::Host, Some(client)) => stat_of(stats, Domain::Guest, client),
            _ => &mut own,
        };
        match record.kind() {
            EventKind::Event | EventKind::Hypertrace | EventKind::Untyped => stat.events += 1,
            EventKind::ReferencePoint => stat.reference_points += 1,
            EventKind::Lease | EventKind::TimeFault | EventKind::Kernel | EventKind::Function => {}
        }
    }
    stats.insert((domain, client), own);
    Ok(())
}
