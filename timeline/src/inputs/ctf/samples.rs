// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Samples of a session's guest clocks, and the constraints that follow from them.
//!
//! This takes one pass over the host's streams and over those of the guest clients
//! that have reference points.

use super::lease::Lease;
use super::packet::Domain;
use super::session::Session;
use super::session_json::Clock;
use crate::clock::Point;
use crate::error::Result;
use crate::event::Kind;
use std::collections::BTreeMap;

/// The two times of a reference point: the guest's was before the host's, and the client's
/// next reading after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Ticks of the guest's clock.
    pub guest: i64,
    /// Host units from the session's origin.
    pub host: i64,
}

/// Samples by clock and client.
type Samples = BTreeMap<(u32, u32), Vec<Sample>>;

/// The constraints on one client's clock, from any kind of sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Constraints {
    /// f(x) <= y.
    pub not_after: Vec<Point>,
    /// f(x) >= y.
    pub not_before: Vec<Point>,
}

/// The constraints of a session, by clock and client.
pub(super) struct Found {
    pub by_clock: BTreeMap<u32, BTreeMap<u32, Constraints>>,
    /// Reference points that no clock of the session can have made.
    pub unusable: u64,
    /// Times of each client's reference points, and the threads that served them, in order.
    pub served: BTreeMap<u32, Vec<(i64, u32)>>,
}

/// Collects the constraints of a session.
///
/// # Errors
/// If the session is damaged.
pub(super) fn constraints(session: &Session) -> Result<Found> {
    let mut found = Found { by_clock: BTreeMap::new(), unusable: 0, served: BTreeMap::new() };
    for ((clock, client), samples) in samples(session, &mut found)? {
        let samples = in_order(samples, &mut found.unusable);
        let constraints = of_client(session, clock, client, &samples)?;
        found.by_clock.entry(clock).or_default().insert(client, constraints);
    }
    found.served.values_mut().for_each(|points| points.sort_unstable());
    Ok(found)
}

/// Collects all reference points, by the clock that their client reads.
fn samples(session: &Session, found: &mut Found) -> Result<Samples> {
    let mut samples = Samples::new();
    let mut clocks: BTreeMap<(u32, u32), Vec<&Clock>> = BTreeMap::new();
    for stream in session.streams().iter().filter(|s| s.domain == Domain::Host) {
        let mut records = stream.records(session.classes());
        let mut tid = None;
        while let Some(record) = records.read()? {
            if record.kind() == Kind::Lease {
                tid = Lease::of(&record).tid;
            }
            let Some(point) = record.class.reference(record.payload) else { continue };
            let Some(host) = session.json().clock(record.packet.stream_id) else { continue };
            let host = session.host_time(host, record.timestamp);
            if let Some(tid) = tid {
                found.served.entry(point.client).or_default().push((host, tid));
            }
            // The 2016 interface has no guest time.
            if point.guest_time == 0 {
                continue;
            }
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
                None => found.unusable += 1,
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
/// waits for each reply. Of points that break this, as few as possible are dropped: one wrong
/// guest time does not cost those after it.
fn in_order(mut samples: Vec<Sample>, unusable: &mut u64) -> Vec<Sample> {
    samples.sort_unstable_by_key(|s| (s.host, s.guest));
    // The longest increasing subsequence: of all with a length, the one that ends earliest.
    let mut ends: Vec<usize> = Vec::new();
    let mut before = vec![None; samples.len()];
    for (at, sample) in samples.iter().enumerate() {
        let is_before = |end: &usize| samples.get(*end).is_some_and(|s| s.guest < sample.guest);
        let len = ends.partition_point(is_before);
        if let (Some(slot), Some(end)) = (before.get_mut(at), len.checked_sub(1)) {
            *slot = ends.get(end).copied();
        }
        match ends.get_mut(len) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut next = ends.last().copied();
    let mut longest = Vec::with_capacity(ends.len());
    while let Some(at) = next {
        longest.extend(samples.get(at));
        next = before.get(at).copied().flatten();
    }
    longest.reverse();
    *unusable += (samples.len() - longest.len()) as u64;
    longest
}

/// Returns the constraints of the points and of the client's own records: the first
/// record after a point came after its reply.
fn of_client(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_guest_time_costs_one_point() {
        let sample = |n: i64| Sample { guest: 1_000 * n, host: 256_000 * n + 50 };
        for wrong in [Sample { guest: i64::MAX, ..sample(50) }, Sample { guest: 0, ..sample(50) }] {
            let mut samples: Vec<Sample> = (1..=200).map(sample).collect();
            samples[49] = wrong;
            let mut unusable = 0;

            let kept = in_order(samples, &mut unusable);

            assert_eq!((kept.len(), unusable), (199, 1));
            assert!(kept.windows(2).all(|pair| pair[0].guest < pair[1].guest));
        }
    }
}
