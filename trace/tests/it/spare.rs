//! Files that are created ahead.

use hypertrace_abi::event_type;
use hypertrace_abi::sink::EventSink;
use hypertrace_test_support::babeltrace2;
use hypertrace_trace::session_json::SessionJson;
use hypertrace_trace::{Session, SessionConfig};
use std::path::Path;
use std::sync::Barrier;

fn config(dir: &Path, spare_files: usize) -> SessionConfig {
    SessionConfig { spare_files, ..SessionConfig::new(dir) }
}

/// Returns the hidden names in a session's directory and its trace, sorted.
fn hidden(dir: &Path) -> Vec<String> {
    let entries = [dir.to_owned(), dir.join("ctf")].into_iter().flat_map(|folder| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name())
    });
    let names = entries.map(|name| name.into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
    names.sort();
    names
}

fn pass(session: &Session) {
    session.begin_pass();
    session.end_pass();
}

/// Returns the schemas in `session.json`.
#[track_caller]
fn schemas(dir: &Path) -> Vec<String> {
    let text = std::fs::read(dir.join("session.json")).unwrap();
    let json: SessionJson = serde_json::from_slice(&text).unwrap();
    json.events.into_iter().map(|event| event.schema).collect()
}

#[test]
fn spare_files_become_streams_and_the_others_are_removed_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(config(dir.path(), 2)).unwrap();
    let begun = hidden(dir.path());
    session.attach("vmm");
    session.emit(event_type!("tick", n = 1u32));

    pass(&session);
    let used = hidden(dir.path());
    let summary = session.finish().unwrap();

    assert!(begun.contains(&".spare-0001".into()), "{begun:?}");
    assert_eq!(used.len(), begun.len() - 1, "{used:?}");
    assert!(hidden(dir.path()).is_empty());
    let Some(lines) = babeltrace2::read_clean(&dir.path().join("ctf")) else { return };
    assert_eq!(lines.len() as u64, summary.records);
}

#[test]
fn descriptions_are_replaced_by_exchange_and_are_whole_for_readers() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(config(dir.path(), 1)).unwrap();
    let begun = hidden(dir.path());
    let first = schemas(dir.path()).len();
    session.attach("vmm");

    for round in 1..=5 {
        match round {
            1 => session.emit(event_type!("one", a_long_name_of_a_field = 1u32)),
            2 => session.emit(event_type!("two", n = 1u32)),
            3 => session.emit(event_type!("three", n = 1u32)),
            4 => session.emit(event_type!("four", n = 1u32)),
            _ => session.emit(event_type!("five", n = 1u32)),
        };
        pass(&session);
        assert_eq!(schemas(dir.path()).len(), first + round);
        if let Some(lines) = babeltrace2::read_clean(&dir.path().join("ctf")) {
            assert_eq!(lines.len(), round + 1, "with the lease");
        }
    }

    assert_eq!(hidden(dir.path()).len(), begun.len() - 1, "no other files were made");
    session.finish().unwrap();
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn more_streams_than_spare_files_are_created_as_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(config(dir.path(), 1)).unwrap();
    // No thread takes over another's ring.
    let all = Barrier::new(3);
    std::thread::scope(|scope| {
        for n in 0..3u32 {
            let (session, all) = (&session, &all);
            scope.spawn(move || {
                assert!(session.attach("vmm"));
                session.emit(event_type!("tick", n));
                all.wait();
            });
        }
    });

    pass(&session);
    let summary = session.finish().unwrap();

    assert_eq!((summary.host_events, summary.write_failures), (3, 0));
    assert!(hidden(dir.path()).is_empty());
}

#[test]
fn spare_files_of_a_killed_process_are_removed_by_the_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let session = Session::create(config(dir.path(), 3)).unwrap();
    session.attach("vmm");
    session.emit(event_type!("tick", n = 1u32));
    pass(&session);
    let uuid = session.uuid();
    // As a kill leaves it.
    std::mem::forget(session);
    assert!(!hidden(dir.path()).is_empty());

    let resumed = Session::resume(SessionConfig::new(dir.path()), uuid).unwrap();

    assert!(hidden(dir.path()).is_empty());
    assert_eq!(resumed.finish().unwrap().host_events, 1);
}
