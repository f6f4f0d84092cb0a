//! A session that a killed process left: what it holds is counted where it is,
//! and no number in its files is believed unseen.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::ring::ConsumerState;
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_test_support::babeltrace2;
use hypertrace_trace::limits::MAX_CLASSES;
use hypertrace_trace::session_json::{Domain, SessionJson};
use hypertrace_trace::{Session, SessionConfig, SessionError, Summary};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

fn config(dir: &Path) -> SessionConfig {
    let mut config = SessionConfig::new(dir);
    config.same_counter = true;
    config.file_bytes = 1 << 17;
    config
}

fn point(n: u32) -> ReferencePoint<'static> {
    let host_time = ticks();
    ReferencePoint {
        client: 0,
        seq: n,
        id: id_of("e(n:u64)"),
        name_hash: 0,
        cpu: 0,
        guest_time: host_time,
        host_time,
        words: &[7],
    }
}

/// One that was killed: its session, and its guest with 10 events in the ring.
fn killed(dir: &Path) -> ([u8; 16], Guest) {
    let session = Session::create(config(dir)).unwrap();
    session.attach("thread");
    let mut guest = Guest::new(0);
    for round in 0..40 {
        for n in 0..100u64 {
            guest.emit(event_type!("e", n));
            guest.emit(event_type!("text", s = "some text"));
        }
        session.emit(event_type!("host", n = 1u64));
        session.reference_point(&point(round));
        guest.pass(&session);
    }
    let uuid = session.uuid();
    for n in 0..10u64 {
        guest.emit(event_type!("e", n));
    }
    // Its destructor would not write anything either.
    drop(session);
    (uuid, guest)
}

/// Takes what is in the ring, as `hypertrace recover` does.
fn resume(dir: &Path, uuid: [u8; 16], guest: &mut Guest) -> Result<Session, SessionError> {
    let session = Session::resume(config(dir), uuid)?;
    let committed = session.committed(0).unwrap();
    let at = (committed.position, Some(committed.sequence), committed.token, committed.faults);
    guest.consumer = ConsumerState::resume(at.0, at.1, at.2, at.3, 0);
    guest.pass(&session);
    Ok(session)
}

fn json(dir: &Path) -> SessionJson {
    serde_json::from_slice(&fs::read(dir.join("session.json")).unwrap()).unwrap()
}

#[test]
fn totals_are_those_of_the_packets() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    // As of a moment when little was counted; it is written once a second.
    let mut old = json(dir.path());
    old.streams.iter_mut().for_each(|s| (s.events, s.reference_points) = (3, 1));
    fs::write(dir.path().join("session.json"), serde_json::to_vec(&old).unwrap()).unwrap();

    let session = resume(dir.path(), uuid, &mut guest).unwrap();
    let summary = session.finish().unwrap();

    // Of the guest 40 x 200 and 10; a lease, a host event a round, one more lease.
    assert_eq!((summary.ring_events, summary.reference_points), (8010, 40));
    assert_eq!((summary.host_events, summary.leases), (40, 2));
    assert_eq!(summary.records, 8010 + 40 + 40 + 2);
    let told = json(dir.path());
    let guest = told.streams.iter().find(|s| s.domain == Domain::Guest).unwrap();
    assert_eq!((guest.events, guest.reference_points), (8010, 40));
    assert_eq!((told.finished, &told.streams), (true, &summary.streams));
    if let Some(lines) = babeltrace2::read_clean(&dir.path().join("ctf")) {
        assert_eq!(lines.len() as u64, summary.records);
    }
}

/// Kills a session with texts of other clients that came before and after `text`, of which an honest client has events in its
/// ring. Returns the summary after the recovery.
#[track_caller]
fn recovered_beside(before: &[String], text: &str, after: &[String]) -> Summary {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(config(dir.path())).unwrap();
    let mut hostiles: Vec<Guest> = (1..4).map(Guest::new).collect();
    let mut log = |texts: &[String]| {
        for (n, other) in texts.iter().enumerate() {
            hostiles[n % 3].log(other);
            hostiles[n % 3].pass(&session);
        }
    };
    log(before);
    let mut guest = Guest::new(0);
    guest.log(text);
    guest.emit_words(text, &[0]);
    guest.pass(&session);
    log(after);
    for n in 1..=1000 {
        guest.emit_words(text, &[n]);
    }
    let uuid = session.uuid();
    drop(session);

    let session = resume(dir.path(), uuid, &mut guest).unwrap();
    session.finish().unwrap()
}

#[test]
fn many_texts_of_other_clients_leave_a_clients_own_known() {
    let texts: Vec<String> = (0..1030).map(|n| format!("hostile_{n}()")).collect();
    let summary = recovered_beside(&texts, "honest(n:u64)", &[]);
    assert_eq!((summary.ring_events, summary.faults.len()), (1001, 0), "{summary:?}");
}

#[test]
fn a_text_of_another_client_with_the_same_id_leaves_a_clients_own_known() {
    let (text, other) = common::guest::collision();
    let other = [other];
    for (before, after) in [(&other[..], &[][..]), (&[], &other)] {
        let summary = recovered_beside(before, &text, after);
        assert_eq!((summary.ring_events, summary.faults.len()), (1001, 0), "{summary:?}");
    }
}

#[test]
fn numbers_that_cannot_be_are_refused_with_their_place() {
    // Of the first packet with events, and of its first event.
    for (offset, bytes, part) in [
        (0, &[0xee; 4][..], "no packet begins here"),
        (4, &[0xee; 4], "another session"),
        (20, &[0xff; 4], "clock 4294967295 of 1"),
        (40, &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "of content"),
        (48, &[0, 4, 0, 0, 0, 0, 0, 0x40], "of content"),
        (56, &[0xff; 8], "18446744073709551615 lost events"),
        (88, &[0xff; 4], "client 4294967295"),
        (92, &[1], "epoch 1"),
        (96, &[0xff; 8], "18446744073709551615 filtered events"),
        (104, &[0xff; 8], "18446744073709551615 faults"),
        (124, &[7], "domain 7"),
        (136, &[0xff, 0xff, 0, 0], "classes.jsonl does not describe"),
        (140, &[0xff, 0xff], "beyond its packet's end"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (uuid, mut guest) = killed(dir.path());
        let path = dir.path().join("ctf/guest-000-0000");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(bytes, 128 + offset).unwrap();

        let error = resume(dir.path(), uuid, &mut guest).unwrap_err();

        let text = error.to_string();
        assert!(error.is_bad_input(), "{text}");
        for part in [part, "guest-000-0000", "damaged at byte"] {
            assert!(text.contains(part), "{offset}: {part}: {text}");
        }
    }
}

#[test]
fn a_description_that_cannot_be_is_refused() {
    let with = |change: &dyn Fn(&mut SessionJson)| {
        let dir = tempfile::tempdir().unwrap();
        let (uuid, mut guest) = killed(dir.path());
        let mut told = json(dir.path());
        change(&mut told);
        let text = serde_json::to_vec(&told).unwrap();
        fs::write(dir.path().join("session.json"), text).unwrap();
        let error = resume(dir.path(), uuid, &mut guest).unwrap_err();
        assert!(error.is_bad_input());
        error.to_string()
    };
    assert!(with(&|json| json.clocks.clear()).contains("clock"));
    assert!(with(&|json| json.clocks[0].id = 9).contains("clock 0"));
    assert!(with(&|json| json.clocks[0].frequency = 0).contains("frequency of 0"));
    let stream = |json: &mut SessionJson| {
        let faults = [("head".to_owned(), u64::MAX)].into();
        let stream = hypertrace_trace::session_json::StreamJson { faults, ..Default::default() };
        json.streams.push(stream);
    };
    assert!(with(&stream).contains("18446744073709551615 faults"));
}

#[test]
fn event_classes_that_cannot_be_are_refused() {
    let with = |change: &dyn Fn(&mut String)| {
        let dir = tempfile::tempdir().unwrap();
        let (uuid, mut guest) = killed(dir.path());
        let path = dir.path().join("classes.jsonl");
        let mut lines = fs::read_to_string(&path).unwrap();
        change(&mut lines);
        fs::write(&path, lines).unwrap();
        let error = resume(dir.path(), uuid, &mut guest).unwrap_err();
        assert!(error.is_bad_input());
        error.to_string()
    };
    let many = |lines: &mut String| {
        let line = lines.split_inclusive('\n').next().unwrap().to_owned();
        *lines = line.repeat(MAX_CLASSES + 1);
    };
    assert!(with(&many).contains(&format!("{} events", MAX_CLASSES + 1)));
    assert!(with(&|lines| lines.insert_str(0, "{}\n")).contains("classes.jsonl at byte 0"));
    let other = with(&|lines| *lines = lines.replacen("\"id\":16", "\"id\":17", 1));
    assert!(other.contains("classes.jsonl are damaged"), "{other}");
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    for name in ["session.json", "classes.jsonl", "ctf/guest-000-0000"] {
        let dir = tempfile::tempdir().unwrap();
        let (uuid, mut guest) = killed(dir.path());
        let path = dir.path().join(name);
        fs::rename(&path, dir.path().join("aside")).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();

        let text = resume(dir.path(), uuid, &mut guest).unwrap_err().to_string();

        assert!(text.contains("not a regular file") && text.contains(name), "{text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    let file = File::options().write(true).open(dir.path().join("session.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let text = resume(dir.path(), uuid, &mut guest).unwrap_err().to_string();
    assert!(text.contains("1099511627776 bytes"), "{text}");
}

#[test]
fn a_file_whose_name_says_another_number_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    let ctf = dir.path().join("ctf");
    // The next number of the guest's, as the host's file.
    fs::rename(ctf.join("host-000-0000"), ctf.join("guest-000-0003")).unwrap();

    let summary = resume(dir.path(), uuid, &mut guest).unwrap().finish().unwrap();

    assert_eq!((summary.ring_events, summary.host_events), (8010, 40));
    if let Some(lines) = babeltrace2::read_clean(&ctf) {
        assert_eq!(lines.len() as u64, summary.records);
    }
}
