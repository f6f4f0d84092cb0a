//! Draining rings: producers' records become packets of the trace.
//!
//! Each ring has a [`source`](source::Source); a [`turn`](turn::Turn) takes one packet out of
//! it. Nothing that a producer writes is trusted: [`record`] checks ids, lengths and
//! timestamps on the way.

pub(crate) mod budget;
pub(crate) mod classes;
mod commit;
pub(crate) mod failures;
pub(crate) mod guests;
pub(crate) mod holder;
pub(crate) mod host;
mod lease;
mod record;
pub(crate) mod recorder;
mod ring;
mod simple_file;
pub(crate) mod source;
pub(crate) mod state;
pub(crate) mod stats;
mod texts;
pub(crate) mod turn;
pub(crate) mod waiting;
pub(crate) mod wanted;

pub(crate) use budget::Payer;
pub(crate) use classes::Classes;
pub use failures::OnWriteFailed;
pub(crate) use guests::Guests;
pub(crate) use host::HostConsumer;
pub(crate) use recorder::{Asker, Recorder};
pub use recorder::{SnapshotError, SnapshotLimit};
pub(crate) use source::Source;
pub(crate) use state::TraceState;
pub(crate) use stats::Stats;
pub(crate) use turn::Turn;
pub use wanted::TooManyRules;
