//! The `simple` backend's file, read by a reader that follows only the format's description.

use crate::alone;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Barrier;
use std::sync::MutexGuard;
use std::thread;
use std::time::Duration;

use hypertrace::{ProducerState, event};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::layout::Region;
use hypertrace_test_support::kept::Value;
use hypertrace_tests::forger::Forger;
use hypertrace_tests::host::{Host, geometry};
use hypertrace_tests::random::Random;
use hypertrace_tests::simpletrace::{self, Arg, Event, Record};
use hypertrace_tests::{trace, trace_each_kind};
use hypertrace_trace::Output;
use hypertrace_trace::control::set_declared;
use tempfile::TempDir;

/// Makes a host that also writes its declared events of these names to the file `trace` in the returned
/// directory.
fn host(pattern: &str) -> (MutexGuard<'static, ()>, Host, TempDir) {
    host_writing(Output::Trace, pattern)
}

/// Makes a host as [`host`] does, with this output of the session.
fn host_writing(output: Output, pattern: &str) -> (MutexGuard<'static, ()>, Host, TempDir) {
    let alone = alone();
    let host = Host::with_output(geometry(2), output);
    set_declared(&"*".parse().unwrap(), false);
    set_declared(&pattern.parse().unwrap(), true);
    let dir = tempfile::tempdir().unwrap();
    host.session.set_simple_file(&dir.path().join("trace")).unwrap();
    (alone, host, dir)
}

fn pass(host: &Host) {
    host.chip.drain_all();
}

/// Returns the selector of events `test_pair(source, number)` for [`simpletrace::Trace::account`].
fn pair(source: u64) -> impl Fn(&Event) -> Option<u64> {
    move |event| {
        let own = event.name == "test_pair" && event.args[0].number() == source;
        own.then(|| event.args[1].number())
    }
}

#[test]
fn every_kind_of_argument_is_recorded_unchanged() {
    let (_alone, host, dir) = host("test_*");
    host.session.attach("test");
    trace_each_kind();
    host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    use Arg::{Signed, Unsigned};
    assert_eq!(read.args("test_none"), [&[]]);
    assert_eq!(read.args("test_pair"), [&[Unsigned(1), Unsigned(u64::MAX)]]);
    let small = [Signed(-1), Unsigned(65_535), Signed(i32::MIN.into()), Unsigned(1)];
    assert_eq!(read.args("test_small"), [&small]);
    assert_eq!(read.args("test_text")[0][1].bytes(), "héllo\n".as_bytes());
    let two = read.args("test_two_texts")[0];
    assert_eq!((two[0].bytes(), two[1].bytes(), &two[2]), (vec![255, 254], vec![], &Signed(-5)));
    assert_eq!(read.args("test_address"), [&[Unsigned(0xdead_beef), Signed(i64::MIN)]]);
    assert_eq!(read.records.len(), 6);
}

#[test]
fn the_rings_can_feed_only_this_file() {
    let (_alone, host, dir) = host_writing(Output::Nothing, "test_pair");
    host.session.attach("test");
    let state = ProducerState::new();
    let client = host.lease(0, &state, "guest");
    for number in 0..1_000 {
        trace::test_pair(1, number);
        event!(client: &client, "n", number);
    }
    pass(&host);
    // The directory contains only the empty folder by which the session reserves the directory.
    let session = host.session.dir().to_owned();
    let written = std::fs::read_dir(&session).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(Vec::from_iter(written), [".ctf"]);
    assert_eq!(std::fs::read_dir(session.join(".ctf")).unwrap().count(), 0);
    let info = host.session.execute("info trace").unwrap();
    assert!(info.contains("session: none") && info.contains("1000 records, 0 dropped"), "{info}");
    let live = simpletrace::read(&dir.path().join("trace"));
    let summary = host.finish().summary;
    assert_eq!((summary.ring_events, summary.lost), (1_000, 0));

    let Some(live) = live else { return };
    assert_eq!(live.args("test_pair").len(), 1_000, "it is read while the session runs");
    let read = simpletrace::read(&dir.path().join("trace")).unwrap();
    assert_eq!(read.args("test_pair").len(), 1_000);
}

#[test]
fn strings_are_bytes_and_bounded() {
    let (_alone, host, dir) = host("test_text");
    host.session.attach("test");
    let long = "x".repeat(64 << 10);
    let texts: [&[u8]; 5] = [b"a\0b", b"one\ntwo\r\n", b"h\xc3\xa4\xff\xc3", b"", long.as_bytes()];
    texts.iter().zip(0..).for_each(|(text, n)| trace::test_text(n, text));
    host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let found: Vec<_> = read.args("test_text").iter().map(|args| args[1].bytes()).collect();
    assert_eq!(&found[..4], &texts[..4]);
    assert_eq!(found[4], long.as_bytes()[..1024]);
}

#[test]
fn threads_are_merged_in_order_of_time_within_a_pass() {
    let (_alone, host, dir) = host("test_pair");
    let (session, turn) = (&host.session, &Barrier::new(4));
    thread::scope(|scope| {
        for source in 0..4 {
            scope.spawn(move || {
                session.attach("test");
                for n in 0..1_000 {
                    if n % 100 == 0 {
                        turn.wait();
                    }
                    trace::test_pair(source, n);
                }
            });
        }
    });
    host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    assert!(read.events().map(|event| event.ns).is_sorted());
    assert!(read.events().all(|event| event.pid == std::process::id()));
    (0..4).for_each(|source| assert_eq!(read.account(1_000, pair(source)), 1_000));
    let sources: Vec<u64> = read.events().map(|event| event.args[0].number()).collect();
    assert!(!sources.is_sorted(), "they took turns");
}

#[test]
fn drops_of_full_rings_are_recorded_at_the_end_of_the_pass() {
    let (_alone, host, dir) = host("test_pair");
    // Each thread emits more events than a ring holds, and the threads' losses differ.
    const FIRST: [u64; 2] = [9_000, 10_000];
    const MORE: u64 = 100;
    let (session, turn) = (&host.session, &Barrier::new(3));
    thread::scope(|scope| {
        for (source, first) in (0..).zip(FIRST) {
            scope.spawn(move || {
                session.attach("test");
                (0..first).for_each(|n| trace::test_pair(source, n));
                turn.wait();
                turn.wait();
                (first..first + MORE).for_each(|n| trace::test_pair(source, n));
            });
        }
        turn.wait();
        pass(&host);
        turn.wait();
    });
    let lost = host.finish().summary.lost;

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let missing: Vec<u64> = (0..)
        .zip(FIRST)
        .map(|(source, first)| first + MORE - read.account(first + MORE, pair(source)))
        .collect();
    assert!(missing[0] > 0 && missing[0] + 1_000 == missing[1], "{missing:?}");
    let is_dropped = |record: &Record| matches!(record, Record::Dropped(_));
    let pass: Vec<_> = read.records.split(is_dropped).map(<[Record]>::len).collect();
    assert_eq!(pass[1..], [2 * MORE as usize], "one record, after the events of the first pass");
    assert_eq!((lost, read.dropped()), (missing.iter().sum(), missing.iter().sum()));
}

#[test]
fn every_event_is_recorded_or_dropped_at_any_speed() {
    let (_alone, host, dir) = host("test_pair");
    const EACH: u64 = 60_000;
    let mut random = Random::seeded();
    let pauses = [random.fork(), random.fork(), random.fork()];
    thread::scope(|scope| {
        let threads: Vec<_> = pauses
            .into_iter()
            .zip(0..)
            .map(|(mut random, source)| {
                let session = &host.session;
                scope.spawn(move || {
                    session.attach("test");
                    for n in 0..EACH {
                        if n % 4096 == 0 {
                            thread::sleep(Duration::from_micros(random.below(1_000)));
                        }
                        trace::test_pair(source, n);
                    }
                })
            })
            .collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            pass(&host);
            thread::sleep(Duration::from_micros(random.below(20_000)));
        }
    });
    let recorded = host.finish().summary;

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let found: u64 = (0..3).map(|source| read.account(EACH, pair(source))).sum();
    println!("{found} recorded, {} dropped", read.dropped());
    assert_eq!(found + read.dropped(), 3 * EACH);
    assert_eq!((found, read.dropped()), (recorded.host_events, recorded.lost));
}

#[test]
fn events_while_the_file_is_off_are_not_counted_as_missing() {
    let (_alone, host, dir) = host("test_pair");
    host.session.attach("test");
    let emit = |numbers: std::ops::Range<u64>| numbers.for_each(|n| trace::test_pair(0, n));
    emit(0..10);
    host.session.execute("trace-file off").unwrap();
    // These are more events than the ring holds.
    emit(10..10_000);
    host.session.execute("trace-file on").unwrap();
    emit(10_000..10_010);
    let info = host.session.execute("info trace").unwrap();
    host.finish();

    assert!(info.contains("trace on, 10 records, 0 dropped, 0 bytes waiting"), "{info}");
    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let numbers: Vec<u64> = read.args("test_pair").iter().map(|args| args[1].number()).collect();
    assert_eq!(numbers, (0..10).chain(10_000..10_010).collect::<Vec<_>>());
    assert_eq!(read.dropped(), 0);
}

#[test]
fn nothing_is_lost_or_doubled_between_two_files() {
    let (_alone, host, dir) = host("test_pair");
    const EACH: u64 = 30_000;
    let files: Vec<_> = (0..8).map(|n| dir.path().join(format!("trace{n}"))).collect();
    let drain = host.drain();
    thread::scope(|scope| {
        let threads = [0, 1].map(|source| {
            let session = &host.session;
            scope.spawn(move || {
                session.attach("test");
                for n in 0..EACH {
                    if n % 256 == 0 {
                        thread::sleep(Duration::from_micros(100));
                    }
                    trace::test_pair(source, n);
                }
            })
        });
        let mut next = files.iter().cycle();
        host.session.set_simple_file(next.next().unwrap()).unwrap();
        for file in next.take(files.len() - 1) {
            thread::sleep(Duration::from_millis(2));
            host.session.execute(&format!("trace-file set {}", file.display())).unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    drain.finish();
    host.finish();

    // The events in the first file are older than the events in all other files.
    let first = [vec![dir.path().join("trace")], files].concat();
    let Some(read) = simpletrace::read_all(&first) else { return };
    let found: u64 = (0..2).map(|source| read.account(EACH, pair(source))).sum();
    assert_eq!(found + read.dropped(), 2 * EACH);
}

#[test]
fn a_file_can_be_started_again() {
    let (_alone, host, dir) = host("test_pair");
    host.session.attach("test");
    trace::test_pair(0, 0);
    host.session.set_simple_file(&dir.path().join("trace")).unwrap();
    trace::test_pair(0, 1);
    host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    assert_eq!(read.args("test_pair"), [&[Arg::Unsigned(0), Arg::Unsigned(1)]]);
}

#[test]
fn a_foreign_file_is_refused_and_unchanged() {
    let (_alone, host, dir) = host("test_pair");
    host.session.attach("test");
    let path = |name: &str| dir.path().join(name);
    fs::write(path("foreign"), "a diary of thirty bytes or more").unwrap();
    fs::write(path("short"), "abc").unwrap();
    fs::create_dir(path("folder")).unwrap();
    let _socket = UnixListener::bind(path("socket")).unwrap();
    mkfifo(&path("pipe"));
    let refused = |path: &Path| {
        let command = format!("trace-file set {}", path.display());
        host.session.execute(&command).unwrap_err()
    };

    trace::test_pair(0, 0);
    assert!(refused(&path("foreign")).contains("no simple trace; nothing was overwritten"));
    assert!(refused(&path("short")).contains("no simple trace; nothing was overwritten"));
    assert!(refused(&path("folder")).contains("directory"));
    assert!(refused(&path("socket")).contains("no file and no pipe"));
    assert!(refused(&path("pipe")).contains("nobody reads"));
    assert!(refused(&path("missing/trace")).contains("there is no directory"));
    // Not even root may write this file.
    assert!(refused(Path::new("/proc/self/stat")).contains("/proc/self/stat"));
    trace::test_pair(0, 1);
    host.finish();

    assert_eq!(fs::read(path("foreign")).unwrap(), b"a diary of thirty bytes or more");
    assert_eq!(fs::read(path("short")).unwrap(), b"abc");
    assert!(!path("missing").exists());
    // The backend continues the old file.
    let Some(read) = simpletrace::read(&path("trace")) else { return };
    assert_eq!(read.account(2, pair(0)), 2);
}

fn mkfifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn a_guests_reference_points_are_guest_hypertrace_while_it_is_on() {
    let (_alone, host, dir) = host("guest_hypertrace");
    host.session.attach("vcpu0");
    let mut guest = Forger::new(&host.chip, 1);
    let id = guest.tell("disk_read(lba:u64,len:u64)");
    let emit = |seq: u32, id: u32, words: &[u64]| {
        guest.emit(seq, id, ticks(), words.len() as u16, words);
    };
    emit(1, id, &[11, 12]);
    // The event was off at this point, so it is not in the file.
    trace_event(&host, "off");
    emit(2, id, &[21, 22]);
    trace_event(&host, "on");
    // The event was on at this point. An unknown schema does not matter here.
    emit(3, 0x1234_5678, &[31]);
    trace_event(&host, "off");
    pass(&host);
    let recorded = host.finish();

    assert_eq!(recorded.summary.reference_points, 3);
    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let numbers: Vec<Vec<u64>> = read
        .args("guest_hypertrace")
        .iter()
        .map(|args| args.iter().map(Arg::number).collect())
        .collect();
    // The CPU of each event is 0, as the guest has claimed.
    let expected = [[0, 1, 11, 12, 0, 0, 0, 0, 0, 0], [0, 1, 31, 0, 0, 0, 0, 0, 0, 0]];
    assert_eq!(numbers, expected);
}

/// Switches `guest_hypertrace`, as the monitor's command does.
fn trace_event(host: &Host, state: &str) {
    host.session.execute(&format!("trace-event guest_hypertrace {state}")).unwrap();
}

#[test]
fn events_of_2016_are_guest_hypertrace_with_their_arguments() {
    let (_alone, host, dir) = host("guest_hypertrace");
    host.session.attach("vcpu0");
    let geometry = *host.chip.geometry();
    let client = 1u64;
    let slot = client * geometry.legacy_slot_stride();
    for argument in 1..u64::from(geometry.legacy_args) {
        let offset = slot + 8 * (argument - 1);
        host.chip.write(Region::Data, offset, &(100 + argument).to_le_bytes());
    }
    host.chip.write(Region::Control, 8 * client, &100u64.to_le_bytes());
    pass(&host);
    host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let args: Vec<u64> = read.args("guest_hypertrace")[0].iter().map(Arg::number).collect();
    let own = (0..8).map(|n| if n < u64::from(geometry.legacy_args) { 100 + n } else { 0 });
    assert_eq!(args, [0, client].into_iter().chain(own).collect::<Vec<_>>());
}

#[test]
fn a_flush_does_not_take_points_before_their_schema() {
    let (_alone, host, dir) = host("guest_hypertrace");
    host.session.attach("vcpu0");
    let mut guest = Forger::new(&host.chip, 0);
    let id = guest.tell("first_use(n:u64)");
    guest.emit(1, id, ticks(), 1, &[5]);
    host.session.execute("trace-file flush").unwrap();
    pass(&host);
    let recorded = host.finish();

    assert!(recorded.summary.faults.is_empty(), "{:?}", recorded.summary.faults);
    let events = recorded.events();
    assert!(events.iter().any(|event| &*event.name == "first_use"), "{events:?}");
    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    assert_eq!(read.args("guest_hypertrace")[0][2], Arg::Unsigned(5));
}

#[test]
fn events_of_threads_without_a_ring_are_recorded_as_missing() {
    let (_alone, host, dir) = host("test_pair");
    host.session.install();
    let (hold, threads) = (&Barrier::new(18), 0..18);
    thread::scope(|scope| {
        for source in threads.clone() {
            scope.spawn(move || {
                (0..10).for_each(|n| trace::test_pair(source, n));
                hold.wait();
            });
        }
    });
    pass(&host);
    let recorded = host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let found: u64 = threads.map(|source| read.account(10, pair(source))).sum();
    assert_eq!((found, read.dropped(), recorded.summary.lost), (160, 20, 20));
}

#[test]
fn the_session_and_the_file_hold_the_same_events() {
    let (_alone, host, dir) = host("test_*");
    let drain = host.drain();
    thread::scope(|scope| {
        for source in 0..2u32 {
            let session = &host.session;
            scope.spawn(move || {
                session.attach("test");
                for n in 0..2_000 {
                    trace::test_pair(source.into(), n);
                    trace::test_text(source, &"0123456789"[..n as usize % 10]);
                    thread::sleep(Duration::from_micros(n % 10));
                }
            });
        }
    });
    drain.finish();
    let recorded = host.finish();

    let Some(read) = simpletrace::read(&dir.path().join("trace")) else { return };
    let mut session: Vec<_> = recorded.events();
    session.retain(|event| event.name.starts_with("test_"));
    let mut file: Vec<&Event> = read.events().collect();
    assert_eq!((session.len(), file.len()), (8_000, 8_000));
    // The events are sorted by thread, and within a thread stay in order.
    file.sort_by_key(|event| event.args[0].number());
    session.sort_by_key(|event| unsigned(&event.fields[0].1));
    for (one, other) in session.iter().zip(file) {
        assert_eq!(*one.name, other.name);
        match (&one.fields[1].1, &other.args[1]) {
            (Value::Str(text), arg) => assert_eq!(text[..], arg.bytes()),
            (number, arg) => assert_eq!(unsigned(number), arg.number()),
        }
        let apart = one.ts_ns - other.ns as i64;
        assert!(apart.abs() < 1_000_000, "{apart} ns apart");
    }
}

fn unsigned(value: &Value) -> u64 {
    let Value::Unsigned(number) = value else { panic!("{value:?}") };
    *number
}

#[test]
fn the_reader_reports_faults_with_their_place() {
    let header = [u64::MAX, 0xf2b1_77cb_0aa4_29b4, 4].map(u64::to_ne_bytes).concat();
    let mapping = |id: u64, name: &str| {
        let head = [0, id].map(u64::to_ne_bytes).concat();
        [&head, &(name.len() as u32).to_ne_bytes()[..], name.as_bytes()].concat()
    };
    let event = |id: u64, args: &[u64]| {
        let head = [1, id, 1_700_000_000_000_000_000].map(u64::to_ne_bytes).concat();
        let length = 24 + 8 * args.len() as u32;
        let args: Vec<u8> = args.iter().flat_map(|arg| arg.to_ne_bytes()).collect();
        [&head[..], &length.to_ne_bytes(), &7u32.to_ne_bytes(), &args].concat()
    };
    let other = mapping(3, "test_other");
    let cases: [(&str, &[&[u8]]); 9] = [
        ("offset 0: the file ends in its header", &[&header[..23]]),
        ("offset 0: no header", &[&header[..16], &3u64.to_ne_bytes()]),
        ("offset 24: no record of type 0x2", &[&header, &2u64.to_ne_bytes()]),
        ("offset 24: 'nobody' is not declared", &[&header, &mapping(3, "nobody")]),
        ("offset 24: an event of id 3, which has no name", &[&header, &event(3, &[1])]),
        ("offset 54: 0 bytes of arguments end before", &[&header, &other, &event(3, &[])]),
        ("offset 54: 8 bytes behind the last", &[&header, &other, &event(3, &[1, 2])]),
        ("offset 54: the file ends in an event", &[&header, &other, &event(3, &[1])[..31]]),
        ("offset 24: nothing was dropped", &[&header, &event(u64::MAX - 1, &[0])]),
    ];
    for (why, bytes) in cases {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes.concat()).unwrap();
        let Some(read) = simpletrace::try_read(file.path()) else { return };
        let said = read.expect_err(why);
        assert!(said.contains(why), "{said} instead of {why}");
    }
}
