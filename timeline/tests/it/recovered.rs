// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of sessions that were recovered after a kill. The reader reads the killed session and its recovery
//! as one session, and accepts no other folder as the recovery.

use crate::written::Guest;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::ring::{Consumer, ConsumerState, RingPosition};
use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept::{self, Entry, Value};
use hypertrace_test_support::steps::Steps;
use hypertrace_timeline::{
    ClockMaps, Domain, EntryRef, EventKind, Follow, Needs, Recording, Session, SessionStat,
};
use hypertrace_trace::SessionConfig;
use hypertrace_trace::session_json::SessionJson;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Kills a session of two clients. The session's files have `before` events of each client. The recovery then
/// contains `after` more events of the first client, and a loss of the second client.
fn recovered(dir: &Path, before: u64, after: u64) {
    let session = hypertrace_trace::Session::create(SessionConfig::new(dir)).unwrap();
    let mut guests = [Guest::new(0, 0, "first"), Guest::new(1, 0, "second")];
    for guest in &mut guests {
        (0..before).for_each(|n| guest.emit(event_type!("e", n)));
        guest.pass(&session);
    }
    (before..before + after).for_each(|n| guests[0].emit(event_type!("e", n)));
    guests[0].emit(event_type!("later", n = 1u64));
    guests[1].area[guest_page::LOST_FULL].store(3, Ordering::Relaxed);
    let uuid = session.uuid();
    drop(session);

    let take = |session: &hypertrace_trace::Session| {
        session.begin_pass();
        for (client, guest) in (0..).zip(&guests) {
            let at = session.committed(client).unwrap();
            let lost = [at.lost.full, at.lost.busy, at.lost.unattached];
            let (position, sequence, token) = (at.position, Some(at.sequence), at.token);
            let place = RingPosition { position, sequence, token, lost, schemas: 0 };
            let mut state = ConsumerState::continue_at(&place);
            while session.drain(client, &mut Consumer::new(guest.memory, &mut state)).more {}
        }
        session.end_pass();
    };
    hypertrace_trace::Session::recover(SessionConfig::new(dir), uuid, take).unwrap();
}

/// Returns a line for each event, with its source, name and number, and a line for each loss.
fn read(dir: &Path) -> Vec<String> {
    let session = Session::open(dir).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    let recording = Recording::of([(session, maps)], []);
    let (entries, _) = kept::entries(&recording, Needs::ALL).unwrap();
    let mut lines = Vec::new();
    for entry in entries {
        lines.extend(line(&entry));
    }
    lines.sort();
    lines
}

fn line(entry: &Entry) -> Option<String> {
    match entry {
        Entry::Event(event) => match event.fields.first() {
            Some((_, Value::Unsigned(n))) if event.kind == EventKind::Event => {
                Some(format!("{} {} {n:02}", event.source, event.name))
            }
            _ => None,
        },
        Entry::Lost(lost) => {
            Some(format!("guest/{} lost {}", lost.source.client.unwrap(), lost.events))
        }
    }
}

#[test]
fn a_killed_session_and_what_was_recovered_of_it_are_read_as_one() {
    let dir = tempfile::tempdir().unwrap();
    recovered(dir.path(), 5, 7);

    let lines = read(dir.path());

    let all = (0..12).map(|n| format!("guest/0 first e {n:02}"));
    let all = all.chain(["guest/0 first later 01".into()]);
    let second = (0..5).map(|n| format!("guest/1 second e {n:02}"));
    let expected: Vec<String> = all.chain(["guest/1 lost 3".into()]).chain(second).collect();
    assert_eq!(lines, expected);
    let session = Session::open(dir.path()).unwrap();
    assert!(session.json().finished);
    let stat = SessionStat::of(&session).unwrap();
    assert_eq!((stat.total.events, stat.total.lost, stat.missing), (18, 3, 0));
    assert_eq!(stat.total.causes.full, 3);
    let [first, _] = &stat.streams[..] else { panic!("{:?}", stat.streams) };
    assert_eq!((first.stream, first.events), (Some((Domain::Guest, 0)), 13));
    // The recovery can be read by itself too.
    let alone = SessionStat::of(&Session::open(&dir.path().join("recovered")).unwrap()).unwrap();
    assert_eq!((alone.total.events, alone.total.lost), (8, 3));
}

#[test]
fn a_killed_session_that_was_recovered_is_followed_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    recovered(dir.path(), 5, 7);
    let mut follow = Follow::open(dir.path()).unwrap();
    let mut lines = Vec::new();
    let mut each = |entry: EntryRef<'_>| lines.extend(line(&Entry::from(&entry)));

    let round = follow.round(&mut each).unwrap();
    assert!(round.is_finished && round.has_news);
    let round = follow.round(&mut each).unwrap();
    assert!(round.is_finished && !round.has_news);
    follow.end(&mut each).unwrap();

    lines.sort();
    assert_eq!(lines, read(dir.path()));
}

#[test]
fn what_is_not_the_recovery_of_this_session_is_refused_by_its_name() {
    let change = |dir: &Path, change: &dyn Fn(&mut SessionJson)| {
        let path = dir.join("recovered/session.json");
        let mut json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, json.text().unwrap()).unwrap();
    };
    let refused = |make: &dyn Fn(&Path), part: &str| {
        let dir = tempfile::tempdir().unwrap();
        recovered(dir.path(), 2, 2);
        make(dir.path());
        let errors = [
            Session::open(dir.path()).map(drop).unwrap_err(),
            Follow::open(dir.path()).and_then(|mut f| f.round(&mut |_| ())).map(drop).unwrap_err(),
        ];
        for error in errors {
            let said = error.to_string();
            assert!(error.is_bad_input(), "{part}: {said}");
            assert!(said.contains("recovered") && said.contains(part), "{part}: {said}");
        }
    };
    let other = "00000000-0000-0000-0000-000000000000";
    refused(&|dir| change(dir, &|json| json.completes = Some(other.into())), "another session");
    refused(&|dir| change(dir, &|json| json.completes = None), "another session");
    refused(&|dir| change(dir, &|json| json.finished = false), "was not finished");
    refused(&|dir| change(dir, &|json| json.version = 1), "expected version 2, found 1");
    refused(&|dir| change(dir, &|json| json.clocks[0].base += 1), "other clocks");
    let classes = |dir: &Path| dir.join("recovered/classes.jsonl");
    refused(&|dir| fs::write(classes(dir), "").unwrap(), "event classes");
    refused(
        &|dir| fs::write(dir.join("recovered/ctf/guest-000-0000"), "x").unwrap(),
        "guest-000-0000: damaged at byte 1",
    );
    let replaced = |dir: &Path| {
        fs::rename(dir.join("recovered"), dir.join("elsewhere")).unwrap();
        dir.join("recovered")
    };
    refused(&|dir| symlink("elsewhere", replaced(dir)).unwrap(), "not the directory");
    refused(&|dir| fs::write(replaced(dir), "").unwrap(), "not the directory");
    refused(&|dir| fs::create_dir(replaced(dir)).unwrap(), "not the directory");
    // Only root may change the owner of a directory to another user.
    let dir = tempfile::tempdir().unwrap();
    if chown(dir.path(), Some(65534), None).is_ok() {
        let given = |dir: &Path| chown(dir.join("recovered"), Some(65534), None).unwrap();
        refused(&given, "belongs to another user");
    }
}

#[test]
fn a_session_that_was_ended_lacks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let session = hypertrace_trace::Session::create(SessionConfig::new(dir.path())).unwrap();
    session.finish().unwrap();
    fs::write(dir.path().join("recovered"), "mine").unwrap();

    assert_eq!(read(dir.path()), [""; 0]);
}
