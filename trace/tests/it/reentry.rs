//! Tests of an emit that calls foreign code: this code may call the session in the middle of the emit.

use crate::common;
use hypertrace_abi::atomic::{AtomicU64, Ordering::Relaxed};
use hypertrace_abi::event::Field;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Emit;
use hypertrace_abi::schema::FieldType;
use hypertrace_trace::Session;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// A field whose `put` calls a session during an emit.
#[derive(Clone, Copy)]
struct Calls<'a>(&'a dyn Fn());

impl Field for Calls<'_> {
    const TYPE: FieldType = FieldType::U64;

    fn words(self) -> usize {
        1
    }

    fn put(self, out: &[AtomicU64]) {
        (self.0)();
        out[0].store(7, Relaxed);
    }
}

#[test]
fn an_attach_in_the_middle_of_an_emit_is_refused() {
    let (_dir, session) = common::session(|_| ());
    assert!(session.attach("before"));
    let attach = || assert!(!session.attach("within"));
    assert_eq!(session.emit(event_type!("tick", n = Calls(&attach))), Emit::Recorded);
    assert_eq!(session.emit(event_type!("tock")), Emit::Recorded);
    assert!(session.attach("after"));
    let summary = session.finish().unwrap();
    assert_eq!((summary.host_events, summary.lost), (2, 0));
}

#[test]
fn an_emit_to_another_session_in_the_middle_of_an_emit_is_counted_there() {
    let (_dir, session) = common::session(|_| ());
    let (_dir2, other) = common::session(|_| ());
    assert!(session.attach("first"));
    let emit = || assert_eq!(other.emit(event_type!("inner")), Emit::Unleased);
    assert_eq!(session.emit(event_type!("outer", n = Calls(&emit))), Emit::Recorded);
    let (summary, inner) = (session.finish().unwrap(), other.finish().unwrap());
    assert_eq!((summary.host_events, summary.lost), (1, 0));
    assert_eq!((inner.host_events, inner.lost), (0, 1));
}

#[test]
fn a_waker_that_attaches_is_refused() {
    let (_dir, session) = common::session(|config| config.host_ring_bytes = 64 * 1024);
    let attached = Arc::new(AtomicU32::new(0));
    let (same, count): (Session, _) = (session.clone(), Arc::clone(&attached));
    session.wake_by(move || _ = count.fetch_add(1 + u32::from(same.attach("within")), Relaxed));
    assert!(session.attach("before"));
    let emit = |n: &u64| session.emit(event_type!("tick", n = *n)) == Emit::Recorded;
    let recorded = (0..10_000).filter(emit).count() as u64;
    assert_eq!(attached.load(Relaxed), 1, "called once, and refused");
    assert_eq!(session.finish().unwrap().host_events, recorded);
}
