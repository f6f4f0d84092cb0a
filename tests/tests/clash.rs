//! Two crates of a program that declare an event of the same name with different arguments. This test
//! registers the second declaration by hand.
#![allow(unsafe_code)] // linkme places a static in a section

use hypertrace_abi::event::Site;
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::trace;
use hypertrace_trace::args::TraceArgs;
use hypertrace_trace::event::{EVENTS, TraceEvent, trace_events_all};
use hypertrace_trace::generated::linkme;

#[derive(Clone, Copy)]
struct Pair;

impl Site for Pair {
    const NAME: &'static str = "test_pair";
    const FIELDS: &'static [&'static str] = &["a"];
}

#[linkme::distributed_slice(EVENTS)]
#[linkme(crate = linkme)]
static OTHER_PAIR: TraceEvent = TraceEvent::new::<Pair, (u32,)>(
    "test_pair(uint32_t a) \"%u\"",
    "other::trace",
    "trace-events",
    7,
);

#[derive(Clone, Copy)]
struct Same;

impl Site for Same {
    const NAME: &'static str = "test_other";
    const FIELDS: &'static [&'static str] = &["a"];
}

/// A declaration that differs from the other declaration of the same name only in the format.
#[linkme::distributed_slice(EVENTS)]
#[linkme(crate = linkme)]
static OTHER: TraceEvent = TraceEvent::new::<Same, (u64,)>(
    "test_other(uint64_t a) \"%\" PRIu64",
    "other::trace",
    "trace-events",
    8,
);

#[test]
fn a_name_with_two_declarations_is_reported() {
    trace::test_pair(1, 2);
    let host = Host::new(geometry(1));

    let warnings = TraceArgs::default().apply(&host.session).unwrap();

    let expected = "test_pair is declared with different arguments: test_pair(uint32_t a) in other \
                    (trace-events:7) and test_pair(uint64_t a, uint64_t b) in hypertrace_tests \
                    (trace-events:4); readers of the simple backend's file take one for the other";
    assert_eq!(warnings, [expected]);
    let all = trace_events_all();
    assert!(all.starts_with(&format!("# {expected}\n")), "{all}");
    assert_eq!(all.matches("\ntest_other(").count(), 1, "{all}");
}
