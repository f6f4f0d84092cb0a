// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Names of sources: a client has its lessee's name; a thread of the VMM, or of the
//! host if there is no VMM, has its own.

use crate::class::Value;
use crate::packet::Domain;
use crate::session::Session;
use crate::stream::Stream;
use std::collections::HashMap;
use std::sync::Arc;

/// A source of events: a client of the guest or a ring of the host, in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    pub session: usize,
    pub domain: Domain,
    pub client: u32,
}

impl Source {
    /// Returns the source of a stream, in the first session.
    pub fn of(stream: &Stream) -> Source {
        Source { session: 0, domain: stream.domain, client: stream.client }
    }
}

/// The current names: a lease record changes them when the timeline passes it.
#[derive(Debug)]
pub(crate) struct Names {
    /// Name of each session, for timelines with several.
    sessions: Vec<String>,
    /// Name of each session's host side.
    hosts: Vec<&'static str>,
    lessees: HashMap<Source, Lessee>,
}

#[derive(Debug, Default)]
struct Lessee {
    /// Token of the lease that the name belongs to; `None` if it is from `session.json`.
    token: Option<u64>,
    name: String,
    shown: Option<Arc<str>>,
}

impl Names {
    /// Starts with the names in `session.json`.
    pub fn new<'a>(sessions: impl Iterator<Item = &'a Session>) -> Names {
        let mut names = Names { sessions: Vec::new(), hosts: Vec::new(), lessees: HashMap::new() };
        for (number, session) in sessions.enumerate() {
            names.sessions.push(session_name(session));
            names.hosts.push(session.json().host());
            for stream in &session.json().streams {
                let source =
                    Source { session: number, domain: stream.domain, client: stream.client };
                let lessee = Lessee { name: stream.name.clone(), ..Lessee::default() };
                names.lessees.insert(source, lessee);
            }
        }
        // Sessions with the same name get their number.
        let all = names.sessions.clone();
        for (number, name) in names.sessions.iter_mut().enumerate() {
            if all.iter().filter(|other| *other == name).count() > 1 {
                *name = format!("{name}#{}", number + 1);
            }
        }
        names
    }

    /// Takes the name of a lease record that passes.
    pub fn lease(&mut self, source: Source, fields: &[(Arc<str>, Value)]) {
        let mut lessee = Lessee::default();
        for (field, value) in fields {
            match (&**field, value) {
                ("token", Value::Hex(token)) => lessee.token = Some(*token),
                ("name", Value::Str(name)) => lessee.name = String::from_utf8_lossy(name).into(),
                _ => {}
            }
        }
        self.lessees.insert(source, lessee);
    }

    /// Notes the lease of a record that passes. If it is another lease than the known one,
    /// its lease record was lost, and with it the name.
    pub fn token(&mut self, source: Source, token: u64) {
        let lessee = self.lessees.entry(source).or_default();
        match lessee.token {
            Some(known) if known != token => {
                *lessee = Lessee { token: Some(token), ..Lessee::default() };
            }
            _ => lessee.token = Some(token),
        }
    }

    /// Returns the name to show: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0` if there is
    /// no VMM, with `S1:` in front if there are several sessions.
    pub fn get(&mut self, source: Source, several: bool) -> Arc<str> {
        let session = self.sessions.get(source.session).map_or("", String::as_str);
        let host = self.hosts.get(source.session).copied().unwrap_or("vmm");
        let lessee = self.lessees.entry(source).or_default();
        let shown = lessee.shown.get_or_insert_with(|| {
            let prefix = if several { format!("{session}:") } else { String::new() };
            let client = source.client;
            match (source.domain, lessee.name.as_str()) {
                (Domain::Guest, "") => format!("{prefix}guest/{client}"),
                (Domain::Guest, name) => format!("{prefix}guest/{client} {name}"),
                (Domain::Host, "") => format!("{prefix}{host}/{client}"),
                (Domain::Host, name) if name.starts_with("vmm/") => format!("{prefix}{name}"),
                (Domain::Host, name) => format!("{prefix}{host}/{name}"),
            }
            .into()
        });
        shown.clone()
    }
}

/// Returns the last part of a session's path.
fn session_name(session: &Session) -> String {
    let dir = session.dir();
    let name = dir.file_name().map(|n| n.to_owned()).or_else(|| {
        // `.` and `..` have no name of their own.
        dir.canonicalize().ok()?.file_name().map(|n| n.to_owned())
    });
    name.map_or_else(|| dir.display().to_string(), |n| n.to_string_lossy().into_owned())
}
