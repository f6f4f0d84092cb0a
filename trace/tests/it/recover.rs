//! Tests of the recovery of a session that a killed process left. The records that are still in the rings
//! become a separate session. Recovery checks each number in the killed session's files before it uses the
//! number.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::ring::{ConsumerState, Emit, RingPosition};
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_format::classes::{self, Line};
use hypertrace_format::error::BadInput;
use hypertrace_test_support::babeltrace2;
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::limits::MAX_CLASSES;
use hypertrace_trace::session_json::{ClockJson, Domain, RECOVERED, SessionJson, StreamJson};
use hypertrace_trace::{Committed, Session, SessionConfig, SessionError, Summary};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

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

/// Leaves a killed session whose guest has 10 events in the ring.
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
    // Here, a drop has the same effect as a kill: it writes nothing.
    drop(session);
    (uuid, guest)
}

/// Recovers the records in the ring, as `hypertrace recover` does.
fn recover(dir: &Path, uuid: [u8; 16], guest: &mut Guest) -> Result<Summary, SessionError> {
    Session::recover(config(dir), uuid, |session| take(session, guest))
}

pub fn take(session: &Session, guest: &mut Guest) {
    let Committed { position, sequence, token, lost } = session.committed(guest.client).unwrap();
    let lost = [lost.full, lost.busy, lost.unattached];
    let place = RingPosition { position, sequence: Some(sequence), token, lost, schemas: 0 };
    guest.consumer = ConsumerState::continue_at(&place);
    guest.pass(session);
}

fn json(dir: &Path) -> SessionJson {
    serde_json::from_slice(&fs::read(dir.join("session.json")).unwrap()).unwrap()
}

/// Returns all files below a directory, with their contents and the times of their last changes.
pub fn fingerprint(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let (path, data) = entry.map(|e| (e.path(), e.metadata().unwrap())).unwrap();
        match data.is_dir() {
            true => found.extend(fingerprint(&path)),
            false => drop(
                found.insert(path.clone(), (fs::read(path).unwrap(), data.modified().unwrap())),
            ),
        }
    }
    found
}

#[test]
fn what_is_left_in_the_ring_is_a_session_of_its_own_and_the_killed_one_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    // The test restores the accounts that the session had a second after its beginning.
    let mut old = json(dir.path());
    let stream = StreamJson { domain: Domain::Guest, name: "guest".into(), ..Default::default() };
    old.streams = vec![stream];
    old.trace_parent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
    fs::write(dir.path().join("session.json"), serde_json::to_vec(&old).unwrap()).unwrap();
    let before = fingerprint(dir.path());

    let summary = recover(dir.path(), uuid, &mut guest).unwrap();

    let recovered = dir.path().join(RECOVERED);
    let mut after = fingerprint(dir.path());
    after.retain(|path, _| !path.starts_with(&recovered));
    assert!(after == before);
    assert_eq!((summary.ring_events, summary.records, summary.lost), (10, 10, 0), "{summary:?}");
    let (killed, told) = (json(dir.path()), json(&recovered));
    assert_eq!((&told.completes, told.finished), (&Some(killed.uuid.clone()), true));
    assert!(!killed.finished && told.uuid != killed.uuid);
    assert_eq!(told.boot_id, killed.boot_id);
    assert!(told.trace_parent.is_some() && told.trace_parent == killed.trace_parent);
    let map = |json: &SessionJson| {
        json.clocks.iter().map(|c| (c.base, c.frequency, c.offset_ns)).collect::<Vec<_>>()
    };
    assert_eq!(map(&told), map(&killed));
    let [stream] = &told.streams[..] else { panic!("{:?}", told.streams) };
    assert_eq!((stream.domain, stream.events, &*stream.name), (Domain::Guest, 10, "guest"));
    if let Some(lines) = babeltrace2::read_clean(&recovered.join("ctf")) {
        assert_eq!(lines.len(), 10);
    }
}

#[test]
fn a_guests_own_clock_keeps_its_map() {
    let dir = tempfile::tempdir().unwrap();
    let config = || config(dir.path()).with(|config| config.same_counter = false);
    let session = Session::create(config()).unwrap();
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", n = 0u64));
    guest.pass(&session);
    guest.emit(event_type!("e", n = 1u64));
    let uuid = session.uuid();
    drop(session);
    let before = json_with_clocks(dir.path());

    thread::sleep(Duration::from_millis(20));
    Session::recover(config(), uuid, |session| take(session, &mut guest)).unwrap();

    let after = json_with_clocks(&dir.path().join(RECOVERED));
    let [(_, a), (_, b)] = [before, after].map(|clocks| (clocks.len(), clocks[1].clone()));
    assert_eq!((a.domain, a.base, a.frequency), (b.domain, b.base, b.frequency));
    assert!(a.offset_ns.abs_diff(b.offset_ns) < 10, "{a:?} {b:?}");
}

/// Returns the clocks of a killed process from `session.json` and `classes.jsonl`, because some clocks are
/// only in `classes.jsonl`.
fn json_with_clocks(dir: &Path) -> Vec<ClockJson> {
    let mut clocks = json(dir).clocks;
    let text = fs::read(dir.join("classes.jsonl")).unwrap();
    clocks.extend(classes::lines(&text).filter_map(|(_, line)| match line.unwrap() {
        Line::Clock(clock) => Some(clock),
        Line::Event(_) => None,
    }));
    clocks
}

/// Fills the ring until `events` more events are lost.
fn lose(guest: &mut Guest, events: u64) {
    let mut lost = 0;
    while lost < events {
        lost += u64::from(guest.emit(event_type!("e", lost)) == Emit::Full);
    }
}

#[test]
fn losses_that_the_killed_process_had_counted_are_not_counted_again() {
    for generations in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let session = Session::create(config(dir.path())).unwrap();
        let mut guest = Guest::new(0);
        for generation in 0..generations {
            if generation > 0 {
                // The test takes the steps that a device takes when its guest boots again. This guest's last
                // losses come after the last packet of its ring.
                guest.poke(guest_page::LOST_FULL, 35);
                guest.discard_unread(&session);
                session.begin_generation(0, &[]);
                guest = Guest::new(0);
            }
            lose(&mut guest, 30 + generation);
            guest.pass(&session);
            guest.emit(event_type!("e", n = 0u64));
            guest.pass(&session);
        }
        lose(&mut guest, 7);
        let uuid = session.uuid();
        let counted = session.summary().lost;
        drop(session);

        let summary = recover(dir.path(), uuid, &mut guest).unwrap();

        assert_eq!((counted, summary.lost), ([0, 30, 66][generations as usize], 7));
        let stream = json(&dir.path().join(RECOVERED)).streams.remove(0);
        assert_eq!((stream.lost_full, stream.lost()), (7, 7));
    }
}

#[test]
fn a_session_whose_last_epoch_has_events_of_the_host_alone_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let (session, mut guest) = (Session::create(config(dir.path())).unwrap(), Guest::new(0));
    assert!(session.attach("thread"));
    guest.emit(event_type!("e", n = 0u64));
    guest.pass(&session);
    session.begin_epoch(3);
    session.emit(event_type!("host", n = 1u64));
    session.begin_pass();
    session.end_pass();
    guest.emit(event_type!("e", n = 1u64));
    let uuid = session.uuid();
    drop(session);

    let summary = recover(dir.path(), uuid, &mut guest).unwrap();

    assert_eq!((summary.ring_events, summary.faults.len()), (1, 0), "{summary:?}");
}

#[test]
fn a_second_recovery_is_refused_and_one_that_was_killed_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    // The directory has half of an earlier recovery.
    fs::create_dir_all(dir.path().join(".recovered/.ctf")).unwrap();
    fs::write(dir.path().join(".recovered/.ctf/guest-000-0000"), "half").unwrap();

    assert_eq!(recover(dir.path(), uuid, &mut guest).unwrap().records, 10);
    assert!(!dir.path().join(".recovered").exists());
    let before = fingerprint(dir.path());
    let error = recover(dir.path(), uuid, &mut guest).unwrap_err();

    assert!(error.is_bad_input());
    assert!(error.to_string().contains("was recovered before"), "{error}");
    assert!(fingerprint(dir.path()) == before);
}

#[test]
fn a_recovery_beside_another_is_refused_and_leaves_it_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    let mut second = None;

    let first = Session::recover(config(dir.path()), uuid, |session| {
        second = Some(Session::recover(config(dir.path()), uuid, |_| ()));
        take(session, &mut guest);
    });

    let refused = second.unwrap().unwrap_err();
    assert!(refused.is_bad_input());
    assert!(refused.to_string().contains("another recovery of it is running"), "{refused}");
    assert_eq!(first.unwrap().records, 10);
    assert!(dir.path().join("recovered/session.json").exists());
    assert!(!dir.path().join(".recovered").exists());
}

#[test]
fn a_session_that_was_ended_or_is_another_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    let other = recover(dir.path(), [7; 16], &mut guest).unwrap_err();
    assert!(other.to_string().contains("UUID"), "{other}");
    recover(dir.path(), uuid, &mut guest).unwrap();
    let mut told = json(dir.path());
    told.finished = true;
    fs::write(dir.path().join("session.json"), serde_json::to_vec(&told).unwrap()).unwrap();

    let ended = recover(dir.path(), uuid, &mut guest).unwrap_err();

    assert!(ended.to_string().contains("was ended"), "{ended}");
}

/// Kills a session in which an honest client has events with the schema `text` in its ring. Other clients
/// have added the texts in `before` before `text`, and the texts in `after` after it. Returns the summary
/// after the recovery.
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

    recover(dir.path(), uuid, &mut guest).unwrap()
}

#[test]
fn many_texts_of_other_clients_leave_a_clients_own_known() {
    let texts: Vec<String> = (0..1030).map(|n| format!("hostile_{n}()")).collect();
    let summary = recovered_beside(&texts, "honest(n:u64)", &[]);
    assert_eq!((summary.ring_events, summary.faults.len()), (1000, 0), "{summary:?}");
}

#[test]
fn a_text_of_another_client_with_the_same_id_leaves_a_clients_own_known() {
    let (text, other) = common::guest::collision();
    let other = [other];
    for (before, after) in [(&other[..], &[][..]), (&[], &other)] {
        let summary = recovered_beside(before, &text, after);
        assert_eq!((summary.ring_events, summary.faults.len()), (1000, 0), "{summary:?}");
    }
}

#[test]
fn numbers_that_cannot_be_are_refused_with_their_place() {
    // Each offset is relative to the first packet with events.
    for (offset, bytes, part) in [
        (0, &[0xee; 4][..], "no packet begins here"),
        (4, &[0xee; 4], "another session"),
        (20, &[0xff; 4], "clock 4294967295 of 1"),
        (40, &[0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], "of content"),
        (48, &[0, 4, 0, 0, 0, 0, 0, 0x40], "of content"),
        (56, &[0xff; 8], "18446744073709551615 lost events"),
        (88, &[0xff; 4], "client 4294967295"),
        (124, &[7], "domain 7"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (uuid, mut guest) = killed(dir.path());
        let path = dir.path().join("ctf/guest-000-0000");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(bytes, 128 + offset).unwrap();

        let error = recover(dir.path(), uuid, &mut guest).unwrap_err();

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
        let error = recover(dir.path(), uuid, &mut guest).unwrap_err();
        assert!(error.is_bad_input());
        error.to_string()
    };
    assert!(with(&|json| json.clocks.clear()).contains("clock"));
    assert!(with(&|json| json.clocks[0].id = 9).contains("clock 0"));
    assert!(with(&|json| json.clocks[0].frequency = 0).contains("frequency of 0"));
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
        let error = recover(dir.path(), uuid, &mut guest).unwrap_err();
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

        let text = recover(dir.path(), uuid, &mut guest).unwrap_err().to_string();

        assert!(text.contains("not a regular file") && text.contains(name), "{text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (uuid, mut guest) = killed(dir.path());
    let file = File::options().write(true).open(dir.path().join("session.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let text = recover(dir.path(), uuid, &mut guest).unwrap_err().to_string();
    assert!(text.contains("1099511627776 bytes"), "{text}");
}
