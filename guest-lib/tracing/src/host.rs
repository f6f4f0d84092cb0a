//! Spans in the backends of a VMM, or of another host.

use crate::destination::Destination;
use hypertrace_abi::event::{Fields, Site};
use hypertrace_log::Host;

hypertrace_trace::include_events!();

impl Destination for Host {
    #[inline(always)]
    fn on_span(_: usize) -> u32 {
        span_begin::EVENT.on()
    }

    #[inline(always)]
    fn process() -> u32 {
        hypertrace_trace::generated::process_number()
    }

    #[inline(always)]
    fn emit<S: Site, F: Fields>(site: S, fields: F) {
        hypertrace_trace::generated::emit(site, fields);
    }

    fn begin(on: u32, id: u64, name: &str) {
        span_begin::fire(on, id, name.as_bytes());
    }

    fn end(on: u32, id: u64) {
        span_end::fire(on, id);
    }
}
