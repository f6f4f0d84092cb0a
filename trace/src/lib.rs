//! The host side of hypertrace: a [`Session`] takes what guests and the VMM
//! trace, and writes it as a trace that any CTF 1.8 reader opens.
//!
//! ```no_run
//! use hypertrace_trace::{Session, SessionConfig, event};
//!
//! # fn main() -> Result<(), hypertrace_trace::SessionError> {
//! let session = Session::create(SessionConfig::new("out"))?;
//! session.attach("vcpu0");
//! event!(session, "vcpu_exit", reason = 6u32, length = 4u64);
//! // A device gets a clone as its `EventSink`: it hands in reference points
//! // and, from a thread of its own, rings to drain.
//! let summary = session.finish()?;
//! println!("{} records, {} lost", summary.records, summary.lost);
//! # Ok(())
//! # }
//! ```
//!
//! [`Session`] implements [`EventSink`](abi::sink::EventSink), all that a
//! device knows of it. [`stream`] writes files that survive a kill at any
//! instant, [`metadata`] and [`session_json`] what describes them, [`clock`]
//! maps raw counters to Unix time.
//!
//! What a guest writes is never trusted: lengths, ids and timestamps are
//! checked on the way, and what does not fit is kept as `untyped` or
//! `time_fault` events and counted by kind. What the host cannot write is
//! counted, told once, and stays in the rings, where producers count what
//! finds no room. All buffers and tables are bounded: a packet buffer, host
//! rings, and the limits in [`limits`].
//!
//! It does not decide which events are wanted, does not sync to disk, and does
//! not read traces: `hypertrace-timeline` does.

mod classes;
pub mod clock;
mod drain;
mod engine;
mod host_ring;
mod lane;
pub mod metadata;
pub mod packet;
mod session;
pub mod session_json;
mod shared;
pub mod stream;
mod summary;
mod take;

pub use hypertrace_abi as abi;
pub use session::{Session, SessionConfig, SessionError};
pub use shared::OnWriteFailed;
pub use stream::WriteFailed;
pub use summary::Summary;

/// How far a guest can make a session grow.
pub mod limits {
    pub use crate::classes::{MAX_CLASSES, MAX_CLIENT_SCHEMAS, MAX_DECLARED, MAX_TEXT_BYTES};
    pub use crate::clock::MAX_CLOCKS;
    pub use crate::lane::{MAX_CLIENTS, MAX_RESTARTS, MOST_LOST};
}
