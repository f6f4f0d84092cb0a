// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reads the events that guests and hosts recorded, and merges them to one timeline.
//!
//! A [`Recording`] holds all inputs that are read together: sessions, traces of kernels, and function traces.
//! A session is a directory that `hypertrace-trace` wrote. The writer of a session may still be at work, or
//! may have been killed. The clocks of guests are mapped to the host's clock, with a bound on the error.
//! [`Recording::read`] gives the consumer all events of a recording in order, and the places where events
//! were lost.
//!
//! ```no_run
//! # fn main() -> Result<(), hypertrace_timeline::Error> {
//! use hypertrace_timeline::{EntryRef, Error, Given, Needs, Recording};
//!
//! let recording = Recording::open(&[Given::new("session")])?;
//! recording.read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
//!     if let EntryRef::Event(event) = entry {
//!         println!("{} {} {}", event.ts_ns, event.source, event.name);
//!     }
//!     Ok::<_, Error>(true)
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Follow`] reads a session in rounds while the session is written.
//!
//! Exporters and printers are [`Consumer`]s, and the closure above is a consumer, too. [`Recording::read`]
//! maps only the events that the consumer [`Needs`]. [`Recording::regions`] finds the [`regions`] and gives
//! the consumer the intervals of threads. [`Recording::read_regions`] gives the consumer each region, with
//! the event that begins the region.
//!
//! A [`KernelTrace`] is the trace of a kernel: `kernel.dat` of a session, or any trace.dat of trace-cmd. A
//! [`FunctionTrace`] holds the entries and exits of a guest's functions.
//!
//! The readers check everything that they read, and an [`Error`] names the file and the byte. A [`Warning`]
//! reports a fault that did not prevent reading. [`Recording::warnings`] are the warnings of opening, and
//! [`Recording::read`] returns the warnings of reading. [`Regions::warnings`](regions::Regions::warnings) are
//! the warnings about regions, and say what could not be known. An unfinished end of a file is no damage,
//! because a session stays readable if its writer is killed at any instant. The memory depends on the number
//! of streams (64 KiB for each stream), but not on the size of a session. During the computation of clock
//! maps, each reference point takes 500 further bytes, or 600 bytes with a trace of the kernel. After the
//! computation, a point takes less than half of these bytes. A thread that reads ahead holds up to five
//! batches. A batch has at most 1,024 events. A batch that has reached 256 KiB gets no further event.
//!
//! This crate writes nothing, repairs nothing on disk, and is not meant to run inside
//! a VMM.
#![warn(missing_debug_implementations)]

pub mod boot;
pub mod clock;
pub mod info;
pub mod regions;

mod ahead;
mod compiled;
mod consumer;
mod error;
mod event;
mod filter;
mod follow;
mod format;
mod function;
mod inputs;
mod merge;
mod order;
mod recording;
#[cfg(test)]
mod schema;
mod source;
mod stat;
mod value;

pub use compiled::{Call, FunctionNames, Module, has_functions, place};
pub use consumer::Consumer;
pub use error::{Error, Result};
pub use event::{EntryRef, EventKind, EventRef, Fields, Lost, Reference, Thread};
pub use filter::{Filter, FilterError, nearest};
pub use follow::{Follow, Round};
pub use function::FunctionName;
pub use hypertrace_format::error::Warning;
pub use hypertrace_format::limits;
pub use inputs::ctf::{
    Class, Classes, Clock, ClockMaps, ComparedTsc, Domain, EventJson, GuestCpu, GuestTsc, KvmWord,
    Offset, Packet, PacketHeader, Record, Records, Segment, Session, SessionJson, Stream,
    StreamJson, vcpu_threads,
};
pub use inputs::functions::{ENTRY, EXIT, FUNCTION_FIELDS, FunctionTrace, SYMBOL};
pub use inputs::kernel::{CpuStat, EventStat, GuestKernel, KernelStat, KernelTrace, PIECE_EVENT};
pub use inputs::needs::Needs;
pub use order::{Late, Order};
pub use recording::{Form, Given, Recording, Unread, UnreadPart};
pub use source::Source;
pub use stat::{SessionStat, StreamStat};
pub use value::{Array, Name, ValueRef, ValueWriter};

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
