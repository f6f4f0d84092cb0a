//! Costs of clients that bring new texts and clocks as fast as they can: bytes of the
//! files, their rate, and the delay of others.

use crate::common;
use common::guest::{Guest, geometry};
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::Words;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::Geometry;
use hypertrace_abi::record::{ClockKind, Flags};
use hypertrace_abi::ring::NewRecord;
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::EventSink;
use hypertrace_test_support::{babeltrace2, wait_until};
use hypertrace_trace::Summary;
use hypertrace_trace::limits::{
    ACCOUNT_BYTES_PER_SECOND, BYTES_PER_SECOND, CLIENT_BYTES, GUESTS_BYTES,
};
use hypertrace_trace::session_json::Domain;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

#[test]
fn a_guest_that_fills_the_tables_gets_untyped_events() {
    let (_dir, session) = common::session(|_| ());
    // The rate is another test's.
    session.last_pass();
    session.attach("vmm");
    let mut hostiles: Vec<Guest> = (1..12).map(Guest::new).collect();
    for hostile in &mut hostiles {
        for n in 0..1200u64 {
            let client = hostile.client;
            let text = format!("c{client}_{n}(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:u64,b:str)");
            hostile.log(&text);
            hostile.emit_words(&text, &[1, 0]);
            if n % 100 == 99 {
                // It has to wait with its texts in between.
                hostile.pass(&session);
            }
        }
        hostile.pass(&session);
    }
    // Then a new client with no schema texts yet, and the VMM.
    let mut honest = Guest::new(0);
    honest.emit(event_type!("honest", i = 0u64));
    session.emit(event_type!("vmm_event", i = 0u64));
    honest.pass(&session);

    let summary = session.summary();
    let of = |client: u32| {
        summary.streams.iter().find(|s| s.client == client && s.domain == Domain::Guest)
    };
    assert!(of(0).unwrap().faults.is_empty(), "{summary:?}");
    // The last ones find nothing but their reserves.
    for hostile in &hostiles {
        assert!(of(hostile.client).unwrap().faults["schema_table"] > 0);
    }
    assert!(of(11).unwrap().faults["unknown_id"] > 1000);
    assert_eq!(summary.ring_events, 11 * 1200 + 1);
    let ctf = session.dir().join("ctf");
    let bytes = std::fs::metadata(ctf.join("metadata")).unwrap().len() as usize;
    // 2 MiB, 16 KiB of each client, and the rest of the file.
    assert!(bytes < (2 << 20) + 11 * (16 << 10) + (64 << 10), "{bytes}");
    common::check_honest(session, 1, 0);
    let Some(read) = babeltrace2::read(&ctf) else { return };
    assert_eq!(read.events.iter().filter(|line| line.contains(" vmm_event: ")).count(), 1);
}

/// Records so many of the most expensive records of 16 bytes, of an unknown event and with an impossible time, in
/// passes of so many. Returns the bytes of the stream's files.
fn bytes_of(records: u64, in_a_pass: u64) -> u64 {
    let (_dir, session) = common::session(|_| ());
    let mut hostile = Guest::new(0);
    for n in 1..=records {
        hostile.producer.emit(NewRecord::of_id(99, Words(&[])), || 1);
        if n % in_a_pass == 0 {
            hostile.pass(&session);
        }
    }
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!([summary.faults["unknown_id"], summary.faults["time_backwards"]], [records; 2]);
    let files = std::fs::read_dir(ctf).unwrap().flatten();
    let streams = files.filter(|entry| entry.file_name() != "metadata");
    streams.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn a_record_takes_at_most_sixteen_times_its_bytes() {
    const RECORDS: u64 = 1000;
    // A file's first packet, and the record of the lease.
    let more = 3 * 128;
    // A packet for each record.
    assert!(bytes_of(RECORDS, 1) <= RECORDS * 16 * 16 + more);
    // Full packets: 24 bytes for the time, 16 for the event.
    let packets = RECORDS / 100 * 2 * 128;
    assert!(bytes_of(RECORDS, 100) <= RECORDS * (16 + 24 + 16) + packets + more);
}

/// Bytes that this thread has written to files.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.unwrap().parse().unwrap()
}

/// Clients bring new texts, and holders with clocks of their own, as fast as
/// they can: each event class could be declared for each clock.
#[test]
fn texts_times_clocks_cost_a_bounded_rate_of_bytes() {
    let (_dir, session) = common::session(|_| ());
    let mut honest = Guest::new(0);
    // Each may bring 1,024 texts.
    let mut hostiles: [Guest; 8] = std::array::from_fn(|i| Guest::new(1 + i as u32));
    let (began, before) = (Instant::now(), written());
    let mut emitted = 0;
    let mut packets = 0;
    for n in 0..3000u64 {
        let hostile = &mut hostiles[n as usize % 8];
        if n % 10 == 0 {
            // Clocks that do not fit each other.
            let now = (n / 10 + 1) << 40;
            hostile.lease_with(n + 1, "hostile", now, ClockKind::Tsc);
        }
        for (i, field) in ('a'..='h').enumerate() {
            let text =
                format!("hostile_{n}_{field}(aaaaaaaaaaaaaaaaaaaa:u64,bbbbbbbbbbbbbbbb:u64)");
            hostile.log(&text);
            hostile.emit_words(&text, &[n, i as u64]);
        }
        honest.emit(event_type!("honest", i = emitted));
        emitted += 1;
        honest.pass(&session);
        // As a device's drain loop does, some packets of it in a pass.
        for _ in 0..4 {
            hostile.drain(&session);
        }
        packets += 6;
    }
    let rate = BYTES_PER_SECOND * (began.elapsed().as_secs() + 2);
    let (most, wrote) = (rate + packets * 4096, written() - before);
    assert!(wrote < most, "{wrote} bytes, at most {most}");
    let ctf = session.dir().join("ctf");
    let bytes = std::fs::metadata(ctf.join("metadata")).unwrap().len() as usize;
    assert!(bytes < GUESTS_BYTES + 8 * CLIENT_BYTES + (256 << 10), "{bytes}");
    session.last_pass();
    hostiles.iter_mut().for_each(|hostile| hostile.pass(&session));
    common::check_honest(session, emitted, 0);
}

#[test]
fn new_names_and_a_new_clock_wait_for_one_replacement_of_the_files() {
    let (_dir, session) = common::session(|_| ());
    let mut hostile = Guest::new(1);
    // Files that are large, so that they may be replaced a few times a second.
    for n in 0..1000 {
        let text = format!("hostile_{n}({}:u64)", "a".repeat(60));
        hostile.log(&text);
        hostile.emit_words(&text, &[n]);
        if n % 50 == 0 {
            hostile.pass(&session);
        }
    }
    hostile.pass(&session);
    let mut honest = Guest::new(0);
    // Uses up the rest of the rate, until a record of the hostile client waits.
    let mut hostiles: Vec<Guest> = (2..20).map(Guest::new).collect();
    let (mut n, mut waits, began) = (0, false, Instant::now());
    while !waits {
        if began.elapsed() > Duration::from_secs(60) {
            eprintln!("not run: this machine is too slow to use up the rate of replacements");
            return;
        }
        let hostile = &mut hostiles[n % 18];
        let text = format!("spend_{n}()");
        hostile.log(&text);
        hostile.emit_words(&text, &[]);
        session.begin_pass();
        let first = hostile.drain(&session);
        waits = first.words == 0 && hostile.drain(&session).words == 0;
        session.end_pass();
        n += 1;
    }
    // Its counter is none that a clock of the session fits.
    honest.lease(0x2000, "honest", 1 << 60);
    for n in 0..20 {
        let text = format!("honest_{n}()");
        honest.log(&text);
        let (id, flags) = (id_of(&text), Flags::empty());
        honest.producer.emit(NewRecord::of_id(id, Words(&[])).with_flags(flags), || (1 << 60) + n);
    }
    let own = |summary: Summary| {
        summary.streams.into_iter().find(|s| (s.domain, s.client) == (Domain::Guest, 0))
    };
    let metadata = || std::fs::metadata(session.dir().join("ctf/metadata")).unwrap();
    let version = || (metadata().ino(), metadata().mtime(), metadata().mtime_nsec());
    let (mut last, mut replaced) = (version(), 0);
    // The hostile client is always first and brings a new name: it takes whatever
    // the rate allows.
    while own(session.summary()).is_none_or(|stream| stream.events < 20) {
        let text = format!("more_{}()", hostile.logged);
        hostile.log(&text);
        hostile.emit_words(&text, &[]);
        session.begin_pass();
        hostile.drain(&session);
        honest.drain(&session);
        session.end_pass();
        replaced += usize::from(version() != last);
        last = version();
        assert!(replaced < 10, "{replaced} replacements, and the honest client still waits");
    }
    let honest = own(session.finish().unwrap()).unwrap();
    assert!(honest.faults.is_empty(), "{honest:?}");
}

#[test]
fn large_files_are_not_written_every_second_without_events() {
    let (_dir, session) = common::session(|_| ());
    let log = Geometry { schema_bytes: 1 << 20, ..geometry() };
    let mut guest = Guest::with(1, &log, RingMode::Discard);
    let mut other = Guest::with(2, &log, RingMode::Discard);
    for n in 0..1800 {
        // As long as a text can be, nearly.
        let fields: Vec<String> =
            (0..16).map(|field| format!("f{field}_{}:u64", "a".repeat(55))).collect();
        let guest = if n % 2 == 0 { &mut guest } else { &mut other };
        guest.log(&format!("hostile_{n}({})", fields.join(",")));
        if n % 200 > 197 {
            guest.pass(&session);
        }
    }
    let size = || std::fs::metadata(session.dir().join("session.json")).unwrap().len();
    // The file is replaced at a bounded rate.
    wait_until("a large file", || {
        guest.pass(&session);
        other.pass(&session);
        size() >= GUESTS_BYTES as u64 * 9 / 10
    });
    let size = size();
    let (began, before) = (Instant::now(), written());
    while began.elapsed() < Duration::from_millis(4500) {
        guest.pass(&session);
    }
    let seconds = began.elapsed().as_secs() + 1;
    let (most, wrote) = (size + ACCOUNT_BYTES_PER_SECOND * seconds, written() - before);
    assert!(wrote < most, "{wrote} bytes, at most {most}");
}
