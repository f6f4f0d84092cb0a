//! Tests of the costs of clients that add new texts and clocks as fast as they can. The costs are bytes in
//! the files, bytes per second, and the delay of other clients.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::event::Words;
use hypertrace_abi::event_type;
use hypertrace_abi::record::{ClockKind, Flags};
use hypertrace_abi::ring::NewRecord;
use hypertrace_abi::schema::id_of;
use hypertrace_test_support::steps::Steps;
use hypertrace_test_support::{babeltrace2, wait_until};
use hypertrace_trace::limits::{ACCOUNT_BYTES_PER_SECOND, CLIENT_BYTES, GUESTS_BYTES};
use hypertrace_trace::session_json::Domain;
use std::time::{Duration, Instant};

#[test]
fn a_guest_that_fills_the_tables_gets_untyped_events() {
    let (_dir, session) = common::session(|_| ());
    session.attach("vmm");
    let mut hostiles: Vec<Guest> = (1..12).map(Guest::new).collect();
    for hostile in &mut hostiles {
        for n in 0..1200u64 {
            let client = hostile.client;
            let text = format!("c{client}_{n}(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:u64,b:str)");
            hostile.log(&text);
            hostile.emit_words(&text, &[1, 0]);
            if n % 100 == 99 {
                // The log has no room for all texts at once, so the client waits until the session has read
                // the texts.
                hostile.pass(&session);
            }
        }
        hostile.pass(&session);
    }
    // After the hostile clients, two others emit events: a new client, which has no schema texts yet, and the
    // VMM.
    let mut honest = Guest::new(0);
    honest.emit(event_type!("honest", i = 0u64));
    session.emit(event_type!("vmm_event", i = 0u64));
    honest.pass(&session);

    let summary = session.summary();
    let of = |client: u32| {
        summary.streams.iter().find(|s| s.client == client && s.domain == Domain::Guest)
    };
    assert!(of(0).unwrap().faults.is_empty(), "{summary:?}");
    // The last hostile clients can use only their reserves, because the pool is used up.
    for hostile in &hostiles {
        assert!(of(hostile.client).unwrap().faults["schema_table"] > 0);
    }
    assert!(of(11).unwrap().faults["unknown_id"] > 1000);
    assert_eq!(summary.ring_events, 11 * 1200 + 1);
    let ctf = session.dir().join("ctf");
    let bytes = std::fs::metadata(ctf.join("metadata")).unwrap().len() as usize;
    // The limit is the sum of 2 MiB for the pool, 16 KiB for the reserve of each client, and 64 KiB for the
    // rest of the file.
    assert!(bytes < (2 << 20) + 11 * (16 << 10) + (64 << 10), "{bytes}");
    common::check_honest(session, 1, 0);
    let Some(read) = babeltrace2::read(&ctf) else { return };
    assert_eq!(read.events.iter().filter(|line| line.contains(" vmm_event: ")).count(), 1);
}

/// Records `records` records. Each pass drains `in_a_pass` of them. The records are the most expensive
/// records of 16 bytes: they have the id of an unknown event and an impossible time. Returns the size of the
/// stream's files in bytes.
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
    // The files also contain the first packet of a file and the record of the lease.
    let more = 3 * 128;
    // One record per packet.
    assert!(bytes_of(RECORDS, 1) <= RECORDS * 16 * 16 + more);
    // In a full packet, the session adds 24 bytes to each record for the wrong time, and 16 bytes for the
    // unknown event.
    let packets = RECORDS / 100 * 2 * 128;
    assert!(bytes_of(RECORDS, 100) <= RECORDS * (16 + 24 + 16) + packets + more);
}

/// Returns the number of bytes that this thread has written to files.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.unwrap().parse().unwrap()
}

/// As fast as they can, clients add new texts, and new holders with separate clocks. A session could be made
/// to declare each event class for each clock.
#[test]
fn texts_times_clocks_cost_a_bounded_number_of_bytes() {
    let (_dir, session) = common::session(|_| ());
    let mut honest = Guest::new(0);
    // Each client may bring 1,024 texts.
    let mut hostiles: [Guest; 8] = std::array::from_fn(|i| Guest::new(1 + i as u32));
    let (began, before) = (Instant::now(), written());
    let mut emitted = 0;
    let mut packets = 0;
    for n in 0..3000u64 {
        let hostile = &mut hostiles[n as usize % 8];
        if n % 10 == 0 {
            // The times are so far apart that no holder's clock fits any other holder.
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
        // A pass takes several packets of the client, as a device's drain loop does.
        for _ in 0..4 {
            hostile.drain(&session);
        }
        packets += 6;
    }
    let size = |name: &str| std::fs::metadata(session.dir().join(name)).unwrap().len();
    let descriptions = size("ctf/metadata") + size("classes.jsonl");
    assert!(
        descriptions < (GUESTS_BYTES + 8 * CLIENT_BYTES + (512 << 10)) as u64,
        "{descriptions}"
    );
    // Each text is written once. The maps of new clocks and the counts are written again, once a second or
    // less often.
    let again = (ACCOUNT_BYTES_PER_SECOND + descriptions) * (began.elapsed().as_secs() + 1);
    let (most, wrote) = (descriptions + again + packets * 4096, written() - before);
    assert!(wrote < most, "{wrote} bytes, at most {most}");
    common::check_honest(session, emitted, 0);
}

/// Adds 4,000 new names, one in each pass. Checks how many bytes the session writes: only a little more than
/// the final size of the descriptions.
#[test]
fn a_new_name_is_appended_to_the_descriptions() {
    const NAMES: u64 = 4_000;
    let (_dir, session) = common::session(|_| ());
    // Each client may bring 1,024 texts.
    let mut guests: [Guest; 4] = std::array::from_fn(|i| Guest::new(i as u32));
    guests.iter_mut().for_each(|guest| guest.pass(&session));
    let size = || {
        let len = |name: &str| std::fs::metadata(session.dir().join(name)).unwrap().len();
        len("ctf/metadata") + len("classes.jsonl")
    };
    // The number of written bytes includes the packets, and the files that are replaced each second.
    let (began, before) = (Instant::now(), written());
    let (mut last, mut appended) = (size(), 0);
    for n in 0..NAMES {
        let guest = &mut guests[n as usize % 4];
        let text = format!("name_{n}(lba:u64)");
        guest.log(&text);
        guest.emit_words(&text, &[n]);
        guest.pass(&session);
        let now = size();
        appended += now - last;
        last = now;
    }

    let wrote = written() - before;
    let seconds = began.elapsed().as_secs() + 1;
    // For each name, the session writes a packet with its header, and the header of the next packet. The maps
    // are written again after one second, after two further seconds, after four further seconds and so on.
    let packets = NAMES * (256 + 128);
    let again = u64::from(seconds.ilog2()) * last + seconds * (64 << 10);
    println!("{appended} bytes appended, {wrote} written in {seconds} s, {last} in the files");
    assert!(wrote < last * 11 / 10 + packets + again, "{wrote} bytes for {last} of descriptions");
    let (json, summary) = (session.dir().join("classes.jsonl"), session.finish().unwrap());
    assert_eq!(summary.ring_events, NAMES);
    assert!(summary.faults.is_empty(), "{summary:?}");
    let lines = std::fs::read_to_string(json).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("name_")).count() as u64, NAMES);
}

#[test]
fn new_names_and_a_new_clock_wait_for_no_other_client() {
    let (_dir, session) = common::session(|_| ());
    let mut hostiles: Vec<Guest> = (1..20).map(Guest::new).collect();
    for (n, hostile) in (0..2000).zip((0..19).cycle()) {
        let text = format!("hostile_{n}({}:u64)", "a".repeat(60));
        hostiles[hostile].log(&text);
        hostiles[hostile].emit_words(&text, &[n]);
        if n % 50 == 0 {
            hostiles.iter_mut().for_each(|hostile| hostile.pass(&session));
        }
    }
    let mut honest = Guest::new(0);
    // No clock of the session fits this client's counter.
    honest.lease(0x2000, "honest", 1 << 60);
    for n in 0..20 {
        let text = format!("honest_{n}()");
        honest.log(&text);
        let (id, flags) = (id_of(&text), Flags::empty());
        honest.producer.emit(NewRecord::of_id(id, Words(&[])).with_flags(flags), || (1 << 60) + n);
    }

    // In the same pass, the hostile clients add new names before the honest client does.
    for hostile in &mut hostiles {
        let text = format!("more_{}()", hostile.logged);
        hostile.log(&text);
        hostile.emit_words(&text, &[]);
    }
    session.begin_pass();
    hostiles.iter_mut().for_each(|hostile| _ = hostile.drain(&session));
    while honest.drain(&session).more {}
    session.end_pass();

    let streams = session.summary().streams;
    let honest = streams.iter().find(|s| (s.domain, s.client) == (Domain::Guest, 0)).unwrap();
    assert_eq!((honest.events, honest.faults.len()), (20, 0), "{honest:?}");
    session.finish().unwrap();
}

#[test]
fn large_files_are_not_written_every_second_without_events() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    session.set_device_counters(
        (0..80_000).map(|n| (format!("a_counter_of_a_device_{n}"), n)).collect(),
    );
    guest.emit(event_type!("e", n = 1u64));
    let size = || std::fs::metadata(session.dir().join("session.json")).unwrap().len();
    wait_until("a large file", || {
        guest.pass(&session);
        size() >= 2 << 20
    });
    let size = size();
    let (began, before) = (Instant::now(), written());
    while began.elapsed() < Duration::from_millis(4500) {
        guest.pass(&session);
    }
    let seconds = began.elapsed().as_secs() + 1;
    let (most, wrote) = (size + (seconds << 20), written() - before);
    assert!(wrote < most, "{wrote} bytes, at most {most}");
}
