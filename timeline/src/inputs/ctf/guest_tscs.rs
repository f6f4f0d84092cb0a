// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What KVM and the VMM say of the TSCs of a clock's clients, compared with the clients' reference points.

use super::packet::Domain;
use super::samples::{Found, Times};
use super::session::Session;
use super::session_json::{Clock, GuestTsc};
use super::stream::Stream;
use crate::clock::{Agreement, ClockMap, Limits, Line, Lines, Point};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A client's TSC as the VMM describes it, and how the client's reference points agree with that.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ComparedTsc {
    /// Number of the client's clock.
    pub clock: u32,
    /// Number of the client.
    pub client: u32,
    /// TSC that the VMM describes.
    pub tsc: GuestTsc,
    /// Comparison with the constraints of the client's map. The client's times are computed from `tsc` if the
    /// comparison is [agreed](Agreement::is_agreed).
    pub agreement: Agreement,
}

/// What KVM says of the TSC of a client's VM, as the recording of the host's kernel shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvmWord {
    /// Lines with which the client's points agree.
    agreed: Arc<[Line]>,
    /// Number of TSCs of VMs of this host that the client's points or events of the guest's kernel
    /// contradict: TSCs of other VMs, or wrong ones.
    pub contradicted: usize,
    /// Whether several TSCs at a time, as of two VMs or vCPUs, fit the client's points. If so, none is used.
    pub is_ambiguous: bool,
    /// Whether a TSC with which the points agree puts events of the guest's kernel outside of guest mode. If
    /// so, none is used.
    pub is_outside: bool,
}

impl KvmWord {
    /// Returns the TSCs by which the client's times are mapped, each with the host times from and until which it held, in
    /// [units](crate::clock::FRACTION) since the session's origin.
    pub fn used(&self) -> impl Iterator<Item = (GuestTsc, i64, i64)> {
        self.lines().into_iter().flat_map(|lines| lines.iter()).filter_map(|line| {
            let (from, until) = line.held()?;
            Some((line.tsc(), from, until))
        })
    }

    fn lines(&self) -> Option<&Arc<[Line]>> {
        Some(&self.agreed).filter(|agreed| !agreed.is_empty() && !self.is_outside)
    }
}

/// A CPU of a guest whose kernel's events were searched for in guest mode of the host's threads, with times
/// from KVM's TSC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct GuestCpu {
    /// Number of the guest's clock.
    pub clock: u32,
    /// Number that the guest gives the CPU.
    pub cpu: u32,
    /// TSC that KVM describes.
    #[serde(skip)]
    #[cfg_attr(test, serde(default = "no_tsc"))]
    pub tsc: GuestTsc,
    /// Number of events that were searched for.
    pub events: usize,
    /// Threads of the host in whose guest mode all of these events may be, in order. If there are none, what
    /// KVM says is not true.
    pub threads: Vec<u32>,
}

/// Returns what stands for a TSC that JSON does not have.
#[cfg(test)]
fn no_tsc() -> GuestTsc {
    GuestTsc { offset: 0, multiplier: 1, shift: 0 }
}

/// What KVM and the VMM say of a clock.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestTscs {
    /// Lines of the VMM by client; `None`: for all other clients.
    said: BTreeMap<Option<u32>, Line>,
    compared: BTreeMap<u32, Agreement>,
    /// TSCs of all VMs of the host.
    of_kvm: Vec<Line>,
    compared_of_kvm: BTreeMap<u32, KvmWord>,
    /// CPUs of the guest, each with a TSC of the host.
    cpus: Vec<GuestCpu>,
}

/// Returns whether a guest's clock can be a counter like the host's.
fn is_like_hosts(session: &Session, clock: &Clock) -> bool {
    let host = session.json().clocks.iter().find(|clock| clock.domain == Domain::Host);
    host.is_some_and(|host| clock.kind == host.kind || clock.kind == "counter")
}

/// Returns the line of a TSC that KVM computed, if a guest's clock can be that TSC. KVM computes no other
/// counter.
pub(crate) fn kvm_line(session: &Session, clock: &Clock, tsc: GuestTsc) -> Option<Line> {
    let is_possible = clock.kind == "tsc" && is_like_hosts(session, clock);
    let line = Line::new(tsc, clock.base, session.counter(), session.origin());
    line.filter(|_| is_possible)
}

impl GuestTscs {
    /// Returns what KVM and the VMM say of a clock, for its clients with times and its clients with packets.
    /// Returns nothing if the clock cannot be a counter like the host's.
    pub fn of(
        session: &Session,
        clock: &Clock,
        times: &BTreeMap<u32, Times>,
        found: &Found,
    ) -> GuestTscs {
        let json = session.json();
        let is_like = is_like_hosts(session, clock);
        let said = json.guest_tscs.iter().filter(|said| is_like && said.epoch == clock.epoch);
        // A session can have a thousand clocks and two thousand TSCs for each, so only TSCs of the clock's
        // clients are kept.
        let guests = session.streams().iter().filter(|stream| stream.domain == Domain::Guest);
        let is_its =
            |stream: &&Stream| stream.segments.iter().any(|s| s.first.stream_id == clock.id);
        let with_packets = BTreeSet::from_iter(guests.filter(is_its).map(|stream| stream.client));
        let is_client = |client| times.contains_key(&client) || with_packets.contains(&client);
        let line = |tsc| Line::new(tsc, clock.base, session.counter(), session.origin());
        let said = said.filter(|said| said.client.is_none_or(is_client));
        let said = said.filter_map(|said| Some((said.client, line(said.tsc)?)));
        let of_kvm = found.tscs.iter().filter_map(|found| {
            Some(kvm_line(session, clock, found.tsc)?.of_kvm(found.from, found.until))
        });
        let cpus = found.cpus.iter().filter(|cpu| cpu.clock == clock.id).cloned();
        let (said, of_kvm, cpus) = (said.collect(), of_kvm.collect(), cpus.collect());
        GuestTscs { said, of_kvm, cpus, ..GuestTscs::default() }
    }

    /// Returns whether a TSC puts events of the guest's kernel outside of guest mode: events of a CPU are in
    /// guest mode of no thread, or events of two CPUs are only in guest mode of the same thread.
    fn is_outside(&self, tsc: GuestTsc) -> bool {
        let mut taken = BTreeMap::new();
        self.cpus.iter().filter(|cpu| cpu.tsc == tsc).any(|cpu| match cpu.threads[..] {
            [] => true,
            // Several recordings of the host may have the same CPU.
            [only] => taken.insert(only, cpu.cpu).is_some_and(|other| other != cpu.cpu),
            _ => false,
        })
    }

    /// Iterates over the CPUs of the guest, for the TSCs with which the points of clients agree.
    pub fn cpus(&self) -> impl Iterator<Item = &GuestCpu> {
        let is_agreed = |tsc: GuestTsc| {
            let mut words = self.compared_of_kvm.values();
            words.any(|word| word.agreed.iter().any(|line| line.tsc() == tsc))
        };
        self.cpus.iter().filter(move |cpu| is_agreed(cpu.tsc))
    }

    fn said(&self, client: u32) -> Option<&Line> {
        self.said.get(&Some(client)).or_else(|| self.said.get(&None))
    }

    /// Compares what KVM and the VMM say of a client with the constraints from which its map was made.
    pub fn compare(&mut self, client: u32, limits: &Limits, map: &ClockMap) {
        if !self.of_kvm.is_empty() {
            let mut compared = KvmWord::of(&self.of_kvm, limits, map);
            // The events of the guest's kernel are looked at last, because an event can take exactness away,
            // but can give none.
            compared.is_outside = compared.agreed.iter().any(|line| self.is_outside(line.tsc()));
            compared.contradicted += usize::from(compared.is_outside);
            self.compared_of_kvm.insert(client, compared);
        }
        if let Some(line) = self.said(client) {
            let agreement = line.compare(limits, map);
            self.compared.insert(client, agreement);
        }
    }

    /// Returns the lines by which a client's times are mapped. A client without constraints on both sides
    /// gets the lines of other clients, if those agree with one TSC and nothing contradicts it.
    pub fn used(&self, client: u32) -> Lines {
        let own = self.compared_of_kvm.get(&client);
        if let Some(lines) = own.and_then(KvmWord::lines) {
            return Lines::new(lines.clone());
        }
        let of_kvm = match own {
            Some(own) if own.contradicted > 0 || own.is_ambiguous => None,
            // Nothing shows which TSC the client reads, so the other clients must agree on one.
            _ => {
                let mut others = self.compared_of_kvm.values().filter_map(KvmWord::lines);
                let first = others.next();
                first.filter(|first| others.all(|other| other == *first))
            }
        };
        match of_kvm {
            Some(other) => Lines::new(other.clone()).unproven(),
            None => Lines::new(self.used_of_vmm(client).into_iter().collect()),
        }
    }

    fn used_of_vmm(&self, client: u32) -> Option<Line> {
        let line = self.said(client)?;
        let own = self.compared.get(&client);
        let has_own = own.is_some_and(|own| own.room.0.is_some() && own.room.1.is_some());
        let is_used = match own {
            Some(own) if has_own || own.contradicting > 0 => own.is_agreed(),
            _ => {
                let is_same = |(other, agreement): (&u32, &Agreement)| {
                    agreement.is_agreed() && self.said(*other) == Some(line)
                };
                self.compared.values().all(|other| other.contradicting == 0)
                    && self.compared.iter().any(is_same)
            }
        };
        is_used.then_some(*line)
    }

    /// Iterates over the clients with which KVM's TSCs were compared.
    pub fn of_kvm(&self) -> impl Iterator<Item = (u32, &KvmWord)> {
        self.compared_of_kvm.iter().map(|(client, word)| (*client, word))
    }

    /// Iterates over the clients that have constraints.
    pub fn compared(&self, clock: u32) -> impl Iterator<Item = ComparedTsc> {
        self.compared.iter().filter_map(move |(client, agreement)| {
            let tsc = self.said(*client)?.tsc();
            Some(ComparedTsc { clock, client: *client, tsc, agreement: *agreement })
        })
    }
}

impl KvmWord {
    /// Finds those TSCs of all VMs that a client with these constraints may read.
    fn of(all: &[Line], limits: &Limits, map: &ClockMap) -> KvmWord {
        let mut agreed = Vec::new();
        let mut contradicted = 0;
        for line in all {
            let agreement = line.compare(limits, map);
            contradicted +=
                usize::from(agreement.contradicting > 0 || !agreement.has_possible_rate);
            if agreement.is_agreed() {
                agreed.push(*line);
            }
        }
        agreed.sort_by_key(Line::held);
        // The same TSC of several vCPUs, VMs or recordings counts once.
        let mut used: Vec<Line> = Vec::new();
        let mut is_ambiguous = false;
        for line in agreed {
            match used.last_mut() {
                Some(last) if last.joins(&line) => last.join(&line),
                Some(last) if last.overlaps(&line) => is_ambiguous = true,
                _ => used.push(line),
            }
        }
        // Where no TSC held, the nearest TSC gives the times, so that TSC must not contradict the points
        // either.
        let used: Arc<[Line]> = used.into();
        let lines = Lines::new(used.clone());
        let at = |p: &Point| lines.at(p.x.unsigned_abs()).map(|(host, _)| host);
        let is_possible = limits.not_after.iter().all(|p| at(p).is_none_or(|own| own <= p.y))
            && limits.not_before.iter().all(|p| at(p).is_none_or(|own| p.y <= own));
        let agreed = if is_ambiguous || !is_possible { Arc::default() } else { used };
        contradicted += usize::from(!is_possible);
        KvmWord { agreed, contradicted, is_ambiguous, is_outside: false }
    }
}
