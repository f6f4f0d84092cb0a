// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Entries of a timeline: events, and places where some were lost.

use crate::clock::{FRACTION, GuestReading};
use crate::format;
use crate::function::{FunctionFields, FunctionName};
use crate::source::Source;
use crate::value::ValueRef;
use hypertrace_abi::ring::Losses;
use hypertrace_abi::schema::Shape;
use std::sync::Arc;

/// The next item of the timeline, valid until the one after it is read.
#[derive(Debug)]
pub enum EntryRef<'a> {
    /// An event.
    Event(EventRef<'a>),
    /// Events are missing here.
    Lost(Lost),
}

impl EntryRef<'_> {
    /// Returns its Unix time in nanoseconds, if it is known.
    pub fn ts_ns(&self) -> Option<i64> {
        match self {
            EntryRef::Event(event) => Some(event.ts_ns),
            EntryRef::Lost(lost) => lost.ts_ns,
        }
    }
}

/// An event on the timeline. The bound on the error of its time is computed once somebody asks for it ([`EventRef::bound_ns`]).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EventRef<'a> {
    /// Unix time, nanoseconds. If there are `ticks`, these in its place: an order within the trace, and no time.
    pub ts_ns: i64,
    /// Time of an event of a kernel's trace, in ticks of its clock, if the length of a tick is not known.
    pub ticks: Option<u64>,
    /// Who recorded it; of an event that a vCPU's thread recorded for a client, the client.
    pub source: &'a Arc<Source>,
    /// Name of the event.
    pub name: &'a Arc<str>,
    /// Fields, decoded while they are iterated over.
    pub fields: Fields<'a>,
    /// Flags of the record.
    pub flags: u16,
    /// Kind of the event.
    pub kind: EventKind,
    /// Words of a reference point that a vCPU thread recorded.
    pub reference: Option<Reference>,
    /// Thread of the host that recorded the event, if it is known: of a kernel's event, of the VMM's, and of a program's without
    /// a VMM.
    pub thread: Option<Thread>,
    /// Name of the function that it enters or leaves, where that is compiled in and not among the fields.
    pub function: Option<&'a FunctionName>,
    /// Reading of a guest's clock that the time is from.
    pub(crate) reading: Option<GuestReading<'a>>,
    pub(crate) bound: Bound,
    /// Index of the kernel's trace that it is from, among those of the timeline; 0 for others.
    pub(crate) trace: usize,
}

/// The bound on the error of an event's time. To compute it takes longer than to map the time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// In nanoseconds.
    Known(Option<u64>),
    /// What the constraints of a guest's clock allow for the event's reading. `host` is the host time by the map, `late` by how
    /// much later the event is shown, `rest` the part of a nanosecond that the time shown leaves out, all in units of
    /// 1/[`FRACTION`] ns. The place of the session adds its own error, `margin_ns`.
    OfReading { host: i64, late: u64, rest: u64, margin_ns: u64 },
}

impl Bound {
    /// Makes one of a bound in units.
    pub fn of(units: Option<u64>, rest: u64) -> Bound {
        Bound::Known(units.map(|units| nanoseconds(units, rest)))
    }

    /// Returns the bound of a session that is placed with this error.
    pub fn with_margin(self, margin_ns: Option<u64>) -> Bound {
        match (self, margin_ns) {
            (_, None) => Bound::Known(None),
            (Bound::Known(ns), Some(margin)) => {
                Bound::Known(ns.map(|ns| ns.saturating_add(margin)))
            }
            (Bound::OfReading { host, late, rest, .. }, Some(margin_ns)) => {
                Bound::OfReading { host, late, rest, margin_ns }
            }
        }
    }

    fn ns(self, reading: Option<GuestReading<'_>>) -> Option<u64> {
        match self {
            Bound::Known(ns) => ns,
            Bound::OfReading { host, late, rest, margin_ns } => {
                let units = reading?.distance(host)?.saturating_add(late);
                Some(nanoseconds(units, rest).saturating_add(margin_ns))
            }
        }
    }
}

/// Converts a bound to whole nanoseconds. The part of a nanosecond that the time shown leaves out is an error, too.
fn nanoseconds(units: u64, rest: u64) -> u64 {
    let units = if units > 0 { units.saturating_add(rest) } else { 0 };
    units.div_ceil(FRACTION.unsigned_abs())
}

impl<'a> EventRef<'a> {
    /// Returns the bound on the error of the time against the host's clock, in nanoseconds; `None` if there is no bound.
    pub fn bound_ns(&self) -> Option<u64> {
        self.bound.ns(self.reading)
    }

    /// Returns the index of the kernel's trace that it is from, among those of the timeline.
    pub fn kernel_trace(&self) -> Option<usize> {
        (self.kind == EventKind::Kernel).then_some(self.trace)
    }
}

/// Fields of an event, in the order of its declaration.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub(crate) Encoded<'a>);

/// The bytes of the fields, and their layout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Encoded<'a> {
    /// The payload of a record of a session.
    Record(Record<'a>),
    /// A record of a kernel's ring buffer.
    Kernel(format::Fields<'a>),
    /// Fields of a function trace's event.
    Function(FunctionFields<'a>),
}

/// The payload of a session's record, and its class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// Dense id of the class in its session.
    pub class: u32,
    pub names: &'a [Arc<str>],
    pub shape: &'a Shape,
    pub payload: &'a [u64],
}

impl<'a> Fields<'a> {
    /// Returns the dense id of a session's event.
    pub(crate) fn class(&self) -> Option<u32> {
        match self.0 {
            Encoded::Record(record) => Some(record.class),
            _ => None,
        }
    }

    /// Returns the fields of a kernel's record.
    pub(crate) fn kernel(&self) -> Option<format::Fields<'a>> {
        match self.0 {
            Encoded::Kernel(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns whether there is no field.
    pub fn is_empty(&self) -> bool {
        match self.0 {
            Encoded::Record(record) => record.names.is_empty(),
            Encoded::Kernel(fields) => fields.is_empty(),
            Encoded::Function(_) => false,
        }
    }

    /// Iterates over the fields, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'a Arc<str>, ValueRef<'a>)> + use<'a> {
        match self.0 {
            Encoded::Record(Record { names, shape, payload, .. }) => {
                Each::Record(names.iter().zip(shape.values(payload).map(ValueRef::from)))
            }
            Encoded::Kernel(fields) => Each::Kernel(fields.iter()),
            Encoded::Function(fields) => Each::Function(fields.iter()),
        }
    }
}

/// An iterator over the fields of an event in whichever encoding. A chain of three iterators would ask each of them for
/// every field.
enum Each<R, K, F> {
    Record(R),
    Kernel(K),
    Function(F),
}

impl<T, R, K, F> Iterator for Each<R, K, F>
where
    R: Iterator<Item = T>,
    K: Iterator<Item = T>,
    F: Iterator<Item = T>,
{
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Each::Record(fields) => fields.next(),
            Each::Kernel(fields) => fields.next(),
            Each::Function(fields) => fields.next(),
        }
    }
}

/// A thread of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Thread {
    /// Number of its process; a kernel's trace does not have it.
    pub pid: Option<u32>,
    /// Number of the thread, 0 for the idle thread of any CPU.
    pub tid: u32,
    /// CPU that recorded the event, in a kernel's trace.
    pub cpu: Option<u32>,
}

/// A place where events were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Unix time of the event before the place, or of the event after it if events
    /// were overwritten, in nanoseconds. `None` if the place is not known.
    pub ts_ns: Option<i64>,
    /// Who lost them.
    pub source: Arc<Source>,
    /// CPU, in a kernel's trace.
    pub cpu: Option<u32>,
    /// Thread of the VMM whose ring was full, if it is known.
    pub thread: Option<Thread>,
    /// Index of the kernel's trace, as in [`EventRef`].
    pub(crate) trace: usize,
    /// Exact number of lost events; 0 if a kernel only says that there are some.
    pub events: u64,
    /// Causes of all losses of this source, from `session.json`; packets have only the
    /// number. All zeros if not known.
    pub causes: Losses,
}

impl Lost {
    /// Returns the index of the kernel's trace that it is from, among those of the timeline.
    pub fn kernel_trace(&self) -> Option<usize> {
        self.cpu.map(|_| self.trace)
    }
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A declared event, in the guest's ring or of the VMM.
    Event,
    /// A reference point, on the host's clock if a vCPU thread recorded it. Those
    /// of the 2016 interface are among them.
    ReferencePoint,
    /// The start of a new holder of the client.
    Lease,
    /// An event of the 2016 interface that went through a ring.
    Hypertrace,
    /// An impossible timestamp of the guest, with its raw value.
    TimeFault,
    /// A record whose schema the host did not have.
    Untyped,
    /// An event of a kernel's trace.
    Kernel,
    /// Entry or exit of a function, of a function trace.
    Function,
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
