// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The VMM's word on the TSCs of a clock's clients, compared with their reference points.

use super::packet::Domain;
use super::samples::Times;
use super::session::Session;
use super::session_json::{Clock, GuestTsc};
use super::stream::Stream;
use crate::clock::{Agreement, ClockMap, Limits, Line};
use std::collections::BTreeSet;

use crate::by_number::ByNumber;

/// A client's TSC by its VMM's word, and how its reference points agree with that.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ComparedTsc {
    /// Clock of the client.
    pub clock: u32,
    /// The client.
    pub client: u32,
    /// The VMM's word.
    pub tsc: GuestTsc,
    /// Comparison with the constraints of the client's map. The client's times are by the VMM's word if it is
    /// [agreed](Agreement::is_agreed).
    pub agreement: Agreement,
}

/// The VMM's word on a clock.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestTscs {
    /// By client; `None`: of all others.
    said: ByNumber<Option<u32>, Line>,
    compared: ByNumber<u32, Agreement>,
}

impl GuestTscs {
    /// Returns the VMM's word on a clock, for its clients: those with times, and those with packets. There is none on
    /// one that cannot be a counter like the host's.
    pub fn of(session: &Session, clock: &Clock, times: &ByNumber<u32, Times>) -> GuestTscs {
        let json = session.json();
        let host = json.clocks.iter().find(|clock| clock.domain == Domain::Host);
        let is_like = |host: &Clock| clock.kind == host.kind || clock.kind == "counter";
        let is_like = host.is_some_and(is_like);
        let said = json.guest_tscs.iter().filter(|said| is_like && said.epoch == clock.epoch);
        // A session can have a thousand clocks, and two thousand words on each.
        let guests = session.streams().iter().filter(|stream| stream.domain == Domain::Guest);
        let is_its =
            |stream: &&Stream| stream.segments.iter().any(|s| s.first.stream_id == clock.id);
        let with_packets = BTreeSet::from_iter(guests.filter(is_its).map(|stream| stream.client));
        let is_client = |client| times.get(client).is_some() || with_packets.contains(&client);
        let said = said.filter(|said| said.client.is_none_or(is_client)).filter_map(|said| {
            let line = Line::new(said.tsc, clock.base, session.counter(), session.origin())?;
            Some((said.client, line))
        });
        GuestTscs { said: said.collect(), compared: ByNumber::default() }
    }

    fn said(&self, client: u32) -> Option<&Line> {
        self.said.get(Some(client)).or_else(|| self.said.get(None))
    }

    /// Compares the word on a client with the constraints from which its map was made.
    pub fn compare(&mut self, client: u32, limits: &Limits, map: &ClockMap) {
        if let Some(line) = self.said(client) {
            let agreement = line.compare(limits, map);
            self.compared.insert(client, agreement);
        }
    }

    /// Returns the line by which a client's times are mapped, if there is one. A client without
    /// constraints on both sides needs another one's that agree with the same TSC, and none that
    /// contradict theirs.
    pub fn used(&self, client: u32) -> Option<Line> {
        let line = self.said(client)?;
        let own = self.compared.get(client);
        let has_own = own.is_some_and(|own| own.room.0.is_some() && own.room.1.is_some());
        let is_used = match own {
            Some(own) if has_own || own.contradicting > 0 => own.is_agreed(),
            _ => {
                let is_same = |(other, agreement): (u32, &Agreement)| {
                    agreement.is_agreed() && self.said(other) == Some(line)
                };
                self.compared.values().all(|other| other.contradicting == 0)
                    && self.compared.iter().any(is_same)
            }
        };
        is_used.then_some(*line)
    }

    /// Iterates over the clients that have constraints.
    pub fn compared(&self, clock: u32) -> impl Iterator<Item = ComparedTsc> {
        self.compared.iter().filter_map(move |(client, agreement)| {
            let tsc = self.said(client)?.tsc();
            Some(ComparedTsc { clock, client, tsc, agreement: *agreement })
        })
    }
}
