//! Recordings: what is opened together, and what a consumer gets of it.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept;
use hypertrace_test_support::made::{Made, Packet, VCPU_EXIT};
use hypertrace_timeline::{EntryRef, Error, Given, Needs, Recording, UnreadPart};
use std::fs;

/// Makes a session with three events of its host.
fn session() -> Made {
    let packet =
        (1..4).fold(Packet::host(0), |packet, at| packet.event(at * 100, VCPU_EXIT, &[at]));
    Made::new().stream("host-000-0000", &[packet])
}

#[test]
fn a_kernels_trace_that_is_none_is_named_and_the_session_is_read() {
    let made = session();
    fs::write(made.path().join("kernel.dat"), "no trace").unwrap();

    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    let [unread] = &recording.unread[..] else { panic!("{:?}", recording.unread) };
    assert_eq!((unread.session, unread.what), (0, UnreadPart::Host));
    assert!(unread.why.to_string().contains("kernel.dat"), "{}", unread.why);
    assert!(recording.traces.is_empty());
    assert_eq!(kept::events(&recording).unwrap().len(), 3);
}

#[test]
fn a_kernels_recording_that_has_not_ended_is_named() {
    let made = session();
    fs::create_dir(made.path().join(".kernel")).unwrap();

    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    let [unread] = &recording.unread[..] else { panic!("{:?}", recording.unread) };
    assert_eq!((unread.session, unread.what), (0, UnreadPart::Unfinished));
    assert!(
        unread.why.to_string().contains("`hypertrace info DIR` completes it"),
        "{}",
        unread.why
    );
}

#[test]
fn a_guests_trace_without_its_session_is_refused_by_name() {
    let made = session();
    let path = made.path().join("guest.dat");
    fs::write(&path, hypertrace_test_support::trace_dat::TraceDat::new("x86-tsc").version_7())
        .unwrap();
    let elsewhere = Some("elsewhere".into());
    let given = [Given::new(made.path()), Given { guest_of: elsewhere, ..Given::new(&path) }];

    let error = Recording::open(&given).unwrap_err();

    assert!(matches!(&error, Error::NotGiven { path: of, .. } if *of == path), "{error}");
    assert!(error.is_bad_input() && error.to_string().contains("elsewhere"), "{error}");
}

#[test]
fn a_consumer_gets_entries_until_it_wants_no_more_or_fails() {
    let made = session();
    let recording = Recording::open(&[Given::new(made.path())]).unwrap();
    let mut times = Vec::new();

    recording
        .read(Needs::ALL, &mut |entry: &EntryRef<'_>| {
            times.push(entry.ts_ns().unwrap() - recording.start_unix_ns());
            Ok::<_, Error>(times.len() < 2)
        })
        .unwrap();
    let failed = recording.read(Needs::ALL, &mut |_: &EntryRef<'_>| {
        Err(Error::NotGiven { path: "a".into(), session: "b".into() })
    });

    assert_eq!(times, [100, 200]);
    assert!(matches!(failed, Err(Error::NotGiven { .. })), "{failed:?}");
}
