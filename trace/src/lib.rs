//! The host side of hypertrace: a [`Session`] takes what guests and the VMM
//! trace, and writes it as a trace that any CTF 1.8 reader opens.
//!
//! ```no_run
//! use hypertrace_trace::abi::event_type;
//! use hypertrace_trace::{Session, SessionConfig};
//!
//! # fn main() -> Result<(), hypertrace_trace::SessionError> {
//! let session = Session::create(SessionConfig::new("out"))?;
//! session.attach("vcpu0");
//! session.emit(event_type!("vcpu_exit", reason = 6u32, length = 4u64));
//! // A device gets a clone as its `EventSink`: it hands in reference points
//! // and, from a thread of its own, rings to drain.
//! let summary = session.finish()?;
//! println!("{} records, {} lost", summary.records, summary.lost);
//! # Ok(())
//! # }
//! ```
//!
//! [`Session`] implements [`EventSink`](abi::sink::EventSink), the only interface
//! that a device uses. It writes [`session_json`] and a CTF trace, whose files
//! survive a kill at any instant. The VMM's own events are in [`event`] and
//! [`backend`], [`region!`] marks its regions of interest, [`control`] and
//! [`monitor`] switch both while it runs, and [`trigger`] lets guests' reference
//! points do so. Declared events are the feature `events`, a default: without it, the
//! program needs no registry made by the linker, and has neither `backend` nor `region!`.
//!
//! Data from guests is never trusted: lengths, ids and timestamps are checked
//! before they are written. Records that do not pass are written as `untyped`
//! or `time_fault` events and counted by kind. Write errors are counted and
//! reported once; the records stay in the rings, where producers count the
//! events that find no room. All buffers and tables are bounded: a packet
//! buffer, host rings, and the limits in [`limits`].
//!
//! In a process that can open no file, a session is written to a descriptor as a
//! [journal](Destination::Journal), of which [`receive`] makes the files in another one.
//!
//! It does not decide which events are wanted, does not sync to disk, and does
//! not read traces: `hypertrace-timeline` does.

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

// Generated code names this crate.
extern crate self as hypertrace_trace;

/// Declared events: those of `trace-events` files, of all crates of a program.
pub mod event {
    #[cfg(feature = "events")]
    pub use crate::events::registry::EVENTS;
    pub use crate::events::registry::{Clash, TraceEvent, clashes, trace_events_all};
}

/// Items that generated code uses, and that `hypertrace-tracing` does.
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
