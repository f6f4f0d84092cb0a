//! Sessions from their creation to their end, as babeltrace2 reads them.

use crate::common;
use common::guest::Guest;
use common::session;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::{Hex, Words};
use hypertrace_abi::event_type;
use hypertrace_abi::layout::guest_page;
use hypertrace_abi::record::{Flags, id};
use hypertrace_abi::ring::{ConsumerState, Emit, NewRecord};
use hypertrace_abi::schema::{id_of, name_hash};
use hypertrace_abi::sink::{EventSink, KnownClient, NameSet, ReferencePoint, Status};
use hypertrace_test_support::babeltrace2;
use hypertrace_test_support::steps::Steps;
use hypertrace_trace::Session;
use hypertrace_trace::session_json::{ClockJson, Domain, SessionJson};

fn json(session: &Session) -> SessionJson {
    let text = std::fs::read_to_string(session.dir().join("session.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Limits of a session, as in docs/threat-model.md.
const MAX_RESTARTS: u32 = 64;
const MAX_GENERATIONS: u32 = 64;
const MAX_CLOCKS: usize = 64;
const MAX_SESSION_CLOCKS: usize = 1_024;

/// Finishes the session, and compares the summary with what the reader counts.
fn finish(session: Session) -> (hypertrace_trace::Summary, Vec<String>) {
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    let Some(lines) = babeltrace2::read_clean(&ctf) else { return (summary, Vec::new()) };
    assert_eq!(summary.records, lines.len() as u64, "{lines:#?}");
    (summary, lines)
}

fn point<'a>(id: u32, words: &'a [u64]) -> ReferencePoint<'a> {
    let host_time = ticks();
    ReferencePoint {
        client: 0,
        seq: 1,
        id,
        name_hash: 0,
        cpu: 3,
        guest_time: host_time - 1,
        host_time,
        words,
    }
}

#[test]
fn a_session_without_events_is_read() {
    let (_dir, session) = session(|_| ());
    let ctf = session.dir().join("ctf");
    assert_eq!(babeltrace2::read_clean(&ctf).unwrap_or_default().len(), 0);
    let (summary, lines) = finish(session);
    assert_eq!((summary.records, lines.len()), (0, 0));
}

#[test]
fn every_field_type_arrives() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!(
        "all",
        a = 1u8,
        b = 2u16,
        c = 3u32,
        d = 4u64,
        e = -1i8,
        f = -2i16,
        g = -3i32,
        h = -4i64,
        i = 0.5f64,
        j = true,
        k = Hex(0xff),
        l = "häl\"lo\n",
        m = &[7u64, 8][..]
    ));
    guest.pass(&session);

    let (summary, lines) = finish(session);

    assert_eq!((summary.ring_events, summary.leases), (1, 1));
    let Some(line) = lines.last() else { return };
    for part in [
        "all:",
        "a = 1,",
        "b = 2,",
        "c = 3,",
        "d = 4,",
        "e = -1,",
        "f = -2,",
        "g = -3,",
        "h = -4,",
        "i = 0.5",
        "j = 1",
        "k = 0xFF",
        "häl",
        "m = [ [0] = 7, [1] = 8 ]",
    ] {
        assert!(line.contains(part), "{part} not in {line}");
    }
}

#[test]
fn host_and_guest_are_in_one_trace_in_order() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.pass(&session);
    let text = "disk_read(lba:u64,name:str)";
    guest.emit(event_type!("disk_read", lba = 1u64, name = "a"));
    session.emit(event_type!("vcpu_exit", reason = 6u32));
    let payload = [2, 1 | (u64::from(b'b') << 32)];
    assert_eq!(session.reference_point(&point(id_of(text), &payload)), Status::Recorded);
    session.emit(event_type!("vcpu_enter"));
    guest.emit(event_type!("disk_read", lba = 3u64, name = "c"));
    guest.pass(&session);

    let (summary, lines) = finish(session);

    assert_eq!(summary.reference_points, 1);
    assert_eq!((summary.ring_events, summary.host_events), (2, 2));
    assert_eq!(summary.faults.len(), 0, "{summary:?}");
    if lines.is_empty() {
        return;
    }
    let names: Vec<_> = lines
        .iter()
        .map(|l| l.split(' ').find(|w| w.ends_with(':')).unwrap())
        .filter(|name| *name != "lease:")
        .collect();
    let expected = ["disk_read:", "vcpu_exit:", "disk_read:", "vcpu_enter:", "disk_read:"];
    assert_eq!(names, expected, "{lines:#?}");
    assert!(
        lines.iter().any(|l| l.contains("client = 0, cpu = 3, seq = 1,") && l.contains("lba = 2"))
    );
}

#[test]
fn a_reference_point_may_come_with_its_schema_in_the_same_pass() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", x = 1u64));
    assert_eq!(session.reference_point(&point(id_of("e(x:u64)"), &[2])), Status::Recorded);
    session.begin_pass();
    // The session records this point after the pass has noted the ring's head, so only the next pass drains
    // this point.
    session.reference_point(&point(id_of("e(x:u64)"), &[3]));
    guest.drain(&session);
    session.end_pass();
    assert_eq!(session.summary().reference_points, 1);
    let (summary, _) = finish(session);
    assert_eq!(summary.reference_points, 2);
    assert!(summary.faults.is_empty());
}

#[test]
fn points_that_fit_no_schema_are_untyped_and_their_clients_fault() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", s = "x"));
    guest.pass(&session);
    for (id, words) in [
        (77, &[1, 2][..]),
        (id_of("e(s:str)"), &[u64::MAX][..]),
        (id::LEASE, &[]),
        (id::HYPERTRACE, &[0, 2, 8, 9]),
        (id::HYPERTRACE, &[0, 3, 8, 9]),
    ] {
        assert_eq!(session.reference_point(&point(id, words)), Status::Recorded);
    }
    let far = ReferencePoint { client: 5000, ..point(78, &[1]) };
    session.reference_point(&far);
    guest.pass(&session);
    let json = {
        let (summary, lines) = finish(session.clone());
        assert_eq!(summary.reference_points, 6);
        assert_eq!(summary.faults["unknown_id"], 2, "{summary:?}");
        assert_eq!(summary.faults["payload"], 2);
        let untyped = lines.iter().filter(|l| l.contains("untyped:")).count();
        assert!(lines.is_empty() || untyped == 5, "{lines:#?}");
        json(&session)
    };
    let client = json.streams.iter().find(|s| s.domain == Domain::Guest).unwrap();
    assert_eq!(client.reference_points, 5);
    assert_eq!(client.faults["payload"], 2);
    assert!(json.finished);
}

#[test]
fn a_rings_losses_are_reported_once_and_exactly() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    let mut lost = 0u64;
    for _ in 0..3 {
        for i in 0..20_000u64 {
            lost += u64::from(guest.emit(event_type!("e", i)) == Emit::Full);
        }
        guest.pass(&session);
    }
    assert!(lost > 0);
    guest.producer.release();
    guest.pass(&session);
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!(summary.lost, lost);
    assert_eq!(summary.ring_events + lost, 60_000);
    let Some(read) = babeltrace2::read(&ctf) else { return };
    assert_eq!(read.complete(), summary.records);
    let told: u64 = read
        .stderr
        .lines()
        .filter_map(|l| {
            l.strip_prefix("WARNING: Tracer discarded ")?.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    assert_eq!(told, lost, "{}", read.stderr);
    assert!(
        read.stderr.lines().all(|l| l.is_empty() || l.starts_with("WARNING: Tracer discarded"))
    );
}

#[test]
fn a_full_file_is_followed_by_another() {
    let (_dir, session) = session(|c| c.file_bytes = 200_000);
    let mut guest = Guest::new(0);
    let mut written = 0;
    for i in 0..40_000u64 {
        written += u64::from(guest.emit(event_type!("e", i)) == Emit::Recorded);
        if i % 4000 == 0 {
            guest.pass(&session);
        }
    }
    guest.pass(&session);
    let files = std::fs::read_dir(session.dir().join("ctf")).unwrap().count();
    assert!(files > 5);
    let (summary, lines) = finish(session);
    assert_eq!(written, 40_000);
    assert_eq!(summary.ring_events, written);
    if lines.is_empty() {
        return;
    }
    let numbers: Vec<u64> = lines
        .iter()
        .filter_map(|l| l.rsplit_once("i = ")?.1.trim_end_matches(" }").parse().ok())
        .collect();
    assert!(numbers.iter().copied().eq(0..40_000));
}

#[test]
fn unknown_ids_and_wrong_lengths_are_untyped() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", s = "abc", n = 1u8));
    let id = id_of("e(s:str,n:u8)");
    for (id, payload) in [
        (0xdead_beef, &[1, 2, 3][..]),
        (id, &[3]),
        (id, &[u64::MAX, 0]),
        (id, &[3, 1, 2]),
        (id::TIME_FAULT, &[1]),
        (id::UNTYPED, &[1, 0]),
        (9, &[]),
    ] {
        guest.producer.emit(NewRecord::of_id(id, Words(payload)), ticks);
    }
    guest.emit(event_type!("e", s = "def", n = 2u8));
    guest.pass(&session);
    let (summary, lines) = finish(session);
    assert_eq!(summary.ring_events, 9);
    assert_eq!(summary.faults["unknown_id"], 4);
    assert_eq!(summary.faults["payload"], 3);
    if !lines.is_empty() {
        assert_eq!(lines.iter().filter(|l| l.contains("untyped:")).count(), 7);
        assert!(lines.iter().any(|l| l.contains("guest_id = 0xDEADBEEF") && l.contains("[2] = 3")));
        assert!(lines.last().unwrap().contains("\"def\""));
    }
}

#[test]
fn impossible_times_are_clamped_and_kept() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    let now = ticks();
    for at in [now, now - 1000, u64::MAX, now + 5, 1, ticks()] {
        guest.emit_at(at, event_type!("e", at));
    }
    guest.pass(&session);
    let (summary, lines) = finish(session);
    assert_eq!(summary.ring_events, 6);
    // The times `now + 5` and `ticks()` also count as going backwards, because both are earlier than the
    // clamped time of the future event.
    assert_eq!(summary.faults["time_future"], 1, "{summary:?}");
    assert_eq!(summary.faults["time_backwards"], 4);
    assert_eq!(summary.time_faults, 5);
    if !lines.is_empty() {
        let at = lines.iter().position(|l| l.contains("raw = 18446744073709551615")).unwrap();
        assert!(lines[at + 1].contains("at = 18446744073709551615"));
    }
}

#[test]
fn a_client_whose_time_does_not_fit_gets_its_own_clock() {
    let (_dir, session) = session(|_| ());
    let mut a = Guest::new(0);
    let mut b = Guest::new(1);
    b.lease(7, "late", 5);
    a.emit(event_type!("e", x = 1u64));
    b.emit_at(10, event_type!("e", x = 2u64));
    a.pass(&session);
    b.pass(&session);
    let (summary, lines) = finish(session.clone());
    assert_eq!(summary.time_faults, 0, "{summary:?}");
    let json = json(&session);
    assert_eq!(json.clocks.len(), 3, "{json:#?}");
    assert!(lines.is_empty() || lines.len() == 5, "{lines:#?}");
}

/// Returns the error of the estimated map of the guests' clock, in nanoseconds, at the reading `raw`. The
/// guests' clock is really the host's counter, so the map of the host's clock gives the true time.
fn off(session: &Session, raw: u64) -> i128 {
    let json = json(session);
    let unix = |clock: &ClockJson| {
        let ticks = i128::from(raw) - i128::from(clock.base);
        i128::from(clock.offset_ns) + ticks * 1_000_000_000 / i128::from(clock.frequency)
    };
    unix(&json.clocks[1]) - unix(&json.clocks[0])
}

/// Makes reference points of clients. Each entry of `clients` has a client, and the number of ticks by which
/// the client claims that its counter is ahead.
fn points(session: &Session, clients: &[(u32, u64)]) -> u64 {
    let mut seen = 0;
    for n in 1..=20 {
        for (client, ahead) in clients {
            let words = [1, n];
            let point = point(id::HYPERTRACE, &words);
            seen = point.host_time;
            let guest_time = (seen - 1).wrapping_add(*ahead);
            session.reference_point(&ReferencePoint { client: *client, guest_time, ..point });
        }
        session.begin_pass();
        session.end_pass();
    }
    seen
}

#[test]
fn plain_events_of_one_client_do_not_move_the_times_of_one_that_has_points() {
    let (_dir, session) = session(|_| ());
    let began = ticks();
    let mut honest = Guest::new(0);
    honest.emit(event_type!("e", x = 1u64));
    honest.pass(&session);
    let seen = points(&session, &[(0, 0)]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut hostile = Guest::new(1);
    // This time is nearly the latest time that the session accepts without a fault.
    let now = ticks();
    hostile.emit_at(now + (now - began) * 9 / 10, event_type!("e", x = 2u64));
    hostile.pass(&session);
    let (summary, _) = finish(session.clone());

    assert_eq!(summary.time_faults, 0, "{summary:?}");
    let json = json(&session);
    assert_eq!((json.clocks.len(), json.streams[1].clock), (2, json.streams[2].clock));
    let off = off(&session, seen - 1);
    assert!(off.abs() < 1_000_000, "{off} ns");
}

#[test]
fn false_points_of_one_client_of_three_do_not_move_the_others_times() {
    for ahead in [1 << 20, 0u64.wrapping_sub(1 << 20)] {
        let (_dir, session) = session(|_| ());
        std::thread::sleep(std::time::Duration::from_millis(2));
        let seen = points(&session, &[(2, ahead), (0, 0), (1, 0)]);
        finish(session.clone());

        assert_eq!(json(&session).clocks.len(), 2);
        let off = off(&session, seen - 1);
        assert!(off.abs() < 100_000, "{ahead}: {off} ns");
    }
}

#[test]
fn a_holder_that_begins_before_the_last_one_gets_a_new_file() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    let before = ticks();
    guest.emit(event_type!("e", x = 1u64));
    guest.pass(&session);
    guest.lease(99, "early", before);
    guest.emit_at(before + 1, event_type!("e", x = 2u64));
    guest.pass(&session);
    assert!(session.dir().join("ctf/guest-000-0001").exists());
    let (summary, _) = finish(session);
    assert_eq!(summary.time_faults, 0);
    assert_eq!(summary.streams.iter().find(|s| s.domain == Domain::Guest).unwrap().name, "early");
}

#[test]
fn a_holder_without_a_tsc_gets_a_clock_of_its_kind() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", x = 1u64));
    guest.pass(&session);
    let kind = hypertrace_abi::record::ClockKind::MonotonicRaw;
    guest.lease_with(5, "slow", monotonic_raw(), kind);
    guest.emit_at(monotonic_raw(), event_type!("e", x = 2u64));
    guest.pass(&session);
    let (summary, lines) = finish(session.clone());
    assert_eq!(summary.time_faults, 0, "{summary:?}");
    let clocks = json(&session).clocks;
    assert_eq!(
        clocks.iter().map(|c| c.kind.as_str()).collect::<Vec<_>>(),
        ["tsc", "tsc", "monotonic_raw"]
    );
    assert_eq!(clocks[2].frequency, 1_000_000_000);
    // The reader sorts the events by time, so the last event proves that both maps are nearly right.
    assert!(lines.is_empty() || lines.last().unwrap().contains("x = 2"), "{lines:#?}");
}

#[test]
fn the_rate_of_a_guests_counter_is_the_hosts_only_if_the_guest_has_such_a_counter() {
    let cntvct = 2_u64 << 56;
    for (word, kind, frequency) in [
        // In the first case, the guest says that it has the host's counter. In the second case, the guest has
        // an older version. In the last two cases, the guest says another frequency than the host's: an
        // impossible frequency, and a possible frequency.
        (None, "host", None),
        (Some(0), "counter", None),
        (Some(cntvct | 999_999), "cntvct", None),
        (Some(cntvct | 62_500_000), "cntvct", Some(62_500_000)),
    ] {
        let (_dir, session) = session(|_| ());
        let mut guest = Guest::new(0);
        if let Some(word) = word {
            guest.poke(guest_page::COUNTER, word);
        }
        // This point comes before the record of the lease.
        session.reference_point(&point(id::HYPERTRACE, &[]));
        guest.pass(&session);
        guest.emit(event_type!("e", x = 1u64));
        guest.pass(&session);
        finish(session.clone());

        let [host, found] = &json(&session).clocks[..] else { panic!() };
        let kind = if kind == "host" { &host.kind } else { kind };
        assert_eq!((found.kind.as_str(), found.assumed), (kind, word.is_some()), "{word:x?}");
        assert_eq!(found.frequency, frequency.unwrap_or(host.frequency), "{word:x?}");
        let metadata = std::fs::read_to_string(session.dir().join("ctf/metadata")).unwrap();
        assert!(metadata.contains(&format!("freq = {};", found.frequency)), "{metadata}");
    }
}

#[test]
fn clients_that_tell_other_frequencies_have_clocks_of_their_own() {
    let (_dir, session) = session(|_| ());
    let mut guests = [0, 1, 2].map(Guest::new);
    for (guest, mhz) in guests.iter_mut().zip([100, 200, 100]) {
        guest.poke(guest_page::COUNTER, mhz * 1_000_000);
        guest.emit(event_type!("e", x = 1u64));
        guest.pass(&session);
    }
    finish(session.clone());

    let json = json(&session);
    let rates = json.clocks[1..].iter().map(|clock| clock.frequency);
    assert_eq!(Vec::from_iter(rates), [100_000_000, 200_000_000]);
    let clocks = json.streams.iter().filter(|stream| stream.domain == Domain::Guest);
    assert_eq!(Vec::from_iter(clocks.map(|stream| stream.clock)), [1, 2, 1]);
}

#[test]
fn clients_that_tell_other_reasons_share_a_clock_which_shows_the_first() {
    for (told, expected) in [([0, 5, 4], None), ([4, 9, 1], Some("agreeing")), ([255; 3], None)] {
        let (_dir, session) = session(|_| ());
        let mut guests = [0, 1, 2].map(Guest::new);
        for (guest, reason) in guests.iter_mut().zip(told) {
            guest.poke(guest_page::COUNTER, 1 << 56 | reason << 48);
            guest.emit(event_type!("e", x = 1u64));
            guest.pass(&session);
        }
        finish(session.clone());

        let reasons = json(&session).clocks.into_iter().map(|clock| clock.reason);
        assert_eq!(Vec::from_iter(reasons), [None, expected.map(str::to_owned)], "{told:?}");
    }
}

#[test]
fn a_holder_that_begins_after_a_restore_keeps_its_clock() {
    let (_dir, session) = session(|_| ());
    let clock = hypertrace_abi::record::ClockKind::MonotonicRaw;
    let known = KnownClient { client: 0, token: 0x1000, clock, name: "guest", texts: &[] };
    let mut guest = Guest::new(0);
    guest.pass(&session);
    guest.consumer = ConsumerState::continue_at(&guest.consumer.place());
    session.begin_generation(1, &[known]);
    guest.lease_with(5, "slow", monotonic_raw(), clock);
    guest.emit_at(monotonic_raw(), event_type!("e", x = 2u64));
    guest.pass(&session);
    finish(session.clone());

    let kinds = json(&session).clocks.into_iter().map(|clock| clock.kind);
    assert_eq!(Vec::from_iter(kinds), ["tsc", "tsc", "monotonic_raw"]);
}

#[test]
fn a_flight_recorder_reports_overwritten_events() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::with(0, &common::guest::geometry(), RingMode::Overwrite);
    for i in 0..50_000u64 {
        assert_eq!(guest.emit(event_type!("e", i)), Emit::Recorded);
    }
    guest.pass(&session);
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert!(summary.ring_events > 5_000);
    // The lease record is one of the overwritten records.
    assert_eq!(summary.ring_events + summary.lost, 50_001, "{summary:?}");
    let Some(read) = babeltrace2::read(&ctf) else { return };
    assert!(read.complete() > 0 && read.stderr.contains("Tracer discarded"));
    assert!(read.events.last().unwrap().contains("i = 49999"));
}

#[test]
fn committed_records_are_counted_apart() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", x = 1u64));
    let id = id_of("e(x:u64)");
    guest
        .producer
        .emit(NewRecord::of_id(id, Words(&[2])).with_flags(Flags::REFERENCE_POINT), ticks);
    guest.pass(&session);
    let (summary, _) = finish(session);
    assert_eq!((summary.ring_events, summary.reference_points), (1, 1));
}

#[test]
fn threads_get_rings_and_give_them_back() {
    let (_dir, session) = session(|c| c.host_rings = 2);
    for round in 0..5u64 {
        let both = std::sync::Arc::new(std::sync::Barrier::new(2));
        let threads: Vec<_> = (0..2)
            .map(|n| {
                let (session, both) = (session.clone(), both.clone());
                std::thread::spawn(move || {
                    assert!(session.attach(&format!("worker{n}")));
                    both.wait();
                    for i in 0..100u64 {
                        session.emit(event_type!("work", round, i));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
    let (summary, _) = finish(session);
    assert_eq!(summary.host_events, 1000);
    assert_eq!(summary.leases, 10);
    assert_eq!(summary.lost, 0);
    assert_eq!(summary.streams.len(), 2);
    assert!(summary.streams[0].name.starts_with("worker"));
}

#[test]
fn a_thread_without_a_ring_loses_and_says_so() {
    let (_dir, session) = session(|c| c.host_rings = 0);
    assert!(!session.attach("nobody"));
    assert_eq!(session.emit(event_type!("work")), Emit::Unleased);
    assert_eq!(session.reference_point(&point(1, &[])), Status::Failed);
    let (summary, _) = finish(session.clone());
    assert_eq!((summary.lost, json(&session).lost_unattached), (2, 2));
}

#[test]
fn a_finished_session_takes_nothing() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    guest.pass(&session);
    let (before, _) = finish(session.clone());
    guest.emit(event_type!("e", x = 1u64));
    guest.pass(&session);
    assert_eq!(session.reference_point(&point(1, &[])), Status::Failed);
    assert_eq!(session.summary().records, before.records);
}

#[test]
fn metadata_improves_and_epochs_have_clocks_of_their_own() {
    let (_dir, session) = session(|c| c.guest_frequency = Some(1_000_000_000));
    let mut guest = Guest::new(0);
    guest.emit(event_type!("e", x = 1u64));
    guest.pass(&session);
    session.begin_epoch(1);
    guest.emit(event_type!("e", x = 2u64));
    guest.pass(&session);
    let (summary, _) = finish(session.clone());
    assert_eq!(summary.ring_events, 2);
    let json = json(&session);
    assert_eq!(json.clocks.iter().map(|c| c.epoch).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!(json.clocks[1].frequency, 1_000_000_000);
}

#[test]
fn the_callers_span_is_in_the_session_and_the_metadata_and_guests_get_it() {
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let parent = Some(text.parse().unwrap());
    let (_dir, session) = session(|config| config.trace_parent = parent);
    let metadata = std::fs::read_to_string(session.dir().join("ctf/metadata")).unwrap();

    assert_eq!(session.session_info().trace_parent, parent);
    finish(session.clone());

    assert_eq!(json(&session).trace_parent.as_deref(), Some(text));
    assert!(metadata.contains(&format!("\ttraceparent = \"{text}\";\n")), "{metadata}");
}

/// Runs one boot of a guest. In each boot, the guest's counter begins anew.
fn boot(session: &Session, guest: &mut Guest, first: u64) {
    boot_at(1_000, session, guest, first);
}

fn boot_at(time: u64, session: &Session, guest: &mut Guest, first: u64) {
    guest.lease(0x2000 + first, "boot", time);
    guest.emit_at(time + 1_000, event_type!("booted", n = first));
    guest.pass(session);
}

fn files(session: &Session) -> usize {
    let all = std::fs::read_dir(session.dir().join("ctf")).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    all.map(name).filter(|name| name.to_string_lossy().starts_with("guest-")).count()
}

#[test]
fn each_epoch_may_begin_files_and_clocks_anew() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    let guests = 3 * u64::from(MAX_RESTARTS);
    for epoch in 1..=guests {
        session.begin_epoch(epoch as u32);
        boot(&session, &mut guest, epoch);
    }
    let (summary, _) = finish(session.clone());
    assert_eq!((summary.ring_events, summary.time_faults, summary.lost), (guests, 0, 0));
    let (clocks, files) = (json(&session).clocks.len() as u64, files(&session) as u64);
    // The two additional clocks are the host's clock, and the clock of the guest's first holder.
    assert_eq!((clocks, files), (guests + 2, guests + 1));
}

#[test]
fn clocks_of_all_epochs_are_bounded() {
    let (_dir, session) = session(|_| ());
    let mut guest = Guest::new(0);
    for epoch in 1..=1_100 {
        session.begin_epoch(epoch);
        boot(&session, &mut guest, epoch.into());
    }
    let (summary, _) = finish(session.clone());
    assert_eq!((summary.ring_events, summary.lost), (1_100, 0));
    assert_eq!(json(&session).clocks.len(), MAX_SESSION_CLOCKS);
}

#[test]
fn a_guest_that_is_reset_in_a_loop_begins_a_bounded_number_of_files() {
    let (_dir, session) = session(|_| ());
    let mut events = 0;
    let generations = 2 * MAX_GENERATIONS;
    for generation in 1..=generations {
        // The guest lets its clock begin anew many times, without the VMM.
        let again = if generation % 2 == 0 { 3 * u64::from(MAX_RESTARTS) / 2 } else { 1 };
        let mut guest = Guest::new(0);
        for n in 0..again {
            boot(&session, &mut guest, u64::from(generation) * 1_000 + n);
        }
        events += again;
        assert_eq!(session.begin_generation(generation, &[]), generation);
    }
    let found = files(&session) as u32;
    let most = MAX_GENERATIONS * (MAX_RESTARTS + 1) + MAX_GENERATIONS + 1;
    assert!(found <= most, "{found} files");
    let (summary, _) = finish(session.clone());
    assert_eq!((summary.ring_events, summary.lost), (events, 0));
    assert!(summary.time_faults > 0, "a guest that begins anew too often");
    assert!(json(&session).clocks.len() <= MAX_SESSION_CLOCKS);
}

#[test]
fn an_honest_guest_may_be_reset_as_often_as_there_are_clocks() {
    let (_dir, session) = session(|_| ());
    let generations = 3 * MAX_GENERATIONS;
    for generation in 1..=generations {
        let mut guest = Guest::new(0);
        guest.emit(event_type!("booted", n = generation));
        guest.pass(&session);
        session.begin_generation(generation, &[]);
    }
    let (summary, _) = finish(session.clone());
    assert_eq!(summary.ring_events, u64::from(generations));
    assert_eq!((summary.time_faults, summary.lost), (0, 0));
    assert!(summary.faults.is_empty(), "{:?}", summary.faults);
}

#[test]
fn a_guest_that_begins_anew_by_itself_spends_its_epochs_budget() {
    let (_dir, session) = session(|_| ());
    let mut guests = [Guest::new(0), Guest::new(1), Guest::new(2)];
    // A new epoch allows the same number of files and clocks again.
    for epoch in 1..=2 {
        session.begin_epoch(epoch);
        for n in 0..3 * u64::from(MAX_RESTARTS) {
            boot(&session, &mut guests[0], n);
            // Each boot of these two guests also needs a new clock. With one guest alone, the limit of its
            // files would be reached before the limit of the session's clocks.
            boot_at((2 * n + 1) << 40, &session, &mut guests[1], n);
            boot_at((2 * n + 2) << 40, &session, &mut guests[2], n);
        }
        let most = 3 * epoch * (MAX_RESTARTS + 1);
        assert!(files(&session) as u32 <= most, "{} files", files(&session));
    }
    let (summary, _) = finish(session.clone());
    assert!(summary.time_faults > 0);
    assert_eq!(summary.ring_events, 18 * u64::from(MAX_RESTARTS));
    // The maximum is one clock of the host plus the clocks of two epochs. In each epoch, all guests share a
    // number of clocks, and each guest has one first clock in addition.
    let (most, clocks) = (1 + 2 * (MAX_CLOCKS - 1 + 3), json(&session).clocks.len());
    assert!(clocks <= most, "{clocks} clocks");
}

#[test]
fn the_host_handles_points_that_have_triggers_and_no_others() {
    let (_dir, session) = session(|_| ());
    let handled = || session.begin_pass().points;
    let names = |names: &[&str]| {
        let mut set = NameSet::EMPTY;
        names.iter().for_each(|name| set.set(name_hash(name)));
        set
    };
    assert_eq!(handled(), NameSet::EMPTY);
    session.add_trigger("on begin:measured do events nothing_* on").unwrap();
    let second = session.add_trigger("on failed if arg1==7 do events nothing_* off").unwrap();
    assert_eq!(handled(), names(&["measured_begin", "failed"]));
    session.remove_trigger(second).unwrap();
    assert_eq!(handled(), names(&["measured_begin"]));
}

/// Returns CLOCK_MONOTONIC_RAW in nanoseconds.
#[allow(unsafe_code)]
fn monotonic_raw() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
