//! SIGKILL at any instant leaves a session that can be read to its end.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::Words;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::NewRecord;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_test_support::steps::Steps;
use hypertrace_test_support::{babeltrace2, kill, this_test, wait_until};
use hypertrace_trace::{Session, SessionConfig};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The process that will be killed: traces without end, and notes the number of committed records.
fn trace(dir: &Path) {
    let mut config = SessionConfig::new(dir.join("s"));
    config.file_bytes = 300_000;
    let session = Session::create(config).unwrap();
    let told = std::fs::File::create(dir.join("committed")).unwrap();
    let mut guests = [Guest::new(0), Guest::new(1)];
    // The loop is bounded, in case the process is not killed.
    for round in 0..50_000u64 {
        for guest in &guests {
            for i in 0..200u64 {
                guest.emit(event_type!("tick", round, i));
                guest.emit(event_type!(
                    "text",
                    s = ["", "a", "four", "twelve bytes"][i as usize % 4]
                ));
            }
            // Each round brings a new schema, which changes the metadata.
            let text = format!("e{}_{round}(x:u64)", guest.client);
            if round < 300 {
                append_schema(guest, &text);
            }
            let known = hypertrace_abi::schema::id_of(&text);
            guest.producer.emit(NewRecord::of_id(known, Words(&[round])), ticks);
            let host_time = ticks();
            session.reference_point(&ReferencePoint {
                client: guest.client,
                seq: round as u32,
                id: known,
                name_hash: 0,
                cpu: 0,
                guest_time: host_time,
                host_time,
                words: &[round],
            });
        }
        session.emit(event_type!("round", round));
        session.begin_pass();
        for guest in &mut guests {
            while guest.drain(&session).more {}
        }
        session.end_pass();
        told.write_all_at(&session.summary().records.to_le_bytes(), 0).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Puts a text into the schema log, like a producer that invents new events.
fn append_schema(guest: &Guest, text: &str) {
    use hypertrace_abi::layout::guest_page;
    use std::sync::atomic::Ordering::Relaxed;
    let log = guest.memory.schema;
    // The text follows the two texts that the producer has put into the log in round 0.
    let at = guest.memory.guest[guest_page::SCHEMA_LEN].load(Relaxed);
    let mut words =
        vec![u64::from(hypertrace_abi::schema::id_of(text)) | (text.len() as u64) << 32];
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    words.extend(bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())));
    for (i, word) in words.iter().enumerate() {
        log[(at as usize + i) % log.len()].store(*word, Relaxed);
    }
    guest.poke(guest_page::SCHEMA_LEN, at + words.len() as u64);
}

/// Returns the number of records that the victim has committed.
fn committed(dir: &Path) -> u64 {
    let bytes = std::fs::read(dir.join("committed")).unwrap_or_default();
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[test]
fn a_killed_session_is_read_to_its_end() {
    if let Some(dir) = std::env::var_os(common::CHILD) {
        trace(Path::new(&dir));
        return;
    }
    let start = |_| {
        let dir = tempfile::tempdir().unwrap();
        let mut child = common::child(this_test!(), dir.path());
        let child = child.stdout(std::process::Stdio::null()).spawn().unwrap();
        wait_until("a record", || committed(dir.path()) > 0);
        (dir, child)
    };
    kill::sweep(
        20,
        Duration::from_millis(150),
        start,
        |(_, child)| kill::kill(child),
        |(dir, _)| {
            let committed = committed(dir.path());
            let ctf = dir.path().join("s/ctf");
            let Some(lines) = babeltrace2::read_clean(&ctf) else { return };
            assert!(lines.len() as u64 >= committed, "{} < {committed}", lines.len());
            let json = std::fs::read(dir.path().join("s/session.json")).unwrap();
            let json: hypertrace_trace::session_json::SessionJson =
                serde_json::from_slice(&json).unwrap();
            assert!(!json.finished);
        },
    );
}
