// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of sources. A client has the name of the thread that holds the client. A thread of the VMM has a
//! name of its own. If there is no VMM, each thread of the host has a name of its own.

use crate::event::Thread;
use crate::source::Source;
use hypertrace_format::session_json::Domain;
use std::collections::HashMap;
use std::sync::Arc;

/// A stream of a session: a client of the guest, or a ring of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Producer {
    pub session: usize,
    pub domain: Domain,
    pub client: u32,
}

/// The names that are valid at the timeline's current place. A lease record changes a name when the timeline
/// takes the record.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// For each session, the prefix of the session's names and the name of the session's host side.
    sessions: Vec<(String, [&'static str; 2])>,
    places: HashMap<Producer, SourceIndex>,
    holders: Vec<Holder>,
    /// Serial number of the next source.
    next: u64,
}

/// Place of a source in [`Names`], which finds the source without a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceIndex(usize);

#[derive(Clone, Debug)]
struct Holder {
    producer: Producer,
    /// Token of the lease that gave the name. `None` if the name is from a description.
    token: Option<u64>,
    name: String,
    shown: Option<Arc<Source>>,
    /// Token from the packet of the last lease record, and the host's thread in this record.
    thread: Option<(u64, Thread)>,
}

impl Names {
    /// Makes names for sessions, from each session's name and the names of its sides.
    pub fn new(mut sessions: Vec<(String, [&'static str; 2])>) -> Names {
        // If several sessions have the same name, each of their prefixes also has the session's number.
        let all = sessions.clone();
        for (number, (name, _)) in sessions.iter_mut().enumerate() {
            *name = match all.iter().filter(|(other, _)| other == name).count() {
                _ if all.len() == 1 => String::new(),
                1 => format!("{name}:"),
                _ => format!("{name}#{}:", number + 1),
            };
        }
        Names { sessions, places: HashMap::new(), holders: Vec::new(), next: 0 }
    }

    /// Returns whether a source has a place.
    pub fn has(&self, producer: Producer) -> bool {
        self.places.contains_key(&producer)
    }

    /// Returns the place of a source. A stream calls this method once, not for each event.
    pub fn place(&mut self, producer: Producer) -> SourceIndex {
        *self.places.entry(producer).or_insert_with(|| {
            let name = String::new();
            self.holders.push(Holder { producer, token: None, name, shown: None, thread: None });
            SourceIndex(self.holders.len() - 1)
        })
    }

    /// Sets the name that a lease gives, and the token of the lease if the token is known.
    pub fn lease(&mut self, SourceIndex(at): SourceIndex, token: Option<u64>, name: String) {
        let Holder { producer, thread, .. } = self.holders[at];
        self.holders[at] = Holder { producer, token, name, shown: None, thread };
    }

    /// Sets the host's thread that holds a lease, with the token of the lease record's packet.
    pub fn set_thread(&mut self, SourceIndex(at): SourceIndex, thread: Option<(u64, Thread)>) {
        self.holders[at].thread = thread;
    }

    /// Returns the thread and token that were set last.
    pub fn thread(&self, SourceIndex(at): SourceIndex) -> Option<(u64, Thread)> {
        self.holders[at].thread
    }

    /// Notes the lease of a record that the timeline takes. If this lease differs from the known lease, the
    /// lease record was lost, so the name of the new holder is unknown.
    pub fn token(&mut self, place: SourceIndex, token: u64) {
        match self.holders[place.0].token {
            Some(known) if known == token => {}
            Some(_) => self.lease(place, Some(token), String::new()),
            None => self.holders[place.0].token = Some(token),
        }
    }

    /// Returns the current source of a place. The source's text has a form such as `guest/0 worker` or
    /// `vmm/vcpu0`, or `host/vcpu 0` if there is no VMM. If there are several sessions, the text begins with
    /// a prefix such as `S1:`.
    pub fn get(&mut self, SourceIndex(at): SourceIndex) -> &Arc<Source> {
        let Names { sessions, holders, next, .. } = self;
        let Holder { producer: Producer { session, domain, client }, name, shown, .. } =
            &mut holders[at];
        let (prefix, [guest, host]) = &sessions[*session];
        shown.get_or_insert_with(|| {
            let text = match (*domain, name.as_str()) {
                (Domain::Guest, "") => format!("{prefix}{guest}/{client}"),
                (Domain::Guest, name) => format!("{prefix}{guest}/{client} {name}"),
                (Domain::Host, "") => format!("{prefix}{host}/{client}"),
                (Domain::Host, name) if name.starts_with("vmm/") => format!("{prefix}{name}"),
                (Domain::Host, name) => format!("{prefix}{host}/{name}"),
            };
            let name = Some(name.strip_prefix("vmm/").unwrap_or(name)).filter(|n| !n.is_empty());
            let client = (*domain == Domain::Guest).then_some(*client);
            numbered(next, (*session, client), name, text)
        })
    }

    /// Makes a source that is no stream of a session: a thread in a kernel's trace, or a task of a function
    /// trace.
    pub fn add(&mut self, session: usize, name: Option<&str>, text: String) -> Arc<Source> {
        numbered(&mut self.next, (session, None), name, text)
    }

    /// Continues the numbering of sources after the sources of `other`.
    pub fn number_after(&mut self, other: &Names) {
        self.next = other.next;
    }

    /// Returns the prefix of a session's names. The prefix is empty if there is only one session.
    pub fn prefix(&self, session: usize) -> &str {
        self.sessions.get(session).map_or("", |(prefix, _)| prefix)
    }
}

fn numbered(
    next: &mut u64,
    (session, client): (usize, Option<u32>),
    name: Option<&str>,
    text: String,
) -> Arc<Source> {
    let number = *next;
    *next += 1;
    Arc::new(Source { number, session, client, name: name.map(Into::into), text: text.into() })
}
