//! The host side of hypertrace: a [`Session`] records the events of guests and of the VMM as a trace that any
//! CTF 1.8 reader opens.
//!
//! ```no_run
//! use hypertrace_trace::abi::event_type;
//! use hypertrace_trace::{Session, SessionConfig};
//!
//! # fn main() -> Result<(), hypertrace_trace::SessionError> {
//! let session = Session::create(SessionConfig::new("out"))?;
//! session.attach("vcpu0");
//! session.emit(event_type!("vcpu_exit", reason = 6u32, length = 4u64));
//! // A device gets a clone as its `EventSink`. The device hands over reference
//! // points and, from a thread of its own, rings to drain.
//! let summary = session.finish()?;
//! println!("{} records, {} lost", summary.records, summary.lost);
//! # Ok(())
//! # }
//! ```
//!
//! [`Session`] implements [`EventSink`](abi::sink::EventSink), the only interface that a device uses. A
//! session writes [`session_json`] and a CTF trace, and all its files survive a kill at any instant.
//! [`event`] and [`backend`] are for the VMM's own events, and [`region!`] marks the VMM's regions of
//! interest. [`control`] and [`monitor`] switch events and backends while the VMM runs. With a [`trigger`],
//! the reference points of a guest switch events. Declared events need the feature `events`, which is on by
//! default. Without `events`, the program needs no registry made by the linker, and this crate has neither
//! `backend` nor `region!`.
//!
//! A session never trusts data from guests: it checks lengths, ids and timestamps before it writes them. If a
//! record fails a check, the session writes the record as an `untyped` or `time_fault` event, and counts the
//! fault under the fault's kind. The session counts all write errors, and reports the first one. The
//! unwritten records stay in the rings, and the producers count further events for which a ring has no room.
//! All buffers and tables are bounded by the sizes of the packet buffer and of the host rings, and by
//! [`limits`].
//!
//! A process that can open no files writes its session to a descriptor as a [journal](Destination::Journal),
//! and [`receive`] makes the session's files in another process.
//!
//! This crate does not decide which events are wanted, does not sync files to disk, and does not read traces:
//! `hypertrace-timeline` reads them.

pub mod control;
#[doc(hidden)]
pub mod ctf;
mod drain;
mod events;
pub mod receive;
mod session;
mod simple;
pub mod trigger;

#[cfg(feature = "clap")]
pub use control::args;
pub use control::monitor;
pub use drain::{OnWriteFailed, SnapshotError, SnapshotLimit, TooManyRules};
#[cfg(feature = "events")]
pub use events::backend;
#[cfg(feature = "events")]
pub use events::own as trace;
pub use hypertrace_abi as abi;
pub use hypertrace_abi::region::Region;
pub use hypertrace_abi::trace_parent::{TraceParent, TraceParentError};
pub use hypertrace_format::error::{BadInput, DirectoryError, WriteFailed};
pub use hypertrace_format::folder::{Share, is_bad_path};

pub use hypertrace_format::session_json::{self, GuestTsc};
pub use hypertrace_format::{clock, limits, pattern};
pub use session::{
    Committed, Destination, Output, Session, SessionConfig, SessionError, Summary, Writer, attach,
};

// Generated code names this crate `hypertrace_trace`, even within this crate.
extern crate self as hypertrace_trace;

/// Declared events: the events in the `trace-events` files of all crates of a program.
pub mod event {
    #[cfg(feature = "events")]
    pub use crate::events::registry::EVENTS;
    pub use crate::events::registry::{Clash, TraceEvent, clashes, trace_events_all};
}

/// Items for generated code and for `hypertrace-tracing`.
#[cfg(feature = "events")]
#[doc(hidden)]
pub mod generated {
    pub use crate::events::fire::{DisabledEvent, fire};
    pub use crate::events::line::{Line, c_string};
    pub use crate::events::region::next_region;
    pub use crate::events::registry::{EVENTS, TraceEvent};
    pub use crate::events::rings::{emit, process_number};
    pub use crate::events::text::Escaped;
    pub use hypertrace_abi::event::{Bytes, Hex, Site};
    pub use {linkme, probe};
}

// The example of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
