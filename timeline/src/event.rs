// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Entries of a timeline: events, and places where some were lost.

use hypertrace_abi::ring::Losses;
use hypertrace_abi::schema;
use std::sync::Arc;

/// The next item of the timeline.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// An event.
    Event(Event),
    /// Events are missing here.
    Lost(Lost),
}

/// An event on the timeline.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// Unix time, nanoseconds.
    pub ts_ns: i64,
    /// Bound on the error against the host's clock; `None` if there is no bound.
    pub bound_ns: Option<u64>,
    /// Index of the session.
    pub session: usize,
    /// Name of the source: `guest/0 worker`, `vmm/vcpu0`, `host/vcpu 0`. The part after
    /// the client is from the guest: escape it.
    pub source: Arc<str>,
    /// Name of the event.
    pub name: Arc<str>,
    /// Fields with their names.
    pub fields: Vec<(Arc<str>, Value)>,
    /// Flags of the record.
    pub flags: u16,
    /// Guest client that it came from; `None` for the VMM's own events.
    pub client: Option<u32>,
    /// Kind of the event.
    pub kind: Kind,
    /// Words of a reference point that a vCPU thread recorded.
    pub reference: Option<Reference>,
}

/// A place where events were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Unix time of the event before the place, or of the event after it if events
    /// were overwritten, in nanoseconds. `None` if the place is not known.
    pub ts_ns: Option<i64>,
    /// Index of the session.
    pub session: usize,
    /// Name of the source, as in [`Event`]; empty for processes that had no client.
    pub source: Arc<str>,
    /// Guest client.
    pub client: Option<u32>,
    /// Exact number of lost events.
    pub events: u64,
    /// Causes of all losses of this source, from `session.json`; packets have only the
    /// number. All zeros if not known.
    pub causes: Losses,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A declared event, in the guest's ring or of the VMM.
    Event,
    /// A reference point, on the host's clock if a vCPU thread recorded it. Those
    /// of the 2016 interface are among them.
    ReferencePoint,
    /// A point for which the host's kernel has the time, too.
    Stamp,
    /// The start of a new lessee of the client.
    Lease,
    /// An event of the 2016 interface that went through a ring.
    Hypertrace,
    /// An impossible timestamp of the guest, with its raw value.
    TimeFault,
    /// A record whose schema the host did not have.
    Untyped,
}

/// The words of a reference point before its own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reference {
    /// Client whose register was stored to.
    pub client: u32,
    /// Guest CPU, by the guest's account.
    pub cpu: u32,
    /// The guest's number for the point.
    pub seq: u32,
    /// The guest's raw clock before the store.
    pub guest_time: u64,
}

/// A value of an event's field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A value of type u8 to u64.
    Unsigned(u64),
    /// A value of type i8 to i64.
    Signed(i64),
    /// A value of type f64.
    Float(f64),
    /// A value of type bool.
    Bool(bool),
    /// A u64 that reports show in hexadecimal.
    Hex(u64),
    /// Bytes as the guest wrote them. They may not be UTF-8, and may contain terminal
    /// control sequences: escape them.
    Str(Box<[u8]>),
    /// An array of words.
    Words(Box<[u64]>),
}

impl From<schema::Value<'_>> for Value {
    fn from(value: schema::Value<'_>) -> Value {
        match value {
            schema::Value::Unsigned(v) => Value::Unsigned(v),
            schema::Value::Signed(v) => Value::Signed(v),
            schema::Value::Float(v) => Value::Float(v),
            schema::Value::Bool(v) => Value::Bool(v),
            schema::Value::Hex(v) => Value::Hex(v),
            schema::Value::Str(v) => Value::Str(v.into()),
            schema::Value::Words(v) => Value::Words(v.into()),
        }
    }
}
