//! A flight recorder: rings that overwrite their oldest records, and snapshots of their contents.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use hypertrace::{Client, Emit, ProducerState, event};
use hypertrace_guest::{Args, Program, layout};
use hypertrace_test_support::kept::{Event, Value};
use hypertrace_tests::host::{Host, events, geometry};
use hypertrace_tests::{babeltrace2, kvm, wait_until};
use hypertrace_timeline::{Domain, EventKind, Session};
use hypertrace_trace::{Output, SnapshotError};
use kvm_vmm::{Answer, attach_window, record_in};

/// Returns the numbers of the events `n(number, check)` of a client, which must be consecutive.
#[track_caller]
fn numbers(events: &[Event], client: u32) -> (u64, u64) {
    let of = |event: &Event, field: usize| match event.fields[field].1 {
        Value::Unsigned(number) => number,
        ref other => panic!("{other:?}"),
    };
    let own: Vec<u64> = events
        .iter()
        .filter(|event| &*event.name == "n" && event.client == Some(client))
        .map(|event| {
            let number = of(event, 0);
            assert_eq!(of(event, 1), !number, "event {number} is torn");
            number
        })
        .collect();
    assert!(own.windows(2).all(|pair| pair[1] == pair[0] + 1), "there is a gap");
    (own[0], own[own.len() - 1])
}

/// Returns the losses of a client in the session in `dir`.
#[track_caller]
fn lost(dir: &Path, client: u32) -> u64 {
    let session = Session::open(dir).unwrap();
    let own = |s: &&hypertrace_timeline::Stream| (s.domain, s.client) == (Domain::Guest, client);
    assert!(session.streams().iter().any(|s| own(&s)));
    let json = session.json();
    assert!(json.finished);
    let stream = json.streams.iter().find(|s| (s.domain, s.client) == (Domain::Guest, client));
    stream.unwrap().lost_overwritten
}

fn emit(client: &Client<'_>, numbers: std::ops::Range<u64>) {
    for number in numbers {
        event!(client: client, "n", number, check = !number);
    }
}

#[test]
fn a_snapshot_has_the_newest_events_and_counts_the_older_ones() {
    let host = Host::with_output(geometry(2), Output::Snapshots);
    let states = [ProducerState::new(), ProducerState::new()];
    let (a, b) = (host.lease(0, &states[0], "first"), host.lease(1, &states[1], "second"));
    // The holder is known if a pass reads its lease record before the record is overwritten.
    host.chip.drain_all();
    let drain = host.drain();
    emit(&a, 0..1_000_000);
    emit(&b, 0..10);
    // The directory contains only the empty folder by which the session reserves the directory.
    let written = fs::read_dir(host.session.dir()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(Vec::from_iter(written), [".ctf"]);

    let first = host.session.snapshot().unwrap();
    emit(&a, 1_000_000..1_000_005);
    let second = host.session.snapshot().unwrap();

    assert_eq!(first, host.session.dir().join("snapshot-0001"));
    assert_eq!(second, host.session.dir().join("snapshot-0002"));
    for (dir, end) in [(&first, 1_000_000), (&second, 1_000_005)] {
        let found = events(dir);
        let (begin, last) = numbers(&found, 0);
        assert_eq!(last, end - 1);
        // The ring holds records of 32 bytes in half a MiB, except in the blocks that are being written.
        assert!((10_000..16_384).contains(&(end - begin)), "{begin}..{end}");
        // Besides events, the lease record was overwritten.
        assert_eq!(lost(dir, 0), begin + 1);
        assert_eq!(numbers(&found, 1), (0, 9));
        assert_eq!(lost(dir, 1), 0);
        let names: Vec<_> = found.iter().map(|event| &*event.source).collect();
        assert!(names.iter().any(|name| name.contains("first")), "{:?}", names.first());
    }
    drain.finish();
    let dir = host.finish();
    assert!(!dir.ctf().exists());
}

#[test]
fn a_snapshot_under_full_load_is_whole_and_ends() {
    const SNAPSHOTS: usize = 20;
    let host = Host::with_output(geometry(2), Output::Snapshots);
    let drain = host.drain();
    let stop = AtomicBool::new(false);
    let dirs: Vec<_> = thread::scope(|scope| {
        for index in 0..2 {
            let (host, stop) = (&host, &stop);
            scope.spawn(move || {
                let state = ProducerState::new();
                let client = host.lease(index, &state, "busy");
                let mut number = 0;
                while !stop.load(Relaxed) {
                    emit(&client, number..number + 1_000);
                    number += 1_000;
                }
            });
        }
        let dirs = (0..SNAPSHOTS).map(|_| host.session.snapshot().unwrap()).collect();
        stop.store(true, Relaxed);
        dirs
    });
    let last = host.session.snapshot().unwrap();
    drain.finish();
    for dir in &dirs {
        let found = events(dir);
        let mut seen: BTreeMap<u32, u64> = BTreeMap::new();
        for event in found.iter().filter(|event| &*event.name == "n") {
            let [Value::Unsigned(number), Value::Unsigned(check)] =
                [&event.fields[0].1, &event.fields[1].1]
            else {
                panic!("{event:?}");
            };
            assert_eq!(*check, !number, "event {number} is torn");
            let before = seen.insert(event.client.unwrap(), *number);
            assert!(before < Some(*number), "event {number} comes again, or late");
        }
    }
    if let Some(read) = babeltrace2::read(&last.join("ctf")) {
        assert_eq!(read.complete(), events(&last).len() as u64);
    }
}

#[test]
fn a_guests_trigger_takes_a_snapshot_of_guest_and_vmm() {
    const ROUNDS: u64 = 200;
    let Some(mut machine) = kvm::machine(1) else { return };
    let host = Host::with_output(geometry(1), Output::Snapshots);
    let last = ROUNDS - 1;
    host.session.add_trigger(&format!("on end:measured if arg1=={last} do snapshot")).unwrap();
    let drain = host.drain();
    machine.observe(record_in(host.session.clone()));
    attach_window(&mut machine, &host.device, layout::DEVICE, Answer::Device).unwrap();
    let args = Args { reference_points: ROUNDS, ..Args::new(Program::Regions) };

    kvm::run(machine, &Args { device: layout::DEVICE, ..args });

    let dir = host.session.dir().join("snapshot-0001");
    // This is the last notification: the request has been answered.
    let done = || host.session.triggers().contains("1 done");
    wait_until("a snapshot", done);
    drain.finish();
    let triggers = host.session.triggers();
    assert!(triggers.contains("(fired 1, failed 0)"), "{triggers}");
    assert!(done(), "{triggers}");
    assert!(Session::open(&dir).unwrap().json().finished);
    let found = events(&dir);
    let ends = found.iter().filter(|event| &*event.name == "measured_end");
    assert_eq!(ends.clone().count() as u64, ROUNDS);
    assert!(ends.clone().all(|event| event.kind == EventKind::ReferencePoint));
    // The VMM's events for each point are in the same snapshot.
    let exits = found.iter().filter(|event| &*event.name == "vcpu_exit").count() as u64;
    assert!(exits >= 2 * ROUNDS, "{exits}");
    assert!(found.iter().any(|event| &*event.source == "vmm/vcpu0"));
    assert!(!host.session.dir().join("snapshot-0002").exists());
}

#[test]
fn impossible_requests_are_refused_with_a_message() {
    let plain = Host::new(geometry(1));
    assert!(matches!(plain.session.snapshot(), Err(SnapshotError::NotARecorder)));
    let told = plain.session.execute("snapshot").unwrap_err();
    assert!(told.contains("no flight recorder"), "{told}");
    let told = plain.session.execute("trigger add on go do snapshot").unwrap_err();
    assert!(told.contains("no flight recorder"), "{told}");

    let host = Host::with_output(geometry(1), Output::Snapshots);
    let told = host.session.execute("trace-file set /tmp/t").unwrap_err();
    assert!(told.contains("/tmp/t") && told.contains("snapshots only"), "{told}");
    let session = host.session.clone();
    let waiting = thread::spawn({
        let session = session.clone();
        move || session.snapshot()
    });
    thread::sleep(std::time::Duration::from_millis(50));
    host.finish();
    assert!(matches!(waiting.join().unwrap(), Err(SnapshotError::Ended)));
    assert!(matches!(session.snapshot(), Err(SnapshotError::Ended)));
}

#[test]
fn a_failed_snapshot_is_reported_and_the_next_one_succeeds() {
    let host = Host::with_output(geometry(1), Output::Snapshots);
    let drain = host.drain();
    let state = ProducerState::new();
    let client = host.lease(0, &state, "on");
    let (site, fields) = hypertrace_abi::event_type!("n", number = 0u64, check = !0u64);
    assert_eq!(client.emit(site, fields), Emit::Recorded);
    // A file occupies the snapshot's path.
    let taken = host.session.dir().join("snapshot-0001");
    fs::write(&taken, "").unwrap();

    let told = host.session.execute("snapshot").unwrap_err();
    assert!(told.contains("cannot create") && told.contains("snapshot-0001"), "{told}");

    emit(&client, 1..10);
    let dir = host.session.execute("snapshot").unwrap();
    assert!(dir.ends_with("snapshot-0002"), "{dir}");
    assert_eq!(numbers(&events(Path::new(&dir)), 0), (0, 9));
    let info = host.session.execute("info trace").unwrap();
    assert!(info.contains("flight recorder: ") && info.contains(", 2 snapshots, 1 writes failed"));
    drain.finish();
}
