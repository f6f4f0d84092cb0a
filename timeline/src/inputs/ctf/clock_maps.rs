// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Maps of a session's guest clocks.
//!
//! All clients of a clock share one map if their constraints allow it: then their events are in
//! the order of their raw times. Each client's bound is from its own constraints, so it holds
//! even if the clients' clocks differ by less than the constraints can show.

use super::packet::Domain;
use super::samples::{self, Constraints};
use super::session::Session;
use super::session_json::Clock;
use crate::clock::{ClockMap, Conflict, FRACTION, Mapped, Point};
use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of a client's readings with a constraint below which it is taken to read the same
/// clock as the others, if no constraint contradicts that: its own would give it no
/// useful bound.
const FEW: usize = 8;

/// Maps of a session's guest clocks; by default of none.
#[derive(Clone, Debug, Default)]
pub struct ClockMaps {
    clocks: BTreeMap<u32, Maps>,
    unusable: u64,
    seats: BTreeMap<u32, Vec<Seat>>,
}

/// The time in which one thread of the VMM served all reference points of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub tid: u32,
    /// The first point, in host units from the session's origin.
    pub first: i64,
    /// The last point.
    pub last: i64,
}

#[derive(Clone, Debug)]
struct Maps {
    /// Map for all clients of the clock.
    shared: Arc<ClockMap>,
    /// Whether the shared map is used for clients that have their own.
    is_shared: bool,
    /// Map for each client with constraints.
    clients: BTreeMap<u32, Arc<ClockMap>>,
}

/// The map of a client's clock, with where the last lookups found their times.
#[derive(Clone, Debug)]
pub(crate) struct ClientMap {
    map: Arc<ClockMap>,
    /// The map that has the bounds, if it is not the same.
    own: Option<Arc<ClockMap>>,
    hints: (usize, usize),
}

impl ClientMap {
    /// Maps a guest reading to host time.
    pub fn at(&mut self, guest: u64) -> Mapped {
        let mut mapped = self.map.at_from(&mut self.hints.0, guest);
        if let Some(own) = &self.own {
            mapped.bound = own.distance_from(&mut self.hints.1, guest, mapped.host);
        }
        mapped
    }
}

/// The one clock that all clients of a session read.
#[derive(Clone, Debug)]
pub(crate) struct GuestClock {
    /// All have the same map. Each has bounds of its own.
    clients: Vec<ClientMap>,
    /// Raw ticks at tick 0 of the map.
    base: u64,
    frequency: u64,
    /// Unix time from which the map counts.
    origin: i128,
}

impl GuestClock {
    /// Maps a raw reading by anyone in the guest to Unix time, in units. The bound is that of the
    /// client whose constraints say least about this time.
    pub fn at(&mut self, raw: u64) -> (i128, Option<u64>) {
        let Some(guest) = raw.checked_sub(self.base) else {
            // Long before the first event of a client.
            let ticks = i128::from(self.base - raw) * 1_000_000_000 * i128::from(FRACTION);
            let (first, _) = self.at(self.base);
            return (first - ticks / i128::from(self.frequency), None);
        };
        let mut found = (self.origin, Some(0));
        for client in &mut self.clients {
            let Mapped { host, bound } = client.at(guest);
            let most = found.1.zip(bound).map(|(a, b): (u64, u64)| a.max(b));
            found = (self.origin + i128::from(host), most);
        }
        found
    }
}

impl ClockMaps {
    /// Returns the clock of the guest.
    ///
    /// # Errors
    /// The reason, if it has not one TSC that all clients read and that reference points relate
    /// to the host.
    pub(crate) fn guest(&self, session: &Session) -> std::result::Result<GuestClock, &'static str> {
        let known = self.clocks.iter().filter(|(_, maps)| {
            maps.shared.constraints() > 0 || maps.clients.values().any(|m| m.constraints() > 0)
        });
        let mut known = known.filter_map(|(id, maps)| Some((session.json().clock(*id)?, maps)));
        let (clock, maps) = known.next().ok_or("it has no reference points of a guest")?;
        if known.next().is_some() {
            return Err("its guest had several clocks, by reset or by several lessees");
        }
        if clock.kind != "tsc" {
            return Err("its guest's clock is not the TSC");
        }
        if !maps.is_shared {
            return Err("its guest's clients have different clocks");
        }
        let of_client = |own: Option<&Arc<ClockMap>>| ClientMap {
            map: maps.shared.clone(),
            own: own.cloned(),
            hints: (0, 0),
        };
        let own = maps.clients.values().filter(|own| own.constraints() >= FEW);
        let mut clients: Vec<ClientMap> = own.map(|own| of_client(Some(own))).collect();
        if clients.is_empty() {
            clients.push(of_client(None));
        }
        let (base, frequency) = (clock.base, clock.frequency.max(1));
        Ok(GuestClock { clients, base, frequency, origin: session.origin() })
    }

    /// Makes a map of each guest clock of a session.
    ///
    /// # Errors
    /// If the session is damaged.
    pub fn of(session: &Session) -> Result<ClockMaps> {
        let mut found = samples::constraints(session)?;
        let guests = session.json().clocks.iter().filter(|c| c.domain == Domain::Guest);
        let clocks = guests
            .map(|clock| {
                let clients = found.by_clock.remove(&clock.id).unwrap_or_default();
                (clock.id, Maps::fit(session, clock, &clients))
            })
            .collect();
        let seats = found.served.iter().map(|(client, points)| (*client, seats(points)));
        Ok(ClockMaps { clocks, unusable: found.unusable, seats: seats.collect() })
    }

    /// Iterates over the clients with reference points.
    pub(crate) fn served(&self) -> impl Iterator<Item = u32> {
        self.seats.keys().copied()
    }

    /// Returns the threads that served a client's reference points, in order of time.
    pub(crate) fn seats(&self, client: u32) -> &[Seat] {
        self.seats.get(&client).map_or(&[], |seats| seats)
    }

    /// Returns the map of a guest clock for one of its clients.
    pub(crate) fn get(&self, clock: u32, client: u32) -> Option<ClientMap> {
        let maps = self.clocks.get(&clock)?;
        let own = maps.clients.get(&client);
        let (map, own) = match own {
            Some(own) if !maps.is_shared => (own, None),
            Some(own) if own.constraints() >= FEW => (&maps.shared, Some(own.clone())),
            _ => (&maps.shared, None),
        };
        Some(ClientMap { map: map.clone(), own, hints: (0, 0) })
    }

    /// Iterates over the maps by clock and, where each client has its own, by client.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<u32>, &ClockMap)> {
        self.clocks.iter().flat_map(|(clock, maps)| {
            let own = maps.clients.iter().filter(|_| !maps.is_shared);
            let own = own.map(|(client, map)| (*clock, Some(*client), &**map));
            let shared = maps.is_shared.then_some((*clock, None, &*maps.shared));
            own.chain(shared)
        })
    }

    /// Returns the number of reference points that no clock of the session can have made:
    /// the guest's time was before the session's base, or went backwards.
    pub fn unusable(&self) -> u64 {
        self.unusable
    }
}

fn seats(points: &[(i64, u32)]) -> Vec<Seat> {
    let mut seats: Vec<Seat> = Vec::new();
    for (time, tid) in points {
        match seats.last_mut().filter(|seat| seat.tid == *tid) {
            Some(seat) => seat.last = *time,
            None => seats.push(Seat { tid: *tid, first: *time, last: *time }),
        }
    }
    seats
}

impl Maps {
    fn fit(session: &Session, clock: &Clock, clients: &BTreeMap<u32, Constraints>) -> Maps {
        let frequency = clock.frequency;
        let start = Point { x: 0, y: session.host_time(clock, 0) };
        let unknown = || Arc::new(ClockMap::nominal(frequency, start));
        let all = || clients.values();
        let not_after: Vec<Point> = all().flat_map(|c| &c.not_after).copied().collect();
        let not_before: Vec<Point> = all().flat_map(|c| &c.not_before).copied().collect();
        let joint = match ClockMap::fit(frequency, &not_after, &not_before) {
            Ok(None) => {
                return Maps { shared: unknown(), is_shared: true, clients: BTreeMap::new() };
            }
            Ok(Some(joint)) => Some(joint),
            Err(Conflict { .. }) => None,
        };
        if let (Some(joint), 1) = (&joint, clients.len()) {
            let shared = Arc::new(joint.clone());
            return Maps { shared, is_shared: true, clients: BTreeMap::new() };
        }
        let own: BTreeMap<u32, Arc<ClockMap>> = clients
            .iter()
            .filter_map(|(client, own)| {
                let map = ClockMap::fit(frequency, &own.not_after, &own.not_before);
                // One client's readings are in order, so they do not conflict.
                Some((*client, Arc::new(map.ok()??)))
            })
            .collect();
        match joint.filter(|joint| is_one_clock(joint, &own)) {
            Some(joint) => Maps { shared: Arc::new(joint), is_shared: true, clients: own },
            // A client without constraints may read any of these clocks.
            None => Maps { shared: unknown(), is_shared: false, clients: own },
        }
    }
}

/// Returns whether clients that each have these maps read one clock, as far as their constraints
/// show. All together need no more jumps than each alone, and the shared map costs those whose
/// constraints say most no more than a quarter of their bounds. A difference between two clocks
/// moves the shared map away from the middle of both.
fn is_one_clock(joint: &ClockMap, own: &BTreeMap<u32, Arc<ClockMap>>) -> bool {
    let jumps = own.values().map(|map| map.segments() - 1).sum::<usize>();
    let known = || own.values().filter(|map| map.constraints() >= FEW);
    let narrowest = known().filter_map(|map| map.width()).min().unwrap_or(0);
    let mut best = known().filter(|map| map.width().is_some_and(|w| w <= narrowest / 2 * 3));
    joint.segments() - 1 <= jumps && best.all(|own| costs_little(joint, own))
}

fn costs_little(joint: &ClockMap, own: &ClockMap) -> bool {
    let mut hints = (0, 0, 0);
    let bounds = own.readings().map(|guest| {
        let host = joint.at_from(&mut hints.0, guest).host;
        let shared = own.distance_from(&mut hints.1, guest, host);
        (shared.unwrap_or(0), own.at_from(&mut hints.2, guest).bound.unwrap_or(0))
    });
    let add = |sums: (u128, u128), (shared, own): (u64, u64)| {
        (sums.0 + u128::from(shared), sums.1 + u128::from(own))
    };
    let (shared, alone) = bounds.fold((0, 0), add);
    shared <= alone + alone / 4
}
