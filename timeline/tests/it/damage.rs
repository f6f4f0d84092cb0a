// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of damage. Damage anywhere in a session must lead to an error that names the file and the byte, and
//! never to a panic.

use hypertrace_format::error::BadInput;
use hypertrace_test_support::kept;
use hypertrace_test_support::made;
use hypertrace_timeline::{ClockMaps, Error, Follow, Recording, Result, Session, SessionStat};
use made::*;
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// Reads a session with each of the readers. Returns the number of events.
fn read(path: &Path) -> Result<usize> {
    let session = Session::open(path)?;
    SessionStat::of(&session)?;
    let maps = ClockMaps::of(&session)?;
    let recording = Recording::of([(session, maps)], []);
    let mut n = 0;
    kept::each_event(&recording, |_| n += 1)?;
    Ok(n)
}

#[track_caller]
fn damage_of(path: &Path) -> (PathBuf, u64, String) {
    match read(path).unwrap_err() {
        Error::Damaged { path, offset, expected, .. } => (path, offset, expected),
        other => panic!("{other}"),
    }
}

fn guest_packet() -> Packet {
    Packet::guest(0)
        .lease(10_000, 7, "worker")
        .event(20_000, DISK_READ, &[5, 512])
        .event_str(90_000, OPENED, &[], b"abc")
        .with64(56, 3)
        .with64(96, 3)
        .with64(104, 3)
        .with64(112, 3)
}

fn host_packet() -> Packet {
    Packet::host(0).event(40_000, VCPU_EXIT, &[6]).point(41_000, 0, 1, GUEST_BASE + 30_000, 77)
}

/// Makes a baseline, events, more events, and a filler.
fn guest_file() -> Vec<u8> {
    let first = guest_packet();
    let second = Packet::guest(0).after(&first).event(95_000, DISK_READ, &[6, 512]);
    let filler = Packet::guest(0).after(&second).filler(4096 - 128);
    [Packet::guest(0).bytes(), first.bytes(), second.bytes(), filler.bytes()].concat()
}

fn session_of(guest: &[u8]) -> Made {
    let made = Made::new().stream("host-000-0000", &[Packet::host(0), host_packet()]);
    std::fs::write(made.file("guest-000-0000"), guest).unwrap();
    made
}

/// Offset of the first packet with events, after the baseline.
const FIRST: usize = 128;
const SECOND: usize = FIRST + 256;

#[test]
fn the_undamaged_session_is_whole() {
    assert_eq!(guest_packet().bytes().len(), SECOND - FIRST);
    assert_eq!(read(session_of(&guest_file()).path()).unwrap(), 6);
}

#[test]
fn a_wrong_value_in_any_field_is_found_at_that_field() {
    let put = |at: usize, bytes: &[u8]| (at, bytes.to_vec());
    let event = FIRST + 128;
    for (name, (at, bytes), reported) in [
        ("magic", put(FIRST, &[0; 4]), FIRST),
        ("uuid", put(FIRST + 4, &[1; 16]), FIRST + 4),
        ("uuid of the baseline", put(4, &[1; 16]), FIRST + 4),
        ("stream id", put(FIRST + 20, &[9]), FIRST + 20),
        ("begin after the first event", put(FIRST + 24, &[0xff; 2]), event),
        ("begin after the end", put(FIRST + 24, &[0xff; 8]), FIRST + 32),
        ("begin before the last end", put(SECOND + 24, &[0; 8]), SECOND + 24),
        ("end before the last event", put(FIRST + 32, &[0, 0x50, 1]), event + 96),
        ("content too small", put(FIRST + 40, &[0, 0, 0, 0]), FIRST + 40),
        ("content not in bytes", put(FIRST + 40, &[1]), FIRST + 40),
        ("content in a record", put(FIRST + 40, &[0, 5]), event),
        ("content short of a string", put(FIRST + 40, &[0xb0, 7]), FIRST + 40),
        ("content over the packet", put(FIRST + 40, &[0, 0, 0, 1]), FIRST + 40),
        ("packet not in units", put(FIRST + 48, &[8]), FIRST + 48),
        ("packet over the file", put(FIRST + 48, &[0, 0, 0, 1]), FIRST + 48),
        ("lost events that return", put(SECOND + 56, &[2]), SECOND + 56),
        ("ring begin back", put(SECOND + 64, &[0]), SECOND + 64),
        ("ring end before begin", put(SECOND + 72, &[0]), SECOND + 72),
        ("client", put(FIRST + 88, &[9]), FIRST + 88),
        ("epoch back", put(FIRST + 92, &[1]), SECOND + 92),
        ("filtered events that return", put(SECOND + 96, &[2]), SECOND + 96),
        ("faults that return", put(SECOND + 104, &[2]), SECOND + 104),
        ("sequence back", put(SECOND + 112, &[2]), SECOND + 112),
        ("reserved", put(FIRST + 120, &[1]), FIRST + 120),
        ("domain that is none", put(FIRST + 124, &[7]), FIRST + 124),
        ("domain of another", put(FIRST + 124, &[0]), FIRST + 124),
        ("timestamp back", put(event + 64, &[0; 8]), event + 64),
        ("timestamp ahead", put(event, &[0xff; 8]), event),
        ("unknown id", put(event + 64 + 8, &[0xee]), event + 64 + 8),
        ("words too few", put(event + 64 + 12, &[1]), event + 64 + 16),
        ("words too many", put(event + 64 + 12, &[0xff]), event + 64),
        ("string over its record", put(event + 16 + 32, &[0xff]), event + 16),
        ("string shorter than it was", put(event + 16 + 32, &[1]), event + 16),
    ] {
        let mut file = guest_file();
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        let made = session_of(&file);
        let (path, offset, expected) = damage_of(made.path());
        assert_eq!(offset, reported as u64, "{name}: expected {expected}");
        assert_eq!(path, made.file("guest-000-0000"), "{name}");
    }
}

#[test]
fn values_unknown_to_the_description_are_found() {
    // The first packet has a clock that does not exist. The second packet is the host's, but has a guest's
    // clock.
    for (domain, stream_id, field) in [(1, 5, 20), (0, 1, 20)] {
        let packet = Packet::new(domain, 0, stream_id).event(10, DISK_READ, &[1, 2]);
        let made = Made::new().stream("g", &[packet]);
        assert_eq!(damage_of(made.path()).1, field);
    }
    let made = Made::new().stream("notes.txt", &[]);
    std::fs::write(made.file("notes.txt"), "a file of somebody else's, and no packet").unwrap();
    assert_eq!(damage_of(made.path()).0, made.file("notes.txt"));
    std::fs::create_dir(made.file("index")).unwrap();
    std::fs::remove_file(made.file("notes.txt")).unwrap();
    assert_eq!(damage_of(made.path()).0, made.file("index"));
}

#[test]
fn a_file_cut_anywhere_is_an_unfinished_tail_or_damage() {
    let file = guest_file();
    let filler = SECOND + 256;
    let made = session_of(&file);
    for len in 0..file.len() {
        std::fs::write(made.file("guest-000-0000"), &file[..len]).unwrap();
        let whole = match len {
            FIRST => Some(2),
            SECOND => Some(5),
            // The file ends before the filler, or at any byte after the filler's header.
            len if len == filler || len >= filler + 128 => Some(6),
            _ => None,
        };
        match whole {
            Some(events) => assert_eq!(read(made.path()).unwrap(), events, "cut at {len}"),
            None => {
                let (path, offset, _) = damage_of(made.path());
                assert_eq!(path, made.file("guest-000-0000"));
                assert!(offset <= len as u64, "cut at {len}: {offset}");
            }
        }
    }
}

#[test]
fn no_flipped_bit_causes_a_panic() {
    let file = guest_file();
    let made = session_of(&file);
    for bit in 0..(SECOND + 256 + 128) * 8 {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(made.file("guest-000-0000"), &flipped).unwrap();
        if let Err(error) = read(made.path()) {
            assert!(error.is_bad_input());
            let text = error.to_string();
            assert!(text.contains("guest-000-0000") && text.contains("at byte"), "{bit}: {text}");
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_damage() {
    let made = session_of(&guest_file());
    let session = Session::open(made.path()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(made.file("guest-000-0000")).unwrap();
    file.set_len(FIRST as u64 + 128).unwrap();
    let error = SessionStat::of(&session).unwrap_err();
    assert!(error.to_string().contains("end of the file"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(session_of(&bytes).path());
    }

    #[test]
    fn a_header_of_random_words_never_panics(
        words in prop::collection::vec(
            prop_oneof![Just(0u64), Just(1024), Just(4096), Just(u64::MAX), 0u64..1_000_000, any::<u64>()],
            13,
        ),
        changed in prop::collection::vec(0usize..13, 1..4),
        body in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut file = guest_file();
        for i in changed {
            file[FIRST + 24 + i * 8..][..8].copy_from_slice(&words[i].to_le_bytes());
        }
        file[FIRST + 128..][..body.len().min(256)].copy_from_slice(&body[..body.len().min(256)]);
        let _ = read(session_of(&file).path());
    }

    #[test]
    fn a_random_description_never_panics(
        at in any::<prop::sample::Index>(),
        with in "[\\[\\]{}\",:0-9a-z\\-]{0,6}",
        len in 0usize..40,
    ) {
        let text = json(&clocks(), EVENTS, "[]");
        let at = at.index(text.len());
        let end = (at + len).min(text.len());
        let made = session_of(&guest_file());
        let text = format!("{}{with}{}", &text[..at], &text[end..]);
        made.describe(&text);
        let _ = read(made.path());
    }

    #[test]
    fn clocks_of_any_rate_base_and_offset_never_panic(
        frequency in 1_000u64..1_000_000_000_001,
        base in any::<u64>(),
        host_offset in any::<i64>(),
        guest_offset in any::<i64>(),
        ts in any::<u64>(),
        guest_time in any::<u64>(),
    ) {
        let host = clock(0, "host", 0, frequency, 0, host_offset);
        let guest = clock(1, "guest", 0, frequency, base, guest_offset);
        let text = json(&format!("[{host},{guest}]"), EVENTS, "[]");
        let made = Made::with_json(&text)
            .stream("g", &[Packet::guest(0).event(ts, DISK_READ, &[0, 0])])
            .stream("h", &[Packet::host(0).point(ts / 2, 0, 0, guest_time, 0).point(ts, 0, 0, ts, 0)]);
        prop_assert_eq!(read(made.path()).unwrap(), 3);
    }
}

#[test]
fn a_follower_finds_the_same_damage_again() {
    let damaged = Packet::guest(0).event(20_000, DISK_READ, &[5, 512]).event(21_000, 9_999, &[5]);
    let packets = [Packet::guest(0), damaged];
    let made = Made::new().stream("guest-000-0000", &packets);
    let mut follow = Follow::open(made.path()).unwrap();

    let [first, second] = [(); 2].map(|()| follow.round(&mut |_| {}).unwrap_err().to_string());

    assert_eq!(first, second);
}
