//! Tests of recordings: which inputs are opened together, and what a consumer gets from the inputs.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept;
use hypertrace_test_support::made::{self, Made, Packet, VCPU_EXIT};
use hypertrace_test_support::trace_dat::{Page, SCHED_SWITCH_ID, TraceDat, switch};
use hypertrace_timeline::{
    EntryRef, Error, EventRef, Given, GuestKernel, Needs, Recording, Session, UnreadPart, Warning,
};
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
fn the_recording_of_a_guests_kernel_is_read_where_it_lies() {
    let recorded = hypertrace_test_support::guest_mode::recorded();
    let made = recorded.made();

    let recording = Recording::open(&[Given::new(made.path())]).unwrap();

    assert!(recording.unread.is_empty(), "{:?}", recording.unread);
    let [kernel] = &recording.guest_kernels[..] else { panic!("{:?}", recording.guest_kernels) };
    let sent = recorded.guest.iter().map(Vec::len).sum::<usize>();
    assert_eq!((kernel.asked.events, kernel.asked.lost()), (sent as u64, 0));
    let mut shown = 0;
    let count = &mut |entry: &EntryRef<'_>| {
        let is_of_guest = |event: &EventRef<'_>| event.thread.is_some_and(|of| of.tid == 7);
        shown += usize::from(matches!(entry, EntryRef::Event(event) if is_of_guest(event)));
        Ok::<_, Error>(true)
    };
    recording.read(Needs::ALL, count).unwrap();
    assert_eq!(shown, sent);

    // Half of the stream's file is cut off. The damage is reported with the name of that file.
    let file = made.path().join("ctf").join("guest-0");
    let len = fs::metadata(&file).unwrap().len();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len / 2).unwrap();
    let warnings = recording.traces[1].stat().unwrap().warnings;
    let is_named = |warning: &Warning| warning.to_string().contains("guest-0: damaged at byte");
    assert!(warnings.iter().any(is_named), "{warnings:?}");
}

#[test]
fn the_recording_of_a_guests_kernel_may_lie_in_several_files() {
    let events = |cpu: u64| {
        let event =
            |n: u64| (1_000 + n, SCHED_SWITCH_ID, 7, switch((7, "a"), 0, (cpu as u32, "b")));
        Page::all(&Vec::from_iter((0..500).map(event)))
    };
    let kernel = TraceDat::new("x86-tsc").cpu(&events(0)).cpu(&events(1));
    let pieces = made::pieces(&kernel);
    let (first, second) = pieces.split_at(pieces.len() / 2);
    let json = made::json(&made::clocks(), &made::with_pieces(made::EVENTS, 21), "[]");
    let begin = Packet::guest(0).pieces((1, 21), first);
    let next = Packet::guest(0).after(&begin);
    let end = Packet::guest(0).after(&begin).pieces((1_000, 21), second);
    let made = Made::with_json(&json)
        .stream("guest-000-0000", &[Packet::guest(0), begin])
        .stream("guest-000-0001", &[next, end]);

    let mut found = Vec::new();
    let session = Session::open(made.path()).unwrap();
    let open = &mut |kernel: GuestKernel| found.push(kernel.open(0).unwrap().stat().unwrap());
    let unread = GuestKernel::find(&session, open);

    assert!(unread.is_empty(), "{unread:?}");
    let [stat] = &found[..] else { panic!("{found:?}") };
    let events = stat.cpus.iter().map(|cpu| (cpu.events, cpu.lost));
    assert_eq!((Vec::from_iter(events), &*stat.warnings), (vec![(500, 0); 2], &[][..]));
}

#[test]
fn a_guests_trace_without_its_session_is_refused_by_name() {
    let made = session();
    let path = made.path().join("guest.dat");
    fs::write(&path, TraceDat::new("x86-tsc").version_7()).unwrap();
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
