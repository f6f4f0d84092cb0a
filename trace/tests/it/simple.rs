//! The file of declared events, where the threads that fill the rings are not the
//! VMM's own.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::Words;
use hypertrace_abi::record::Flags;
use hypertrace_abi::ring::{Emit, NewRecord};
use hypertrace_abi::schema::id_of;
use hypertrace_trace::trace::guest_hypertrace;

/// Events of the file, by id; panics where a record does not end with the next one's
/// begin.
fn events(file: &[u8]) -> Vec<(u64, usize)> {
    let half = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let word = |at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap());
    let (mut at, mut events) = (24, Vec::new());
    while at < file.len() {
        at += match word(at) {
            0 => 20 + half(at + 16),
            _ => {
                events.push((word(at + 8), half(at + 24)));
                8 + half(at + 24)
            }
        };
    }
    assert_eq!(at, file.len());
    events
}

#[test]
fn records_of_a_relay_that_are_no_events_are_not_in_the_file() {
    let (dir, session) = common::session(|config| config.relays = 1);
    let path = dir.path().join("file");
    session.set_events(&"guest_hypertrace".parse().unwrap(), true).unwrap();
    session.set_simple_file(&path).unwrap();
    let mut relay = Guest::new(0);
    let emit = |id: u32, flags: Flags, words: &[u64]| {
        let emit = relay.producer.emit(NewRecord::of_id(id, Words(words)).with_flags(flags), ticks);
        assert_eq!(emit, Emit::Recorded);
    };
    // A point without a point's prefix, and what is no point, both unknown.
    emit(id_of("none()"), Flags::REFERENCE_POINT | Flags::GUEST_HYPERTRACE, &[1, 2]);
    emit(id_of("none()"), Flags::empty(), &[1]);
    // A declared event that lacks arguments.
    emit(guest_hypertrace::EVENT.id(), Flags::empty(), &[1, 2, 3]);
    // One that has all.
    emit(guest_hypertrace::EVENT.id(), Flags::empty(), &[7; 10]);
    relay.pass(&session);
    session.finish().unwrap();

    let held = events(&std::fs::read(path).unwrap());
    let lengths: Vec<usize> = held.iter().map(|(_, bytes)| *bytes).collect();
    assert_eq!(lengths, [24 + 10 * 8]);
}
