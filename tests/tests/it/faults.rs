//! Faults of a guest, which are counted by kind, for the client that caused them.

use std::collections::BTreeMap;

use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::ring::Fault;
use hypertrace_tests::babeltrace2;
use hypertrace_tests::forger::{Forger, collision};
use hypertrace_tests::host::{Host, Recorded, geometry};

const TEXT: &str = "e(x:u64)";

/// Makes a host, writes a block's header and a schema as client 0, runs `act`, and lets the host drain the
/// rings.
fn guest(act: impl FnOnce(&Host, &mut Forger<'_>, u32)) -> Recorded {
    let host = Host::new(geometry(2));
    let chip = host.chip.clone();
    let mut forger = Forger::new(&chip, 0);
    let id = forger.tell(TEXT);
    act(&host, &mut forger, id);
    chip.drain_all();
    host.finish()
}

#[track_caller]
fn assert_counted(kind: Fault, times: u64, recorded: &Recorded) {
    let name = kind.name().to_owned();
    let expected = BTreeMap::from([(name, times)]);
    assert_eq!(recorded.summary.faults, expected, "{kind:?}");
    let session = recorded.open();
    let of_client = |client: u32| session.json().streams.iter().find(move |s| s.client == client);
    assert_eq!(of_client(0).unwrap().faults, expected);
    assert!(of_client(1).is_none_or(|stream| stream.faults.is_empty()));
    if let Some(read) = babeltrace2::read(&recorded.ctf()) {
        assert_eq!(read.complete(), recorded.summary.records, "{kind:?}");
    }
}

#[test]
fn faults_of_the_ring_are_counted() {
    let head = guest(|host, ring, id| {
        ring.block(0, 7);
        ring.record(ticks(), id, 1, 0, &[1]);
        ring.publish();
        host.chip.drain_all();
        ring.head += 1 << 40;
        ring.publish();
    });
    assert_counted(Fault::Head, 1, &head);

    let length = guest(|_, ring, id| {
        ring.block(0, 7);
        ring.record(ticks(), id, 1, 0, &[1]);
        ring.record(ticks(), id, 4000, 0, &[1]);
        ring.publish();
    });
    assert_counted(Fault::Length, 1, &length);

    let sequence = guest(|_, ring, id| {
        ring.block(1 << 50, 7);
        ring.record(ticks(), id, 1, 0, &[1]);
        ring.publish();
    });
    assert_counted(Fault::Sequence, 1, &sequence);

    let token = guest(|_, ring, id| {
        ring.block(0, 0);
        ring.record(ticks(), id, 1, 0, &[1]);
        ring.publish();
    });
    assert!(token.summary.faults["token"] > 0, "{:?}", token.summary);

    let losses = guest(|_, ring, _| ring.poke(guest_page::LOST_FULL, u64::MAX / 2));
    assert_counted(Fault::Losses, 1, &losses);
    assert_eq!(losses.summary.lost, 0);
}

#[test]
fn faults_of_records_are_counted() {
    let unknown = guest(|_, ring, _| {
        ring.block(0, 7);
        ring.record(ticks(), 0xdead_beef, 1, 0, &[1]);
        ring.publish();
    });
    assert_counted(Fault::UnknownId, 1, &unknown);

    let payload = guest(|_, ring, id| {
        ring.block(0, 7);
        ring.record(ticks(), id, 2, 0, &[1, 2]);
        ring.publish();
    });
    assert_counted(Fault::Payload, 1, &payload);

    let backwards = guest(|_, ring, id| {
        let now = ticks();
        ring.block(0, 7);
        ring.record(now, id, 1, 0, &[1]);
        ring.record(now - 1, id, 1, 0, &[2]);
        ring.publish();
    });
    assert_counted(Fault::TimeBackwards, 1, &backwards);

    let future = guest(|_, ring, id| {
        let now = ticks();
        ring.block(0, 7);
        ring.record(now, id, 1, 0, &[1]);
        ring.record(u64::MAX, id, 1, 0, &[2]);
        ring.publish();
    });
    assert_counted(Fault::TimeFuture, 1, &future);
    assert_eq!(future.summary.time_faults, 1);
}

#[test]
fn faults_of_the_schema_log_are_counted() {
    let log = guest(|_, ring, _| ring.poke(guest_page::SCHEMA_LEN, 1 << 40));
    assert_counted(Fault::SchemaLog, 1, &log);

    let text = guest(|_, ring, _| ring.schema(99, b"e(x:\x1b[31m"));
    assert_counted(Fault::SchemaText, 1, &text);

    let hash = guest(|_, ring, _| ring.schema(99, TEXT.as_bytes()));
    assert_counted(Fault::SchemaHash, 1, &hash);
}

#[test]
fn schemas_without_room_are_counted() {
    let table = guest(|host, ring, _| {
        for n in 0..1024 {
            ring.tell(&format!("e{n}(x:u64)"));
            if n % 256 == 255 {
                host.chip.drain_all();
            }
        }
    });
    // The guest had written one schema before these 1,024 schemas.
    assert_counted(Fault::SchemaTable, 1, &table);
}

#[test]
fn two_texts_with_one_hash_make_untyped_events_rather_than_wrong_ones() {
    let (number, string) = collision();
    let recorded = guest(|host, ring, _| {
        let id = ring.tell(&number);
        ring.block(0, 7);
        ring.record(ticks(), id, 1, 0, &[1]);
        ring.publish();
        host.chip.drain_all();
        ring.schema(id, string.as_bytes());
        // The payload is a value of the type that the second text gives the field.
        ring.record(ticks(), id, 1, 0, &[0]);
        ring.publish();
    });

    let names: Vec<_> = recorded.events().iter().map(|event| event.name.to_string()).collect();
    let (name, _) = number.split_once('(').unwrap();
    assert_eq!(names, [name, "untyped"]);
    assert_eq!(recorded.summary.faults["schema_hash"], 1);
    assert_eq!(recorded.summary.faults["unknown_id"], 1);
}
