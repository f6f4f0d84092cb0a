//! Tests with a hostile producer and an honest producer. The hostile producer writes forged words, records,
//! texts and leases to any place at any time.

use crate::common;
use common::guest::{Guest, geometry};
use hypertrace_abi::clock::ticks;
use hypertrace_abi::config::RingMode;
use hypertrace_abi::event::Words;
use hypertrace_abi::event_type;
use hypertrace_abi::layout::{Geometry, guest_page};
use hypertrace_abi::record::{Flags, Header, id};
use hypertrace_abi::ring::NewRecord;
use hypertrace_abi::schema::id_of;
use hypertrace_abi::sink::{EventSink, ReferencePoint};
use hypertrace_test_support::babeltrace2;
use hypertrace_test_support::steps::Steps;
use std::sync::atomic::{AtomicBool, Ordering};

/// Random numbers from xorshift64, so that a test can be repeated with the same seed.
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

    /// Returns a number that is likely to be wrong in an interesting way.
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

    /// Writes a record that is almost correct: some random words of the record may be wrong.
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

/// Runs one hostile session, and checks what the reader sees afterwards.
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
            // This loop limits the number of packets of one client in a pass, as a device does.
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
    common::check_honest(session, emitted, seed);
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
fn an_event_that_is_filtered_after_its_time_was_mended_ends_no_packet_early() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    guest.emit(event_type!("unwanted", i = 0u64));
    guest.pass(&session);
    session.set_events(&"unwanted".parse().unwrap(), false).unwrap();
    let now = ticks();
    // The last bytes of this text are padding, and the packet ends before the padding.
    guest.emit_at(now, event_type!("text", s = "abc"));
    guest.emit_at(now - 1, event_type!("unwanted", i = 1u64));
    guest.pass(&session);
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!((summary.filtered, summary.time_faults), (1, 1));
    let Some(lines) = babeltrace2::read_clean(&ctf) else { return };
    assert_eq!(lines.len() as u64, summary.records);
    assert!(lines.last().unwrap().contains(" time_fault: "), "{lines:#?}");
}

#[test]
fn a_holders_name_is_cut() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    // Each letter has three bytes. The maximum size ends in the middle of a letter, so the session must cut
    // the name before this letter.
    let name = "\u{20ac}".repeat(1000);
    guest.producer.emit(NewRecord::of_id(id::LEASE, Words(&forged_lease(name.as_bytes()))), ticks);
    guest.pass(&session);
    let summary = session.finish().unwrap();
    let told = &summary.streams[0].name;
    assert_eq!(*told, "\u{20ac}".repeat(64 / 3));
}

/// Returns the payload of a lease record whose name is too long. A real producer cuts the name.
fn forged_lease(name: &[u8]) -> Vec<u64> {
    let mut words = vec![0x1000, 1, 2, 0, name.len() as u64];
    let mut bytes = (name.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    words.truncate(4);
    words.extend(bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())));
    words
}

#[test]
fn a_collision_is_nobodys_event() {
    let (a, b) = common::guest::collision();
    let (_dir, session) = common::session(|_| ());
    let mut honest = Guest::new(0);
    let mut hostile = Guest::new(1);
    let emit = |guest: &mut Guest| {
        let flags = Flags::empty();
        guest.producer.emit(NewRecord::of_id(id_of(&a), Words(&[1])).with_flags(flags), ticks);
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
    let Some(lines) = babeltrace2::read_clean(&ctf) else { return };
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
    guest.producer.emit(NewRecord::of_id(id_of(text), Words(&[1])).with_flags(flags), ticks);
    guest.pass(&session);
    guest.log(text);
    guest.producer.emit(NewRecord::of_id(id_of(text), Words(&[1])).with_flags(flags), ticks);
    guest.pass(&session);
    let ctf = session.dir().join("ctf");
    let summary = session.finish().unwrap();
    assert_eq!(summary.faults.iter().collect::<Vec<_>>(), [(&"unknown_id".to_owned(), &1)]);
    let Some(lines) = babeltrace2::read_clean(&ctf) else { return };
    assert!(lines[1].contains(" untyped: ") && lines[2].contains(" late: "), "{lines:#?}");
}

#[test]
fn a_schema_log_that_was_left_in_disorder_has_room_for_the_next_holders_texts() {
    let (_dir, session) = common::session(|_| ());
    let mut guest = Guest::new(0);
    for left in [1 << 40, (1 << 40) + guest.memory.schema.len() as u64] {
        guest.poke(guest_page::SCHEMA_LEN, left);
        guest.pass(&session);
    }

    guest.lease(2, "next", ticks());
    guest.emit(event_type!("after", n = 1u64));
    guest.pass(&session);

    let summary = session.finish().unwrap();
    assert_eq!(summary.faults.iter().collect::<Vec<_>>(), [(&"schema_log".to_owned(), &2)]);
}
