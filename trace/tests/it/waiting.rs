//! Reference points whose texts are in schema logs that the drain has had no time to
//! read: they wait, and no longer than a bound.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_trace::Session;

/// A reference point of this client, by a text of its log.
fn point(session: &Session, client: u32, text: &str) {
    let now = ticks();
    session.reference_point(&ReferencePoint {
        client,
        seq: 0,
        id: id_of(text),
        name_hash: 0,
        cpu: 0,
        guest_time: 0,
        host_time: now,
        words: &[],
    });
}

/// A pass in which a client gets one step, or is only looked at.
fn short_pass(session: &Session, guest: &mut Guest, is_paused: bool) {
    session.begin_pass();
    let mut consumer = Consumer::new(guest.memory, &mut guest.consumer);
    if is_paused {
        consumer.pause();
    }
    session.drain(guest.client, &mut consumer);
    session.end_pass();
}

#[test]
fn a_point_waits_for_its_text_while_there_is_no_time_to_read_it() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    let texts: Vec<String> = (0..200).map(|n| format!("p{n}()")).collect();
    for text in &texts {
        guest.log(text);
    }
    point(&session, 1, &texts[199]);
    for _ in 0..3 {
        short_pass(&session, &mut guest, true);
        short_pass(&session, &mut guest, false);
        assert_eq!(session.summary().reference_points, 0);
    }
    guest.pass(&session);
    let summary = session.finish().unwrap();
    assert_eq!((summary.reference_points, summary.faults.len()), (1, 0), "{summary:?}");
}

#[test]
fn a_log_that_is_always_full_keeps_no_other_clients_points_waiting() {
    let (_dir, session) = common::session(|_| ());
    let mut honest = Guest::new(0);
    let mut hostile = Guest::new(1);
    honest.emit(event_type!("honest", i = 1u64));
    honest.pass(&session);
    // The text of the first event never arrives; the second is in the same ring.
    point(&session, 1, "unknown()");
    let now = ticks();
    session.reference_point(&ReferencePoint {
        client: 0,
        seq: 0,
        id: id_of("honest(i:u64)"),
        name_hash: 0,
        cpu: 0,
        guest_time: 0,
        host_time: now,
        words: &[7],
    });
    let mut passes = 0;
    while session.summary().reference_points < 2 {
        for _ in 0..100 {
            hostile.log("known()");
        }
        short_pass(&session, &mut hostile, passes % 2 == 0);
        passes += 1;
        assert!(passes <= 40, "the ring of both waits for the hostile one's log");
    }
    let summary = session.finish().unwrap();
    assert_eq!(summary.faults["unknown_id"], 1, "{summary:?}");
}

/// Clients fill their logs in turns, so that no pass has time to read them, and
/// the text of one point never arrives.
#[test]
fn logs_that_are_full_in_turns_keep_no_host_ring_waiting() {
    let (_dir, session) = common::session(|_| ());
    let mut hostiles = [Guest::new(1), Guest::new(2)];
    session.attach("vmm");
    let mut recorded = Vec::new();
    for pass in 0..200 {
        point(&session, 1, "unknown()");
        session.emit(event_type!("vmm_event", i = 1u64));
        session.begin_pass();
        for (hostile, offset) in hostiles.iter_mut().zip([0, 12]) {
            hostile.log("known()");
            let mut consumer = Consumer::new(hostile.memory, &mut hostile.consumer);
            if (pass + offset) % 24 != 0 {
                consumer.pause();
            }
            session.drain(hostile.client, &mut consumer);
        }
        session.end_pass();
        recorded.push(session.summary().host_events);
    }
    // At no time did the ring hold more than what came in a few dozen passes.
    for (pass, recorded) in (1..).zip(recorded) {
        assert!(recorded + 40 >= pass, "{recorded} of the VMM's {pass} events");
    }
}

#[test]
fn a_session_ends_though_a_point_waits_for_a_log_that_nobody_reads() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    guest.log("p()");
    point(&session, 1, "p()");
    short_pass(&session, &mut guest, true);
    assert_eq!(session.summary().reference_points, 0);
    assert_eq!(session.finish().unwrap().reference_points, 1);
}
