//! The VMM's own events: declarations, the backends that get them, and the rings of the
//! threads that record them.

pub mod backend;
pub(crate) mod fire;
pub(crate) mod gaps;
pub mod own;
pub mod pattern;
mod region;
pub mod registry;
pub(crate) mod rings;
pub(crate) mod text;

pub use pattern::Pattern;
pub use registry::{EVENTS, TraceEvent};
pub(crate) use rings::{HostRings, Missed};
pub(crate) use text::Escaped;
