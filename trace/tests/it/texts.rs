//! Tests of reference points and the texts that the points need. Each pass reads the schema logs before the
//! host rings, so that no point has to wait for its text. A pass reads only a bounded part of the logs.

use crate::common;
use common::guest::{Guest, geometry};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::Session;

/// Makes a reference point of this client. The point has the id of `text`.
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

/// Makes a pass in which the clients have used up their time: the pass reads the clients' texts, but takes no
/// records.
fn short_pass(session: &Session, guests: &mut [Guest]) {
    session.begin_pass();
    for guest in guests {
        let mut consumer = Consumer::new(guest.memory, &mut guest.consumer);
        consumer.pause();
        session.drain(guest.client, &mut consumer);
    }
    session.end_pass();
}

#[test]
fn a_point_is_recorded_in_the_pass_that_finds_it_though_its_client_has_no_time() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    let texts: Vec<String> = (0..200).map(|n| format!("p{n}()")).collect();
    for text in &texts {
        guest.log(text);
    }
    point(&session, 1, &texts[199]);
    short_pass(&session, std::slice::from_mut(&mut guest));
    let summary = session.finish().unwrap();
    assert_eq!((summary.reference_points, summary.faults.len()), (1, 0), "{summary:?}");
}

#[test]
fn a_log_that_is_always_full_delays_no_point() {
    let (_dir, session) = common::session(|_| ());
    let mut guests = [Guest::new(0), Guest::new(1)];
    guests[0].log("honest()");
    for pass in 1..=20 {
        // The text of the first point never arrives. The second point is in the same ring, and must not wait
        // for this text.
        point(&session, 1, "unknown()");
        point(&session, 0, "honest()");
        while guests[1].logged < pass * guests[1].memory.schema.len() as u64 {
            guests[1].log("known()");
        }
        short_pass(&session, &mut guests);
        assert_eq!(session.summary().reference_points, 2 * pass);
    }
    let summary = session.finish().unwrap();
    assert_eq!((summary.faults.len(), summary.faults["unknown_id"]), (1, 20), "{summary:?}");
}

/// All clients but one fill their logs before each pass. The honest client comes last in each pass.
#[test]
fn full_logs_of_many_clients_keep_no_text_of_another_one_unread() {
    const CLIENTS: u32 = 40;
    let (_dir, session) = common::session(|_| ());
    let geometry = Geometry { schema_bytes: 1 << 16, ..geometry() };
    let new = |client| Guest::with(client, &geometry, RingMode::Discard);
    // A client's part does not depend on its number.
    const HONEST: u32 = 1_000;
    let mut guests: Vec<Guest> = (0..CLIENTS - 1).chain([HONEST]).map(new).collect();
    short_pass(&session, &mut guests);
    for pass in 1..=20 {
        let (honest, hostile) = guests.split_last_mut().unwrap();
        let mut unread = 0;
        for guest in &mut *hostile {
            let seen = guest.seen();
            unread += guest.logged - seen;
            while guest.logged + 2 <= seen + guest.memory.schema.len() as u64 {
                guest.log("known()");
            }
        }
        // A pass reads 256 KiB of the logs, whichever clients wrote them. The pass then reads up to 256 KiB
        // more in equal parts, one part for each client.
        let all = u64::from(CLIENTS - 1) * 8192;
        assert!(pass == 1 || (all - 2 * 32768..all - 32768).contains(&unread), "{unread} of {all}");
        let text = format!("honest{pass}()");
        (0..20).for_each(|n| honest.log(&format!("honest{pass}_{n}()")));
        honest.log(&text);
        point(&session, HONEST, &text);
        short_pass(&session, &mut guests);
        assert_eq!(session.summary().reference_points, pass);
    }
    let summary = session.finish().unwrap();
    assert!(summary.faults.is_empty(), "{summary:?}");
}

#[test]
fn clients_that_come_all_at_once_have_no_part_of_that_pass() {
    let (_dir, session) = common::session(|_| ());
    let geometry = Geometry { schema_bytes: 1 << 16, ..geometry() };
    let new = |client| Guest::with(client, &geometry, RingMode::Discard);
    let mut guests: Vec<Guest> = (0..40).map(new).collect();
    short_pass(&session, &mut guests[..1]);
    for guest in &mut guests[1..] {
        while guest.logged + 2 <= guest.memory.schema.len() as u64 {
            guest.log("known()");
        }
    }
    let read = |guests: &[Guest]| guests.iter().map(Guest::seen).sum::<u64>();
    let mut before = read(&guests);
    let mut most = Vec::new();
    while read(&guests) < 39 * 8192 {
        short_pass(&session, &mut guests);
        most.push(read(&guests) - before);
        before = read(&guests);
    }

    // The first pass reads 256 KiB. Each later pass reads at most 512 KiB, and at least one text of each new
    // client.
    assert!((32_768..33_000).contains(&most[0]), "{most:?}");
    assert!(most.iter().all(|words| *words < 2 * 32_768 + 100), "{most:?}");
    drop(session.finish().unwrap());
}

#[test]
fn a_pass_that_takes_all_that_a_new_client_has_ends() {
    let (_dir, session) = common::session(|_| ());
    let geometry = Geometry { schema_bytes: 1 << 16, ..geometry() };
    let new = |client| Guest::with(client, &geometry, RingMode::Discard);
    let mut guests: Vec<Guest> = (0..6).map(new).collect();
    session.begin_pass();
    for guest in &mut guests {
        while guest.logged + 2 <= guest.memory.schema.len() as u64 {
            guest.log("known()");
        }
        let (mut calls, mut more) = (0, true);
        while more && calls < 10_000 {
            let mut consumer = Consumer::new(guest.memory, &mut guest.consumer);
            more = session.drain(guest.client, &mut consumer).more;
            calls += 1;
        }
        assert!(!more && guest.seen() == guest.logged, "{calls} calls");
    }
    session.end_pass();
    drop(session.finish().unwrap());
}

#[test]
fn a_session_ends_though_a_point_has_a_text_in_a_log_that_nobody_reads() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    guest.log("p()");
    point(&session, 1, "p()");
    assert_eq!(session.finish().unwrap().reference_points, 1);
}
