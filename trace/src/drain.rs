//! Draining rings: producers' records become packets of the trace.
//!
//! Each ring has a [`source`](source::Source), and a [`turn`](turn::Turn) takes one packet out of the ring.
//! The drain trusts no word that a producer writes: [`record`] checks ids, lengths and timestamps.

pub(crate) mod budget;
pub(crate) mod classes;
pub(crate) mod host;
mod record;
pub(crate) mod recorder;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod turn;
pub(crate) mod wanted;

pub(crate) use budget::Account;
pub(crate) use classes::Classes;
pub(crate) use host::HostConsumer;
pub(crate) use recorder::{Asker, Recorder};
pub use recorder::{SnapshotError, SnapshotLimit};
pub(crate) use source::{Guests, Source};
pub(crate) use state::TraceState;
pub use stats::OnWriteFailed;
pub(crate) use stats::Stats;
pub(crate) use turn::Turn;
pub use wanted::TooManyRules;
