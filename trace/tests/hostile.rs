//! A producer that writes anything anywhere, anytime, beside an honest one.

mod common;

use common::guest::{Guest, geometry};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{Geometry, guest_page};
use hypertrace_abi::record::{ClockKind, Flags, Header, id};
use hypertrace_abi::ring::Consumer;
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_trace::limits::{
    ACCOUNT_BYTES_PER_SECOND, BYTES_PER_SECOND, CLIENT_BYTES, GUESTS_BYTES, MAX_NAME_BYTES,
};
use hypertrace_trace::session_json::Domain;
use hypertrace_trace::{Session, Summary};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// xorshift64: any seed replays.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A number that is likely to be wrong in an interesting way.
    fn odd(&mut self) -> u64 {
        let x = self.next();
        let now = ticks();
        self.pick(&[
            0,
            1,
            2,
            3,
            7,
            100,
            4096,
            u64::MAX,
            u64::MAX - 1,
            1 << 32,
            1 << 63,
            x,
            now,
            now + 1,
        ])
    }
}

const TEXTS: [&str; 8] = [
    "e(x:u64)",
    "s(s:str)",
    "a(a:[u64],s:str,b:u8)",
    "tick()",
    "event(struct:str,id:u64)",
    "e(x:u64",
    "e(x:u64,x:u64)",
    "lease(token:x64,pid:u32,tid:u32,clock:u32,name:str)",
];

struct Forger {
    area: Vec<(&'static hypertrace_abi::atomic::AtomicU64, usize)>,
    ring: &'static [hypertrace_abi::atomic::AtomicU64],
    log: &'static [hypertrace_abi::atomic::AtomicU64],
    block: u64,
    head: u64,
    written: u64,
    random: Random,
}

impl Forger {
    fn new(guest: &Guest, seed: u64) -> Forger {
        Forger {
            area: guest.area.iter().zip(0..).collect(),
            ring: guest.memory.ring,
            log: guest.memory.schema,
            block: guest.memory.block_words(),
            head: 0,
            written: 0,
            random: Random(seed | 1),
        }
    }

    fn ring(&mut self, value: u64) {
        self.ring[self.head as usize % self.ring.len()].store(value, Ordering::Relaxed);
        self.head = self.head.wrapping_add(1);
    }

    fn log(&mut self, value: u64) {
        self.log[self.written as usize % self.log.len()].store(value, Ordering::Relaxed);
        self.written = self.written.wrapping_add(1);
    }

    fn poke(&self, word: usize, value: u64) {
        self.area[word].0.store(value, Ordering::Release);
    }

    /// A record that is almost right.
    fn record(&mut self, clock: &mut u64) {
        if self.head.is_multiple_of(self.block) {
            let token = self.random.pick(&[1, 1, 1, 1, 2, 0]);
            let sequence = self.random.odd();
            self.ring(sequence);
            self.ring(token);
        }
        let text = self.random.pick(&TEXTS);
        let id = match self.random.below(8) {
            0 => self.random.below(20) as u32,
            1 => self.random.next() as u32,
            _ => id_of(text),
        };
        let words = self.random.pick(&[0u64, 1, 1, 2, 2, 3, 5, 9]);
        let told = if self.random.below(20) == 0 { self.random.odd() as u16 } else { words as u16 };
        *clock += self.random.below(1000);
        let timestamp = if self.random.below(20) == 0 { self.random.odd() } else { *clock };
        let flags = self.random.pick(&[0, 0, 0, 0, 1, 2, 3, 0xffff]);
        self.ring(timestamp);
        self.ring(Header::meta(id, told, flags));
        for _ in 0..words {
            let small = self.random.below(12);
            let word = if self.random.below(3) == 0 { self.random.odd() } else { small };
            self.ring(word);
        }
    }

    fn schema(&mut self) {
        let text = self.random.pick(&TEXTS);
        let n = self.random.next() as u32;
        let made = format!("m{n}(a:u64,_b:str)");
        let text = if self.random.below(2) == 0 { text } else { &made };
        let id = if self.random.below(5) == 0 { 99 } else { id_of(text) };
        let mut bytes = text.as_bytes().to_vec();
        if self.random.below(10) == 0 {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] = self.random.next() as u8;
        }
        let len = if self.random.below(20) == 0 { self.random.odd() } else { bytes.len() as u64 };
        self.log(u64::from(id) | len << 32);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        for word in bytes.chunks(8) {
            self.log(u64::from_le_bytes(word.try_into().unwrap()));
        }
    }

    fn act(&mut self, clock: &mut u64) {
        match self.random.below(400) {
            0 => {
                let (word, value) = (self.random.below(self.area.len() as u64), self.random.odd());
                self.poke(word as usize, value);
            }
            1 => {
                let at = self.random.pick(&[
                    guest_page::LOST_FULL,
                    guest_page::LOST_BUSY,
                    guest_page::LOST_UNATTACHED,
                ]);
                let value = self.random.odd();
                self.poke(at, value);
            }
            2 => {
                let value = self.random.odd();
                self.poke(guest_page::SCHEMA_LEN, value);
            }
            3 => {
                let value = self.random.odd();
                self.poke(guest_page::HEAD, value);
            }
            4 => self.head = self.head.wrapping_add(self.random.odd()),
            5..=25 => {
                self.schema();
                self.poke(guest_page::SCHEMA_LEN, self.written);
            }
            _ => {
                self.record(clock);
                self.poke(guest_page::HEAD, self.head);
            }
        }
    }
}

fn honest_events(lines: &[String]) -> Vec<u64> {
    lines
        .iter()
        .filter(|l| l.contains(" honest: "))
        .filter_map(|l| l.rsplit_once("i = ")?.1.trim_end_matches(" }").parse().ok())
        .collect()
}

/// One hostile session: what the reader then sees.
fn attack(seed: u64, mode: RingMode, rounds: u64, threads: bool) {
    let (_dir, session) = common::session(|c| c.file_bytes = 400_000);
    let mut honest = Guest::new(0);
    let mut hostile =
        Guest::with(1, &Geometry { ring_bytes: 1 << 16, block_bytes: 1 << 12, ..geometry() }, mode);
    let mut forger = Forger::new(&hostile, seed);
    let done = AtomicBool::new(false);
    let mut emitted = 0u64;
    std::thread::scope(|scope| {
        let mut clock = ticks();
        let mut own = Forger::new(&hostile, seed ^ 0x5555);
        if threads {
            let done = &done;
            scope.spawn(move || {
                let mut clock = clock;
                while !done.load(Ordering::Relaxed) {
                    own.act(&mut clock);
                }
            });
        }
        for _ in 0..rounds {
            for _ in 0..forger.random.below(200) {
                forger.act(&mut clock);
            }
            for _ in 0..20 {
                honest.emit(event_type!("honest", i = emitted));
                emitted += 1;
            }
            let words: Vec<u64> =
                (0..forger.random.below(9)).map(|_| forger.random.odd()).collect();
            let id = id_of(forger.random.pick(&TEXTS));
            let point = ReferencePoint {
                client: 1,
                seq: 0,
                id: if forger.random.below(4) == 0 { forger.random.next() as u32 } else { id },
                name_hash: 0,
                cpu: forger.random.odd() as u32,
                guest_time: forger.random.odd(),
                host_time: ticks(),
                words: &words,
            };
            session.reference_point(&point);
            session.begin_pass();
            // A device bounds what one client gets; so does this loop.
            for guest in [&mut honest, &mut hostile] {
                for _ in 0..4 {
                    if !guest.drain(&session).more {
                        break;
                    }
                }
            }
            session.end_pass();
        }
        done.store(true, Ordering::Relaxed);
    });
    check(session, emitted, seed);
}

fn check(session: Session, emitted: u64, seed: u64) {
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    println!(
        "seed {seed}: {} records, {} lost, {:?}",
        summary.records, summary.lost, summary.faults
    );
    let Some(read) = common::read(&ctf) else { return };
    assert!(read.ok, "seed {seed}: {}", read.stderr);
    for line in read.stderr.lines().filter(|l| !l.is_empty()) {
        assert!(line.starts_with("WARNING: Tracer discarded"), "seed {seed}: {line}");
    }
    assert_eq!(summary.records, read.lines.len() as u64, "seed {seed}");
    assert!(honest_events(&read.lines).into_iter().eq(0..emitted), "seed {seed}");
    let honest =
        summary.streams.iter().find(|s| s.domain == Domain::Guest && s.client == 0).unwrap();
    assert!(honest.faults.is_empty(), "seed {seed}: {honest:?}");
}

#[test]
fn hostile_clients_are_read_and_harm_nobody() {
    for seed in 1..40 {
        attack(seed * 0x9e37_79b9, RingMode::Discard, 40, false);
    }
}

#[test]
fn hostile_clients_in_overwrite_mode() {
    for seed in 1..20 {
        attack(seed * 0x9e37_79b9, RingMode::Overwrite, 40, false);
    }
}

#[test]
fn hostile_clients_that_write_while_they_are_drained() {
    for seed in 1..4 {
        attack(seed * 0x9e37_79b9, RingMode::Discard, 300, true);
        attack(seed * 0x9e37_79b9, RingMode::Overwrite, 300, true);
    }
}

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
    assert!(bytes < GUESTS_BYTES + 11 * CLIENT_BYTES + (64 << 10), "{bytes}");
    check(session, 1, 0);
    let Some(read) = common::read(&ctf) else { return };
    assert_eq!(read.lines.iter().filter(|line| line.contains(" vmm_event: ")).count(), 1);
}

/// Bytes that this thread has written to files.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.unwrap().parse().unwrap()
}

/// A client brings new texts, and lessees with clocks of their own, as fast as
/// it can: each event class could be declared for each clock.
#[test]
fn texts_times_clocks_cost_a_bounded_rate_of_bytes() {
    let (_dir, session) = common::session(|_| ());
    let (mut honest, mut hostile) = (Guest::new(0), Guest::new(1));
    let (began, before) = (Instant::now(), written());
    let mut emitted = 0;
    let mut packets = 0;
    for n in 0..3000u64 {
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
    assert!(bytes < GUESTS_BYTES + CLIENT_BYTES + (256 << 10), "{bytes}");
    session.last_pass();
    hostile.pass(&session);
    check(session, emitted, 0);
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
        honest.producer.emit_words((1 << 60) + n, id, flags, &[], &[]);
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
    guest.pass(&session);
    other.pass(&session);
    let size = std::fs::metadata(session.dir().join("session.json")).unwrap().len();
    assert!(size > GUESTS_BYTES as u64 * 9 / 10, "{size}");
    let (began, before) = (Instant::now(), written());
    while began.elapsed() < Duration::from_millis(4500) {
        guest.pass(&session);
    }
    let seconds = began.elapsed().as_secs() + 1;
    let (most, wrote) = (size + ACCOUNT_BYTES_PER_SECOND * seconds, written() - before);
    assert!(wrote < most, "{wrote} bytes, at most {most}");
}

#[test]
fn an_event_that_is_filtered_after_its_time_was_mended_ends_no_packet_early() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("unwanted", i = 0u64));
    guest.pass(&session);
    session.set_events(&"unwanted".parse().unwrap(), false).unwrap();
    let now = ticks();
    // Its last bytes are padding, and the packet ends before them.
    guest.emit_at(now, event_type!("text", s = "abc"));
    guest.emit_at(now - 1, event_type!("unwanted", i = 1u64));
    guest.pass(&session);
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!((summary.filtered, summary.time_faults), (1, 1));
    let Some(lines) = common::read_clean(&ctf) else { return };
    assert_eq!(lines.len() as u64, summary.records);
    assert!(lines.last().unwrap().contains(" time_fault: "), "{lines:#?}");
}

#[test]
fn a_lessees_name_is_cut() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    // Three bytes each: the cut is between two letters.
    let name = "\u{20ac}".repeat(1000);
    guest.producer.emit_words(
        ticks(),
        id::LEASE,
        Flags::empty(),
        &[],
        &forged_lease(name.as_bytes()),
    );
    guest.pass(&session);
    let summary = session.finish().unwrap();
    let told = &summary.streams[0].name;
    assert_eq!(*told, "\u{20ac}".repeat(MAX_NAME_BYTES / 3));
}

/// The payload of a lease record by a producer that has no limit for names.
fn forged_lease(name: &[u8]) -> Vec<u64> {
    let mut words = vec![0x1000, 1, 2, 0, name.len() as u64];
    let mut bytes = (name.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    words.truncate(4);
    words.extend(bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())));
    words
}

/// Two texts of one hash, by brute force: 32 bits are not many.
fn collision() -> (String, String) {
    let mut seen = std::collections::HashMap::new();
    (0..)
        .find_map(|n| {
            let text = format!("collide{n}(x:u64)");
            let other = seen.insert(id_of(&text), text.clone())?;
            Some((other, text))
        })
        .unwrap()
}

#[test]
fn a_collision_is_nobodys_event() {
    let (a, b) = collision();
    let (_dir, session) = common::session(|_| ());
    let mut honest = Guest::new(0);
    let mut hostile = Guest::new(1);
    let emit = |guest: &mut Guest| {
        let flags = Flags::empty();
        guest.producer.emit_words(ticks(), id_of(&a), flags, &[], &[1]);
        guest.pass(&session);
    };
    hostile.log(&a);
    emit(&mut hostile);
    hostile.log(&b);
    emit(&mut hostile);
    honest.log(&b);
    emit(&mut honest);

    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!(summary.faults["schema_hash"], 1);
    assert_eq!(summary.faults["unknown_id"], 1);
    let Some(lines) = common::read_clean(&ctf) else { return };
    let count = |what: &str| lines.iter().filter(|l| l.contains(what)).count();
    let name = |text: &str| format!(" {}: ", text.split('(').next().unwrap());
    assert_eq!((count(&name(&a)), count(" untyped: "), count(&name(&b))), (1, 1, 1));
}

#[test]
fn a_text_after_its_record_applies_to_later_records() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    let flags = Flags::empty();
    let text = "late(x:u64)";
    guest.producer.emit_words(ticks(), id_of(text), flags, &[], &[1]);
    guest.pass(&session);
    guest.log(text);
    guest.producer.emit_words(ticks(), id_of(text), flags, &[], &[1]);
    guest.pass(&session);
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!(summary.faults.iter().collect::<Vec<_>>(), [(&"unknown_id".to_owned(), &1)]);
    let Some(lines) = common::read_clean(&ctf) else { return };
    assert!(lines[1].contains(" untyped: ") && lines[2].contains(" late: "), "{lines:#?}");
}

/// A reference point of this client, by a text of its log.
fn point(session: &Session, client: u32, text: &str) {
    let now = ticks();
    session.reference_point(&ReferencePoint {
        client,
        seq: 0,
        id: id_of(text),
        name_hash: 0,
        cpu: 0,
        guest_time: 0,
        host_time: now,
        words: &[],
    });
}

/// A pass in which a client gets one step, or is only looked at.
fn short_pass(session: &Session, guest: &mut Guest, is_paused: bool) {
    session.begin_pass();
    let mut consumer = Consumer::new(guest.memory, &mut guest.consumer);
    if is_paused {
        consumer.pause();
    }
    session.drain(guest.client, &mut consumer);
    session.end_pass();
}

#[test]
fn a_point_waits_for_its_text_while_there_is_no_time_to_read_it() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    let texts: Vec<String> = (0..200).map(|n| format!("p{n}()")).collect();
    for text in &texts {
        guest.log(text);
    }
    point(&session, 1, &texts[199]);
    for _ in 0..3 {
        short_pass(&session, &mut guest, true);
        short_pass(&session, &mut guest, false);
        assert_eq!(session.summary().reference_points, 0);
    }
    guest.pass(&session);
    let summary = session.finish().unwrap();
    assert_eq!((summary.reference_points, summary.faults.len()), (1, 0), "{summary:?}");
}

#[test]
fn a_log_that_is_always_full_keeps_no_other_clients_points_waiting() {
    let (_dir, session) = common::session(|_| ());
    let mut honest = Guest::new(0);
    let mut hostile = Guest::new(1);
    honest.emit(event_type!("honest", i = 1u64));
    honest.pass(&session);
    // The text of the first event never arrives; the second is in the same ring.
    point(&session, 1, "unknown()");
    let now = ticks();
    session.reference_point(&ReferencePoint {
        client: 0,
        seq: 0,
        id: id_of("honest(i:u64)"),
        name_hash: 0,
        cpu: 0,
        guest_time: 0,
        host_time: now,
        words: &[7],
    });
    let mut passes = 0;
    while session.summary().reference_points < 2 {
        for _ in 0..100 {
            hostile.log("known()");
        }
        short_pass(&session, &mut hostile, passes % 2 == 0);
        passes += 1;
        assert!(passes <= 40, "the ring of both waits for the hostile one's log");
    }
    let summary = session.finish().unwrap();
    assert_eq!(summary.faults["unknown_id"], 1, "{summary:?}");
}

/// Clients fill their logs in turns, so that no pass has time to read them, and
/// the text of one point never arrives.
#[test]
fn logs_that_are_full_in_turns_keep_no_host_ring_waiting() {
    let (_dir, session) = common::session(|_| ());
    let mut hostiles = [Guest::new(1), Guest::new(2)];
    session.attach("vmm");
    let mut recorded = Vec::new();
    for pass in 0..200 {
        point(&session, 1, "unknown()");
        session.emit(event_type!("vmm_event", i = 1u64));
        session.begin_pass();
        for (hostile, offset) in hostiles.iter_mut().zip([0, 12]) {
            hostile.log("known()");
            let mut consumer = Consumer::new(hostile.memory, &mut hostile.consumer);
            if (pass + offset) % 24 != 0 {
                consumer.pause();
            }
            session.drain(hostile.client, &mut consumer);
        }
        session.end_pass();
        recorded.push(session.summary().host_events);
    }
    // At no time did the ring hold more than what came in a few dozen passes.
    for (pass, recorded) in (1..).zip(recorded) {
        assert!(recorded + 40 >= pass, "{recorded} of the VMM's {pass} events");
    }
}

#[test]
fn a_session_ends_though_a_point_waits_for_a_log_that_nobody_reads() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(1);
    guest.log("p()");
    point(&session, 1, "p()");
    short_pass(&session, &mut guest, true);
    assert_eq!(session.summary().reference_points, 0);
    assert_eq!(session.finish().unwrap().reference_points, 1);
}
