// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Clock maps from a session's reference points.
//!
//! This takes one pass over the host's streams and over those of the guest clients
//! that have reference points, and meanwhile some 150 bytes of memory per point.

use super::packet::Domain;
use super::session::{Session, nominal};
use super::session_json::Clock;
use crate::clock::{ClockMap, Conflict, Nominal, Point};
use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maps of a session's guest clocks.
#[derive(Clone, Debug)]
pub struct ClockMaps {
    clocks: BTreeMap<u32, Maps>,
    unusable: u64,
}

#[derive(Clone, Debug)]
struct Maps {
    /// Map for all clients of the clock.
    shared: Arc<ClockMap>,
    /// Map for each client, if their readings do not belong to one clock.
    clients: BTreeMap<u32, Arc<ClockMap>>,
}

/// The two times of a reference point.
#[derive(Clone, Copy, Debug)]
struct Sample {
    guest: i64,
    host: i64,
}

/// Samples by clock and client.
type Samples = BTreeMap<(u32, u32), Vec<Sample>>;

#[derive(Default)]
struct Constraints {
    not_after: Vec<Point>,
    not_before: Vec<Point>,
}

impl ClockMaps {
    /// Fits a map to each guest clock of a session.
    ///
    /// # Errors
    /// If the session is damaged.
    pub fn of(session: &Session) -> Result<ClockMaps> {
        let mut unusable = 0;
        let mut by_clock: BTreeMap<u32, BTreeMap<u32, Constraints>> = BTreeMap::new();
        for ((clock, client), samples) in samples(session, &mut unusable)? {
            let samples = in_order(samples, &mut unusable);
            let constraints = constraints(session, clock, client, &samples)?;
            by_clock.entry(clock).or_default().insert(client, constraints);
        }
        let guests = session.json().clocks.iter().filter(|c| c.domain == Domain::Guest);
        let clocks = guests
            .map(|c| (c.id, Maps::fit(session, c, by_clock.remove(&c.id).unwrap_or_default())))
            .collect();
        Ok(ClockMaps { clocks, unusable })
    }

    /// Returns the map of a guest clock for one of its clients.
    pub fn get(&self, clock: u32, client: u32) -> Option<&Arc<ClockMap>> {
        let maps = self.clocks.get(&clock)?;
        Some(maps.clients.get(&client).unwrap_or(&maps.shared))
    }

    /// Iterates over the maps by clock and, where each client has its own, by client.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<u32>, &ClockMap)> {
        self.clocks.iter().flat_map(|(clock, maps)| {
            let own = maps.clients.iter().map(|(client, map)| (*clock, Some(*client), &**map));
            let shared = maps.clients.is_empty().then_some((*clock, None, &*maps.shared));
            own.chain(shared)
        })
    }

    /// Returns the number of reference points that no clock of the session can have made:
    /// the guest's time was before the session's base, or went backwards.
    pub fn unusable(&self) -> u64 {
        self.unusable
    }
}

impl Maps {
    fn fit(session: &Session, clock: &Clock, clients: BTreeMap<u32, Constraints>) -> Maps {
        let nominal = nominal(clock);
        let fallback =
            Arc::new(ClockMap::nominal(nominal, Point { x: 0, y: session.host_time(clock, 0) }));
        let all = || clients.values();
        let not_after: Vec<Point> = all().flat_map(|c| &c.not_after).copied().collect();
        let not_before: Vec<Point> = all().flat_map(|c| &c.not_before).copied().collect();
        let joint = match ClockMap::fit(nominal, &not_after, &not_before) {
            // One line for all: they read one clock.
            Ok(Some(map)) if map.segments() > 1 && clients.len() > 1 => Some(map),
            Ok(map) => {
                let shared = map.map_or(fallback, Arc::new);
                return Maps { shared, clients: BTreeMap::new() };
            }
            Err(Conflict { .. }) => None,
        };
        let own: BTreeMap<u32, Arc<ClockMap>> = clients
            .into_iter()
            .filter_map(|(client, own)| Some((client, fit_own(nominal, &own)?)))
            .collect();
        // If the clients alone need no more lines than all together, they do not
        // share a clock: they are vCPUs with different counters.
        let lines = own.values().map(|m| m.segments()).sum::<usize>();
        match joint {
            Some(map) if lines > map.segments() => {
                Maps { shared: Arc::new(map), clients: BTreeMap::new() }
            }
            map => Maps { shared: map.map_or(fallback, Arc::new), clients: own },
        }
    }
}

/// Fits one client's readings, which cannot conflict after [`in_order`].
fn fit_own(nominal: Nominal, own: &Constraints) -> Option<Arc<ClockMap>> {
    let map = ClockMap::fit(nominal, &own.not_after, &own.not_before);
    map.ok().flatten().map(Arc::new)
}

/// Collects all reference points, by the clock that their client reads.
fn samples(session: &Session, unusable: &mut u64) -> Result<Samples> {
    let mut samples = Samples::new();
    let mut clocks: BTreeMap<(u32, u32), Vec<&Clock>> = BTreeMap::new();
    for stream in session.streams().iter().filter(|s| s.domain == Domain::Host) {
        let mut records = stream.records(session.classes());
        while let Some(record) = records.read()? {
            let Some(point) = record.class.reference(record.payload) else { continue };
            // The 2016 interface has no guest time.
            if point.guest_time == 0 {
                continue;
            }
            let Some(host) = session.json().clock(record.packet.stream_id) else { continue };
            let host = session.host_time(host, record.timestamp);
            let (client, epoch) = (point.client, record.packet.epoch);
            let read = clocks
                .entry((client, epoch))
                .or_insert_with(|| clocks_of(session, client, epoch))
                .iter()
                .filter_map(|c| {
                    let guest = point.guest_time.checked_sub(c.base)?;
                    let far = session.host_time(c, guest).abs_diff(host);
                    Some((far, c.id, i64::try_from(guest).ok()?))
                });
            // If lessees of a client read different clocks, it has several. Then the clock
            // whose rough map is nearest is the right one: they are far apart.
            match read.min() {
                // Readings of the host's own clock add nothing about it.
                Some((_, clock, _)) if clock == record.packet.stream_id => {}
                Some((_, clock, guest)) => {
                    samples.entry((clock, client)).or_default().push(Sample { guest, host });
                }
                None => *unusable += 1,
            }
        }
    }
    Ok(samples)
}

/// Returns the clocks in a client's packets in an epoch. The host's is among them if
/// the client is a program of the host. Without packets, returns the guests' clocks of
/// that epoch.
fn clocks_of(session: &Session, client: u32, epoch: u32) -> Vec<&Clock> {
    let json = session.json();
    let is_guest = |clock: &Clock| clock.domain == Domain::Guest;
    let in_epoch = json.clocks.iter().filter(|c| !is_guest(c) || c.epoch == epoch);
    let stream = session.stream(Domain::Guest, client);
    let (own, mut others): (Vec<_>, Vec<_>) = in_epoch.partition(|clock| {
        stream.is_some_and(|s| s.segments.iter().any(|s| s.first.stream_id == clock.id))
            || is_guest(clock)
                && json.stream(Domain::Guest, client).is_some_and(|s| s.clock == clock.id)
    });
    others.retain(|clock| is_guest(clock));
    if own.is_empty() { others } else { own }
}

/// Sorts one client's points by host time. Both times of a client only grow, as it
/// waits for each reply; points that break this are dropped.
fn in_order(mut samples: Vec<Sample>, unusable: &mut u64) -> Vec<Sample> {
    samples.sort_by_key(|s| s.host);
    let before = samples.len();
    let mut last: Option<Sample> = None;
    samples.retain(|s| {
        let grows = last.is_none_or(|l| s.guest > l.guest && s.host > l.host);
        if grows {
            last = Some(*s);
        }
        grows
    });
    *unusable += (before - samples.len()) as u64;
    samples
}

/// Returns the constraints of the points and of the client's own records: the first
/// record after a point came after its reply.
fn constraints(
    session: &Session,
    clock: u32,
    client: u32,
    samples: &[Sample],
) -> Result<Constraints> {
    let mut found = Constraints::default();
    found.not_after.extend(samples.iter().map(|s| Point { x: s.guest, y: s.host }));
    // The point itself has this time. Later readings have a later one.
    let after = |s: &Sample, guest: i64| Point { x: guest, y: s.host + 1 };

    let mut at = 0;
    if let Some(stream) = session.stream(Domain::Guest, client) {
        let mut records = stream.records(session.classes());
        while at < samples.len() {
            let Some(record) = records.read()? else { break };
            let Ok(guest) = i64::try_from(record.timestamp) else { continue };
            if record.packet.stream_id != clock {
                continue;
            }
            while let Some(sample) = samples.get(at).filter(|s| s.guest < guest) {
                let next = samples.get(at + 1).map_or(guest, |s| s.guest.min(guest));
                found.not_before.push(after(sample, next));
                at += 1;
            }
        }
    }
    let rest = samples.get(at..).unwrap_or_default().windows(2);
    found.not_before.extend(rest.map(|pair| after(&pair[0], pair[1].guest)));
    Ok(found)
}
