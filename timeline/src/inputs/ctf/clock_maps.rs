// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Maps of a session's guest clocks.
//!
//! All clients of a clock share one map if their constraints allow it. Events of such clients are then in the
//! order of their raw times. The bound of a client's times follows from the client's own constraints. So the
//! bound holds even if the clocks of the clients differ by less than the constraints can show. A client that
//! gives false readings cannot make another client's bound wrong. Only a client that lacks upper limits or
//! lower limits relies on the constraints of other clients.
//!
//! KVM and the VMM can describe the TSC that a client reads. If KVM's description contradicts none of the
//! client's constraints, the client's times are computed from this description, and are exact. If KVM gives
//! no such description, the VMM's description is used under the same condition. Times from the VMM's
//! description get their bounds from the constraints, like all other times. So no event lies outside of the
//! event's bound even if the VMM's description is false.

use super::guest_tscs::{ComparedTsc, GuestCpu, GuestTscs, KvmWord};
use super::packet::Domain;
pub(crate) use super::samples::Seat;
use super::samples::{self, Found, MAX_POINTS, Times};
use super::session::Session;
use super::session_json::Clock;
use crate::clock::{
    Bounds, ClockMap, Declared, Distances, FRACTION, GuestReading, Hull, Limits, Lines, Mapped,
    Point, Residuals,
};
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// Number of readings with a constraint that a client needs to show whether the declared rate is wrong. The
/// bound of a client with fewer such readings also covers the times that the other clients' map gives.
const FEW: usize = 8;

/// Maximum number of clients that are each compared with all other clients, to find a group of clients that
/// agree.
const REFERENCES: usize = 4;

/// Maps of a session's guest clocks. By default, there is no map.
#[derive(Clone, Debug, Default)]
pub struct ClockMaps {
    clocks: BTreeMap<u32, Maps>,
    unusable: u64,
    /// How many constraints from the kernel's trace are used, and how many are left out. `None` if there is
    /// no trace.
    of_kernel: Option<(usize, usize)>,
    seats: BTreeMap<u32, Vec<Seat>>,
    /// Whether times are from the writer's estimates in `session.json` instead of maps.
    is_estimate: bool,
}

#[derive(Clone, Debug)]
struct Maps {
    /// Map of the clients that agree.
    shared: Arc<ClockMap>,
    /// Map for each client with constraints. If only one client has constraints, the client's map is
    /// `shared`.
    clients: BTreeMap<u32, Arc<ClockMap>>,
    /// Clients whose own maps are used, because their constraints contradict the constraints of other
    /// clients.
    alone: BTreeSet<u32>,
    /// Map of a clock without constraints.
    unknown: Arc<ClockMap>,
    /// How many constraints from the kernel's trace are used, and how many are left out.
    of_kernel: (usize, usize),
    tscs: GuestTscs,
    /// Residuals of each client whose own map is used. The key `None` has the residuals of the clients that
    /// agree.
    residuals: BTreeMap<Option<u32>, Residuals>,
    /// Times that the constraints of at least one client allow. Clients with too few constraints are left
    /// out. The value is computed at its first use.
    together: OnceLock<Option<Arc<Hull>>>,
}

/// The map of a client's clock.
#[derive(Clone, Debug)]
pub(crate) struct ClientMap {
    clock: u32,
    map: Arc<ClockMap>,
    /// Map of the client's own constraints, unless `map` is this map.
    own: Option<Arc<ClockMap>>,
    /// The clock as KVM or the VMM describes it, if no constraint contradicts the description.
    lines: Lines,
    /// Whether the client has too few constraints to show the client's rate.
    has_few: bool,
    /// Place of the last lookup in the map.
    hint: usize,
}

impl ClientMap {
    fn new(clock: u32, map: &Arc<ClockMap>, own: Option<Arc<ClockMap>>) -> ClientMap {
        let has_few = own.as_ref().is_some_and(|own| own.constraints() < FEW);
        let lines = Lines::default();
        ClientMap { clock, map: map.clone(), own, lines, has_few, hint: 0 }
    }

    fn with_lines(self, lines: Lines) -> ClientMap {
        ClientMap { lines, ..self }
    }

    /// Maps a guest reading to host time. If KVM describes the TSC at this time, returns the bound on the
    /// error too. If KVM does not describe the TSC at this time, the bound is the
    /// [distance](GuestReading::distance) of the [reading](ClientMap::reading).
    pub fn at(&mut self, guest: u64) -> (i64, Option<u64>) {
        match self.lines.at(guest) {
            None => (self.map.host_from(&mut self.hint, guest), None),
            Some(by_word) => by_word,
        }
    }

    /// Returns whether bounds of 0 are possible at times for which KVM does not describe the TSC.
    pub fn can_be_exact(&self) -> bool {
        self.own.as_ref().unwrap_or(&self.map).width() == Some(0)
    }

    /// Returns the number of lines of KVM or the VMM from which times are computed.
    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Maps a guest reading to host time, with the bound.
    pub fn mapped(&mut self, guest: u64) -> Mapped {
        let (host, exact) = self.at(guest);
        Mapped { host, bound: exact.or_else(|| self.reading(guest).distance(host)) }
    }

    /// Returns the guest reading of these ticks, with its maps. `ticks` must be the last reading that the
    /// caller has mapped.
    pub fn reading(&self, ticks: u64) -> GuestReading<'_> {
        let maps = match &self.own {
            Some(own) if self.has_few => (&**own, Some(&*self.map)),
            Some(own) => (&**own, None),
            None => (&*self.map, None),
        };
        GuestReading { clock: self.clock, ticks, maps, hint: self.hint }
    }
}

/// The clock for a recording of a guest's kernel: the clock of the client that made the recording, or the
/// clock of all clients of a session if the clients agree.
#[derive(Clone, Debug)]
pub(crate) struct GuestClock {
    map: Arc<ClockMap>,
    /// The clock as KVM or the VMM describes it, if the description is the same for all clients.
    lines: Lines,
    /// Times that the constraints of the recording's client allow. If the recording's client is not known,
    /// the limits allow each time that the constraints of any client allow, because each client may read a
    /// clock of its own. `None` if there are too many constraints.
    limits: Option<Arc<Hull>>,
    /// Raw ticks at tick 0 of the map.
    base: u64,
    frequency: u64,
    /// Unix time of the map's host time 0, in units of 1/[`FRACTION`] ns.
    origin: i128,
}

impl GuestClock {
    /// Maps a raw reading to Unix time, in units of 1/[`FRACTION`] ns. At times for which KVM describes the
    /// TSC, the bound follows from KVM's description. At other times, the bound follows from the constraints
    /// of the recording's client. Without such a client, the bound is the largest bound of any client at this
    /// time. `hints` are the places of the last lookups.
    pub fn at(&self, hints: &mut (usize, usize), raw: u64) -> (i128, Option<u64>) {
        let Some(guest) = raw.checked_sub(self.base) else {
            // The reading is long before the first event of a client.
            let ticks = i128::from(self.base - raw) * 1_000_000_000 * i128::from(FRACTION);
            let (first, _) = self.at(hints, self.base);
            return (first - ticks / i128::from(self.frequency), None);
        };
        let (host, exact) = match self.lines.at(guest) {
            None => (self.map.host_from(&mut hints.0, guest), None),
            Some(by_word) => by_word,
        };
        let of_limits = || self.limits.as_ref()?.distance_from(&mut hints.1, guest, host);
        (self.origin + i128::from(host), exact.or_else(of_limits))
    }

    /// Iterates in order over the raw readings at which the slope of the map may change.
    pub fn readings(&self) -> impl Iterator<Item = u64> {
        let readings = self.map.readings().map(|reading| self.base.saturating_add(reading));
        [self.base].into_iter().chain(readings)
    }
}

impl ClockMaps {
    /// Returns the guest's clock with this id, or the guest's only clock if no id is given. If a client is
    /// given, and the client's own constraints give upper and lower limits, the times and bounds follow from
    /// these constraints. `is_raw` says that the caller wants CLOCK_MONOTONIC_RAW and not the counter.
    ///
    /// # Errors
    /// The reason why there is no such clock: the guest has several clocks or another kind of clock, the
    /// clients do not agree, or no reference points relate the clock to the host.
    pub(crate) fn guest(
        &self,
        session: &Session,
        (id, client): (Option<u32>, Option<u32>),
        is_raw: bool,
    ) -> std::result::Result<GuestClock, &'static str> {
        let known = self.clocks.iter().filter(|(_, maps)| {
            maps.shared.constraints() > 0 || maps.clients.values().any(|m| m.constraints() > 0)
        });
        let known = known.filter(|(found, _)| id.is_none_or(|id| id == **found));
        let mut known = known.filter_map(|(id, maps)| Some((session.json().clock(*id)?, maps)));
        let (clock, maps) = known.next().ok_or("it has no reference points of a guest")?;
        if known.next().is_some() {
            return Err("its guest had several clocks, by reset or by several holders");
        }
        // Older guests do not say which counter they have, so `counter` is accepted.
        match (&*clock.kind, is_raw) {
            ("tsc" | "cntvct" | "counter", false) | ("monotonic_raw", true) => {}
            (_, false) => return Err("its guest's clock is not the TSC"),
            (_, true) => return Err("its guest's clock is not CLOCK_MONOTONIC_RAW"),
        }
        let (base, frequency, origin) = (clock.base, clock.frequency.max(1), session.origin());
        let has_bounds = |own: &&Arc<ClockMap>| own.width().is_some();
        let own = client.and_then(|id| Some((id, maps.clients.get(&id).filter(has_bounds)?)));
        if let Some((client, own)) = own {
            let is_alone = maps.alone.contains(&client);
            let map = if is_alone { own } else { &maps.shared }.clone();
            let lines = maps.tscs.used(client);
            // A few constraints do not show the client's rate, so the limits of the shared map are added, as
            // in `ClientMap`.
            let shared = (own.constraints() < FEW && !is_alone).then_some(&*maps.shared);
            let limits = Hull::of([&**own].into_iter().chain(shared)).map(Arc::new);
            return Ok(GuestClock { map, lines, limits, base, frequency, origin });
        }
        if !maps.alone.is_empty() && maps.alone.len() == maps.clients.len() {
            return Err("its guest's clients have different clocks");
        }
        let own = maps.clients.iter().filter(|(_, own)| own.constraints() >= FEW);
        let mut lines = own.clone().map(|(client, _)| maps.tscs.used(*client));
        // The lines are used only if all clients have the same lines.
        let used = lines.next().filter(|used| lines.all(|other| other == *used));
        let lines = used.unwrap_or_default();
        // The limits are computed once for all traces.
        let limits = maps.together.get_or_init(|| {
            let mut own = own.map(|(_, own)| &**own).peekable();
            let shared = own.peek().is_none().then_some(&*maps.shared);
            Hull::of(own.chain(shared)).map(Arc::new)
        });
        let (map, limits) = (maps.shared.clone(), limits.clone());
        Ok(GuestClock { map, lines, limits, base, frequency, origin })
    }

    /// Returns a value without maps. Times are then from the writer's estimates in `session.json`, without
    /// bounds.
    pub(crate) fn estimates() -> ClockMaps {
        ClockMaps { is_estimate: true, ..ClockMaps::default() }
    }

    /// Returns whether these are [`ClockMaps::estimates`].
    pub(crate) fn is_estimate(&self) -> bool {
        self.is_estimate
    }

    /// Makes a map of each guest clock of a session.
    ///
    /// # Errors
    /// If the session is damaged.
    pub fn of(session: &Session) -> Result<ClockMaps> {
        ClockMaps::of_at_most(session, MAX_POINTS)
    }

    /// Makes a map of each guest clock of a session, from at most `points` reference points. If a client has
    /// too many points, the maps use evenly spread points.
    ///
    /// # Errors
    /// If the session is damaged.
    pub fn of_at_most(session: &Session, points: usize) -> Result<ClockMaps> {
        let maps = ClockMaps::from(session, samples::find(session, points)?);
        Ok(ClockMaps { of_kernel: None, ..maps })
    }

    /// Makes the maps from the samples of a session and the times from the session's kernel trace.
    pub(crate) fn from(session: &Session, mut found: Found) -> ClockMaps {
        let guests = session.json().clocks.iter().filter(|c| c.domain == Domain::Guest);
        let (mut used, mut left_out) = (0, 0);
        let clocks = guests
            .map(|clock| {
                let clients = std::mem::take(found.by_clock.entry(clock.id).or_default());
                let tscs = GuestTscs::of(session, clock, &clients, &found);
                let maps = Maps::fit(session, clock, clients, tscs);
                used += maps.of_kernel.0;
                left_out += maps.of_kernel.1;
                (clock.id, maps)
            })
            .collect();
        let seats = found.served;
        let of_kernel = Some((used, left_out));
        ClockMaps { clocks, unusable: found.unusable, of_kernel, seats, is_estimate: false }
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
        let lines = maps.tscs.used(client);
        if let Some(own) =
            own.filter(|own| maps.alone.contains(&client) || Arc::ptr_eq(own, &maps.shared))
        {
            return Some(ClientMap::new(clock, own, None).with_lines(lines));
        }
        let own = match own.filter(|own| own.width().is_some()) {
            // The client has no upper limit or no lower limit of its own. If the other clients disagree, this
            // client gets no bound, because this client may read the same clock as any of the other clients.
            None => Some(&maps.unknown).filter(|_| !maps.alone.is_empty()),
            own => own,
        };
        Some(ClientMap::new(clock, &maps.shared, own.cloned()).with_lines(lines))
    }

    /// Iterates over the maps by clock. The first maps of a clock belong to single clients that contradict
    /// other clients. All other clients share the last map of the clock.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Option<u32>, &ClockMap)> {
        self.clocks.iter().flat_map(|(&clock, maps)| {
            let alone = maps.clients.iter().filter(|(client, _)| maps.alone.contains(client));
            let own = alone.map(move |(client, map)| (clock, Some(*client), &**map));
            let is_shared = maps.alone.is_empty() || maps.alone.len() < maps.clients.len();
            let shared = is_shared.then_some((clock, None, &*maps.shared));
            own.chain(shared)
        })
    }

    /// Returns the bounds of a map that [`ClockMaps::iter`] gives: at the client's own readings, or at the
    /// readings of the clients that share the map. Returns `None` if a bound is unknown, or there are no
    /// bounds.
    pub fn bounds(&self, of: (u32, Option<u32>, &ClockMap)) -> Option<Bounds> {
        match of {
            (clock, Some(client), map) => match self.clocks.get(&clock)?.tscs.used(client) {
                lines if lines.is_empty() => map.bounds(),
                _ => self.bounds_at(clock, client, map),
            },
            (clock, None, _) => self.shared_bounds(clock),
        }
    }

    /// Returns the distances between constraints and times for a map that [`ClockMaps::iter`] gives, over all
    /// clients of the map. If a client has lines of KVM or the VMM, the client's times are computed from
    /// these lines. Otherwise, the times are computed from the map.
    pub fn residuals(&self, (clock, client, _): (u32, Option<u32>, &ClockMap)) -> Residuals {
        let maps = self.clocks.get(&clock);
        maps.and_then(|maps| maps.residuals.get(&client)).copied().unwrap_or_default()
    }

    /// Returns the size of the largest jump for which a map of [`ClockMaps::iter`] leaves room, in units of
    /// 1/[`FRACTION`] ns. If no jump is larger, the map's bounds hold even if a jump is not found. This size
    /// is the smallest of the usual widths of the map and of its clients' own maps. Returns `None` if there
    /// is no bound.
    pub fn room_for_jumps(&self, of: (u32, Option<u32>, &ClockMap)) -> Option<u64> {
        let (clock, client, map) = of;
        let shared = map.width()?;
        let maps = self.clocks.get(&clock).filter(|_| client.is_none());
        let own = maps.into_iter().flat_map(|maps| {
            let own = maps.clients.iter().filter(|(client, _)| !maps.alone.contains(client));
            // Clients with few constraints are left out, because they get the larger bound of two maps.
            own.filter(|(_, own)| own.constraints() >= FEW).filter_map(|(_, own)| own.width())
        });
        own.chain([shared]).min()
    }

    /// Returns whether constraints from the kernel's trace limit a clock.
    pub fn is_limited_by_kernel(&self, clock: u32) -> bool {
        self.clocks.get(&clock).is_some_and(|maps| maps.of_kernel.0 > 0)
    }

    /// Returns the bounds of a client's times at the readings of a map.
    fn bounds_at(&self, clock: u32, client: u32, of: &ClockMap) -> Option<Bounds> {
        let mut map = self.get(clock, client)?;
        let bounds = of.readings().map(|reading| map.mapped(reading).bound);
        Bounds::of(bounds.collect::<Option<Vec<u64>>>()?)
    }

    /// Returns the largest bounds over all clients of a clock that share a map. The bounds of a client are
    /// taken at the client's own readings. Returns `None` if a bound is unknown, or there are no bounds.
    fn shared_bounds(&self, clock: u32) -> Option<Bounds> {
        let maps = self.clocks.get(&clock)?;
        let mut worst: Option<Bounds> = None;
        let is_shared = |client: &u32| !maps.alone.contains(client);
        let own = maps.clients.iter().filter(|(client, _)| is_shared(client));
        for (client, own) in own.filter(|(_, own)| own.width().is_some()) {
            let bounds = self.bounds_at(clock, *client, own)?;
            worst = Some(worst.map_or(bounds, |worst| worst.max(bounds)));
        }
        worst
    }

    /// Returns for each clock the number of the clock's clients that lack an upper or a lower limit from
    /// reference points. If the bool is true, these clients use the map and the bound of the other clients.
    /// If the bool is false, these clients have no bound.
    pub fn without_points(&self, session: &Session) -> BTreeMap<u32, (usize, bool)> {
        let mut found = BTreeMap::new();
        for stream in session.streams().iter().filter(|s| s.domain == Domain::Guest) {
            let clocks: BTreeSet<u32> = stream.segments.iter().map(|s| s.first.stream_id).collect();
            for (clock, maps) in clocks.iter().filter_map(|id| Some((*id, self.clocks.get(id)?))) {
                let own = maps.clients.get(&stream.client);
                if own.is_none_or(|own| own.width().is_none()) && !maps.clients.is_empty() {
                    found.entry(clock).or_insert((0, maps.alone.is_empty())).0 += 1;
                }
            }
        }
        found
    }

    /// Iterates over the clients that have reference points and a TSC that the VMM describes, in the order of
    /// the clients' clocks.
    pub fn compared_tscs(&self) -> impl Iterator<Item = ComparedTsc> {
        self.clocks.iter().flat_map(|(clock, maps)| maps.tscs.compared(*clock))
    }

    /// Iterates over the clients whose reference points were compared with the TSCs in the recording of the
    /// host's kernel. The iterator yields the id of the clock, the id of the client, and KVM's description.
    pub fn kvm_words(&self) -> impl Iterator<Item = (u32, u32, &KvmWord)> {
        self.clocks.iter().flat_map(|(clock, maps)| {
            maps.tscs.of_kvm().map(move |(client, word)| (*clock, client, word))
        })
    }

    /// Iterates over the guests' CPUs whose events helped to check KVM's descriptions of TSCs.
    pub fn guest_cpus(&self) -> impl Iterator<Item = &GuestCpu> {
        self.clocks.values().flat_map(|maps| maps.tscs.cpus())
    }

    /// Returns the number of reference points that no clock of the session can have made, because the guest's
    /// time was before the session's base or went backwards.
    pub fn unusable(&self) -> u64 {
        self.unusable
    }

    /// Returns the number of constraints from the kernel's trace that are used, and the number of constraints
    /// that are left out because they contradict the reference points or each other. Returns `None` if there
    /// is no trace.
    pub fn of_kernel(&self) -> Option<(usize, usize)> {
        self.of_kernel
    }
}

impl Maps {
    fn fit(
        session: &Session,
        clock: &Clock,
        clients: BTreeMap<u32, Times>,
        mut tscs: GuestTscs,
    ) -> Maps {
        let declared = Declared { frequency: clock.frequency, is_assumed: clock.assumed };
        let mut of_kernel = (0, 0);
        let (mut limits, mut own) = (BTreeMap::default(), BTreeMap::default());
        for (client, times) in clients {
            let (mut certain, mut more) = (times.of_points(), times.of_kernel());
            drop(times);
            let map = ClockMap::fit(declared, &certain.not_after, &certain.not_before);
            // A fit never fails for one client, because the client's readings are in order.
            let Ok(Some(mut map)) = map else { continue };
            let all = more.len();
            if let Some(narrower) = map.narrowed(declared, &certain, &mut more) {
                map = narrower;
                certain.extend(&more);
            }
            of_kernel = (of_kernel.0 + more.len(), of_kernel.1 + all - more.len());
            tscs.compare(client, &certain, &map);
            limits.insert(client, certain);
            own.insert(client, Arc::new(map));
        }
        let start = Point { x: 0, y: session.host_time(clock, 0) };
        let unknown = Arc::new(ClockMap::nominal(clock.frequency, start));
        let clients = || own.keys().copied();
        let mut group: Vec<u32> = clients().collect();
        let mut shared = joint(declared, &limits, &own, &group, of_kernel.0 > 0);
        if shared.is_none() {
            group = largest_group(&own);
            shared =
                joint(declared, &limits, &own, &group, of_kernel.0 > 0).filter(|_| group.len() > 1);
        }
        if shared.is_none() {
            group.clear();
        }
        let is_alone = |client: &u32| group.binary_search(client).is_err();
        let alone = clients().filter(is_alone).collect();
        let shared = shared.unwrap_or(unknown.clone());
        let residuals = BTreeMap::default();
        let (clients, together) = (own, OnceLock::new());
        let maps = Maps { shared, clients, alone, unknown, of_kernel, tscs, residuals, together };
        Maps { residuals: maps.residuals(&limits), ..maps }
    }

    fn residuals(&self, limits: &BTreeMap<u32, Limits>) -> BTreeMap<Option<u32>, Residuals> {
        let mut distances = BTreeMap::default();
        for (client, limits) in limits.iter() {
            let alone = self.alone.contains(client).then_some(*client);
            let own = self.clients.get(client).filter(|_| alone.is_some());
            let map = own.unwrap_or(&self.shared);
            let (lines, mut hint) = (self.tscs.used(*client), 0);
            distances.entry(alone).or_insert_with(Distances::default).add(limits, |x| {
                // Readings are not negative.
                let guest = x.unsigned_abs();
                match lines.at(guest) {
                    Some((host, _)) => host,
                    None => map.host_from(&mut hint, guest),
                }
            });
        }
        distances.into_iter().map(|(client, distances)| (client, distances.medians())).collect()
    }
}

/// Returns the common map of several clients, if all constraints are consistent with one clock. The
/// constraints count as consistent if the common map does not need more jumps than the clients' own maps have
/// in total, and satisfies the limits from each client's own constraints.
///
/// `is_narrowed` says whether the constraints include constraints from the kernel's trace.
fn joint(
    declared: Declared,
    limits: &BTreeMap<u32, Limits>,
    own: &BTreeMap<u32, Arc<ClockMap>>,
    group: &[u32],
    is_narrowed: bool,
) -> Option<Arc<ClockMap>> {
    if let [only] = group {
        return own.get(only).cloned();
    }
    let mut all = Limits::default();
    for limits in group.iter().filter_map(|client| limits.get(client)) {
        all.extend(limits);
    }
    let joint = ClockMap::fit(declared, &all.not_after, &all.not_before).ok()??;
    let own = || group.iter().filter_map(|client| own.get(client));
    let jumps = own().map(|map| map.segments() - 1).sum::<usize>();
    let known = own().filter(|map| map.constraints() >= FEW);
    let narrowest = known.filter_map(|map| map.width()).min().unwrap_or(0);
    let steep = joint.steep();
    let is_one = joint.segments() - 1 <= jumps && own().all(|own| joint.is_within(own, &steep));
    let joint = match joint.width() {
        // Constraints from the kernel's trace must not reduce the room for jumps.
        Some(width) if is_narrowed => joint.with_width(Some(width.max(narrowest))),
        _ => joint,
    };
    is_one.then(|| Arc::new(joint))
}

/// Returns the largest group of clients that agree with one reference client. The [`REFERENCES`] clients with
/// the most constraints are tried as the reference. Clients with false readings can prevent other clients
/// from sharing a map, but cannot make a shared map wrong, because [`joint`] checks the shared map
/// afterwards.
fn largest_group(own: &BTreeMap<u32, Arc<ClockMap>>) -> Vec<u32> {
    let mut by_constraints = Vec::from_iter(own);
    by_constraints.sort_by_key(|(_, map)| std::cmp::Reverse(map.constraints()));
    let agree = |reference: &ClockMap| {
        let agree = own.iter().filter(|(_, map)| reference.may_be(map));
        agree.map(|(client, _)| *client).collect::<Vec<u32>>()
    };
    let groups = by_constraints.iter().take(REFERENCES).map(|(_, reference)| agree(reference));
    groups.max_by_key(Vec::len).unwrap_or_default()
}
