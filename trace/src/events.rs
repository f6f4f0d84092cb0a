//! The VMM's own events: the declarations of the events, the backends that get the events, and the rings of
//! the threads that record the events.

#[cfg(not(feature = "events"))]
mod absent;
#[cfg(feature = "events")]
pub mod backend;
#[cfg(feature = "events")]
pub(crate) mod fire;
#[cfg(feature = "events")]
pub(crate) mod line;
pub mod own;
#[cfg(feature = "events")]
pub(crate) mod region;
pub mod registry;
pub(crate) mod rings;
pub(crate) mod text;

pub(crate) use hypertrace_format::pattern::Pattern;
pub use registry::{EVENTS, TraceEvent};
pub(crate) use rings::{HostRings, Unattached};
pub(crate) use text::Escaped;
