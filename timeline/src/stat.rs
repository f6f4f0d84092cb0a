//! A session's accounts: what came, what was lost, what was refused.

use crate::error::Result;
use crate::merge::Kind;
use crate::packet::Domain;
use crate::reference::ClockMaps;
use crate::session::Session;
use crate::stream::Stream;
use hypertrace_abi::record::Flags;
use std::collections::BTreeMap;

/// Accounts of one stream, counted in its packets unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStat {
    /// Who produced it; none in a total.
    pub stream: Option<(Domain, u32)>,
    /// Its last lessee's name, as the guest says: escape it.
    pub name: String,
    /// Packets with events.
    pub packets: u64,
    /// Records in its files, of whatever kind: what other readers count.
    pub records: u64,
    /// Events: declared ones, those of the 2016 interface, untyped ones.
    /// Those that a vCPU thread took count for their client.
    pub events: u64,
    /// Reference points of this client, wherever they stand.
    pub reference_points: u64,
    /// Kernel-stamped points.
    pub stamps: u64,
    /// Lost, all causes.
    pub lost: u64,
    /// Of these, because the ring was full, as `session.json` says.
    pub lost_full: u64,
    /// Inside an interrupted emit, as `session.json` says.
    pub lost_busy: u64,
    /// By threads that had no client, as `session.json` says. A total has those
    /// of processes without any client too.
    pub lost_unattached: u64,
    /// Because the ring went round, as `session.json` says.
    pub lost_overwritten: u64,
    /// Passed the mask, and nobody wanted them.
    pub filtered: u64,
    /// Guest faults.
    pub faults: u64,
    /// Guest faults by kind, as `session.json` says.
    pub faults_by_kind: BTreeMap<String, u64>,
}

/// How well a guest clock is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockStat {
    /// Clock, which is a stream class.
    pub id: u32,
    /// The client, where each has its own map.
    pub client: Option<u32>,
    /// Guest readings that the map was fitted to.
    pub constraints: usize,
    /// Lines that it is made of.
    pub segments: usize,
}

/// Accounts of a session.
#[derive(Clone, Debug)]
pub struct SessionStat {
    /// By stream: those of the host first.
    pub streams: Vec<StreamStat>,
    /// All together.
    pub total: StreamStat,
    /// Guest clocks.
    pub clocks: Vec<ClockStat>,
    /// Reference points that say nothing about a clock.
    pub unusable: u64,
    /// Events, reference points and stamps that `session.json` counts and no file holds. None of
    /// them is lost in the sense of `total`: their packets were written, and are gone.
    pub missing: u64,
}

impl SessionStat {
    /// Counts everything in a session.
    ///
    /// # Errors
    /// If the session is damaged.
    pub fn of(session: &Session) -> Result<SessionStat> {
        let mut streams = BTreeMap::new();
        for stream in session.streams() {
            count(session, stream, &mut streams)?;
        }
        for said in &session.json().streams {
            let stat = stat_of(&mut streams, said.domain, said.client);
            stat.name.clone_from(&said.name);
            stat.lost_full = said.lost_full;
            stat.lost_busy = said.lost_busy;
            stat.lost_unattached = said.lost_unattached;
            stat.lost_overwritten = said.lost_overwritten;
            stat.faults_by_kind.clone_from(&said.faults);
            if !session.streams().iter().any(|s| (s.domain, s.client) == (said.domain, said.client))
            {
                // It has no packets that could say so.
                let add = |sum: u64, n: u64| sum.saturating_add(n);
                stat.lost = said.lost();
                stat.filtered = said.filtered;
                stat.faults = said.faults.values().copied().fold(0, add);
            }
        }
        let streams: Vec<StreamStat> = streams.into_values().collect();
        let maps = ClockMaps::of(session)?;
        let mut total = streams.iter().fold(StreamStat::default(), StreamStat::add);
        let unattached = session.json().lost_unattached;
        total.lost = total.lost.saturating_add(unattached);
        total.lost_unattached = total.lost_unattached.saturating_add(unattached);
        let held = [total.events, total.reference_points, total.stamps];
        let held = held.into_iter().fold(0, u64::saturating_add);
        Ok(SessionStat {
            missing: session.counted().saturating_sub(held),
            total,
            streams,
            clocks: maps
                .iter()
                .map(|(id, client, map)| ClockStat {
                    id,
                    client,
                    constraints: map.constraints(),
                    segments: map.segments(),
                })
                .collect(),
            unusable: maps.unusable(),
        })
    }
}

impl StreamStat {
    fn add(mut self, other: &StreamStat) -> StreamStat {
        self.packets += other.packets;
        self.records += other.records;
        self.events += other.events;
        self.reference_points += other.reference_points;
        self.stamps += other.stamps;
        self.lost = self.lost.saturating_add(other.lost);
        self.lost_full = self.lost_full.saturating_add(other.lost_full);
        self.lost_busy = self.lost_busy.saturating_add(other.lost_busy);
        self.lost_unattached = self.lost_unattached.saturating_add(other.lost_unattached);
        self.lost_overwritten = self.lost_overwritten.saturating_add(other.lost_overwritten);
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
    stats.entry((domain, client)).or_insert_with(|| StreamStat { stream, ..StreamStat::default() })
}

fn count(session: &Session, stream: &Stream, stats: &mut Stats) -> Result<()> {
    let Stream { domain, client, .. } = *stream;
    let mut own = std::mem::take(stat_of(stats, domain, client));
    own.stream = Some((domain, client));
    own.packets = stream.segments.iter().map(|s| s.packets).sum();
    // Running totals since the session's begin; but to other readers each file
    // is a stream of its own, which begins without losses.
    own.lost = stream
        .segments
        .iter()
        .map(|s| s.last.discarded.saturating_sub(s.first.discarded))
        .fold(0, u64::saturating_add);
    if let Some(segment) = stream.segments.last() {
        own.filtered = segment.last.filtered;
        own.faults = segment.last.faults;
    }
    let mut records = stream.records(session.classes());
    while let Some(record) = records.read()? {
        own.records += 1;
        let kind = Kind::of(record.class, Flags::from_bits_retain(record.flags));
        let guest = match (domain, kind) {
            (Domain::Host, Kind::ReferencePoint) => {
                record.class.reference(record.payload).map(|r| r.client)
            }
            (Domain::Host, Kind::Hypertrace) => record.payload.first().map(|c| *c as u32),
            _ => None,
        };
        let stat = match guest {
            Some(client) => stat_of(stats, Domain::Guest, client),
            None => &mut own,
        };
        match kind {
            Kind::Event | Kind::Hypertrace | Kind::Untyped => stat.events += 1,
            Kind::ReferencePoint => stat.reference_points += 1,
            Kind::Stamp => stat.stamps += 1,
            Kind::Lease | Kind::TimeFault => {}
        }
    }
    stats.insert((domain, client), own);
    Ok(())
}
