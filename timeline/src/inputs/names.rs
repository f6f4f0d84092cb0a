// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of sources: a client has its holder's name; a thread of the VMM, or of the
//! host if there is no VMM, has its own.

use crate::event::Thread;
use hypertrace_format::session_json::Domain;
use std::collections::HashMap;
use std::sync::Arc;

/// A source of events: a client of the guest or a ring of the host, in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    pub session: usize,
    pub domain: Domain,
    pub client: u32,
}

/// The current names: a lease record changes them when the timeline passes it.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// For each session, the prefix of its names and the name of its host side.
    sessions: Vec<(String, [&'static str; 2])>,
    places: HashMap<Source, Place>,
    holders: Vec<Holder>,
}

/// Place of a source in [`Names`], which finds it without a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

#[derive(Clone, Debug)]
struct Holder {
    source: Source,
    /// Token of the lease that the name belongs to; `None` if it is from a description.
    token: Option<u64>,
    name: String,
    shown: Option<Arc<str>>,
    /// Token of the last lease record's packet, and its thread of the host.
    thread: Option<(u64, Thread)>,
}

impl Names {
    /// Makes names for sessions, each with its own name and those of its sides.
    pub fn new(mut sessions: Vec<(String, [&'static str; 2])>) -> Names {
        // Sessions with the same name get their number.
        let all = sessions.clone();
        for (number, (name, _)) in sessions.iter_mut().enumerate() {
            *name = match all.iter().filter(|(other, _)| other == name).count() {
                _ if all.len() == 1 => String::new(),
                1 => format!("{name}:"),
                _ => format!("{name}#{}:", number + 1),
            };
        }
        Names { sessions, places: HashMap::new(), holders: Vec::new() }
    }

    /// Returns whether a source has a place.
    pub fn has(&self, source: Source) -> bool {
        self.places.contains_key(&source)
    }

    /// Returns the place of a source. A stream asks once, not for each event.
    pub fn place(&mut self, source: Source) -> Place {
        *self.places.entry(source).or_insert_with(|| {
            let name = String::new();
            self.holders.push(Holder { source, token: None, name, shown: None, thread: None });
            Place(self.holders.len() - 1)
        })
    }

    /// Sets the name of a lease, with its token if that is known.
    pub fn lease(&mut self, Place(at): Place, token: Option<u64>, name: String) {
        let Holder { source, thread, .. } = self.holders[at];
        self.holders[at] = Holder { source, token, name, shown: None, thread };
    }

    /// Sets the host's thread that a lease is of, with the token of the lease record's packet.
    pub fn set_thread(&mut self, Place(at): Place, thread: Option<(u64, Thread)>) {
        self.holders[at].thread = thread;
    }

    /// Returns what was set last.
    pub fn thread(&self, Place(at): Place) -> Option<(u64, Thread)> {
        self.holders[at].thread
    }

    /// Notes the lease of a record that passes. If it is another lease than the known one,
    /// its lease record was lost, and with it the name.
    pub fn token(&mut self, place: Place, token: u64) {
        match self.holders[place.0].token {
            Some(known) if known == token => {}
            Some(_) => self.lease(place, Some(token), String::new()),
            None => self.holders[place.0].token = Some(token),
        }
    }

    /// Returns the name to show: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0` if there is
    /// no VMM, with `S1:` in front if there are several sessions.
    pub fn get(&mut self, Place(at): Place) -> &Arc<str> {
        let Holder { source: Source { session, domain, client }, name, shown, .. } =
            &mut self.holders[at];
        let (prefix, [guest, host]) = &self.sessions[*session];
        shown.get_or_insert_with(|| {
            match (domain, name.as_str()) {
                (Domain::Guest, "") => format!("{prefix}{guest}/{client}"),
                (Domain::Guest, name) => format!("{prefix}{guest}/{client} {name}"),
                (Domain::Host, "") => format!("{prefix}{host}/{client}"),
                (Domain::Host, name) if name.starts_with("vmm/") => format!("{prefix}{name}"),
                (Domain::Host, name) => format!("{prefix}{host}/{name}"),
            }
            .into()
        })
    }

    /// Returns the prefix of a session's names: empty if there is one session only.
    pub fn prefix(&self, session: usize) -> &str {
        self.sessions.get(session).map_or("", |(prefix, _)| prefix)
    }
}
