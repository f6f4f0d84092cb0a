// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The machines: hosts, and guests of sessions.

use super::fields::{attributes, packet, system};
use super::intern::valid;
use super::sequence::{Output, Sequence};
use crate::Result;
use hypertrace_timeline::clock::host::uuid_text;
use hypertrace_timeline::{ClockMaps, Session};

/// Most bytes of a machine's name, and of an attribute.
const MOST_NAME: usize = 256;

/// The machines of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machines {
    /// Number of the host.
    pub host: u64,
    /// Number of the guest; the host's if programs are the guests.
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
    // A function trace alone has a machine, too.
    (all, next.max(1))
}

/// Writes what the machines of sessions are, the host of the first one first, and what the trace was made from.
pub(super) fn write(
    out: &mut Output<'_>,
    sessions: &[(Session, ClockMaps)],
    machines: &[Machines],
    sequences: &[Sequence],
) -> Result<()> {
    let mut named = 0;
    for ((session, _), of) in sessions.iter().zip(machines) {
        let dir = session.dir().display().to_string();
        let origin = session.json().origin.as_ref();
        for (machine, is_host) in [(of.host, true), (of.guest, false)] {
            // Numbers grow by one.
            if machine < named {
                continue;
            }
            named = machine + 1;
            sequences[machine as usize].plain(out, |packet| {
                packet.message(packet::SYSTEM_INFO, |info| {
                    let name = match origin.filter(|_| is_host) {
                        Some(origin) => origin.host.clone(),
                        None if is_host => "host".to_owned(),
                        None => format!("guest of {dir}"),
                    };
                    if let Some(origin) = origin.filter(|_| is_host) {
                        info.message(system::UTSNAME, |names| {
                            names.put(system::SYSNAME, b"Linux");
                            names.put(system::RELEASE, short(&origin.kernel).as_bytes());
                            names.put(system::MACHINE, short(&origin.machine).as_bytes());
                        });
                    }
                    info.put(system::MACHINE_NAME, short(&name).as_bytes());
                });
            })?;
        }
    }
    let Some(first) = sequences.first() else { return Ok(()) };
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
                    &uuid_text(u128::from_be_bytes(json.uuid)),
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
    valid(text.as_bytes(), MOST_NAME).0
}
