//! The trait of a destination of spans, in addition to the logger's trait.

use hypertrace_abi::event::{Fields, Site};
use hypertrace_log::parts;

/// A destination of spans.
pub trait Destination: parts::Destination {
    /// Returns a set of bits: the backends that now get an event of a span. `slot` is the event's slot in the
    /// enable mask.
    fn on_span(slot: usize) -> u32;
    /// Returns the calling process's random id of 22 bits.
    fn process() -> u32;
    /// Records an event on the calling thread's ring.
    fn emit<S: Site, F: Fields>(site: S, fields: F);
    /// Records the begin of a span for the backends `on`. None of these backends is a ring.
    fn begin(on: u32, id: u64, name: &str);
    /// Records the end of a span for the backends `on`. None of these backends is a ring.
    fn end(on: u32, id: u64);
}

/// The bit of a thread's ring in a set of backends.
pub const RING: u32 = 1;
