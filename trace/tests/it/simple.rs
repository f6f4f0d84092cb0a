//! Tests of the file of declared events. In these tests, not only the VMM's own threads fill the rings.

use crate::common;
use common::guest::Guest;
use hypertrace_abi::clock::ticks;
use hypertrace_abi::event::Words;
use hypertrace_abi::record::Flags;
use hypertrace_abi::ring::{Emit, NewRecord};
use hypertrace_abi::schema::id_of;
use hypertrace_test_support::capability;
use hypertrace_trace::trace::guest_hypertrace;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::{chown, symlink};

/// Returns the events of the file, by id. Panics if a record does not end at the beginning of the next
/// record.
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
    // The first record is a point without the prefix of a point, and the second record is no point. Both
    // records have an unknown id.
    emit(id_of("none()"), Flags::REFERENCE_POINT | Flags::GUEST_HYPERTRACE, &[1, 2]);
    emit(id_of("none()"), Flags::empty(), &[1]);
    // A declared event that lacks arguments.
    emit(guest_hypertrace::EVENT.id(), Flags::empty(), &[1, 2, 3]);
    // A declared event that has all arguments.
    emit(guest_hypertrace::EVENT.id(), Flags::empty(), &[7; 10]);
    relay.pass(&session);
    session.finish().unwrap();

    let held = events(&std::fs::read(path).unwrap());
    let lengths: Vec<usize> = held.iter().map(|(_, bytes)| *bytes).collect();
    assert_eq!(lengths, [24 + 10 * 8]);
}

#[test]
fn a_link_and_another_users_file_or_pipe_are_refused_and_unchanged() {
    let (dir, session) = common::session(|_| ());
    let at = |name: &str| dir.path().join(name);
    session.set_simple_file(&at("mine")).unwrap();
    session.set_simple_file(&at("other")).unwrap();
    let before = fs::read(at("mine")).unwrap();
    symlink(at("mine"), at("link")).unwrap();
    symlink(at("other"), at("link to the current file")).unwrap();
    symlink(at("none"), at("link to nothing")).unwrap();
    fs::write(at("file"), "").unwrap();
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let reader = open(at("pipe"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let refused = |name: &str| {
        let command = format!("trace-file set {}", at(name).display());
        session.execute(&command).unwrap_err()
    };

    for link in ["link", "link to the current file", "link to nothing"] {
        assert!(refused(link).contains("it is a link"), "{link}: {}", refused(link));
    }
    if geteuid().is_root() {
        for name in ["file", "pipe"] {
            chown(at(name), Some(65534), None).unwrap();
            assert!(refused(name).contains("it belongs to user 65534"), "{}", refused(name));
        }
        capability::used("second-user");
    } else {
        capability::missing("second-user", "only root can give files to another user");
    }

    assert_eq!(rustix::io::read(&reader, &mut [0; 8]).unwrap(), 0, "the pipe has no bytes");
    session.finish().unwrap();
    assert_eq!(fs::read(at("mine")).unwrap(), before);
    assert_eq!(fs::read(at("file")).unwrap(), b"");
    assert!(!at("none").exists());
}
