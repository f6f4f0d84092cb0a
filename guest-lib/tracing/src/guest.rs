//! Spans in the ring of a guest's or a program's thread.

use crate::destination::{Destination, RING};
use hypertrace::this_thread;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_log::Guest;

impl Destination for Guest {
    #[inline(always)]
    fn on_span(slot: usize) -> u32 {
        if hypertrace::is_on(slot) { RING } else { 0 }
    }

    #[inline(always)]
    fn process() -> u32 {
        this_thread::process_number()
    }

    #[inline(always)]
    fn emit<S: Site, F: Fields>(site: S, fields: F) {
        this_thread::emit(site, fields);
    }

    // A guest has no other backend.
    fn begin(_: u32, _: u64, _: &str) {}

    fn end(_: u32, _: u64) {}
}
