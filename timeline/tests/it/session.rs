// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of complete sessions, of sessions that a kill left, and of directories that are no session.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept::{self, Event, Value};
use hypertrace_test_support::made;
use hypertrace_timeline::{
    ClockMaps, Domain, EntryRef, Error, EventKind, Follow, Recording, Session, SessionStat,
};
use made::*;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn open(path: &Path) -> (Session, ClockMaps) {
    let session = Session::open(path).unwrap();
    let maps = ClockMaps::of(&session).unwrap();
    (session, maps)
}

fn events(path: &Path) -> Vec<Event> {
    let recording = Recording::of([open(path)], []);
    kept::events(&recording).unwrap()
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|e| &*e.name).collect()
}

/// Makes a guest that reads its clock twice around each of two reference points.
fn small() -> Made {
    let baseline = Packet::guest(0);
    let guest = Packet::guest(0)
        .lease(10_000, 7, "worker")
        .event(20_000, DISK_READ, &[5, 512])
        .event_str(52_000, OPENED, &[], b"abc");
    let host = Packet::host(3).lease(1_000, 9, "vcpu0").event(40_000, VCPU_EXIT, &[6]).point(
        41_000,
        0,
        1,
        GUEST_BASE + 30_000,
        77,
    );
    Made::new()
        .stream(
            "guest-000-0000",
            &[baseline, guest.clone(), Packet::guest(0).after(&guest).filler(4096)],
        )
        .stream("host-003-0000", &[Packet::host(3), host])
}

#[test]
fn events_come_in_order_with_source_fields_and_bound() {
    let made = small();

    let found = events(made.path());

    assert_eq!(names(&found), ["lease", "lease", "disk_read", "vcpu_exit", "checkpoint", "opened"]);
    let read = &found[2];
    assert_eq!(&*read.source, "guest/0 worker");
    assert_eq!(read.client, Some(0));
    assert_eq!(&*read.fields[1].0, "len");
    assert_eq!(read.fields[1].1, Value::Unsigned(512));
    assert!(read.bound_ns.is_some_and(|b| b > 0 && b < 40_000), "{:?}", read.bound_ns);
    let exit = &found[3];
    assert_eq!((&*exit.source, exit.client), ("vmm/vcpu0", None));
    assert_eq!(exit.ts_ns, START_NS + 40_000);
    assert_eq!(exit.bound_ns, Some(0));
    let point = &found[4];
    assert_eq!((&*point.source, point.kind), ("guest/0 worker", EventKind::ReferencePoint));
    assert_eq!(point.ts_ns, START_NS + 41_000);
    assert_eq!(point.fields.len(), 1);
    let reference = point.reference.unwrap();
    assert_eq!((reference.seq, reference.guest_time), (1, GUEST_BASE + 30_000));
    assert_eq!(found[5].fields[0].1, Value::Str(b"abc".as_slice().into()));
}

#[test]
fn every_type_has_its_value() {
    let s = u64::from_le_bytes([3, 0, 0, 0, 0xff, b'\n', b'x', 0]);
    let payload = [200, (-3i64) as u64, 1.5f64.to_bits(), 1, 0xfee0, s, 2, 8, 9];
    let made =
        Made::new().stream("h", &[Packet::host(0), Packet::host(0).event(5, ALL_TYPES, &payload)]);

    let found = events(made.path());

    let values: Vec<Value> = found[0].fields.iter().map(|(_, v)| v.clone()).collect();
    assert_eq!(
        values,
        [
            Value::Unsigned(200),
            Value::Signed(-3),
            Value::Float(1.5),
            Value::Bool(true),
            Value::Hex(0xfee0),
            Value::Str(b"\xff\nx".as_slice().into()),
            Value::Words([8, 9].into()),
        ]
    );
}

#[test]
fn without_reference_points_the_clock_of_the_description_holds() {
    let made = Made::new()
        .stream("g", &[Packet::guest(4), Packet::guest(4).event(123, DISK_READ, &[1, 2])]);
    let found = events(made.path());
    assert_eq!(found[0].ts_ns, START_NS + 123);
    assert_eq!(found[0].bound_ns, None);
    assert_eq!(&*found[0].source, "guest/4");
}

#[test]
fn an_event_of_the_host_has_its_time_also_after_a_year() {
    const YEAR: u64 = 365 * 24 * 3600 * GHZ;
    let late = Packet::host(0).event(YEAR, VCPU_EXIT, &[6]);
    let made = Made::new().stream("host-000-0000", &[Packet::host(0), late]);
    assert_eq!(events(made.path())[0].ts_ns, START_NS + YEAR as i64);
}

#[test]
fn a_new_holder_has_its_own_name_and_a_lost_lease_has_none() {
    let first = Packet::guest(0).lease(1, 7, "one").event(2, DISK_READ, &[0, 0]);
    let lost = Packet::guest(0).after(&first).with64(80, 8).event(3, DISK_READ, &[0, 0]);
    let third = Packet::guest(0).after(&lost).lease(4, 9, "three").event(5, DISK_READ, &[0, 0]);
    let made = Made::new().stream("g", &[Packet::guest(0), first, lost, third]);

    let found = events(made.path());

    let sources: Vec<&str> = found.iter().map(|e| &*e.source).collect();
    assert_eq!(
        sources,
        ["guest/0 one", "guest/0 one", "guest/0", "guest/0 three", "guest/0 three"]
    );
}

#[test]
fn a_long_name_in_the_description_is_cut() {
    let name = "\u{e4}".repeat(1_000_000);
    let streams = format!(r#"[{{"domain":"guest","client":4,"clock":1,"name":"x{name}"}}]"#);
    let made = Made::with_json(&made::json(&made::clocks(), made::EVENTS, &streams))
        .stream("g", &[Packet::guest(4), Packet::guest(4).event(1, DISK_READ, &[0, 0])]);

    let found = events(made.path());

    assert_eq!(*found[0].source, format!("guest/4 x{}", "\u{e4}".repeat(31)));
}

#[test]
fn segments_are_ordered_by_their_contents() {
    let first = Packet::guest(0).event(10, DISK_READ, &[1, 0]);
    let base = Packet::guest(0).after(&first);
    let second = base.clone().event(20, DISK_READ, &[2, 0]);
    let made = Made::new().stream("z", &[Packet::guest(0), first]).stream("a", &[base, second]);

    let (session, _) = open(made.path());
    let found = events(made.path());

    assert_eq!(session.streams().len(), 1);
    assert_eq!(found[0].fields[0].1, Value::Unsigned(1));
    assert_eq!(found[1].fields[0].1, Value::Unsigned(2));
}

#[test]
fn a_copy_of_a_segment_is_refused() {
    let made = small();
    std::fs::copy(made.file("guest-000-0000"), made.file("guest-000-0000.bak")).unwrap();
    let error = Session::open(made.path()).unwrap_err();
    assert!(error.to_string().contains("ring begin"), "{error}");
}

#[test]
fn a_ring_that_a_guest_made_jump_is_read_in_order() {
    let first = Packet::guest(0).event(10, DISK_READ, &[1, 0]).with64(64, 1 << 40);
    let first = first.with64(72, (1 << 40) + 4);
    // The guest sets the head and the sequence number back to the ring's beginning, which is a fault.
    let back = Packet::guest(0).after(&first).with64(104, 1).with64(64, 0).with64(72, 0);
    let back = back.with64(112, 0).event(20, DISK_READ, &[2, 0]);
    let base = Packet::guest(0).after(&back);
    let last = base.clone().event(30, DISK_READ, &[3, 0]);
    let made = Made::new().stream("b", &[Packet::guest(0), first, back]).stream("a", &[base, last]);

    let found = events(made.path());

    let order: Vec<_> = found.iter().map(|e| e.fields[0].1.clone()).collect();
    assert_eq!(order, [Value::Unsigned(1), Value::Unsigned(2), Value::Unsigned(3)]);
}

#[test]
fn a_session_killed_while_it_was_created_is_empty() {
    let made = Made::new();
    std::fs::rename(made.path().join("ctf"), made.path().join(".ctf")).unwrap();
    assert_eq!(events(made.path()).len(), 0);
    std::fs::remove_dir_all(made.path().join(".ctf")).unwrap();
    let error = Session::open(made.path()).unwrap_err();
    assert!(error.is_bad_input() && error.to_string().contains("streams are missing"), "{error}");
}

#[test]
fn an_unfinished_tail_is_no_damage() {
    let guest = Packet::guest(0).event(10, DISK_READ, &[1, 2]);
    let filler = Packet::guest(0).after(&guest).filler(1 << 20);
    let whole = [Packet::guest(0).bytes(), guest.bytes(), filler.bytes()].concat();
    let made = Made::new();
    let path = made.file("guest-000-0000");
    let mut uncommitted = whole.clone();
    // At the file's end is the body of a packet that was never committed. The body can be any bytes.
    uncommitted.extend((0..5000u32).map(|i| i as u8));
    for bytes in [&whole[..whole.len() - 128], &whole, &uncommitted, &{
        let mut sparse = whole.clone();
        sparse.resize(256 + 128 + (1 << 20), 0);
        sparse
    }] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(events(made.path()).len(), 1);
    }
}

#[test]
fn files_that_are_being_created_are_ignored() {
    let made = small();
    std::fs::write(made.file(".guest-001-0000"), b"").unwrap();
    std::fs::write(made.path().join("kernel.dat"), b"x").unwrap();
    assert_eq!(events(made.path()).len(), 6);
}

#[test]
fn data_committed_after_opening_is_left_out() {
    let made = small();
    let recording = Recording::of([open(made.path())], []);
    let path = made.file("host-003-0000");
    let more = Packet::host(3).event(50_000, VCPU_EXIT, &[1]).with64(64, 1000).with64(72, 1001);
    let bytes = [std::fs::read(&path).unwrap(), more.bytes()].concat();
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(kept::events(&recording).unwrap().len(), 6);
    assert_eq!(events(made.path()).len(), 7);
}

#[test]
fn records_larger_than_the_window_and_packets_of_many_windows_are_read() {
    let payload: Vec<u64> = [0, 20_000].into_iter().chain(0..20_000).collect();
    let mut packet = Packet::host(0).event(1, 5, &payload);
    for i in 0..30_000 {
        packet = packet.event(2 + i, VCPU_EXIT, &[i]);
    }
    let made = Made::new().stream("h", &[Packet::host(0), packet]);

    let found = events(made.path());

    assert_eq!(found.len(), 30_001);
    assert_eq!(found[0].kind, EventKind::Untyped);
    assert_eq!(found[30_000].fields[0].1, Value::Unsigned(29_999));
}

#[test]
fn sources_of_two_sessions_have_distinct_names() {
    let (a, b) = (small(), small());
    let recording = Recording::of([open(a.path()), open(b.path())], []);
    let found: Vec<Event> = kept::events(&recording).unwrap();
    assert_eq!(found.len(), 12);
    assert!(found.is_sorted_by_key(|e| e.ts_ns));
    let name = a.path().file_name().unwrap().to_str().unwrap();
    assert!(found.iter().any(|e| *e.source == *format!("{name}:guest/0 worker")));
}

#[test]
fn clients_of_two_clocks_in_one_class_get_a_map_each() {
    // Client 1's readings are a second ahead of client 0's.
    let second = GHZ;
    let mut made = Made::new();
    for (client, ahead) in [(0u32, 0), (1, second)] {
        let guest = Packet::guest(client).event(ahead + 10_000, DISK_READ, &[0, 0]).event(
            ahead + 50_000,
            DISK_READ,
            &[1, 0],
        );
        made = made.stream(&format!("g{client}"), &[Packet::guest(client), guest]);
    }
    let host = Packet::host(0).point(40_000, 0, 0, GUEST_BASE + 30_000, 0).point(
        41_000,
        1,
        0,
        GUEST_BASE + second + 31_000,
        0,
    );
    let made = made.stream("h", &[Packet::host(0), host]);

    let found = events(made.path());

    assert_eq!(
        names(&found),
        ["disk_read", "disk_read", "checkpoint", "checkpoint", "disk_read", "disk_read"]
    );
    assert_eq!(open(made.path()).1.iter().count(), 2);
}

#[test]
fn stat_counts_what_the_packets_hold() {
    let streams = r#"[{"domain":"guest","client":0,"clock":1,"name":"worker","events":99,
        "filtered":1,"lost_full":5,"lost_busy":1,"faults":{"bad_length":2}}]"#;
    let made = Made::with_json(&json(&clocks(), EVENTS, streams));
    let baseline = Packet::guest(0).with64(56, 10);
    let guest = Packet::guest(0)
        .after(&baseline)
        .lease(10, 7, "worker")
        .event(20, DISK_READ, &[1, 2])
        .event(30, DISK_READ, &[3, 4])
        .event(40, 4, &[u64::MAX])
        .with64(56, 16)
        .with64(96, 4)
        .with64(104, 2);
    let host = Packet::host(0)
        .event(1, VCPU_EXIT, &[0])
        .point(41_000, 0, 1, GUEST_BASE + 5, 0)
        .event(42_000, 2, &[0, 2, 8, 9]);
    let made = made.stream("g", &[baseline, guest]).stream("h", &[Packet::host(0), host]);

    let stat = SessionStat::of(&Session::open(made.path()).unwrap()).unwrap();

    let [vmm, client] = &stat.streams[..] else { panic!("{:?}", stat.streams) };
    assert_eq!(vmm.stream, Some((Domain::Host, 0)));
    assert_eq!((vmm.records, vmm.events, vmm.reference_points), (3, 1, 0));
    assert_eq!(client.stream, Some((Domain::Guest, 0)));
    assert_eq!((client.records, client.events, client.reference_points), (4, 3, 1));
    assert_eq!((client.lost, client.causes.full), (6, 5));
    assert_eq!((client.filtered, client.faults, client.faults_by_kind["bad_length"]), (4, 2, 2));
    assert_eq!((stat.total.records, stat.total.packets), (7, 2));
}

#[test]
fn losses_of_all_files_are_added_to_those_of_streams_without_files() {
    let streams = r#"[{"domain":"guest","client":0},
        {"domain":"guest","client":5,"lost_full":3,"faults":{"schema_text":2}}]"#;
    let made = Made::with_json(&json(&clocks(), EVENTS, streams));
    let one = Packet::guest(0).event(1, DISK_READ, &[0, 0]).with64(56, 4).with64(104, 1);
    let base = Packet::guest(0).after(&one).with64(56, 0);
    let two = base.clone().event(2, DISK_READ, &[0, 0]).with64(56, 5).with64(104, 2);
    let made = made.stream("a", &[Packet::guest(0), one]).stream("b", &[base, two]);

    let stat = SessionStat::of(&Session::open(made.path()).unwrap()).unwrap();

    let rows: Vec<_> = stat.streams.iter().map(|s| (s.stream, s.lost, s.faults)).collect();
    assert_eq!(rows, [(Some((Domain::Guest, 0)), 9, 2), (Some((Domain::Guest, 5)), 3, 2)]);
}

#[test]
fn a_path_that_is_no_session_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let made = small();
    std::fs::create_dir(dir.path().join("ctf")).unwrap();
    std::fs::write(dir.path().join("ctf/metadata"), "").unwrap();
    let empty = tempfile::tempdir().unwrap();
    for (path, says) in [
        (dir.path().join("gone"), "no such directory"),
        (file.clone(), "not a directory"),
        (file.join("below"), "not a directory"),
        (made.path().join("ctf"), "the directory above it"),
        (dir.path().to_owned(), "a CTF trace without session.json"),
        (empty.path().to_owned(), "no session.json in it"),
    ] {
        let error = Session::open(&path).unwrap_err();
        assert!(error.is_bad_input());
        let text = format!(
            "{error} {}",
            std::error::Error::source(&error).map_or(String::new(), |s| s.to_string())
        );
        assert!(text.to_lowercase().contains(&says.to_lowercase()), "{}: {text}", path.display());
    }
}

#[test]
fn a_description_that_breaks_a_rule_is_refused() {
    let good = json(&clocks(), EVENTS, "[]");
    for (from, to, says) in [
        ("hypertrace-session", "other", "expected format"),
        ("\"version\":2", "\"version\":1", "expected version 2, found 1"),
        (UUID_TEXT, "a5a5", "8-4-4-4-12"),
        (UUID_TEXT, "a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a5zz", "8-4-4-4-12"),
        ("\"frequency\":1000000000", "\"frequency\":0", "frequency"),
        ("\"domain\":\"host\"", "\"domain\":\"moon\"", "moon"),
        ("\"domain\":\"host\"", "\"domain\":\"guest\"", "a clock of the host"),
        ("\"id\":1,", "\"id\":0,", "stands twice"),
        ("\"id\":17", "\"id\":16", "occurs twice"),
        ("\"id\":17", "\"id\":3", "reserved"),
        ("\"id\":17", "\"id\":4000000000", "too large"),
        ("opened(name:str)", "opened(name:string)", "opened"),
        ("\"finished\":true", "\"finished\":1", "line"),
        ("{", "", "not the description"),
    ] {
        let made = Made::with_json(&good.replacen(from, to, 1));
        let error = Session::open(made.path()).unwrap_err();
        assert!(matches!(error, Error::Description { .. }), "{error}");
        assert!(error.to_string().contains(says), "{from} -> {to}: {error}");
        let is_of_events = matches!(says, "occurs twice" | "reserved" | "too large" | "opened");
        let file = if is_of_events { "classes.jsonl" } else { "session.json" };
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn a_last_line_of_the_classes_that_is_cut_is_ignored_and_another_is_damage() {
    let made = Made::new();
    let path = made.path().join("classes.jsonl");
    let before = fs::read_to_string(&path).unwrap();
    let known = before.lines().count();
    let more = "{\"event\":{\"id\":21,\"schema\":\"more(n:u64)\",\"reference_point\":false}}\n";
    for cut in 0..=more.len() {
        fs::write(&path, format!("{before}{}", &more[..cut])).unwrap();
        let session = Session::open(made.path()).unwrap();
        assert_eq!(session.json().events.len(), known + usize::from(cut == more.len()));
    }

    fs::write(&path, format!("{before}{}\n{more}", &more[..20])).unwrap();
    let error = Session::open(made.path()).unwrap_err().to_string();
    let place = format!("classes.jsonl: damaged at byte {}", before.len());
    assert!(error.contains(&place), "{error}");
    fs::remove_file(&path).unwrap();
    let error = Session::open(made.path()).unwrap_err();
    assert!(error.is_bad_input() && error.to_string().contains("classes.jsonl"), "{error}");
}

#[test]
fn a_follower_learns_classes_and_clocks_as_they_are_appended() {
    let made = Made::new();
    let mut follow = Follow::open(made.path()).unwrap();
    assert!(!follow.round(&mut |_| {}).unwrap().has_news);
    let path = made.path().join("classes.jsonl");
    let before = fs::read_to_string(&path).unwrap();
    let event = "{\"event\":{\"id\":21,\"schema\":\"more(n:u64)\",\"reference_point\":false}}\n";
    let clock = clock(2, "guest", 0, GHZ, GUEST_BASE, START_NS).replace('\n', " ");
    fs::write(&path, format!("{before}{event}{{\"clock\":{clock}}}\n{{\"ev")).unwrap();
    let packet = Packet::new(1, 5, 2).event(20, 21, &[7]);
    let made = made.stream("guest-005-0000", &[Packet::new(1, 5, 2), packet]);

    let mut names = Vec::new();
    let round = follow.round(&mut |entry| {
        if let EntryRef::Event(event) = entry {
            names.push(event.name.to_string());
        }
    });

    assert!(round.unwrap().has_news);
    assert_eq!(names, ["more"]);
    drop(made);
}

#[test]
fn a_follower_reads_a_description_again_only_if_it_has_changed() {
    let made = Made::new();
    let path = made.path().join("session.json");
    let text = fs::read(&path).unwrap();
    let earlier = SystemTime::now() - Duration::from_secs(60);
    let write = |text: &[u8], changed| {
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(text, 0).unwrap();
        file.set_modified(changed).unwrap();
    };
    write(&text, earlier);
    let mut follow = Follow::open(made.path()).unwrap();

    // The file has the same length and the same time as before, so only a read would show the difference.
    write(&vec![b'x'; text.len()], earlier);
    let unread = follow.round(&mut |_| {});
    write(&vec![b'x'; text.len()], earlier + Duration::from_secs(1));
    let read = follow.round(&mut |_| {});

    assert!(unread.unwrap().is_finished);
    assert!(read.unwrap_err().to_string().contains("session.json"));
}
