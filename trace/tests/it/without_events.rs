//! A session in a VMM that declares no events, built with or without the feature `events`.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::schema::{id_of, name_hash};
use hypertrace_abi::sink::{EventSink, ReferencePoint, Status};
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::{Output, Session};

/// Makes a reference point `done` of client 0.
fn point(session: &Session) -> Status {
    session.reference_point(&ReferencePoint {
        client: 0,
        seq: 1,
        id: id_of("done(n:u64)"),
        name_hash: name_hash("done"),
        cpu: 0,
        guest_time: 0,
        host_time: ticks(),
        words: &[7],
    })
}

#[test]
fn events_points_and_undeclared_events_of_the_host_are_recorded() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    guest.log("done(n:u64)");

    guest.emit(event_type!("work", n = 1u64));
    session.emit(event_type!("vcpu_exit", reason = 6u32));
    assert_eq!(point(&session), Status::Recorded);
    guest.pass(&session);

    let summary = session.finish().unwrap();
    let kinds = (summary.ring_events, summary.host_events, summary.reference_points);
    assert_eq!((kinds, summary.lost), ((1, 1, 1), 0), "{summary:?}");
}

#[test]
fn commands_and_triggers_switch_guests_events() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("work", n = 1u64));
    guest.pass(&session);

    session.execute("trigger add on done do events work off").unwrap();
    point(&session);
    guest.pass(&session);

    let events = session.execute("info trace-events work").unwrap();
    assert_eq!(events, "work : state 0 (guest)\n");
    session.execute("trace-event work on").unwrap();
    let events = session.execute("info trace-events work").unwrap();
    assert_eq!(events, "work : state 1 (guest)\n");
}

#[test]
fn a_flight_recorder_writes_a_snapshot() {
    let (_dir, session) = common::session(|config| config.output = Output::Snapshots);
    session.emit(event_type!("vcpu_exit", reason = 6u32));

    let snapshot = std::thread::scope(|scope| {
        let asked = scope.spawn(|| session.snapshot());
        while !asked.is_finished() {
            session.begin_pass();
            session.end_pass();
        }
        asked.join().unwrap().unwrap()
    });

    assert!(snapshot.join("session.json").is_file());
}

#[cfg(not(feature = "events"))]
#[test]
fn no_other_backend_can_be_switched_on_and_the_message_says_why() {
    let (_dir, session) = common::session(|_| ());

    let refused = session.execute("trace-backend log on").unwrap_err();

    assert!(refused.contains("without declared events"), "{refused}");
    assert_eq!(session.execute("trace-events-all").unwrap(), "");
}
