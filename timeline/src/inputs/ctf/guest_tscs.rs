// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! KVM's and the VMM's descriptions of clients' TSCs, and a comparison of these descriptions with the
//! clients' reference points.

use super::packet::Domain;
use super::samples::{Found, Times};
use super::session::Session;
use super::session_json::{Clock, GuestTsc};
use super::stream::Stream;
use crate::clock::{Agreement, ClockMap, Limits, Line, Lines, Point};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A client's TSC as the VMM describes it, compared with the client's reference points.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ComparedTsc {
    /// Id of the client's clock.
    pub clock: u32,
    /// Id of the client.
    pub client: u32,
    /// TSC that the VMM describes.
    pub tsc: GuestTsc,
    /// Comparison with the constraints of the client's map. The client's times are computed from `tsc` if the
    /// comparison is [agreed](Agreement::is_agreed).
    pub agreement: Agreement,
}

/// The TSC of a client, as KVM's events in the recording of the host's kernel describe the TSC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvmWord {
    /// Lines with which the client's points agree.
    agreed: Arc<[Line]>,
    /// Number of TSCs of this host's VMs that the client does not read: the client's points or events of the
    /// guest's kernel contradict these TSCs. Such a TSC belongs to another VM, or KVM's description is wrong.
    pub contradicted: usize,
    /// Whether the client's points fit several TSCs of the same time, such as the TSCs of two VMs or vCPUs.
    /// If true, no TSC is used.
    pub is_ambiguous: bool,
    /// Whether a TSC that fits the points puts events of the guest's kernel outside of guest mode. If true,
    /// no TSC is used.
    pub is_outside: bool,
}

impl KvmWord {
    /// Returns the TSCs from which the client's times are computed. Each TSC comes with two host times in
    /// [units](crate::clock::FRACTION) since the session's origin: the TSC held from the first time until
    /// just before the second time.
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

/// A CPU of a guest, and the host's threads that can have run this CPU. A thread can have run the CPU if all
/// events of the guest's kernel on this CPU lie in the thread's guest mode, according to times from KVM's
/// TSC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[non_exhaustive]
pub struct GuestCpu {
    /// Id of the guest's clock.
    pub clock: u32,
    /// Number that the guest gives the CPU.
    pub cpu: u32,
    /// TSC that KVM describes.
    #[serde(skip)]
    #[cfg_attr(test, serde(default = "no_tsc"))]
    pub tsc: GuestTsc,
    /// Number of events of the CPU that were searched for in guest mode.
    pub events: usize,
    /// Numbers of the host's threads that can have run the CPU, in order. If the list is empty, KVM's
    /// description of the TSC is wrong.
    pub threads: Vec<u32>,
}

/// Returns a placeholder for the TSC, because the JSON that tests read has no TSC.
#[cfg(test)]
fn no_tsc() -> GuestTsc {
    GuestTsc { offset: 0, multiplier: 1, shift: 0 }
}

/// KVM's and the VMM's descriptions of the TSC for a guest's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestTscs {
    /// Line that the VMM describes for each client. The key `None` has the line for all other clients.
    said: BTreeMap<Option<u32>, Line>,
    compared: BTreeMap<u32, Agreement>,
    /// TSCs of all VMs of the host.
    of_kvm: Vec<Line>,
    compared_of_kvm: BTreeMap<u32, KvmWord>,
    /// CPUs of the guest. Each element pairs a CPU with one of the TSCs in `of_kvm`.
    cpus: Vec<GuestCpu>,
}

/// Returns whether a guest's clock can be the same kind of counter as the host's clock.
fn is_like_hosts(session: &Session, clock: &Clock) -> bool {
    let host = session.json().clocks.iter().find(|clock| clock.domain == Domain::Host);
    host.is_some_and(|host| clock.kind == host.kind || clock.kind == "counter")
}

/// Returns the line of a TSC that KVM computed, if a guest's clock can be this TSC. KVM's description is only
/// about TSCs, so the clock must be a TSC.
pub(crate) fn kvm_line(session: &Session, clock: &Clock, tsc: GuestTsc) -> Option<Line> {
    let is_possible = clock.kind == "tsc" && is_like_hosts(session, clock);
    let line = Line::new(tsc, clock.base, session.counter(), session.origin());
    line.filter(|_| is_possible)
}

impl GuestTscs {
    /// Returns KVM's and the VMM's descriptions for a clock, for the clients in `times` and for the clients
    /// with packets of this clock. The result is empty if the clock is another kind of counter than the
    /// host's clock.
    pub fn of(
        session: &Session,
        clock: &Clock,
        times: &BTreeMap<u32, Times>,
        found: &Found,
    ) -> GuestTscs {
        let json = session.json();
        let is_like = is_like_hosts(session, clock);
        let said = json.guest_tscs.iter().filter(|said| is_like && said.epoch == clock.epoch);
        // A session can have a thousand clocks, and each clock can have two thousand TSCs, so only TSCs of
        // the clock's clients are kept.
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

    /// Returns whether a TSC puts events of the guest's kernel outside of guest mode. This is the case if no
    /// thread can have run a CPU of the guest, or if two CPUs of the guest have the same thread as their only
    /// possible thread.
    fn is_outside(&self, tsc: GuestTsc) -> bool {
        let mut taken = BTreeMap::new();
        self.cpus.iter().filter(|cpu| cpu.tsc == tsc).any(|cpu| match cpu.threads[..] {
            [] => true,
            // The CPU's number is compared, because several recordings of the host may have the same CPU.
            [only] => taken.insert(only, cpu.cpu).is_some_and(|other| other != cpu.cpu),
            _ => false,
        })
    }

    /// Iterates over the CPUs of the guest that were searched with a TSC that fits the points of a client.
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

    /// Compares KVM's and the VMM's descriptions with the constraints of the client's map.
    pub fn compare(&mut self, client: u32, limits: &Limits, map: &ClockMap) {
        if !self.of_kvm.is_empty() {
            let mut compared = KvmWord::of(&self.of_kvm, limits, map);
            // The events of the guest's kernel are checked last, because an event can only show that a TSC is
            // wrong.
            compared.is_outside = compared.agreed.iter().any(|line| self.is_outside(line.tsc()));
            compared.contradicted += usize::from(compared.is_outside);
            self.compared_of_kvm.insert(client, compared);
        }
        if let Some(line) = self.said(client) {
            let agreement = line.compare(limits, map);
            self.compared.insert(client, agreement);
        }
    }

    /// Returns the lines from which a client's times are computed. A client that lacks upper or lower limits
    /// gets the lines of the other clients, if all of them use the same TSC and nothing contradicts this TSC.
    pub fn used(&self, client: u32) -> Lines {
        let own = self.compared_of_kvm.get(&client);
        if let Some(lines) = own.and_then(KvmWord::lines) {
            return Lines::new(lines.clone());
        }
        let of_kvm = match own {
            Some(own) if own.contradicted > 0 || own.is_ambiguous => None,
            // The client's constraints do not show which TSC the client reads, so all other clients must
            // agree on one TSC.
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

    /// Iterates over the clients whose constraints were compared with the VMM's TSC.
    pub fn compared(&self, clock: u32) -> impl Iterator<Item = ComparedTsc> {
        self.compared.iter().filter_map(move |(client, agreement)| {
            let tsc = self.said(*client)?.tsc();
            Some(ComparedTsc { clock, client: *client, tsc, agreement: *agreement })
        })
    }
}

impl KvmWord {
    /// Finds among the TSCs of all VMs the TSCs that a client with these constraints may read.
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
        // If several vCPUs, VMs or recordings have the same TSC, the TSC counts once.
        let mut used: Vec<Line> = Vec::new();
        let mut is_ambiguous = false;
        for line in agreed {
            match used.last_mut() {
                Some(last) if last.joins(&line) => last.join(&line),
                Some(last) if last.overlaps(&line) => is_ambiguous = true,
                _ => used.push(line),
            }
        }
        // At times at which no TSC held, the times come from the nearest TSC, so this TSC must not contradict
        // points at such times either.
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
