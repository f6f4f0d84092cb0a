// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The machines: hosts, and guests of sessions.

use super::fields::{attributes, packet, system};
use super::intern::valid;
use super::sequence::{Output, Sequence};
use crate::Result;
use hypertrace_format::uuid;
use hypertrace_timeline::{ClockMaps, KernelTrace, Session};

/// Maximum size of a machine's name, and of an attribute, in bytes.
const MAX_NAME: usize = 256;

/// The machines of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machines {
    /// Id of the machine that stands for the host.
    pub host: u64,
    /// Id of the machine that stands for the guest. If programs are the guests, this is the id of the host.
    pub guest: u64,
}

/// Returns the machines of sessions, and the number of all machines. The first session's host is 0.
pub(super) fn machines(sessions: &[(Session, ClockMaps)]) -> (Vec<Machines>, u64) {
    let mut all: Vec<Machines> = Vec::new();
    let mut next = 0;
    let mut new = || {
        next += 1;
        next - 1
    };
    for (number, (session, _)) in sessions.iter().enumerate() {
        let same = sessions[..number].iter().position(|(other, _)| session.is_placed_with(other));
        let host = same.map_or_else(&mut new, |at| all[at].host);
        let guest = if session.json().programs { host } else { new() };
        all.push(Machines { host, guest });
    }
    // There is at least one machine, because a function trace without a session also needs a machine.
    (all, next.max(1))
}

/// Facts about a machine for viewers.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub name: String,
    /// Release of the machine's kernel. Viewers need the release to interpret the states of threads.
    pub release: Option<String>,
    /// Architecture of the machine.
    architecture: Option<String>,
}

/// Returns the descriptions of all machines, by id.
pub(super) fn describe(
    sessions: &[(Session, ClockMaps)],
    traces: &[KernelTrace],
    machines: &[Machines],
    of_traces: &[u64],
    count: u64,
) -> Vec<Machine> {
    let of_sessions = || sessions.iter().map(|(session, _)| session).zip(machines);
    let describe = |machine: u64| {
        let host = of_sessions().find(|(_, of)| of.host == machine);
        let guest = of_sessions().find(|(_, of)| of.guest == machine);
        let mut of_machine = traces.iter().zip(of_traces).filter(|(_, of)| **of == machine);
        let origin = host.and_then(|(session, _)| session.json().origin.as_ref());
        let name = match (host, guest, of_machine.clone().next()) {
            (Some(_), ..) => origin.map_or("host".to_owned(), |origin| origin.host.clone()),
            (None, Some((session, _)), _) => format!("guest of {}", session.dir().display()),
            (None, None, Some((trace, _))) => trace.path().display().to_string(),
            (None, None, None) => "host".to_owned(),
        };
        let own = || of_machine.find_map(|(trace, _)| trace.release());
        let release = origin.map(|origin| &*origin.kernel).or_else(own).map(str::to_owned);
        let architecture = origin.map(|origin| origin.machine.clone());
        Machine { name, release, architecture }
    };
    (0..count).map(describe).collect()
}

/// Writes the descriptions of the machines, the host of the first session first.
pub(super) fn write(out: &mut Output<'_>, all: &[Machine], sequences: &[Sequence]) -> Result<()> {
    for (machine, sequence) in all.iter().zip(sequences) {
        sequence.plain(out, |packet| {
            packet.message(packet::SYSTEM_INFO, |info| {
                if let Some(release) = &machine.release {
                    info.message(system::UTSNAME, |names| {
                        names.put(system::SYSNAME, b"Linux");
                        names.put(system::RELEASE, short(release).as_bytes());
                        if let Some(architecture) = &machine.architecture {
                            names.put(system::MACHINE, short(architecture).as_bytes());
                        }
                    });
                }
                info.put(system::MACHINE_NAME, short(&machine.name).as_bytes());
            });
        })?;
    }
    Ok(())
}

/// Writes the sessions from which the trace was made.
pub(super) fn write_origins(
    out: &mut Output<'_>,
    sessions: &[(Session, ClockMaps)],
    first: &Sequence,
) -> Result<()> {
    if let [(session, _), ..] = sessions {
        let uuid = session.json().uuid;
        let half = |bytes: &[u8]| i64::from_be_bytes(bytes.try_into().unwrap_or_default());
        first.plain(out, |packet| {
            packet.message(packet::TRACE_UUID, |proto| {
                proto.signed(attributes::MSB, half(&uuid[..8]));
                proto.signed(attributes::LSB, half(&uuid[8..]));
            });
        })?;
    }
    first.plain(out, |packet| {
        packet.message(packet::TRACE_ATTRIBUTES, |proto| {
            let mut attribute = |key: &str, value: &str| {
                proto.message(attributes::ATTRIBUTE, |attribute| {
                    attribute.put(attributes::KEY, key.as_bytes());
                    attribute.put(attributes::STRING, short(value).as_bytes());
                });
            };
            attribute("hypertrace.version", env!("CARGO_PKG_VERSION"));
            for (number, (session, _)) in sessions.iter().enumerate() {
                let json = session.json();
                attribute(
                    &format!("hypertrace.session.{number}.uuid"),
                    &uuid::text(u128::from_be_bytes(json.uuid)),
                );
                if let Some(origin) = &json.origin {
                    let key = |what| format!("hypertrace.session.{number}.{what}");
                    attribute(&key("command"), &origin.command);
                    attribute(&key("recorded_by"), &origin.version);
                }
            }
        });
    })
}

/// Returns the first bytes of a text.
fn short(text: &str) -> std::borrow::Cow<'_, str> {
    valid(text.as_bytes(), MAX_NAME).0
}
