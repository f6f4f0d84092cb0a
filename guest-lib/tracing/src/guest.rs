//! Spans in the ring of a guest's or a program's thread.

use crate::destination::{Destination, RING};
use hypertrace::event;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_log::Guest;

impl Destination for Guest {
    #[inline(always)]
    fn on_span(slot: usize) -> u32 {
        if hypertrace::is_on(slot) { RING } else { 0 }
    }

    #[inline(always)]
    fn emit<S: Site, F: Fields>(site: S, fields: F) {
        hypertrace::this_thread::emit(site, fields);
    }

    fn begin(_: u32, id: u64, name: &str) {
        event!("span_begin", id, name);
    }

    fn end(_: u32, id: u64) {
        event!("span_end", id);
    }
}
