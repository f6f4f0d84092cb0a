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

#[cfg(feature = "clap")]
pub mod args;
pub mod backend;
mod budget;
mod classes;
pub mod clock;
pub mod control;
mod drain;
mod engine;
pub mod event;
mod files;
mod folder;
mod gaps;
mod host_ring;
mod lane;
pub mod metadata;
pub mod monitor;
pub mod packet;
pub mod pattern;
mod recorder;
mod resume;
mod session;
pub mod session_json;
mod shared;
mod simple;
pub mod stream;
mod summary;
mod take;
pub mod text;
pub mod trigger;
mod wanted;

// Generated code names this crate.
extern crate self as hypertrace_trace;

/// The engine's own declared events.
pub mod trace {
    use crate::backend::Backends;
    use hypertrace_abi::record::id;
    use hypertrace_abi::sink::ReferencePoint;

    crate::include_events!();

    /// The words that [`guest_hypertrace()`] shows of a point's.
    pub(crate) fn shown(is_2016: bool, words: &[u64]) -> [u64; 8] {
        // Those of 2016 begin with client and count.
        let words = if is_2016 { words.get(2..).unwrap_or(&[]) } else { words };
        std::array::from_fn(|n| words.get(n).copied().unwrap_or(0))
    }

    /// Tells a point to the backends that know no guest's schemas; the rings
    /// have it as what it is.
    #[inline(always)]
    pub(crate) fn reference_point(point: &ReferencePoint<'_>) {
        let others = guest_hypertrace::EVENT.on() & !Backends::RING.bits();
        if others != 0 {
            tell(others, point);
        }
    }

    #[cold]
    fn tell(on: u32, point: &ReferencePoint<'_>) {
        let [a, b, c, d, e, f, g, h] = shown(point.id == id::HYPERTRACE, point.words);
        guest_hypertrace::fire(on, point.cpu, point.client, a, b, c, d, e, f, g, h);
    }
}

pub use folder::Share;
pub use hypertrace_abi as abi;
pub use recorder::{SnapshotError, SnapshotLimit};
pub use resume::Committed;
pub use session::{Output, Session, SessionConfig, SessionError, Writer};
pub use shared::OnWriteFailed;
pub use stream::WriteFailed;
pub use summary::Summary;

/// What generated code uses.
#[doc(hidden)]
pub mod generated {
    pub use crate::event::{EVENTS, Never, TraceEvent, fire};
    pub use crate::text::{Escaped, Line, c_string};
    pub use hypertrace_abi::event::{Bytes, Hex, Site};
    pub use {linkme, probe};
}

/// How far a guest can make a session grow.
pub mod limits {
    pub use crate::budget::{
        ACCOUNT_BYTES_PER_SECOND, BYTES_PER_SECOND, CLIENT_BYTES, GUESTS_BYTES, HOST_BYTES,
    };
    use crate::classes::CLASS_BYTES;
    pub use crate::classes::MAX_CLIENT_SCHEMAS;
    pub use crate::clock::MAX_CLOCKS;
    pub use crate::clock::MAX_SESSION_CLOCKS;
    pub use crate::lane::{MAX_CLIENTS, MAX_RESTARTS, MOST_LOST};
    pub use hypertrace_abi::ring::MAX_NAME_BYTES;

    /// Event classes that a session has at most: all that the budget can pay for.
    pub const MAX_CLASSES: usize =
        (GUESTS_BYTES + MAX_CLIENTS as usize * CLIENT_BYTES + HOST_BYTES) / CLASS_BYTES;
    /// Host rings that a session has at most.
    pub const MAX_HOST_RINGS: usize = 1024;
    /// Streams of the host: its rings, the one of threads without a ring, and
    /// relays.
    pub const MAX_HOST_STREAMS: u32 = MAX_HOST_RINGS as u32 + 1 + MAX_CLIENTS;
    /// Bytes of `session.json` and of the metadata together at most, for
    /// readers: `session.json`'s ([`MAX_SESSION_JSON`]), and 8 KiB for each clock,
    /// where the metadata has the reserved classes again.
    pub const MAX_DESCRIPTION: u64 = MAX_SESSION_JSON + MAX_SESSION_CLOCKS as u64 * 8192;
    /// Bytes of `session.json` at most: what [guests](GUESTS_BYTES), [clients](CLIENT_BYTES) and the
    /// [host](HOST_BYTES) can pay for; for each clock ([`MAX_SESSION_CLOCKS`])
    /// 384 bytes; 1.5 KiB for each stream (a name whose every byte is escaped,
    /// counts of everything); and 256 KiB for the rest, a device's counters among
    /// it.
    pub const MAX_SESSION_JSON: u64 = (GUESTS_BYTES
        + MAX_CLIENTS as usize * CLIENT_BYTES
        + HOST_BYTES
        + MAX_SESSION_CLOCKS * 384
        + (MAX_CLIENTS + MAX_HOST_STREAMS) as usize * 1536
        + (256 << 10)) as u64;
}
