//! Draining rings: what producers wrote becomes packets of the trace.
//!
//! Each ring has a [`lane`](lane::Lane); a [`turn`](turn::Turn) takes one packet out of
//! it. Nothing that a producer writes is trusted: [`record`] checks ids, lengths and
//! timestamps on the way.

pub(crate) mod budget;
pub(crate) mod classes;
mod commit;
pub(crate) mod failures;
pub(crate) mod guests;
pub(crate) mod host;
pub(crate) mod lane;
mod lease;
mod lessee;
mod record;
pub(crate) mod recorder;
mod ring;
mod simple_file;
pub(crate) mod state;
pub(crate) mod stats;
mod texts;
pub(crate) mod turn;
pub(crate) mod waiting;
pub(crate) mod wanted;
