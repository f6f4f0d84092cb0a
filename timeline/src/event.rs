// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Entries of a timeline: events, and places where events were lost.

use crate::clock::{FRACTION, GuestReading};
use crate::format;
use crate::function::{FunctionFields, FunctionName};
use crate::source::Source;
use crate::value::ValueRef;
use hypertrace_abi::ring::Losses;
use hypertrace_abi::schema::Shape;
use std::sync::Arc;

/// The next entry of the timeline. The entry is valid until the reader reads the entry after it.
#[derive(Debug)]
pub enum EntryRef<'a> {
    /// An event.
    Event(EventRef<'a>),
    /// Events are missing here.
    Lost(Lost),
}

impl EntryRef<'_> {
    /// Returns the Unix time of the entry in nanoseconds, if the time is known.
    pub fn ts_ns(&self) -> Option<i64> {
        match self {
            EntryRef::Event(event) => Some(event.ts_ns),
            EntryRef::Lost(lost) => lost.ts_ns,
        }
    }
}

/// An event on the timeline. The bound on the error of the event's time is computed when
/// [`EventRef::bound_ns`] is called.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EventRef<'a> {
    /// Unix time in nanoseconds. If `ticks` is `Some`, this field has the same number of ticks. The ticks
    /// give the order of events within the trace, but no time.
    pub ts_ns: i64,
    /// Time of an event of a kernel's trace in ticks of the trace's clock, if the length of a tick is not
    /// known.
    pub ticks: Option<u64>,
    /// Who recorded the event. If a vCPU's thread recorded the event for a client, the source is the client.
    pub source: &'a Arc<Source>,
    /// Name of the event.
    pub name: &'a Arc<str>,
    /// Fields of the event. The fields are decoded during the iteration.
    pub fields: Fields<'a>,
    /// Flags of the record.
    pub flags: u16,
    /// Kind of the event.
    pub kind: EventKind,
    /// Numbers of a reference point that a vCPU's thread recorded.
    pub reference: Option<Reference>,
    /// Thread of the host that recorded the event, if this thread is known. Only events of a kernel, of the
    /// VMM, and of a program without a VMM have such a thread.
    pub thread: Option<Thread>,
    /// Name of the function that the event enters or leaves, if the program itself recorded the call. The
    /// fields of such an event do not have the name.
    pub function: Option<&'a FunctionName>,
    /// Reading of a guest's clock from which the time was computed.
    pub(crate) reading: Option<GuestReading<'a>>,
    pub(crate) bound: Bound,
    /// Index of the kernel's trace that holds the event, among the traces of the timeline. 0 for an event
    /// that is not in a kernel's trace.
    pub(crate) trace: usize,
}

/// The bound on the error of an event's time. Computing the bound takes longer than mapping the time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// The bound in nanoseconds.
    Known(Option<u64>),
    /// The bound follows from the constraints on the event's reading of a guest's clock. `host` is the host
    /// time that the map computes. `late` is the difference by which the shown time is later than `host`.
    /// `rest` is the part of a nanosecond that the shown time leaves out. The values `host`, `late` and
    /// `rest` are in units of 1/[`FRACTION`] ns. `margin_ns` is the error of the session's place on the
    /// timeline in nanoseconds, and is added to the bound.
    OfReading { host: i64, late: u64, rest: u64, margin_ns: u64 },
}

impl Bound {
    /// Makes a bound from units of 1/[`FRACTION`] ns.
    pub fn of(units: Option<u64>, rest: u64) -> Bound {
        Bound::Known(units.map(|units| nanoseconds(units, rest)))
    }

    /// Returns the bound after the error of the session's place on the timeline is added.
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

/// Converts a bound to whole nanoseconds. `rest` is added, because the part of a nanosecond that the shown
/// time leaves out is an error too.
fn nanoseconds(units: u64, rest: u64) -> u64 {
    let units = if units > 0 { units.saturating_add(rest) } else { 0 };
    units.div_ceil(FRACTION.unsigned_abs())
}

impl<'a> EventRef<'a> {
    /// Returns the bound on the error of the time against the host's clock in nanoseconds, or `None` if there
    /// is no bound.
    pub fn bound_ns(&self) -> Option<u64> {
        self.bound.ns(self.reading)
    }

    /// Returns whether the bound is 0. In nearly all cases, the answer needs no bound of a reading.
    pub(crate) fn is_exact(&self) -> bool {
        match self.bound {
            Bound::Known(ns) => ns == Some(0),
            Bound::OfReading { .. } => {
                self.reading.is_some_and(|reading| reading.maps.0.width() == Some(0))
                    && self.bound_ns() == Some(0)
            }
        }
    }

    /// Returns the index of the kernel's trace that holds the event, among the traces of the timeline.
    pub fn kernel_trace(&self) -> Option<usize> {
        (self.kind == EventKind::Kernel).then_some(self.trace)
    }
}

/// Fields of an event, in the order of its declaration.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub(crate) Encoded<'a>);

/// The bytes of an event's fields, with the description of their layout.
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
    /// Dense id of the event's class in its session.
    pub class: u32,
    pub names: &'a [Arc<str>],
    pub shape: &'a Shape,
    pub payload: &'a [u64],
}

impl<'a> Fields<'a> {
    /// Returns the dense id of the class, if the event is of a session.
    pub(crate) fn class(&self) -> Option<u32> {
        match self.0 {
            Encoded::Record(record) => Some(record.class),
            _ => None,
        }
    }

    /// Returns the fields of a kernel's record, if the event is of a kernel.
    pub(crate) fn kernel(&self) -> Option<format::Fields<'a>> {
        match self.0 {
            Encoded::Kernel(fields) => Some(fields),
            _ => None,
        }
    }

    /// Returns whether the event has no field.
    pub fn is_empty(&self) -> bool {
        match self.0 {
            Encoded::Record(record) => record.names.is_empty(),
            Encoded::Kernel(fields) => fields.is_empty(),
            Encoded::Function(_) => false,
        }
    }

    /// Returns the names of the fields of a session's event.
    pub(crate) fn names(&self) -> &'a [Arc<str>] {
        match self.0 {
            Encoded::Record(record) => record.names,
            _ => &[],
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

/// An iterator over the fields of an event in any of the encodings. The enum is faster than a chain of three
/// iterators, because the chain would ask each of the three for every field.
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
    /// Id of the thread's process. `None` in a kernel's trace, because such a trace does not contain process
    /// ids.
    pub pid: Option<u32>,
    /// Id of the thread, 0 for the idle thread of any CPU.
    pub tid: u32,
    /// CPU that recorded the event, if the event is of a kernel's trace.
    pub cpu: Option<u32>,
}

/// A place where events were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    /// Unix time in nanoseconds of the last event before the place. If events were overwritten, the time of
    /// the first event after the place. `None` if the place is not known.
    pub ts_ns: Option<i64>,
    /// Who lost the events.
    pub source: Arc<Source>,
    /// CPU whose events were lost, in a kernel's trace.
    pub cpu: Option<u32>,
    /// Thread of the VMM whose ring was full, if it is known.
    pub thread: Option<Thread>,
    /// Index of the kernel's trace, as in [`EventRef`].
    pub(crate) trace: usize,
    /// Exact number of lost events, or 0 if a kernel's trace only says that events were lost.
    pub events: u64,
    /// For each cause, the count of all lost events of this source. The counts come from `session.json`,
    /// because packets do not have the causes. All counts are 0 if the causes are not known.
    pub causes: Losses,
}

impl Lost {
    /// Returns the index of the kernel's trace that lost the events, among the traces of the timeline.
    pub fn kernel_trace(&self) -> Option<usize> {
        self.cpu.map(|_| self.trace)
    }
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// An event with a declaration, from the guest's ring or from the VMM.
    Event,
    /// A reference point, on the host's clock if a vCPU thread recorded it. Reference points of the 2016
    /// interface are included.
    ReferencePoint,
    /// A new thread holds the client from this event on.
    Lease,
    /// An event of the 2016 interface that went through a ring.
    Hypertrace,
    /// An impossible timestamp of the guest, with its raw value.
    TimeFault,
    /// A record whose schema the host did not have.
    Untyped,
    /// An event of a kernel's trace.
    Kernel,
    /// Entry or exit of a function, from a function trace.
    Function,
}

/// Numbers of a reference point. In the point's record, these numbers stand before the point's own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reference {
    /// Client whose register the guest stored to.
    pub client: u32,
    /// Id of the guest's CPU, as the guest says.
    pub cpu: u32,
    /// Sequence number that the guest gave to the point.
    pub seq: u32,
    /// Raw value of the guest's clock before the store.
    pub guest_time: u64,
}
