//! Leases of a ring: the thread or program that writes to it now.

use super::classes::{ClassRef, Classes};
use hypertrace_abi::event::cut;
use hypertrace_abi::record::{ClockKind, id};
use hypertrace_abi::ring::MAX_NAME_BYTES;
use hypertrace_abi::schema::Value;
use hypertrace_abi::sink::KnownClient;

/// The lease whose records are drained now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLease {
    pub token: u64,
    pub epoch: u32,
    /// Its first timestamp.
    pub first: u64,
}

/// The holder, from its lease record.
#[derive(Debug)]
pub(crate) struct Holder {
    pub token: u64,
    pub clock: ClockKind,
    pub name: String,
}

impl Holder {
    /// Returns the holder of a restored client.
    pub fn of(known: &KnownClient<'_>) -> Holder {
        let name = cut(known.name, MAX_NAME_BYTES).to_owned();
        Holder { token: known.token, clock: known.clock, name }
    }

    /// Reads the payload of a lease record; `None` if it is malformed.
    pub fn parse(classes: &Classes, payload: &[u64]) -> Option<Holder> {
        let class = classes.reserved(id::LEASE)?;
        class.shape.check(payload)?;
        let &[token, _pid, _tid, clock, ..] = payload else { return None };
        Some(Holder { token, clock: clock_kind(clock), name: lease_name(&class, payload)? })
    }
}

/// Returns the clock that a lease record's word names.
pub(crate) fn clock_kind(word: u64) -> ClockKind {
    match word == ClockKind::MonotonicRaw as u64 {
        true => ClockKind::MonotonicRaw,
        false => ClockKind::Tsc,
    }
}

/// Returns the name in a lease record, cut to [`MAX_NAME_BYTES`].
pub(crate) fn lease_name(class: &ClassRef, payload: &[u64]) -> Option<String> {
    let Value::Str(bytes) = class.shape.values(payload).last()? else {
        return None;
    };
    // Three more: a letter that is cut in two here is cut off below.
    let most = bytes.len().min(MAX_NAME_BYTES + 3);
    let mut name = String::from_utf8_lossy(&bytes[..most]).into_owned();
    let mut end = name.len().min(MAX_NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    Some(name)
}
